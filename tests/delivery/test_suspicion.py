"""When a lane is suspected and when it is trusted again: tables, with the time handed in."""

import pytest

from aiorecover.delivery.suspicion import (
    CROWDED,
    CROWDED_TURNS,
    FIRST_STAY,
    LONGEST_STAY,
    SILENCE,
    SILENCE_OF_ALL,
    STEADY,
    Suspicion,
    patience,
)

LONGEST = 40.0


@pytest.mark.parametrize(
    ("silences", "others_answered", "expected"),
    [
        (0, True, SILENCE),
        (0, False, SILENCE_OF_ALL),
        (1, True, 2 * SILENCE),
        (3, True, 8 * SILENCE),
        (2, False, 4 * SILENCE_OF_ALL),
        (50, True, LONGEST),
        (10**6, False, LONGEST),
    ],
)
def test_patience_doubles_with_each_silence_up_to_the_time_limit(
    silences: int, others_answered: bool, expected: float
) -> None:
    assert patience(silences, others_answered=others_answered, longest=LONGEST) == expected


@pytest.mark.parametrize(
    ("silences", "expected"),
    [(0, SILENCE), (1, 2 * SILENCE), (2, CROWDED), (CROWDED_TURNS, CROWDED), (CROWDED_TURNS + 1, 2 * CROWDED)],
)
def test_where_others_wait_each_has_its_turn_which_becomes_longer_for_one_that_is_silent_again_and_again(
    silences: int, expected: float
) -> None:
    assert patience(silences, others_answered=True, longest=LONGEST, crowded=True) == expected
    assert patience(10**6, others_answered=True, longest=LONGEST, crowded=True) == LONGEST


def test_patience_is_never_longer_than_the_request_s_own_limit() -> None:
    assert patience(0, others_answered=False, longest=0.2) == 0.2


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        # (time, batches that got through so far, silent): what makes a lane a suspect is the last one
        ([(0.0, 0, False)], False),
        ([(0.0, 0, True)], True),
        ([(0.0, 0, False), (0.9, 100, False)], False),  # not long enough
        ([(0.0, 0, False), (SILENCE, 0, False)], False),  # nobody gets through: it is not the lane
        ([(0.0, 7, False), (60.0, 7, False)], False),
        ([(0.0, 7, False), (SILENCE, 8, False)], True),
        ([(0.0, 0, False), (0.5, 9, False), (SILENCE, 9, False)], True),
    ],
)
def test_a_lane_is_suspect_when_it_is_silent_or_fails_for_a_second_while_others_get_through(
    failures: list[tuple[float, int, bool]], expected: bool
) -> None:
    suspicion = Suspicion()
    found = [suspicion.failed(now, through, silent=silent) for now, through, silent in failures]
    assert found == [False] * (len(failures) - 1) + [expected]
    assert suspicion.suspect is expected


def test_an_acknowledgement_ends_the_second_that_has_begun() -> None:
    suspicion = Suspicion()
    assert not suspicion.failed(0.0, 0, silent=False)
    assert not suspicion.acknowledged(0.9, 0.8)
    assert suspicion.forgotten(0.9)
    assert not suspicion.failed(1.5, 5, silent=False)
    assert not suspicion.failed(2.4, 9, silent=False)
    assert suspicion.failed(2.5, 9, silent=False)


def test_a_suspect_becomes_one_only_once() -> None:
    suspicion = Suspicion()
    assert suspicion.failed(0.0, 0, silent=True)
    assert not suspicion.failed(1.0, 5, silent=True)
    assert suspicion.suspect
    assert not suspicion.forgotten(10**6)


def test_a_suspect_is_trusted_with_its_first_acknowledgement_and_forgotten_after_a_minute() -> None:
    suspicion = Suspicion()
    suspicion.failed(0.0, 0, silent=True)
    assert suspicion.acknowledged(8.0, 1.0)
    assert not suspicion.suspect
    assert not suspicion.forgotten(8.0 + STEADY - 0.1)
    assert suspicion.forgotten(8.0 + STEADY)


def test_one_that_comes_back_too_early_stays_longer_each_time_up_to_a_minute() -> None:
    suspicion, now, stays = Suspicion(), 0.0, []
    for _ in range(10):
        assert suspicion.failed(now, 0, silent=True)
        began = now
        while not suspicion.acknowledged(now, now):
            now += 0.5
        stays.append(now - began)
        now += 1.0
    assert stays == [0.0, *(min(LONGEST_STAY, FIRST_STAY * 2**number) for number in range(9))]


def test_one_that_was_well_for_a_minute_is_trusted_at_once_again() -> None:
    suspicion = Suspicion()
    for began in (0.0, STEADY + 1):
        assert suspicion.failed(began, 0, silent=True)
        assert suspicion.acknowledged(began + 0.5, began + 0.4)


@pytest.mark.parametrize("bad", ["slow", "failing"])
def test_only_being_well_counts_for_the_stay(bad: str) -> None:
    suspicion = Suspicion()
    suspicion.failed(0.0, 0, silent=True)
    suspicion.acknowledged(0.0, 0.0)
    suspicion.failed(1.0, 0, silent=True)
    assert not suspicion.acknowledged(1.5, 1.4)
    if bad == "slow":
        assert not suspicion.acknowledged(2.5, 2.5 - SILENCE)
    else:
        assert not suspicion.failed(2.5, 0, silent=False)
    assert not suspicion.acknowledged(2.5 + FIRST_STAY - 0.1, 3.3)
    assert suspicion.acknowledged(2.5 + FIRST_STAY, 3.4)


def test_who_has_nothing_more_to_send_is_trusted_when_it_was_well_for_its_stay() -> None:
    suspicion = Suspicion()
    assert not suspicion.rested(0.0)
    suspicion.failed(0.0, 0, silent=True)
    suspicion.acknowledged(0.5, 0.4)
    suspicion.failed(1.0, 0, silent=True)
    assert not suspicion.rested(1.0 + LONGEST_STAY), "it did not get through"
    assert not suspicion.acknowledged(1.5, 1.4)
    assert not suspicion.rested(1.0 + FIRST_STAY - 0.1)
    assert suspicion.rested(1.0 + FIRST_STAY)
    assert not suspicion.suspect
    assert not suspicion.forgotten(1.0 + FIRST_STAY + STEADY - 0.1)
