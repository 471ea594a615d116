"""A file of a `MemoryDisk`: what the kernel has of it, what the disk has of it, and what can go wrong in between.

`StoredFile` is what stands behind a name. `MemoryFile` is one opening of it: the library's real `StorageFile` over
pages in memory (a memfd), so that what is stored, mapped, locked and read back goes the real way. Only the way to the
disk is played: a sync copies the live image to the durable one.
"""

import errno
import itertools
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from mmap import PROT_READ, mmap
from pathlib import Path

from aiorecover.wal.storage import AFTER_FLUSH, StorageFile, os_errors

SECTOR = 512  # written whole or not at all: the one thing that the package docstring of wal assumes of a disk
PAGE = 4096  # what the kernel calls dirty or clean
_INODES = itertools.count(1)
SHARES = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)  # of the sectors that were not synced, how many a power cut lets through


class StoredFile:
    """A file as kernel and disk have it; found by `MemoryDisk.file`.

    ``durable`` is the image that is on the disk for certain; `live` is what every process sees.
    """

    def __init__(
        self,
        name: str,
        live: bytes = b"",
        durable: bytes | None = None,
        *,
        called_clean: Mapping[int, bytes] | None = None,
        unreadable: Sequence[tuple[int, int]] = (),
        inode: int | None = None,
    ) -> None:
        """``durable``: as ``live`` if left out; ``inode``: a new one if left out."""
        self.name = name
        self.inode = next(_INODES) if inode is None else inode
        self.durable = live if durable is None else durable
        self.lock = threading.RLock()
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.pwrite(self.descriptor, live, 0)
        self._reserve: Callable[[int], None] = _endless
        self._called_clean = dict(called_clean or {})  # where a page starts, what it held when its sync failed
        self._failing_syncs = 0
        self._unreadable = list(unreadable)
        self._holes: set[int] = set()  # pages that were given back to the disk

    # -- looking -----------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Live length in bytes."""
        return os.fstat(self.descriptor).st_size

    def disk_bytes(self) -> int:
        """What it takes on the disk: less than its length where it has holes."""
        return self.size() - PAGE * len(self._holes)

    def identity(self) -> tuple[int, int]:
        """Device and inode: those of a crash image are the same, as on a disk."""
        return 0, self.inode

    def live(self) -> bytes:
        """What every process sees."""
        with self.lock:
            return live_images([self])[0]

    def unsynced(self, sector: int = SECTOR) -> list[int]:
        """Where the sectors start that the kernel still would write, and that a power cut may take."""
        with self.lock:
            return list(self._dirty(self.live(), sector))

    # -- what happens to it ------------------------------------------------------------------------------------------

    def write_back(self, seed: int | str) -> None:
        """The kernel makes some sectors durable without having been asked; the seed chooses which."""
        with self.lock:
            live = self.live()
            self.durable = self._mixed(live, random.Random(seed), len(live), SECTOR)

    def fail_syncs(self, times: int = 1) -> None:
        """Let so many syncs fail with EIO, as Linux does it: what was dirty is called clean from then on.

        It stays readable, but no later sync makes it durable: only pages that are stored into again are written, and
        those that `StorageFile.rewrite` was asked for. (A store that leaves a page as it was is not seen.)
        """
        self._failing_syncs = times

    def evict(self, seed: int | str) -> int:
        """Let pages that a failed sync has called clean leave memory; how many did. The seed chooses which.

        The kernel may drop a clean page at any moment, and what the disk has comes back, in mappings, too: older bytes,
        or zeros. Pages that were stored into or rewritten since are not called clean any more, and stay.
        """
        with self.lock:
            live, chance = self.live(), random.Random(seed)
            share = chance.choice(SHARES)
            clean = [page for page, held in self._called_clean.items() if live[page : page + PAGE] == held]
            gone = [page for page in clean if chance.random() < share]
            for page in gone:
                held = self._called_clean.pop(page)
                os.pwrite(self.descriptor, self.durable[page : page + len(held)].ljust(len(held), b"\0"), page)
            return len(gone)

    def fail_reads(self, offset: int, length: int) -> None:
        """Let reads that touch this part fail with EIO, in crash images too; what is mapped is not affected.

        The pages that it lies in, as the kernel reads no less than that. A page that is written whole, by a write and
        not through a mapping, can be read again, as on a disk that puts another sector in the place of a bad one.
        """
        self._unreadable.append((offset - offset % PAGE, offset + length + -(offset + length) % PAGE))

    def flip(self, bit: int) -> None:
        """One bit rots, in memory and on the disk; bit 8 is the lowest one of byte 1."""
        offset, number = divmod(bit, 8)
        self.damage(offset, bytes([self.live()[offset] ^ 1 << number]))

    def damage(self, offset: int, data: bytes) -> None:
        """Somebody else's bytes, in memory and on the disk."""
        with self.lock:
            os.pwrite(self.descriptor, data, offset)
            self.durable = self.durable[:offset].ljust(offset, b"\0") + data + self.durable[offset + len(data) :]
            live = self.live()
            for page in self._called_clean:
                self._called_clean[page] = live[page : page + PAGE]

    def cut(self, size: int) -> None:
        """Somebody shortens the file to ``size`` bytes, durably. Stores through mappings behind it are then SIGBUS."""
        with self.lock:
            os.ftruncate(self.descriptor, size)
            self.durable = self.durable[:size]
            self.shortened()

    # -- for openings of it ------------------------------------------------------------------------------------------

    def belong_to(self, lock: "threading.RLock", reserve: Callable[[int], None]) -> None:
        """Share the lock of a disk; ``reserve`` raises OSError when it cannot hold so many bytes more."""
        self.lock = lock
        self._reserve = reserve

    def claim(self, offset: int, length: int) -> None:
        """Raise OSError when there is no room for this part of the file."""
        holes = self._holes.intersection(range(offset - offset % PAGE, offset + length, PAGE))
        grown = max(0, offset + length - self.size()) + PAGE * len(holes)
        if grown > 0:
            self._reserve(grown)
        self._holes -= holes

    def punched(self, offset: int, length: int) -> None:
        """A part was given back; whole pages of it that are not the last one of the file."""
        self._holes.update(range(offset, min(offset + length, self.size() - PAGE + 1), PAGE))
        self.dirty(offset, length)

    def shortened(self) -> None:
        """Nothing stands behind the end any more."""
        self._holes = {page for page in self._holes if page < self.size()}

    def check_readable(self, offset: int, length: int) -> None:
        """Raise OSError when a part of this cannot be read."""
        if any(offset < end and start < offset + length for start, end in self._unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def written(self, offset: int, length: int) -> None:
        """A part was written: the pages that lie in it as a whole can be read."""
        self.dirty(offset, length)
        first, last = offset + -offset % PAGE, (offset + length) // PAGE * PAGE
        if first < last:
            parts = [
                part for start, end in self._unreadable for part in ((start, min(end, first)), (max(start, last), end))
            ]
            self._unreadable = [(start, end) for start, end in parts if start < end]

    def dirty(self, offset: int, length: int) -> None:
        """The pages of a part were written, whatever they hold."""
        for page in range(offset - offset % PAGE, offset + length, PAGE):
            self._called_clean.pop(page, None)

    def sync(self) -> None:
        """Make durable what is dirty, all of it as it is at one moment."""
        with self.lock:
            live = self.live()
            if self._failing_syncs:
                self._failing_syncs -= 1
                self._called_clean |= {start: live[start : start + PAGE] for start in self._dirty(live, PAGE)}
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            lost = {page: held for page, held in self._called_clean.items() if live[page : page + PAGE] == held}
            image = bytearray(live)
            for page, held in lost.items():
                image[page : page + PAGE] = self.durable[page : page + len(held)].ljust(len(held), b"\0")
            self.durable = bytes(image) if lost else live
            self._called_clean = lost

    # -- crash images ------------------------------------------------------------------------------------------------

    def after_process_death(self, live: bytes | None = None) -> "StoredFile":
        """A copy: the kernel keeps the pages, and what it believes of them. ``live``: as captured before."""
        live = self.live() if live is None else live
        copy = StoredFile(
            self.name,
            live,
            self.durable,
            called_clean=self._called_clean,
            unreadable=self._unreadable,
            inode=self.inode,
        )
        copy._holes = {page for page in self._holes if page < len(live)}
        return copy

    def after_power_cut(self, live: bytes, chance: random.Random, sector: int) -> "StoredFile":
        """A copy with the durable image, some sectors of ``live`` that were not synced, and a length in between."""
        least, most = sorted((len(self.durable), len(live)))
        size = chance.choice([least, most, chance.randrange(least, most + 1, PAGE)])
        image = self._mixed(live, chance, size, sector)
        return StoredFile(self.name, image, unreadable=self._unreadable, inode=self.inode)

    def _dirty(self, live: bytes, sector: int) -> Iterator[int]:
        for page in range(0, len(live), PAGE):
            held = live[page : page + PAGE]
            known = self.durable[page : page + PAGE].ljust(len(held), b"\0")
            if held == known or self._called_clean.get(page) == held:
                continue
            for start in range(0, len(held), sector):
                if held[start : start + sector] != known[start : start + sector]:
                    yield page + start

    def _mixed(self, live: bytes, chance: random.Random, size: int, sector: int) -> bytes:
        share = chance.choice(SHARES)
        image = bytearray(self.durable.ljust(len(live), b"\0"))
        for start in self._dirty(live, sector):
            if chance.random() < share:
                piece = live[start : start + sector]
                image[start : start + len(piece)] = piece
        return bytes(image[:size])


def _endless(_: int) -> None:
    pass


def live_images(files: Sequence[StoredFile]) -> list[bytes]:
    """The live images of several files, all of the same moment."""
    with ExitStack() as stack:
        views = [stack.enter_context(_view(file)) for file in files]
        return list(map(bytes, views))  # one call into C, with the lock of the interpreter: nobody stores meanwhile


@contextmanager
def _view(file: StoredFile) -> Iterator[memoryview]:
    size = file.size()
    if size == 0:  # cannot be mapped
        yield memoryview(b"")
        return
    with mmap(file.descriptor, size, prot=PROT_READ) as mapping, memoryview(mapping) as view:
        yield view


class MemoryFile(StorageFile):
    """One opening of a `StoredFile`."""

    def __init__(self, stored: StoredFile, path: Path | None = None) -> None:
        """``path`` is for messages."""
        # Through /proc, not dup: each opening has a lock of its own, as with open().
        descriptor = os.open(f"/proc/self/fd/{stored.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        super().__init__(path or Path("/memory") / stored.name, descriptor=descriptor)
        self.stored = stored
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    def identity(self) -> tuple[int, int]:
        """As the disk gives it out."""
        super().identity()  # fails on a closed file, as a real one would
        return self.stored.identity()

    def allocate(self, offset: int, length: int) -> None:
        """Grow, as long as the disk has room."""
        with self.stored.lock:
            with os_errors("grow the file", self.path):
                self.stored.claim(offset, length)
            super().allocate(offset, length)

    def _read_once(self, buffer: memoryview, offset: int) -> int:
        try:
            self.stored.check_readable(offset, len(buffer))
        except OSError:
            self.failed_reads += 1
            raise
        return super()._read_once(buffer, offset)

    def write(self, data: bytes, offset: int) -> None:
        """Write, as long as the disk has room."""
        with self.stored.lock:
            with os_errors("write the file", self.path):
                self.stored.claim(offset, len(data))
            super().write(data, offset)
            self.stored.written(offset, len(data))

    def truncate(self, size: int) -> None:
        """Shorten the file; a power cut before the next sync may leave its old length."""
        with self.stored.lock:
            super().truncate(size)
            self.stored.shortened()

    def punch(self, offset: int, length: int) -> bool:
        """Give a part back to the disk; a power cut before the next sync may bring any of it back."""
        with self.stored.lock:
            done = super().punch(offset, length)
            if done:
                self.stored.punched(offset, length)
            return done

    def disk_bytes(self) -> int:
        """What the disk has of it."""
        super().disk_bytes()  # fails on a closed file, as a real one would
        return self.stored.disk_bytes()

    def rewrite(self, offset: int, length: int) -> None:
        """Have the next sync write a part again, also what a failed one left behind as clean."""
        with self.stored.lock:
            with os_errors("rewrite the file", self.path):
                self.stored.check_readable(offset, length)
            super().rewrite(offset, length)
            self.stored.dirty(offset, length)

    def sync(self) -> None:
        """Make everything stored so far durable."""
        super().sync()  # nothing to do on memory, but it fails where a real one would: on a closed file
        with os_errors("flush the file to the disk", self.path, full=frozenset(), remedy=AFTER_FLUSH):
            self.stored.sync()

    def close(self) -> None:
        """Close this opening; the lock goes with it."""
        self._finalizer.detach()
        super().close()
