"""Where the copies of a slot's frames stand: while they do not count yet, and for who still holds the originals.

Two numbers a record: the whole retry ring may be on its way at once.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorecover.wal.slot import Slot


class Copied:
    """Places of frames in one slot, ascending, and the slots and places of their copies; those that wait count."""

    __slots__ = ("_homes", "_places", "_there", "_waiting")

    def __init__(self) -> None:
        """Nothing is copied."""
        self._places = array("I")
        self._there = array("i")  # below zero: it was settled since
        self._homes: list[tuple[int, Slot]] = []  # from which number on copies stand in that slot
        self._waiting = 0

    def __len__(self) -> int:
        """How many of them wait."""
        return self._waiting

    def __iter__(self) -> Iterator[int]:
        """Places of the frames whose copies wait."""
        return (place for place, there in zip(self._places, self._there, strict=True) if there > 0)

    def __contains__(self, place: int) -> bool:
        """Whether the frame has a copy that waits."""
        return self._number(place) is not None

    def __getitem__(self, place: int) -> "tuple[Slot, int]":
        """Slot and place of a frame's copy.

        Raises:
            KeyError: it has none, or none that waits.

        """
        number = self._number(place)
        if number is None:
            raise KeyError(place)
        return self._home(number), self._there[number]

    @property
    def homes(self) -> "Iterator[Slot]":
        """The slots in which copies stand."""
        return (home for _, home in self._homes)

    def add(self, place: int, home: "Slot", there: int) -> None:
        """One more copy, of a frame behind all before: a signal handler that raises leaves it added, or not at all.

        Raises:
            MemoryError: it is not added.

        """
        count = len(self._places)
        homes = [(count, home)]
        if self._homes and self._homes[-1][1] is home:
            homes = []
        one, other, waiting = array("I", [place]), array("i", [there]), self._waiting + 1  # a number takes memory, too
        try:
            self._homes += homes  # no call from here on, and no jump backwards
            self._places += one
            self._there += other
            self._waiting = waiting
        except MemoryError:
            self._cut(count)
            raise

    def take(self, place: int) -> "tuple[Slot, int] | None":
        """Slot and place of a copy that is settled from now on; None: the frame has none that waits."""
        number = self._number(place)
        if number is None:
            return None
        there = self._there[number]
        self._there[number] = -there
        self._waiting -= 1
        return self._home(number), there

    @property
    def last(self) -> "tuple[Slot, int] | None":
        """Slot and place of the newest copy, whether it waits or not; None: there is none."""
        return (self._homes[-1][1], abs(self._there[-1])) if self._there else None

    @property
    def last_waits(self) -> bool:
        """Whether the newest copy waits: nobody was told that it is settled."""
        return bool(self._there) and self._there[-1] > 0

    def drop_last(self) -> None:
        """The newest copy never counts."""
        self._waiting -= self._there.pop() > 0
        self._cut(len(self._there))

    def _cut(self, count: int) -> None:
        """Only the first ``count`` are there."""
        del self._places[count:]
        del self._there[count:]
        if self._homes and self._homes[-1][0] == count:
            self._homes.pop()

    def _number(self, place: int) -> int | None:
        number = bisect_left(self._places, place)
        there = number < len(self._places) and self._places[number] == place and self._there[number] > 0
        return number if there else None

    def _home(self, number: int) -> "Slot":
        return self._homes[bisect_right(self._homes, number, key=_first) - 1][1]


_first = itemgetter(0)
