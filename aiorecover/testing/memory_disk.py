"""A ``wal_dir`` in memory that can die with its process and lose its power.

Give a `MemoryDisk` to a producer in place of a path, take an image of it at any moment, also while the producer runs,
and start the next life of your service on the image. ``examples/test_recovery.py`` is a whole test of that kind.

What survives what
    death of the process  everything that was stored: the pages belong to the kernel. What was not flushed still is not.
    power cut             what a flush made durable; of everything else any part, by lines of 64 bytes, sectors of 512
                          or pages of 4096. The seed chooses. Try many.

Linux only (memfd and /proc). A flush takes no time: it covers what was stored when it was called. Take images in the
event loop's thread: then they are of one moment. Do not use a disk on both sides of a fork. After a power cut the
producer looks in Kafka for what it had sent; `MockCluster` lacks what that takes, so with it such records come twice.
"""

import errno
import mmap
import os
import random
import stat
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.ring.files import Files

__all__ = ["UNITS", "MemoryDisk", "choose_survivors"]

UNITS = (64, 64, 512, 4096)  # bytes that reach a disk as a whole
PAGE = 4096
CHUNK = 1 << 16  # bytes that are compared and copied at a time
VOLUME = 1 << 40


class MemoryDisk(os.PathLike[str]):
    """A ``wal_dir`` in memory; the module says what survives what.

    Attributes:
        path: its name in logs and messages; nothing is there.
        files: what the producer opens files through.
        full: while True, nothing more fits: as if other programs had filled the volume.
        failing: while True, each flush fails, as on a broken disk.

    """

    def __init__(self, path: str | os.PathLike[str] = "/memory/wal") -> None:
        """Make an empty disk."""
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would ask the real disk
        self.files = MemoryFiles(self)
        self.full = self.failing = False

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"MemoryDisk({str(self.path)!r})"

    def after_process_death(self) -> "MemoryDisk":
        """Return what the next process finds after ``kill -9`` of this one now."""
        image = MemoryDisk(self.path)
        image.files.stored = self.files.image()
        return image

    def after_power_cut(self, seed: int) -> "MemoryDisk":
        """Return what the next process finds after the machine goes down now.

        ``seed`` chooses what comes through of that which no flush has covered.
        """
        image = self.after_process_death()
        image.files.stored.lose_power(random.Random(seed))
        return image


class MemoryFiles(Files):
    """The operating system, with memory under the paths of a `MemoryDisk`.

    Attributes:
        stored: everything that the disk holds.

    """

    def __init__(self, disk: MemoryDisk) -> None:
        """Begin with no file."""
        super().__init__()
        self.stored = _Stored()
        self._full: Callable[[], bool] = lambda: disk.full
        self._failing: Callable[[], bool] = lambda: disk.failing
        self._root = disk.path
        self._moment = threading.RLock()  # held where an image must not come in between
        self._opened: dict[int, _File] = {}  # by descriptor

    def image(self) -> "_Stored":
        """Return a copy of everything, of this moment."""
        with self._moment:
            return self.stored.copy()

    # -- files ---------------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, read_only: bool = False) -> int:
        """As on a disk."""
        with self._moment:
            if path not in self.stored.files:
                if read_only:
                    raise _missing(path)
                self._need_room(path)
                self.stored.files[path] = _File()
            file = self.stored.files[path]
            fd = os.open(f"/proc/self/fd/{file.live}", (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
            self._paths[fd], self._opened[fd] = path, file
        return fd

    def close(self, fd: int) -> None:
        """As on a disk."""
        self._opened.pop(fd, None)
        super().close(fd)

    def links(self, fd: int) -> int:
        """As on a disk."""
        return sum(file is self._opened[fd] for file in self.stored.files.values())

    def identity(self, fd: int) -> tuple[int, int]:
        """Return device and inode; an image of a disk has the same ones."""
        return 0, self._opened[fd].number

    def same_file(self, fd: int, path: Path) -> bool:
        """As on a disk."""
        return self.stored.files.get(path) is self._opened[fd]

    def write(self, fd: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """As on a disk."""
        with self._moment:
            super().write(fd, offset, data)

    def set_size(self, fd: int, size: int) -> None:
        """As on a disk."""
        self._need_room(self._path(fd))
        super().set_size(fd, size)

    def allocate(self, fd: int, offset: int, size: int) -> None:  # noqa: ARG002 - memory is there when it is touched
        """As on a disk."""
        self._need_room(self._path(fd))

    def flush(self, fd: int) -> None:
        """Make durable what is stored now."""
        if self._failing():
            raise WalIOError(errno.EIO, "cannot flush the file to the disk: check the disk", str(self._path(fd)))
        with self._moment:
            self._opened[fd].flush()

    def read_file(self, path: Path) -> bytes | None:
        """As on a disk."""
        return self.stored.whole.get(path) if path.is_relative_to(self._root) else super().read_file(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        """As on a disk, at once."""
        self._need_room(path)
        with self._moment:
            self.stored.whole[path] = bytes(data)
            self.flush_directory(path.parent)

    # -- directories ---------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        """As on a disk, at once."""
        self.stored.directories.update((path, *path.parents))

    def flush_directory(self, path: Path) -> None:
        """As on a disk."""
        self.stored.named.update(file for file in self.stored.files if file.parent == path)

    def status(self, path: Path) -> os.stat_result | None:
        """As on a disk."""
        if path in self.stored.files:
            return os.fstat(self.stored.files[path].live)
        kind = stat.S_IFDIR if path in self.stored.directories else stat.S_IFREG if path in self.stored.whole else 0
        return os.stat_result((kind | 0o700, 0, 0, 1, os.geteuid(), os.getegid(), 0, 0, 0, 0)) if kind else None

    def make_private(self, path: Path) -> None:
        """Change nothing: it is private."""

    def names(self, path: Path) -> list[str]:
        """As on a disk."""
        if path not in self.stored.directories:
            raise _missing(path)
        every: Iterable[Path] = (*self.stored.files, *self.stored.whole, *self.stored.directories)
        return [one.name for one in every if one.parent == path != one]

    def volume(self, path: Path) -> tuple[int, int]:  # noqa: ARG002 - it is one volume
        """As on a disk of a TiB."""
        return 0 if self._full() else VOLUME, VOLUME

    def file_system(self, path: Path) -> str:  # noqa: ARG002
        """Not a tmpfs, of which the producer would warn."""
        return ""

    def boot_id(self) -> str:
        """Another one after each power cut."""
        return self.stored.boot_id

    def _need_room(self, path: Path) -> None:
        if self._full():
            raise WalFullError(f"no room to write the file: free disk space path={path}")


class _Stored:
    """Everything that is on a disk, durable or not."""

    def __init__(self) -> None:
        self.boot_id = uuid.uuid4().hex
        self.files: dict[Path, _File] = {}
        self.named: set[Path] = set()  # files whose names are durable
        self.whole: dict[Path, bytes] = {}  # files that are replaced as a whole, durably
        self.directories: set[Path] = set()

    def copy(self) -> "_Stored":
        made = _Stored()
        made.boot_id = self.boot_id
        made.files = {path: file.copy() for path, file in self.files.items()}
        made.named, made.whole, made.directories = set(self.named), dict(self.whole), set(self.directories)
        return made

    def lose_power(self, rng: random.Random) -> None:
        """Lose what is not durable, or a part of it; boot."""
        self.boot_id = uuid.UUID(int=rng.getrandbits(128)).hex
        for path in sorted(self.files):
            if path in self.named or rng.getrandbits(1):
                self.files[path].lose_power(rng)
            else:
                del self.files[path]


class _File:
    """Contents: those that a process sees, and those that are durable. Both are files in memory, with holes."""

    def __init__(self, number: int | None = None) -> None:
        self.number = uuid.uuid4().int >> 65 if number is None else number  # the inode's
        self.live = os.memfd_create("live", os.MFD_CLOEXEC)
        self.durable = os.memfd_create("durable", os.MFD_CLOEXEC)
        weakref.finalize(self, _close, self.live, self.durable)

    def copy(self) -> "_File":
        made = _File(self.number)
        for source, target in ((self.live, made.live), (self.durable, made.durable)):
            os.ftruncate(target, os.fstat(source).st_size)
            for place in _chunks(source):
                os.pwrite(target, _read(source, place), place)
        return made

    def flush(self) -> None:
        for place, _, new in self._differences():
            os.pwrite(self.durable, new, place)
        os.ftruncate(self.durable, os.fstat(self.live).st_size)

    def lose_power(self, rng: random.Random) -> None:
        unit = rng.choice(UNITS)
        size = rng.choice((os.fstat(self.durable).st_size, os.fstat(self.live).st_size))
        changed = {
            place + at: new[at : at + unit]
            for place, old, new in self._differences()
            for at in range(0, CHUNK, unit)
            if old[at : at + unit] != new[at : at + unit]
        }
        survives = choose_survivors(rng, [place // unit for place in changed], unit)
        for place, new in changed.items():
            if survives(place // unit, 1):
                os.pwrite(self.durable, new, place)
        os.ftruncate(self.durable, size)
        os.ftruncate(self.live, 0)
        os.ftruncate(self.live, size)
        for place in _chunks(self.durable):
            os.pwrite(self.live, _read(self.durable, place), place)

    def _differences(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (place, durable contents, contents) of each chunk that is not durable."""
        for place in sorted({*_chunks(self.live), *_chunks(self.durable)}):
            old, new = _read(self.durable, place), _read(self.live, place)
            if old != new:
                yield place, old, new


def choose_survivors(rng: random.Random, units: Sequence[int], unit: int) -> Callable[[int, int], int]:
    """Choose what a power cut leaves, in one of the ways that have been seen to matter.

    Args:
        rng: chooses the way.
        units: numbers of the units of the file in which something was stored and not flushed.
        unit: bytes that reach the disk as a whole.

    Returns:
        A function: number of a unit, how many stores to it are not durable -> how many of these, the oldest ones, are
        on the disk.

    """
    one = rng.choice(units) if units else 0
    mask = rng.randrange(1, 1 << 12)
    pages = {number: mask >> (number * unit // PAGE) % 12 & 1 for number in units}
    ways: list[Callable[[int, int], int]] = [
        lambda number, n: rng.randint(0, n),  # noqa: ARG005 - one signature for all
        lambda number, n: 0 if number == one else n,
        lambda number, n: n if number == one else 0,
        lambda number, n: rng.choice((0, n)),  # noqa: ARG005
        lambda number, n: n - rng.randint(0, 1),  # noqa: ARG005
        lambda number, n: 0 if pages[number] else n,
        lambda number, n: 0 if pages[number] else rng.randint(0, n),
        lambda number, n: n if number <= one else 0,
        lambda number, n: 0 if number <= one else n,
        lambda number, n: 0,  # noqa: ARG005
        lambda number, n: n,  # noqa: ARG005
    ]
    return rng.choice(ways)


def _chunks(fd: int) -> Iterator[int]:
    """Yield the place of each chunk in which something was stored."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: a hole reaches to the end
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield from range(start // CHUNK * CHUNK, at, CHUNK)
        at = -(-at // CHUNK) * CHUNK


def _read(fd: int, place: int) -> bytes:
    """Return a chunk, zeros where the file ends before.

    A copy out of a mapping holds the interpreter's lock, so no store of a line is seen in half.
    """
    size = min(CHUNK, os.fstat(fd).st_size - place)
    if size <= 0:
        return bytes(CHUNK)
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ, offset=place) as memory:
        return memory[:].ljust(CHUNK, b"\0")


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)


def _missing(path: Path) -> WalIOError:
    return WalIOError(errno.ENOENT, "nothing is there: choose another path", str(path))
