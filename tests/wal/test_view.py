"""The read-only view: the records of the owner's reader, the damage that it reports, and not a byte touched."""

import dataclasses
import gc
import hashlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover.errors import WalCorruptError, WalError, WalFormatError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import losses, moved, view
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, RingState
from aiorecover.wal.checksum import crc32
from aiorecover.wal.instances import instances
from aiorecover.wal.losses import Damage
from aiorecover.wal.moving import Copying, Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import MARGIN
from aiorecover.wal.view import WALKS, RecycledError, View, frames_of, open_view
from aiorecover.wal.walk import WINDOW, FrameView, SlotWalk
from tests.wal.memory import FaultyFile, broken
from tests.wal.rig import SLOT, Disk, Opened, Position, found, read, take
from tests.wal.stored import numbered, stored
from tests.wal.test_losses import a_whole_slot, end_of_a_slot, three_moved_slots


def look(disk: Disk, ring: str = "ring") -> View:
    return View(Path("/memory"), ring, lambda name: getattr(disk, name), f"boot {disk.boots}")


def seen(frames: Iterable[FrameView]) -> list[tuple[Position, bytes]]:
    return [((frame.epoch, frame.sequence), frame.payload) for frame in frames]


def named(damages: Iterable[Damage]) -> list[Position]:
    return [(damage.epoch, number) for damage in damages for number in range(damage.first, damage.last + 1)]


def covering(opened: Opened, sequence: int) -> Checkpoint:
    """A checkpoint whose watermark is a record of the first epoch."""
    said = opened.directory.next_checkpoint()
    state = said.main
    return msgspec.structs.replace(said, main=RingState(fmt.position(1, sequence), flushed=state.flushed))


# -- records ---------------------------------------------------------------------------------------------------------


def test_the_records_of_several_lives_are_seen_in_order_with_everything_that_is_known_of_them() -> None:
    opened = Opened()
    for _ in range(3):
        opened.append(*numbered(100, 400))
        opened = opened.dies()
    opened.append(b"last")
    with look(opened.disk) as now:
        frames = list(now.frames())
        assert seen(frames) == list(opened.accepted.items())
        assert (now.missing, now.recycled) == ([], [])
        assert now.producer_id == opened.directory.producer_id
        assert now.checkpoint == opened.directory.checkpoint
        live = [slot for slot in now.slots() if slot.state == "live"]
        assert [slot.ordinal for slot in live] == [slot.header.ordinal for slot in opened.ring.live]
        assert [slot.file_offset for slot in live] == [slot.file_offset for slot in opened.ring.live]
        for frame in frames:
            start = opened.disk.ring.read(frame.file_offset, fmt.FRAME_BYTES + len(frame.payload))
            assert start[fmt.FRAME_BYTES :] == frame.payload
            assert not frame.settled
            assert frame.number == frame.position == fmt.position(frame.epoch, frame.sequence)
            assert frame.partition is None
            assert frame.slot in {slot.ordinal for slot in live}


def test_a_slot_says_what_its_header_and_its_seal_say() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.append(b"f" * 500)
    first, second = look(opened.disk).slots()
    count = opened.ring.live[0].count
    assert (first.state, first.sealed, first.count, first.last_sequence) == ("live", True, count, count)
    assert (first.epoch, first.first_sequence, first.index) == (1, 1, 0)
    assert first.created_ms == opened.ring.live[0].header.created_ms
    assert (second.sealed, second.count, second.last_sequence) == (False, None, None)
    assert second.first_sequence == count + 1


def test_settled_records_are_seen_when_they_are_asked_for() -> None:
    opened = Opened()
    opened.append(*numbered(300))
    opened.settle(opened.read()[::2])
    with look(opened.disk) as now:
        assert seen(now.frames()) == list(opened.accepted.items())[1::2]
        frames = list(now.frames(settled=True))
        assert seen(frames) == list(opened.accepted.items())
        assert [frame.settled for frame in frames] == [True, False] * 150


def test_what_the_checkpoint_covers_is_settled_whatever_the_settle_words_say() -> None:
    opened = Opened()
    opened.append(*numbered(20))
    opened.ring.sync()
    opened.settle(opened.read())
    opened.append(b"waits")
    opened.directory.checkpoint_file.write(covering(opened, 20))
    opened.disk.ring.before["sync"] = broken
    with opened.loses_power(seed=11) as following:  # none of the settle words came through
        opened.disk.ring.damage(0, following.disk.ring.live())
        with look(following.disk) as now:
            frames = list(now.frames(settled=True))
            assert [frame.settled for frame in frames] == [True] * 20 + [False] * (len(frames) - 20)
            assert all(frame.sequence > 20 for frame in now.frames())


def test_a_skip_frame_is_no_record() -> None:
    opened = Opened()
    opened.append(b"first", b"second", b"third")
    ring = opened.ring
    ring._skip(ring.live[0], fmt.frame_end(fmt.FIRST_FRAME, 5), 6, 2)
    with look(opened.disk) as now:
        assert [frame.payload for frame in now.frames(settled=True)] == [b"first", b"third"]
        assert now.missing == []


def test_records_larger_than_a_window_are_seen() -> None:
    opened = Opened(Disk(slot_bytes=1024 * 1024))
    opened.append(
        *[bytes([size % 251]) * size for size in (1, WINDOW - 20, WINDOW, 3 * WINDOW, opened.ring.largest, 5)]
    )
    with look(opened.disk) as now:
        assert seen(now.frames()) == list(opened.accepted.items())
        assert now.missing == []


def test_slots_are_walked_in_the_order_of_their_records_however_they_are_given() -> None:
    opened = Opened()
    opened.append(*numbered(300, 400))
    with look(opened.disk) as now:
        assert seen(now.frames(now.slots()[::-1])) == list(opened.accepted.items())


def test_what_stands_behind_the_end_that_a_seal_names_is_nobody_s() -> None:
    opened = Opened()
    opened.append(b"first", b"second", b"third")
    opened.ring.go_on()
    disk = opened.disk.after_death()
    end = fmt.frame_end(fmt.frame_end(fmt.FIRST_FRAME, 5), 6)
    seal = fmt.pack_seal(fmt.Seal(2, end, 2), opened.ring.live[0].salt)
    for start in (0, SLOT - fmt.RESERVED):
        disk.ring.damage(start + fmt.SEAL_OFFSET, seal)
    with look(disk) as now:
        assert [frame.payload for frame in now.frames()] == [b"first", b"second"]
    compare(disk)


def test_a_walk_takes_little_memory_however_much_there_is() -> None:
    opened = Opened(Disk(slot_bytes=4 * 1024 * 1024))
    opened.append(*numbered(8000, 2000))
    with look(opened.disk) as now:
        tracemalloc.start()
        assert sum(1 for _ in now.frames(settled=True)) == 8000
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 * WINDOW  # of 16 MB


def test_what_is_settled_costs_no_reads_of_its_own() -> None:
    opened = Opened()
    opened.append(*numbered(50))
    opened.ring.go_on()
    opened.settle(opened.read()[:-1])
    now = look(opened.disk)
    slots = now.slots()[:1]
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    opened.disk.ring.before["read"] = count
    assert [frame.sequence for frame in now.frames(slots)] == [50]
    assert reads == LOOKS


def test_the_summary_counts_everything() -> None:
    opened = Opened()
    opened.append(*numbered(500, 400))
    opened.settle(opened.read()[:300])
    opened.directory.write_checkpoint(opened.directory.next_checkpoint())
    with look(opened.disk) as now:
        summary = now.summary()
        assert (summary.waiting, summary.settled, summary.missing) == (200, 300, 0)
        assert summary.slots == len(opened.ring.live)
        covered = sum(slot.covered for slot in now.slots())
        assert covered > 0
        assert summary.bytes_used == (summary.slots - covered) * SLOT
        assert summary.bytes_allocated == opened.disk.ring.size()
        assert (summary.blank_slots, summary.damaged_slots, summary.recycled) == (0, 0, 0)


# -- damage: as the owner's reader would report it -------------------------------------------------------------------


def several_slots(*, checkpoint: bool = False) -> Disk:
    """``checkpoint``: one says what is settled and what was flushed."""
    opened = Opened()
    for _ in range(3):
        opened.append(b"a" * 50, b"b" * 51, b"c" * (SLOT - MARGIN - 900), b"d" * 52)
    opened.settle(opened.read()[:1])
    if checkpoint:
        opened.settle(opened.read()[:4])
        opened.directory.checkpoint_file.write_both(covering(opened, 5))
    return opened.disk.after_death()


def worked_in() -> Disk:
    """Two epochs; the oldest slots of each ring are recycled, the retry and the dead ring have slots of their own."""
    opened = Opened()
    for _ in range(2):
        for _ in range(3):
            opened.fill_slot()
        opened.settle(opened.read()[: SLOT // 500])
        opened.checkpoint()
        for ring in (opened.directory.retry, opened.directory.dead):
            for number in range(1, 60):
                ring.append(moved.pack_moved(number, 0, 0, bytes(400)), None)
        opened.checkpoint()
        opened.append(b"behind the checkpoint")
        opened = opened.dies()
    return opened.disk.after_death()


def harm(chance: random.Random, file: FaultyFile) -> None:
    """Cut it, flip a bit of it, or overwrite a stretch, a slot or a header with zeros or noise."""
    size = file.size()
    if not size:  # it was emptied before
        return
    place = chance.randrange(size)
    slot = place // SLOT * SLOT
    what = chance.choice(["cut", "cut whole slots", "empty", "flip", "stretch", "slot", "header", "all"])
    if what in {"cut", "cut whole slots", "empty"}:
        file.cut({"cut": place, "cut whole slots": slot, "empty": 0}[what])
    elif what == "flip":
        file.flip(place * 8 + chance.randrange(8))
    else:
        start, length = {
            "stretch": (place, min(chance.randrange(1, 3000), size - place)),
            "slot": (slot, min(SLOT, size - slot)),
            "header": (slot, min(fmt.RESERVED, size - slot)),
            "all": (0, size),
        }[what]
        file.damage(start, chance.choice([bytes(length), chance.randbytes(length)]))


def compare(disk: Disk, ring: str = "ring") -> bool:
    """The view sees what the next owner reads, and names the same damage; or both refuse. Whether there was damage."""
    try:
        with look(disk.after_death(), ring) as now:
            frames, damage, states = list(now.frames()), now.missing, [slot.state for slot in now.slots()]
            checkpoint = now.checkpoint
    except WalError as refusal:
        with pytest.raises(type(refusal)):
            Opened(disk.after_death())
        return False
    try:
        following = Opened(disk.after_death())
    except WalCorruptError:
        assert checkpoint is None  # it needs all rings to go on without one, and a view only its own
        return False
    with following as opened:
        of_owner = {"ring": opened.ring, "retry": opened.directory.retry, "dead": opened.directory.dead}[ring]
        came = found(read(Reader(of_owner, bytes)))
        assert damage == of_owner.damage
        if checkpoint is not None or ring != "retry":  # without one, a view cannot know which copies are void
            assert [losses.named(ring, one) for one in damage] == [losses.named(ring, one) for one in of_owner.damage]
            numbers = [(frame.number >> fmt.SEQUENCE_BITS, frame.number & fmt.SEQUENCE_MASK) for frame in frames]
            assert numbers == [position for position, _ in came]
            assert [frame.payload for frame in frames] == [
                payload[-len(frame.payload) :] for frame, (_, payload) in zip(frames, came, strict=True)
            ]
        assert states.count("damaged") == len(of_owner.damaged_slots)
        return bool(damage)


def test_whatever_byte_rots_the_view_sees_and_misses_what_the_owner_would() -> None:
    disk = several_slots()
    for offset in range(disk.ring.size()):
        if offset % SLOT < 300 or offset % SLOT > SLOT - 260 or offset % 997 == 0:
            damaged = disk.after_death()
            damaged.ring.flip(offset * 8 + offset % 7)
            compare(damaged)


@pytest.mark.parametrize("noise", [bytes(64), b"\xff" * 64, bytes(range(64))], ids=["zeros", "ones", "noise"])
def test_whatever_64_bytes_are_overwritten_the_view_sees_and_misses_what_the_owner_would(noise: bytes) -> None:
    disk = several_slots()
    for offset in range(0, disk.ring.size(), 64):
        if offset % SLOT < 1000 or offset % SLOT > SLOT - 1000:
            damaged = disk.after_death()
            damaged.ring.damage(offset, noise)
            compare(damaged)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_wherever_the_file_is_cut_the_view_sees_and_misses_what_the_owner_would(checkpoint: bool) -> None:
    disk = several_slots(checkpoint=checkpoint)
    for size in range(0, disk.ring.size() + 1, 160):
        damaged = disk.after_death()
        damaged.ring.cut(size)
        compare(damaged)


@pytest.mark.parametrize(("rest", "slots"), [(0, [0, 1]), (8, [0, 1, 2]), (SLOT - 1, [0, 1, 2])])
def test_a_slot_inside_which_the_file_was_cut_is_listed_and_none_behind_it(rest: int, slots: list[int]) -> None:
    disk = several_slots()
    disk.ring.cut(2 * SLOT + rest)
    with look(disk) as now:
        assert [slot.index for slot in now.slots()] == slots


def test_zeros_behind_the_last_slot_are_no_slot() -> None:
    """The file was growing when its owner died."""
    disk = several_slots()
    disk.ring.cut(2 * SLOT)
    disk.ring.damage(2 * SLOT, bytes(SLOT // 2))
    with look(disk) as now:
        assert [slot.index for slot in now.slots()] == [0, 1]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("noise", [b"\x55", b"\0"], ids=["noise", "zeros"])
def test_slots_that_are_gone_are_missed_as_the_owner_would(noise: bytes, checkpoint: bool) -> None:
    """Each of them, each two, and all; by the checkpoint both know of those at the end, too."""
    disk = several_slots(checkpoint=checkpoint)
    for gone in range(1, 8):
        damaged = disk.after_death()
        for index in range(3):
            if gone >> index & 1:
                damaged.ring.damage(index * SLOT, noise * SLOT)
        compare(damaged)


def test_the_unsealed_end_of_a_slot_that_others_follow_is_missed_as_the_owner_would() -> None:
    disk = several_slots()
    for end in (0, SLOT - fmt.RESERVED):  # both seals of the first slot, and its last record
        disk.ring.damage(end + fmt.SEAL_OFFSET, bytes(fmt.SEAL_BYTES))
    *_, last = (frame for frame in look(disk).frames(settled=True) if frame.slot == 1)
    disk.ring.damage(last.file_offset, bytes(fmt.FRAME_BYTES + len(last.payload)))
    compare(disk)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_done_to_the_rings_and_the_checkpoint_the_view_names_what_the_next_owner_does(seed: int) -> None:
    """Several damages at once, in a directory of two epochs of which a part was moved, settled and recycled."""
    disk = worked_in()
    chance = random.Random(seed)
    told = 0
    for _ in range(25):
        damaged = disk.after_death()
        for _ in range(chance.choice([1, 1, 2, 3])):
            harm(chance, chance.choice([damaged.ring, damaged.retry, damaged.dead, damaged.ring, damaged.checkpoint]))
        told += sum(compare(damaged, ring) for ring in ("ring", "retry", "dead"))
    assert told >= 8


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_in_the_middle_of_a_rewriting_takes_nothing_that_counts_and_the_view_names_nothing(
    seed: int,
) -> None:
    opened, waiting = all_in_retry()
    begun = Rewrite(opened.directory.retry)
    while not begun.step(10):
        pass
    disk = opened.disk.after_power_cut(seed)
    assert not compare(disk, "retry")
    assert walked(disk, waiting, "retry").is_right


def moves_not_made(*, sealed: bool) -> Disk:
    """Copies that count, and behind them, in their slot and the ones that follow, those of moves that were not made."""
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.append(b"f" * 500)
    entries = opened.read()
    opened.settle(entry for number, entry in enumerate(entries) if number % 4)
    move_oldest(opened)
    opened.directory.copies_from = opened.directory.retry.last_position
    for slot in list(opened.ring.live[:3]):
        move = Move(opened.ring, opened.directory.retry, slot)
        while not move.step():
            pass
    opened.checkpoint()
    if sealed:
        opened.directory.retry.go_on()
    return opened.disk.after_death()


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "open"])
def test_whatever_rots_of_copies_that_count_and_of_others_behind_them_the_view_names_what_the_next_owner_does(
    *, sealed: bool
) -> None:
    """Each frame, and the seal; what never counted is missed by nobody."""
    disk = moves_not_made(sealed=sealed)
    counting = len(list(look(disk, "retry").frames()))
    size = fmt.frame_end(0, 500 + moved.MOVED_BYTES)
    told = []
    for number in range(2 * counting):
        damaged = disk.after_death()
        damaged.retry.damage(fmt.FIRST_FRAME + number * size + 100, b"rot")
        told.append(compare(damaged, "retry"))
        for end in (0, SLOT - fmt.RESERVED):
            damaged.retry.damage(end + fmt.SEAL_OFFSET, b"rot")
        told.append(compare(damaged, "retry"))
    assert told == [True] * 2 * counting + [False] * 2 * counting


def stored_as(disk: Disk, directory: Path) -> Path:
    """What a view of the retry ring reads, in files."""
    for name in ("checkpoint", "ring", "retry"):
        (directory / name).write_bytes(getattr(disk, name).live())
    return directory


@pytest.mark.parametrize("harm", [end_of_a_slot, a_whole_slot])
def test_what_the_following_slot_begins_with_is_told_as_the_next_owner_tells_it(
    harm: Callable[[FaultyFile], None], tmp_path: Path
) -> None:
    """Also to who looks at one slot at a time."""
    disk = three_moved_slots()
    harm(disk.retry)
    after, before = (fmt.position(1, number) for number in ((28, 31) if harm is end_of_a_slot else (30, 61)))
    with open_view(stored_as(disk, tmp_path), "retry") as now:
        slots = [slot for slot in now.slots() if slot.header is not None]
        list(now.frames())
        (damage,) = now.missing
    assert (damage.after, damage.before) == (after, before)
    missing: list[Damage] = []
    list(frames_of(slots[0], missing=missing, following=slots[1]))
    assert [(one.after, one.before) for one in missing] == [(after, before)]
    compare(disk, "retry")


def test_where_nothing_is_left_of_copies_and_of_those_that_follow_it_is_not_known_what_they_stood_before(
    tmp_path: Path,
) -> None:
    disk = three_moved_slots()
    for slot in range(2):
        disk.retry.damage(slot * SLOT + fmt.FIRST_FRAME, bytes(SLOT - fmt.RESERVED - fmt.FIRST_FRAME))
    with open_view(stored_as(disk, tmp_path), "retry") as now:
        first, second, *_ = now.slots()
    missing: list[Damage] = []
    assert list(frames_of(first, missing=missing, following=second)) == []
    assert [(one.count, one.after, one.before) for one in missing] == [(30, 0, 0)]


def test_damage_is_named_by_sequences_slot_and_file_offset() -> None:
    opened = Opened()
    opened.append(b"before", b"rotten", b"behind")
    disk = opened.disk.after_death()
    start = fmt.frame_end(fmt.FIRST_FRAME, 6)
    disk.ring.flip((start + fmt.FRAME_BYTES) * 8)
    with look(disk) as now:
        assert [frame.payload for frame in now.frames()] == [b"before", b"behind"]
        assert now.missing == [Damage(epoch=1, first=2, last=2, slot=1, file_offset=start)]
        assert now.summary().missing == 1


def test_damage_to_what_the_checkpoint_covers_is_not_missed() -> None:
    opened = Opened()
    opened.append(*numbered(10))
    opened.settle(opened.read()[:5])
    opened.directory.checkpoint_file.write(covering(opened, 5))
    disk = opened.disk.after_death()
    for frame in list(look(disk).frames(settled=True))[2:7:4]:
        disk.ring.flip((frame.file_offset + fmt.FRAME_BYTES) * 8)
    with look(disk) as now:
        assert [frame.sequence for frame in now.frames()] == [6, 8, 9, 10]
        assert named(now.missing) == [(1, 7)]


def test_a_skip_frame_that_rots_is_damage() -> None:
    opened = Opened()
    opened.append(b"first", b"second", b"third")
    start = fmt.frame_end(fmt.FIRST_FRAME, 5)
    opened.ring._skip(opened.ring.live[0], start, 6, 2)
    opened.disk.ring.flip((start + 4) * 8)
    with look(opened.disk) as now:
        assert [frame.payload for frame in now.frames()] == [b"first", b"third"]
        assert named(now.missing) == [(1, 2)]


def test_space_without_a_frame_between_two_records_is_passed_and_nothing_is_missing() -> None:
    opened = Opened()
    opened.append(b"first", b"second")
    disk = opened.disk.after_death()
    place = fmt.frame_end(fmt.FIRST_FRAME, 5)
    disk.ring.damage(place + 64, disk.ring.read(place, 28))
    disk.ring.damage(place, bytes(28))
    with look(disk) as now:
        assert [frame.payload for frame in now.frames()] == [b"first", b"second"]
        assert now.missing == []
    compare(disk)


def test_damage_between_frames_that_are_windows_apart_is_passed() -> None:
    opened = Opened(Disk(slot_bytes=1024 * 1024))
    for shift in range(0, 24, 4):
        opened.append(b"x" * (WINDOW - 40 + shift), b"behind")
    disk = opened.disk.after_death()
    for frame in list(look(disk).frames())[::2]:
        disk.ring.flip((frame.file_offset + fmt.FRAME_BYTES) * 8)
    with look(disk) as now:
        assert [frame.sequence for frame in now.frames()] == [2, 4, 6, 8, 10, 12]
        assert named(now.missing) == [(1, sequence) for sequence in (1, 3, 5, 7, 9, 11)]


def test_a_frame_where_fewer_fit_in_between_than_are_missing_is_none() -> None:
    """The disk has written it to the wrong place, too."""
    opened = Opened()
    opened.append(*[b"%02d" % number * 22 for number in range(40)])  # frames of 64 bytes
    disk = opened.disk.after_death()
    place = fmt.FIRST_FRAME + 64 * 20
    disk.ring.damage(place, bytes(64) + disk.ring.read(place + 64 * 10, 64))
    with look(disk) as now:
        assert [frame.sequence for frame in now.frames()] == [*range(1, 21), *range(23, 41)]
        assert named(now.missing) == [(1, 21), (1, 22)]
    compare(disk)


@pytest.mark.parametrize("place", [0, fmt.RESERVED - 1])
def test_a_ring_without_a_checkpoint_that_holds_anything_at_all_is_no_empty_one(place: int) -> None:
    disk = Disk()
    disk.ring.damage(0, bytes(SLOT))
    assert look(disk).slots() == []
    disk.ring.damage(place, b"x")
    with pytest.raises(WalCorruptError, match="neither checkpoint nor ring can be read"):
        look(disk)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 5000, 3 * SLOT + 17])
def test_garbage_is_refused_or_reported_and_raises_nothing_else(size: int) -> None:
    noise = (b"garbage " * 8000)[:size]
    for ring, checkpoint in ((noise, b""), (b"", noise), (noise, noise)):
        disk = Disk()
        disk.ring.damage(0, ring)
        disk.checkpoint.damage(0, checkpoint)
        try:
            with look(disk) as now:
                assert list(now.frames(settled=True)) == []
                assert all(slot.state in {"blank", "damaged"} for slot in now.slots())
        except WalCorruptError:
            assert ring or checkpoint  # a refusal: nothing was read


def test_files_of_a_newer_version_are_refused() -> None:
    opened = Opened()
    opened.append(b"record")
    header = bytearray(opened.disk.ring.read(0, fmt.HEADER_BYTES))
    header[8] = 2
    header[-4:] = crc32(bytes(header[:-4])).to_bytes(4, "little")
    opened.disk.ring.damage(0, bytes(header))
    with look(opened.disk) as now, pytest.raises(WalFormatError, match="newer aiorecover"):
        list(now.frames())


def test_a_ring_that_was_copied_together_is_refused() -> None:
    disk = several_slots()
    disk.ring.damage(SLOT, disk.ring.read(0, SLOT))
    with look(disk) as now, pytest.raises(WalCorruptError, match="twice"):
        now.slots()


def test_one_position_is_never_given_twice() -> None:
    opened = Opened()
    opened.append(b"one", b"two")
    disk = opened.disk.after_death()
    again = dataclasses.replace(opened.ring.live[0].header, ordinal=2)
    copy = bytearray(disk.ring.read(0, SLOT))
    copy[: fmt.HEADER_BYTES] = copy[-fmt.RESERVED : -fmt.RESERVED + fmt.HEADER_BYTES] = fmt.pack_slot_header(again)
    disk.ring.damage(SLOT, bytes(copy))
    with look(disk) as now, pytest.raises(WalCorruptError, match="one position twice"):
        list(now.frames())


def test_a_checkpoint_that_is_being_written_is_read_again() -> None:
    opened = Opened()
    opened.append(b"record")
    disk = opened.disk.after_death()
    whole = disk.checkpoint.live()
    disk.checkpoint.damage(0, b"torn" * 40)
    disk.checkpoint.damage(64 * 1024, b"torn" * 40)
    reads = 0

    def store() -> None:
        nonlocal reads
        reads += 1
        if reads == 2:
            del disk.checkpoint.before["read"]
            disk.checkpoint.write(whole[: 64 * 1024], 0)

    disk.checkpoint.before["read"] = store
    with look(disk) as now:
        assert now.checkpoint == opened.directory.checkpoint


def test_a_checkpoint_that_was_found_whole_is_not_read_again() -> None:
    """By then one of its copies may be under way, and less would be known than before."""
    opened = Opened()
    opened.append(b"record")
    disk = opened.disk.after_death()
    during_read(disk, 3, lambda: disk.checkpoint.damage(0, bytes(disk.checkpoint.size())), "checkpoint")
    with look(disk) as now:
        assert now.checkpoint == opened.directory.checkpoint


# -- beside a living owner, one step at a time -----------------------------------------------------------------------


def during_read(disk: Disk, number: int, act: Callable[[], Any], name: str = "ring") -> None:
    """Let the owner do something just before a file is read for the ``number``-th time from now on."""
    file: FaultyFile = getattr(disk, name)
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            del file.before["read"]
            act()

    file.before["read"] = count


def recycle_everything(opened: Opened) -> None:
    opened.settle(opened.read())
    opened.checkpoint()
    for _ in range(len(opened.ring.spares._free) + 1):
        opened.fill_slot()
        opened.append(b"f" * 500)


LOOKS = 5  # how often a sealed slot of one window is read: two headers, the window, two headers


@pytest.mark.parametrize("moment", range(1, 30))
def test_a_slot_that_is_recycled_at_any_moment_of_the_walk_is_explained_and_nothing_of_it_is_damage(
    moment: int,
) -> None:
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.append(b"f" * 500)
    before = dict(opened.accepted)
    now = look(opened.disk)
    slots = [slot for slot in now.slots() if not slot.covered]
    during_read(opened.disk, moment, lambda: recycle_everything(opened))
    frames = seen(now.frames(slots, settled=True))
    assert all(opened.accepted[place] == payload for place, payload in frames)
    assert now.missing == []
    unseen = set(before) - {place for place, _ in frames}
    assert all(any(within(place, slot) for slot in now.recycled) for place in unseen)
    assert bool(now.recycled) == (moment <= LOOKS * 4)


def within(place: Position, slot: view.SlotView) -> bool:
    first, last = slot.first_sequence or 0, slot.last_sequence
    return slot.epoch == place[0] and first <= place[1] <= (last if last is not None else place[1])


@pytest.mark.parametrize("moment", range(1, 16))
def test_a_slot_that_is_filled_and_sealed_at_any_moment_of_the_walk_is_not_damaged(moment: int) -> None:
    opened = Opened()
    opened.append(*numbered(5))
    before = list(opened.accepted.items())
    with look(opened.disk) as now:
        slots = now.slots()

        def fill() -> None:
            opened.fill_slot()
            opened.append(b"f" * 500)

        during_read(opened.disk, moment, fill)
        frames = seen(now.frames(slots))
        opened.disk.ring.before.clear()
        assert frames[:5] == before
        assert frames == list(opened.accepted.items())[: len(frames)]
        assert now.missing == []


def missing_when_slots_begin_at(moment: int, *, flushed: bool = False, grown: bool = False) -> list[Damage]:
    """A life begins in a slot that was passed while they were listed, and the next one in a slot that was not.

    ``flushed``: a checkpoint says at once that all of it was. ``grown``: the first one begins behind the end of the
    file, which was asked for before.
    """
    opened = Opened()
    for _ in range(3):
        opened.fill_slot()
    opened.append(b"f" * 500)
    opened.settle(opened.read())
    opened.checkpoint()
    assert [index for index, _ in opened.ring.spares._free] == [0, 1, 2]
    opened.ring.spares._free.append(opened.ring.spares._free.pop(0))  # the first one is used next
    now, free = look(opened.disk), opened.ring.spares._free
    kept = free[:]

    def roll_twice() -> None:
        for _ in range(2):
            if grown:
                free[:] = [] if free == kept else kept
            opened.fill_slot()
            opened.append(b"g" * 500)
        if flushed:
            opened.directory.write_checkpoint(opened.directory.next_checkpoint())

    during_read(opened.disk, moment, roll_twice)
    list(now.frames())
    return now.missing


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_list_of_slots_has_no_hole(moment: int) -> None:
    assert missing_when_slots_begin_at(moment) == []
    assert missing_when_slots_begin_at(moment, flushed=True) == []
    assert missing_when_slots_begin_at(moment, grown=True) == []


def test_the_newest_slot_that_is_filled_while_the_slots_are_listed_is_listed_as_it_is_then() -> None:
    opened = Opened()
    opened.append(b"first")
    count = opened.disk.ring.size() // SLOT
    now = look(opened.disk)

    def fill() -> None:
        opened.fill_slot()
        opened.append(b"f" * 500)

    during_read(opened.disk, 2 * count + 1, fill)  # all of them were looked at once
    (listed,) = (slot for slot in now.slots() if slot.state == "live")
    assert listed.last_sequence == opened.ring.live[0].last_sequence


def test_a_ring_that_was_made_and_flushed_while_it_was_looked_at_is_not_missed() -> None:
    opened = Opened()
    with_ring = [False]

    def open_file(name: str) -> FaultyFile | None:
        return getattr(opened.disk, name) if name == "checkpoint" or with_ring[0] else None

    now = View(Path("/memory"), "ring", open_file)
    assert list(now.frames()) == []
    opened.append(*numbered(20))
    opened.checkpoint()
    with_ring[0] = True
    assert len(list(now.frames())) == 20
    assert now.missing == []


def test_a_ring_that_is_removed_is_missed_by_name() -> None:
    opened = Opened()
    opened.append(*numbered(20))
    opened.checkpoint()
    now = View(Path("/memory"), "ring", lambda name: opened.disk.checkpoint if name == "checkpoint" else None)
    assert list(now.frames()) == []
    assert now.missing == [Damage(1, 1, 20, 0, 0)]


@pytest.mark.parametrize("moment", range(3, 14))
def test_a_frame_that_was_not_stored_yet_when_it_was_copied_is_not_missing(moment: int) -> None:
    """The copy runs through the slot while its owner stores one frame and then the next."""
    opened = Opened()
    opened.append(b"first", b"second", b"third")
    disk = opened.disk
    start = fmt.frame_end(fmt.FIRST_FRAME, 5)
    frame = disk.ring.read(start, fmt.FRAME_BYTES + 6)
    disk.ring.write(bytes(len(frame)), start)
    now = look(disk)
    slots = now.slots()
    during_read(disk, moment, lambda: disk.ring.write(frame, start))
    assert [one.payload for one in now.frames(slots)] == [b"first", b"second", b"third"]
    assert now.missing == []


def test_a_frame_that_holds_and_can_never_be_taken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that comes and goes as it is read; whoever looks is not kept there."""
    opened = Opened()
    opened.append(*[b"%02d" % number * 20 for number in range(20)])
    place, copies, copied = fmt.FIRST_FRAME + 3 * fmt.frame_end(0, 40) + fmt.FRAME_BYTES, SlotWalk._copy, 0

    def rots(walk: SlotWalk, length: int) -> int:
        nonlocal copied
        copied += 1
        assert copied < 100
        count = copies(walk, length)
        if walk._offset <= place < walk._offset + count:
            walk._buffer[place - walk._offset] ^= 1
        return count

    monkeypatch.setattr(SlotWalk, "_copy", rots)
    with look(opened.disk) as now:
        assert [frame.sequence for frame in now.frames()] == [1, 2, 3, *range(5, 21)]
        assert named(now.missing) == [(1, 4)]


def test_a_header_that_is_being_stored_is_read_again() -> None:
    opened = Opened()
    opened.append(b"record")
    disk = opened.disk
    whole = disk.ring.live()
    for start in (0, SLOT - fmt.RESERVED):
        disk.ring.write(b"torn", start + 20)
    now = look(disk)
    during_read(disk, 3, lambda: disk.ring.write(whole, 0))
    assert [slot.state for slot in now.slots()] == ["live"]


def test_every_list_of_slots_goes_with_the_checkpoint_of_its_moment() -> None:
    opened = Opened()
    now = look(opened.disk)
    opened.append(*numbered(20))
    opened.settle(opened.read())
    opened.checkpoint()
    assert [slot.durable for slot in now.slots()] == [fmt.position(1, 20)]
    assert now.checkpoint == opened.directory.checkpoint


def recycle_at(moment: int, *, rotten: bool = False) -> View:
    """A walk through slots of which the first ones are recycled meanwhile, maybe with damage in the first of them."""
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.append(b"f" * 500, b"stays")
    if rotten:
        opened.disk.ring.flip((fmt.FIRST_FRAME + fmt.FRAME_BYTES) * 8)
    now = look(opened.disk)
    slots = now.slots()
    sealed = [entry for entry in opened.read() if entry[0].sealed]

    def recycle() -> None:
        opened.settle(sealed)
        for slot in opened.ring.live[:4]:
            slot.unsettled, slot.complete = 0, True
        opened.checkpoint()
        for _ in range(5):
            opened.fill_slot()
            opened.append(b"f" * 500)

    during_read(opened.disk, moment, recycle)
    for _ in now._walk(slots, settled=True, whole=True):
        pass
    return now


@pytest.mark.parametrize("moment", range(1, LOOKS * 4 + 1))
def test_beside_recycled_slots_nothing_is_missing_in_those_that_are_not(moment: int) -> None:
    now = recycle_at(moment)
    assert now.missing == []
    assert now.recycled


def test_damage_in_a_slot_that_was_recycled_meanwhile_is_no_loss() -> None:
    walks = [recycle_at(moment, rotten=True) for moment in range(1, 30)]
    for now in walks:
        assert bool(now.missing) == all(slot.ordinal != 1 for slot in now.recycled)
    assert any(now.missing for now in walks)
    assert any(not now.missing for now in walks)


@pytest.mark.parametrize("moment", range(1, 12))
def test_slots_that_the_owner_cuts_off_meanwhile_were_recycled(moment: int) -> None:
    opened = Opened()
    for _ in range(3):
        opened.fill_slot()
    opened.append(b"f" * 500)
    now = look(opened.disk)
    slots = now.slots()
    opened.settle(opened.read())
    opened.checkpoint()
    assert opened.ring.leave()
    opened.checkpoint()

    def shrink() -> None:
        opened.ring.spares._cut(1)

    during_read(opened.disk, moment, shrink)
    frames = list(now.frames(slots, settled=True))
    assert now.missing == []
    cut = {slot.ordinal for slot in now.recycled}
    assert {slot.ordinal for slot in slots} - cut <= {1} | {frame.slot for frame in frames}
    assert cut
    assert [slot.index for slot in now.slots()] == [0]
    assert now.summary().bytes_allocated == SLOT


@pytest.mark.parametrize("moment", range(1, 12))
def test_slots_that_the_owner_gives_back_meanwhile_were_recycled(moment: int) -> None:
    """From the middle of the file, which keeps its length."""
    opened = Opened()
    for _ in range(3):
        opened.fill_slot()
    opened.append(b"f" * 500)
    now = look(opened.disk)
    slots = now.slots()
    opened.settle(opened.read())
    opened.checkpoint()
    during_read(opened.disk, moment, lambda: opened.ring.spares.give_up(2))
    frames = list(now.frames(slots, settled=True))
    assert now.missing == []
    given = {slot.ordinal for slot in now.recycled}
    assert given <= {2, 3}
    assert {slot.ordinal for slot in slots} - given <= {frame.slot for frame in frames}
    if moment < 3:
        assert given == {2, 3}
        assert look(opened.disk).summary().blank_slots == 2


# -- beside an owner that moves and rewrites -------------------------------------------------------------------------


def move_oldest(opened: Opened) -> None:
    directory, slot = opened.directory, opened.ring.live[0]
    move = Move(opened.ring, directory.retry, slot)
    while not move.step():
        pass
    make(opened, move)


def make(opened: Opened, copying: Copying) -> None:
    """Everything is copied: from now on the copies count."""
    directory = opened.directory
    directory.write_checkpoint(copying.captured(directory))
    copying.finish()
    directory.copies_from = None
    directory.recycle(directory.checkpoint)


def settle_most(opened: Opened) -> dict[int, bytes]:
    """By position the records that still wait."""
    entries = opened.read()
    opened.settle(entry for number, entry in enumerate(entries) if number % 4)
    return {fmt.position(slot.header.epoch, sequence): bytes(record) for slot, _, sequence, record in entries[::4]}


def all_in_retry() -> tuple[Opened, dict[int, bytes]]:
    """Four slots were moved whole, and most of what they held was settled then; what waits."""
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.append(b"f" * 500)
    opened.settle(opened.read()[-1:])
    for _ in range(4):
        move_oldest(opened)
    retry = opened.directory.retry
    reader = Reader(retry, moved.unpack_moved)
    waiting = {}
    for number, (slot, place, _, copy) in enumerate(read(reader)):
        if number % 3:
            retry.settle(slot, [place])
        else:
            waiting[copy.position] = bytes(copy.payload)
    reader.close()
    opened.checkpoint()
    return opened, waiting


def rewriting(opened: Opened, copied: int) -> Rewrite:
    """Begun, with so many steps of ten records behind it, and an ordinary checkpoint behind them."""
    directory = opened.directory
    begun = Rewrite(directory.retry)
    directory.copies_from = begun.copies_from
    for _ in range(copied):
        begun.step(10)
    directory.write_checkpoint(directory.next_checkpoint())
    return begun


def make_rewriting(opened: Opened, begun: Rewrite, *, goes_on: bool = False) -> None:
    """``goes_on``: other lives begin in the places of the originals."""
    while not begun.step(10):
        pass
    make(opened, begun)
    for _ in begun.slots if goes_on else ():
        opened.directory.retry.go_on()


@dataclasses.dataclass
class Walk:
    """By position what waited all the while, what was seen, and what was missed."""

    waiting: dict[int, bytes]
    seen: dict[int, bytes] = dataclasses.field(default_factory=dict)
    missing: list[Damage] = dataclasses.field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not self.missing and self.waiting.items() <= self.seen.items()


def walked(disk: Disk, waiting: dict[int, bytes], *rings: str) -> Walk:
    """As the command line and Spark look for what waits."""
    walk = Walk(waiting)
    for ring in rings:
        now = look(disk, ring)
        for _ in range(WALKS):
            frames = list(now.frames())
            if not now.unsure:
                break
        assert not now.unsure
        walk.seen |= {frame.position: frame.payload for frame in frames}
        walk.missing += now.missing
    return walk


def while_rewritten(name: str, moment: int, copied: int | None, *, goes_on: bool) -> Walk | None:
    """None: the file is not read so often. ``copied``: steps before; None: the rewriting is begun then, too."""
    opened, waiting = all_in_retry()
    begun = None if copied is None else rewriting(opened, copied)

    def rewrite() -> None:
        make_rewriting(opened, begun or rewriting(opened, 0), goes_on=goes_on)

    during_read(opened.disk, moment, rewrite, name)
    walk = walked(opened.disk, waiting, "retry")
    return None if "read" in getattr(opened.disk, name).before else walk


def while_moved(name: str, moment: int, *rings: str) -> Walk | None:
    """Two slots are moved, and their places used again. None: the file is not read so often."""
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.append(b"f" * 500)
    waiting = settle_most(opened)

    def move() -> None:
        for _ in range(2):
            move_oldest(opened)
        for _ in range(3):
            opened.fill_slot(b"n" * 500)

    during_read(opened.disk, moment, move, name)
    walk = walked(opened.disk, waiting, *rings)
    return None if "read" in getattr(opened.disk, name).before else walk


def each_moment(act: Callable[[int], Walk | None]) -> Iterator[Walk]:
    for moment in itertools.count(1):
        walk = act(moment)
        if walk is None:
            return
        yield walk


@pytest.mark.parametrize(("copied", "goes_on"), [(None, False), (None, True), (3, False), (7, True)])
@pytest.mark.parametrize(("name", "reads"), [("retry", 30), ("checkpoint", 6)])
def test_what_waits_is_seen_at_whatever_moment_of_the_walk_a_rewriting_is_made(
    name: str, reads: int, copied: int | None, goes_on: bool
) -> None:
    walks = list(each_moment(lambda moment: while_rewritten(name, moment, copied, goes_on=goes_on)))
    assert [moment for moment, walk in enumerate(walks, 1) if not walk.is_right or walk.seen != walk.waiting] == []
    assert len(walks) >= reads


@pytest.mark.parametrize(("name", "reads"), [("ring", 30), ("retry", 1), ("checkpoint", 12)])
def test_what_waits_is_seen_in_one_ring_or_the_other_at_whatever_moment_it_is_moved(name: str, reads: int) -> None:
    walks = list(each_moment(lambda moment: while_moved(name, moment, "ring", "retry")))
    assert [moment for moment, walk in enumerate(walks, 1) if not walk.is_right] == []
    assert len(walks) >= reads


def test_a_retry_ring_that_is_rewritten_whenever_it_is_listed_is_not_guessed_about() -> None:
    opened, waiting = all_in_retry()
    now = look(opened.disk, "retry")
    opened.disk.checkpoint.before["read"] = lambda: make_rewriting(opened, rewriting(opened, 0))
    for walk in (now.slots, now.frames, now.summary):
        with pytest.raises(RecycledError, match="rewritten whenever its slots were listed"):
            walk()
    opened.disk.checkpoint.before.clear()
    assert now.summary().waiting == len(waiting)


def test_only_a_walk_of_the_retry_ring_in_which_a_slot_was_recycled_is_unsure() -> None:
    opened, waiting = all_in_retry()
    opened.append(*numbered(200))
    retry, main = look(opened.disk, "retry"), look(opened.disk)
    listed = retry.slots(), main.slots()
    assert (len(list(retry.frames(listed[0]))), len(list(main.frames(listed[1])))) == (len(waiting), 200)
    assert (retry.recycled, main.recycled, retry.unsure, main.unsure) == ([], [], False, False)
    make_rewriting(opened, rewriting(opened, 0), goes_on=True)
    recycle_everything(opened)
    assert len(list(retry.frames(listed[0]))) + len(list(main.frames(listed[1]))) < len(waiting) + 200
    assert retry.recycled
    assert main.recycled
    assert (retry.unsure, main.unsure) == (True, False)


# -- one slot, from another process ----------------------------------------------------------------------------------

OTHER = """
import pickle, sys
from aiorecover.wal.view import RecycledError, frames_of
for slot in pickle.load(sys.stdin.buffer):
    try:
        missing = []
        print(*[frame.position for frame in frames_of(slot, missing=missing)], missing)
    except RecycledError as error:
        print(error)
"""


def walk_elsewhere(slots: list[view.SlotView]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", OTHER], input=pickle.dumps(slots), capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().splitlines()


def test_a_slot_is_walked_by_another_process_alone_and_says_when_its_life_is_over(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    with open_view(tmp_path / "0") as now:
        slots = now.slots()
        assert len(slots) > 2
        expected = [" ".join(str(frame.position) for frame in frames_of(slot)) + " []" for slot in slots]
        assert walk_elsewhere(slots) == expected
    reader = Reader(directory.ring, bytes)
    while entries := take(reader, 100):
        for slot, place, _, _ in entries:
            directory.ring.settle(slot, [place])
    directory.write_checkpoint(directory.next_checkpoint())
    assert directory.recycle(directory.checkpoint) == len(slots) - 1
    for payload in numbered(600):
        directory.ring.append(payload, payload)
    lines = walk_elsewhere(slots)
    assert sum("the slot was recycled meanwhile: list the slots again" in line for line in lines) == len(slots) - 1
    with pytest.raises(RecycledError, match="recycled meanwhile"):
        list(frames_of(slots[0]))
    directory.close()


@pytest.mark.parametrize("begins", [False, True])
def test_what_is_in_no_slot_is_missed_where_two_that_were_listed_do_not_join(tmp_path: Path, *, begins: bool) -> None:
    directory = stored(tmp_path, 600)
    with open_view(tmp_path / "0") as now:
        _, second, third, fourth = now.slots()[:4]
    frames = sum(1 for _ in frames_of(second))
    first, last = second.first_sequence or 0, third.last_sequence or 0
    expected = [(1, number) for number in range(1, first)] if begins else []
    missing: list[Damage] = []
    for following in (third, None):
        assert sum(1 for _ in frames_of(second, missing=missing, begins=begins, following=following)) == frames
        assert named(missing) == expected
        missing.clear()
    assert sum(1 for _ in frames_of(second, missing=missing, begins=begins, following=fourth)) == frames
    assert named(missing) == expected + [(1, number) for number in range(third.first_sequence or 0, last + 1)]
    directory.close()


def test_a_slot_that_holds_nothing_has_no_frames(tmp_path: Path) -> None:
    blank = view.SlotView(tmp_path, "ring", 0, SLOT, "blank")
    assert list(frames_of(blank)) == []
    assert blank.first_position == 0


# -- the other rings -------------------------------------------------------------------------------------------------


def test_a_copy_knows_its_record_and_its_partition() -> None:
    prefix = moved.pack_moved(77, 5, 3, b"")
    assert len(prefix) == 16
    header = fmt.SlotHeader(SLOT, fmt.with_nonce(1 << 40, 9), 1, 1, 1, 1, 0)
    accepted = fmt.with_nonce(1 << 40, 5)
    assert moved.origin_of("retry", header, 1, prefix + b"payload") == (77, accepted, 3, 16)
    without = moved.pack_moved(77, 5, moved.NO_PARTITION, b"")
    assert moved.origin_of("dead", header, 1, without) == (77, accepted, None, 16)
    assert moved.origin_of("ring", header, 1, b"payload") == (1, header.producer_id, None, 0)
    assert moved.origin_of("retry", header, 1, b"short") is None


def moved_to_retry(ring: str) -> list[FrameView]:
    """A copy that was rewritten, a frame too short for one, two copies that count, and one of a move never made."""
    copies = Opened()
    packed = [moved.pack_moved(at, 0, at % 3 - 1, b"payload %d" % at) for at in (10, 20, 10, 30)]
    copies.append(packed[0], b"short", *packed[1:])
    checkpoint = Disk().checkpoint
    content = Checkpoint(
        producer_id=copies.ring.producer_id,
        epoch=1,
        main=RingState(fmt.position(1, 9)),
        retry=RingState(watermark=fmt.position(1, 1), flushed=fmt.position(1, 4)),
        slot_bytes=SLOT,
        moved=20,
    )
    CheckpointFile(checkpoint).write(content)
    files = {"checkpoint": checkpoint, ring: copies.disk.ring}
    with View(Path("/memory"), ring, files.get) as now:
        frames = list(now.frames(settled=True))
        assert named(now.missing) == [(1, 2)]
        assert list(now.frames()) == [frame for frame in frames if not frame.settled]
        return frames


def test_copies_behind_what_the_checkpoint_knows_are_void_and_the_watermark_of_the_main_ring_says_nothing() -> None:
    frames = moved_to_retry("retry")
    assert [(frame.position, frame.payload, frame.settled, frame.partition) for frame in frames] == [
        (10, b"payload 10", True, 0),
        (20, b"payload 20", False, 1),
        (10, b"payload 10", False, 0),
    ]
    assert [frame.number for frame in frames] == [fmt.position(1, number) for number in (1, 3, 4)]


def test_dead_letters_count_wherever_they_came_from() -> None:
    assert [frame.settled for frame in moved_to_retry("dead")] == [False] * 4


def test_frames_that_were_moved_away_are_settled_in_the_main_ring() -> None:
    opened = Opened()
    opened.append(*numbered(10))
    old = opened.directory.checkpoint
    content = Checkpoint(producer_id=old.producer_id, epoch=1, slot_bytes=SLOT, moved=fmt.position(1, 4))
    opened.directory.checkpoint_file.write(content)
    with look(opened.disk) as now:
        assert [frame.sequence for frame in now.frames()] == [5, 6, 7, 8, 9, 10]


def test_a_ring_that_is_not_there_has_no_slots(tmp_path: Path) -> None:
    stored(tmp_path).close()
    (tmp_path / "0" / "retry").unlink()
    with open_view(tmp_path / "0", "retry") as now:
        assert now.suspect_up_to == 0
        assert now.slots() == []
        assert list(now.frames()) == []
        assert now.summary().bytes_allocated == 0
        assert now.checkpoint is not None


def test_who_has_a_directory_open_sees_it_as_others_do(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    with open_view(tmp_path / "0", "ring") as others, view.view_of(directory, "ring") as own:
        assert own.path == others.path
        assert seen(own.frames()) == seen(others.frames()) != []
    directory.close()


# -- after a power cut -----------------------------------------------------------------------------------------------


def test_a_view_says_up_to_where_settle_words_may_be_wrong_as_long_as_a_slot_of_that_time_is_there() -> None:
    opened = Opened()
    opened.append(*numbered(10))
    opened.settle(opened.read()[:4])
    assert look(opened.disk.after_death()).summary().suspect_up_to == 0
    opened.ring.sync()
    following = opened.loses_power(seed=3)
    everything = fmt.position(1, fmt.SEQUENCE_MASK)
    for disk in (opened.disk.after_power_cut(3), following.disk):  # before it is opened again, and while it is open
        summary = look(disk).summary()
        assert (summary.suspect_up_to, summary.waiting, summary.settled) == (everything, 6, 4)
    following.settle(following.read())
    following.append(b"new")
    following.checkpoint()
    assert look(following.disk).summary().suspect_up_to == 0


# -- files -----------------------------------------------------------------------------------------------------------


def state_of(path: Path) -> dict[str, tuple[str, int, int, int]]:
    """Content, times of change and size of every file."""
    state = {}
    for file in path.iterdir():
        found = file.stat()
        state[file.name] = (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_size,
        )
    return state


def test_a_walk_changes_no_byte_no_time_and_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, settle=50).close()  # not sealed: the next owner's reader would seal it
    flags: list[int] = []
    real = os.open

    def watch(path: Any, how: int, *more: Any, **named: Any) -> int:
        flags.append(how)
        return real(path, how, *more, **named)

    before = state_of(tmp_path / "0")
    monkeypatch.setattr("aiorecover.wal.storage.os.open", watch)
    with open_view(tmp_path / "0") as now:
        assert len(list(now.frames(settled=True))) == 300
        assert len(list(frames_of(now.slots()[0], settled=True))) > 0
        now.summary()
    instances(tmp_path)
    monkeypatch.undo()
    assert state_of(tmp_path / "0") == before
    wanted = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    assert set(flags) == {wanted}


def test_a_copy_without_its_lock_is_seen(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("checkpoint", "ring"):
        (copy / name).write_bytes((tmp_path / "0" / name).read_bytes())
    directory.close()
    with open_view(copy) as now:
        assert len(list(now.frames())) == 300
    (copy / "checkpoint").unlink()
    with open_view(copy) as now:
        assert len(list(now.frames())) == 300
        assert now.producer_id == directory.producer_id


def test_what_is_no_instance_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WalFormatError, match="name one that holds a ring"):
        open_view(tmp_path)
    with pytest.raises(WalIOError):
        open_view(tmp_path / "absent")
    (tmp_path / "ring").mkdir()
    with pytest.raises(WalFormatError, match="not an ordinary file"):
        open_view(tmp_path)


def test_links_and_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    stored(tmp_path).close()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.mkdir()
    pipe.mkdir()
    (link / "ring").symlink_to(tmp_path / "0" / "ring")
    os.mkfifo(pipe / "ring")
    with pytest.raises(WalIOError):
        open_view(link)
    with pytest.raises(WalFormatError, match="not an ordinary file"):
        open_view(pipe)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    stored(tmp_path).close()
    gc.collect()  # what an earlier test left to it must not go while it is counted
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with open_view(tmp_path / "0") as now:
        list(now.frames())
        list(frames_of(now.slots()[0]))
    instances(tmp_path)
    (tmp_path / "0" / "ring").write_bytes(b"x" * 200)
    (tmp_path / "0" / "checkpoint").unlink()
    with pytest.raises(WalCorruptError):
        open_view(tmp_path / "0")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


# -- planted faults --------------------------------------------------------------------------------------------------


def test_without_a_second_look_at_the_header_a_recycled_slot_would_be_taken_for_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SlotWalk, "_look_again", lambda self: self._seal)
    opened = Opened()
    opened.fill_slot()
    opened.append(b"f" * 500)
    now = look(opened.disk)
    slots = now.slots()
    recycle_everything(opened)
    list(now.frames(slots))
    assert now.missing != []


def test_slots_listed_once_would_have_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "_scan_twice", View._scan)
    assert any(missing_when_slots_begin_at(moment) for moment in range(1, 8))


def test_what_a_later_checkpoint_says_would_be_missed_while_the_owner_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    late = property(lambda self: (self.checkpoint.main.flushed,), lambda *_: None)
    monkeypatch.setattr(View, "_ends", late, raising=False)
    assert any(missing_when_slots_begin_at(moment, flushed=True) for moment in range(1, 8))


def test_a_listing_that_is_not_repeated_would_miss_what_is_rewritten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_rewritten", lambda *_: False)
    for name in ("retry", "checkpoint"):
        act = partial(while_rewritten, name, copied=None, goes_on=False)
        assert not all(walk.is_right for walk in each_moment(act))


def test_a_walk_that_is_not_repeated_would_miss_what_is_rewritten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "unsure", False)
    walks = each_moment(lambda moment: while_rewritten("retry", moment, 3, goes_on=True))
    assert not all(walk.is_right for walk in walks)


def test_who_walked_the_retry_ring_first_would_miss_what_is_moved_meanwhile() -> None:
    assert not all(walk.is_right for walk in each_moment(lambda moment: while_moved("ring", moment, "retry", "ring")))


@pytest.mark.parametrize("content", [b"", b"something"])
def test_a_directory_has_hardly_begun_only_as_long_as_its_files_are_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(b"4711\n")
    (tmp_path / "lanes").write_bytes(content)
    assert view.hardly_begun(tmp_path, ["lock", "lanes"]) == (not content)
