"""What stands in a frame that was handed out: read from the slot's mapping, where delivery settles it, too."""

from collections.abc import Iterator
from typing import Any

from aiorecover import record as rec
from aiorecover.delivery.batch import LaneBatch
from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot


def frames_of(batch: LaneBatch) -> Iterator[tuple[Slot, int]]:
    """The batch's frames in order: their slot and place."""
    for slot, places in batch.frames:
        for place in places:
            yield slot, place


def sequence_at(slot: Slot, place: int) -> int:
    """The frame's sequence; 0 when the slot is not mapped any more."""
    words = slot.words
    if words is None:
        return 0
    at = place - fmt.SETTLE_WORD + fmt.SEQUENCE_WORD
    return words[at] | words[at + 1] << 32


def payload_at(slot: Slot, place: int) -> bytes | None:
    """The frame's payload; None when the slot is not mapped any more."""
    if slot.map is None or slot.words is None:  # both or neither
        return None
    start = (place - fmt.SETTLE_WORD) * fmt.WORD
    length = slot.words[place - fmt.SETTLE_WORD]
    return slot.map[start + fmt.FRAME_BYTES : start + fmt.FRAME_BYTES + length]


def record_at(slot: Slot, place: int) -> Any:
    """The frame's record; None when the slot is not mapped any more.

    Raises:
        ValueError: the payload is no record.

    """
    payload = payload_at(slot, place)
    return None if payload is None else rec.decode(payload)
