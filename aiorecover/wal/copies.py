"""Where a record's copy stands in the retry ring.

Copies are in the order of their records' positions there: the main ring is moved oldest slot first, and a rewriting
keeps the order. So a mark at every so many copies finds any of them, and the memory is a few bytes for each thousand.
"""

from bisect import bisect_right
from collections.abc import Callable

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.moved import MOVED
from aiorecover.wal.resynchronising import next_frame
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

EVERY = 256  # copies between two marks: found in under 0.5 ms, for 150 bytes of memory

Stand = tuple[Slot, int, int]
"""slot, place and sequence of a frame of the retry ring"""


def mark(slot: Slot, position: int, place: int, sequence: int) -> None:
    """The copy of the record that was accepted at ``position`` stands at ``place``; told of each, in order."""
    if not slot.marks or sequence - slot.marks[-1][2] >= EVERY:
        slot.marks.append((position, place, sequence))


def stand_before(retry: Ring, position: int, counts_up_to: int | None) -> Stand | None:
    """Where to begin to read for the copies from ``position`` on; None: there are no copies.

    ``counts_up_to``: retry position behind which copies do not count yet; None: all count.
    """
    slots = [slot for slot in retry.live if slot.marks and not slot.moved and _counts(slot, counts_up_to)]
    if not slots:
        return None
    slot = slots[max(0, bisect_right(slots, position, key=_first_mark) - 1)]
    _, place, sequence = slot.marks[max(0, bisect_right(slot.marks, position, key=_position_of) - 1)]
    return slot, place, sequence


def waits(retry: Ring, position: int, counts_up_to: int | None) -> bool:
    """Whether a copy of the record that was accepted at ``position`` waits, of those made in this epoch."""
    stand = stand_before(retry, position, counts_up_to)
    if stand is None:
        return False
    slot, place, sequence = stand
    if slot.words is None:  # everything in it is settled
        return False
    slot.warm = True
    with slot.words.cast("B") as data:
        found = _first_from(position, data, slot, ((place - fmt.SETTLE_WORD) * fmt.WORD, sequence))
    return found is not None and slot.waits(found)


def _first_from(position: int, data: memoryview, slot: Slot, at: tuple[int, int] | None) -> int | None:
    """Place of the copy of that very record, from a frame's offset and sequence on; None: there is none that counts."""
    while at is not None and at[0] < slot.tail:
        start, sequence = at
        length, check, found, word = fmt.FRAME.unpack_from(data, start)
        if found != sequence or not scan.holds(data, start, length, check, found, slot.salt, slot.tail):
            at = next_frame(_Mapped(data), slot.salt, start, sequence, slot.tail)
            continue
        if not length & fmt.SKIP_BIT and word != slot.void_word:
            accepted: int = MOVED.unpack_from(data, start + fmt.FRAME_BYTES)[0]
            if accepted >= position:
                return start // fmt.WORD + fmt.SETTLE_WORD if accepted == position else None
        at = fmt.frame_end(start, length), sequence + 1
    return None


class _Mapped:
    """A slot's mapping as a window of the file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def piece(self, begin: int, length: int) -> bytes:
        return bytes(self._data[begin : begin + length])


def forget(retry: Ring, copies_from: int) -> None:
    """The copies behind ``copies_from`` never count."""
    for slot in reversed(retry.live):
        slot.marks = [known for known in slot.marks if fmt.position(slot.header.epoch, known[2]) <= copies_from]
        if slot.first_position <= copies_from:
            return


def _counts(slot: Slot, counts_up_to: int | None) -> bool:
    return counts_up_to is None or slot.first_position <= counts_up_to


_first_mark: Callable[[Slot], int] = lambda slot: slot.marks[0][0]  # noqa: E731
_position_of: Callable[[tuple[int, int, int]], int] = lambda found: found[0]  # noqa: E731
