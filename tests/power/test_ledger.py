import pytest

from tests.power.ledger import Ledger
from tests.power.records import Name
from tests.power.recovery import Found, Position
from tests.power.words import Said

NAMES: list[tuple[Position, Name | None]] = [((1, 1), (7, 0)), ((1, 2), (7, 1)), ((1, 3), (7, 2))]


def ledger() -> Ledger:
    """Life 7, opened at point 2; records acknowledged at 4, 6 and 6, the first of them let go behind 8."""
    made = Ledger(life=7)
    made.hear(
        [
            Said("O", 2, (1,)),
            Said("A", 4, (1, 1, 0)),
            Said("A", 6, (1, 2, 1)),
            Said("A", 6, (1, 3, 2)),
            Said("D", 8, (1, 1)),
        ],
        publishers=2,
    )
    return made


@pytest.mark.parametrize(
    ("point", "sequences"),
    [(0, []), (3, []), (4, [1]), (5, [1]), (6, [1, 2, 3]), (8, [1, 2, 3]), (9, [2, 3])],
    ids=str,
)
def test_a_record_must_be_there_from_its_acknowledgement_until_it_is_let_go(point: int, sequences: list[int]) -> None:
    assert [sequence for _, sequence in ledger().required(point)] == sequences


def test_everything_there_is_well() -> None:
    assert ledger().judge(Found(2, [*NAMES]), 8) == []


def test_what_is_let_go_may_come_again_or_not() -> None:
    assert ledger().judge(Found(2, [*NAMES]), 9) == []
    assert ledger().judge(Found(2, NAMES[1:]), 9) == []


def test_what_nobody_was_told_of_may_be_there_or_not() -> None:
    untold = ((1, 4), (7, 4))
    assert ledger().judge(Found(2, [*NAMES, untold]), 8) == []
    assert ledger().judge(Found(2, [*NAMES], missing=[(1, 4, 5)]), 8) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (Found(2, NAMES[:2]), "lost (1): (1, 3)"),
        (Found(2, NAMES[1:], missing=[(1, 1, 1)]), "reported missing although acknowledged (1): (1, 1)"),
        (Found(2, [*NAMES[:2], ((1, 3), None)]), "altered (1): (1, 3)"),
        (Found(2, [*NAMES, ((1, 4), (7, 5))]), "invented (1): (1, 4)"),
        (Found(2, [*NAMES, ((1, 4), (6, 0))]), "invented (1): (1, 4)"),
        (Found(2, [*NAMES[:2], ((1, 3), (7, 3))]), "invented (1): (1, 3)"),
        (Found(2, [*NAMES, ((1, 4), (7, 2))]), "twice (1): (7, 2)"),
        (Found(2, [NAMES[1], NAMES[0], NAMES[2]]), "out of order (1): (1, 1)"),
        (Found(1, [*NAMES]), "epoch used again (1): 1"),
        (Found(2, [*NAMES], damaged_slots=[3]), "damaged slots (1): 3"),
    ],
    ids=str,
)
def test_whatever_is_wrong_is_told(found: Found, complaint: str) -> None:
    assert complaint in ledger().judge(found, 8)


def test_an_epoch_that_was_opened_but_holds_nothing_is_not_used_again() -> None:
    assert ledger().judge(Found(1), 1) == []
    assert ledger().judge(Found(1), 2) == ["epoch used again (1): 1"]


def test_the_next_life_must_find_what_this_one_left() -> None:
    following = ledger().after(Found(2, [*NAMES, ((1, 4), (7, 3))]), 8)
    following.hear([Said("O", 1, (2,)), Said("D", 5, (1, 2))], publishers=2)
    assert list(following.required(0)) == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert list(following.required(6)) == [(1, 1), (1, 3), (1, 4)]
    assert following.complaints == []


def test_the_next_life_knows_nothing_of_what_came_after_the_power_cut() -> None:
    following = ledger().after(Found(2), 1)
    following.hear([Said("O", 1, (1,)), Said("A", 1, (1, 1, 0))], publishers=2)
    assert following.complaints == []
    assert following.required(1) == {(1, 1): (8, 0)}


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (Said("O", 1, (1,)), "an epoch was given again: epoch=1 used=1"),
        (Said("A", 1, (1, 3, 9)), "a position was given twice: 1/3"),
    ],
    ids=str,
)
def test_what_must_never_be_said_is_told(said: Said, complaint: str) -> None:
    following = ledger().after(Found(2, [*NAMES]), 8)
    following.hear([said], publishers=2)
    assert following.complaints == [complaint]
