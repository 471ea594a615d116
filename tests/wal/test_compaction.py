"""When the oldest slot is moved and when the retry ring is rewritten: only where it gains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal.compaction import SLOTS_BESIDE, TIMES, SlotLoad, moves_oldest, outgrows, rewrites

SIZE = 100


def load(waiting: int, *, movable: bool = True) -> SlotLoad:
    return SlotLoad(SIZE, waiting, movable)


MOVES = {
    # slots, oldest first; room needed; is the oldest moved?
    "an empty ring": ([], False, False),
    "an empty ring, room needed": ([], True, False),
    "a little in the oldest, the rest is done": ([load(10), load(0)], False, True),
    "the oldest is dense, the rest is done": ([load(90), load(0), load(0)], False, True),
    "exactly half waits": ([load(50)], False, False),
    "just under half waits": ([load(49)], False, True),
    "most of the ring waits": ([load(10), load(100), load(100)], False, False),
    "most waits, room needed, a slot to gain": ([load(10), load(80), load(100)], True, True),
    "all waits, room needed, nothing to gain": ([load(100), load(100)], True, False),
    "less than a slot to gain": ([load(50), load(51)], True, False),
    "exactly a slot to gain": ([load(50), load(50)], True, True),
    "nothing waits in the oldest: a checkpoint frees it": ([load(0), load(10)], True, False),
    "somebody else needs the oldest": ([load(10, movable=False), load(0)], True, False),
    "somebody else needs only a later one": ([load(10), load(0, movable=False)], False, True),
}


@pytest.mark.parametrize("case", MOVES)
def test_the_oldest_slot_is_moved_where_it_gains_space(case: str) -> None:
    slots, room_needed, moves = MOVES[case]
    assert moves_oldest(slots, room_needed=room_needed) is moves


@given(st.lists(st.integers(0, SIZE), min_size=1, max_size=12))
def test_moving_comes_to_an_end_when_room_is_needed_and_nothing_is_delivered(waiting: list[int]) -> None:
    """The moved slot goes away and its records to the retry ring: each move shortens the main ring."""
    slots = [load(count) for count in waiting]
    moves = 0
    while moves_oldest(slots, room_needed=True):
        slots = slots[1:]
        moves += 1
    assert moves <= len(waiting)


@given(st.lists(st.integers(0, SIZE), min_size=1, max_size=12))
def test_without_need_a_byte_is_copied_only_when_it_frees_another(waiting: list[int]) -> None:
    slots = [load(count) for count in waiting]
    if moves_oldest(slots, room_needed=False):
        assert sum(waiting) * 2 < SIZE * len(waiting)


@given(st.lists(st.integers(0, SIZE), min_size=1, max_size=30))
def test_a_ring_outgrows_what_waits_beyond_twice_that_and_four_slots(waiting: list[int]) -> None:
    bound = TIMES * sum(waiting) + SLOTS_BESIDE * SIZE
    slots = [load(count) for count in waiting]
    assert outgrows(slots) is (SIZE * len(waiting) > bound)


REWRITES = {
    "empty": ([], False),
    "one slot: nothing to gain": ([load(1)], False),
    "two slots, little waits": ([load(10), load(10)], True),
    "half waits": ([load(50), load(50)], False),
    "somebody reads in it": ([load(10), load(10, movable=False)], False),
    "nothing waits": ([load(0), load(0)], True),
}


@pytest.mark.parametrize("case", REWRITES)
def test_the_retry_ring_is_rewritten_when_under_half_of_it_waits(case: str) -> None:
    slots, expected = REWRITES[case]
    assert rewrites(slots) is expected
