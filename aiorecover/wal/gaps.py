"""What is missing between the slots of a ring, and behind the last one: whole slots that are gone. Pure.

The reader of an opened ring and the view from outside go by the same rules: so a look before an opening names what the
opening will.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aiorecover.wal import format as fmt
from aiorecover.wal.losses import Damage


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader stands: ``sequence`` of ``epoch`` comes next, in the slot of this ordinal."""

    epoch: int
    sequence: int
    slot: int
    file_offset: int


START = Place(epoch=0, sequence=1, slot=0, file_offset=0)  # before all slots


def start_of(header: fmt.SlotHeader, file_offset: int) -> Place:
    """Before the first frame of a slot; ``file_offset``: where the slot starts in its file."""
    return Place(header.epoch, header.first_sequence, header.ordinal, file_offset + fmt.FIRST_FRAME)


def unjoined(before: Place, following: Place, floor: int) -> Damage | None:
    """What should stand between two slots: the sequences of one epoch join, and those of each epoch start at 1."""
    first = before.sequence if before.epoch == following.epoch else 1
    return damage_at(following.epoch, first, following.sequence - 1, following, floor)


def flushed_behind(before: Place, following: Place | None, flushed: int, floor: int) -> Damage | None:
    """What a completed flush covered up to position ``flushed``, where the slots of its epoch end behind ``before``.

    None for ``following`` is behind all slots. Of a whole ring at most one such place has something to tell of each
    epoch.
    """
    epoch, last = fmt.parts(flushed)
    if before.epoch > epoch or (following is not None and following.epoch <= epoch):
        return None
    near = following if before is START and following is not None else before
    return damage_at(epoch, before.sequence if before.epoch == epoch else 1, last, near, floor)


def last_flushed(ends: Iterable[int], epoch: int) -> int:
    """The last sequence of an epoch that a flush had covered; 0 where nothing tells. ``ends``: positions, as known."""
    return next((last for other, last in map(fmt.parts, ends) if other == epoch), 0)


def damage_at(epoch: int, first: int, last: int, near: Place, floor: int) -> Damage | None:
    """These sequences, if any; what the floor covers was settled and is not missed."""
    first = max(first, floor - fmt.position(epoch, 0) + 1)
    return Damage(epoch, first, last, near.slot, near.file_offset) if first <= last else None
