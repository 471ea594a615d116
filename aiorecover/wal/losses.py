"""What a ring has lost, as its readers find out: counted, named, and the bytes in its place pinned until they are kept.

A reader that loses its way names the sequences that are not there. What a second one meets as well was named by the
first; what only that one meets was damaged in between. So each sequence is named, and counted, once.

Sequences of the main ring are those of records. The other two rings have numbers of their own, which people are not
told: of copies the records tell that stand before and behind them, in whose order they are; of dead letters nothing.

The bytes from that place to the next frame that holds, or to the slot's end, may be all that is left of them, for
people to look at: their slot has one reader more (so it is not recycled) until the keeper has copied them, see `kept`.
"""

import logging
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import RETRY, RING
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.wal")

MOST_NAMED = 10_000  # entries of `Losses.damage`, 1 MB: a worse disk is only counted and logged
MOST_PINNED = 100  # stretches at a time: as many as are kept at all


@dataclass(frozen=True, slots=True)
class Damage:
    """Frames that are not there: sequences ``first`` to ``last`` of ``epoch``.

    ``slot`` (an ordinal) and ``file_offset`` (in the ring's file) say where the damage begins: at the start of the
    frame of ``first``, unless what stood before it there is not missed, being settled or named already. Where a whole
    slot is gone it has no place any more, and is named beside what still stands: where a slot follows in which its
    epoch goes on, or none comes before it, at the first frame of the one that follows; else where what the one before
    it holds ends; zeros where nothing stands. The last sequences may have stood elsewhere: where nothing tells how many
    frames a damaged slot held, it is named together with slots that are gone behind it.

    ``after`` and ``before``, in the retry ring: positions of records of which copies stand there, before and behind;
    the lost ones are of records that were accepted in between. 0: nothing tells.
    """

    epoch: int
    first: int
    last: int
    slot: int
    file_offset: int
    after: int = field(default=0, compare=False)  # whoever reads knows what it has read
    before: int = field(default=0, compare=False)

    @property
    def count(self) -> int:
        """How many sequences are missing."""
        return self.last - self.first + 1


def named(ring: str, damage: Damage) -> dict[str, int | str | None]:
    """What is lost, as people are told it: of which records, where that is known. ``ring``: by the name of its file."""
    if ring == RING:
        return {"epoch": damage.epoch, "sequences": f"{damage.first}-{damage.last}"}
    if ring != RETRY:
        return {"letters_at_most": damage.count}
    after, before = beside(damage)
    return {"records_at_most": damage.count, "after": _record(after), "before": _record(before)}


def beside(damage: Damage) -> tuple[int, int]:
    """``after`` and ``before``, where the two are in order: else a rewriting ends in between, and its copies begin."""
    in_order = not damage.before or damage.after < damage.before
    return damage.after if in_order else 0, damage.before


def in_words(named: dict[str, int | str | None]) -> str:
    """For a line of a log."""
    return " ".join(f"{name}={'?' if value is None else value}" for name, value in named.items())


def _record(position: int) -> str | None:
    """The end of its id."""
    epoch, sequence = fmt.parts(position)
    return f"{epoch}/{sequence}" if position else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a slot in which no frame holds: from ``start`` to ``stop``, offsets within the slot."""

    slot: Slot
    start: int
    stop: int


class Losses:
    """Of one ring; used by the loop's thread only."""

    def __init__(self, ring: str = RING) -> None:
        """Nothing is lost. ``ring``: by the name of its file."""
        self._ring = ring
        self.missing = 0  # sequences; counts on where ``damage`` ends
        self.damage: list[Damage] = []
        self._known: dict[int, list[tuple[int, int]]] = {}  # by epoch, in order: first and last of what was named
        self._ranges = 0
        self._untold: dict[int, tuple[int, int]] = {}  # by epoch: all that was not remembered stands in between
        self._pinned: list[Stretch] = []
        self.miscounted: dict[Slot, int] = {}  # which may count what is lost, and how often that was met: `recount`

    def report(self, damage: Damage, *, again: bool = False) -> bool:
        """Sequences are missing; False when that was known of all of them.

        ``again``: who tells has read them after somebody else. Where more is damaged than is named nothing tells these
        from what was counted already.
        """
        known = self._known.setdefault(damage.epoch, [])
        if self._ranges >= MOST_NAMED:
            first, last = self._untold.get(damage.epoch, (damage.first, damage.last))
            self._untold[damage.epoch] = min(first, damage.first), max(last, damage.last)
        if again and self._ranges >= MOST_NAMED:
            log.warning("more is damaged than is remembered, and not counted again epoch=%d", damage.epoch)
            return False
        new = list(_without(known, damage.first, damage.last))
        for first, last in new:
            self._count(replace(damage, first=first, last=last))
            if self._ranges < MOST_NAMED:
                insort(known, (first, last))
                self._ranges += 1
        return bool(new)

    def _count(self, damage: Damage) -> None:
        self.missing += damage.count
        if len(self.damage) < MOST_NAMED:
            self.damage.append(damage)
        log.error(
            "records are missing from the file %s %s slot=%d file_offset=%d",
            self._ring,
            in_words(named(self._ring, damage)),
            damage.slot,
            damage.file_offset,
        )

    def covers(self, epoch: int, first: int, last: int | None = None) -> bool:
        """Whether a frame was named, or all up to ``last``; beyond what is remembered: whether they may have been."""
        last = first if last is None else last
        begin, end = self._untold.get(epoch, (1, 0))
        return begin <= first <= last <= end or not any(_without(self._known.get(epoch, []), first, last))

    def miscounts(self, slot: Slot) -> None:
        """Damage was met in what the slot had counted."""
        self.miscounted[slot] = self.miscounted.get(slot, 0) + 1

    def counted(self, slot: Slot, reports: int) -> None:
        """What had been met by the time of so many ``reports`` counts no longer."""
        if self.miscounted.get(slot) == reports:
            del self.miscounted[slot]

    def pin(self, stretch: Stretch) -> None:
        """Have the bytes stay in their slot until they are kept; more than are kept are not pinned."""
        if len(self._pinned) < MOST_PINNED:
            stretch.slot.readers += 1
            self._pinned.append(stretch)

    def take_pinned(self) -> list[Stretch]:
        """What is to be kept; whoever takes it calls `unpin`, also when keeping failed."""
        pinned, self._pinned = self._pinned, []
        return pinned

    @staticmethod
    def unpin(stretches: list[Stretch]) -> None:
        """They are kept, or cannot be."""
        for stretch in stretches:
            stretch.slot.readers -= 1


def _without(known: list[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What of ``first`` to ``last`` is in none of the ranges, which are in order and apart."""
    at = max(0, bisect_left(known, (first, 0)) - 1)
    while at < len(known) and known[at][0] <= last and first <= last:
        begin, end = known[at]
        if first < begin:
            yield first, begin - 1
        first = max(first, end + 1)
        at += 1
    if first <= last:
        yield first, last
