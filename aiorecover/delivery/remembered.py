"""Where the records that were delivered last are in Kafka, for who asks afterwards.

What is kept of a batch is what the batch had already: its frames, and the offset of the first one. Only when somebody
asks is what came since put in order by place, so a record is found in a constant number of looks, and whoever never
asks pays nothing for it.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import NamedTuple

from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

REMEMBERED_RECORDS = 65_536  # records whose offset can be told afterwards; about 3 MB, twice that once somebody asks


class Group(NamedTuple):
    """A batch's frames in one slot: their places, and the partition and offset of the first one."""

    slot: Slot
    places: list[int]
    partition: int
    offset: int  # negative: the broker did not tell

    def offset_of(self, place: int) -> int | None:
        """The offset of one of them."""
        return None if self.offset < 0 else self.offset + self._number(place)

    def _number(self, place: int) -> int:
        at = bisect_left(self.places, place)
        if at < len(self.places) and self.places[at] == place:
            return at
        return self.places.index(place)  # records without a key need not stand in order


class Remembered:
    """The newest delivered records, up to a bound; whole batches."""

    def __init__(self, ring: Ring) -> None:
        """Remember nothing yet of ``ring``, the one that is published to."""
        self._ring = ring
        self._batches: deque[tuple[list[Group], int]] = deque()
        self._count = 0
        self._unordered: deque[list[Group]] = deque()  # the newest of them: nobody has asked since they came
        self._slots: dict[int, dict[int, Group]] = {}  # by a slot's first sequence, then by place
        self._firsts: list[int] = []  # keys of `_slots`, in order

    def __len__(self) -> int:
        """How many batches."""
        return len(self._batches)

    @property
    def found_at_once(self) -> int:
        """How many records stand in order."""
        return sum(len(places) for places in self._slots.values())

    def keep(self, frames: list[tuple[Slot, list[int]]], count: int, partition: int, offset: int) -> None:
        """A batch of so many records is in Kafka, from ``offset`` on; negative: the broker does not tell."""
        groups = []
        for slot, places in frames:
            groups.append(Group(slot, places, partition, offset))
            offset += len(places) if offset >= 0 else 0
        self._batches.append((groups, count))
        self._unordered.append(groups)
        self._count += count
        while self._count > REMEMBERED_RECORDS and len(self._batches) > 1:
            self._forget()

    def find(self, sequence: int, place: int) -> Group | None:
        """Where a record of this epoch went, which stands at ``place`` of its slot; None: that is not known."""
        while self._unordered:
            self._put_in_order(self._unordered.popleft())
        at = bisect_right(self._firsts, sequence) - 1
        group = self._slots[self._firsts[at]].get(place) if at >= 0 else None
        return group if group is not None and self._holds(group.slot, sequence) else None

    def _holds(self, slot: Slot, sequence: int) -> bool:
        return sequence <= (slot.last_sequence if slot.sealed else self._ring.sequence)

    def _is_own(self, slot: Slot) -> bool:
        """Whether it holds records of this epoch where they were published."""
        return slot.ring is self._ring and slot.header.epoch == self._ring.epoch

    def _put_in_order(self, groups: list[Group]) -> None:
        for group in groups:
            if not self._is_own(group.slot):
                continue
            first = group.slot.header.first_sequence
            if first not in self._slots:
                self._slots[first] = {}
                insort(self._firsts, first)
            self._slots[first].update(dict.fromkeys(group.places, group))

    def _forget(self) -> None:
        """The oldest batch."""
        groups, count = self._batches.popleft()
        self._count -= count
        if self._unordered and self._unordered[0] is groups:  # then nothing that was put in order is left
            self._unordered.popleft()
            return
        for group in groups:
            self._take_out(group)

    def _take_out(self, group: Group) -> None:
        first = group.slot.header.first_sequence
        found = self._slots.get(first) if self._is_own(group.slot) else None
        if found is None:
            return
        for place in group.places:
            if found.get(place) is group:
                del found[place]
        if not found:
            del self._slots[first]
            del self._firsts[bisect_left(self._firsts, first)]
