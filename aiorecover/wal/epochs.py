"""How far the epochs of a directory have come: where each ended, and up to where it is settled."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aiorecover.wal import format as fmt
from aiorecover.wal.losses import Damage
from aiorecover.wal.slot import Slot

__all__ = ["EarlierEpoch", "EpochEnd", "Epochs", "earlier_epochs"]


class EpochEnd(NamedTuple):
    """Of an epoch before the present one: the last sequence that anything tells of, and who accepted its records."""

    producer_id: int
    epoch: int
    last: int


class EarlierEpoch(NamedTuple):
    """As far as is known now; ``final``: its end was read."""

    producer_id: int
    epoch: int
    last: int
    final: bool


class Epochs:
    """The epochs before the present one of which an opening can tell the end: the last one, and those in the ring.

    Handles of slots are kept: a slot may be read, settled and recycled before anybody asks.
    """

    def __init__(self, ended: Sequence[tuple[EpochEnd, Slot | None]] = ()) -> None:
        """With the newest slot of each, where that is still needed: it tells the rest once it is read."""
        self._ended = ended

    def look(self, damage: Sequence[Damage]) -> Iterator[EarlierEpoch]:
        """The oldest first; ``damage``: what the readers of the ring have reported."""
        for end, slot in self._ended:
            lasts = [one.last for one in damage if one.epoch == end.epoch]
            if slot is not None:
                lasts.append(slot.last_sequence)
            yield EarlierEpoch(end.producer_id, end.epoch, max([end.last, *lasts]), slot is None or slot.complete)


def earlier_epochs(before: EpochEnd | None, live: Sequence[Slot]) -> Epochs:
    """``before``: the last one, if there was any; ``live``: the slots that an opening found needed, in order."""
    newest = {slot.header.epoch: slot for slot in live}
    ends = {epoch: EpochEnd(slot.header.producer_id, epoch, slot.last_sequence) for epoch, slot in newest.items()}
    if before is not None:
        ends[before.epoch] = before
    return Epochs([(end, newest.get(epoch)) for epoch, end in sorted(ends.items())])


def settled_in(epoch: int, settled_up_to: int, last: int) -> int:
    """The sequence up to which an epoch is settled, where everything up to a position is."""
    return min(last, max(0, settled_up_to - fmt.position(epoch, 0)))
