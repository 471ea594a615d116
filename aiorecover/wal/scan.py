"""Frames in a piece of a slot's bytes: whether one holds, and where others may stand. Pure."""

from collections.abc import Iterator
from heapq import merge

from aiorecover.wal import format as fmt

HALF = fmt.WORD // 2  # bytes of a word
AGAIN_MOST = 8  # times that a frame is found where it cannot be taken: a page that comes and goes; then it is lost


def holds(
    data: bytes | bytearray | memoryview, at: int, length: int, check: int, sequence: int, salt: int, stop: int
) -> bool:
    """Whether the frame at ``at`` is whole before ``stop`` and its checksum holds for this life of the slot."""
    if length & fmt.SKIP_BIT:
        return check == fmt.skip_crc(length, salt, sequence)
    end = at + fmt.FRAME_BYTES + length
    return end <= stop and check == fmt.frame_crc(memoryview(data)[at + fmt.FRAME_BYTES : end], salt, sequence)


def candidates(data: bytes | bytearray, stop: int, salt: int) -> Iterator[int]:
    """Where frames of this life may start in ``data[:stop]``, header and all, in order: by their settle words.

    ``data`` must begin on a frame's alignment.
    """
    halves = (word >> fmt.MARK_BITS for word in (fmt.open_word(salt), salt))
    places = merge(*(_hits(data, stop, half.to_bytes(HALF, "little")) for half in halves))
    settle_offset = fmt.SETTLE_WORD * fmt.WORD
    return (hit - settle_offset for hit in places if hit >= settle_offset)


def _hits(data: bytes | bytearray, stop: int, half: bytes) -> Iterator[int]:
    """Where words with this high half stand on a frame's alignment; the low half may be any mark."""
    at = data.find(half, HALF, stop)
    while at >= 0:
        if at % fmt.WORD == HALF:
            yield at - HALF
        at = data.find(half, at + 1, stop)
