"""Appending, settling, growing, recycling: what is accepted stays until it is settled, and nothing longer."""

import dataclasses
import errno
import mmap
import os
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from aiorecover.errors import RecordTooLargeError, WalError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import room
from aiorecover.wal import slot as slot_module
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import classify
from aiorecover.wal.ring import LAST_SEQUENCE, MARGIN, RECENT, RECENT_BYTES
from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import StorageFile
from tests.wal.memory import PAGE, FaultyFile, broken, no_room
from tests.wal.rig import SLOT, Disk, Opened, found, missing, read, storing_fails, take

LARGEST = SLOT - 2 * fmt.RESERVED - fmt.FRAME_BYTES - MARGIN


def header_at(disk: Disk, index: int) -> fmt.SlotHeader | None:
    """Whose life the file shows at a slot."""
    start = index * SLOT
    return classify(index, disk.ring.read(start, 128), disk.ring.read(start + SLOT - 128, 128)).header


# -- append ----------------------------------------------------------------------------------------------------------


def test_sequences_are_gapless_from_one_in_each_epoch() -> None:
    opened = Opened()
    for epoch in (1, 2, 3):
        assert opened.append(b"a", b"b", b"c") == [(epoch, 1), (epoch, 2), (epoch, 3)]
        assert opened.ring.sequence == opened.ring.accepted == 3
        opened = opened.dies()


def test_opening_takes_no_slot_and_the_first_append_does() -> None:
    with Opened() as opened:
        assert opened.disk.ring.size() == 0
        assert opened.ring.bytes_allocated == opened.ring.bytes_used == 0
        opened.append(b"first")
        assert opened.disk.ring.size() == SLOT
        assert opened.ring.bytes_allocated == opened.ring.bytes_used == SLOT


def test_a_full_slot_is_sealed_and_the_next_one_joins_it() -> None:
    with Opened() as opened:
        for _ in range(4):
            opened.fill_slot()
        slots = opened.ring.live
        assert [slot.header.ordinal for slot in slots] == [1, 2, 3, 4]
        assert [slot.sealed for slot in slots] == [True, True, True, False]
        for slot, following in pairwise(slots):
            assert following.header.first_sequence == slot.last_sequence + 1
            seal = fmt.Seal(slot.last_sequence - slot.header.first_sequence + 1, slot.tail, slot.last_sequence)
            for start in (0, SLOT - fmt.RESERVED):
                stored = opened.disk.ring.read(slot.file_offset + start, fmt.RESERVED)
                assert fmt.unpack_slot_header(stored) == slot.header
                assert fmt.unpack_seal(stored[fmt.SEAL_OFFSET :], slot.salt) == seal


def test_the_largest_record_fills_a_slot_and_one_byte_more_is_refused() -> None:
    with Opened() as opened:
        opened.append(b"small")
        with pytest.raises(RecordTooLargeError, match=rf"raise slot_bytes .* bytes={LARGEST + 1} slot_bytes={SLOT}$"):
            opened.append(b"x" * (LARGEST + 1))
        assert len(opened.ring.live) == 1  # nothing was stored, no slot was taken
        opened.append(b"x" * LARGEST, b"y" * LARGEST, b"behind")
        assert found(opened.read()) == list(opened.accepted.items())
        following = opened.dies()
        assert found(following.read()) == list(opened.accepted.items())
        assert missing(following.ring) == []


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5])
def test_a_record_of_any_length_is_found_again(size: int) -> None:
    opened = Opened()
    opened.append(b"z" * size, b"behind")
    assert found(opened.read()) == list(opened.accepted.items())
    following = opened.dies()
    assert found(following.read()) == list(opened.accepted.items())
    assert missing(following.ring) == []


@pytest.mark.parametrize("seed", range(5))
def test_settled_in_any_order_a_reopened_ring_has_exactly_the_others_in_order(seed: int) -> None:
    chance = random.Random(seed)
    opened = Opened(Disk(max_slots=200))
    for life in range(4):
        opened.append(*(chance.randbytes(chance.choice([1, 30, 200, RECENT_BYTES + 1])) for _ in range(250)))
        entries = opened.read(chance.choice([1, 7, 100]))
        assert found(entries) == sorted(opened.accepted.items()), life
        settled = chance.sample(entries, len(entries) * 2 // 3)
        opened.settle(settled)
        for position, _ in found(settled):
            del opened.accepted[position]
        if life % 2:
            opened.checkpoint()
        opened = opened.dies()
    assert found(opened.read()) == sorted(opened.accepted.items())
    assert missing(opened.ring) == []


# -- an exception while storing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(errno.EIO, "sector"), KeyboardInterrupt(), MemoryError()])
def test_an_exception_while_storing_leaves_a_skip_frame_and_no_record(error: BaseException) -> None:
    opened = Opened()
    opened.append(b"before")
    for _ in range(2):
        with pytest.raises(type(error)), storing_fails(error):
            opened.append(b"refused, of some length")
        opened.append(b"behind %d" % opened.ring.sequence)
    expected = [((1, 1), b"before"), ((1, 3), b"behind 2"), ((1, 5), b"behind 4")]
    assert opened.ring.accepted == opened.ring.pending() == 3
    assert found(opened.read()) == expected
    following = opened.dies()
    assert found(following.read()) == expected
    assert missing(following.ring) == []


def test_a_slot_with_nothing_but_skip_frames_is_passed_and_recycled() -> None:
    with Opened() as opened:
        opened.append(b"taken")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt), storing_fails(KeyboardInterrupt()):
                opened.append(b"x" * 5000)
        opened.fill_slot(b"next slot" * 1000)
        opened.settle(opened.read())
        assert opened.checkpoint() == 1
        following = opened.dies()
        assert following.read() == []
        assert missing(following.ring) == []


# -- pages ahead of the tail -----------------------------------------------------------------------------------------


class NotingMap(mmap.mmap):
    """Notes what is asked for, and has it if it can."""

    asked: list[tuple[int, int]]

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        assert length is not None
        assert length > 0
        self.asked.append((start, start + length))
        super().madvise(option, start, length)


@pytest.mark.parametrize("advice", [slot_module.POPULATE_WRITE, 9999, None])
def test_pages_are_asked_for_ahead_of_the_tail_once_each_whether_the_system_can_or_not(
    monkeypatch: pytest.MonkeyPatch, advice: int | None
) -> None:
    size = 1 << 18
    file = FaultyFile("slot")
    file.allocate(0, size)
    asked: list[tuple[int, int]] = []
    NotingMap.asked = asked
    slot = Slot(0, fmt.SlotHeader(size, 1, 1, 1, 1, 1, 1))
    slot.prefault()
    slot.attach(NotingMap(file.fileno(), size))
    monkeypatch.setattr(slot_module, "POPULATE_WRITE", advice)
    for slot.tail in range(fmt.FIRST_FRAME, size - fmt.RESERVED, 220):
        slot.prefault()
        assert advice is None or asked[-1][1] >= min(size, slot.tail + slot_module.PREFAULT // 2 - mmap.PAGESIZE)
    if advice is None:
        assert asked == []
    else:
        assert [start for start, _ in asked] == [0, *(stop for _, stop in asked[:-1])]
        assert asked[-1][1] == size
    slot.detach()
    slot.prefault()


class LosingMap(mmap.mmap):
    """A page of it was lost since the slot was prepared: a store there would be a signal."""

    lost = 2 * slot_module.PREFAULT + 3 * PAGE

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        assert length is not None
        if start <= self.lost < start + length:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        super().madvise(option, start, length)


class LosingFile(FaultyFile):
    def map(self, offset: int, length: int) -> mmap.mmap:
        return LosingMap(self.fileno(), length, offset=offset)


def test_no_frame_comes_to_a_page_that_was_lost_ahead_of_the_tail_and_the_next_slot_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk(LosingFile("ring"), slot_bytes=1 << 18)
    opened = Opened(disk)
    for _ in range(300):
        opened.append(b"x" * 2000)
        opened.ring.prefault()
    told = f"going on in another slot: check the disk path={disk.ring.path} offset="
    assert caplog.text.count(told) == len(opened.ring.live) - 1 == 4
    assert all(slot.tail <= LosingMap.lost for slot in opened.ring.live)
    assert found(opened.read()) == list(opened.accepted.items())
    assert found(opened.dies().read()) == list(opened.accepted.items())


def test_a_ring_that_failed_while_a_page_was_lost_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper's thread comes in between: what it says counts."""
    opened = Opened(Disk(slot_bytes=1 << 18))
    opened.append(b"accepted")
    slot = opened.ring.live[-1]

    def lost(*_: object) -> bool:
        opened.ring.poison(WalIOError(errno.EIO, "the disk failed"))
        slot.limit = 4096
        return False

    monkeypatch.setattr(Slot, "prefault", lost)
    opened.ring.prefault()
    with pytest.raises(WalIOError, match="the disk failed"):
        opened.append(b"refused")


# -- settle ----------------------------------------------------------------------------------------------------------


def mapped(slot: Slot) -> bool:
    return slot.map is not None


def test_a_slot_is_unmapped_once_everything_in_it_is_settled() -> None:
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"next slot" * 100)
        first, second = opened.ring.live
        entries = opened.read()
        opened.settle(entries[:-2])
        assert [mapped(first), mapped(second)] == [True, True]
        mapping: Any = first.map
        opened.settle(entries[-2:])
        assert [mapped(first), mapped(second)] == [False, True]  # frames still come to the second
        assert mapping.closed, "nobody stores into it any more, whoever has it at hand"
        assert opened.ring.pending() == 0


def test_a_handle_of_an_earlier_life_cannot_settle() -> None:
    """I3."""
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"next slot" * 100)
        entries = opened.read()
        opened.settle(entries)
        assert opened.checkpoint() == 1
        while opened.ring.live[-1].index != entries[0][0].index:
            opened.append(b"in the recycled slot, at last")
        with pytest.raises(ValueError, match=r"earlier life of a slot ordinal=1$"):
            opened.settle(entries[:1])
        waiting = found(opened.read())
        assert len(waiting) > 2
        assert found(opened.dies().read()) == waiting


def test_a_frame_that_is_settled_twice_stops_everything_that_frees() -> None:
    """Which frame waits instead, nobody knows: the files do, and the next opening reads them."""
    with Opened() as opened:
        opened.append(b"one", b"two")
        entries = opened.read()
        opened.settle([entries[0], entries[0]])
        assert opened.ring.failure is None  # it looks as if both were settled
        opened.settle([entries[0]])
        with pytest.raises(WalError, match="settled twice: reopen the directory"):
            opened.append(b"x" * 16_000)
        assert opened.ring.recycle(fmt.position(9, 9)) == 0
        assert found(opened.dies().read()) == [((1, 2), b"two")]


def test_a_store_of_an_earlier_life_into_the_next_one_settles_nothing() -> None:
    """I3: the settle word is the salt of one life; another life's is neither settled nor open."""
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"next slot" * 100)
        entries = opened.read()
        old_salt, place = entries[0][0].salt, entries[0][1]
        opened.settle(entries)
        opened.checkpoint()
        slot = entries[-1][0]
        while slot.index != entries[0][0].index or slot.tail < place * 4:
            opened.append(b"f" * 500)
            slot = opened.ring.live[-1]
        assert slot.words is not None
        slot.words[place] = old_salt
        assert len(opened.dies().read()) == len(opened.read())


# -- watermark and recycling -----------------------------------------------------------------------------------------


def test_the_watermark_goes_up_to_the_first_thing_that_is_not_settled() -> None:
    with Opened() as opened:
        assert opened.ring.watermark() == 0
        opened.fill_slot()
        second_slot = opened.fill_slot(b"2" * 500)
        third_slot = opened.fill_slot(b"3" * 500)
        entries = opened.read()
        by_slot = {slot: [entry for entry in entries if entry[0] is slot] for slot in opened.ring.live}
        first, second, third = by_slot.values()
        opened.settle(second)
        assert opened.ring.watermark() == 0
        opened.settle(first[1:])
        assert opened.ring.watermark() == 0
        opened.settle(first[:1])
        assert opened.ring.watermark() == fmt.position(*second_slot[-1])
        opened.settle(third)
        assert opened.ring.watermark() == fmt.position(*third_slot[-1])


def test_a_watermark_never_goes_back() -> None:
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"next" * 200)
        opened.settle(opened.read())
        mark = opened.ring.watermark()
        opened.checkpoint()
        assert opened.ring.watermark() == mark
        opened.append(b"waits")
        assert opened.ring.watermark() >= fmt.position(1, len(opened.accepted) - 1) - 1
        following = opened.dies()
        assert following.ring.watermark() == mark
        assert following.directory.checkpoint.watermark == mark


def recyclable(opened: Opened) -> bool:
    return opened.ring.recyclable


def full_slots(opened: Opened, count: int) -> None:
    """So many sealed slots, and one that is written."""
    while len(opened.ring.live) <= count:
        opened.append(b"f" * 500)


def test_a_slot_is_recycled_only_when_a_durable_watermark_covers_it() -> None:
    """I1."""
    with Opened() as opened:
        full_slots(opened, 3)
        opened.settle(opened.read())
        last = [slot.last_position for slot in opened.ring.live[:3]]
        assert opened.ring.recyclable
        assert opened.ring.recycle(0) == 0
        assert opened.ring.recycle(last[0] - 1) == 0
        assert opened.ring.recycle(last[1] + 1) == 2
        assert opened.ring.recycle(last[2]) == 1
        assert not opened.ring.recyclable


def test_a_slot_with_one_frame_that_waits_is_not_recycled_nor_any_behind_it() -> None:
    """I1: oldest first."""
    with Opened() as opened:
        full_slots(opened, 3)
        entries = opened.read()
        opened.settle(entries[:5] + entries[6:])
        assert opened.ring.recycle(opened.ring.live[-1].last_position) == 0
        opened.settle([entries[5]])
        assert opened.ring.recycle(opened.ring.live[2].last_position) == 3


def test_a_slot_in_which_a_reader_stands_is_not_recycled() -> None:
    """I1: a slot that is recycled under a reader takes along what the reader has not seen."""
    with Opened() as opened:
        full_slots(opened, 3)
        entries = opened.read()
        slot, place, sequence, _ = entries[3]
        second = opened.reader.behind(slot, place, sequence)
        opened.settle(entries)
        assert (recyclable(opened), opened.checkpoint()) == (False, 0)
        second.close()
        assert (recyclable(opened), opened.checkpoint()) == (True, 3)


def test_a_primary_reader_at_the_end_of_a_slot_keeps_it_until_it_goes_on() -> None:
    """I1: it has read and settled everything there, and the next slot was begun behind its back."""
    with Opened() as opened:
        opened.fill_slot()
        opened.settle(opened.read())
        opened.append(b"f" * 500)
        assert (recyclable(opened), opened.checkpoint()) == (False, 0)
        take(opened.reader, 1)
        assert (recyclable(opened), opened.checkpoint()) == (True, 1)


def test_recycled_slots_are_used_again_under_new_ordinals_and_salts() -> None:
    with Opened() as opened:
        lives = set()
        for _ in range(50):
            opened.append(*[b"f" * 500] * 20)
            opened.settle(opened.read())
            opened.checkpoint()
            lives |= {(slot.header.ordinal, slot.index, slot.salt) for slot in opened.ring.live}
        assert opened.disk.ring.size() <= 4 * SLOT
        assert len(lives) > 30
        assert len({ordinal for ordinal, _, _ in lives}) == len({salt for _, _, salt in lives}) == len(lives)
        assert opened.ring.bytes_used <= 2 * SLOT


def test_a_recycled_slot_keeps_its_bytes_until_its_next_life() -> None:
    with Opened() as opened:
        full_slots(opened, 1)
        opened.settle(opened.read())
        before = opened.disk.ring.read(0, SLOT)
        opened.checkpoint()
        assert opened.disk.ring.read(0, SLOT) == before
        assert header_at(opened.disk, 0) is not None


def test_slots_of_earlier_epochs_are_recycled_once_they_are_read_and_settled() -> None:
    with Opened() as opened:
        full_slots(opened, 3)
        following = opened.dies()
        with following:
            entries = following.read()
            following.append(b"new")
            entries += following.read()
            assert following.ring.pending() == len(entries)
            following.settle(random.Random(1).sample(entries, len(entries)))
            assert following.ring.pending() == 0
            assert following.ring.watermark() == fmt.position(2, 1)
            assert following.checkpoint() == 4


def test_after_many_deaths_everything_settled_frees_everything() -> None:
    opened = Opened()
    for life in range(10):
        opened.append(*[b"f" * 700] * (life * 5))
        entries = opened.read(7)
        opened.settle(entries[:3])
        opened = opened.dies()
    opened.settle(opened.read())
    opened.append(b"last")
    opened.settle(opened.read())
    opened.checkpoint()
    assert opened.ring.bytes_used == SLOT
    assert opened.ring.pending() == opened.ring.unread() == 0
    assert opened.dies().read() == []


# -- room ------------------------------------------------------------------------------------------------------------


def test_a_full_ring_refuses_at_once_stores_nothing_and_goes_on_after_recycling() -> None:
    with Opened(Disk(max_slots=4)) as opened:
        with pytest.raises(WalFullError, match=rf"the ring is full: wait for delivery .* wal_max_bytes={6 * SLOT}$"):
            full_slots(opened, 4)
        before = opened.ring.sequence
        for _ in range(3):
            with pytest.raises(WalFullError):
                opened.append(b"f" * 500)
        assert opened.ring.sequence == before
        assert opened.disk.ring.size() == 4 * SLOT
        entries = opened.read()
        assert found(entries) == list(opened.accepted.items())
        opened.settle(entries[:40])  # more than the first slot
        assert opened.checkpoint() == 1
        opened.append(b"f" * 500)
        assert opened.ring.sequence == before + 1
        expected = list(opened.accepted.items())[40:]
        assert found(opened.dies().read()) == expected


def test_a_full_ring_still_takes_what_fits_the_slot_at_hand() -> None:
    with Opened(Disk(max_slots=1)) as opened:
        with pytest.raises(WalFullError):
            opened.append(*[b"f" * 1000] * 100)
        opened.append(b"small")
        assert found(opened.read())[-1][1] == b"small"


def test_a_full_ring_of_one_slot_takes_records_again_once_the_reader_has_seen_its_end() -> None:
    """The slot is left with nothing behind it: whoever read it must not keep it, or nothing could ever follow."""
    with Opened(Disk(max_slots=1)) as opened:
        for _ in range(3):
            opened.fill_slot()
            with pytest.raises(WalFullError):
                opened.append(b"f" * 500)
            opened.settle(opened.read())
            assert opened.ring.leave()
            assert (recyclable(opened), opened.checkpoint()) == (False, 0)
            assert opened.read() == []
            assert (recyclable(opened), opened.checkpoint()) == (True, 1)
        opened.append(b"last")
        assert [payload for _, payload in found(opened.read())] == [b"last"]
        assert missing(opened.ring) == []


def test_a_slot_is_left_once_and_only_if_what_was_stored_in_it_is_settled() -> None:
    with Opened() as opened:
        left = [opened.ring.leave()]
        opened.append(b"waits")
        left.append(opened.ring.leave())
        opened.settle(opened.read())
        left += [opened.ring.leave(), opened.ring.leave()]
        assert left == [False, False, True, False]


def test_a_full_disk_harms_nothing_leaves_no_hole_and_is_over_when_it_is_over() -> None:
    with Opened() as opened:
        full_slots(opened, 1)
        opened.disk.ring.before["allocate"] = no_room
        with pytest.raises(WalFullError):
            full_slots(opened, 2)
        del opened.disk.ring.before["allocate"]
        full_slots(opened, 3)
        assert opened.disk.ring.size() == opened.ring.bytes_allocated == 4 * SLOT
        assert found(opened.read()) == list(opened.accepted.items())


def test_the_disk_keeps_what_min_free_bytes_asks_for() -> None:
    with Opened() as opened:
        free = 10 * SLOT
        quota = opened.ring.spares.quota
        quota.limits = dataclasses.replace(quota.limits, min_free_bytes=8 * SLOT, free_bytes=lambda: free)
        full_slots(opened, 1)
        free = 9 * SLOT - 1
        with pytest.raises(
            WalFullError, match=rf"lower wal_min_free_bytes ring=ring free={free} wal_min_free_bytes={8 * SLOT}$"
        ):
            full_slots(opened, 2)


@pytest.mark.parametrize(("free", "told"), [(SLOT - 1, False), (SLOT, True)])
def test_the_guard_of_the_disk_is_named_only_where_lowering_it_would_help(free: int, *, told: bool) -> None:
    with Opened() as opened:
        opened.append(b"something that is delivered some day")
        quota = opened.ring.spares.quota
        quota.limits = dataclasses.replace(quota.limits, min_free_bytes=1 << 40, free_bytes=lambda: free)
        with pytest.raises(WalFullError, match="the disk is full: wait for delivery to free space, or free") as full:
            full_slots(opened, 2)
        assert ("lower wal_min_free_bytes" in str(full.value)) is told


def test_a_disk_on_which_no_slot_fits_is_told_so_with_what_helps() -> None:
    with Opened() as opened:
        quota = opened.ring.spares.quota
        quota.limits = dataclasses.replace(quota.limits, free_bytes=lambda: SLOT - 1)
        remedy = "free space on it, or begin another directory with a lower slot_bytes: this one keeps its own"
        told = rf"the disk has no room for a slot of {SLOT} bytes: {remedy} ring=ring"
        with pytest.raises(WalFullError, match=told):
            opened.append(b"first")


def test_a_mapping_that_fails_costs_no_slot() -> None:
    with Opened(Disk(max_slots=3)) as opened:
        full_slots(opened, 1)
        opened.disk.ring.before["map"] = broken
        for _ in range(5):
            with pytest.raises(WalIOError):
                full_slots(opened, 2)
        del opened.disk.ring.before["map"]
        full_slots(opened, 2)
        opened.settle(opened.read())
        assert opened.checkpoint() == 2
        opened.disk.ring.before["map"] = broken
        for _ in range(5):
            with pytest.raises(WalIOError):
                full_slots(opened, 1)
        del opened.disk.ring.before["map"]
        full_slots(opened, 2)
        assert opened.disk.ring.size() == 3 * SLOT


def test_a_spare_is_allocated_ahead_of_need_and_only_one() -> None:
    with Opened() as opened:
        wants = [opened.ring.wants_spare]
        for _ in range(2):
            opened.ring.prepare_spare()
            wants.append(opened.ring.wants_spare)
        assert wants == [True, False, False]
        assert opened.disk.ring.size() == SLOT
        opened.disk.ring.before["allocate"] = opened.disk.ring.before["map"] = broken
        opened.append(b"needs no system call")
        assert opened.ring.wants_spare


def test_counts_add_up_over_lives() -> None:
    with Opened() as opened:
        full_slots(opened, 2)
        accepted = opened.ring.accepted
        opened.settle(opened.read()[:10])
        assert opened.ring.pending() == accepted - 10
        assert opened.ring.unread() == 0
        with opened.dies() as following:
            sealed = following.ring.live[0].count + following.ring.live[1].count
            assert following.ring.unread() == sealed + 1  # by the seals, and the first frame of the open one
            entries = following.read()
            assert len(entries) == following.reader.found == following.ring.pending() == accepted - 10
            assert following.ring.unread() == 0


def test_of_a_slot_that_was_left_open_so_many_are_unread_as_the_newest_checkpoint_flushed() -> None:
    opened = Opened()
    opened.append(*[b"f" * 100] * 5)
    opened.checkpoint()
    opened.append(*[b"f" * 100] * 2)
    following = opened.dies()
    assert following.ring.unread() == 5
    following.settle(take(following.reader, 3))
    assert (following.ring.unread(), following.ring.pending()) == (2, 0), "what is settled is not unread again"
    following.reader.take(3)
    assert (following.ring.unread(), following.ring.pending()) == (0, 3)
    following.read()
    assert (following.ring.unread(), following.ring.pending()) == (0, 4)


def test_what_is_claimed_is_pending_and_not_unread_wherever_the_reader_is() -> None:
    opened = Opened()
    opened.append(*[b"f" * 100] * 10)
    places = [place for _, place, _, _ in opened.read()]
    opened.checkpoint()
    following = opened.dies()
    slot = following.ring.live[0]
    following.ring.claim(slot, [places[1], places[8]], [])
    assert (following.ring.unread(), following.ring.pending()) == (8, 2)
    while take(following.reader, 2):
        assert following.ring.unread() + following.ring.pending() == 10
    assert (following.ring.unread(), following.ring.pending()) == (0, 10)


def test_the_kernel_reads_ahead_only_in_a_slot_to_which_no_frame_comes_any_more() -> None:
    """Behind the tail there is nothing to fetch, and the next slot stands somewhere else."""
    with Opened() as opened, mock.patch.object(opened.disk.ring, "read_ahead") as read_ahead:
        opened.append(b"f" * 3000, b"f" * 3000)  # too large to be kept in memory
        opened.read()
        assert not read_ahead.called
        second = Reader(opened.ring, bytes, primary=False)
        opened.ring.go_on()
        assert read(second)
        assert read_ahead.called


def test_is_settled_tells_of_each_record_of_this_epoch() -> None:
    with Opened() as opened:
        full_slots(opened, 2)
        entries = opened.read()
        opened.settle(entries[::2])
        states = [opened.ring.is_settled(sequence, place) for _, place, sequence, _ in entries]
        assert states == [number % 2 == 0 for number in range(len(entries))]
        opened.settle(entries[1::2])
        opened.checkpoint()
        assert all(opened.ring.is_settled(sequence, place) for _, place, sequence, _ in entries)
        place, sequence = opened.ring.append(b"waits", None)
        assert not opened.ring.is_settled(sequence, place)
        opened.ring.close()
        assert opened.ring.is_settled(sequence - 1, place)  # as far as the watermark tells
        assert not opened.ring.is_settled(sequence, place)


def test_is_settled_tells_of_records_whose_slots_are_gone() -> None:
    with Opened() as first:
        first.append(b"waits")
        with first.dies() as opened:
            place, sequence = opened.ring.append(b"f" * 9000, None)
            opened.ring.append(b"f" * 9000, None)
            opened.settle(opened.read())
            opened.checkpoint()
            assert len(opened.ring.live) == 1
            assert opened.ring.is_settled(sequence, place)


# -- a failed fsync --------------------------------------------------------------------------------------------------


def fails(call: Callable[[], object]) -> None:
    with pytest.raises(WalIOError) as caught:
        call()
    assert caught.value.errno == errno.EIO


def test_after_a_failed_fsync_nothing_is_accepted_or_recycled_and_delivery_goes_on() -> None:
    """I7."""
    with Opened() as opened:
        full_slots(opened, 2)
        accepted = opened.accepted.copy()
        opened.ring.prepare_spare()
        opened.disk.ring.before["sync"] = broken
        fails(opened.ring.sync)
        del opened.disk.ring.before["sync"]  # the next one would succeed: the kernel called the lost pages clean
        fails(opened.ring.sync)
        fails(lambda: opened.append(b"x"))
        fails(opened.checkpoint)
        assert not opened.ring.wants_spare
        entries = opened.read()
        assert found(entries) == list(accepted.items())
        opened.settle(entries[:-1])
        assert not opened.ring.recyclable
        assert opened.ring.recycle(fmt.position(9, 9)) == 0
        following = opened.dies()
        assert found(following.read()) == list(accepted.items())[-1:]
        following.append(b"reopened")


def test_a_failed_checkpoint_write_poisons_too() -> None:
    """I7."""
    with Opened() as opened:
        opened.append(b"taken")
        opened.disk.checkpoint.before["sync"] = broken
        fails(opened.checkpoint)
        fails(lambda: opened.append(b"x"))


def test_a_poison_that_comes_while_the_ring_grows_stops_the_new_slot_too() -> None:
    """I7: the keeper's thread fails between the look at the failure and the new slot."""
    with Opened() as opened:
        full_slots(opened, 1)
        opened.fill_slot()
        opened.disk.ring.after["map"] = lambda: opened.ring.poison(WalIOError(errno.EIO, "failed"))
        fails(lambda: opened.append(b"f" * 500))
        fails(lambda: opened.append(b"x"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_flush_is_an_io_error_whatever_its_number(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Thin volumes and network file systems find out at the flush that there is no room: what was stored is lost."""

    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with Opened() as opened:
        opened.append(b"taken")
        monkeypatch.setattr(os, "fdatasync", refuse)
        with pytest.raises(WalIOError) as caught:
            opened.ring.sync()
        assert caught.value.errno == code
        monkeypatch.undo()
        with pytest.raises(WalIOError):
            opened.append(b"x")


# -- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "abandon"])
@pytest.mark.parametrize("spare", [True, False])
def test_a_closed_ring_accepts_nothing(how: str, spare: bool) -> None:
    """Not even into a slot that is free or ready: in a forked child it would be the parent's."""
    opened = Opened()
    full_slots(opened, 2)
    opened.settle(opened.read())
    opened.checkpoint()
    if spare:
        opened.ring.prepare_spare()
    left = opened.disk.ring.live()
    getattr(opened.ring, how)()
    for payload in (b"x", b"f" * 500, b"f" * 10_000):
        with pytest.raises(WalIOError, match="closed") as caught:
            opened.append(payload)
        assert caught.value.errno == errno.EBADF
    with pytest.raises(WalError):
        opened.ring.sync()
    assert opened.disk.ring.live() == left


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_a_closed_ring_has_let_go_of_its_file(how: str) -> None:
    opened = Opened()
    full_slots(opened, 2)
    getattr(opened.ring, how)()
    assert opened.disk.ring.closed
    assert [slot.map for slot in opened.ring.live] == [None] * len(opened.ring.live)


def test_a_closed_file_maps_no_anonymous_memory() -> None:
    """The descriptor -1 is a wish for memory without a file: records would be stored into nothing."""
    opened = Opened()
    opened.append(b"taken")
    file: StorageFile = opened.disk.ring
    file.close()
    for call in (lambda: StorageFile.map(file, 0, SLOT), lambda: file.read(0, 1), lambda: file.write(b"x", 0)):
        with pytest.raises(WalIOError):
            call()


def test_nothing_is_mapped_beyond_the_end_of_the_file() -> None:
    """A store there would be a signal that kills the process."""
    with Opened() as opened:
        opened.append(b"taken")
        for offset, length in ((0, 2 * SLOT), (SLOT, SLOT), (2 * SLOT, SLOT)):
            with pytest.raises(WalIOError, match="cut"):
                StorageFile.map(opened.disk.ring, offset, length)


def test_what_waits_of_a_slot_is_told_while_it_is_written_to_and_after() -> None:
    with Opened() as opened:
        opened.append(b"in a slot of its own")
        opened.ring.go_on()
        opened.append(*[b"f" * 100] * 40)
        slot = opened.ring.live[1]
        opened.settle(opened.read()[:31])
        frame = fmt.frame_end(0, 100)
        assert opened.ring.waiting_bytes(slot) == 10 * frame
        opened.append(*[b"f" * 100] * 10)
        assert opened.ring.waiting_bytes(slot) == 20 * frame
        opened.ring.go_on()
        assert opened.ring.waiting_bytes(slot) == 20 * frame
        assert [opened.ring.waiting_bytes(other) for other in opened.ring.live if other is not slot] == [0, 0]


def test_closing_twice_is_harmless() -> None:
    opened = Opened()
    full_slots(opened, 1)
    opened.directory.close()
    opened.directory.close()


def test_the_newest_records_are_kept_within_a_bound() -> None:
    with Opened(Disk(max_slots=200)) as opened:
        opened.append(*[b"%d" % number for number in range(RECENT * 2 + 10)])
        opened.append(b"x" * (RECENT_BYTES + 1))
        assert len(opened.ring.recent) == RECENT
        assert opened.ring.recent.count(None) == 1
        assert min(int(record) for record in opened.ring.recent if record is not None) == RECENT + 11
        assert read(opened.reader)[-1][2] == RECENT * 2 + 11
        assert len(opened.ring.recent) == len(opened.ring.recent_places) == RECENT


def test_a_ring_shrinks_past_a_slot_that_found_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "IDLE_LOOKS", 1)
    with Opened() as opened:
        full_slots(opened, 20)
        opened.disk.ring.before["allocate"] = no_room
        opened.fill_slot()  # of what was begun
        with pytest.raises(WalFullError):
            opened.fill_slot()
        opened.disk.ring.before.clear()
        for _ in range(2):  # the second time, what is written to stands at the beginning of the file
            opened.settle(opened.read())
            opened.checkpoint()
            opened.fill_slot()
            opened.append(b"f" * 500)
        opened.settle(opened.read())
        opened.checkpoint()
        before = opened.ring.spares.allocated
        while opened.ring.spares.shrink():
            pass
        assert opened.ring.spares.allocated < before / 2


def test_no_slot_is_begun_that_could_come_to_the_end_of_an_epoch_s_numbers() -> None:
    """I5: behind it positions would be those of another epoch. Four months at 100,000 records a second."""
    with Opened() as opened:
        opened.append(b"first")
        opened.ring._sequence = LAST_SEQUENCE
        opened.fill_slot()
        last = opened.ring.last_position
        with pytest.raises(WalError, match="start it anew"):
            opened.append(b"f" * 500)
        assert opened.ring.last_position == last
        assert fmt.parts(last)[0] == opened.ring.epoch


def test_a_slot_ends_where_it_is_told_to_and_never_behind_what_fits_in_it() -> None:
    """Others may be gone in which the last one stood that counts."""
    opened = Opened()
    opened.append(*[b"x" * 100] * 10)
    for last, records in ((4, 4), (1 << 39, 10)):
        following = opened.dies()
        (slot,) = following.ring.live
        following.ring.end_at(slot, last)
        assert slot.map is None
        third = following.dies()
        assert third.ring.live[0].sealed
        assert found(third.read()) == list(opened.accepted.items())[:records]
    assert sum(damage.last - damage.first + 1 for damage in third.ring.damage) == (SLOT - 256) // fmt.FRAME_BYTES - 10
