"""A record that was moved: what stands before its payload in the retry and dead rings, and when a copy counts. Pure.

payload there   position i64 · partition i32 (-1: none yet) · nonce u32 · the original payload
"""

import struct
from typing import NamedTuple

from aiorecover.wal import format as fmt

MOVED = struct.Struct("<qiI")
MOVED_BYTES = MOVED.size
COPY_HEAD = fmt.FRAME_BYTES + MOVED_BYTES  # of a frame: all that tells whose copy it is
RING, RETRY, DEAD = "ring", "retry", "dead"  # the three rings, by the names of their files
NO_PARTITION = -1


class Moved(NamedTuple):
    """A copy in the retry or the dead ring.

    ``position`` and ``nonce``: of the original in the main ring. With the directory they give the record's id, which
    does not change by moving.
    """

    position: int
    nonce: int
    partition: int
    payload: memoryview

    @property
    def epoch(self) -> int:
        """Of the original record."""
        return self.position >> fmt.SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """Of the original record."""
        return self.position & fmt.SEQUENCE_MASK

    def producer_id(self, header: fmt.SlotHeader) -> int:
        """In the id of the original record; ``header``: of the slot that the copy stands in."""
        return fmt.with_nonce(header.producer_id, self.nonce)


def pack_moved(position: int, nonce: int, partition: int, payload: bytes | memoryview) -> bytes:
    """The payload of a copy; ``nonce`` is that of the opening which accepted the record."""
    return MOVED.pack(position, partition, nonce) + payload


def unpack_moved(payload: memoryview) -> Moved:
    """A copy from its payload.

    Raises:
        ValueError: the payload is too short to be one, or says a position that no record has.

    """
    if len(payload) < MOVED_BYTES:
        message = f"a moved record is too short bytes={len(payload)}"
        raise ValueError(message)
    position, partition, nonce = MOVED.unpack_from(payload)
    if position <= 0:
        message = f"a moved record was accepted nowhere {position=}"
        raise ValueError(message)
    return Moved(position, nonce, partition, payload[MOVED_BYTES:])


def position_at(data: bytes | memoryview, at: int, salt: int) -> int:
    """Position of the record whose copy is the frame at ``at``, which holds; 0 for one that is the copy of none."""
    if len(data) < at + COPY_HEAD:
        return 0
    length, _, _, word = fmt.FRAME.unpack_from(data, at)
    if length & fmt.SKIP_BIT or length < MOVED_BYTES or word == salt ^ fmt.VOID:
        return 0
    position: int = MOVED.unpack_from(data, at + fmt.FRAME_BYTES)[0]
    return max(0, position)


class Origin(NamedTuple):
    """Whose frame it is: position and producer id of its record, its partition, and bytes before the payload."""

    position: int
    producer_id: int
    partition: int | None
    skipped: int


def origin_of(ring: str, header: fmt.SlotHeader, number: int, payload: bytes) -> Origin | None:
    """Of a frame in ``ring``; None for one that should have a place of origin and is too short for it.

    ``number`` is the position of the frame itself, ``header`` that of its slot.
    """
    if ring == RING:
        return Origin(number, header.producer_id, None, 0)
    try:
        copy = unpack_moved(memoryview(payload))
    except ValueError:
        return None
    partition = copy.partition if copy.partition >= 0 else None
    return Origin(copy.position, copy.producer_id(header), partition, MOVED_BYTES)
