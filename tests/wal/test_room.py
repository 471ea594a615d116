"""Who may have one more slot, when a ring is full, when it accepts again, and what it gives back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.config import SLOTS_MIN
from aiorecover.wal.room import (
    CUT_MOST,
    DEAD,
    IDLE_LOOKS,
    KEEP_FREE,
    KEPT,
    LOW_MARK_MOST,
    MAIN,
    RETRY,
    SLOTS_LEAST,
    Holding,
    Room,
    Shares,
    Way,
    copies_take,
    pays,
    rewriting_takes,
)

PLENTY = 10_000
NOTHING = Holding(used=0, ready=0, free=0)
READY = Holding(used=1, ready=1, free=0)
RINGS = (MAIN, RETRY, DEAD)
NO_DEADLINE = settings(deadline=None)  # a busy machine is no fault


def main(slots: int) -> Room:
    return Room(MAIN, Shares(slots))


def take(room: Room, used: int, free: int, disk: int = PLENTY) -> Way | None:
    """For the main ring, where the others hold nothing but the slot that they have ready."""
    return room.take([Holding(used, 0, free), READY, READY], disk=disk)


# -- the main ring alone ---------------------------------------------------------------------------------------------


def test_free_slots_are_used_before_the_file_grows() -> None:
    room = main(6)
    assert take(room, 0, 0) is Way.GROW
    assert take(room, 1, 1) is Way.FREE
    assert take(room, 3, 1, disk=0) is Way.FREE


@pytest.mark.parametrize(("used", "disk", "by_limit"), [(4, PLENTY, True), (3, 0, False)])
def test_a_ring_without_free_slots_is_full_when_limit_or_disk_are(used: int, disk: int, *, by_limit: bool) -> None:
    room = main(6)
    assert take(room, used, 0, disk) is None
    assert room.full
    assert room.by_limit is by_limit


@pytest.mark.parametrize(("slots", "low"), [(4, 1), (63, 1), (64, 2), (256, LOW_MARK_MOST), (5000, LOW_MARK_MOST)])
def test_a_full_ring_accepts_again_at_the_low_mark_and_then_to_the_last_slot(slots: int, low: int) -> None:
    room = main(slots + 2)
    assert take(room, slots, 0) is None
    for free in range(low):
        assert take(room, slots - free, free) is None
    for free in range(low, 0, -1):
        assert take(room, slots - free, free) is Way.FREE
    assert not room.full


def test_a_disk_that_has_room_again_counts_as_well() -> None:
    room = main(1000)
    assert take(room, 100, 0, disk=0) is None
    assert take(room, 99, 1, disk=1) is None
    assert take(room, 99, 1, disk=2) is Way.FREE


# -- three rings -----------------------------------------------------------------------------------------------------


def test_the_least_that_may_be_asked_for_is_what_is_kept_for_the_rings() -> None:
    assert SLOTS_MIN == SLOTS_LEAST
    shares = Shares(SLOTS_LEAST)
    assert tuple(shares.most(ring) for ring in RINGS) == tuple(shares.kept(ring) for ring in RINGS) == KEPT


def test_dead_letters_and_moved_records_leave_the_main_ring_its_share() -> None:
    shares = Shares(100)
    assert (shares.most(RETRY), shares.most(DEAD)) == (50, 25)
    assert shares.left(MAIN, [NOTHING, Holding(50, 0, 0), Holding(25, 0, 0)]) == 25
    assert shares.left(RETRY, [NOTHING, Holding(50, 0, 0), NOTHING]) == 0
    assert shares.left(DEAD, [NOTHING, NOTHING, Holding(25, 0, 0)]) == 0


def test_a_full_main_ring_leaves_the_others_the_slot_that_makes_room() -> None:
    shares = Shares(100)
    assert shares.left(MAIN, [Holding(98, 1, 0), READY, READY]) == 0
    assert shares.left(MAIN, [Holding(94, 1, 0), Holding(1, 0, 0), READY]) == 1, "what the retry ring used is replaced"
    assert shares.left(RETRY, [Holding(97, 1, 0), Holding(1, 0, 0), READY]) == 1


def test_what_is_free_in_one_ring_is_exchanged_for_a_slot_of_another_one() -> None:
    holdings = [Holding(90, 0, 8), Holding(1, 0, 0), READY]
    assert Room(RETRY, Shares(100)).take(holdings, disk=0) is Way.EXCHANGE
    assert Room(RETRY, Shares(100)).take(holdings, disk=0, exchange=False) is None
    assert Room(RETRY, Shares(101)).take(holdings, disk=1) is Way.GROW


def test_the_slots_that_make_room_are_taken_below_the_guard_of_the_disk_too() -> None:
    assert Room(DEAD, Shares(100)).take([Holding(10, 0, 0), READY, NOTHING], disk=0) is Way.GROW
    assert Room(DEAD, Shares(100)).take([Holding(10, 0, 0), READY, Holding(1, 0, 0)], disk=0) is None


def test_the_last_room_on_the_disk_is_not_the_main_ring_s_while_another_one_has_no_slot_ready() -> None:
    assert main(100).take([Holding(10, 0, 0), NOTHING, NOTHING], disk=2) is None
    assert main(100).take([Holding(10, 0, 0), NOTHING, NOTHING], disk=3) is Way.GROW


def test_a_directory_opened_with_a_lower_limit_accepts_again_once_it_is_below_it() -> None:
    room = main(20)
    assert take(room, 40, 0) is None
    assert take(room, 18, 22) is None
    assert room.shares.excess([Holding(18, 0, 22), READY, READY]) == 22
    assert take(room, 17, 1) is Way.FREE


def test_dead_letters_beyond_a_lower_limit_leave_the_main_ring_what_is_kept_for_it() -> None:
    room = main(20)
    holdings = [Holding(3, 0, 0), READY, Holding(40, 0, 0)]
    assert room.take(holdings, disk=PLENTY) is Way.GROW
    holdings[MAIN] = Holding(4, 0, 0)
    assert room.take(holdings, disk=PLENTY) is None


# -- giving back -----------------------------------------------------------------------------------------------------


def looks(room: Room, free: int, used: int, count: int) -> list[int]:
    return [room.superfluous(free=free, used=used) for _ in range(count)]


def test_what_is_superfluous_for_long_is_cut_off() -> None:
    assert looks(main(100), 10, 1, IDLE_LOOKS) == [0] * (IDLE_LOOKS - 1) + [10 - KEEP_FREE]


def test_one_look_that_needs_the_slots_begins_the_wait_anew() -> None:
    room = main(100)
    looks(room, 20, 1, IDLE_LOOKS - 1)
    assert room.superfluous(free=2, used=19) == 0
    assert looks(room, 20, 1, IDLE_LOOKS - 1) == [0] * (IDLE_LOOKS - 1)


def test_only_what_was_superfluous_all_the_time_is_cut_off() -> None:
    room = main(100)
    looks(room, 20, 1, IDLE_LOOKS - 2)
    room.superfluous(free=KEEP_FREE + 3, used=2)
    assert room.superfluous(free=20, used=1) == 3


def test_a_busy_ring_keeps_as_many_free_slots_as_it_uses() -> None:
    assert looks(main(100), 30, 30, 3 * IDLE_LOOKS) == [0] * 3 * IDLE_LOOKS


def test_not_more_than_a_few_are_cut_off_at_once_and_the_next_look_goes_on() -> None:
    room = main(1000)
    assert looks(room, 500, 1, IDLE_LOOKS)[-1] == CUT_MOST
    assert room.superfluous(free=500 - CUT_MOST, used=1) == CUT_MOST


def test_what_became_superfluous_while_it_was_looked_at_is_cut_off_a_minute_later() -> None:
    room = main(1000)
    for used in range(40, 20, -1):  # a backlog is delivered, slot by slot
        room.superfluous(free=60 - used, used=used)
    assert looks(room, 59, 1, IDLE_LOOKS)[-1] == CUT_MOST
    assert room.superfluous(free=59 - CUT_MOST, used=1) == CUT_MOST


@NO_DEADLINE
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=60))
def test_never_is_anything_cut_off_that_the_kept_ones_need(seen: list[tuple[int, int]]) -> None:
    room = main(100)
    for free, used in seen:
        assert 0 <= room.superfluous(free=free, used=used) <= max(0, free - KEEP_FREE)


# -- rewriting the retry ring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [*range(SLOTS_LEAST, 60), 1280])
def test_moves_leave_room_for_a_rewriting_of_the_retry_ring_and_no_more_than_that(slots: int) -> None:
    shares, used = Shares(slots), 0
    while shares.moves_may_take(Holding(used + 1, 1, 0), PLENTY):
        used += 1
    most = shares.most(RETRY)
    assert used == 1 or used + rewriting_takes(used) <= most
    assert used >= 1
    assert used + 1 + rewriting_takes(used + 1) > most
    assert used >= most * 7 // 11 - 1


@pytest.mark.parametrize("used", range(2, 60))
@pytest.mark.parametrize("disk", [0, 1, 10])
def test_on_a_full_disk_the_main_ring_leaves_the_room_for_a_rewriting_of_what_is_free(used: int, disk: int) -> None:
    """But for what is kept for it."""
    room, retry = main(1000), Holding(used, 0, 0)
    wanted = 1 + rewriting_takes(used + 1)
    for own in range(disk + 100):
        holdings = [Holding(10, 0, own), retry, READY]
        left = own + disk - wanted
        assert room.more(holdings, disk=disk, exchange=True) == max(0, left)
        assert Room(RETRY, Shares(1000)).more(holdings, disk=disk, exchange=True) == own + disk
        holdings[MAIN] = Holding(1, 0, own)
        assert room.more(holdings, disk=disk, exchange=True) == max(left, min(own, KEPT[MAIN] - 1), 0)


def test_what_cannot_be_given_up_for_it_is_not_left() -> None:
    holdings = [Holding(10, 0, 5), Holding(8, 0, 0), READY]
    assert main(1000).more(holdings, disk=0, exchange=False) == 5


def test_the_main_ring_takes_no_free_slot_that_the_retry_ring_wants() -> None:
    holdings = [Holding(10, 0, 0), Holding(8, 0, 6), READY]
    assert main(1000).take(holdings, disk=0) is None
    holdings[RETRY] = Holding(8, 0, 1 + rewriting_takes(9) + 1)
    assert main(1000).take(holdings, disk=0) is Way.EXCHANGE


def test_on_a_full_disk_moves_leave_the_room_for_a_rewriting() -> None:
    shares = Shares(1000)
    assert shares.moves_may_take(Holding(1, 1, 0), 0), "the first slot, which is not rewritten"
    for used in range(1, 60):
        takes = rewriting_takes(used + 1)
        assert shares.moves_may_take(Holding(used + 1, 1, 0), takes)
        assert not shares.moves_may_take(Holding(used + 1, 1, 0), takes - 1)


@pytest.mark.parametrize("slots", [8, 11, 220])
def test_what_is_moved_pays_where_it_and_the_room_to_rewrite_it_take_less_than_it_gives(slots: int) -> None:
    most = max(moved for moved in range(1 << 14) if pays(moved, 1 << 14))
    assert slots * most // (1 << 14) + copies_take(slots * most // 2, 1 << 14) - 1 <= slots
    assert most == (7 << 14) // 11


@pytest.mark.parametrize("used", range(60))
def test_the_main_ring_leaves_the_room_for_a_rewriting(used: int) -> None:
    """Whatever it takes up to its limit, what the retry ring holds can be copied."""
    shares = Shares(200)
    retry = Holding(used, 0, 0)
    full = next(count for count in range(200) if not shares.left(MAIN, [Holding(count, 0, 0), retry, READY]))
    assert shares.left(RETRY, [Holding(full, 0, 0), retry, READY]) >= rewriting_takes(used)


@NO_DEADLINE
@given(st.lists(st.tuples(st.integers(1, 128), st.booleans()), min_size=1, max_size=300))
def test_what_a_rewriting_takes_is_enough_for_records_up_to_an_eighth_of_a_slot(
    records: list[tuple[int, bool]],
) -> None:
    slots = packed([size for size, _ in records])
    waiting = [size for size, waits in records if waits]
    assert packed(waiting) <= copies_take(sum(waiting), 1024)
    if slots > 1 and 2 * sum(waiting) < slots * 1024:
        assert copies_take(sum(waiting), 1024) <= rewriting_takes(slots)


def packed(sizes: list[int]) -> int:
    """Slots of 1024 that records take, in their order."""
    slots, rest = 0, 0
    for size in sizes:
        if size > rest:
            slots, rest = slots + 1, 1024
        rest -= size
    return slots
