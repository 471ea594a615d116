"""The only module of ``wal`` that touches the operating system: thin, no decisions.

Every method turns ``OSError`` into `WalIOError` with the path, so that callers above see one tree of errors.
"""

import errno
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiorecover.errors import WalFullError, WalIOError

FILE_MODE = 0o600  # records may hold anything: nobody else's business
DIRECTORY_MODE = 0o700

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CHECK = "check the disk and the permissions"
_AFTER_FLUSH = "check the disk, then stop and start again"


@contextmanager
def os_errors(action: str, path: Path, *, full: frozenset[int] = _OUT_OF_SPACE, remedy: str = _CHECK) -> Iterator[None]:
    """Turn ``OSError`` into our errors; ``remedy`` says what to do.

    ``full``: what means that nothing was stored. A flush that finds no room has lost what was stored before it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in full:
            message = f"no room to {action}: free disk space or lower wal_max_bytes path={path}"
            raise WalFullError(message) from error
        message = f"cannot {action}: {remedy}: {error.strerror}"
        raise WalIOError(error.errno, message, str(path)) from error


_OPEN: weakref.WeakSet["StorageFile"] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child keeps no file: its copy of a descriptor would hold the lock when the parent is gone."""
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


class StorageFile:
    """One open file of a directory."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, made when it is not there.

        A symbolic link is refused: somebody else may own where it points to.
        """
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os_errors("open the file", path):
            self._fd = os.open(path, flags, FILE_MODE)
        _OPEN.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd < 0

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
        with os_errors("grow the ring", self.path):
            if sys.platform == "linux":
                os.posix_fallocate(self._fd, offset, length)
            else:  # pragma: no cover - no such call there: write zeros instead
                os.pwrite(self._fd, bytes(length), offset)

    def map(self, offset: int, length: int) -> mmap.mmap:
        """Map a part of the file, shared and writable."""
        with os_errors("map the file", self.path):
            if offset + length > os.fstat(self._fd).st_size:  # also when closed: mmap takes -1 for anonymous memory
                raise OSError(errno.EINVAL, "the file was cut")
            return mmap.mmap(self._fd, length, offset=offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; the number of bytes that were there."""
        done = 0
        with os_errors("read the file", self.path):
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
                if count == 0:
                    break
                done += count
        return done

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

    def read_ahead(self, offset: int, length: int) -> None:
        """Ask the kernel to fetch what will be read next; only a hint."""
        with suppress(OSError, AttributeError):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        """Make everything stored so far, through mappings too, survive a power cut.

        ``fdatasync`` of the file, not ``msync`` of a mapping: it takes half the time, and covers every mapping.
        """
        with os_errors("flush the file to the disk", self.path, full=frozenset(), remedy=_AFTER_FLUSH):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the descriptor; mappings keep their own. Never unlocks: a forked child shares the lock."""
        if self._fd >= 0:
            descriptor, self._fd = self._fd, -1
            os.close(descriptor)

    def fileno(self) -> int:
        """The descriptor, for ``flock``."""
        return self._fd


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    with os_errors("flush the directory to the disk", path, full=frozenset(), remedy=_AFTER_FLUSH):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def free_bytes(path: Path) -> int:
    """What an ordinary user may still store on the file system of ``path``."""
    with os_errors("look at the file system", path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
