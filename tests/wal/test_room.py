"""A ring is full at one mark, accepts again at another, and gives back only what it did not need for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal.room import CUT_MOST, IDLE_LOOKS, KEEP_FREE, LOW_MARK_MOST, Room

PLENTY = 10_000


def test_free_slots_are_used_before_the_file_grows() -> None:
    room = Room(most=4)
    assert room.take(allocated=0, free=0, disk=PLENTY) is True
    assert room.take(allocated=2, free=1, disk=PLENTY) is False
    assert room.take(allocated=4, free=1, disk=0) is False


@pytest.mark.parametrize(("allocated", "disk"), [(4, PLENTY), (3, 0)])
def test_a_ring_without_free_slots_is_full_when_file_or_disk_are(allocated: int, disk: int) -> None:
    room = Room(most=4)
    assert room.take(allocated=allocated, free=0, disk=disk) is None
    assert room.full


@pytest.mark.parametrize(
    ("slots", "low"), [(1, 1), (2, 1), (63, 1), (64, 2), (256, LOW_MARK_MOST), (5000, LOW_MARK_MOST)]
)
def test_a_full_ring_accepts_again_at_the_low_mark_and_then_to_the_last_slot(slots: int, low: int) -> None:
    room = Room(most=slots)
    assert room.take(allocated=slots, free=0, disk=PLENTY) is None
    for free in range(low):
        assert room.take(allocated=slots, free=free, disk=PLENTY) is None
    for free in range(low, 0, -1):
        assert room.take(allocated=slots, free=free, disk=PLENTY) is False
    assert not room.full


def test_a_disk_that_has_room_again_counts_as_well() -> None:
    room = Room(most=1000)
    assert room.take(allocated=100, free=0, disk=0) is None
    assert room.take(allocated=100, free=1, disk=1) is None
    assert room.take(allocated=100, free=1, disk=2) is False


def looks(room: Room, free: int, used: int, count: int) -> list[int]:
    return [room.superfluous(free=free, used=used) for _ in range(count)]


def test_what_is_superfluous_for_long_is_cut_off() -> None:
    assert looks(Room(most=100), 10, 1, IDLE_LOOKS) == [0] * (IDLE_LOOKS - 1) + [10 - KEEP_FREE]


def test_one_look_that_needs_the_slots_begins_the_wait_anew() -> None:
    room = Room(most=100)
    looks(room, 20, 1, IDLE_LOOKS - 1)
    assert room.superfluous(free=2, used=19) == 0
    assert looks(room, 20, 1, IDLE_LOOKS - 1) == [0] * (IDLE_LOOKS - 1)


def test_only_what_was_superfluous_all_the_time_is_cut_off() -> None:
    room = Room(most=100)
    looks(room, 20, 1, IDLE_LOOKS - 2)
    room.superfluous(free=KEEP_FREE + 3, used=2)
    assert room.superfluous(free=20, used=1) == 3


def test_a_busy_ring_keeps_as_many_free_slots_as_it_uses() -> None:
    assert looks(Room(most=100), 30, 30, 3 * IDLE_LOOKS) == [0] * 3 * IDLE_LOOKS


def test_not_more_than_a_few_are_cut_off_at_once_and_the_next_look_goes_on() -> None:
    room = Room(most=1000)
    assert looks(room, 500, 1, IDLE_LOOKS)[-1] == CUT_MOST
    assert room.superfluous(free=500 - CUT_MOST, used=1) == CUT_MOST


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=60))
def test_never_is_anything_cut_off_that_the_kept_ones_need(seen: list[tuple[int, int]]) -> None:
    room = Room(most=100)
    for free, used in seen:
        assert 0 <= room.superfluous(free=free, used=used) <= max(0, free - KEEP_FREE)
