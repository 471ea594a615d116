"""What stands in a frame that was handed out: read from the slot's mapping, where delivery settles it, too.

A batch may hold copies in the retry ring, whose payload begins with the place of origin; and while it is in flight the
slot of its originals may be moved and recycled: then the copies tell.

What rots
    The page of a frame may leave memory after its record was read, and the disk give something else back. That is never
    taken for another record (I2): `payload_at` and `record_at` raise, `position_at` does not know. One rule for all who
    use frames: what a batch was filled with is whole, in its own bytes (`LaneBatch.records`), and tells what it can;
    what only the frame knows (context and source of the record) is left out of a report, and never out of a letter.

    sent, cut       From the batch's bytes. So are its records' timestamps judged, and its positions found
                    (`positions_of`): who waits is told, what was delivered is settled and counted as any other.
    expired         There is no letter: it is tried on, and what comes behind it with it (`expiry`).
    rehomed         Only the frame knows whether a record names its partition: the lane halts, as below (`rehoming`).
    refused         There is no letter, and trying on is no use: the lane halts, alone, until the next start, which
                    names the record as missing (`refused`).
    undecodable     In no batch: it is let go, and lost once its slot is counted anew (`let_go`).
    a dead letter   Of which a copy is owed to the topic: none is made; the next start names it as missing.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from aiorecover import record as rec
from aiorecover.delivery.batch import Held, LaneBatch
from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES, unpack_moved
from aiorecover.wal.slot import Slot

SEQUENCE_BEFORE = fmt.SETTLE_WORD - fmt.SEQUENCE_WORD  # words from a frame's sequence to its place


class Named(NamedTuple):
    """A frame, and what makes its record's id: the position and the nonce that it was accepted with."""

    slot: Slot
    place: int
    position: int
    nonce: int

    @property
    def record_id(self) -> str:
        """The id of the record."""
        producer_id = fmt.with_nonce(self.slot.header.producer_id, self.nonce)
        return rec.record_id(fmt.producer_text(producer_id), *fmt.parts(self.position))


def frames_of(batch: LaneBatch) -> Iterator[tuple[Slot, int]]:
    """The batch's frames in order: their slot and place."""
    for slot, places in batch.frames:
        for place in places:
            yield slot, place


class Names:
    """Who the records of a batch are, asked for in their order: by their frames, or where one has rotted, by the batch.

    Nothing is added to the batch any more.
    """

    def __init__(self, batch: LaneBatch) -> None:
        """Nothing is read before it must be."""
        self._records = enumerate(batch.records())

    def of(self, number: int, slot: Slot, place: int, position: int) -> Named:
        """Of the record with a ``position``, which `placed_of` gives."""
        nonce = nonce_at(slot, place)
        if nonce is None:
            record = self.held(number)
            nonce = record.nonce if record is not None else 0
        return Named(slot, place, position, nonce)

    def held(self, number: int) -> Held | None:
        """The batch's own record, of which the frame does not tell any more."""
        return next((record for at, record in self._records if at == number), None)


def placed_of(batch: LaneBatch) -> Iterator[tuple[Slot, int, int]]:
    """The batch's frames in order: slot, place, and the position that its record was accepted with; 0: it is settled.

    As the frames tell, or where one does not any more, the batch itself: nothing is added to it then.
    """
    names, number = Names(batch), 0
    for slot, places in batch.frames:  # as `frames_of`, and quicker: all come by here if anybody waits for one
        if slot.words is not None and len(places):
            slot.reach(places)
        for place in places:
            position = _position_at(slot, place)
            if not position and waits_at(slot, place):
                record = names.held(number)
                position = record.position if record is not None else 0
            yield slot, place, position
            number += 1


def named_of(batch: LaneBatch) -> Iterator[Named]:
    """The batch's frames in order, and who their records are; position 0: it is settled."""
    names = Names(batch)
    for number, placed in enumerate(placed_of(batch)):
        yield names.of(number, *placed)


def positions_of(batch: LaneBatch) -> Iterator[int]:
    """The positions that the batch's records were accepted with, in order; 0: it is settled."""
    return (position for *_, position in placed_of(batch))


def position_at(slot: Slot, place: int) -> int:
    """The position that the frame's record was accepted with; 0: it is settled, or the frame does not hold any more."""
    if slot.words is not None:
        slot.reach((place,))
    return _position_at(slot, place)


def _position_at(slot: Slot, place: int) -> int:
    """Of a frame that was had at hand, unless it was moved."""
    slot, place = _home(slot, place)
    words = slot.words
    if words is None:
        return 0
    if not _is_copy(slot):
        sequence = _sequence_at(words, place)
        return fmt.position(slot.header.epoch, sequence) if slot.header.may_hold(sequence) else 0
    try:
        return unpack_moved(memoryview(bytes_at(slot, place) or b"")).position
    except (ValueError, WalCorruptError):  # what stands there is another one
        return 0


def nonce_at(slot: Slot, place: int) -> int | None:
    """The nonce that the frame's record was accepted with; None: it is a copy, and is settled or does not hold."""
    slot, place = _home(slot, place)
    if not _is_copy(slot):
        return fmt.nonce_of(slot.header.producer_id)
    try:
        return unpack_moved(memoryview(bytes_at(slot, place) or b"")).nonce
    except (ValueError, WalCorruptError):
        return None


def name_at(slot: Slot, place: int, position: int) -> Named | None:
    """Of a frame that is in no batch, and whose ``position`` is known; None: it is a copy that does not hold."""
    nonce = nonce_at(slot, place)
    return None if nonce is None else Named(slot, place, position, nonce)


def place_in_ring(slot: Slot, place: int) -> int:
    """The position of the frame itself, in whichever ring it stands; 0 when the slot is not mapped any more."""
    if slot.words is None:
        return 0
    slot.reach((place,))
    return fmt.position(slot.header.epoch, _sequence_at(slot.words, place))


def waits_at(slot: Slot, place: int) -> bool:
    """Whether the frame's record is not settled yet, whatever else its settle word may say."""
    slot, place = _home(slot, place)
    if slot.words is None:
        return False
    slot.reach((place,))
    return fmt.mark_of(slot.words[place], slot.salt) is None


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
    slot.reach((place,))
    if place < slot.hot_from:
        slot.reach_bytes(start, min(start + fmt.FRAME_BYTES + slot.words[first], slot.header.slot_bytes))
    payload = slot.map[start + fmt.FRAME_BYTES : start + fmt.FRAME_BYTES + slot.words[first]]
    sequence = _sequence_at(slot.words, place)
    holds = fmt.frame_crc(payload, slot.salt, sequence) == slot.words[first + fmt.CHECK_WORD]
    if not (holds and slot.header.may_hold(sequence)):
        message = "a record that was read before does not hold any more: check the disk"
        raise WalCorruptError(f"{message} slot={slot.header.ordinal} file_offset={slot.file_offset + start}")
    return payload


def _sequence_at(words: memoryview, place: int) -> int:
    at = place - SEQUENCE_BEFORE
    return int(words[at] | words[at + 1] << 32)


def let_go(slot: Slot, place: int) -> None:
    """Nobody has the record in hand any more, and its frame does not hold: its slot is counted anew (`wal.recount`)."""
    slot, _ = _home(slot, place)
    slot.ring.losses.miscounts(slot)


def _home(slot: Slot, place: int) -> tuple[Slot, int]:
    """Where the frame stands now; its copy may have been copied in its turn."""
    while slot.words is None and place in slot.copies:
        slot, place = slot.copies[place]
    return slot, place


def _is_copy(slot: Slot) -> bool:
    return slot.ring is not None and bool(slot.ring.holds_copies)
