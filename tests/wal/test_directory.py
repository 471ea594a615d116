"""The directory: who may have it, what is refused, and that nothing is accepted before it is durable."""

import dataclasses
import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest

from aiorecover.errors import (
    WalCorruptError,
    WalDestinationError,
    WalError,
    WalFormatError,
    WalFullError,
    WalIOError,
    WalLockedError,
)
from aiorecover.wal import checkpoint, storage
from aiorecover.wal import format as fmt
from aiorecover.wal import instance as instances
from aiorecover.wal.checkpoint import CheckpointFile
from aiorecover.wal.directory import RING_GONE, Directory, Options
from aiorecover.wal.instances import instances as seen_from_outside
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import UNTOLD
from aiorecover.wal.storage import FileSystem
from aiorecover.wal.view import open_view
from tests.wal.rig import SLOT, Position, found, missing, read
from tests.wal.test_stream import Life

REPOSITORY = Path(__file__).parents[2]
MAX_BYTES = 64 * SLOT


def options(wal_dir: Path, *, instance: str | None = None, name: str | None = None, wait: float = 0.0) -> Options:
    return Options(wal_dir, SLOT, MAX_BYTES, 0, instance=instance, name=name, lock_timeout=wait)


@contextmanager
def opened(
    wal_dir: Path, *, instance: str | None = None, name: str | None = None, wait: float = 0.0
) -> Iterator[Directory]:
    made = open_directory(options(wal_dir, instance=instance, name=name, wait=wait))
    try:
        yield made
    finally:
        made.close()


def append(made: Directory, *payloads: bytes) -> None:
    for payload in payloads:
        made.ring.append(payload, payload)


def records(made: Directory) -> list[tuple[Position, bytes]]:
    return found(read(Reader(made.ring, bytes)))


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return tmp_path / "wal"


@contextmanager
def another_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code`` and has printed its first line."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


HOLD = """
    import sys
    from pathlib import Path
    from tests.wal.test_directory import append, open_directory, options

    made = open_directory(options(Path(sys.argv[1]), instance=sys.argv[2] or None))
    append(made, b"from the other process")
    print(made.path.name, flush=True)
    sys.stdin.read()
    made.close()
"""


class Restless(FileSystem):
    """On which a name never leads to the file that was opened by it."""

    def identity(self, path: Path) -> tuple[int, int]:
        return super().identity(path)[0], 0


# -- numbers and names -----------------------------------------------------------------------------------------------


def test_files_are_nobody_else_s_business(wal: Path) -> None:
    before = os.umask(0)
    try:
        with opened(wal) as made:
            append(made, b"secret")
            assert made.path == wal / "0"
            modes = {path.name: path.stat().st_mode & 0o777 for path in [wal, *wal.rglob("*")]}
    finally:
        os.umask(before)
    files = dict.fromkeys(["lock", "checkpoint", "ring", "retry", "dead", "lanes"], 0o600)
    assert modes == {"wal": 0o700, "0": 0o700} | files


def test_each_process_takes_the_first_free_number_and_with_it_the_backlog(wal: Path) -> None:
    with another_process(HOLD, wal, "") as first, another_process(HOLD, wal, "") as second:
        assert first.stdout is not None
        assert second.stdout is not None
        assert {first.stdout.readline().strip(), second.stdout.readline().strip()} == {"0", "1"}
        with opened(wal) as third:
            assert third.path == wal / "2"
            assert records(third) == []
        first.kill()
        first.wait()
        second.kill()
        second.wait()
        with opened(wal) as heir, opened(wal) as other:
            assert [heir.path, other.path] == [wal / "0", wal / "1"]
            expected = [((1, 1), b"from the other process")]
            assert records(heir) == records(other) == expected
            assert heir.ring.epoch == other.ring.epoch == 2
            assert heir.producer_id != other.producer_id


@pytest.mark.parametrize("instance", [None, "shop"])
def test_where_no_file_keeps_its_inode_a_directory_is_refused(wal: Path, instance: str | None) -> None:
    restless = dataclasses.replace(options(wal, instance=instance), file_system=Restless())
    with pytest.raises(WalIOError, match=rf"on which a file keeps its inode: '{wal}/.*/lock'$"):
        open_directory(restless)
    with opened(wal, instance=instance) as made:
        assert made.path == wal / (instance or "0")


def test_a_file_system_that_fails_when_files_are_closed_keeps_no_directory_locked(
    wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def fails(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    made = open_directory(options(wal))
    append(made, b"here")
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        made.close()
    with opened(wal) as following:
        assert following.path == made.path
        assert records(following) == [((1, 1), b"here")]


def test_a_named_instance_is_refused_while_another_process_has_it_and_says_who(wal: Path) -> None:
    with another_process(HOLD, wal, "shop") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "shop"
        with pytest.raises(WalLockedError, match=rf"stop it, or choose another .*/wal/shop pid={holder.pid}$"):
            open_directory(options(wal, instance="shop"))
        with opened(wal, instance="another"):
            pass
        holder.kill()
        holder.wait()
        with opened(wal, instance="shop") as made:
            assert records(made) == [((1, 1), b"from the other process")]


def test_a_named_instance_waits_for_its_predecessor(wal: Path) -> None:
    first = open_directory(options(wal, instance="shop"))
    timer = threading.Timer(0.2, first.close)
    timer.start()
    began = time.monotonic()
    with opened(wal, instance="shop", wait=30):
        assert 0.1 < time.monotonic() - began < 20
    timer.join()


def test_a_named_instance_waits_no_longer_than_it_was_told(wal: Path) -> None:
    with opened(wal, instance="shop"):
        began = time.monotonic()
        with pytest.raises(WalLockedError):
            open_directory(options(wal, instance="shop", wait=0.2))
        assert 0.15 < time.monotonic() - began < 10


def test_who_holds_a_named_instance_is_told_apart_from_this_very_process(
    wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(wal, instance="shop"):
        ours = rf"^this very process holds the instance directory: await stop\(\) of the earlier .* pid={os.getpid()}$"
        with pytest.raises(WalLockedError, match=ours):
            open_directory(options(wal, instance="shop"))
        monkeypatch.setattr(storage, "DESCRIPTORS", wal / "where the system does not tell")
        with pytest.raises(WalLockedError, match=r"^another process holds the instance directory: "):
            open_directory(options(wal, instance="shop"))


def test_a_holder_with_our_process_id_in_another_container_is_another_process(wal: Path) -> None:
    with opened(wal, instance="shop"):
        pass
    program = "import fcntl, sys; file = open(sys.argv[1], 'rb+'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True)"
    program += "; sys.stdin.read()"
    arguments = [sys.executable, "-I", "-S", "-c", program, str(wal / "shop" / "lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert (wal / "shop" / "lock").read_text().strip() == str(os.getpid())  # as we wrote it
        with pytest.raises(WalLockedError, match=rf"^another process holds .* pid={os.getpid()}$"):
            open_directory(options(wal, instance="shop"))
        holder.kill()


def test_who_waits_for_a_named_instance_sleeps_between_two_looks(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    flock = fcntl.flock

    def counted(descriptor: int, operation: int) -> None:
        nonlocal looks
        looks += 1
        flock(descriptor, operation)

    with opened(wal, instance="shop"):
        monkeypatch.setattr(fcntl, "flock", counted)
        with pytest.raises(WalLockedError):
            open_directory(options(wal, instance="shop", wait=0.1))
    assert looks <= 4


def test_all_numbers_taken_is_an_error(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MAX_INSTANCES", 2)
    with opened(wal), opened(wal), pytest.raises(WalLockedError, match=r"use another wal_dir path=.*/wal$"):
        open_directory(options(wal))


def test_a_lock_file_that_was_replaced_while_it_was_locked_does_not_count(wal: Path) -> None:
    with opened(wal, instance="shop") as first:
        append(first, b"taken")
        (wal / "shop" / "lock").unlink()
        with opened(wal, instance="shop") as second:  # it cannot know; the first one notices
            assert first.moved_away() == f"{wal / 'shop' / 'lock'}: replaced by another file"
            assert second.moved_away() is None


def test_a_lock_file_that_is_replaced_before_it_is_locked_is_opened_again(
    wal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would each hold a lock, on different files of one name."""
    flock = fcntl.flock
    calls = 0

    def replaced(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            (wal / "0" / "lock").unlink()
        if calls == 1:
            (wal / "0" / "lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with opened(wal) as made:
        assert calls == 3
        assert made.moved_away() is None
        assert made.path == wal / "0"


def test_a_file_system_without_locks_is_refused(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(WalIOError, match="use a file system with flock: No locks available") as caught:
        open_directory(options(wal))
    assert caught.value.errno == errno.ENOLCK


def test_a_holder_that_left_no_name_is_unknown(wal: Path) -> None:
    (wal / "shop").mkdir(parents=True)
    with (wal / "shop" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(WalLockedError, match=r"pid=unknown$"):
            open_directory(options(wal, instance="shop"))


def test_an_abandoned_directory_has_no_file_open_and_accepts_nothing(wal: Path) -> None:
    made = open_directory(options(wal))
    append(made, b"taken")
    made.ring.prepare_spare()
    made.abandon()
    with pytest.raises(WalError, match="closed"):
        append(made, b"x")
    assert [file.closed for file in made.files] == [True] * 6
    with opened(wal) as following:
        assert records(following) == [((1, 1), b"taken")]


def test_a_process_that_was_forked_closes_and_never_unlocks(wal: Path) -> None:
    """The child drops everything; the parent keeps the lock, publishes on, and nothing of it is harmed."""
    code = """
        import os, sys
        from pathlib import Path
        from aiorecover.errors import WalError, WalLockedError
        from tests.wal.test_directory import append, open_directory, options, records

        wal = Path(sys.argv[1])
        made = open_directory(options(wal, instance="shop"))
        append(made, b"before")
        made.ring.prepare_spare()
        child = os.fork()
        if child == 0:
            made.abandon()
            for payload in (b"small", b"large" * 2000):
                try:
                    append(made, payload)
                except WalError:
                    continue
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        try:
            open_directory(options(wal, instance="shop"))
        except WalLockedError:
            pass
        else:
            raise AssertionError("unlocked")
        append(made, b"behind", b"large" * 2000, b"next" * 2000)
        assert [record[:6] for _, record in records(made)] == [b"before", b"behind", b"largel", b"nextne"]
        print("kept", flush=True)
    """
    with another_process(code, wal) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (0, "kept")
    with opened(wal, instance="shop") as made:
        assert len(records(made)) == 4


def test_a_forked_child_that_outlives_its_parent_does_not_hold_the_lock(wal: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from tests.wal.test_directory import open_directory, options

        made = open_directory(options(Path(sys.argv[1]), instance="shop"))
        if os.fork() == 0:
            print("child", flush=True)
            sys.stdin.read()
            os._exit(0)
        os._exit(0)
    """
    with another_process(code, wal) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "child"
        process.wait()
        with opened(wal, instance="shop", wait=10):
            pass


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_symbolic_link_is_refused(wal: Path) -> None:
    real = wal.with_name("real")
    real.mkdir()
    wal.symlink_to(real)
    with pytest.raises(WalFormatError, match=r"symbolic link: name the directory itself path=.*/wal$"):
        open_directory(options(wal))
    assert list(real.iterdir()) == []


def test_an_instance_directory_in_the_place_of_its_wal_dir_is_refused_with_what_to_give(wal: Path) -> None:
    open_directory(options(wal, instance="pod-1")).close()
    before = sorted(path.name for path in (wal / "pod-1").iterdir())
    with pytest.raises(WalFormatError, match="give the directory above it") as refused:
        open_directory(options(wal / "pod-1"))
    assert str(refused.value).endswith(f" wal_dir={wal} instance='pod-1'")
    assert sorted(path.name for path in (wal / "pod-1").iterdir()) == before


@pytest.mark.parametrize("instance", [None, "0"])
def test_an_instance_directory_that_is_a_symbolic_link_is_refused(wal: Path, instance: str | None) -> None:
    real = wal.with_name("real")
    real.mkdir()
    wal.mkdir()
    (wal / "0").symlink_to(real)
    with pytest.raises(WalFormatError, match=r"symbolic link: name the directory itself path=.*/wal/0$"):
        open_directory(options(wal, instance=instance))
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "checkpoint", "ring"])
def test_a_file_that_is_a_symbolic_link_is_refused(wal: Path, name: str) -> None:
    victim = wal.with_name("victim")
    victim.write_bytes(b"somebody else's")
    (wal / "0").mkdir(parents=True)
    (wal / "0" / name).symlink_to(victim)
    with pytest.raises(WalIOError, match="put the file itself in the place of the symbolic link"):
        open_directory(options(wal))
    assert victim.read_bytes() == b"somebody else's"


def test_a_directory_in_the_place_of_a_file_is_refused(wal: Path) -> None:
    (wal / "0" / "lanes").mkdir(parents=True)
    with pytest.raises(WalIOError, match="put the file back that was in the place of this directory"):
        open_directory(options(wal))


def test_a_file_in_the_place_of_the_directory_is_refused(wal: Path) -> None:
    wal.write_bytes(b"a file")
    with pytest.raises(WalFormatError, match=r"wal_dir is not a directory: choose another path path=.*/wal$"):
        open_directory(options(wal))
    with pytest.raises(WalIOError):
        open_directory(options(wal / "below"))
    assert wal.read_bytes() == b"a file"


@pytest.mark.parametrize("foreign", ["notes.txt", "0", "data/table.db", "0/ring.bak", "0/lock/sub"])
def test_a_directory_of_another_program_is_refused_untouched(wal: Path, foreign: str) -> None:
    (wal / foreign).parent.mkdir(parents=True)
    (wal / foreign).write_bytes(b"precious")
    before = sorted(wal.rglob("*"))
    with pytest.raises(WalError) as caught:
        open_directory(options(wal))
    assert isinstance(caught.value, WalIOError if foreign == "0/lock/sub" else WalFormatError)
    assert sorted(wal.rglob("*")) == before
    assert (wal / foreign).read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["lost+found/#12", ".gitkeep", ".snapshot/hourly.0/0/ring", "0/.nfs0001", ".0/ring"])
def test_what_a_file_system_and_its_tools_keep_in_a_directory_is_left_alone(wal: Path, name: str) -> None:
    (wal / name).parent.mkdir(parents=True)
    (wal / name).write_bytes(b"theirs")
    for _ in range(2):
        with opened(wal) as made:
            assert made.path == wal / "0"
    assert (wal / name).read_bytes() == b"theirs"
    assert [one.path.name for one in seen_from_outside(wal)] == ["0"]


@pytest.mark.parametrize("file", ["ring", "checkpoint"])
def test_files_of_a_newer_version_are_refused_and_left_as_they_are(wal: Path, file: str) -> None:
    with opened(wal) as made:
        append(made, b"of the future")
    path = wal / "0" / file
    data = bytearray(path.read_bytes())
    data[8] = 2
    if file == "ring":
        data[60:64] = crc32(data[:60]).to_bytes(4, "little")
    else:
        body = bytes(data[28 : 28 + int.from_bytes(data[12:16], "little")])
        data[24:28] = crc32(body, crc32(bytes(data[:24]))).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(WalFormatError, match="newer aiorecover: upgrade to read it version=2 supported=1"):
        open_directory(options(wal))
    assert path.read_bytes() == data
    with pytest.raises(WalFormatError):  # and the lock was let go
        open_directory(options(wal, instance="0"))


def test_another_name_is_refused_and_names_the_remedy(wal: Path) -> None:
    with opened(wal, name="shop") as made:
        append(made, b"the shop's")
    with pytest.raises(WalDestinationError, match=r"use its name, or another .* stored='shop' name='bank'$"):
        open_directory(options(wal, name="bank"))
    with pytest.raises(WalDestinationError, match=r"use its name, or another .* stored='shop' name=None$"):
        open_directory(options(wal))
    with opened(wal, name="shop") as made:
        assert made.checkpoint.destination.name == "shop"
        assert len(records(made)) == 1


def test_a_directory_without_a_name_takes_the_first_one_it_is_given(wal: Path) -> None:
    with opened(wal) as made:
        assert made.checkpoint.destination.name is None
    with opened(wal, name="shop"):
        pass
    with pytest.raises(WalDestinationError):
        open_directory(options(wal, name="bank"))


def test_a_refused_opening_lets_go_of_the_lock(wal: Path) -> None:
    with opened(wal, instance="shop", name="shop"):
        pass
    for _ in range(3):
        with pytest.raises(WalDestinationError):
            open_directory(options(wal, instance="shop", name="bank"))
    with opened(wal, instance="shop", name="shop"):
        pass


def test_a_refused_opening_leaves_no_file_open(wal: Path) -> None:
    with opened(wal, name="shop"):
        pass
    with pytest.raises(WalDestinationError):
        open_directory(options(wal, name="bank"))
    assert [link for link in Path("/proc/self/fd").iterdir() if link.resolve().is_relative_to(wal)] == []


@pytest.mark.parametrize("part", ["path", "wal_dir", "parent"])
def test_an_opening_that_cannot_be_made_durable_lets_go_of_the_lock(
    wal: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    target = {"path": wal / "shop", "wal_dir": wal, "parent": wal.parent}[part]

    def refuse(_: object, path: Path) -> None:
        if path == target:
            raise WalIOError(5, "cannot flush the directory to the disk", str(path))

    monkeypatch.setattr(storage.FileSystem, "sync_directory", refuse)
    for _ in range(3):
        with pytest.raises(WalIOError):
            open_directory(options(wal, instance="shop"))
    monkeypatch.undo()
    with opened(wal, instance="shop"):
        pass


def test_a_lock_that_cannot_be_written_is_let_go(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise WalFullError("no room to write the file")

    monkeypatch.setattr(storage.StorageFile, "write", refuse)
    for _ in range(3):
        with pytest.raises(WalFullError):
            open_directory(options(wal, instance="shop"))
    monkeypatch.undo()
    with opened(wal, instance="shop"):
        pass


def test_every_new_name_is_flushed_from_the_directory_that_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(storage.FileSystem, "sync_directory", lambda _, path: flushed.append(path))
    with opened(tmp_path / "a" / "b" / "wal"):
        pass
    expected = {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "wal"}
    assert set(flushed) == expected | {tmp_path / "a" / "b" / "wal" / "0"}


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user who may not do everything; we are that already unless we are root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that another user may pass through (those of pytest are private)."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_directory_that_is_not_writable_is_refused(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)
    with as_nobody(), pytest.raises(WalIOError, match="cannot use the directory") as caught:
        open_directory(options(open_to_all / "wal"))
    open_to_all.chmod(0o755)
    assert caught.value.errno == 13
    assert str(caught.value.filename) == str(open_to_all / "wal")


def test_a_directory_in_which_no_instance_can_be_made_is_refused(open_to_all: Path) -> None:
    wal = open_to_all / "wal"
    wal.mkdir()
    if os.geteuid() == 0:
        os.chown(wal, 65534, 65534)
    wal.chmod(0o555)
    with as_nobody(), pytest.raises(WalIOError, match="cannot use the directory") as caught:
        open_directory(options(wal))
    wal.chmod(0o755)
    assert caught.value.errno == 13
    assert str(caught.value.filename) == str(wal / "0")


def test_a_directory_that_belongs_to_another_user_is_refused(open_to_all: Path) -> None:
    wal = open_to_all / "wal"
    wal.mkdir()
    wal.chmod(0o777)
    other = os.geteuid() == 0
    with as_nobody():
        if other:
            with pytest.raises(WalFormatError, match=r"another user: .*; choose your own path=.*/wal uid=0$"):
                open_directory(options(wal))
            assert list(wal.iterdir()) == []
            return
        with pytest.raises(WalError):  # without root, the one directory that surely is another user's
            open_directory(options(Path("/")))


# -- no room ---------------------------------------------------------------------------------------------------------

FILL = """
    import resource, sys
    from pathlib import Path
    from aiorecover.errors import WalFullError
    from tests.wal.test_directory import fill_until_full

    wal, limit = Path(sys.argv[1]), int(sys.argv[2])
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    fill_until_full(wal)
    print("well", flush=True)
"""


def fill_until_full(wal: Path) -> None:
    """Publish until there is no room, deliver some, go on; then open the full directory again."""
    with opened(wal) as made:
        quota = made.ring.spares.quota
        quota.limits = dataclasses.replace(quota.limits, free_bytes=None)  # do not ask: run into it
        accepted: list[bytes] = []
        reader = Reader(made.ring, bytes)
        with pytest.raises(WalFullError):
            publish_for_ever(made, accepted)
        with pytest.raises(
            WalFullError,
            match=r"(free disk space, or stop and move|raise the limit .*LimitFSIZE.* or lower wal_max_bytes) .*path=",
        ):
            made.ring.append(b"x" * 10_000, None)
        entries = read(reader)
        assert [entry[3] for entry in entries] == accepted
        assert len(accepted) > 50
        half = len(entries) // 2
        for slot, place, _, _ in entries[:half]:
            made.ring.settle(slot, [place])
        made.write_checkpoint(made.next_checkpoint())
        assert made.ring.recycle(made.checkpoint.watermark) > 0
        append(made, b"y" * 10_000)
    with opened(wal) as made:
        assert [record for _, record in records(made)] == [*accepted[half:], b"y" * 10_000]
        assert missing(made.ring) == []


def publish_for_ever(made: Directory, accepted: list[bytes]) -> None:
    while len(accepted) < 10_000:
        append(made, b"%d" % len(accepted) * 100)
        accepted.append(b"%d" % len(accepted) * 100)


@pytest.mark.parametrize("name", ["lanes", "checkpoint"])
def test_room_that_an_allocation_takes_before_it_fails_refuses_no_slot(
    wal: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, allocate = threading.Event(), storage.StorageFile.allocate

    def fail(self: storage.StorageFile, offset: int, length: int) -> None:
        if self.path.name != name:
            return allocate(self, offset, length)
        taken.set()
        time.sleep(0.2)  # while the others look for room
        taken.clear()
        raise WalFullError("no room to grow the file")

    with opened(wal) as made:
        quota = made.ring.spares.quota
        quota.limits = dataclasses.replace(quota.limits, free_bytes=lambda: 0 if taken.is_set() else 1 << 30)
        monkeypatch.setattr(storage.StorageFile, "allocate", fail)
        monkeypatch.setattr(type(made.lanes), "_wants_blocks", property(lambda _: name == "lanes"))
        monkeypatch.setattr(storage.StorageFile, "disk_bytes", lambda _: 0)
        made.checkpoint_file.wants_room = name == "checkpoint"
        keeper = threading.Thread(target=made.prepare_spares)
        keeper.start()
        assert taken.wait(10)
        append(made, b"first")
        keeper.join()


def run_fill(*command: str, wal: Path, limit: int) -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-c", textwrap.dedent(FILL), str(wal), str(limit)]
    return subprocess.run([*command, *code], cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_file_that_may_not_grow_any_more_is_a_full_ring(wal: Path) -> None:
    done = run_fill(wal=wal, limit=20 * SLOT)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


def test_a_full_file_system_is_a_full_ring(tmp_path: Path) -> None:
    """On a tiny tmpfs where mounts are permitted; elsewhere the limit of the file size plays the disk."""
    mount = 'mount -t tmpfs -o size=512k none "$0" && exec "$@"'
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        command = [*unshare, "sh", "-c", mount, str(tmp_path)]
        if shutil.which("unshare") and succeeds([*command, "true"]):
            done = run_fill(*command, wal=tmp_path / "wal", limit=0)
            break
    else:
        done = run_fill(wal=tmp_path / "wal", limit=20 * SLOT)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


def test_no_room_for_the_first_files_is_said_and_leaves_no_lock(wal: Path) -> None:
    """Files of length zero can still be made: it is the checkpoint that does not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal.mkdir()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        for _ in range(3):
            with pytest.raises(WalFullError, match="no room to grow the file: raise the limit for the size of a file"):
                open_directory(options(wal, instance="shop"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with opened(wal, instance="shop") as made:
        assert made.ring.epoch == 1


# -- reopening -------------------------------------------------------------------------------------------------------


def test_each_opening_has_a_higher_epoch_used_or_not(wal: Path) -> None:
    producers = set()
    for epoch in range(1, 31):
        with opened(wal) as made:
            assert made.ring.epoch == made.checkpoint.epoch == epoch
            producers.add(fmt.directory_of(made.checkpoint.producer_id))
            if epoch % 3 == 0:
                append(made, b"%d" % epoch)
    assert len(producers) == 1
    with opened(wal) as made:
        assert records(made) == [((epoch, 1), b"%d" % epoch) for epoch in range(3, 31, 3)]


def test_the_epoch_is_in_both_copies_before_the_first_record(wal: Path) -> None:
    """I5."""
    for _ in range(3):
        with opened(wal) as made:
            data = (wal / "0" / "checkpoint").read_bytes()
            copies = [checkpoint.unpack(data[start:]).checkpoint for start in (0, checkpoint.COPY_BYTES)]
            assert [copy.epoch for copy in copies if copy is not None] == [made.ring.epoch] * 2


def test_a_directory_that_was_opened_too_often_is_refused(wal: Path) -> None:
    with opened(wal) as made:
        producer_id = made.checkpoint.producer_id
        last = checkpoint.Checkpoint(producer_id=producer_id, epoch=fmt.EPOCH_MAX, slot_bytes=SLOT)
        made.checkpoint_file.write_both(last)
    with pytest.raises(WalCorruptError, match=rf"opened too often: drain it and start .* epoch={fmt.EPOCH_MAX + 1}$"):
        open_directory(options(wal))


@pytest.mark.parametrize("how", ["zero", "noise", "gone"])
def test_both_checkpoints_destroyed_are_rebuilt_from_the_slots_with_an_epoch_above_all(wal: Path, how: str) -> None:
    for number in range(5):
        with opened(wal) as made:
            append(made, *[b"%d" % number * 900] * 12)
            producer_id = made.checkpoint.producer_id
    path = wal / "0" / "checkpoint"
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes((b"\0" if how == "zero" else b"\xa5") * path.stat().st_size)
    with open_other_size(wal) as made:
        assert (made.ring.epoch, made.ring.slot_bytes) == (6 + UNTOLD, SLOT)
        assert fmt.directory_of(made.checkpoint.producer_id) == fmt.directory_of(producer_id)
        assert [position for position, _ in records(made)] == [(e, s) for e in range(1, 6) for s in range(1, 13)]
        assert missing(made.ring) == []
    with opened(wal) as made:
        assert made.ring.epoch == 7 + UNTOLD


@contextmanager
def open_other_size(wal: Path) -> Iterator[Directory]:
    """With an option for the slot size that differs from what is stored: the stored one wins."""
    made = open_directory(Options(wal, 8 * SLOT, MAX_BYTES, 0))
    try:
        yield made
    finally:
        made.close()


def test_one_checkpoint_destroyed_is_no_event(wal: Path) -> None:
    for start in (0, checkpoint.COPY_BYTES):
        with opened(wal, name="shop") as made:
            append(made, b"waits")
            epoch = made.ring.epoch
        with (wal / "0" / "checkpoint").open("r+b") as file:
            file.seek(start)
            file.write(b"\xa5" * 100)
        with opened(wal, name="shop") as made:
            assert made.ring.epoch == epoch + 1
            assert made.checkpoint.destination.name == "shop"


def test_a_damaged_checkpoint_over_a_damaged_ring_is_refused_and_kept(wal: Path) -> None:
    with opened(wal) as made:
        append(made, b"waits")
    for name in ("checkpoint", "ring"):
        path = wal / "0" / name
        path.write_bytes(b"\xa5" * path.stat().st_size)
    with pytest.raises(WalCorruptError, match="restore them from a copy"):
        open_directory(options(wal))
    assert set((wal / "0" / "ring").read_bytes()) == {0xA5}


def test_a_ring_with_some_readable_slots_under_damaged_checkpoints_is_refused_if_a_slot_is_damaged_too(
    wal: Path,
) -> None:
    """The damaged one may hold the highest epoch: a position could be used twice (I5)."""
    with opened(wal) as made:
        append(made, *[b"f" * 9000] * 3)
    path = wal / "0" / "checkpoint"
    path.write_bytes(b"\xa5" * path.stat().st_size)
    with (wal / "0" / "ring").open("r+b") as file:
        for start in (SLOT, 2 * SLOT - fmt.RESERVED):
            file.seek(start)
            file.write(b"\xa5" * fmt.RESERVED)
    before = (wal / "0" / "ring").read_bytes()
    with pytest.raises(WalCorruptError, match="restore them from a copy"):
        open_directory(options(wal))
    assert (wal / "0" / "ring").read_bytes() == before


def test_slots_of_which_nothing_can_be_read_are_told_at_each_opening_and_left_alone(
    wal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(wal) as made:
        append(made, *[b"f" * 9000] * 3)
    assert "of some slots" not in caplog.text
    with (wal / "0" / "ring").open("r+b") as file:
        for start in (SLOT, 2 * SLOT - fmt.RESERVED):
            file.seek(start)
            file.write(b"\xa5" * fmt.RESERVED)
    for _ in range(2):
        caplog.clear()
        with opened(wal) as found:
            assert found.ring.damaged_slots == [1]
            append(found, *[b"g" * 9000] * 3)
        assert f"they are left as they are path={wal / '0' / 'ring'} slots=1" in caplog.text
    assert (wal / "0" / "ring").read_bytes()[SLOT : SLOT + fmt.RESERVED] == b"\xa5" * fmt.RESERVED


@pytest.mark.parametrize("content", [b"precious", b"precious" * SLOT], ids=["short", "long"])
def test_a_ring_that_nobody_can_read_is_never_taken_for_a_new_one(wal: Path, content: bytes) -> None:
    (wal / "0").mkdir(parents=True)
    (wal / "0" / "ring").write_bytes(content)
    with pytest.raises(WalCorruptError, match="restore them from a copy"):
        open_directory(options(wal))
    assert (wal / "0" / "ring").read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, checkpoint.COPY_BYTES + 30])
def test_a_first_opening_that_was_cut_off_is_simply_repeated(wal: Path, size: int) -> None:
    """The first checkpoint goes to the second place; until it is whole, nothing was accepted."""
    with opened(wal):
        pass
    path = wal / "0" / "checkpoint"
    whole = bytearray(path.read_bytes())
    whole[: checkpoint.COPY_BYTES] = bytes(checkpoint.COPY_BYTES)
    path.write_bytes(whole[:size])
    for name in ("ring", "retry", "dead", "lanes"):
        (wal / "0" / name).write_bytes(b"")
    with opened(wal) as made:
        assert made.ring.epoch == 1
        append(made, b"first")


def test_the_stored_slot_size_wins(wal: Path) -> None:
    with opened(wal) as made:
        append(made, b"f" * 9000, b"g" * 9000)
    with open_other_size(wal) as made:
        assert made.ring.slot_bytes == SLOT
        append(made, b"h" * 9000)
        assert [record[:1] for _, record in records(made)] == [b"f", b"g", b"h"]


def test_two_rings_copied_together_are_refused(wal: Path) -> None:
    for instance in ("one", "two"):
        with opened(wal, instance=instance) as made:
            append(made, b"f" * 9000, b"g" * 9000)
    data = (wal / "two" / "ring").read_bytes()
    with (wal / "one" / "ring").open("r+b") as file:
        file.seek(SLOT)
        file.write(data[SLOT:])
    with pytest.raises(WalCorruptError, match="several producers"):
        open_directory(options(wal, instance="one"))


def test_a_checkpoint_advances_and_recycles_on_real_files(wal: Path) -> None:
    with opened(wal) as made:
        reader = Reader(made.ring, bytes)
        for _ in range(30):
            append(made, *[b"f" * 700] * 20)
            for slot, place, _, _ in read(reader):
                made.ring.settle(slot, [place])
            made.write_checkpoint(made.next_checkpoint())
            made.ring.recycle(made.checkpoint.watermark)
        assert (wal / "0" / "ring").stat().st_size <= 4 * SLOT
        append(made, b"last")
    with opened(wal) as made:
        assert records(made) == [((1, 601), b"last")]
        assert made.checkpoint.watermark == fmt.position(1, 600)


# -- files that go away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "checkpoint", "ring"])
def test_a_file_that_was_removed_or_replaced_is_noticed(wal: Path, name: str) -> None:
    with opened(wal) as made:
        assert made.moved_away() is None
        path = wal / "0" / name
        path.rename(wal.with_name("elsewhere"))
        assert made.moved_away() == f"{path}: No such file or directory"
        path.write_bytes(b"")
        assert made.moved_away() == f"{path}: replaced by another file"
        path.unlink()
        wal.with_name("elsewhere").rename(path)
        assert made.moved_away() is None


def test_a_directory_that_was_moved_is_noticed(wal: Path) -> None:
    with opened(wal) as made:
        (wal / "0").rename(wal / "old")
        told = made.moved_away()
        assert told is not None
        assert "No such file or directory" in told


def test_the_producer_s_64_bits_are_13_characters() -> None:
    assert fmt.producer_text(0) == "a" * 13
    assert fmt.producer_text(2**64 - 1) == "7777777777776"
    assert fmt.producer_text(0x1122334455667788) == "cerdgrcvmz3yq"


# -- a ring that is gone ---------------------------------------------------------------------------------------------


def told_gone(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the file ring is gone" in record.getMessage()]


@pytest.mark.parametrize("lives", [1, 2])
def test_a_ring_that_was_removed_behind_a_death_is_told_though_no_checkpoint_knows_of_its_records(
    wal: Path, caplog: pytest.LogCaptureFixture, lives: int
) -> None:
    for _ in range(lives):
        with opened(wal) as made:
            append(made, b"accepted")
    assert not told_gone(caplog)
    (wal / "0" / "ring").unlink()
    with opened(wal) as made:
        assert made.ring.epoch == lives + 1
    assert told_gone(caplog) == [f"{RING_GONE} path={wal / '0' / 'ring'}"]
    caplog.clear()
    with opened(wal):
        assert not told_gone(caplog)


def test_a_ring_that_is_removed_when_nothing_waited_is_not_missed(wal: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(wal) as made:
        append(made, b"delivered")
        reader = Reader(made.ring, bytes)
        for slot, place, _, _ in read(reader):
            made.ring.settle(slot, [place])
        reader.close()
        made.write_checkpoint(made.next_checkpoint(closed=True))
    (wal / "0" / "ring").unlink()
    with opened(wal):
        assert not told_gone(caplog)


def what_stands_in(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock"}


@pytest.mark.parametrize("gone", [["ring"], ["ring", "retry"], ["retry", "dead"], ["lanes"]])
def test_an_opening_that_is_refused_for_its_name_makes_no_file_in_the_place_of_one_that_is_gone(
    wal: Path, caplog: pytest.LogCaptureFixture, gone: list[str]
) -> None:
    """The next one has to see it, and so does who looks from outside."""
    with opened(wal, name="orders") as made:
        append(made, b"accepted")
    for name in gone:
        (wal / "0" / name).unlink()
    left = what_stands_in(wal / "0")
    for _ in range(2):
        with pytest.raises(WalDestinationError), opened(wal, name="another"):
            pass
        assert what_stands_in(wal / "0") == left
    with open_view(wal / "0") as view:
        assert view.ring_gone == ("ring" in gone)
    caplog.clear()
    with opened(wal, name="orders") as made:
        assert made.ring.epoch == 2
    assert bool(told_gone(caplog)) == ("ring" in gone)


@pytest.mark.parametrize(
    "gone", [["checkpoint", "ring"], ["checkpoint", "ring", "lanes"], ["checkpoint", "ring", "dead"]]
)
def test_an_opening_that_is_refused_for_what_is_gone_makes_nothing_in_its_place(wal: Path, gone: list[str]) -> None:
    with opened(wal) as made:
        append(made, b"accepted")
        made.prepare_spares()
    for name in gone:
        (wal / "0" / name).unlink()
    left = what_stands_in(wal / "0")
    for _ in range(2):
        with pytest.raises(WalCorruptError, match="the checkpoint and the ring are gone or hold nothing"), opened(wal):
            pass
        assert what_stands_in(wal / "0") == left


def test_a_directory_from_which_files_are_gone_is_read_as_if_they_were_empty(wal: Path) -> None:
    with opened(wal) as made:
        append(made, *[b"%d" % number for number in range(9)])
        made.write_checkpoint(made.next_checkpoint())
    for name in ("checkpoint", "retry", "dead"):
        (wal / "0" / name).unlink()
    with opened(wal) as made:
        assert [record for _, record in records(made)] == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("replaced", ["", "lock", "checkpoint"])
def test_the_last_checkpoint_is_written_only_where_lock_and_checkpoint_are_still_ours(wal: Path, replaced: str) -> None:
    with opened(wal) as made:
        (path,) = {file.path.parent for file in (made.files.lock, made.files.checkpoint)}
        if replaced:
            (path / "aside").write_bytes((path / replaced).read_bytes())
            (path / "aside").replace(path / replaced)
        before = _generation(made)
        made.write_end(made.next_checkpoint(closed=True))
        assert (_generation(made) > before) is (not replaced)


def _generation(made: Directory) -> int:
    """Of the newer copy of the checkpoint."""
    return max(copy.generation for copy in CheckpointFile(made.files.checkpoint).copies)


@pytest.mark.parametrize("rewritten", [False, True])
def test_both_copies_of_the_checkpoint_know_that_copies_count(*, rewritten: bool) -> None:
    """Else with one of them lost neither these nor their originals would count, once those are recycled."""
    life = Life()
    life.move()
    if rewritten:
        life.make_anew(life.copy_anew())
    one, other = (copy.checkpoint for copy in CheckpointFile(life.opened.disk.checkpoint).copies)
    assert one is not None
    assert other is not None
    assert one.moved == other.moved == life.opened.ring.moved_up_to
    assert one.retry.flushed == other.retry.flushed
