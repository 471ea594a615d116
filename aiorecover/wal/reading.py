"""A reader of frames, in order: the newest from memory, all others from the file.

What is read from the file goes through a `Window`; behind damage `resynchronising` finds the way again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aiorecover.wal import format as fmt
from aiorecover.wal.checksum import crc32
from aiorecover.wal.copies import first_in, marked_before
from aiorecover.wal.gaps import START, Place, damage_at, flushed_behind, last_flushed, start_of, unjoined
from aiorecover.wal.losses import Damage, Stretch
from aiorecover.wal.moved import COPY_HEAD, position_at
from aiorecover.wal.resynchronising import next_frame, unsettled
from aiorecover.wal.ring import RECENT, Ring
from aiorecover.wal.run import Run
from aiorecover.wal.scan import AGAIN_MOST
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Unfinished, Word
from aiorecover.wal.window import Window

log = logging.getLogger("aiorecover.wal")

VOID = fmt.VOID
ALL = fmt.SEQUENCE_MASK  # of the frames in a window

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
    reader, started by `behind` or `inside`, reads a part again and counts nothing; who was started by `behind` tells of
    damage that was not there when the first one passed. Claimed frames of a slot are seen by readers `inside` only:
    they are on their way to Kafka already.

    With ``suspects`` it also gives the settled frames whose words may be wrong (see `suffix`), in runs with ``words``.
    Whoever takes them owes an answer for each: `reopen` or `dismiss`.
    """

    def __init__(
        self,
        ring: Ring,
        decode: Callable[[memoryview], Any],
        *,
        primary: bool = True,
        suspects: bool = False,
        patient: bool = True,
        tried: bool = False,
    ) -> None:
        """Stand before the oldest frame."""
        self._ring = ring
        self._decode = decode
        self._primary = primary
        self._tells = primary  # of damage
        self._suspects = suspects
        self._everything = False  # settled frames, too
        self._stays = False  # in the slot where it was begun
        self._again_at: tuple[Slot, int] | None = None  # where a frame was found again that had not been readable
        self._again = 0  # and how often in a row
        self._patient = patient
        self._window = Window(ring.file, patient=patient, tried=tried)
        self.slot: Slot | None = None
        self._stands = False  # in that slot; False once it is read to its end: then it may be recycled
        self.offset = fmt.FIRST_FRAME
        self.expected = 1
        self._ends = list(ring.ends)  # how far flushes had covered each epoch, unless what is not there was reported
        self.moved = False  # the last `look` went forward
        self.caught_up = False  # it has come to this epoch, or to the end: what is gone before that was reported
        self.found = 0  # unsettled records of earlier epochs, so far
        self._copied = 0  # in the retry ring: position of the record whose copy it gave last

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
    def position(self) -> int:
        """No frame that it will give has a lower one."""
        slot = self.slot
        if slot is None:
            return 0
        if slot.sealed and self.offset >= slot.tail:
            following = self._ring.after(slot)
            if following is not None:
                return following.first_position
            if slot.header.epoch < self._ring.epoch:
                return fmt.position(self._ring.epoch, 0)
        return fmt.position(slot.header.epoch, self.expected)

    @property
    def has_more(self) -> bool:
        """Frames of this epoch were stored behind the place where it stands."""
        slot, ring = self.slot, self._ring
        if slot is None:
            return bool(ring.live)
        if slot.header.epoch == ring.epoch:
            return ring.sequence >= self.expected
        return ring.after(slot) is not None

    def behind(self, slot: Slot, place: int, sequence: int) -> "Reader":
        """Another reader, standing at a frame that this one has passed."""
        other = Reader(self._ring, self._decode, primary=False, suspects=self._suspects)
        other._tells = True
        other._enter(slot)
        other.offset = (place - fmt.SETTLE_WORD) * fmt.WORD
        other.expected = sequence
        return other

    @classmethod
    def inside(
        cls,
        ring: Ring,
        slot: Slot,
        decode: Callable[[memoryview], Any],
        *,
        everything: bool = False,
        tells: bool = False,
        patient: bool = True,
        tried: bool = False,
    ) -> "Reader":
        """A reader of one slot and no further; ``everything``: settled frames, too; ``tells``: of damage.

        Not ``patient``: no read fails; what cannot be read is passed over at once, and what stands there may come back
        for a later reader. ``tried``: no read fails either, and what can be read is, as others have had the patience.
        """
        reader = cls(ring, decode, primary=False, patient=patient, tried=tried)
        reader._tells = tells
        reader._everything = everything
        reader._enter(slot)
        reader._stays = True
        return reader

    @property
    def gave_up(self) -> bool:
        """A part of the slot at hand could not be read."""
        return self._window.given_up(0) is not None

    def reopen(self, slot: Slot, places: Sequence[int]) -> None:
        """Suspect frames have to be delivered again: from now on they wait, whatever their words said."""
        self._ring.reopen(slot, places)

    def dismiss(self, slot: Slot, count: int) -> None:
        """Suspect frames are done, as their words said."""
        if count:
            self.found -= count
            self._ring.dismiss(slot, count)

    def forget(self) -> None:
        """Have the next `look` read afresh: for who counts by what the settle words say at that moment."""
        self._window.forget()

    def stands_in(self, slot: Slot) -> bool:
        """Whether it keeps that slot from being recycled."""
        return self._stands and self.slot is slot

    def close(self) -> None:
        """Stand nowhere: the slot may be recycled."""
        self._step_out()
        self.slot = None

    def take(self, limit: int) -> Run | None:
        """Up to ``limit`` unsettled frames, oldest first; None when there is nothing more at the moment."""
        while True:
            run = self.look(limit)
            if run is not None or not self.moved:
                return run

    def look(self, limit: int, most: int = ALL) -> Run | None:
        """As `take`, but of one window at most: for who must not be held up by gigabytes of settled frames.

        None with ``moved``: only settled frames stood there, look again. ``most``: frames of the window, settled ones
        included, for who must be held up even less.
        """
        self.moved = False
        if not self._find_slot():
            return None
        if self._primary:
            run = self._take_recent(limit)
            if run is not None:
                return run
        before = self.at, self.offset
        run = self._take_window(limit, most)
        if run is None:  # no call else: a signal would take what was read along
            self.moved |= (self.at, self.offset) != before  # or what stands here can be read by now
        else:
            self.moved = True
        if self._primary and self.slot is not None:
            self.slot.passed = self.expected - self.slot.header.first_sequence, self.offset
        return run

    # -- from memory -------------------------------------------------------------------------------------------------

    def _take_recent(self, limit: int) -> Run | None:
        """Frames of the slot at hand that the ring still has in memory, from ``expected`` on.

        A signal handler may publish at each call in here. So how far the slot goes is asked in this order: the
        sequence, then whether the slot is full; and what was copied counts only if nothing can have replaced it.
        """
        ring, slot, first = self._ring, self.slot, self.expected
        if slot is None or slot.header.epoch != ring.epoch:
            return None
        last = ring.sequence
        if slot.sealed:
            last = slot.last_sequence
        start = first % RECENT
        stop = start + min(last - first + 1, limit, RECENT - start)
        records, places = ring.recent[start:stop], ring.recent_places[start:stop]
        if ring.sequence - first >= RECENT:
            return None
        if None in records:  # too large to be kept, or a frame without a record
            del records[records.index(None) :]
            del places[len(records) :]
        if not records:
            return None
        offset = self._start_of(slot, first + len(records))
        run = Run(slot, range(first, first + len(records)), places, records)
        nothing = [None] * len(records)
        ring.recent[start : start + len(records)] = nothing
        self.offset, self.expected = offset, run.sequences[-1] + 1
        return run

    def _start_of(self, slot: Slot, sequence: int) -> int:
        """Offset of a frame behind one that is in memory, or of where it will stand: not read, its page may be lost."""
        end, last = slot.tail, self._ring.sequence  # in this order, as above
        if slot.sealed:
            end, last = slot.tail, slot.last_sequence
        if sequence > last:
            return end
        return (self._ring.recent_places[sequence % RECENT] - fmt.SETTLE_WORD) * fmt.WORD

    # -- from the file -----------------------------------------------------------------------------------------------

    def _find_slot(self) -> bool:
        """Stand in a slot with something to read, if there is one."""
        while True:
            slot = self.slot
            if slot is None:
                oldest = next(iter(self._ring.live), None)
                if oldest is None:
                    self._report_between(START, None)
                    return False
                self._enter(oldest)
                self._report_between(START, oldest)
                continue
            sealed = slot.sealed  # before its end is looked up: a signal handler may fill it and go on meanwhile
            end = self._ring.end_of(slot)
            if end is None or self.offset < end:
                return True
            if not sealed:
                return False
            self._finish(slot)
            following = None if self._stays else self._ring.after(slot)
            if following is None:
                self._report_between(self._end_of(slot), None)
                if not self._stays:  # a full ring may need this very slot for the next record
                    self._step_out()
                return False
            self._report_between(self._end_of(slot), following)
            self._enter(following)

    def _enter(self, slot: Slot) -> None:
        previous = self.slot
        if previous is slot:
            return
        if previous is not None:
            self._finish(previous)
        self._step_out()
        slot.readers += 1
        self.slot, self._stands = slot, True
        self.offset = fmt.FIRST_FRAME
        self.expected = slot.header.first_sequence
        self._window.enter(slot.file_offset)

    def _step_out(self) -> None:
        """Nothing more is read in the slot at hand, which is still where the next one is looked for from."""
        if self.slot is not None and self._stands:
            self.slot.readers -= 1
        self._stands = False

    def _report_between(self, here: Place, following: Slot | None) -> None:
        """Whole slots are gone in between, or, where there is no other one, behind: their sequences are missing."""
        floor = self._ring.floor
        there = None if following is None else start_of(following.header, following.file_offset)
        for end in tuple(self._ends):
            gone = flushed_behind(here, there, end, floor)
            if gone is not None:
                self._ends.remove(end)
                self._tell(gone, behind=self._first_in(following))
        gone = None if there is None else unjoined(here, there, floor)
        if gone is not None:
            self._tell(gone, behind=self._first_in(following))
        self.caught_up |= there is None or there.epoch == self._ring.epoch

    def _end_of(self, slot: Slot) -> Place:
        return Place(slot.header.epoch, self.expected, slot.header.ordinal, slot.file_offset + self.offset)

    def _finish(self, slot: Slot) -> None:
        """The end of a slot is reached: everything in it is counted."""
        if self._primary and not slot.complete:
            slot.complete = True
            self._ring.release_if_done(slot)

    def _take_window(self, limit: int, most: int) -> Run | None:
        """Frames of the window at hand."""
        slot = self.slot
        if slot is None:
            return None
        self._fill(slot)
        before, expected = self.offset, self.expected
        try:
            run, holds = self._parse(slot, limit, most)
            if run is not None:
                self._note_copy(run)
                self._ring.map_for_settling(slot)
                count = len(run.records)  # in here, as all calls are: behind it no signal comes in between
        except BaseException:  # nobody gets these frames: they are read again
            self.offset, self.expected = before, expected
            raise
        if run is not None:
            if self._primary and not slot.complete:
                slot.unsettled += count
                self.found += count
            return run
        if not holds or self.offset == before:  # damage, or not one whole frame up to the end of the slot
            self._resynchronise(slot)
        return None

    def _parse(self, slot: Slot, limit: int, most: int) -> tuple[Run | None, bool]:
        """Up to ``limit`` unsettled of ``most`` frames that the window holds whole; False: the next does not hold (I2).

        Written out, with numbers for names: it runs once for every frame of a backlog.
        """
        window, salt, settled, sequence = self._window, slot.salt, self._settled_up_to(slot), self.expected
        suspects = self._suspects and slot.header.epoch != self._ring.epoch and self._ring.is_suspect(slot)
        suspects = suspects or self._everything
        buffer, start, stop = window.buffer, window.start, window.stop
        last = slot.last_sequence if slot.sealed else fmt.SEQUENCE_MASK
        until = min(last, sequence + most - 1)
        at, filled = self.offset - start, fmt.aligned(stop - start)
        sequences: list[int] = []
        places: list[int] = []
        records: list[Any] = []
        marks: list[int] = []
        holds = True
        while len(records) < limit and sequence <= until and at + 20 <= stop - start:
            length, check, found, state = _unpack(buffer, at)
            end = at + 20 + (length & fmt.LENGTH_MASK)
            following = (end + 3) & -4
            if following > filled:
                break
            if length & fmt.SKIP_BIT:
                holds = found == sequence and fmt.skip_crc(length, salt, found) == check
                state = salt ^ VOID  # nothing to deliver, whatever else is
                if holds and self._primary:
                    self._ring.note_skipped(fmt.position(slot.header.epoch, found))
            else:
                payload = buffer[at + 20 : end]
                holds = found == sequence and crc32(payload, salt + found) == check
            if not holds:
                break
            mark = state ^ salt
            if (mark > VOID or (suspects and mark != VOID)) and found > settled:
                marks.append(mark)
                records.append(self._record(payload))
                places.append(((start + at) >> 2) + 4)
                sequences.append(found)
            at, sequence = following, sequence + 1
        self.offset, self.expected = start + at, sequence
        if sequence > last and start + at < slot.tail:  # nobody knew where its last frame ends (`Ring.end_at`)
            slot.tail = start + at
            self._ring.seal_old(slot)
        if not records:
            return None, holds
        words = [self._word(slot, mark) for mark in marks] if suspects else None
        run = Run(slot, sequences, places, records, words)
        return (self._ours(run) if slot.claimed or slot.counted is not None else run), holds

    def _ours(self, run: Run) -> Run | None:
        """Without the frames of a batch that goes to Kafka once more, and without those that were given up for lost."""
        slot, stays = run.slot, self._stays
        return run.pick(
            [
                number
                for number, place in enumerate(run.places)
                if (stays or place not in slot.claimed) and not slot.is_given_up(place)
            ]
        )

    def _word(self, slot: Slot, mark: int) -> Word | Unfinished:
        return Word.WAITING if mark > VOID else self._ring.suspect.word(slot.header.epoch, mark)

    def _settled_up_to(self, slot: Slot) -> int:
        """The last sequence of the slot's epoch that a durable watermark covers; in our own epoch the words tell."""
        if slot.header.epoch == self._ring.epoch:
            return 0
        return self._ring.floor - fmt.position(slot.header.epoch, 0)

    def _record(self, payload: memoryview) -> Any:
        try:
            return self._decode(payload)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return Undecodable(str(error))

    def _fill(self, slot: Slot) -> None:
        """Have at least one whole frame at ``offset`` at hand, if the slot has one."""
        limit = self._ring.end_of(slot) or slot.header.slot_bytes - fmt.RESERVED
        self._window.fill(self.offset, limit, self.expected, ahead=not self._ring.is_current(slot))

    # -- damage and ends ---------------------------------------------------------------------------------------------

    def _resynchronise(self, slot: Slot) -> None:
        """No valid frame here: the end of what a crash left open, or damage with more frames behind it."""
        last = self._ring.sequence  # before its end is looked up, as above: what is stored meanwhile is read later
        if slot.sealed:
            last = slot.last_sequence
        end = self._ring.end_of(slot)
        limit = end or slot.header.slot_bytes - fmt.RESERVED
        found = next_frame(self._window, slot.salt, self.offset, self.expected, limit)
        if found is not None and not (slot.sealed and found[1] > last):
            offset, sequence = found
            if sequence > self.expected:
                before = self._record_at(offset, slot)
                self._report(slot, self.expected, sequence - 1, self.offset, stop=offset, before=before)
            if offset == self.offset:
                offset, sequence = self._look_again(slot, offset, sequence)
            self.offset, self.expected = offset, sequence
        elif end is None:
            if self._patient or not self.gave_up:
                self._close_old(slot)
        else:  # all that was given a sequence by then was stored before it
            if last >= self.expected:
                self._report(slot, self.expected, last, self.offset, stop=end)
                self.expected = last + 1
            self.offset = end

    def _look_again(self, slot: Slot, offset: int, sequence: int) -> tuple[int, int]:
        """A frame was stored here, or could be read, since the window was; where to go on, and with which sequence."""
        self._window.forget()
        self.moved = True  # who takes None for the end would miss it
        self._again = self._again + 1 if self._again_at == (slot, offset) else 1
        self._again_at = slot, offset
        if self._again <= AGAIN_MOST:
            return offset, sequence
        self._report(slot, self.expected, sequence, offset, stop=offset + fmt.FRAME_BYTES)
        return offset + fmt.FRAME_BYTES, sequence + 1

    def _close_old(self, slot: Slot) -> None:
        end = self.offset
        if self._report_tail(slot):  # sealed at its very end, so that every later reader misses them, too
            self.offset = slot.header.slot_bytes - fmt.RESERVED
        self._tell_doubt(slot, end)
        slot.tail = self.offset
        slot.last_sequence = self.expected - 1
        slot.count = slot.last_sequence - slot.header.first_sequence + 1
        slot.limit = 0
        self._ring.seal_old(slot)

    def _tell_doubt(self, slot: Slot, offset: int) -> None:
        """Behind what a flush had covered nothing tells what stood where nothing can be read: who looks has to know."""
        place = self._window.given_up(offset)
        if place is not None:
            message = (
                "records may be missing behind the last one of a slot, where the disk cannot be read: check the disk"
            )
            log.error("%s slot=%d file_offset=%d", message, slot.header.ordinal, slot.file_offset + place)

    def _report_tail(self, slot: Slot) -> bool:
        """What a completed flush covered cannot be missing behind the last frame of a slot, unless it was damaged."""
        last = last_flushed(self._ring.ends, slot.header.epoch)
        following = self._ring.after(slot)
        if following is not None and following.header.epoch == slot.header.epoch:
            last = following.header.first_sequence - 1
        if self.expected > last:
            return False
        most = (slot.header.slot_bytes - fmt.RESERVED - self.offset) // fmt.FRAME_BYTES
        last = min(last, self.expected + most - 1)  # more do not fit: they stood in a slot that is gone
        self._report(slot, self.expected, last, self.offset, stop=slot.header.slot_bytes - fmt.RESERVED)
        self.expected = last + 1
        return True

    def _report(self, slot: Slot, first: int, last: int, offset: int, *, stop: int, before: int = 0) -> None:
        """Frames are not there; what stands in their place up to ``stop`` is kept. ``before``: as in `Damage`."""
        ranges: Iterable[tuple[int, int]] = ((first, last),)
        if not self._primary and self._tells and not self._ring.is_suspect(slot):
            ranges = () if slot.done else list(unsettled(self._window, slot, offset, stop, (first, last)))
        place, floor = Place(slot.header.epoch, first, slot.header.ordinal, slot.file_offset + offset), self._ring.floor
        behind = 0 if before else self._first_in(self._ring.after(slot))
        named = [self._tell(damage_at(place.epoch, *lost, place, floor), before, behind) for lost in ranges]
        if any(named):
            self._ring.losses.pin(Stretch(slot, offset, stop))
        if named and self._tells and not self._stays and self._is_counted(slot):
            self._ring.losses.miscounts(slot)

    def _is_counted(self, slot: Slot) -> bool:
        """What it passes in the slot was counted before: by who stored it, or by the first reader."""
        return not self._primary or slot.header.epoch == self._ring.epoch

    def _tell(self, damage: Damage | None, before: int = 0, behind: int = 0) -> bool:
        """Report it, if it is this reader's to report; whether it was news.

        ``before``: as in `Damage`. ``behind``: what stands for it where it is unknown: what the next slot begins with.
        """
        if damage is None or not self._tells:
            return False
        if self._ring.holds_copies:
            after = max(self._copied, marked_before(self._ring, fmt.position(damage.epoch, damage.first)))
            in_order = behind > after  # else a rewriting has begun there, anew with the oldest
            damage = replace(damage, after=after, before=before or (behind if in_order else 0))
        return self._ring.losses.report(damage, again=not self._primary)

    def _first_in(self, following: Slot | None) -> int:
        """Position of the record whose copy the next slot begins with; 0 in the main ring, or where nothing tells."""
        return first_in(following) if following is not None and self._tells and self._ring.holds_copies else 0

    def _note_copy(self, run: Run) -> None:
        """Whose copy the last frame of the window at hand was."""
        if self._ring.holds_copies:
            at = fmt.WORD * (run.places[-1] - fmt.SETTLE_WORD) - self._window.start
            self._copied = position_at(self._window.buffer, at, run.slot.salt)

    def _record_at(self, offset: int, slot: Slot) -> int:
        """Position of the record whose copy is the frame at ``offset``; 0 in the main ring."""
        return position_at(self._window.piece(offset, COPY_HEAD), 0, slot.salt) if self._ring.holds_copies else 0
