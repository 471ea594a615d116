"""The slots of a ring that hold nothing: free ones, and the next one, allocated and mapped ahead of need.

The loop's thread takes from here when it goes on to the next slot; the keeper's thread prepares the next one and cuts
off what is superfluous. One lock is between them, which is re-entrant because a signal handler may publish while its
own thread holds it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from aiorecover.errors import WalFullError
from aiorecover.wal.room import KEEP_FREE, Room

Spare = tuple[int, int, Any]
"""index, salt of the life before, mapping"""


class RingFile(Protocol):
    """What a ring needs of storage."""

    def size(self) -> int: ...  # noqa: D102
    def allocate(self, offset: int, length: int) -> None: ...  # noqa: D102
    def truncate(self, size: int) -> None: ...  # noqa: D102
    def map(self, offset: int, length: int) -> Any: ...  # noqa: D102 - an mmap, or memory in tests
    def read_into(self, buffer: memoryview, offset: int) -> int: ...  # noqa: D102
    def read_ahead(self, offset: int, length: int) -> None: ...  # noqa: D102
    def sync(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a ring may grow; ``free_bytes`` asks the file system, and None does not ask.

    ``remedy``: what makes room in it.
    """

    slot_bytes: int
    max_bytes: int
    min_free_bytes: int = 0
    free_bytes: Callable[[], int] | None = None
    remedy: str = "wait for delivery to free space"


class Spares:
    """Where a ring takes its next slot from, and where it puts those that it has recycled."""

    def __init__(self, file: RingFile, limits: Limits, free: list[tuple[int, int]]) -> None:
        """``free``: index and last salt of the slots that an opening found free."""
        self.limits = limits
        self._file = file
        self._room = Room(limits.max_bytes // limits.slot_bytes)
        self._free = list(free)
        self._found = {index for index, _ in free}  # perhaps with holes: a copied file may be sparse
        self._ready: list[Spare] = []
        self._slots = file.size() // limits.slot_bytes
        self._unallocated: list[int] = []  # claimed, and then the disk was full
        self._lock = threading.RLock()

    @property
    def wanted(self) -> bool:
        """The next slot is not ready yet."""
        return not self._ready

    @property
    def full(self) -> bool:
        """There was no room for another slot, and is none yet."""
        return self._room.full

    @property
    def allocated(self) -> int:
        """Slots that the file has."""
        return self._slots - len(self._unallocated)

    @property
    def free(self) -> int:
        """Slots of the file that hold nothing."""
        return len(self._free) + len(self._ready)

    def prepare(self) -> None:
        """Have the next slot ready (the keeper's thread).

        Raises:
            WalFullError: the ring or the disk is full.

        """
        with self._lock:
            if not self._ready:
                self._ready.append(self._acquire())

    def take(self) -> Spare:
        """The next slot.

        Raises:
            WalFullError: the ring or the disk is full.

        """
        with self._lock:
            with suppress(IndexError):
                return self._ready.pop()
            return self._acquire()

    def give_back(self, spare: Spare) -> None:
        """Not needed after all."""
        self._ready.append(spare)

    def release(self, index: int, salt: int) -> None:
        """A slot was recycled."""
        self._free.append((index, salt))

    def shrink(self) -> int:
        """Give superfluous slots at the end of the file back to the disk (the keeper's thread); how many were cut off.

        Only free ones: a durable checkpoint covers them, knows an ordinal above theirs, and nothing maps them.
        """
        with self._lock:
            free = {index for index, _ in self._free}
            count = self._room.superfluous(free=len(free), used=self.allocated - self.free)
            last = self._slots
            while count > self._slots - last and (last - 1 in free or last - 1 in self._unallocated):
                last -= 1
            if last < self._slots:
                self._cut(last)
            return len(free) - len(self._free)

    def close(self) -> None:
        """Drop the mappings."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the parent's other thread may have held the lock."""
        for _, _, mapping in self._ready:
            mapping.close()
        self._ready.clear()

    def _cut(self, slots: int) -> None:
        self._free = [spare for spare in self._free if spare[0] < slots]
        self._unallocated = [index for index in self._unallocated if index < slots]
        self._slots = slots
        self._file.truncate(slots * self.limits.slot_bytes)

    def _acquire(self) -> Spare:
        index, salt = self._claim()
        try:
            return index, salt, self._map(index)
        except BaseException:
            self._free.append((index, salt))
            raise

    def _claim(self) -> tuple[int, int]:
        while True:
            free_bytes = None if self.limits.free_bytes is None else self.limits.free_bytes()
            new = self._room.take(allocated=self.allocated, free=len(self._free), disk=self._slots_within(free_bytes))
            if new is None:
                raise self._no_room(free_bytes)
            if new:
                return self._grow(), 0
            with suppress(IndexError, ValueError):  # a signal handler took it meanwhile: look again
                return self._next_free()

    def _next_free(self) -> tuple[int, int]:
        """The slot freed last: its pages are still in memory. Of many the first in the file, so that it can shrink."""
        if len(self._free) <= KEEP_FREE:
            return self._free.pop()
        first = min(self._free)
        self._free.remove(first)
        return first

    def _map(self, index: int) -> Any:
        size = self.limits.slot_bytes
        if index in self._found:
            self._file.allocate(index * size, size)
            self._found.discard(index)
        return self._file.map(index * size, size)

    def _grow(self) -> int:
        size = self.limits.slot_bytes
        index = self._claim_index()
        try:
            self._file.allocate(index * size, size)
        except BaseException:
            self._unallocated.append(index)
            raise
        return index

    def _claim_index(self) -> int:
        with suppress(IndexError):
            return self._unallocated.pop()
        index = self._slots
        self._slots = index + 1  # no call in between: a signal handler claims the next one
        return index

    def _slots_within(self, free_bytes: int | None) -> int:
        """Slots that the guard of the file system still allows."""
        if free_bytes is None:
            return self._room.most
        return max(0, free_bytes - self.limits.min_free_bytes) // self.limits.slot_bytes

    def _no_room(self, free_bytes: int | None) -> WalFullError:
        if self.allocated >= self._room.most or free_bytes is None:
            message = f"the ring is full: {self.limits.remedy}, or raise wal_max_bytes"
            return WalFullError(f"{message} wal_max_bytes={self.limits.max_bytes}")
        message = f"the disk is full: {self.limits.remedy}, or free space on the disk"
        if free_bytes >= self.limits.slot_bytes:  # else the guard is not what stands in the way
            message += ", or lower wal_min_free_bytes"
        return WalFullError(f"{message} free={free_bytes} wal_min_free_bytes={self.limits.min_free_bytes}")
