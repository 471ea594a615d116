"""The only module of ``wal`` that touches the operating system, with `mapping`: thin, no decisions.

Every method of `StorageFile` turns ``OSError`` into `WalIOError` with the path, so that callers above see one tree of
errors.
"""

import errno
import fcntl
import mmap
import os
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from aiorecover.errors import WalFormatError, WalFullError, WalIOError
from aiorecover.wal.mapping import in_memory, map_shared

FILE_MODE = 0o600  # records may hold anything: nobody else's business
DIRECTORY_MODE = 0o700
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random, of this boot: Linux
DESCRIPTORS = "/dev/fd"  # what this process has open: Linux, macOS, the BSDs
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
PAGE = mmap.PAGESIZE  # what the kernel reads and writes as a whole
PUNCH_BYTES = 1 << 20  # at a time: 0.7 ms
REWRITE_BYTES = 1 << 20  # at a time, where pages are read and written back: memory stays flat

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})  # no holes in files here
_CHECK = "check the disk and the permissions"
_READ = "check the disk, or open a copy with zeros where nothing can be read (ddrescue)"
AFTER_FLUSH = "check the disk, then stop and start again"
_ROOM = "free disk space, or stop and move wal_dir to a disk with more of it"
_LIMITS: dict[int | None, str] = {  # what is no fault of the disk, whatever was to be done
    errno.ELOOP: "put the file itself in the place of the symbolic link, which might lead to somebody else's",
    errno.EISDIR: "put the file back that was in the place of this directory",
    errno.EFBIG: (
        "raise the limit for the size of a file (ulimit -f, LimitFSIZE), take a file system for larger ones, or lower "
        "wal_max_bytes"
    ),
    errno.EDQUOT: "free disk space of this user's, or raise his quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.ENOMEM: (
        "give it more memory, or raise the limit of address space (ulimit -v, LimitAS) or of mappings "
        "(vm.max_map_count)"
    ),
}


@contextmanager
def os_errors(action: str, path: Path, *, full: frozenset[int] = _OUT_OF_SPACE, remedy: str = _CHECK) -> Iterator[None]:
    """Turn OSError into the package's errors, with the path; ``remedy`` says what to do, unless a limit was reached.

    ``full``: what means that nothing was stored. A flush that finds no room has lost what was stored before it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in full:
            message = f"no room to {action}: {_LIMITS.get(error.errno, _ROOM)} path={path}"
            raise WalFullError(message) from error
        message = f"cannot {action}: {_LIMITS.get(error.errno, remedy)}: {error.strerror}"
        raise WalIOError(error.errno, message, str(path)) from error


_OPEN: weakref.WeakSet["StorageFile"] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child keeps no file: its copy of a descriptor would hold the lock when the parent is gone."""
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


class StorageFile:
    """One open file of a directory.

    ``failed_reads``: so many reads failed since it was opened.
    """

    failed_reads = 0

    def __init__(self, path: Path, *, descriptor: int | None = None) -> None:
        """Open ``path``, made when it is not there; or take over ``descriptor``, which is open already.

        A symbolic link is refused: somebody else may own where it points to.
        """
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os_errors("open the file", path):
            self._fd = os.open(path, flags, FILE_MODE) if descriptor is None else descriptor
        _OPEN.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd < 0

    def lock(self) -> bool:
        """Take the file's lock without waiting; False when another process has it. It goes with the last descriptor.

        Raises:
            WalIOError: the file system has no locks.

        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            message = f"cannot lock the directory: use a file system with flock: {error.strerror}"
            raise WalIOError(error.errno, message, str(self.path.parent)) from error
        return True

    def identity(self) -> tuple[int, int]:
        """Device and inode of the open file."""
        with os_errors("look at the file", self.path):
            found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def size(self) -> int:
        """Length in bytes."""
        with os_errors("look at the file", self.path):
            return os.fstat(self._fd).st_size

    def allocate(self, offset: int, length: int) -> None:
        """Make the blocks exist: a later store through a mapping cannot hit a full disk (SIGBUS).

        Raises:
            WalFullError: the disk is full; nothing that was stored before is harmed.

        """
        with os_errors("grow the file", self.path):
            if sys.platform == "linux":
                os.posix_fallocate(self._fd, offset, length)
            else:  # no such call there: zeros, but not over what stands there
                start = max(offset, os.fstat(self._fd).st_size)
                os.pwrite(self._fd, bytes(max(0, offset + length - start)), start)

    def map(self, offset: int, length: int) -> mmap.mmap:
        """Map a part of the file, shared and writable; it takes no file descriptor."""
        with os_errors("map the file", self.path):
            if offset + length > os.fstat(self._fd).st_size:
                raise OSError(errno.EINVAL, "the file was cut")
            return map_shared(self._fd, length, offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; the number of bytes that were there."""
        done = 0
        with os_errors("read the file", self.path, remedy=_READ):
            while done < len(buffer):
                count = self._read_once(buffer[done:], offset + done)
                if count == 0:
                    break
                done += count
        return done

    def _read_once(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._fd, [buffer], offset)
        except OSError:
            self.failed_reads += 1
            raise

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        buffer = bytearray(length)
        return bytes(buffer[: self.read_into(memoryview(buffer), offset)])

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data``; a short write is continued."""
        view = memoryview(data)
        with os_errors("write the file", self.path):
            while view:
                count = os.pwrite(self._fd, view, offset)
                view = view[count:]
                offset += count

    def rewrite(self, offset: int, length: int) -> None:
        """Have the next `sync` write a part again, without changing a byte of it; what is behind the end is left out.

        After a failed fsync the kernel calls the pages clean that never reached the disk, and no later fsync writes
        them. A write fault makes a page dirty again and stores nothing, so others may store into it at the same time.
        Where the kernel cannot be asked for one (Linux before 5.14, other systems), the bytes are read and written
        back: there, nobody may store into the part meanwhile, or that store would be undone.

        A page that is not in memory is what the disk has, and is left there: gigabytes are not read for it. (Where the
        kernel does not tell, on other systems, they are.)

        Raises:
            WalIOError: a part of it cannot be read from the disk.

        """
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        with os_errors("rewrite the file", self.path, full=frozenset()):
            end = min(offset + length, os.fstat(self._fd).st_size)
            left = _not_populated(self._fd, start, end - start) if start < end else []
        for first, stop in left:
            for place in range(first, stop, REWRITE_BYTES):
                self.write(self.read(place, min(REWRITE_BYTES, stop - place)), place)

    def truncate(self, size: int) -> None:
        """Give what is behind ``size`` bytes back to the disk; nothing may be mapped there."""
        with os_errors("shorten the file", self.path):
            os.ftruncate(self._fd, size)

    def punch(self, offset: int, length: int) -> bool:
        """Give a part back to the disk; it reads as zeros until it is allocated again. Nothing may be mapped there.

        False where the system or the file system cannot: nothing was changed, or only bytes that nobody needs.
        """
        remove = getattr(mmap, "MADV_REMOVE", None)
        if remove is None:  # pragma: no cover - not Linux
            return False
        with os_errors("give back a part of the file", self.path):
            for place in range(offset, offset + length, PUNCH_BYTES):
                with mmap.mmap(self._fd, min(PUNCH_BYTES, offset + length - place), offset=place) as part:
                    try:
                        part.madvise(remove)
                    except OSError as error:
                        if error.errno in _CANNOT:
                            return False
                        raise
                time.sleep(0)  # that call keeps the interpreter to itself: let the loop's thread have it
        return True

    def disk_bytes(self) -> int:
        """Bytes that it takes on the disk: fewer than its size where it has holes."""
        with os_errors("look at the file", self.path):
            return os.fstat(self._fd).st_blocks * 512  # the unit of st_blocks, whatever the file system's

    def read_ahead(self, offset: int, length: int) -> None:
        """Ask the kernel to fetch what will be read next; only a hint."""
        with suppress(OSError, AttributeError):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        """Make everything stored so far, through mappings too, survive a power cut.

        ``fdatasync`` of the file, not ``msync`` of a mapping: it takes half the time, and covers every mapping.
        """
        with os_errors("flush the file to the disk", self.path, full=frozenset(), remedy=AFTER_FLUSH):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the descriptor; mappings keep their own. Never unlocks: a forked child shares the lock.

        It is closed also where the system answers with an error (as over a network): what counts was flushed before.
        """
        if self._fd >= 0:
            descriptor, self._fd = self._fd, -1
            with suppress(OSError):
                os.close(descriptor)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd


class ForeignFile(StorageFile):
    """An open file of a directory that another process may own: read, and nothing else."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, which must be there; neither made nor touched.

        Not closed in a forked child: it holds no lock, and workers are forked with their views.

        Raises:
            WalFormatError: it is no ordinary file.
            WalIOError: it is not there, is a symbolic link, or may not be read.

        """
        self.path = path
        # Opening a named pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os_errors("open the file", path):
            self._fd = os.open(path, flags)
            mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            self.close()
            message = f"not an ordinary file: name a directory of aiorecover path={path}"
            raise WalFormatError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _not_populated(descriptor: int, offset: int, length: int) -> list[tuple[int, int]]:
    """Take a write fault in every page that is in memory, as a store would.

    Returns the parts of the file, where they start and end, for which the system cannot be asked for it.
    """
    with mmap.mmap(descriptor, length, offset=offset) as mapping:  # a fresh one: its pages have no faults behind them
        parts = list(_parts_in_memory(mapping))
        if _populate(mapping, parts):
            return []
    return [(offset + start, offset + stop) for start, stop in parts]


def _parts_in_memory(mapping: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where they start and end; all of it where the system does not tell."""
    pages, length = in_memory(mapping), len(mapping)
    if pages is None:
        yield 0, length
        return
    start = pages.find(1)
    while start >= 0:
        stop = pages.find(0, start)
        stop = stop if stop >= 0 else len(pages)
        yield start * mmap.PAGESIZE, min(stop * mmap.PAGESIZE, length)
        start = pages.find(1, stop)


def _populate(mapping: mmap.mmap, parts: list[tuple[int, int]]) -> bool:
    """False where the system does not know how."""
    if sys.platform != "linux":  # the number means something else there
        return False
    try:
        for start, stop in parts:
            mapping.madvise(MADV_POPULATE_WRITE, start, stop - start)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        if error.errno == errno.EFAULT:  # a store would have been SIGBUS: the page cannot be read
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
        raise
    return True


class FileSystem:
    """Everything that an opening asks of the operating system beside its open files.

    Where a method says nothing of errors it raises the operating system's ``OSError`` as it is: the caller knows which
    directory was to be used for what. Tests put another one in its place (`aiorecover.testing.MemoryDisk`).
    """

    def is_symlink(self, path: Path) -> bool:
        """Whether ``path`` is a symbolic link, wherever it points to."""
        return path.is_symlink()

    def exists(self, path: Path) -> bool:
        """Whether there is anything at ``path``."""
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        """Whether ``path`` is a directory."""
        return path.is_dir()

    def make_directory(self, path: Path, *, parents: bool = False) -> None:
        """Make a directory for nobody else's eyes; one that is there stays as it is."""
        path.mkdir(mode=DIRECTORY_MODE, parents=parents, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """What stands in a directory, in no order."""
        return os.listdir(path)  # noqa: PTH208 - names, not paths: the caller says which of them it knows

    def owner(self, path: Path) -> int:
        """The user id that ``path`` belongs to."""
        return path.stat().st_uid

    def identity(self, path: Path) -> tuple[int, int]:
        """Device and inode of what stands at ``path`` now; a link is not followed."""
        found = os.stat(path, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def has_open(self, path: Path) -> bool:
        """Whether this very process has the file open, as far as the system tells."""
        with suppress(OSError):
            wanted = self.identity(path)
            return any(_identity_of(int(name)) == wanted for name in os.listdir(DESCRIPTORS))  # noqa: PTH208
        return False

    def read(self, path: Path) -> bytes:
        """All of a small file."""
        return path.read_bytes()

    def open(self, path: Path) -> StorageFile:
        """Open a file, made when it is not there.

        Raises:
            WalIOError: the operating system refused, or ``path`` is a symbolic link.
            WalFullError: no room for another file.

        """
        return StorageFile(path)

    def open_foreign(self, path: Path) -> StorageFile:
        """Open a file that another process may own, to be read and nothing else; it must be there.

        Raises:
            WalFormatError: it is no ordinary file.
            WalIOError: it is not there, is a symbolic link, or may not be read.

        """
        return ForeignFile(path)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory survive a power cut.

        Raises:
            WalIOError: the disk failed.

        """
        with os_errors("flush the directory to the disk", path, full=frozenset(), remedy=AFTER_FLUSH):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def boot_id(self) -> str:
        """Of the machine's present boot; empty where the system does not tell."""
        with suppress(OSError):
            return BOOT_ID.read_text(encoding="ascii").strip()
        return ""

    def since_boot_ms(self) -> int:
        """Time since the machine's boot, its sleep included: what two processes of one boot can compare.

        Nobody sets this clock, as they may the one on the wall.
        """
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(clock) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as somebody has set the clock: for people, and across boots."""
        return time.time_ns() // 1_000_000

    def free_bytes(self, path: Path) -> int:
        """What an ordinary user may still store on the file system of ``path``.

        Raises:
            WalIOError: the file system does not answer.

        """
        with os_errors("look at the file system", path):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def _identity_of(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of an open file; None: it was closed meanwhile."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None


OPERATING_SYSTEM = FileSystem()


def when_forked(act: Callable[[], None]) -> None:
    """Have ``act`` called in every child that is forked from now on."""
    os.register_at_fork(after_in_child=act)


def names_in(path: Path) -> list[str]:
    """The names in a directory, in no order."""
    with os_errors("list the directory", path):
        return [entry.name for entry in path.iterdir()]


def lock_identity(path: Path) -> str:
    """Device and inode of a file, written as the kernel does in /proc/locks."""
    with os_errors("look at the file", path):
        found = os.stat(path, follow_symlinks=False)
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
