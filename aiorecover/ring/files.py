"""Every call to the operating system that the ring makes: thin, no decisions, replaceable in tests.

A method that fails raises `WalFullError` where the system has no room (ENOSPC, EDQUOT, EFBIG: nothing that was stored
before is harmed), else `WalIOError` with errno, path and what to do. Descriptors are plain numbers; one thread at a
time uses a method that changes a file, while any thread may read, look or flush.
"""

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from aiorecover.errors import WalFullError, WalIOError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
STEP_BYTES = 1 << 20  # what is written at a time where a file system cannot reserve space
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOUNTS = Path("/proc/self/mountinfo")

_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # FALLOC_FL_* of linux/falloc.h
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_CHECK = "check the disk and the permissions"
_REOPEN = "check the disk, then stop and start again"
_ROOM = "free disk space, or stop and move wal_dir to a larger disk"
_REMEDIES: dict[int | None, str] = {  # these errors mean the same whatever was to be done
    errno.EACCES: (
        "let the user of this process read and write there: chown it, or give write permission to one of the user's "
        "groups (Kubernetes: securityContext.fsGroup)"
    ),
    errno.EEXIST: "choose another path: a file stands where the directory belongs",
    errno.ENOTDIR: "choose another path: a file stands where a directory belongs",
    errno.EDQUOT: "free disk space of this user, or raise the quota",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f, LimitFSIZE), or lower wal_max_bytes",
    errno.EISDIR: "move this directory away: a file belongs in its place",
    errno.ELOOP: "put the file itself in the place of this symbolic link",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the limit of open files of the machine (fs.file-max)",
    errno.ENOMEM: "give the process more memory or address space (ulimit -v, vm.max_map_count)",
    errno.EROFS: "mount the file system writable, or choose another wal_dir",
}


@contextmanager
def _errors(action: str, path: Path, remedy: str = _CHECK, full: frozenset[int] = _FULL) -> Iterator[None]:
    """Turn OSError into an error of ours; ``full``: the errors after which nothing of what was stored is harmed."""
    try:
        yield
    except OSError as error:
        if error.errno in full:
            message = f"no room to {action}: {_REMEDIES.get(error.errno, _ROOM)} path={path}"
            raise WalFullError(message) from error
        message = f"cannot {action}: {_REMEDIES.get(error.errno, remedy)}: {error.strerror}"
        raise WalIOError(error.errno, message, str(path)) from error


class Mapping:
    """A part of a file in memory, shared and writable.

    ``data``: its bytes, the fastest to store a slice to. ``view``: the same without copies. ``words``: the same as
    aligned words of 8 bytes; a store to one is one store of the processor, in native byte order.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.data = memory
        self.view = memoryview(memory)
        self.words = self.view.cast("Q")

    def forget(self, start: int, size: int) -> None:
        """Take the whole pages within this part out of the process's memory; the file keeps their bytes."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self.data.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Unmap; where a slice of ``view`` is still in use, the memory goes with the last one."""
        with suppress(BufferError):
            self.words.release()
            self.view.release()
            self.data.close()


class Files:
    """The operating system. A test puts another object with these methods in its place."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}  # of the open descriptors, for messages
        self._cannot_reserve: set[int] = set()  # descriptors on whose file system nothing can be reserved

    def open(self, path: Path, *, read_only: bool = False) -> int:
        """Return a descriptor of a file; refuse a symbolic link.

        A file that is missing is made with mode 0600, unless it is to be ``read_only``.
        """
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        with _errors("open the file", path):
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor; ignore an error: what has to be durable was flushed before."""
        self._cannot_reserve.discard(fd)
        self._paths.pop(fd, None)
        with suppress(OSError):
            os.close(fd)

    def lock(self, fd: int) -> bool:
        """Take the file's exclusive lock without waiting; return False where another open file has it.

        The lock belongs to the open file: it goes with the last copy of the descriptor, forked ones included.
        """
        with _errors("lock the file", self._path(fd), "use a file system that has flock"):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def size(self, fd: int) -> int:
        """Return the length in bytes."""
        return self._stat(fd).st_size

    def links(self, fd: int) -> int:
        """Return the number of names that the file has: 0 once it was removed."""
        return self._stat(fd).st_nlink

    def identity(self, fd: int) -> tuple[int, int]:
        """Return device and inode."""
        found = self._stat(fd)
        return found.st_dev, found.st_ino

    def same_file(self, fd: int, path: Path) -> bool:
        """Return whether ``path`` is the open file, and no link."""
        found = self.status(path)
        return found is not None and (found.st_dev, found.st_ino) == self.identity(fd)

    def read(self, fd: int, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``; fewer only where the file ends."""
        with _errors("read the file", self._path(fd), "check the disk"):
            data = os.pread(fd, size, offset)
            while data and len(data) < size:
                more = os.pread(fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def write(self, fd: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at ``offset``."""
        with _errors("write the file", self._path(fd)), memoryview(data).cast("B") as view:
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], offset + done)

    def will_need(self, fd: int, offset: int, size: int) -> None:
        """Have the kernel read a part ahead; this is a hint, so an error is ignored."""
        with suppress(OSError):
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)

    def set_size(self, fd: int, size: int) -> None:
        """Cut the file to ``size`` bytes, or let it end there with a hole."""
        with _errors("set the size of the file", self._path(fd)):
            os.ftruncate(fd, size)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Reserve the blocks of a part, so that a later store to it through a mapping cannot fail; its bytes stay.

        Where the file system cannot reserve, the part's bytes are written again, zeros where there were none: nothing
        may be stored there meanwhile. A file system that copies on write reserves nothing either way.
        """
        if fd not in self._cannot_reserve:
            with _errors("reserve disk space", self._path(fd)):
                try:
                    os.posix_fallocate(fd, offset, size)
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
                    self._cannot_reserve.add(fd)
        if fd in self._cannot_reserve:
            for start in range(offset, offset + size, STEP_BYTES):
                step = min(STEP_BYTES, offset + size - start)
                self.write(fd, start, self.read(fd, start, step).ljust(step, b"\0"))

    def give_back(self, fd: int, offset: int, size: int) -> bool:
        """Give the blocks of a part back to the file system: it reads as zeros then.

        Return False where the file system cannot: nothing was changed.
        """
        with _errors("give disk space back", self._path(fd)):
            while _fallocate()(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size) != 0:
                number = ctypes.get_errno()
                if number in _UNSUPPORTED:
                    return False
                if number != errno.EINTR:
                    raise OSError(number, os.strerror(number))
        return True

    def flush(self, fd: int) -> None:
        """Make all that was stored in the file, also through mappings, survive a power cut.

        No room is no `WalFullError` here: what a failed flush has lost was accepted before.
        """
        with _errors("flush the file to the disk", self._path(fd), _REOPEN, frozenset()):
            os.fdatasync(fd)

    def map(self, fd: int, offset: int, size: int) -> Mapping:
        """Map a part of the file; ``offset`` is a multiple of the page size, and the file reaches to its end.

        It is opened once more for that: a mapping, in a forked child too, keeps the locks of what it was made from.
        Before Python 3.13 it also keeps a descriptor.
        """
        with _errors("map the file", self._path(fd)):
            if offset + size > os.fstat(fd).st_size:
                raise OSError(errno.EINVAL, "the file was cut")
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            try:
                if sys.version_info >= (3, 13):
                    memory = mmap.mmap(own, size, offset=offset, trackfd=False)
                else:
                    memory = mmap.mmap(own, size, offset=offset)
            finally:
                os.close(own)
        return Mapping(memory)

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a small file; None where there is none. Refuse a symbolic link."""
        with _errors("read the file", path, "check the disk and the permissions"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            with os.fdopen(fd, "rb") as file:
                return file.read()

    def replace_file(self, path: Path, data: bytes) -> None:
        """Put a file of these bytes in the place of ``path``: after a power cut it is the old one or the new one."""
        temporary = path.with_name(path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with _errors("write the file", path):
            try:
                with os.fdopen(os.open(temporary, flags, FILE_MODE), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()
                raise
        self.flush_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        """Make a directory with mode 0700, and its parents as usual, all durable; a directory that is there stays."""
        with _errors("make the directory", path):
            missing = [one for one in (path, *path.parents) if not one.exists()]
            path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        for one in missing:
            self.flush_directory(one.parent)

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory survive a power cut, where the file system can."""
        with _errors("flush the directory to the disk", path, _REOPEN, frozenset()):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            finally:
                os.close(fd)

    def status(self, path: Path) -> os.stat_result | None:
        """Return type, owner, mode and identity of what ``path`` names, a link itself too; None: nothing is there."""
        with _errors("look at the path", path):
            try:
                return os.stat(path, follow_symlinks=False)
            except OSError as error:
                if error.errno in _MISSING:
                    return None
                raise

    def make_private(self, path: Path) -> None:
        """Give a directory of ours mode 0700."""
        with _errors("take the directory from others", path):
            path.chmod(DIRECTORY_MODE)

    def user(self) -> int:
        """Return the user id that this process acts as."""
        return os.geteuid()

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, in no order."""
        with _errors("list the directory", path):
            return os.listdir(path)  # noqa: PTH208

    def volume(self, path: Path) -> tuple[int, int]:
        """Return the bytes that this process may still store on the volume of ``path``, and the volume's size."""
        with _errors("look at the file system", path):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def file_system(self, path: Path) -> str:
        """Return the type of the file system of ``path``, ``ext4`` say; empty where the system does not say."""
        with suppress(OSError):
            wanted, longest, best = path.resolve(), 0, ""
            for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                place, kind = _mount(line)
                if wanted.is_relative_to(place) and len(place.parts) >= longest:  # the later one is on top
                    longest, best = len(place.parts), kind
            return best
        return ""

    def boot_id(self) -> str:
        """Return the id of the machine's present boot; empty where the system does not say: each boot is new then."""
        return _boot_id()

    def boot_ms(self) -> int:
        """Return the milliseconds since the machine's boot, its sleep included: the same for all processes."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds from an unknown start, for durations within this process."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def random(self, size: int) -> bytes:
        """Return ``size`` random bytes."""
        return os.urandom(size)

    def _path(self, fd: int) -> Path:
        return self._paths.get(fd) or Path(f"/proc/self/fd/{fd}")

    def _stat(self, fd: int) -> os.stat_result:
        with _errors("look at the file", self._path(fd)):
            return os.fstat(fd)


def _mount(line: str) -> tuple[Path, str]:
    """Return place and type of a mount from its line in mountinfo, where spaces and the like are octal."""
    before, _, after = line.partition(" - ")
    place = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
    return Path(place), after.split(" ")[0]


@functools.cache
def _boot_id() -> str:
    with suppress(OSError):
        return BOOT_ID.read_text(encoding="utf-8").strip()
    return ""


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """Return the C library's function: it can punch holes, which `os.posix_fallocate` cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or libc.fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", function)
