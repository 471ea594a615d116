"""What earlier epochs left in the dead ring: counted as it is read, and known by the positions of its records."""

from array import array
from bisect import bisect_left
from itertools import pairwise

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run


class Stock:
    """Read once, by whoever needs it first, and each step by whoever comes: what is counted is counted.

    8 bytes of memory a letter.
    """

    def __init__(self, ring: Ring) -> None:
        """Nothing was read yet."""
        self.taken = False  # all was read
        self._ring = ring
        self._left = bool(ring.live)  # an earlier process may have left some
        self._reader: Reader | None = None
        self._positions = array("q")  # in order once it is taken

    @property
    def reader(self) -> Reader:
        """Gives what was not read yet."""
        if self._reader is None:
            self._reader = Reader(self._ring, _position)
        return self._reader

    @property
    def place(self) -> int | None:
        """Where the reader goes on, an offset in the file; None: there is nothing more at the moment."""
        slot, offset = self.reader.slot, self.reader.offset
        if slot is None:
            slot, offset = next(iter(self._ring.live), None), fmt.FIRST_FRAME
        elif slot.sealed and offset >= slot.tail:
            slot, offset = self._ring.after(slot), fmt.FIRST_FRAME
        return None if slot is None else slot.file_offset + offset

    def add(self, run: Run) -> None:
        """These were read; what cannot be decoded tells no position. What this process leaves, it knows by itself."""
        own = self._ring.epoch << fmt.SEQUENCE_BITS
        self._positions.extend(position for position in run.records if isinstance(position, int) and position < own)

    def remove(self, position: int) -> None:
        """A letter that was found is there no more, and its record may be refused once more."""
        if position in self:
            del self._positions[bisect_left(self._positions, position)]

    def twice(self) -> set[int]:
        """Positions of which there are two letters."""
        return {first for first, second in pairwise(sorted(self._positions)) if first == second}

    def finish(self) -> None:
        """All was read."""
        self.reader.close()
        self._reader = None  # and its window
        self._positions = array("q", sorted(self._positions))
        self.taken = True

    @property
    def may_hold_some(self) -> bool:
        """Whether an earlier process may have left a letter."""
        return bool(self._positions) if self.taken else self._left

    def __contains__(self, position: int) -> bool:
        """Whether a letter of this record was found; before all is read nobody knows, and none is."""
        if not self.taken:
            return False
        at = bisect_left(self._positions, position)
        return at < len(self._positions) and self._positions[at] == position


def _position(payload: memoryview) -> int:
    return unpack_moved(payload).position
