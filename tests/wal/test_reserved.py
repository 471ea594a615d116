"""The slots that the retry and the dead ring keep in reserve, and what a flush of the dead letters that fails does."""

import logging

import pytest

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from tests.wal.memory import broken, no_room
from tests.wal.rig import SLOT, Disk, Opened, found, read


def test_a_slot_of_each_is_there_from_the_opening_on() -> None:
    opened = Opened()
    assert [ring.bytes_allocated for ring in opened.directory.rings] == [0, SLOT, SLOT]


def test_an_opening_that_finds_no_room_for_them_says_so_and_they_are_had_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    files = (disk.retry, disk.dead)
    for file in files:
        file.before["allocate"] = no_room
    with caplog.at_level(logging.WARNING, "aiorecover.wal"):
        opened = Opened(disk)
    told = [record.getMessage().partition(" path=")[0] for record in caplog.records]
    assert told == ["no room for a reserved slot yet"] * len(files)  # the error knows of what, and says what to do
    opened.append(b"accepted all the same")
    assert opened.directory.wants_spare
    opened.directory.prepare_spares()
    for file in files:
        del file.before["allocate"]
    opened.directory.prepare_spares()
    assert [ring.bytes_allocated for ring in opened.directory.rings[1:]] == [SLOT, SLOT]
    assert not opened.directory.wants_spare


def test_a_main_ring_without_room_says_so_though_the_others_keep_theirs() -> None:
    opened = Opened()
    opened.append(b"takes the slot that was there")
    has_no_room(opened.disk)
    with pytest.raises(WalFullError):
        opened.directory.prepare_spares()
    for ring in opened.directory.rings[1:]:
        ring.append(b"a record", None)


def test_on_a_full_disk_what_stands_in_the_way_is_moved_and_the_main_ring_goes_on() -> None:
    opened = Opened()
    directory = opened.directory
    first = opened.fill_slot()[0]
    opened.append(b"in the slot that is written")
    has_no_room(opened.disk)
    with pytest.raises(WalFullError):
        opened.append(*[b"f" * 500] * SLOT)
    opened.settle(entry for entry in opened.read() if entry[2] != first[1])
    move = Move(opened.ring, directory.retry, opened.ring.live[0])
    while not move.step():
        pass
    directory.write_checkpoint(move.captured(directory))
    move.finish()
    assert directory.recycle(directory.checkpoint) == 1
    assert opened.fill_slot()[0] > first
    copies = [payload for _, payload in found(read(Reader(directory.retry, payload_of)))]
    assert copies == [opened.accepted[first]]


def payload_of(copy: memoryview) -> bytes:
    return bytes(unpack_moved(copy).payload)


def has_no_room(disk: Disk) -> None:
    for file in (disk.ring, disk.retry, disk.dead):
        file.before["allocate"] = no_room


@pytest.mark.parametrize("flushed", ["ring", "dead"])
def test_a_flush_that_fails_poisons_every_ring_and_leaves_word_of_it(flushed: str) -> None:
    opened = Opened()
    directory = opened.directory
    opened.append(b"accepted")
    getattr(opened.disk, flushed).before["sync"] = broken
    with pytest.raises(WalIOError):
        directory.sync() if flushed == "ring" else directory.sync_dead()
    for ring in directory.rings:
        refuses(ring)
    following = opened.dies()
    assert following.directory.checkpoint.suspect.up_to > 0


def refuses(ring: Ring) -> None:
    with pytest.raises(WalIOError):
        ring.append(b"refused", None)
    with pytest.raises(WalIOError):
        ring.sync()
    assert not ring.wants_spare
