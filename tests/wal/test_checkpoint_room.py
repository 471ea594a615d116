"""Room for the checkpoint: it grows with the age of what waits, and others may have filled the disk by then."""

import errno
import logging

import pytest

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.checkpoint import COPY_BYTES, Destination
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from tests.wal.memory import PAGE, no_room
from tests.wal.rig import SLOT, Disk, Opened

LARGE = Destination(cluster_id="c" * 5000)  # more than a page, as the marks of a day's backlog


def opened(disk: MemoryDisk) -> Directory:
    return open_directory(Options(disk.path, SLOT, 64 * SLOT, 0, file_system=disk.file_system))


def grow(directory: Directory) -> None:
    """Both copies of the checkpoint become larger than a page."""
    for _ in range(2):
        directory.write_checkpoint(directory.next_checkpoint(destination=LARGE))
    assert len(directory.files.checkpoint.read(0, COPY_BYTES).rstrip(b"\0")) > PAGE


def test_a_checkpoint_grows_on_a_disk_that_others_have_filled() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    directory.ring.append(b"waits", None)
    disk.full()
    grow(directory)
    assert directory.ring.failure is None
    following = disk.after_process_death()
    following.full()
    assert opened(following).unread() == 1
    assert opened(following.after_power_cut(1)).checkpoint.destination == LARGE


def test_a_new_directory_without_room_for_its_checkpoint_is_refused() -> None:
    disk = MemoryDisk(size=2 * COPY_BYTES - 1)
    with pytest.raises(WalFullError, match="no room to grow the file: free disk space"):
        opened(disk)
    disk.resize(None)
    grow(opened(disk))


def test_a_directory_with_records_opens_without_that_room_and_takes_it_once_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = Opened()
    before.append(b"waits")
    disk = before.disk.after_death()
    disk.checkpoint.cut(COPY_BYTES + 512)  # as a copy of the directory with holes
    disk.checkpoint.before["allocate"] = no_room
    with caplog.at_level(logging.WARNING):
        directory = disk.open()
    assert [record.message.partition(" path=")[0] for record in caplog.records] == [
        "no room for a checkpoint that grows: do what error= says"
    ]
    assert directory.unread() == 1
    assert directory.wants_spare
    directory.prepare_spares()
    assert disk.checkpoint.size() == COPY_BYTES + 512
    del disk.checkpoint.before["allocate"]
    directory.prepare_spares()
    assert disk.checkpoint.size() == 2 * COPY_BYTES
    assert not directory.checkpoint_file.wants_room


def test_a_file_that_is_there_as_a_whole_needs_no_room() -> None:
    before = Opened()
    before.append(b"waits")
    disk = before.disk.after_death()
    disk.checkpoint.before["allocate"] = no_room
    directory = disk.open()
    assert not directory.checkpoint_file.wants_room
    grow(directory)


def test_a_hole_in_the_file_is_filled() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    file = disk.file_system.open(disk.path / "0" / "checkpoint")
    assert file.punch(COPY_BYTES + 2 * PAGE, 4 * PAGE)
    assert file.disk_bytes() < 2 * COPY_BYTES
    opened(disk).close()
    assert file.disk_bytes() == 2 * COPY_BYTES


def test_a_file_system_that_cannot_allocate_is_asked_once() -> None:
    disk = Disk()
    asked = []

    def cannot() -> None:
        asked.append(1)
        raise WalIOError(errno.EOPNOTSUPP, "cannot grow the file", "memory")

    disk.checkpoint.before["allocate"] = cannot
    directory = disk.open()
    directory.prepare_spares()
    grow(directory)
    assert asked == [1]


def test_a_checkpoint_that_finds_no_room_has_to_be_mended_by_a_restart_and_says_so() -> None:
    """Its copy may be half written: nothing is accepted any more, so nobody is told to wait for room."""
    before = Opened()
    before.append(b"waits")
    disk = before.disk
    disk.checkpoint.before["write"] = no_room
    with pytest.raises(WalIOError, match="free disk space, then stop and start again"):
        before.directory.write_checkpoint(before.directory.next_checkpoint())
    del disk.checkpoint.before["write"]
    for ring in before.directory.rings:
        with pytest.raises(WalIOError, match="free disk space, then stop and start again"):
            ring.append(b"refused", None)
    after = before.dies()
    assert [record for *_, record in after.read()] == [b"waits"]
    after.append(b"accepted again")
    after.checkpoint()
