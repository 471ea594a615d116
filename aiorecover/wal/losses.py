"""What a ring has lost, as its readers find out: counted, named, and the bytes in its place pinned until they are kept.

A reader that loses its way names the sequences that are not there. The bytes from that place to the next frame that
holds, or to the slot's end, may be all that is left of them, for people to look at: their slot has one reader more
(so it is not recycled) until the keeper has copied them, see `kept`.
"""

import logging
from dataclasses import dataclass

from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.wal")

MOST_NAMED = 10_000  # entries of `Losses.damage`, 1 MB: a worse disk is only counted and logged
MOST_PINNED = 100  # stretches at a time: as many as are kept at all


@dataclass(frozen=True, slots=True)
class Damage:
    """Frames that are not there: sequences ``first`` to ``last`` of ``epoch`` at ``file_offset``."""

    epoch: int
    first: int
    last: int
    slot: int
    file_offset: int

    @property
    def count(self) -> int:
        """How many sequences are missing."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a slot in which no frame holds: from ``start`` to ``stop``, offsets within the slot."""

    slot: Slot
    start: int
    stop: int


class Losses:
    """Of one ring; used by the loop's thread only."""

    def __init__(self) -> None:
        """Nothing is lost."""
        self.missing = 0  # sequences; counts on where ``damage`` ends
        self.damage: list[Damage] = []
        self._pinned: list[Stretch] = []

    def report(self, damage: Damage) -> None:
        """Sequences are missing."""
        self.missing += damage.count
        if len(self.damage) < MOST_NAMED:
            self.damage.append(damage)
        log.error(
            "records are missing from the ring epoch=%d sequences=%d-%d slot=%d file_offset=%d",
            damage.epoch,
            damage.first,
            damage.last,
            damage.slot,
            damage.file_offset,
        )

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
