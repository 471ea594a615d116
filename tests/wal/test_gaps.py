"""What is missing between slots: by sequences that do not join, and by what a flush had covered."""

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.gaps import START, Place, flushed_behind, unjoined
from aiorecover.wal.losses import Damage


def place(epoch: int, sequence: int, slot: int = 3) -> Place:
    return Place(epoch, sequence, slot, file_offset=slot * 1000)


@pytest.mark.parametrize(
    ("before", "following", "floor", "gone"),
    [
        (START, place(1, 1), (0, 0), None),
        (START, place(1, 5), (0, 0), (1, 1, 4)),
        (START, place(1, 5), (1, 2), (1, 3, 4)),
        (START, place(1, 5), (1, 4), None),
        (START, place(2, 5), (1, 9), (2, 1, 4)),
        (place(1, 5, 2), place(1, 5), (0, 0), None),
        (place(1, 5, 2), place(1, 8), (0, 0), (1, 5, 7)),
        (place(1, 5, 2), place(2, 8), (0, 0), (2, 1, 7)),
        (place(1, 5, 2), place(2, 1), (0, 0), None),
    ],
)
def test_sequences_join_within_an_epoch_and_begin_with_1(
    before: Place, following: Place, floor: tuple[int, int], gone: tuple[int, int, int] | None
) -> None:
    expected = Damage(*gone, following.slot, following.file_offset) if gone else None
    assert unjoined(before, following, fmt.position(*floor)) == expected


@pytest.mark.parametrize(
    ("before", "following", "floor", "gone"),
    [
        (START, None, (0, 0), Damage(2, 1, 9, 0, 0)),
        (START, None, (2, 4), Damage(2, 5, 9, 0, 0)),
        (START, None, (2, 9), None),
        (START, place(2, 1), (0, 0), None),  # told where the slots of its epoch end
        (START, place(3, 1), (0, 0), Damage(2, 1, 9, 3, 3000)),
        (place(1, 5, 2), place(3, 1), (0, 0), Damage(2, 1, 9, 2, 2000)),
        (place(1, 5, 2), None, (0, 0), Damage(2, 1, 9, 2, 2000)),
        (place(2, 5, 2), None, (0, 0), Damage(2, 5, 9, 2, 2000)),
        (place(2, 10, 2), None, (0, 0), None),
        (place(2, 5, 2), place(2, 7), (0, 0), None),
        (place(3, 5), None, (0, 0), None),
    ],
)
def test_what_was_flushed_is_missed_where_the_slots_of_its_epoch_end(
    before: Place, following: Place | None, floor: tuple[int, int], gone: Damage | None
) -> None:
    assert flushed_behind(before, following, fmt.position(2, 9), fmt.position(*floor)) == gone


def test_where_nothing_was_flushed_nothing_is_missed() -> None:
    assert flushed_behind(START, None, 0, 0) is None
