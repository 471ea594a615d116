"""One process has a directory, whatever strangers remove; what is unsafe, foreign or damaged is refused in a sentence.

Other processes are real ones, see `own`.
"""

import errno
import logging
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover.errors import (
    ClosedError,
    WalCorruptError,
    WalDestinationError,
    WalError,
    WalFormatError,
    WalFullError,
    WalIOError,
    WalLockedError,
)
from aiorecover.ring.checkpoint import Checkpoint, dump, load
from aiorecover.ring.directory import Directory, instances
from aiorecover.ring.files import Files
from tests.faults.scene import play, small_disk

SOMEBODY = 12345  # a user id
GROUP = 23456
CHECKPOINT = Checkpoint(
    producer_id="0123456789abcdef",
    epoch=7,
    boot_id="here",
    first_epoch_of_boot=5,
    ring=(1, 2),
    guarantee="at_least_once",
    cluster_id="there",
    name="mine",
    topics={"orders": 12},
    sources={"billing:0": (17, 1, 5)},
    transaction=3,
)
FIRST_CORE = {  # what aiorecover 0.1 leaves
    "lock": b"12345               \n",
    "checkpoint": struct.pack("<8sHHIQI", b"\x89AIOCHK\n", 1, 0, 3, 9, 0).ljust(1 << 17, b"\1"),
    "ring": bytes(4096),
    "retry": b"",
    "dead": b"",
    "lanes": b"",
}
PROCESSES = multiprocessing.get_context("forkserver")  # one has imported all this, the others are its forks
PROCESSES.set_forkserver_preload([__name__])

root = pytest.mark.skipif(os.geteuid() != 0, reason="this kernel lets only root give files away")


def own(ours: Connection, wal_dir: Path, instance: str | None, flush: int, user: int | None) -> None:
    """Take a directory, say which, and answer what `lost` and `replaced` say; the process ends with the connection."""
    if user is not None:
        os.setgroups([GROUP])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    try:
        directory = Directory.take(wal_dir, instance=instance)
    except WalError as error:
        ours.send(f"{type(error).__name__} {error}")
        return
    directory.mark_flush(flush)
    ours.send(directory.instance)
    with suppress(EOFError):
        while True:
            ours.recv()
            ours.send((directory.lost(), directory.replaced()))
    directory.close()


class Owner:
    """Another process that takes a directory; ``said``: its name there, or the error."""

    def __init__(self, wal_dir: Path, instance: str | None, flush: int, user: int | None) -> None:
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=own, args=(theirs, wal_dir, instance, flush, user))
        self.process.start()
        theirs.close()
        self.said = self.pipe.recv()

    def look(self) -> Any:
        """Return `lost` and `replaced` of the directory."""
        self.pipe.send(None)
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def owner(wal_dir: Path, *, instance: str | None = None, flush: int = 0, user: int | None = None) -> Iterator[Owner]:
    other = Owner(wal_dir, instance, flush, user)
    try:
        yield other
    finally:
        other.kill()
        other.pipe.close()
        other.process.close()


@contextmanager
def taken(wal_dir: Path, instance: str | None = None, files: Files | None = None) -> Iterator[Directory]:
    directory = Directory.take(wal_dir, instance=instance, files=files)
    try:
        yield directory
    finally:
        directory.close()


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return tmp_path / "wal"


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user can reach."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def make_instance(path: Path, **content: bytes) -> None:
    path.mkdir(parents=True, mode=0o700)
    for name, data in content.items():
        (path / name).write_bytes(data)


# -- which one -------------------------------------------------------------------------------------------------------


def test_a_directory_is_made_private(wal: Path) -> None:
    with taken(wal / "deep") as directory:
        assert (directory.path, directory.instance) == (wal / "deep" / "0", "0")
        assert [mode(one) for one in (wal / "deep", directory.path)] == [0o700, 0o700]
        assert {one.name: mode(one) for one in directory.path.iterdir()} == {"lock": 0o600, "ring": 0o600}
        assert (directory.checkpoint, directory.flush_pending) == (None, 0)
        assert directory.boot_id == directory.files.boot_id()
        assert directory.owner_pid == os.getpid()
        assert (directory.lost(), directory.replaced()) == (None, None)
        assert directory.files.size(directory.ring) == 0


def test_each_process_has_a_number_and_the_first_free_one_is_taken_again(wal: Path) -> None:
    with owner(wal) as first, owner(wal) as second, taken(wal) as third:
        assert [first.said, second.said, third.instance] == ["0", "1", "2"]
        second.kill()
        with taken(wal) as again:
            assert again.instance == "1"


def test_a_number_with_a_backlog_comes_before_a_new_one(wal: Path) -> None:
    make_instance(wal / "3", lock=b"", ring=b"")
    make_instance(wal / "11", lock=b"", ring=b"")
    make_instance(wal / "007", lock=b"", ring=b"")
    with taken(wal) as first, taken(wal) as second, taken(wal) as third:
        assert [first.instance, second.instance, third.instance] == ["3", "11", "0"]


def test_a_name_is_taken_and_waited_for(wal: Path) -> None:
    with owner(wal, instance="blue") as other:
        assert other.said == "blue"
        with pytest.raises(WalLockedError, match=f"another process holds .* pid={other.process.pid}$"):
            Directory.take(wal, instance="blue")
        started = time.monotonic()
        with pytest.raises(WalLockedError):
            Directory.take(wal, instance="blue", wait_s=0.3)
        assert 0.3 <= time.monotonic() - started < 3
        other.pipe.close()  # it ends
        directory = Directory.take(wal, instance="blue", wait_s=10)
        assert directory.instance == "blue"
        directory.close()


def test_a_process_that_takes_its_own_directory_again_is_refused(wal: Path) -> None:
    with taken(wal, "blue"), pytest.raises(WalLockedError, match=r"this very process .*await stop"):
        Directory.take(wal, instance="blue")


def test_all_numbers_may_be_taken(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.ring.directory.MOST_INSTANCES", 2)
    with taken(wal), taken(wal), pytest.raises(WalLockedError, match="use another wal_dir"):
        Directory.take(wal)


def test_a_relative_path_holds_when_the_process_moves(
    wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with taken(Path("wal")) as directory:
        monkeypatch.chdir("/")
        assert directory.replaced() is None
        directory.save(CHECKPOINT)
    assert (wal / "0" / "checkpoint").exists()


def test_closing_lets_go_and_is_done_once(wal: Path) -> None:
    directory = Directory.take(wal)
    descriptors = directory.lock, directory.ring
    directory.close()
    directory.close()
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    for use in (
        directory.lost,
        directory.replaced,
        lambda: directory.save(CHECKPOINT),
        lambda: directory.mark_flush(1),
    ):
        with pytest.raises(ClosedError, match="stopped"):
            use()
    with taken(wal) as again:
        assert again.instance == "0"


# -- removed and replaced --------------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def put_another_in_its_place(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


def move_away(path: Path) -> None:
    path.rename(path.with_name("away"))


@pytest.mark.parametrize("name", ["lock", "ring"])
@pytest.mark.parametrize("how", [remove, put_another_in_its_place])
def test_a_removed_file_makes_no_second_owner_and_is_noticed(wal: Path, name: str, how: object) -> None:
    with owner(wal) as first:
        assert first.look() == (None, None)
        assert callable(how)
        how(wal / "0" / name)
        with owner(wal) as second, taken(wal) as third:
            assert [second.said, third.instance] == ["1", "2"]
            lost, replaced = first.look()
            assert lost.startswith(f"{wal}/0/{name} was removed: ")
            assert replaced.startswith(f"{wal}/0/{name} was removed or replaced: ")
            assert second.look() == (None, None)
        first.kill()
        with taken(wal) as heir:
            assert heir.instance == "0", "it is free with its owner's death"


def test_files_moved_away_are_noticed_within_the_second(wal: Path) -> None:
    with taken(wal) as directory:
        move_away(directory.path)
        assert directory.lost() is None, "they have their names"
        assert "was removed or replaced" in (directory.replaced() or "")


def test_a_look_that_fails_counts_as_replaced(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken(wal) as directory:

        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", refuse)
            assert "Input/output error" in (directory.replaced() or "")
        assert directory.replaced() is None


@pytest.mark.parametrize("name", ["lock", "ring"])
def test_a_loser_does_not_save_over_the_checkpoint_of_another_owner(wal: Path, name: str) -> None:
    with taken(wal) as directory:
        directory.save(CHECKPOINT)
        (directory.path / name).unlink()
        with pytest.raises(WalIOError) as caught:
            directory.save(msgspec.structs.replace(CHECKPOINT, epoch=8))
        assert caught.value.errno == errno.ESTALE
    with taken(wal) as directory:
        assert directory.checkpoint == CHECKPOINT


class Removing(Files):
    """A stranger removes a file just before it is locked, so many times."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__()
        self.name, self.times = name, times

    def lock(self, fd: int) -> bool:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.name == self.name and self.times:
            self.times -= 1
            path.unlink()
        return super().lock(fd)


@pytest.mark.parametrize("name", ["lock", "ring"])
def test_a_file_that_is_removed_while_it_is_locked_is_made_again(wal: Path, name: str) -> None:
    with taken(wal, files=Removing(name, 3)) as directory:
        assert (directory.lost(), directory.replaced(), directory.instance) == (None, None, "0")
    with pytest.raises(WalIOError, match="keeps its inode"):
        Directory.take(wal, files=Removing(name, 1000))
    with taken(wal) as directory:
        assert directory.instance == "0", "nothing stays locked"


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_a_file_or_a_link_is_no_wal_dir(wal: Path, tmp_path: Path) -> None:
    wal.write_bytes(b"something")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for path, kind in ((wal, "not a directory"), ("link", "a symbolic link"), ("dangling", "a symbolic link")):
        with pytest.raises(WalFormatError, match=f"^wal_dir is {kind}: "):
            Directory.take(tmp_path / path)
    with pytest.raises(WalIOError, match="choose another path"):
        Directory.take(wal / "below")
    assert list((tmp_path / "real").iterdir()) == []
    assert wal.read_bytes() == b"something"


@pytest.mark.parametrize("instance", [None, "0"])
def test_a_file_or_a_link_is_no_instance(wal: Path, tmp_path: Path, instance: str | None) -> None:
    wal.mkdir()
    (wal / "0").write_bytes(b"something")
    with pytest.raises(WalFormatError, match=r"^the instance directory is not a directory: "):
        Directory.take(wal, instance=instance)
    (wal / "0").unlink()
    (wal / "0").symlink_to(tmp_path)
    with pytest.raises(WalFormatError, match=r"^the instance directory is a symbolic link: "):
        Directory.take(wal, instance=instance)


@pytest.mark.parametrize("name", ["lock", "ring"])
def test_a_link_in_the_place_of_a_file_is_refused(wal: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    make_instance(wal / "0", lock=b"", ring=b"")
    (wal / "0" / name).unlink()
    (wal / "0" / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(WalIOError, match="symbolic link"):
        Directory.take(wal)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_an_instance_is_no_wal_dir(wal: Path) -> None:
    with taken(wal):
        pass
    with pytest.raises(WalFormatError, match=f"give the directory above it.* wal_dir={wal} instance='0'"):
        Directory.take(wal / "0")


def test_a_directory_of_another_program_is_left_alone(wal: Path) -> None:
    make_instance(wal / "0", notes=b"theirs")
    with pytest.raises(WalFormatError, match="files of another program"):
        Directory.take(wal)
    assert [one.name for one in (wal / "0").iterdir()] == ["notes"]


def test_a_directory_that_every_user_may_rename_is_refused_with_a_remedy(wal: Path) -> None:
    wal.mkdir()
    wal.chmod(0o777)
    with pytest.raises(WalIOError, match=r"name a directory inside it.*chmod o-w") as caught:
        Directory.take(wal)
    assert caught.value.errno == errno.EPERM
    assert list(wal.iterdir()) == []
    with taken(wal / "inside"):
        assert mode(wal / "inside") == 0o700
    shutil.rmtree(wal / "inside")
    wal.chmod(0o1777)  # as /tmp: nobody renames what is not theirs
    with taken(wal):
        assert mode(wal / "0") == 0o700


def test_a_directory_that_a_volume_opened_to_a_group_is_made_private_again(wal: Path) -> None:
    make_instance(wal / "0", lock=b"", ring=b"")
    (wal / "0").chmod(0o2770)  # Kubernetes does so whenever it mounts a volume with fsGroup
    with taken(wal) as directory:
        assert (directory.instance, mode(wal / "0")) == ("0", 0o700)


@root
def test_a_wal_dir_of_root_works_where_our_group_may_write(public: Path) -> None:
    wal = public / "wal"
    wal.mkdir()
    os.chown(wal, 0, GROUP)
    wal.chmod(0o2775)
    with owner(wal, user=SOMEBODY) as one:
        assert one.said == "0"
        found = (wal / "0").stat()
        assert (found.st_uid, found.st_mode & 0o777) == (SOMEBODY, 0o700)


@root
@pytest.mark.parametrize("bits", [0o755, 0o700])
def test_a_wal_dir_of_another_user_that_we_may_not_write_names_the_way(public: Path, bits: int) -> None:
    wal = public / "wal"
    wal.mkdir()
    wal.chmod(bits)
    with owner(wal, user=SOMEBODY) as one:
        assert one.said.startswith("WalIOError ")
        assert "chown it" in one.said
        assert "securityContext.fsGroup" in one.said


@root
def test_a_number_of_another_user_is_named_and_left_alone(wal: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_instance(wal / "0", lock=b"", ring=b"")
    os.chown(wal / "0", SOMEBODY, GROUP)
    with taken(wal) as directory:
        assert directory.instance == "1"
    assert [line.getMessage().split()[0] for line in caplog.records] == ["wal_instance_foreign"]
    assert f"path={wal}/0 uid={SOMEBODY}" in caplog.text
    with pytest.raises(WalIOError, match=f"belongs to uid {SOMEBODY}: chown") as caught:
        Directory.take(wal, instance="0")
    assert caught.value.errno == errno.EACCES


class Squashed(Files):
    """A file system that gives what is made to another user, as NFS does with root's."""

    def user(self) -> int:
        return super().user() + 1


def test_a_file_system_that_gives_new_directories_away_is_named(wal: Path) -> None:
    with pytest.raises(WalIOError, match=f"belongs to uid {os.geteuid()}: mount") as caught:
        Directory.take(wal, files=Squashed())
    assert caught.value.errno == errno.EPERM
    assert [one.name for one in wal.iterdir()] == ["0"], "it is tried once"


# -- other versions, damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", [None, "0"])
@pytest.mark.parametrize("left_out", ["", "checkpoint", "retry dead lanes"])
def test_a_directory_of_the_first_core_is_refused_untouched(wal: Path, instance: str | None, left_out: str) -> None:
    content = {name: data for name, data in FIRST_CORE.items() if name not in left_out.split()}
    make_instance(wal / "0", **content)
    with pytest.raises(WalFormatError, match=f"drain it with aiorecover 0.1.* path={wal}/0"):
        Directory.take(wal, instance=instance)
    assert {one.name: one.read_bytes() for one in (wal / "0").iterdir()} == content


def test_beside_a_living_process_of_the_first_core_there_is_another_number(wal: Path) -> None:
    make_instance(wal / "0", **FIRST_CORE)
    files = Files()
    fd = files.open(wal / "0" / "lock")
    assert files.lock(fd)
    with taken(wal) as directory:
        assert directory.instance == "1"
    files.close(fd)


def test_a_checkpoint_is_found_as_it_was_saved(wal: Path) -> None:
    newer = msgspec.structs.replace(CHECKPOINT, epoch=8, cluster_id=None, sources={})
    with taken(wal) as directory:
        directory.save(CHECKPOINT)
        assert directory.checkpoint == CHECKPOINT
        directory.save(newer)
    with taken(wal) as directory:
        assert directory.checkpoint == newer
        assert newer.version == 2
    assert mode(wal / "0" / "checkpoint") == 0o600


def test_a_newer_checkpoint_is_refused(wal: Path) -> None:
    make_instance(wal / "0", checkpoint=dump(msgspec.structs.replace(CHECKPOINT, version=3)))
    with pytest.raises(WalFormatError, match=f"newer aiorecover.*path={wal}/0/checkpoint format=3 supported=2"):
        Directory.take(wal)
    with pytest.raises(WalFormatError):
        Directory.take(wal)  # and not because the first try holds it


def test_a_damaged_checkpoint_is_refused_until_it_is_removed(wal: Path) -> None:
    data = dump(CHECKPOINT)
    make_instance(wal / "0", checkpoint=data[:-1] + b"\0")
    with pytest.raises(WalCorruptError, match=f"remove this file.*path={wal}/0/checkpoint"):
        Directory.take(wal)
    (wal / "0" / "checkpoint").unlink()
    with taken(wal) as directory:
        assert (directory.instance, directory.checkpoint) == ("0", None)


def test_no_damaged_byte_is_believed() -> None:
    data = dump(CHECKPOINT)
    assert load(data) == CHECKPOINT
    damaged = [data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :] for index in range(len(data))]
    damaged += [data[:index] for index in range(len(data))]
    damaged += [data + b"\0", bytes(len(data)), data + data, bytes(8) + b"\1\0" + bytes(99)]
    for one in damaged:
        with pytest.raises(WalCorruptError, match="remove this file"):
            load(one)


def test_a_checkpoint_that_is_whole_and_makes_no_sense_is_damage() -> None:
    for body in (b"\xc1", msgspec.msgpack.encode({"epoch": "seven"}), msgspec.msgpack.encode([1])):
        with pytest.raises(WalCorruptError):
            load(sealed(body))
    with pytest.raises(WalCorruptError):
        load(sealed(msgspec.msgpack.encode(CHECKPOINT), more=1))
    assert load(sealed(msgspec.msgpack.encode(CHECKPOINT))) == CHECKPOINT


def sealed(body: bytes, more: int = 0) -> bytes:
    """A body with a head that holds, made from the head of a good one; ``more``: bytes that are not there."""
    head = dump(CHECKPOINT)[:12] + struct.pack("<IQ", len(body) + more, 0)
    return head + struct.pack("<I", zlib.crc32(head + body)) + body


def test_a_field_of_a_later_release_is_passed_over() -> None:
    assert load(sealed(msgspec.msgpack.encode({**msgspec.to_builtins(CHECKPOINT), "new": 1}))) == CHECKPOINT


# -- destination, flush ----------------------------------------------------------------------------------------------


def test_the_destination_is_compared_with_what_is_remembered(wal: Path) -> None:
    with taken(wal) as directory:
        directory.check_destination("any", "exactly_once", "any")  # nothing is remembered
        directory.save(CHECKPOINT)
        directory.check_destination("mine", "at_least_once", "there")
        directory.check_destination("mine", None, None)
        for name in ("yours", None):
            with pytest.raises(WalDestinationError, match=r"belongs to another producer name.*stored='mine'"):
                directory.check_destination(name, "at_least_once", "there")
        with pytest.raises(WalDestinationError, match="guarantee='at_least_once': start with that"):
            directory.check_destination("mine", "exactly_once", "there")
        with pytest.raises(WalDestinationError, match=r"another cluster.*cluster_id='elsewhere'.*stored='there'"):
            directory.check_destination("mine", "at_least_once", "elsewhere")
        directory.save(msgspec.structs.replace(CHECKPOINT, name=None, cluster_id=None))
        directory.check_destination("first", "at_least_once", "first")


def test_a_flush_that_a_killed_process_had_begun_is_known(wal: Path) -> None:
    with owner(wal, flush=1_800_000_000):
        pass
    for _ in range(2):  # it stays so until it is cleared
        with taken(wal) as directory:
            assert (directory.instance, directory.flush_pending) == ("0", 1_800_000_000)
    with taken(wal) as directory:
        directory.mark_flush(0)
    with taken(wal) as directory:
        assert directory.flush_pending == 0


@pytest.mark.parametrize("content", [b"", b"12", b"12345               \n", bytes(32)])
def test_a_lock_with_other_content_means_no_flush(wal: Path, content: bytes) -> None:
    make_instance(wal / "0", lock=content)
    with taken(wal) as directory:
        assert directory.flush_pending == 0


# -- seen from outside -----------------------------------------------------------------------------------------------


def test_instances_are_listed_without_a_lock_being_tried(wal: Path, tmp_path: Path) -> None:
    for name in ("10", "9", "blue"):
        make_instance(wal / name, lock=b"", ring=b"")
    make_instance(wal / "other", notes=b"")
    (wal / "file").write_bytes(b"")
    (wal / "link").symlink_to(wal / "9")

    class Looking(Files):
        def lock(self, fd: int) -> bool:
            raise AssertionError

    with owner(wal, instance="9") as other, taken(wal, "blue"):
        assert other.said == "9"
        found = [one[:2] for one in instances(wal, files=Looking())]
        assert found == [(wal / "9", True), (wal / "10", False), (wal / "blue", True)]
    assert [one.locked for one in instances(wal)] == [False, False, False]
    with pytest.raises(WalIOError):
        instances(tmp_path / "missing")


def test_an_owner_whose_lock_was_removed_still_shows(wal: Path) -> None:
    with owner(wal):
        (wal / "0" / "lock").unlink()
        assert [one[:2] for one in instances(wal)] == [(wal / "0", True)]


def test_a_file_of_another_disk_with_the_same_inode_is_another_file(wal: Path) -> None:
    make_instance(wal / "0", lock=b"0000000000 1                   \n", ring=b"")
    inode = (wal / "0" / "lock").stat().st_ino

    class Shown(Files):
        def read_file(self, path: Path) -> bytes | None:
            return shown if path == Path("/proc/locks") else super().read_file(path)

    for pid, locked in ((1, True), (2, False)):
        shown = b"1: FLOCK  ADVISORY  WRITE %d fe:ff:%d 0 EOF\n" % (pid, inode)
        assert [one[:2] for one in instances(wal, files=Shown())] == [(wal / "0", locked)]


class Elsewhere(Files):
    """The kernel shows another device than a file does, as on btrfs."""

    def read_file(self, path: Path) -> bytes | None:
        data = super().read_file(path)
        if path == Path("/proc/locks") and data is not None:
            return b"\n".join(b" ".join(_moved(line.split())) for line in data.splitlines())
        return data


def _moved(fields: list[bytes]) -> list[bytes]:
    return [b"fe:ff:" + field.split(b":")[2] if field.count(b":") == 2 else field for field in fields]


def test_a_kernel_that_shows_another_device_is_understood(wal: Path) -> None:
    make_instance(wal / "1", lock=b"", ring=b"")
    with owner(wal, instance="0"):
        assert [one.locked for one in instances(wal, files=Elsewhere())] == [True, False]


def test_without_proc_locks_no_owner_is_shown(wal: Path) -> None:
    class Bare(Files):
        def read_file(self, path: Path) -> bytes | None:
            return None if path == Path("/proc/locks") else super().read_file(path)

    with taken(wal, "blue"):
        assert [one.locked for one in instances(wal, files=Bare())] == [False]
        with pytest.raises(WalLockedError, match="pid=unknown"):
            Directory.take(wal, instance="blue", files=Bare())


# -- memory, full disk -----------------------------------------------------------------------------------------------


def test_a_wal_dir_in_memory_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    if Files().file_system(Path("/dev/shm")) != "tmpfs":  # noqa: S108
        pytest.skip("this kernel has no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        for _ in range(2):
            with taken(Path(place) / "wal"):
                pass
        assert [(line.levelno, line.getMessage().split()[0]) for line in caplog.records] == [
            (logging.WARNING, "wal_dir_in_memory")
        ]
        assert f"path={place}/wal file_system=tmpfs" in caplog.text


def test_a_wal_dir_on_a_disk_is_none(wal: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Disk(Files):
        def file_system(self, path: Path) -> str:
            return "ext4"

    with taken(wal, files=Disk()):
        pass
    assert caplog.records == []


async def fill_the_disk(place: Path) -> None:
    """The disk has room for eight files and directories, its root among them."""
    wal = place / "wal"
    with taken(wal) as directory:
        directory.save(CHECKPOINT)
        with suppress(OSError):
            for number in range(100):
                (place / f"filler{number}").touch()
        with pytest.raises(WalFullError):
            directory.save(msgspec.structs.replace(CHECKPOINT, epoch=8))
        directory.mark_flush(1)
        with pytest.raises(WalFullError):
            Directory.take(wal)
    with taken(wal) as directory:
        assert (directory.instance, directory.checkpoint) == ("0", CHECKPOINT), "what is there is opened"


def test_a_full_disk(tmp_path: Path) -> None:
    play(fill_the_disk, tmp_path, prefix=small_disk(tmp_path, "size=1m,nr_inodes=8"))


# -- fork ------------------------------------------------------------------------------------------------------------

FORK = """\
import os, sys
from aiorecover.errors import ClosedError
from aiorecover.ring.directory import Directory
directory = Directory.take(sys.argv[1])
files, descriptors = directory.files, (directory.lock, directory.ring)
files.allocate(directory.ring, 0, 4096)
mapping = files.map(directory.ring, 0, 4096)
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(writing)
    for use in (directory.lost, directory.replaced, lambda: directory.mark_flush(1)):
        try:
            use()
        except ClosedError as error:
            assert "forked process" in str(error), error
        else:
            os._exit(1)
    for fd in descriptors:
        try:
            os.fstat(fd)
        except OSError:
            continue
        os._exit(2)
    os.write(1, b"closed\\n" if directory.owner_pid == os.getppid() else b"whose?\\n")
    os.read(reading, 1)  # until the parent is gone, and longer
    sys.stdin.read()
    os._exit(0)
os.close(reading)
sys.stdin.readline()
assert directory.lost() is None and directory.replaced() is None
print("mine", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_forked_child_keeps_nothing(wal: Path) -> None:
    command = [sys.executable, "-c", FORK, str(wal)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "closed\n"
        with pytest.raises(WalLockedError):
            Directory.take(wal, instance="0")
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "mine\n", "the child has unlocked nothing"
        process.wait(timeout=10)
        with taken(wal, "0") as directory:  # while the child lives
            assert directory.lost() is None


def test_every_error_is_of_our_tree(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("open", "stat", "listdir", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(WalError, match="Input/output error"):
                Directory.take(wal)
