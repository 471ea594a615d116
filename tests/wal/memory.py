"""Files of a `MemoryDisk`, one by one, whose calls can be made to fail or to meet something else at a bad moment.

What survives the death of the process and a power cut is told in `aiorecover.testing.memory_disk`. `FaultyFile` lets a
test run something before and after each call: to fail it, or to do what another thread or a signal handler would do in
that moment.
"""

import errno
import mmap
import os
import random
from collections.abc import Callable
from typing import Any, NoReturn, Self

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.testing import memory_file
from aiorecover.testing.memory_file import PAGE, SECTOR, StoredFile

__all__ = ["PAGE", "SECTOR", "FaultyFile", "MemoryFile", "broken", "no_blocks", "no_room"]


class MemoryFile(memory_file.MemoryFile):
    """A file with what stands behind it: one opening is enough here."""

    def __init__(self, name: str, live: bytes = b"", durable: bytes | None = None):
        self._of(StoredFile(name, live, durable))

    def _of(self, stored: StoredFile) -> Self:
        memory_file.MemoryFile.__init__(self, stored)
        self.live = stored.live
        self.unsynced = stored.unsynced
        self.write_back = stored.write_back
        self.flip = stored.flip
        self.damage = stored.damage
        self.cut = stored.cut
        return self

    @property
    def durable(self) -> bytes:
        return self.stored.durable

    def after_death(self) -> Self:
        """What the next process opens."""
        return self._another(self.stored.after_process_death())

    def after_power_cut(self, seed: int, sector: int = SECTOR) -> Self:
        """What the next process opens when the machine went down; the seed chooses what came through."""
        return self._another(self.stored.after_power_cut(self.live(), random.Random(seed), sector))

    def _another(self, stored: StoredFile) -> Self:
        return type(self).__new__(type(self))._of(stored)


class FaultyFile(MemoryFile):
    """A file whose calls can be made to fail, or to meet something else at a bad moment."""

    def _of(self, stored: StoredFile) -> Self:
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        return super()._of(stored)

    def sync(self) -> None:
        self._at("sync", super().sync)

    def rewrite(self, offset: int, length: int) -> None:
        self._at("rewrite", lambda: super(FaultyFile, self).rewrite(offset, length))

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
    raise WalFullError("no room to grow the file: free disk space or lower wal_max_bytes path=memory")


def broken() -> NoReturn:
    """For ``FaultyFile.before``: the disk answers with an error."""
    raise WalIOError(errno.EIO, "cannot use the file: input/output error", "memory")


def no_blocks(_: int) -> NoReturn:
    """For ``StoredFile.belong_to``: the disk has no room for another block."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
