"""What a slot still waits for, counted anew once damage was met in what it had counted.

A slot counts its unsettled frames once: those that are written in this life by their sequences, those of earlier ones
as they are read. Damage that is met afterwards leaves that count too high: nobody can settle what is not there, so the
slot would never be done, and the ring would grow until it is full for ever. Which of the frames that are lost were
settled before, their own words cannot tell. So the slot is read once more: what holds and waits, what somebody has in
hand already, and what was copied before its bytes rotted, still counts, and nothing else does.

What nobody can deliver any more may be readable again later, where a disk was away for some minutes. Were it given out
then, and settled, the slot would pass for done with others waiting in it. So the slot keeps in mind what counts, in 4
bytes for each frame, and readers pass the rest. The next opening finds it, unless a watermark or P covers it by then.
"""

from array import array
from bisect import bisect_left
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.slot import Slot

STEP = 512  # frames between two turns of the loop: about a millisecond


class Recounted(NamedTuple):
    """What came of it. Positions are those that records were accepted with.

    lost: records that the slot had counted, and that nobody can deliver any more.
    held: places of frames that are lost as well, whose records were read before, or copied: they still count, until
    settled, or until the copies are given up.
    first, last: the slot holds, or held, what waited of the records in between.
    waiting: those of them that are there.
    """

    lost: int
    held: frozenset[int]
    first: int
    last: int
    waiting: frozenset[int]


class Recount:
    """One slot, which stays until the end. `step` until it says that all is read, then `finish` without a pause."""

    def __init__(self, directory: Directory, slot: Slot) -> None:
        """Begin to read ``slot``, in which everything is counted."""
        self.slot = slot
        self._directory = directory
        self._copies = slot.ring is directory.retry
        self._reader = Reader.inside(slot.ring, slot, _position_of_copy if self._copies else _nothing, tells=True)
        self._reports = slot.ring.losses.miscounted.get(slot, 0)
        self._places = array("I")
        self._positions = array("Q")
        self._up_to = slot.last_sequence
        self._lost_pages = len(slot.lost_pages)  # so far

    def step(self, limit: int = STEP) -> bool:
        """Read up to ``limit`` frames that wait; True at the end.

        Raises:
            WalIOError: something cannot be read; what stands there counts as damaged when that is so for long.

        """
        slot = self.slot
        self._up_to = slot.last_sequence if slot.sealed else slot.ring.sequence  # what comes while it reads is behind
        end = slot.tail
        run = self._reader.look(limit)
        if run is None:
            return self._reader.offset >= end  # nothing else: what is not read counts as lost
        epoch = slot.header.epoch
        self._places.extend(run.places)
        self._positions.extend(run.records if self._copies else (fmt.position(epoch, one) for one in run.sequences))
        return False

    def finish(self, held: AbstractSet[int]) -> Recounted | None:
        """Have the slot count what is there; ``held``: places of frames in it whose records are in somebody's hands.

        None: a page in which it has read something was lost since, and what was settled there seems to wait. It is to
        be read again.

        A slot in which something that is lost is held, or in which more was met meanwhile, is to be counted once more.
        """
        self.close()
        slot = self.slot
        counted = slot.unsettled + self._up_to - slot.last_sequence
        there = slot.which_wait(self._places)
        if any(map(self._has_read_in, slot.lost_pages[self._lost_pages :])):
            return None
        gone = frozenset(held).union(slot.copies)  # whose records nobody has to read here any more
        gone = gone and gone.difference(self._places)
        lost = max(0, counted - len(there) - len(gone))
        if lost:
            slot.counted = array("I", sorted([*map(self._places.__getitem__, there), *gone]))
            slot.counted_to = self._reader.offset // fmt.WORD
            slot.ring.lose(slot, lost)
        if not gone:
            slot.ring.losses.counted(slot, self._reports)
        return Recounted(lost, gone, *self._span(), frozenset(map(self._positions.__getitem__, there)))

    def _has_read_in(self, page: tuple[int, int]) -> bool:
        """A settle word that it judges stands there."""
        begin, end = page
        at = bisect_left(self._places, begin)
        return at < len(self._places) and self._places[at] < end

    def close(self) -> None:
        """Let the slot go."""
        self._reader.close()

    def _span(self) -> tuple[int, int]:
        slot, directory = self.slot, self._directory
        if not self._copies:
            return slot.first_position, fmt.position(slot.header.epoch, self._up_to)
        first, last = copies.span(directory.retry, slot, directory.copies_from)
        moved = directory.ring.moved_up_to
        return first, moved if last is None else min(last, moved)


def nothing_counts(slot: Slot) -> bool:
    """All of it is settled or moved by now, and it may have been recycled: there is nothing to count."""
    return slot.moved or slot.done or slot.ring.slot_with(slot.header.ordinal) is not slot


def _nothing(_: memoryview) -> None:
    """Of a frame only its place and its sequence count."""


def _position_of_copy(payload: memoryview) -> int:
    try:
        return unpack_moved(payload).position
    except ValueError:  # it waits all the same, for whoever can tell what it is
        return 0
