"""Where a record's copy stands in the retry ring.

Copies are in the order of their records' positions there: the main ring is moved oldest slot first, and a rewriting
keeps the order. So a mark at every so many copies finds any of them, and the memory is a few bytes for each thousand.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.moved import COPY_HEAD, MOVED, position_at
from aiorecover.wal.resynchronising import next_frame, unsettled
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot, first_position
from aiorecover.wal.window import Window

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
    slots = _with_copies(retry, counts_up_to)
    if not slots:
        return None
    slot = slots[max(0, bisect_right(slots, position, key=_first_mark) - 1)]
    _, place, sequence = slot.marks[max(0, bisect_right(slot.marks, position, key=_position_of) - 1)]
    return slot, place, sequence


def marked_before(retry: Ring, frame: int) -> int:
    """Position of a record whose copy stands before the ``frame`` of that position; 0: no mark tells of one."""
    behind = bisect_left(retry.live, frame, key=first_position)  # else 33 ms in 10 GB, for each place that is damaged
    slots = (slot for slot in reversed(retry.live[:behind]) if slot.marks and not slot.moved)
    found = ((slot.header.epoch, known) for slot in slots for known in reversed(slot.marks))
    return next((known[0] for epoch, known in found if fmt.position(epoch, known[2]) < frame), 0)


def first_in(slot: Slot) -> int:
    """Position of the record whose copy is the first frame in ``slot`` that holds; 0: none does, or it is no copy."""
    window = Window(slot.ring.file, patient=False)
    window.enter(slot.file_offset)
    first, end = slot.header.first_sequence, slot.header.slot_bytes - fmt.RESERVED
    found = next_frame(window, slot.salt, fmt.FIRST_FRAME, first, end)
    return 0 if found is None else position_at(window.piece(found[0], COPY_HEAD), 0, slot.salt)


def span(retry: Ring, slot: Slot, counts_up_to: int | None) -> tuple[int, int | None]:
    """First and last position of the records whose copies stood in ``slot``, or would have; None: all behind it."""
    following = (other for other in _with_copies(retry, counts_up_to) if other.header.ordinal > slot.header.ordinal)
    last = next((other.marks[0][0] - 1 for other in following), None)
    return (slot.marks[0][0], last) if slot.marks else (1, 0)


def waits(retry: Ring, position: int, counts_up_to: int | None) -> bool | None:
    """Whether a copy of the record that was accepted at ``position`` waits, of those made in this epoch.

    None: damage may have taken it. Then its slot is counted anew, and until that is done, or nothing waits there any
    more, nobody knows (`recount`).
    """
    stand = stand_before(retry, position, counts_up_to)
    if stand is None:
        return False
    slot, place, sequence = stand
    if slot.words is None or position < slot.marks[0][0]:  # everything in it is settled; it stands in none
        return False
    _reach(slot, place)
    with slot.words.cast("B") as data:
        found = _first_from(position, data, slot, ((place - fmt.SETTLE_WORD) * fmt.WORD, sequence))
        if isinstance(found, int):
            # A flipped bit settles nothing.
            return slot.words[found] != slot.done_word and not slot.is_given_up(found)
        lost = [each for passed in found for each in _lost(data, slot, passed)]
    return None if lost and _is_open(slot, lost) else False


def _reach(slot: Slot, place: int) -> None:
    """Have the copies at hand from a mark's place up to the next mark, which is the last that is looked at."""
    at = bisect_right(slot.marks, place, key=_place_of)
    end = slot.marks[at][1] * fmt.WORD + MOVED.size if at < len(slot.marks) else slot.tail
    slot.warm = True
    if place < slot.hot_from:
        slot.reach_bytes((place - fmt.SETTLE_WORD) * fmt.WORD, min(end + fmt.WORD, slot.header.slot_bytes))


class _Passed(NamedTuple):
    """Frames ``first`` to ``last`` do not hold: they stood from ``start`` to ``stop``."""

    start: int
    stop: int
    first: int
    last: int


def _first_from(position: int, data: memoryview, slot: Slot, at: tuple[int, int] | None) -> int | list[_Passed]:
    """Place of the copy of that very record, from a frame's offset and sequence on.

    Where none is found that counts: what does not hold between the copies before and behind it, in whose order it is.
    """
    passed: list[_Passed] = []
    while at is not None and at[0] < slot.tail:
        start, sequence = at
        length, check, found, word = fmt.FRAME.unpack_from(data, start)
        if found != sequence or not scan.holds(data, start, length, check, found, slot.salt, slot.tail):
            at = next_frame(_Mapped(data), slot.salt, start, sequence, slot.tail)
            stop, following = at or (slot.tail, _last(slot) + 1)
            passed.append(_Passed(start, stop, sequence, following - 1))
            continue
        if not length & fmt.SKIP_BIT and word != slot.void_word:
            accepted: int = MOVED.unpack_from(data, start + fmt.FRAME_BYTES)[0]
            if accepted == position:
                return start // fmt.WORD + fmt.SETTLE_WORD
            if accepted > position:
                break
            passed.clear()
        at = fmt.frame_end(start, length), sequence + 1
    return passed


def _last(slot: Slot) -> int:
    """The sequence of its last frame."""
    sequence: int = slot.last_sequence if slot.sealed else slot.ring.sequence
    return sequence


def _lost(data: memoryview, slot: Slot, passed: _Passed) -> Iterator[tuple[int, int]]:
    """First and last of what was not settled, as a reader names it."""
    start, stop, *sequences = passed
    settled = slot.ring.floor - fmt.position(slot.header.epoch, 0)
    for first, last in unsettled(_Mapped(data), slot, start, stop, (sequences[0], sequences[1])):
        if last > settled:
            yield max(first, settled + 1), last


def _is_open(slot: Slot, lost: list[tuple[int, int]]) -> bool:
    """Whether the slot is still to be counted anew for what is lost in it; from now on it is, if that is news."""
    losses, epoch = slot.ring.losses, slot.header.epoch
    if not all(losses.covers(epoch, *each) for each in lost):
        losses.miscounts(slot)
    return slot in losses.miscounted


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


def _with_copies(retry: Ring, counts_up_to: int | None) -> list[Slot]:
    return [slot for slot in retry.live if slot.marks and not slot.moved and _counts(slot, counts_up_to)]


def _counts(slot: Slot, counts_up_to: int | None) -> bool:
    return counts_up_to is None or slot.first_position <= counts_up_to


_first_mark: Callable[[Slot], int] = lambda slot: slot.marks[0][0]  # noqa: E731
_place_of: Callable[[tuple[int, int, int]], int] = lambda found: found[1]  # noqa: E731
_position_of: Callable[[tuple[int, int, int]], int] = lambda found: found[0]  # noqa: E731
