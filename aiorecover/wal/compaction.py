"""Whether the oldest slot of the main ring is moved, and whether the retry ring is rewritten. Pure.

The main ring is freed oldest first, so one stalled lane would hold everything behind its first record. Its oldest slot
is therefore moved: what is not settled in it is copied to the retry ring. That costs writing, so it is done only where
it gains space. The retry ring is freed oldest first as well; once most of it is settled, it is rewritten whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TIMES = 2  # what waits may take so many times its bytes …
SLOTS_BESIDE = 4  # … and so many slots, which come and go between two checkpoints, before a lane is not let catch up


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """What a slot holds: ``size`` bytes on the disk, of which frames of ``waiting`` bytes are not settled.

    ``movable``: nothing is written to it any more, all its frames are known, nobody reads in it but who goes back for
    what was passed over, and only for that, and for what stalled lanes have, somebody waits in it.
    """

    size: int
    waiting: int
    movable: bool


def moves_oldest(slots: Sequence[SlotLoad], *, room_needed: bool) -> bool:
    """Whether the oldest of ``slots`` is to be moved to the retry ring.

    Either under half of the used ring is unsettled: then every byte that is copied frees at least one other. Or room
    is needed at any price: then it must gain at least a slot, or a ring full of waiting records would be copied round
    and round. A slot without unsettled frames is not moved: a checkpoint frees it.
    """
    if not slots or not slots[0].movable or slots[0].waiting == 0:
        return False
    used = sum(slot.size for slot in slots)
    waiting = sum(slot.waiting for slot in slots)
    if room_needed:
        return used - waiting >= slots[0].size
    return 2 * waiting < used


def outgrows(slots: Sequence[SlotLoad]) -> bool:
    """Whether the main ring is far larger than what waits in it: twice that, and some slots.

    Then its oldest slot is moved though somebody is on the way to it, or stands in it. A lane that is well again may
    need hours for what has come together; the others' records would keep their slots for as long, behind its oldest
    one. What is copied for nothing, as it is nearly delivered, is at the most what waits, and once.
    """
    return sum(slot.size - TIMES * slot.waiting for slot in slots) > SLOTS_BESIDE * max(slot.size for slot in slots)


def rewrites(slots: Sequence[SlotLoad]) -> bool:
    """Whether the retry ring is to be rewritten: it is larger than a slot, and under half of it is unsettled."""
    if len(slots) < 2 or not all(slot.movable for slot in slots):  # noqa: PLR2004 - one slot has nothing to gain
        return False
    return 2 * sum(slot.waiting for slot in slots) < sum(slot.size for slot in slots)
