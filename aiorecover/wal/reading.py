"""A reader of frames, in order: the newest from memory, all others from the file.

Reading uses ``preadv`` into one reused buffer, never a mapping: a damaged sector is an error, not a signal, and the
backlog does not count as resident memory.
"""

import logging
from collections.abc import Callable
from typing import Any

from aiorecover.wal import format as fmt
from aiorecover.wal.checksum import crc32
from aiorecover.wal.ring import RECENT, Damage, Entry, Ring
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.wal")

WINDOW = 128 * 1024  # about 600 records: parsing and dispatching one window takes 1-2 ms of the loop
READ_AHEAD = 2 * 1024 * 1024  # the kernel fetches this much while we work on a window
FIRST_PIECE = 4 * 1024  # looked through first behind a damaged place: most often a page or a sector is gone

_unpack = fmt.FRAME.unpack_from


class Undecodable:
    """Stands for the record of a frame whose checksum holds but whose payload cannot be decoded."""

    def __init__(self, reason: str) -> None:
        """Keep the reason for the log."""
        self.reason = reason

    def __repr__(self) -> str:
        return f"undecodable: {self.reason}"


class Reader:
    """Stands at one place of the ring and goes forward.

    The ``primary`` reader counts what it finds in the slots of earlier epochs; each of them passes it once. Another
    reader, started by `behind`, reads a part again and counts nothing.
    """

    def __init__(self, ring: Ring, decode: Callable[[memoryview], Any], *, primary: bool = True) -> None:
        """Stand before the oldest frame."""
        self._ring = ring
        self._decode = decode
        self._primary = primary
        self._buffer = memoryview(bytearray(WINDOW))
        self._window = (0, 0)  # file offsets within the slot that the buffer holds
        self.slot: Slot | None = None
        self.offset = fmt.FIRST_FRAME
        self.expected = 1
        self._dead_end = 0  # nothing holds up to this tail of the slot that is written; more may come
        self.moved = False  # the last `look` went forward
        self.found = 0  # unsettled records of earlier epochs, so far

    @property
    def at(self) -> tuple[int, int]:
        """Order of the next frame: (slot ordinal, sequence); the following slot's when a sealed one is read."""
        slot = self.slot
        if slot is None:
            return 0, 0
        if slot.sealed and self.offset >= slot.tail:
            return slot.header.ordinal + 1, 0
        return slot.header.ordinal, self.expected

    @property
    def has_more(self) -> bool:
        """Frames of this epoch were stored behind the place where it stands."""
        slot, ring = self.slot, self._ring
        if slot is None:
            return bool(ring.live)
        if slot.header.epoch == ring.epoch:
            return ring.sequence >= self.expected and (slot.sealed or slot.tail > self._dead_end)
        return ring.after(slot) is not None

    def behind(self, slot: Slot, place: int, sequence: int) -> "Reader":
        """Another reader, standing at a frame that this one has passed."""
        other = Reader(self._ring, self._decode, primary=False)
        other._enter(slot)
        other.offset = (place - fmt.SETTLE_WORD) * fmt.WORD
        other.expected = sequence
        return other

    def close(self) -> None:
        """Stand nowhere: the slot may be recycled."""
        if self.slot is not None:
            self.slot.readers -= 1
            self.slot = None

    def take(self, limit: int) -> list[Entry]:
        """Up to ``limit`` unsettled frames, oldest first; empty when there is nothing more at the moment."""
        while True:
            entries = self.look(limit)
            if entries or not self.moved:
                return entries

    def look(self, limit: int) -> list[Entry]:
        """As `take`, but of one window at most: for who must not be held up by gigabytes of settled frames.

        Empty with ``moved``: only settled frames stood there, look again.
        """
        self.moved = False
        if self._primary:
            entries = self._take_recent(limit)
            if entries:
                return entries
        if not self._find_slot():
            return []
        before = self.at, self.offset
        entries, _ = self._take_window(limit)
        self.moved = (self.at, self.offset) != before
        return entries

    # -- from memory -------------------------------------------------------------------------------------------------

    def _take_recent(self, limit: int) -> list[Entry]:
        ring = self._ring
        if self.slot is None or self.slot.header.epoch != ring.epoch:
            return []
        recent = ring.recent
        expected = self.expected
        first = recent[expected % RECENT]
        if first is None or first[2] != expected:
            return []
        entries: list[Entry] = []
        last = min(ring.sequence, expected + limit - 1)
        while expected <= last:
            index = expected % RECENT
            entry = recent[index]
            if entry is None or entry[2] != expected:
                break
            recent[index] = None
            entries.append(entry)
            expected += 1
        self._stand_behind(entries[-1])
        return entries

    def _stand_behind(self, entry: Entry) -> None:
        slot, place, sequence, _ = entry
        if slot is not self.slot:
            self._enter(slot)
        words = slot.words
        start = place - fmt.SETTLE_WORD
        length = words[start] if words is not None else 0
        self.offset = fmt.frame_end(start * fmt.WORD, length)
        self.expected = sequence + 1

    # -- from the file -----------------------------------------------------------------------------------------------

    def _find_slot(self) -> bool:
        """Stand in a slot with something to read, if there is one."""
        while True:
            slot = self.slot
            if slot is None:
                if not self._ring.live:
                    return False
                self._enter(self._ring.live[0])
                self._report_before(self._ring.live[0])
                continue
            sealed = slot.sealed  # before its end is looked up: a signal handler may fill it and go on meanwhile
            end = self._ring.end_of(slot)
            if end is None or (self.offset < end and (sealed or end > self._dead_end)):
                return True
            if not sealed:
                return False
            self._finish(slot)
            following = self._ring.after(slot)
            if following is None:
                return False
            self._report_between(slot, following)
            self._enter(following)

    def _enter(self, slot: Slot) -> None:
        previous = self.slot
        if previous is slot:
            return
        if previous is not None:
            self._finish(previous)
            previous.readers -= 1
        slot.readers += 1
        self.slot = slot
        self.offset = fmt.FIRST_FRAME
        self.expected = slot.header.first_sequence
        self._window = (0, 0)
        self._dead_end = 0

    def _report_between(self, slot: Slot, following: Slot) -> None:
        """A whole slot is gone: the sequences of one epoch do not join, or those of the next one do not start at 1."""
        same = slot.header.epoch == following.header.epoch
        self._report(following, self.expected if same else 1, following.header.first_sequence - 1, fmt.FIRST_FRAME)

    def _report_before(self, oldest: Slot) -> None:
        """The oldest slots are gone, and were not recycled: the watermark does not cover them.

        Without a watermark (both checkpoint copies lost) nobody knows what was recycled.
        """
        if self._ring.floor:
            self._report(oldest, 1, oldest.header.first_sequence - 1, fmt.FIRST_FRAME)

    def _finish(self, slot: Slot) -> None:
        """The end of a slot is reached: everything in it is counted."""
        if self._primary and not slot.complete:
            slot.complete = True
            self._ring.release_if_done(slot)

    def _take_window(self, limit: int) -> tuple[list[Entry], bool]:
        """Frames of the window at hand; False when nothing more can be read now."""
        slot = self.slot
        if slot is None:
            return [], False
        self._fill(slot)
        before, expected = self.offset, self.expected
        try:
            entries, holds = self._parse(slot, limit)
            if entries:
                self._ring.map_for_settling(slot)
        except BaseException:  # nobody gets these entries: they are read again
            self.offset, self.expected = before, expected
            raise
        if entries:
            if self._primary and not slot.complete:
                slot.unsettled += len(entries)
                self.found += len(entries)
            return entries, True
        if not holds or self.offset == before:  # damage, or not one whole frame up to the end of the slot
            return entries, self._resynchronise(slot)
        return entries, True

    def _parse(self, slot: Slot, limit: int) -> tuple[list[Entry], bool]:
        """Up to ``limit`` unsettled frames that the window holds whole; False when the next one does not hold."""
        start, stop = self._window
        entries: list[Entry] = []
        while len(entries) < limit:
            offset = self.offset
            end = self._whole_frame(offset, start, stop)
            if end is None:
                break
            at = offset - start
            length, check, sequence, state = _unpack(self._buffer, at)
            if not self._valid(slot, at, length, check, sequence):
                return entries, False
            self.offset = end
            self.expected = sequence + 1
            if length & fmt.SKIP_BIT or state == slot.salt or self._settled_before(slot, sequence):
                continue
            payload = self._buffer[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length]
            entries.append((slot, (offset >> 2) + fmt.SETTLE_WORD, sequence, self._record(payload)))
        return entries, True

    def _settled_before(self, slot: Slot, sequence: int) -> bool:
        floor = self._ring.floor
        return slot.header.epoch != self._ring.epoch and fmt.position(slot.header.epoch, sequence) <= floor

    def _record(self, payload: memoryview) -> Any:
        try:
            return self._decode(payload)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return Undecodable(str(error))

    def _fill(self, slot: Slot) -> None:
        """Have at least one whole frame at ``offset`` in the buffer, if the slot has one."""
        limit = self._ring.end_of(slot) or slot.header.slot_bytes - fmt.RESERVED
        start, stop = self._window
        if start <= self.offset < stop and self._whole_frame(self.offset, start, stop) is not None:
            return
        size = WINDOW
        while True:
            whole = self._read(slot, min(size, limit - self.offset))
            start, stop = self._window
            if stop >= limit or not whole or self._whole_frame(self.offset, start, stop) is not None:
                return
            size *= 2  # one frame larger than the window; bounded by the slot

    def _read(self, slot: Slot, length: int) -> bool:
        """Read ``length`` bytes at ``offset``; False when the file was cut before them."""
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(length))
        where = slot.file_offset + self.offset
        count = self._ring.file.read_into(self._buffer[:length], where)
        self._window = (self.offset, self.offset + count)
        if not self._ring.is_current(slot):
            self._ring.file.read_ahead(where + count, READ_AHEAD)
        return count == length

    def _whole_frame(self, offset: int, start: int, stop: int) -> int | None:
        """Where the frame at ``offset`` ends if the window holds all of it."""
        if offset + fmt.FRAME_BYTES > stop:
            return None
        end = fmt.frame_end(offset, int.from_bytes(self._buffer[offset - start : offset - start + 4], "little"))
        return end if end <= fmt.aligned(stop) else None

    def _valid(self, slot: Slot, at: int, length: int, check: int, sequence: int) -> bool:
        """I2: the checksum holds for this life of the slot, and the sequence is the one expected here."""
        return sequence == self.expected and _frame_holds(self._buffer, at, length, check, sequence, slot.salt)

    # -- damage and ends ---------------------------------------------------------------------------------------------

    def _resynchronise(self, slot: Slot) -> bool:
        """No valid frame here: the end of what a crash left open, or damage with more frames behind it."""
        sealed = slot.sealed  # before its end is looked up, as above
        end = self._ring.end_of(slot)
        limit = end or slot.header.slot_bytes - fmt.RESERVED
        found = self._next_frame(slot, limit)
        if found is not None:
            offset, sequence = found
            if sequence > self.expected:
                self._report(slot, self.expected, sequence - 1, self.offset)
            self.offset, self.expected = offset, sequence
            self._window = (0, 0)
            return True
        if end is None:
            self._close_old(slot)
            return True
        if not sealed:  # frames still come to it: the next one will show what is missing
            self._dead_end = end
            return False
        if slot.last_sequence >= self.expected:
            self._report(slot, self.expected, slot.last_sequence, self.offset)
            self.expected = slot.last_sequence + 1
        self.offset = end
        return True

    def _close_old(self, slot: Slot) -> None:
        slot.tail = self.offset
        slot.last_sequence = self.expected - 1
        slot.count = slot.last_sequence - slot.header.first_sequence + 1
        slot.limit = 0
        self._ring.seal_old(slot)

    def _report(self, slot: Slot, first: int, last: int, offset: int) -> None:
        """Frames are not there; what the watermark covers was settled and is not missed."""
        first = max(first, self._ring.floor - fmt.position(slot.header.epoch, 0) + 1)
        if self._primary and first <= last:
            damage = Damage(slot.header.epoch, first, last, slot.header.ordinal, slot.file_offset + offset)
            self._ring.damage.append(damage)
            log.error(
                "records are missing from the ring epoch=%d sequences=%d-%d slot=%d file_offset=%d",
                damage.epoch,
                damage.first,
                damage.last,
                damage.slot,
                damage.file_offset,
            )

    def _next_frame(self, slot: Slot, limit: int) -> tuple[int, int] | None:
        """The next valid frame behind ``offset``, found by its settle word (never by trying every byte).

        Read in pieces, small ones first: a thousand damaged places in a slot must not cost a thousand slots.
        """
        begin, size = self.offset, FIRST_PIECE
        while begin < limit:
            data = self._piece(slot, begin, min(size, limit - begin))
            for at in _frames_in(data, slot):
                found = self._found(slot, data, begin, at, limit)
                if found is not None:
                    return found
            if len(data) < min(size, limit - begin):  # the file was cut
                return None
            begin += max(len(data) - fmt.SETTLE_WORD * fmt.WORD, fmt.WORD)  # a header on the edge is whole next time
            size = min(2 * size, WINDOW)
        return None

    def _found(self, slot: Slot, data: bytes, begin: int, at: int, limit: int) -> tuple[int, int] | None:
        """The frame whose header stands at ``at`` of ``data``: its place and sequence, if it holds."""
        length, check, sequence, _ = _unpack(data, at)
        place = begin + at
        between = sequence - self.expected  # the checksum covers 32 bits of the sequence: more frames than fit?
        if not 0 <= between <= (place - self.offset) // fmt.FRAME_BYTES:
            return None
        end = at + fmt.FRAME_BYTES + (0 if length & fmt.SKIP_BIT else length)
        if begin + end > limit:
            return None
        if end > len(data):
            data, at = self._piece(slot, place, end - at), 0
        return (place, sequence) if _frame_holds(data, at, length, check, sequence, slot.salt) else None

    def _piece(self, slot: Slot, begin: int, length: int) -> bytes:
        buffer = bytearray(length)
        count = self._ring.file.read_into(memoryview(buffer), slot.file_offset + begin)
        return bytes(buffer[:count])


def _frame_holds(data: bytes | memoryview, at: int, length: int, check: int, sequence: int, salt: int) -> bool:
    if length & fmt.SKIP_BIT:
        return check == fmt.skip_crc(length, salt, sequence)
    end = at + fmt.FRAME_BYTES + length
    if end > len(data):
        return False
    return (crc32(data[at + fmt.FRAME_BYTES : end], salt) ^ sequence) & fmt.MASK32 == check


def _frames_in(data: bytes, slot: Slot) -> list[int]:
    """Where a frame's header stands whole, if the settle word behind it is one."""
    words = (word.to_bytes(fmt.WORD, "little") for word in (slot.open_word, slot.salt))
    places = (at - fmt.SETTLE_WORD * fmt.WORD for word in words for at in _hits(data, word))
    return sorted(at for at in places if at >= 0)


def _hits(data: bytes, word: bytes) -> list[int]:
    """Where ``word`` stands on a frame's alignment."""
    places = []
    at = data.find(word)
    while at >= 0:
        if at % fmt.WORD == 0:
            places.append(at)
        at = data.find(word, at + 1)
    return places
