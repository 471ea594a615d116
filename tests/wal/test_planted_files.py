"""The rules about room in files, each taken away in turn: a scenario goes red that is green as the library is."""

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from aiorecover.errors import WalError, WalFullError
from aiorecover.wal import opening
from aiorecover.wal import slot as slot_module
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.mapping import map_shared
from aiorecover.wal.moving import Move
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.room import IDLE_LOOKS, SLOTS_LEAST, Shares
from aiorecover.wal.spares import Quota
from aiorecover.wal.storage import FileSystem, StorageFile
from aiorecover.wal.stream import FIRST_PLACE
from tests.wal.ledger import ViolationError, demand
from tests.wal.memory import FaultyFile, no_room
from tests.wal.planted import Fault, Patch, Planted, Scenario, names_of, tells
from tests.wal.real_files import ends_well, forked, real_files
from tests.wal.rig import MAX_SLOTS, SLOT, Disk, Opened, read
from tests.wal.test_planted_faults import fill

RECORD = 700  # bytes
RINGS = "ring", "retry", "dead"

# -- nothing is mapped beyond the size that fstat gives, and what waits is read, not mapped ---------------------------


def map_without_a_look_at_the_size(patch: Patch) -> None:
    """From 3.13 on Python looks by itself: then it is an error that nobody expects.

    And on a kernel before 5.14, which is not asked for a page before that is touched (`Slot.reach`).
    """
    patch.setattr(slot_module, "POPULATE_WRITE", None)
    patch.setattr(StorageFile, "map", lambda self, offset, length: map_shared(self._fd, length, offset))


def read_through_a_mapping(patch: Patch) -> None:
    """Made when the file is read for the first time."""
    mapped: dict[StorageFile, mmap.mmap] = {}

    def read_once(self: StorageFile, buffer: memoryview, offset: int) -> int:
        if self not in mapped and self.size():
            mapped[self] = mmap.mmap(self._fd, self.size())
        data = mapped[self][offset : offset + len(buffer)] if self in mapped else b""
        buffer[: len(data)] = data
        return len(data)

    patch.setattr(StorageFile, "_read_once", read_once)


def with_a_cut_ring(act: Callable[[Directory], object], promise: str) -> None:
    """Of three slots a stranger leaves one; another process does what there is to do, for it may be its end."""
    with real_files() as (_, opens):
        first = opens(instance="shop")
        while len(first.ring.live) < 3:
            first.ring.append(b"f" * 700, None)
        first.close()
        options = Options(first.path.parent, SLOT, MAX_SLOTS * SLOT, 0, instance="shop")

        def cut_and_act() -> None:
            directory = open_directory(options)
            os.truncate(directory.files.ring.path, SLOT)
            act(directory)

        ends_well(forked(cut_and_act), promise)


def settle_in_the_second_slot(directory: Directory) -> None:
    slot = directory.ring.live[1]
    with suppress(WalError):
        directory.ring.map_for_settling(slot)
        directory.ring.settle(slot, [FIRST_PLACE])


def a_slot_that_was_cut_off_is_settled() -> None:
    with_a_cut_ring(settle_in_the_second_slot, "nothing is mapped beyond the end of the file")


def read_all(directory: Directory) -> None:
    with suppress(WalError):
        read(Reader(directory.ring, bytes))


def a_ring_that_was_cut_is_read() -> None:
    with_a_cut_ring(read_all, "what cannot be read is an error, and no signal")


# -- growth is by real allocation ------------------------------------------------------------------------------------


def grow_by_holes(patch: Patch) -> None:
    def longer(self: StorageFile, offset: int, length: int) -> None:
        os.ftruncate(self._fd, max(self.size(), offset + length))

    patch.setattr(StorageFile, "allocate", longer)


def the_rings_grow() -> None:
    """Onto a disk that others may fill before the first store comes."""
    with real_files() as (_, opens):
        directory = opens()
        for ring in directory.rings:
            ring.append(b"taken", None)
        directory.prepare_spares()
        for file in (directory.files.ring, directory.files.retry, directory.files.dead, directory.files.lanes):
            demand(file.size() > 0, "it has grown", file.path.name)
            demand(file.disk_bytes() >= file.size(), "no store meets a full disk", file.path.name, file.disk_bytes())


# -- growth ends at the threshold of the disk ------------------------------------------------------------------------


def grow_beyond_the_limit(patch: Patch) -> None:
    begin = Quota.__init__

    def unlimited(self: Quota, *given: Any) -> None:
        begin(self, *given)
        self.shares = Shares(1 << 20)

    patch.setattr(Quota, "__init__", unlimited)


def take_what_is_left_for_others(patch: Patch) -> None:
    patch.setattr(Quota, "slots_within", lambda self, free_bytes: free_bytes // self.limits.slot_bytes)


class SmallDisk(FileSystem):
    """Of so many slots."""

    SLOTS = 14

    def free_bytes(self, path: Path) -> int:
        return self.SLOTS * SLOT - sum((path / name).stat().st_size for name in RINGS)


def fill_to_the_end(directory: Directory) -> None:
    with suppress(WalFullError):
        for _ in range(SmallDisk.SLOTS * SLOT // RECORD):
            directory.ring.append(b"f" * RECORD, None)
            directory.prepare_spares()


def the_rings_are_filled_to_their_limit() -> None:
    with real_files() as (_, opens):
        directory = opens(max_bytes=SLOTS_LEAST * SLOT)
        fill_to_the_end(directory)
        allocated = sum(ring.bytes_allocated for ring in directory.rings)
        demand(allocated == SLOTS_LEAST * SLOT, "the rings together grow up to their limit", allocated // SLOT)


def the_disk_is_filled_to_its_guard() -> None:
    kept = 5 * SLOT
    with real_files() as (_, opens):
        directory = opens(min_free_bytes=kept, file_system=SmallDisk())
        fill_to_the_end(directory)
        free = directory.file_system.free_bytes(directory.path)
        demand(free == kept, "what the disk keeps for others is left to them", free // SLOT)


# -- file sizes are changed by one at a time -------------------------------------------------------------------------


def change_sizes_without_the_lock(patch: Patch) -> None:
    begin = Quota.__init__

    def unlocked(self: Quota, *given: Any) -> None:
        begin(self, *given)
        self.lock = nullcontext()  # type: ignore[assignment]

    patch.setattr(Quota, "__init__", unlocked)


class Shortened(FaultyFile):
    """A file that tells when it is about to be cut."""

    def truncate(self, size: int) -> None:
        self._at("truncate", lambda: super(Shortened, self).truncate(size))


def the_ring_grows_while_its_end_is_cut_off() -> None:
    """The loop's thread takes the slots that are left, and more, in the middle of what the keeper's does."""
    file = Shortened("ring")
    opened = Opened(Disk(file, max_slots=40))
    ring = opened.ring
    fill(opened, 12)
    for _ in range(2):  # the second time from the front of the file on
        opened.settle(opened.read())
        opened.checkpoint()
        fill(opened, len(ring.live))
    grows = threading.Thread(target=fill, args=(opened, 10))

    def meanwhile() -> None:
        grows.start()
        waits = not isinstance(ring.spares.quota.lock, nullcontext)
        grows.join(0.3 if waits else 10)  # to its end: a store where the file is cut would be a signal

    file.before["truncate"] = meanwhile
    for _ in range(IDLE_LOOKS):
        ring.spares.shrink()
    grows.join(10)
    beyond = [slot.index for slot in ring.live if (slot.index + 1) * SLOT > file.size()]
    demand(not beyond, "no slot is cut off that was taken meanwhile", beyond)


# -- the retry and the dead ring keep a slot each --------------------------------------------------------------------


def reserve_nothing(patch: Patch) -> None:
    patch.setattr(opening, "_reserve", lambda directory: directory.lanes.grow())


def a_disk_that_others_have_filled() -> Opened:
    """The record that waits is the first one of the ring's first slot."""
    opened = Opened()
    first = opened.fill_slot()[0]
    opened.append(b"in the next slot")
    for file in (opened.disk.ring, opened.disk.retry, opened.disk.dead):
        file.before["allocate"] = no_room
    opened.settle(entry for entry in opened.read() if entry[2] != first[1])
    return opened


@contextmanager
def without_growing(promise: str) -> Iterator[None]:
    try:
        yield
    except WalFullError as error:
        raise ViolationError(promise) from error


def a_full_disk_keeps_a_slot_that_is_moved() -> None:
    opened = a_disk_that_others_have_filled()
    directory = opened.directory
    with without_growing("what stands in the way can be moved"):
        move = Move(opened.ring, directory.retry, opened.ring.live[0])
        while not move.step():
            pass
        directory.write_checkpoint(move.captured(directory))
        move.finish()
        demand(directory.recycle(directory.checkpoint) == 1, "and makes room")
        opened.fill_slot()


def a_full_disk_takes_a_letter() -> None:
    opened = a_disk_that_others_have_filled()
    with without_growing("what Kafka will never take can be put aside"):
        opened.directory.dead.append(b"a letter", None)


PLANTED: Planted = [
    (a_slot_that_was_cut_off_is_settled, map_without_a_look_at_the_size),
    (a_ring_that_was_cut_is_read, read_through_a_mapping),
    (the_rings_grow, grow_by_holes),
    (the_rings_are_filled_to_their_limit, grow_beyond_the_limit),
    (the_disk_is_filled_to_its_guard, take_what_is_left_for_others),
    (the_ring_grows_while_its_end_is_cut_off, change_sizes_without_the_lock),
    (a_full_disk_keeps_a_slot_that_is_moved, reserve_nothing),
    (a_full_disk_takes_a_letter, reserve_nothing),
]


@pytest.mark.parametrize(("scenario", "fault"), PLANTED, ids=names_of(PLANTED))
def test_a_rule_of_files_that_is_taken_away_is_missed(scenario: Scenario, fault: Fault, monkeypatch: Patch) -> None:
    tells(scenario, fault, monkeypatch)
