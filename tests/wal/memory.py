"""Storage that dies with its process and loses its power.

`MemoryFile` is the real `StorageFile` over a file in memory: what the library stores, maps and reads back goes the
real way, through shared pages. Only the way to the disk is played: a sync copies the live image to the durable one.

    death of the process    the next one finds the live image; what was not synced still is not
    power cut               the durable image, and of what was not synced any sectors (pages may be torn)

Between syncs the kernel writes pages when it likes: `MemoryFile.write_back` plays that, so that a power cut also finds
older versions of a sector than the last one.

`FaultyFile` lets a test run something before and after each call: to fail it, or to do what another thread or a signal
handler would do in that moment.
"""

import errno
import mmap
import os
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.wal.storage import StorageFile

SECTOR = 512  # written whole or not at all: the one thing that the package docstring assumes of a disk
PAGE = 4096
SHARES = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)  # of the sectors that were not synced, how many a power cut lets through


class MemoryFile(StorageFile):
    """A file of pages in memory, with a second, durable image behind it."""

    def __init__(self, name: str, live: bytes = b"", durable: bytes | None = None):
        self.path = Path("/memory") / name
        self._fd = os.memfd_create(name)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        self._left = b""
        self.durable = live if durable is None else durable
        self.write(live, 0)

    def live(self) -> bytes:
        """What every process sees."""
        return self._left if self.closed else self.read(0, self.size())

    def sync(self) -> None:
        super().sync()
        self.durable = self.live()

    def close(self) -> None:
        if not self.closed:
            self._left = self.live()
            self._finalizer.detach()
        super().close()

    def unsynced(self) -> list[int]:
        """Where the sectors start that a power cut may take."""
        live, durable = self.live(), self.durable
        return [
            start
            for start in range(0, len(live), SECTOR)
            if live[start : start + SECTOR] != durable[start : start + SECTOR].ljust(SECTOR, b"\0")
        ]

    def write_back(self, seed: int) -> None:
        """The kernel makes some sectors durable, without having been asked."""
        self.durable = self._mixed(random.Random(seed), len(self.live()))

    def after_death(self) -> Self:
        """What the next process opens."""
        return type(self)(self.path.name, self.live(), self.durable)

    def after_power_cut(self, seed: int) -> Self:
        """What the next process opens when the machine went down; the seed chooses what came through."""
        chance = random.Random(seed)
        least, most = len(self.durable), len(self.live())
        size = chance.choice([least, most, chance.randrange(least, most + 1, PAGE)])
        return type(self)(self.path.name, self._mixed(chance, size))

    def flip(self, bit: int) -> None:
        """One bit rots, in memory and on the disk."""
        offset = bit // 8
        self.damage(offset, bytes([self.live()[offset] ^ 1 << bit % 8]))

    def damage(self, offset: int, data: bytes) -> None:
        """Somebody else's bytes, in memory and on the disk."""
        self.write(data, offset)
        self.durable = self.durable[:offset] + data + self.durable[offset + len(data) :]

    def cut(self, size: int) -> None:
        """Somebody shortens the file."""
        os.ftruncate(self.fileno(), size)
        self.durable = self.durable[:size]

    def _mixed(self, chance: random.Random, size: int) -> bytes:
        share = chance.choice(SHARES)
        live = self.live()
        image = bytearray(self.durable.ljust(len(live), b"\0"))
        for start in self.unsynced():
            if chance.random() < share:
                image[start : start + SECTOR] = live[start : start + SECTOR]
        return bytes(image[:size])


class FaultyFile(MemoryFile):
    """A file whose calls can be made to fail, or to meet something else at a bad moment."""

    def __init__(self, name: str, live: bytes = b"", durable: bytes | None = None):
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        super().__init__(name, live, durable)

    def sync(self) -> None:
        self._at("sync", super().sync)

    def allocate(self, offset: int, length: int) -> None:
        self._at("allocate", lambda: super(FaultyFile, self).allocate(offset, length))

    def map(self, offset: int, length: int) -> mmap.mmap:
        self._at("map", lambda: super(FaultyFile, self).map(offset, length).close())
        return mmap.mmap(self.fileno(), length, offset=offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count: int = self._at("read", lambda: super(FaultyFile, self).read_into(buffer, offset))
        return count

    def write(self, data: bytes, offset: int) -> None:
        self._at("write", lambda: super(FaultyFile, self).write(data, offset))

    def _at(self, name: str, call: Callable[[], Any]) -> Any:
        self.before.get(name, _nothing)()
        result = call()
        self.after.get(name, _nothing)()
        return result


def _nothing() -> None:
    pass


def no_room() -> NoReturn:
    """For ``FaultyFile.before``: the disk is full."""
    raise WalFullError("no room to grow the ring: free disk space or lower wal_max_bytes path=memory")


def broken() -> NoReturn:
    """For ``FaultyFile.before``: the disk answers with an error."""
    raise WalIOError(errno.EIO, "cannot use the file: input/output error", "memory")
