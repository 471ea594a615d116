"""What stands in a frame that was handed out: read from the slot's mapping, where delivery settles it, too.

A batch may hold copies in the retry ring, whose payload begins with the place of origin; and while it is in flight the
slot of its originals may be moved and recycled: then the copies tell.
"""

from collections.abc import Iterator
from typing import Any

from aiorecover import record as rec
from aiorecover.delivery.batch import LaneBatch
from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES, unpack_moved
from aiorecover.wal.slot import Slot


def frames_of(batch: LaneBatch) -> Iterator[tuple[Slot, int]]:
    """The batch's frames in order: their slot and place."""
    for slot, places in batch.frames:
        for place in places:
            yield slot, place


def position_at(slot: Slot, place: int) -> int:
    """The position that the frame's record was accepted with; 0 when the slot is not mapped any more."""
    slot, place = _home(slot, place)
    if slot.words is None:
        return 0
    if _is_copy(slot):
        return unpack_moved(memoryview(bytes_at(slot, place) or b"")).position
    return place_in_ring(slot, place)


def place_in_ring(slot: Slot, place: int) -> int:
    """The position of the frame itself, in whichever ring it stands; 0 when the slot is not mapped any more."""
    if slot.words is None:
        return 0
    at = place - fmt.SETTLE_WORD + fmt.SEQUENCE_WORD
    return fmt.position(slot.header.epoch, slot.words[at] | slot.words[at + 1] << 32)


def id_at(slot: Slot, place: int) -> str:
    """The id of the frame's record."""
    position = position_at(slot, place)
    owner = slot.id_prefix.decode().partition("/")[0]
    return rec.record_id(owner, *fmt.parts(position))


def waits_at(slot: Slot, place: int) -> bool:
    """Whether the frame's record is not settled yet."""
    slot, place = _home(slot, place)
    return slot.waits(place)


def payload_at(slot: Slot, place: int) -> bytes | None:
    """The payload of the frame's record; None when the slot is not mapped any more.

    Raises:
        WalCorruptError: the frame does not hold any more (I2).

    """
    slot, place = _home(slot, place)
    payload = bytes_at(slot, place)
    return payload[MOVED_BYTES:] if payload is not None and _is_copy(slot) else payload


def record_at(slot: Slot, place: int) -> Any:
    """The frame's record; None when the slot is not mapped any more.

    Raises:
        ValueError: the payload is no record.
        WalCorruptError: as `payload_at`.

    """
    payload = payload_at(slot, place)
    return None if payload is None else rec.decode(payload)


def bytes_at(slot: Slot, place: int) -> bytes | None:
    """The frame's bytes as they stand in its ring, with the place of origin; None when the slot is not mapped.

    Raises:
        WalCorruptError: as `payload_at`.

    """
    if slot.map is None or slot.words is None:  # both or neither
        return None
    first = place - fmt.SETTLE_WORD
    start = first * fmt.WORD
    payload = slot.map[start + fmt.FRAME_BYTES : start + fmt.FRAME_BYTES + slot.words[first]]
    sequence = fmt.parts(place_in_ring(slot, place))[1]
    if fmt.frame_crc(payload, slot.salt, sequence) != slot.words[first + fmt.CHECK_WORD]:
        message = "a record that was read before does not hold any more: check the disk"
        raise WalCorruptError(f"{message} slot={slot.header.ordinal} file_offset={slot.file_offset + start}")
    return payload


def _home(slot: Slot, place: int) -> tuple[Slot, int]:
    """Where the frame stands now; its copy may have been copied in its turn."""
    while slot.words is None and place in slot.copies:
        slot, place = slot.copies[place]
    return slot, place


def _is_copy(slot: Slot) -> bool:
    return slot.ring is not None and bool(slot.ring.holds_copies)
