"""What a disk was told, in order, and what it may hold after the power went at any place. Pure: no file system here.

A disk keeps what it was told before a flush that it has completed. Of what came after the last one it may have kept
anything: all, nothing, some writes without those before them, some 512-byte sectors of one write. That is all that
ext4 and `aiorecover.wal` rely on; the loop device below ext4 has no FUA, so the block layer sends such a write as a
write and a flush, and the log shows both.
"""

import random
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["SECTOR", "Write", "WriteLog", "apply", "pack_flush", "pack_write", "survivors", "unpack"]

SECTOR: Final = 512  # written whole or not at all
_SUPERBLOCK: Final = range(1024, 2048)  # ext4's own assumption: it writes these two sectors in place, with one checksum
_HEAD: Final = struct.Struct("<cQI")  # kind, byte offset, length; the bytes of a write follow
_WRITE, _FLUSH = b"W", b"F"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were sent to the disk; ``offset`` is in bytes."""

    offset: int
    data: bytes

    def sectors(self) -> Iterator["Write"]:
        """The pieces that are written whole."""
        start, end = self.offset, self.offset + len(self.data)
        while start < end:
            unit = _SUPERBLOCK.stop if start in _SUPERBLOCK else (start // SECTOR + 1) * SECTOR
            stop = min(unit, end)
            yield Write(start, self.data[start - self.offset : stop - self.offset])
            start = stop


class WriteLog:
    """All writes and flushes of a disk. A *point* is a number of entries: the power goes right behind so many."""

    def __init__(self, entries: Sequence[Write | None]) -> None:
        """None is a flush."""
        self.entries = entries
        self._flushed = [index + 1 for index, entry in enumerate(entries) if entry is None]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def flushes(self) -> int:
        """How often everything before was made durable."""
        return len(self._flushed)

    def flushed(self, point: int) -> int:
        """How many of the first ``point`` entries are durable for certain: up to the last flush among them."""
        index = bisect_right(self._flushed, point)
        return self._flushed[index - 1] if index else 0

    def durable(self, begin: int, point: int) -> list[Write]:
        """The writes behind the first ``begin`` entries that are durable at ``point``."""
        return [entry for entry in self.entries[begin : self.flushed(point)] if entry is not None]

    def pending(self, point: int) -> list[Write]:
        """The writes of which anything may be on the disk at ``point``."""
        return [entry for entry in self.entries[self.flushed(point) : point] if entry is not None]


def survivors(pending: Sequence[Write], rng: random.Random) -> list[Write]:
    """What the disk kept of ``pending``, in the order in which it was sent."""
    if not pending:
        return []
    kind = rng.choice(["all", "none", "one", "but one", "prefix", "some", "some", "torn", "torn", "torn"])
    some = rng.randrange(len(pending))
    if kind == "one":
        return [pending[some]]
    if kind == "but one":
        return [write for index, write in enumerate(pending) if index != some]
    if kind == "prefix":
        torn = list(pending[some].sectors())
        return [*pending[:some], *torn[: rng.randrange(len(torn) + 1)]]
    share = {"all": 1.0, "none": 0.0}.get(kind) or rng.choice([0.1, 0.5, 0.9])
    if kind == "none":
        return []
    pieces: Iterable[Write] = pending
    if kind == "torn":
        pieces = (sector for write in pending for sector in write.sectors())
    return [piece for piece in pieces if rng.random() < share]


def apply(image: bytearray, writes: Iterable[Write]) -> None:
    """Put writes on an image."""
    for write in writes:
        image[write.offset : write.offset + len(write.data)] = write.data


def pack_write(offset: int, data: bytes) -> bytes:
    """A write as it stands in a log file."""
    return _HEAD.pack(_WRITE, offset, len(data)) + data


def pack_flush() -> bytes:
    """A flush as it stands in a log file."""
    return _HEAD.pack(_FLUSH, 0, 0)


def unpack(data: bytes) -> WriteLog:
    """The log in a log file."""
    entries: list[Write | None] = []
    at = 0
    while at < len(data):
        kind, offset, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        entries.append(Write(offset, data[at : at + length]) if kind == _WRITE else None)
        at += length
    return WriteLog(entries)
