"""A record that was moved: what stands before its payload in the retry and dead rings, and when a copy counts. Pure.

payload there   position i64 · partition i32 (-1: none yet) · zero i32 · the original payload
"""

import struct
from typing import NamedTuple

from aiorecover.wal import format as fmt

MOVED = struct.Struct("<qii")
MOVED_BYTES = MOVED.size
RING, RETRY, DEAD = "ring", "retry", "dead"  # the three rings, by the names of their files
NO_PARTITION = -1


class Moved(NamedTuple):
    """A copy in the retry or the dead ring; ``position`` is the original one in the main ring."""

    position: int
    partition: int
    payload: memoryview

    @property
    def epoch(self) -> int:
        """Of the original record."""
        return self.position >> fmt.SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """Of the original record: with the epoch it gives the record's id, which does not change by moving."""
        return self.position & fmt.SEQUENCE_MASK


def pack_moved(position: int, partition: int, payload: bytes | memoryview) -> bytes:
    """The payload of a copy."""
    return MOVED.pack(position, partition, 0) + payload


def unpack_moved(payload: memoryview) -> Moved:
    """A copy from its payload.

    Raises:
        ValueError: the payload is too short to be one.

    """
    if len(payload) < MOVED_BYTES:
        message = f"a moved record is too short bytes={len(payload)}"
        raise ValueError(message)
    position, partition, _ = MOVED.unpack_from(payload)
    return Moved(position, partition, payload[MOVED_BYTES:])


def prefix_of(ring: str, number: int, payload: bytes) -> tuple[int | None, int | None, int]:
    """Of a frame in ``ring``: position of its record, its partition, and how many bytes stand before the payload.

    ``number`` is the position of the frame itself. The position is None for a frame that should have a prefix and is
    too short for one.
    """
    if ring == RING:
        return number, None, 0
    try:
        copy = unpack_moved(memoryview(payload))
    except ValueError:
        return None, None, 0
    return copy.position, copy.partition if copy.partition >= 0 else None, MOVED_BYTES
