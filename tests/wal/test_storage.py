"""The storage over the operating system: having pages written to the disk again."""

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover.errors import WalFormatError, WalFullError, WalIOError
from aiorecover.wal import storage
from aiorecover.wal.mapping import in_memory
from aiorecover.wal.storage import FileSystem, ForeignFile, StorageFile

PAGE = mmap.ALLOCATIONGRANULARITY
CACHESTAT = 451  # Linux 6.5: how much of a file the kernel still has to write; the number is the same everywhere


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StorageFile]:
    opened = StorageFile(tmp_path / "ring")
    opened.write(b"\x11" * 10 * PAGE, 0)
    opened.sync()
    yield opened
    opened.close()


def dirty_pages(file: StorageFile, offset: int = 0, length: int = 0) -> int:
    """What the kernel would write; a length of 0 is up to the end."""
    part = (ctypes.c_uint64 * 2)(offset, length)
    found = (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file.fileno(), part, found, 0) != 0:
        raise OSError(ctypes.get_errno(), "cachestat")
    return found[1]


def dirtiness_is_shown(file: StorageFile) -> bool:
    """False on file systems without a disk (tmpfs), and before Linux 6.5: an ordinary write looks clean there too."""
    if sys.platform != "linux":
        return False
    file.write(b"\x11" * PAGE, 0)
    try:
        shown = dirty_pages(file) > 0
    except OSError:
        return False
    file.sync()
    return shown and dirty_pages(file) == 0


def refuse_populating(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mmap, "mmap", Refusing)


@pytest.mark.parametrize("how", ["fault", "write"])
def test_pages_that_are_rewritten_are_dirty_again_and_no_byte_changes(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By the kernel's own count; where it does not count, only that no byte changes and no call fails is shown."""
    if how == "write":
        refuse_populating(monkeypatch, errno.EINVAL)
        monkeypatch.setattr(storage, "REWRITE_BYTES", 3000)
    shown = dirtiness_is_shown(file)
    before = file.read(0, file.size())
    file.rewrite(3 * PAGE + 100, 2 * PAGE)
    if shown:
        assert [dirty_pages(file, page * PAGE, PAGE) for page in (3, 4, 5)] == [1, 1, 1]  # neighbours may go along
        file.sync()
        assert dirty_pages(file) == 0
        file.rewrite(0, 10 * PAGE)
        assert dirty_pages(file) == 10
    assert file.read(0, file.size()) == before


def pages_in_memory(file: StorageFile) -> list[int]:
    with mmap.mmap(file.fileno(), file.size()) as mapping:
        found = in_memory(mapping)
    assert found is not None, "Linux tells"
    return list(found)


def keep_in_memory(file: StorageFile, pages: list[int]) -> None:
    """Those, and no other one."""
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    for page in pages:
        file.read(page * PAGE, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell elsewhere")
@pytest.mark.parametrize("how", ["fault", "write"])
def test_what_is_not_in_memory_is_neither_read_nor_rewritten(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Gigabytes may wait there, and the disk has what they say."""
    if how == "write":
        refuse_populating(monkeypatch, errno.EINVAL)
    shown = dirtiness_is_shown(file)
    keep_in_memory(file, pages=[2, 6])
    here = pages_in_memory(file)
    if not shown or here != [0, 0, 1, 0, 0, 0, 1, 0, 0, 0]:
        pytest.skip(f"this file system keeps what it is asked to forget: {here}")
    file.rewrite(PAGE, 4 * PAGE)
    assert pages_in_memory(file) == here
    assert [dirty_pages(file, page * PAGE, PAGE) for page in range(10)] == [0, 0, 1, *[0] * 7]
    file.rewrite(0, 10 * PAGE)
    assert [dirty_pages(file, page * PAGE, PAGE) for page in range(10)] == here
    assert file.read(0, file.size()) == b"\x11" * 10 * PAGE


def test_a_directory_that_cannot_be_flushed_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WalIOError, match=r"cannot flush the directory to the disk: .*absent"):
        storage.FileSystem().sync_directory(tmp_path / "absent")


def test_where_nobody_tells_what_is_in_memory_all_is_rewritten(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "in_memory", lambda _: None)
    shown = dirtiness_is_shown(file)
    keep_in_memory(file, pages=[2])
    file.rewrite(0, 10 * PAGE)
    assert not shown or dirty_pages(file) == 10
    assert file.read(0, file.size()) == b"\x11" * 10 * PAGE


def test_nothing_behind_the_end_is_rewritten_and_the_file_does_not_grow(file: StorageFile) -> None:
    file.write(b"tail", 10 * PAGE)
    for offset, length in ((9 * PAGE, 1 << 30), (10 * PAGE + 4, 10), (20 * PAGE, PAGE), (0, 0)):
        file.rewrite(offset, length)
    assert file.size() == 10 * PAGE + 4
    assert file.read(10 * PAGE, 10) == b"tail"


@pytest.mark.parametrize("size", [0, 10 * PAGE])
def test_where_a_file_ends_with_a_page_nothing_is_left_to_rewrite_behind_it(file: StorageFile, size: int) -> None:
    file.truncate(size)
    file.rewrite(size, PAGE)
    assert file.size() == size


@pytest.mark.parametrize("why", ["an older kernel", "another system"])
def test_where_nobody_can_be_asked_for_a_fault_the_part_is_written_back_and_no_byte_beside_it(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Others may store there meanwhile, and that would be undone."""
    if why == "an older kernel":
        refuse_populating(monkeypatch, errno.EINVAL)
    else:
        monkeypatch.setattr(sys, "platform", "another")
    write, written = file.write, list[tuple[int, int]]()

    def noted(data: bytes, offset: int) -> None:
        written.append((offset, len(data)))
        write(data, offset)

    monkeypatch.setattr(file, "write", noted)
    file.rewrite(3 * PAGE + 100, PAGE)
    assert written == [(3 * PAGE, PAGE + 100)]


def test_stores_of_others_at_the_same_time_are_kept(file: StorageFile) -> None:
    mapping = file.map(0, 10 * PAGE)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            file.rewrite(0, 10 * PAGE)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for number in range(20_000):
            place = number * 97 % (10 * PAGE - 8)
            stored = number.to_bytes(8, "little")
            mapping[place : place + 8] = stored
            assert mapping[place : place + 8] == stored
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("code", "told"), [(errno.EFAULT, errno.EIO), (errno.ENOMEM, errno.ENOMEM)])
def test_a_page_that_cannot_be_read_is_an_error_of_the_disk(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, code: int, told: int
) -> None:
    refuse_populating(monkeypatch, code)
    with pytest.raises(WalIOError, match=r"cannot rewrite the file: ") as caught:
        file.rewrite(0, PAGE)
    assert caught.value.errno == told


def test_a_file_with_the_descriptor_of_who_has_no_standard_input_is_open(file: StorageFile) -> None:
    """Who starts a daemon may have closed it, and the next file that is opened gets its number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "_fd", 0)
        assert not file.closed
    assert not file.closed
    file.close()
    assert file.closed


def test_a_closed_file_is_not_rewritten(file: StorageFile) -> None:
    file.close()
    with pytest.raises(WalIOError, match=r"cannot rewrite the file: .*: Bad file descriptor"):
        file.rewrite(0, PAGE)


CHILD = """
    import os, sys
    from pathlib import Path
    from aiorecover.wal.storage import StorageFile

    path = Path(sys.argv[1])
    first = StorageFile(path)
    assert first.lock()
    (there, say), (end, lives) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.write(say, b"!")
        os.close(lives)
        os.read(end, 1)  # as long as its parent lives
        os._exit(0)
    os.read(there, 1)
    first.close()
    print(StorageFile(path).lock())
"""


def test_a_forked_child_keeps_no_lock_of_a_file_that_no_directory_has_yet(tmp_path: Path) -> None:
    """Another thread may fork while a directory is opened, or while a neighbour's lock is tried."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path / "lock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


def test_room_on_the_disk_is_what_an_ordinary_user_may_still_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file system keeps for root is no room; blocks are counted in fragments."""
    told = os.statvfs_result((1 << 20, 4096, 1000, 30, 20, 0, 0, 0, 0, 255))  # size of a block, of a fragment, …
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    assert FileSystem().free_bytes(Path("/")) == 20 * 4096


def test_a_file_that_cannot_be_looked_at_says_which_and_what_to_do(file: StorageFile) -> None:
    file.close()
    for look in (file.identity, file.size, file.disk_bytes):
        with pytest.raises(WalIOError, match="cannot look at the file: check the disk and the permissions: ") as caught:
            look()
        assert caught.value.filename == str(file.path)


def test_a_flush_that_fails_says_what_was_to_be_flushed(file: StorageFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(WalIOError, match="cannot flush the file to the disk: ") as caught:
        file.sync()
    assert caught.value.filename == str(file.path)


def test_a_file_system_that_cannot_be_looked_at_says_which(tmp_path: Path) -> None:
    with pytest.raises(WalIOError, match="cannot look at the file system: ") as caught:
        FileSystem().free_bytes(tmp_path / "gone")
    assert caught.value.filename == str(tmp_path / "gone")


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (errno.EMFILE, r"raise the limit of open files \(ulimit -n, LimitNOFILE\): "),
        (errno.ENFILE, r"raise the system's limit of open files \(fs.file-max\): "),
        (errno.ENOMEM, r".*of address space \(ulimit -v, LimitAS\) or of mappings \(vm.max_map_count\): "),
    ],
)
def test_a_limit_that_keeps_a_slot_from_being_mapped_is_named(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, code: int, limit: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(WalIOError, match=f"cannot map the file: {limit}{os.strerror(code)}") as caught:
        file.map(0, PAGE)
    assert caught.value.errno == code


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free disk space, or stop and move wal_dir to a disk with more of it path="),
        (errno.EDQUOT, "free disk space of this user's, or raise his quota path="),
        (errno.EFBIG, r"raise the limit for the size of a file \(ulimit -f, LimitFSIZE\), .* wal_max_bytes path="),
    ],
)
def test_a_file_that_may_not_be_larger_is_told_apart_from_a_full_disk(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(WalFullError, match=f"no room to grow the file: {remedy}"):
        file.allocate(0, PAGE)


@pytest.mark.parametrize("begin", [10, 8])
def test_where_there_is_no_call_for_room_a_file_grows_by_zeros_behind_what_stands_there(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    monkeypatch.setattr(sys, "platform", "another")
    file.allocate(0, 2 * PAGE)
    file.allocate(begin * PAGE, (11 - begin) * PAGE)
    assert file.read(0, 20 * PAGE) == b"\x11" * 10 * PAGE + bytes(PAGE)


def test_a_pipe_in_the_place_of_a_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ring")
    gc.collect()  # what an earlier test left to it must not go while it is counted
    before = os.listdir(storage.DESCRIPTORS)  # noqa: PTH208 - their number
    with pytest.raises(WalFormatError, match="not an ordinary file"):
        ForeignFile(tmp_path / "ring")
    assert len(os.listdir(storage.DESCRIPTORS)) == len(before)  # noqa: PTH208


def test_where_the_system_does_not_tell_of_its_boot_none_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BOOT_ID", tmp_path / "absent")
    assert FileSystem().boot_id() == ""


def test_a_directory_is_made_below_one_that_is_there_unless_all_are_asked_for(tmp_path: Path) -> None:
    wanted = tmp_path / "one" / "two"
    with pytest.raises(FileNotFoundError):
        FileSystem().make_directory(wanted)
    for _ in range(2):
        FileSystem().make_directory(wanted, parents=True)
    assert wanted.stat().st_mode & 0o777 == storage.DIRECTORY_MODE


# -- holes -----------------------------------------------------------------------------------------------------------


def test_a_part_that_is_given_back_reads_as_zeros_and_takes_no_room_and_the_rest_stays(file: StorageFile) -> None:
    file.allocate(0, 3 * storage.PUNCH_BYTES)
    before = file.disk_bytes()
    assert before >= file.size() == 3 * storage.PUNCH_BYTES
    file.write(b"\x22" * PAGE, 2 * storage.PUNCH_BYTES)
    part = 2 * storage.PUNCH_BYTES - 2 * PAGE  # more than is given back at a time
    if not file.punch(2 * PAGE, part):
        pytest.skip("this file system makes no holes")
    assert before - file.disk_bytes() == part
    assert file.size() == 3 * storage.PUNCH_BYTES
    assert file.read(0, 2 * PAGE) == b"\x11" * 2 * PAGE
    assert file.read(2 * PAGE, part) == bytes(part)
    assert file.read(2 * storage.PUNCH_BYTES, PAGE) == b"\x22" * PAGE
    file.allocate(2 * PAGE, part)
    assert file.disk_bytes() >= before


class Refusing(mmap.mmap):
    """A file system that makes no holes, or fails."""

    code = errno.EOPNOTSUPP

    def madvise(self, *_: int) -> None:
        raise OSError(self.code, os.strerror(self.code))


def test_a_file_system_without_holes_says_so_and_one_that_fails_is_an_error_of_the_disk(
    file: StorageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "mmap", Refusing)
    assert not file.punch(0, 4 * PAGE)
    monkeypatch.setattr(Refusing, "code", errno.EIO)
    with pytest.raises(WalIOError, match="cannot give back a part of the file"):
        file.punch(0, 4 * PAGE)
    assert file.read(0, 10 * PAGE) == b"\x11" * 10 * PAGE
