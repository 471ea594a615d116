"""Finding the way again behind a damaged place: the next frame of this life that holds."""

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.window import WINDOW, Window

FIRST_PIECE = 4 * 1024  # looked through first: most often a page or a sector is gone

_unpack = fmt.FRAME.unpack_from


def next_frame(window: Window, salt: int, offset: int, expected: int, limit: int) -> tuple[int, int] | None:
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


def _holds(window: Window, data: bytes, begin: int, at: int, limit: int, salt: int) -> bool:
    """Whether the frame at ``at`` of ``data`` holds; the rest of it is read if need be."""
    length, check, sequence, _ = _unpack(data, at)
    end = at + fmt.FRAME_BYTES + (0 if length & fmt.SKIP_BIT else length)
    if begin + end > limit:
        return False
    if end > len(data):
        data, at = window.piece(begin + at, end - at), 0
    return scan.holds(data, at, length, check, sequence, salt, len(data))
