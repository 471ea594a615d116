"""Finding the way again behind a damaged place: the next frame of this life that holds."""

from collections.abc import Iterator
from typing import Protocol

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.slot import Slot
from aiorecover.wal.window import WINDOW

FIRST_PIECE = 4 * 1024  # looked through first: most often a page or a sector is gone

_unpack = fmt.FRAME.unpack_from


class Pieces(Protocol):
    """Where a slot's bytes come from."""

    def piece(self, begin: int, length: int) -> bytes:
        """Some bytes of the slot; fewer where it ends."""


def next_frame(window: Pieces, salt: int, offset: int, expected: int, limit: int) -> tuple[int, int] | None:
    """Place and sequence of the next valid frame from ``offset`` on and before ``limit``; None: there is none.

    Found by its settle word, never by trying every byte. Read in pieces, small ones first: a thousand damaged places in
    a slot must not cost a thousand slots. ``expected``: the sequence that should stand at ``offset``.

    Raises:
        WalIOError: a part cannot be read.

    """
    begin, size = offset, FIRST_PIECE
    while begin < limit:
        data = window.piece(begin, min(size, limit - begin))
        for at in scan.candidates(data, len(data), salt):
            sequence = _unpack(data, at)[2]
            place = begin + at
            # The checksum covers 32 bits of the sequence: no more frames can be missing than fit in between.
            if not 0 <= sequence - expected <= (place - offset) // fmt.FRAME_BYTES:
                continue
            if _holds(window, data, begin, at, limit, salt):
                return place, sequence
        if len(data) < min(size, limit - begin):  # the file was cut
            return None
        begin += max(len(data) - fmt.SETTLE_WORD * fmt.WORD, fmt.WORD)  # a header on the edge is whole next time
        size = min(2 * size, WINDOW)
    return None


def unsettled(
    window: Pieces, slot: Slot, offset: int, stop: int, sequences: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """First and last of those frames that no longer hold between ``offset`` and ``stop`` and were not settled before.

    A settle word is found as far as the frames' lengths are not damaged themselves: all behind that counts as lost.

    Raises:
        WalIOError: a part cannot be read.

    """
    data = window.piece(offset, stop - offset)
    sequence, last = sequences
    at, lost = 0, sequence
    while sequence <= last and at + fmt.FRAME_BYTES <= len(data):
        length, _, found, word = _unpack(data, at)
        if word ^ slot.salt <= fmt.VOID:
            if lost < sequence:
                yield lost, sequence - 1
            lost = sequence + 1
        sequence += 1
        if found != sequence - 1:
            break
        at = fmt.frame_end(at, 0 if length & fmt.SKIP_BIT else length)
    if lost <= last:
        yield lost, last


def _holds(window: Pieces, data: bytes, begin: int, at: int, limit: int, salt: int) -> bool:
    """Whether the frame at ``at`` of ``data`` holds; the rest of it is read if need be."""
    length, check, sequence, _ = _unpack(data, at)
    end = at + fmt.FRAME_BYTES + (0 if length & fmt.SKIP_BIT else length)
    if begin + end > limit:
        return False
    if end > len(data):
        data, at = window.piece(begin + at, end - at), 0
    return scan.holds(data, at, length, check, sequence, salt, len(data))
