"""A lane that waits for a block on a full disk gets it in the place of free slots."""

import threading
from dataclasses import replace

import pytest

from aiorecover.errors import WalFullError
from aiorecover.wal.lanes import FIRST_BLOCKS, LEAST_BYTES
from tests.wal.memory import FaultyFile, no_blocks
from tests.wal.rig import SLOT, Disk, Opened

SLOTS = 12  # of the main ring, once it is delivered
TAKEN = -(-LEAST_BYTES // SLOT)  # slots that a block takes the place of


class Shared:
    """What a directory and a stranger have together, and no more than that."""

    def __init__(self) -> None:
        self.opened = Opened()
        self._strangers = 0
        self.is_greedy = False
        for _ in range(SLOTS):
            self.opened.fill_slot()
        self.opened.settle(self.opened.read(10_000))
        directory = self.directory = self.opened.directory
        for _ in range(2):
            directory.write_checkpoint(directory.next_checkpoint())
            directory.recycle(directory.checkpoint)
        disk = self.opened.disk
        self._files = [disk.ring, disk.retry, disk.dead, disk.lanes]
        self._size = self._used
        for file in self._files:
            file.stored.belong_to(threading.RLock(), self._reserve)
        while directory.lanes.free:
            directory.lanes.take()

    @property
    def _used(self) -> int:
        return sum(file.disk_bytes() for file in self._files)

    def _reserve(self, asked: int) -> None:
        if self.is_greedy:
            self._strangers = self._size - self._used
        if self._used + self._strangers + asked > self._size:
            no_blocks(asked)

    @property
    def free_slots(self) -> int:
        return sum(ring.spares.holding.free for ring in self.directory.rings)

    def is_full(self) -> None:
        """The file system says so, too."""
        quota = self.directory.ring.spares.quota
        quota.limits = replace(quota.limits, free_bytes=lambda: 0)

    def goes(self) -> None:
        """The stranger has given back what he had."""
        self.is_greedy, self._strangers = False, 0


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_a_lane_that_waits_gets_a_block_in_the_place_of_free_slots(shared: Shared) -> None:
    lanes, free = shared.directory.lanes, shared.free_slots
    assert lanes.take() is None
    shared.directory.grow_lanes()
    assert (lanes.blocks, lanes.take()) == (FIRST_BLOCKS + 1, FIRST_BLOCKS)
    assert shared.free_slots == free - TAKEN
    shared.opened.append(b"accepted all the same")


def test_it_gets_one_also_as_slots_are_made_ready_for_others(shared: Shared) -> None:
    """Who publishes may be quicker than a lane that asks twice a second."""
    assert shared.directory.lanes.take() is None
    shared.directory.prepare_spares()
    assert shared.directory.lanes.take() == FIRST_BLOCKS


def test_the_next_slot_of_what_is_moved_or_dead_comes_before_a_block(shared: Shared) -> None:
    """What is in the way of all others leaves the main ring through them, and frees slots for blocks, too."""
    directory = shared.directory
    while shared.free_slots > TAKEN:
        directory.ring.spares.take()
    for ring in (directory.retry, directory.dead):
        assert ring.spares.take() is not None
    shared.is_full()
    assert directory.lanes.take() is None
    with pytest.raises(WalFullError):
        directory.grow_lanes()
    assert shared.free_slots == TAKEN
    with pytest.raises(WalFullError, match="ring=ring "):  # nor is there room for the main ring
        directory.prepare_spares()
    assert (directory.retry.spares.empty, directory.dead.spares.empty) == (False, False)
    assert directory.lanes.blocks == FIRST_BLOCKS


def test_the_last_free_slots_go_to_a_block(shared: Shared) -> None:
    while shared.free_slots > TAKEN:
        shared.directory.ring.spares.take()
    assert shared.directory.lanes.take() is None
    shared.directory.grow_lanes()
    assert (shared.directory.lanes.take(), shared.free_slots) == (FIRST_BLOCKS, 0)


def test_where_no_lane_waits_the_rings_keep_what_they_have(shared: Shared) -> None:
    free = shared.free_slots
    with pytest.raises(WalFullError):
        shared.directory.grow_lanes()
    assert shared.free_slots == free


def test_where_fewer_slots_are_free_than_a_block_takes_none_is_given_up(shared: Shared) -> None:
    while shared.free_slots >= TAKEN:
        shared.directory.ring.spares.take()
    free = shared.free_slots
    assert free > 0
    assert shared.directory.lanes.take() is None
    with pytest.raises(WalFullError):
        shared.directory.grow_lanes()
    assert shared.free_slots == free


def test_who_fills_the_disk_as_fast_as_slots_are_given_up_gets_no_more_of_them(shared: Shared) -> None:
    lanes, free = shared.directory.lanes, shared.free_slots
    shared.is_greedy = True
    for _ in range(5):
        assert lanes.take() is None
        with pytest.raises(WalFullError):
            shared.directory.grow_lanes()
    assert shared.free_slots == free - TAKEN
    shared.goes()
    for block in range(FIRST_BLOCKS, FIRST_BLOCKS + 2):  # the second one in the place of slots again
        while (taken := lanes.take()) is None:
            shared.directory.grow_lanes()
        assert taken == block


def test_where_files_have_no_holes_a_lane_waits(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyFile, "punch", lambda *_: False)
    free = shared.free_slots
    assert shared.directory.lanes.take() is None
    with pytest.raises(WalFullError):
        shared.directory.grow_lanes()
    assert shared.free_slots == free


def test_once_a_lane_that_waited_has_a_block_the_rings_keep_what_they_have(shared: Shared) -> None:
    lanes = shared.directory.lanes
    assert lanes.take() is None
    shared.directory.grow_lanes()
    assert lanes.take() is not None
    shared.directory.prepare_spares()
    free = shared.free_slots
    for _ in range(3):
        shared.directory.prepare_spares()
    assert (lanes.blocks, lanes.free) == (FIRST_BLOCKS + 1, 0)
    assert shared.free_slots == free


def test_an_opening_on_a_full_disk_gives_nothing_up_for_lanes_that_nobody_has_seen() -> None:
    disk = Disk()
    disk.lanes.stored.belong_to(threading.RLock(), no_blocks)
    assert Opened(disk).directory.lanes.blocks == 0
