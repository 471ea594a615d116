"""Each call of the ring to the operating system, made to the real one; each error as an operator reads it."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.ring.files import Files, Mapping
from tests.faults.scene import mounting, play, small_disk

PAGE = 4096
MIB = 1 << 20
CANNOT_RESERVE = [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS]
NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]

Refusal = Callable[..., None]


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def fd(files: Files, tmp_path: Path) -> Iterator[int]:
    opened = files.open(tmp_path / "ring")
    yield opened
    files.close(opened)


def refusal(number: int, asked: list[tuple[object, ...]] | None = None) -> Refusal:
    """A system call that fails."""

    def call(*arguments: object) -> None:
        if asked is not None:
            asked.append(arguments)
        raise OSError(number, os.strerror(number))

    return call


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def reserved(path: Path) -> bool:
    """Whether every byte of a file has a block of its own."""
    return path.stat().st_blocks * 512 >= path.stat().st_size


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_made_private_and_not_inherited(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "lock")
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)
    files.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_is_not_to_be_made_is_missed(files: Files, tmp_path: Path) -> None:
    with pytest.raises(WalIOError) as caught:
        files.open(tmp_path / "ring", read_only=True)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "ring"))
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_a_file_opened_for_reading_is_not_written(files: Files, tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"as it was")
    fd = files.open(tmp_path / "ring", read_only=True)
    assert files.read(fd, 3, 2) == b"it"
    with pytest.raises(WalIOError):
        files.write(fd, 0, b"else")
    files.close(fd)


def test_a_link_or_a_directory_in_the_place_of_a_file_is_refused(files: Files, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to("theirs")
    (tmp_path / "directory").mkdir()
    for use in (files.open, files.read_file):
        with pytest.raises(WalIOError, match="in the place of this symbolic link") as caught:
            use(tmp_path / "link")
        assert caught.value.errno == errno.ELOOP
    with pytest.raises(WalIOError, match="move this directory away"):
        files.open(tmp_path / "directory")


def test_whole_bytes_are_written_and_read_however_few_the_system_takes_at_a_time(
    files: Files, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread, data = os.pwrite, os.pread, bytes(range(256)) * 3
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:100], offset))
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 100), offset))
    files.write(fd, 1000, memoryview(data).cast("Q"))  # any buffer
    assert files.read(fd, 1000, len(data)) == data
    assert files.read(fd, 1000, 2 * len(data)) == data, "the file ends there"
    assert files.read(fd, 5000, 10) == b""
    assert files.size(fd) == 1000 + len(data)


def test_a_file_is_known_by_its_inode_and_its_names(files: Files, fd: int, tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    found = ring.stat()
    assert files.identity(fd) == (found.st_dev, found.st_ino)
    assert (files.links(fd), files.same_file(fd, ring)) == (1, True)
    ring.rename(tmp_path / "away")
    (tmp_path / "other").write_bytes(b"")
    ring.symlink_to("away")
    assert not files.same_file(fd, ring), "a link is no file of ours"
    ring.unlink()
    assert not files.same_file(fd, ring)
    assert not files.same_file(fd, tmp_path / "other" / "ring"), "a file where the directory was"
    assert not files.same_file(fd, tmp_path / "other")
    assert files.links(fd) == 1
    (tmp_path / "away").unlink()
    assert files.links(fd) == 0


def test_a_lock_is_held_by_one_open_file(files: Files, fd: int, tmp_path: Path) -> None:
    other = files.open(tmp_path / "ring")
    assert files.lock(fd)
    assert not files.lock(other)
    files.close(fd)
    assert files.lock(other)
    files.close(other)


def test_a_file_system_without_locks_is_named(files: Files, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", refusal(errno.ENOLCK))
    with pytest.raises(WalIOError, match="use a file system that has flock"):
        files.lock(fd)


def test_a_file_is_replaced_by_one_that_is_flushed(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync, seen = tmp_path / "checkpoint", os.fsync, []
    path.write_bytes(b"old")

    def look(fd: int) -> None:
        seen.append((os.fstat(fd).st_ino, os.fstat(fd).st_size, path.read_bytes()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", look)
    files.replace_file(path, b"and new")
    assert seen[0] == (path.stat().st_ino, 7, b"old"), "the new file was flushed before it had the name"
    assert (seen[1][0], seen[1][2]) == (tmp_path.stat().st_ino, b"and new"), "the name was flushed"
    assert (len(seen), os.listdir(tmp_path)) == (2, ["checkpoint"])  # noqa: PTH208
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_replacement_that_a_killed_process_left_is_overwritten(files: Files, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.new").write_bytes(b"half of what was to be")
    files.replace_file(tmp_path / "checkpoint", b"whole")
    assert files.read_file(tmp_path / "checkpoint") == b"whole"
    assert files.names(tmp_path) == ["checkpoint"]


def test_a_replacement_that_cannot_be_flushed_leaves_the_old_file(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", refusal(errno.EIO))
    with pytest.raises(WalIOError):
        files.replace_file(tmp_path / "checkpoint", b"new")
    assert (tmp_path / "checkpoint").read_bytes() == b"old"
    assert files.names(tmp_path) == ["checkpoint"]


def test_a_directory_and_its_parents_are_made_durable(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, flushed = os.fsync, []

    def look(fd: int) -> None:
        flushed.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", look)
    made = tmp_path / "a" / "b" / "wal"
    files.make_directory(made)
    assert made.stat().st_mode & 0o7777 == 0o700
    assert {one.stat().st_ino for one in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")} <= set(flushed)
    made.chmod(0o750)
    files.make_directory(made)
    assert made.stat().st_mode & 0o7777 == 0o750, "what is there stays"


def test_a_directory_cannot_be_made_in_the_place_of_a_file(files: Files, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "wal"):
        with pytest.raises(WalIOError, match="choose another path: a file stands where"):
            files.make_directory(path)


def test_a_file_system_that_cannot_flush_a_directory_is_let_be(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refusal(errno.EINVAL))
    files.flush_directory(tmp_path)
    monkeypatch.setattr(os, "fsync", refusal(errno.EIO))
    with pytest.raises(WalIOError, match="then stop and start again"):
        files.flush_directory(tmp_path)


# -- room ------------------------------------------------------------------------------------------------------------


def test_reserved_room_has_blocks_and_keeps_what_stands_there(files: Files, fd: int, tmp_path: Path) -> None:
    files.write(fd, 5000, b"kept")
    files.allocate(fd, PAGE, MIB)
    assert files.size(fd) == PAGE + MIB
    assert files.read(fd, 5000, 5) == b"kept\0"
    assert blocks(fd) >= MIB


@pytest.mark.parametrize("number", CANNOT_RESERVE, ids=errno.errorcode.get)
def test_a_volume_that_cannot_reserve_gets_zeros_around_the_data(
    files: Files, fd: int, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "posix_fallocate", refusal(number, asked))
    kept = {10: b"before", PAGE + 5: b"in the first step", 2 * MIB + 77: b"in the third"}
    for offset, data in kept.items():
        files.write(fd, offset, data)
    size = 2 * MIB + PAGE
    files.allocate(fd, PAGE, size)
    expected = bytearray(PAGE + size)
    for offset, data in kept.items():
        expected[offset : offset + len(data)] = data
    assert (tmp_path / "ring").read_bytes() == expected
    assert reserved(tmp_path / "ring")
    files.allocate(fd, PAGE + size, PAGE)
    assert (tmp_path / "ring").read_bytes() == expected + bytes(PAGE)
    assert len(asked) == 1, "it is not tried again with this file"


def test_another_file_is_asked_again(files: Files, fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "posix_fallocate", refusal(errno.EINVAL, asked))
    files.allocate(fd, 0, PAGE)
    files.close(fd)
    other = files.open(tmp_path / "other")
    assert other == fd, "the system gives the number again"
    files.allocate(other, 0, PAGE)
    assert len(asked) == 2
    files.close(other)


def test_a_failing_disk_is_no_file_system_that_cannot_reserve(
    files: Files, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refusal(errno.EIO))
    with pytest.raises(WalIOError) as caught:
        files.allocate(fd, 0, PAGE)
    assert caught.value.errno == errno.EIO
    assert files.size(fd) == 0


def test_room_is_given_back_and_reads_as_zeros(files: Files, fd: int) -> None:
    files.write(fd, 0, b"\xff" * (16 * PAGE))
    before = blocks(fd)
    assert files.give_back(fd, 4 * PAGE, 8 * PAGE)
    assert blocks(fd) <= before - 8 * PAGE
    assert files.read(fd, 0, 20 * PAGE) == b"\xff" * (4 * PAGE) + bytes(8 * PAGE) + b"\xff" * (4 * PAGE)


def test_space_that_the_system_does_not_give_back_is_no_error(files: Files, fd: int) -> None:
    files.write(fd, 0, b"\xff" * PAGE)
    assert not files.give_back(fd, 0, 0), "Linux says EINVAL"
    assert files.read(fd, 0, PAGE) == b"\xff" * PAGE


def test_a_read_only_file_gives_nothing_back(files: Files, fd: int, tmp_path: Path) -> None:
    read_only = files.open(tmp_path / "ring", read_only=True)
    with pytest.raises(WalIOError) as caught:
        files.give_back(read_only, 0, PAGE)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path / "ring"))
    files.close(read_only)


# -- mappings --------------------------------------------------------------------------------------------------------


def mapped(files: Files, fd: int, pages: int = 8) -> Mapping:
    files.allocate(fd, 0, (pages + 1) * PAGE)
    return files.map(fd, PAGE, pages * PAGE)


def test_bytes_and_words_are_the_file(files: Files, fd: int) -> None:
    mapping = mapped(files, fd)
    assert (len(mapping.data), len(mapping.view), len(mapping.words)) == (8 * PAGE, 8 * PAGE, PAGE)
    mapping.words[3] = 0x0123456789ABCDEF
    mapping.data[100:103] = b"abc"
    expected = (0x0123456789ABCDEF).to_bytes(8, sys.byteorder)
    assert mapping.data[24:32] == expected == files.read(fd, PAGE + 24, 8)
    files.write(fd, PAGE + 101, b"X")
    assert mapping.data[100:103] == bytes(mapping.view[100:103]) == b"aXc"
    mapping.close()
    assert files.read(fd, PAGE + 100, 3) == b"aXc"


def in_memory(path: Path) -> int:
    """Bytes of the file's mappings that this process has in memory."""
    found, after = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            after = line.endswith(str(path))
        elif after and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_whole_pages_leave_the_memory_and_keep_their_bytes(files: Files, fd: int, tmp_path: Path) -> None:
    mapping = mapped(files, fd)
    for page in range(8):
        mapping.words[page * PAGE // 8] = page + 1
    assert in_memory(tmp_path / "ring") == 8 * PAGE
    mapping.forget(PAGE + 1, 5 * PAGE)  # four whole pages are within
    assert in_memory(tmp_path / "ring") == 4 * PAGE
    mapping.forget(10, 100)  # none is
    assert in_memory(tmp_path / "ring") == 4 * PAGE
    assert [mapping.words[page * PAGE // 8] for page in range(8)] == list(range(1, 9))
    mapping.close()
    assert in_memory(tmp_path / "ring") == 0


def test_a_mapping_is_closed_while_a_part_is_in_use(files: Files, fd: int) -> None:
    mapping = mapped(files, fd)
    part = mapping.view[:3]
    part[:] = b"abc"
    mapping.close()
    mapping.close()
    assert part.tobytes() == b"abc"


def test_a_mapping_keeps_no_lock(files: Files, fd: int, tmp_path: Path) -> None:
    assert files.lock(fd)
    mapping = mapped(files, fd)
    files.close(fd)
    other = files.open(tmp_path / "ring")
    assert files.lock(other)
    mapping.words[0] = 1
    files.close(other)
    mapping.close()


def test_a_place_after_the_end_is_not_mapped(files: Files, fd: int) -> None:
    files.set_size(fd, 2 * PAGE)
    with pytest.raises(WalIOError, match="the file was cut") as caught:
        files.map(fd, PAGE, 2 * PAGE)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(WalIOError):
        files.map(fd, 100, PAGE)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NO_ROOM, ids=errno.errorcode.get)
def test_no_room_and_a_failing_disk_are_different_errors(
    files: Files, fd: int, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pwrite", "posix_fallocate", "ftruncate", "open"):
        monkeypatch.setattr(os, name, refusal(number))
    calls: list[Callable[[], object]] = [
        lambda: files.write(fd, 0, b"x"),
        lambda: files.allocate(fd, 0, PAGE),
        lambda: files.set_size(fd, PAGE),
        lambda: files.open(tmp_path / "other"),
        lambda: files.replace_file(tmp_path / "other", b"x"),
    ]
    for call in calls:
        with pytest.raises(WalFullError, match=f"^no room to .*: .* path={tmp_path}"):
            call()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_failed_flush_has_lost_something_whatever_it_says(
    files: Files, fd: int, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.flush(fd)
    monkeypatch.setattr(os, "fdatasync", refusal(number))
    with pytest.raises(WalIOError, match="cannot flush the file to the disk: check the disk, then stop") as caught:
        files.flush(fd)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "ring"))


def test_a_closed_descriptor_is_an_error_of_ours(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "ring")
    files.close(fd)
    files.close(fd)
    with pytest.raises(WalIOError) as caught:
        files.read(fd, 0, 1)
    assert caught.value.errno == errno.EBADF


def test_the_limit_of_the_size_of_a_file_is_named(files: Files, fd: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, hard))
    try:
        with pytest.raises(WalFullError, match="ulimit -f"):
            files.allocate(fd, 0, 2 * PAGE)
        with pytest.raises(WalFullError, match="ulimit -f"):
            files.write(fd, 0, bytes(2 * PAGE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_limit_of_open_files_is_named(files: Files, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(WalIOError, match="ulimit -n"):
            files.open(tmp_path / "ring")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def fill_the_disk(place: Path) -> None:
    """On a tmpfs of 1 MiB: what does not fit is an error, never a signal, and harms nothing."""
    files = Files()
    fd = files.open(place / "ring")
    files.replace_file(place / "checkpoint", b"old")
    files.allocate(fd, 0, 64 * PAGE)
    mapping = files.map(fd, 0, 64 * PAGE)
    mapping.data[:4] = b"kept"
    assert files.volume(place)[0] < files.volume(place)[1] == MIB
    for able in (True, False):
        with pytest.raises(WalFullError, match="free disk space"):
            files.allocate(fd, 64 * PAGE, MIB)
        with pytest.raises(WalFullError, match="free disk space"):
            files.write(fd, 64 * PAGE, bytes(MIB))
        with pytest.raises(WalFullError, match="free disk space"):
            files.replace_file(place / "checkpoint", bytes(MIB))
        if able:
            setattr(os, "posix_fallocate", refusal(errno.EOPNOTSUPP))  # noqa: B010
    assert sorted(files.names(place)) == ["checkpoint", "ring"]
    assert files.read_file(place / "checkpoint") == b"old"
    assert mapping.data[:4] == b"kept"
    free = files.volume(place)[0]
    files.set_size(fd, 64 * PAGE)
    assert files.give_back(fd, 32 * PAGE, 32 * PAGE)
    assert files.volume(place)[0] >= free + 32 * PAGE
    assert mapping.data[:4] == b"kept"
    assert files.file_system(place) == "tmpfs"


def test_a_full_disk(tmp_path: Path) -> None:
    play(fill_the_disk, tmp_path, prefix=small_disk(tmp_path))


async def use_names_with_spaces(place: Path) -> None:
    assert Files().file_system(place / "a b" / "c") == "tmpfs", "the innermost mount is the one"
    assert Files().file_system(place / "a b" / "proc" / "self") == "proc"


def test_the_innermost_mount_tells_the_file_system(tmp_path: Path) -> None:
    command = 'mkdir "$0/a b" && mount -t tmpfs none "$0/a b" && mkdir "$0/a b/c" "$0/a b/proc"'
    command += ' && mount --bind /proc "$0/a b/proc"'
    play(use_names_with_spaces, tmp_path, prefix=mounting(command, tmp_path))


async def use_a_file_system_without_holes(place: Path) -> None:
    files = Files()
    fd = files.open(place / "ring")
    files.write(fd, 0, b"kept")
    files.allocate(fd, 0, 4 * PAGE)
    assert files.read(fd, 0, 4 * PAGE) == b"kept".ljust(4 * PAGE, b"\0")
    assert not files.give_back(fd, 0, 4 * PAGE)
    assert files.read(fd, 0, 4) == b"kept"
    assert files.file_system(place) == "ramfs"


def test_a_file_system_without_reservation_and_holes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("this kernel lets only root mount a ramfs")
    play(use_a_file_system_without_holes, tmp_path, prefix=mounting('mount -t ramfs none "$0"', tmp_path))


# -- the machine -----------------------------------------------------------------------------------------------------


def test_file_systems_are_named(files: Files, tmp_path: Path) -> None:
    assert files.file_system(Path("/proc/self")) == "proc"
    assert files.file_system(tmp_path) not in {"", "proc"}


def test_a_machine_without_proc_tells_no_file_system(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.ring.files.MOUNTS", Path("/nowhere/mountinfo"))
    assert files.file_system(Path("/")) == ""


def test_the_boot_has_an_id_and_a_clock(files: Files) -> None:
    assert files.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with Path("/proc/uptime").open(encoding="ascii") as file:
        assert abs(files.boot_ms() / 1000 - float(file.read().split()[0])) < 5


def test_the_volume_is_counted_for_us(files: Files, tmp_path: Path) -> None:
    free, total = files.volume(tmp_path)
    found = os.statvfs(tmp_path)
    assert total == found.f_blocks * found.f_frsize
    assert abs(free - found.f_bavail * found.f_frsize) < 256 * MIB, "others write meanwhile"
    with pytest.raises(WalIOError):
        files.volume(tmp_path / "missing")


FORBIDDEN = """\
import os, sys
from pathlib import Path
from aiorecover.errors import WalIOError
from aiorecover.ring.files import Files
if os.geteuid() == 0:  # who may read everything
    os.setresuid(12345, 12345, 12345)
for use in (Files().names, lambda path: Files().open(path / "lock"), lambda path: Files().make_directory(path / "0")):
    try:
        use(Path(sys.argv[1]))
    except WalIOError as error:
        print(error)
"""


def test_a_missing_permission_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0)
    command = [sys.executable, "-c", FORBIDDEN, str(tmp_path / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("securityContext.fsGroup") == 3, done.stderr
