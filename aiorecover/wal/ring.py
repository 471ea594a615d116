"""The ring: append, settle in place, grow, recycle. The hot path of the whole package is `Ring.append`.

One thread (the event loop's) appends, reads and settles; only `Ring.prepare_spare`, `Ring.sync`, `Ring.poison` and
`Ring.close` may run in the keeper's thread.
"""

import errno
import logging
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiorecover.errors import RecordTooLargeError, WalCorruptError, WalError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.checksum import crc32
from aiorecover.wal.gaps import last_flushed
from aiorecover.wal.losses import Damage, Losses
from aiorecover.wal.recovery import Life, RingPlan
from aiorecover.wal.resident import Resident
from aiorecover.wal.slot import Slot
from aiorecover.wal.spares import RingFile, Spares
from aiorecover.wal.suffix import Suspicion

log = logging.getLogger("aiorecover.wal")

RECENT = 4096  # newest records handed to the reader in memory: 8 turns of a busy loop; at most 8 MiB with the next line
RECENT_BYTES = 2048  # larger records are read back from the ring: their cost is in the bytes anyway
LAST_SEQUENCE = fmt.SEQUENCE_MASK - fmt.SLOT_BYTES_MAX  # a slot that begins up to there stays within an epoch's numbers
SKIPPED_MOST = 10_000  # frames without a record that are remembered: each is an exception that left `append`
MARGIN = 1024  # bytes that a record may gain on its way to another ring: where it comes from, why Kafka refused it


class Ring:
    """An open ring. ``epoch`` is durable in the checkpoint before the first `append` (I5)."""

    def __init__(
        self,
        file: RingFile,
        plan: RingPlan,
        epoch: int,
        producer_id: int,
        spares: Spares,
        clock_ms: Callable[[], int],
        suspect: Suspicion = Suspicion(),  # noqa: B008 - frozen
        margin: int = MARGIN,
    ) -> None:
        """Take over what ``plan`` found; takes no slot: the first `append` does.

        ``producer_id``: this opening's own, for new slots; those that were found keep theirs.
        ``margin``: bytes at the end of each slot that stay unused, so that a record which fits here also fits a slot of
        another ring, whose own margin is 0.
        """
        self.epoch = epoch
        self.producer_id = producer_id
        self.suspect = suspect
        self.losses = Losses(file.path.name)
        self.damaged_slots = list(plan.damaged)
        self.failure: WalError | None = None
        self.flushed = plan.flushed  # when it was opened: of earlier epochs alone
        self.ends = plan.ends  # of each epoch before this one up to where something must be there
        self.spares = spares
        self._file = file
        self._slot_bytes = spares.slot_bytes
        self._margin = margin
        self._clock_ms = clock_ms
        self._floor = plan.floor
        self.next_ordinal = plan.next_ordinal
        self._sequence = 0
        self._skipped = 0
        self.lost = 0  # records that damage took after they had been counted
        self.skipped: set[int] = set()  # positions of frames without a record that the first reader met, until taken
        self._closed_at: int | None = None
        self.by_originals = plan.by_originals  # as in `RingState`, before the first frame of this epoch
        self.moved_up_to = 0  # position up to which copies in another ring count in place of what waits here
        self.live: list[Slot] = [self._old_slot(life) for life in plan.lives]
        self._in_doubt = suspect.up_to > 0
        self.judged_with: tuple[Ring, ...] = (self,)  # whose suspect words have to be judged before anything is covered
        self.recent: list[Any] = [None] * RECENT  # the newest records, at their sequence modulo RECENT; None: not kept
        self.recent_places: list[int] = [0] * RECENT
        self._slot = self._nowhere()
        self._resident = Resident()

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, record: Any) -> tuple[int, int]:
        """Store one frame; its place in its slot and its sequence.

        From the last look at slot and sequence to the last byte there is no call but ``store``, and CPython runs
        signal handlers only after calls and at jumps backwards. So a handler that publishes finds the frame either not
        begun, and then the checksum is made anew, or complete; nothing is overwritten and sequences stay in file order.

        Raises:
            WalFullError: the disk threshold is reached; nothing was stored.
            RecordTooLargeError: the frame does not fit a slot; nothing was stored.
            WalIOError: an earlier fsync failed (I7) or the file cannot be grown; nothing was stored.
            WalError: the epoch has no numbers left; nothing was stored.

        """
        length = len(payload)
        if length <= RECENT_BYTES:
            store, size = _FRAMES[length]
        else:
            (store, size), record = _frame(length), None  # too large to be kept in memory too
        while True:
            slot, sequence = self._slot, self._sequence + 1
            check = crc32(payload, slot.salt + sequence)
            if slot is not self._slot or self._sequence >= sequence:  # a signal handler published meanwhile
                continue
            start = slot.tail
            end = start + size
            if end <= slot.limit:
                break
            self._roll(length)
        slot.tail = end
        self._sequence = sequence
        place = (start >> 2) + 4  # 4, 4095: the names below cost 20 ns each on this path
        try:
            self.recent[sequence & 4095] = record
            self.recent_places[sequence & 4095] = place
            store(slot.map, start, length, check, sequence, slot.open_word, payload)
        except BaseException:
            self._skip(slot, start, length, sequence)
            raise
        return place, sequence

    def prefault(self) -> None:
        """Have the next pages of the slot at hand; between two turns of publishing."""
        slot = self._slot
        if not slot.prefault():
            message = "a page of the ring cannot be read any more, going on in another slot: check the disk"
            log.warning("%s path=%s offset=%d", message, self._file.path, slot.file_offset + slot.limit)
            self.spares.distrust()
            self._heed_failure()

    def give_back_memory(self) -> int:
        """Have what is mapped, and not at hand for anybody, count as memory no longer; some slots at a time."""
        return self._resident.look(self.live, self._slot)

    def _skip(self, slot: Slot, start: int, length: int, sequence: int) -> None:
        """Leave a frame without a record where storing failed, so that readers find the next one.

        It counts no longer once that stands there: until then another signal handler may raise, and the frame be whole.
        """
        self.recent[sequence % RECENT] = None
        length |= fmt.SKIP_BIT
        check = fmt.skip_crc(length, slot.salt, sequence)
        try:
            if slot.map is not None:
                _pack_frame(slot.map, start, length, check, sequence, slot.salt)
        finally:  # stored, whatever is raised behind it; no call from here on
            slot.unsettled -= 1
            slot.count -= 1
            self._skipped += 1

    def _roll(self, length: int) -> None:
        """Go on to the next slot. May be entered again by a signal handler: whoever comes first wins."""
        self._refuse_after_failure()
        if length > self.largest:
            message = "the record does not fit a slot: raise slot_bytes for a new directory"
            raise RecordTooLargeError(f"{message} bytes={length} slot_bytes={self._slot_bytes}")
        if self._sequence > LAST_SEQUENCE:
            message = "an epoch has no numbers left for another slot: stop the producer and start it anew"
            raise WalError(f"{message} epoch={self.epoch} sequence={self._sequence}")
        left = self._slot
        spare = self.spares.take()
        self._seal(left)
        salt, created_ms = fmt.new_salt(spare[1]), self._clock_ms()
        # No call from this look to the claim. So a signal handler that goes on to a slot of its own has either been
        # seen here, or takes a higher ordinal and the same first sequence: what we begin then is an empty life
        # before its slot. It stays on disk until the spare is taken again, and readers find nothing in it.
        if self._slot is not left:
            self.spares.give_back(spare)
            return
        ordinal, first_sequence = self.next_ordinal, self._sequence + 1
        self.next_ordinal = ordinal + 1
        slot = self._begin(spare, ordinal, salt, first_sequence, created_ms)
        if self._slot is left:
            self.live += [slot]  # no call, as `append` would be: a handler could go on from ``left`` once more
            self._slot = slot
        else:
            self.spares.give_back((slot.index, slot.salt, slot.detach()))
        self._heed_failure()

    def _heed_failure(self) -> None:
        """The keeper's thread may have poisoned the ring while it went on to another slot (I7)."""
        if self.failure is not None:
            self._slot.limit = 0

    def _begin(
        self, spare: tuple[int, int, Any], ordinal: int, salt: int, first_sequence: int, created_ms: int
    ) -> Slot:
        index, _, mapping = spare
        header = fmt.SlotHeader(
            slot_bytes=self._slot_bytes,
            producer_id=self.producer_id,
            ordinal=ordinal,
            epoch=self.epoch,
            salt=salt,
            first_sequence=first_sequence,
            created_ms=created_ms,
        )
        slot = Slot(index, header, self._mark)
        slot.ring = self
        slot.complete = True
        slot.limit -= self._margin
        slot.attach(mapping)
        slot.hot_from = 0
        slot.store_header()
        return slot

    def _seal(self, slot: Slot) -> None:
        slot.limit = 0  # nothing fits any more, also for a signal handler
        if slot.sealed or slot.map is None:
            return
        sequence = self._sequence
        given = sequence - slot.last_sequence  # nothing the second time, when a signal handler came in between
        slot.count += given
        slot.unsettled += given
        slot.last_sequence = sequence
        slot.store_seal()

    # -- room --------------------------------------------------------------------------------------------------------

    @property
    def largest(self) -> int:
        """Payload bytes of the largest record that fits here, and later in the retry or dead ring."""
        return self._slot_bytes - 2 * fmt.RESERVED - fmt.FRAME_BYTES - self._margin

    @property
    def wants_spare(self) -> bool:
        """The next slot is not ready yet: let the keeper call `prepare_spare`."""
        return self.spares.wanted and self.failure is None

    def prepare_spare(self) -> None:
        """Have the next slot allocated and mapped, ahead of need (the keeper's thread).

        Raises:
            WalFullError: the disk threshold is reached.

        """
        self.spares.prepare()

    def go_on(self) -> None:
        """Have the next record stored in a slot of its own.

        Raises:
            WalFullError: there is no room.

        """
        if self._slot.index >= 0 and not self._slot.sealed:
            self._roll(0)

    def leave(self) -> bool:
        """Seal the slot that is written to, if nothing in it waits, so that it can be recycled; whether it was.

        For a ring without room: the next record may find this very slot free.
        """
        slot = self._slot
        if slot.index < 0 or slot.sealed or self._unsettled(slot) or self._sequence < slot.header.first_sequence:
            return False
        self._seal(slot)
        self.release_if_done(slot)
        return True

    # -- settling and recycling --------------------------------------------------------------------------------------

    def settle(self, slot: Slot, places: Sequence[int]) -> None:
        """Mark frames as done, after their acknowledgement (I3); ``places`` belong to this life of the slot."""
        if places and places[0] < slot.hot_from:  # 25 ns for all of them; asking in a call takes five times as long
            slot.reach(places)
        words, word = slot.words, slot.done_word
        if slot.copies:
            self._settle_copies(slot, places)
        if words is None:
            if slot.moved:
                return
            message = f"a settle came for an earlier life of a slot ordinal={slot.header.ordinal}"
            raise ValueError(message)
        for place in places:
            words[place] = word
        count = len(places)  # beforehand: a signal handler that publishes during the call counts too
        if slot.counted is not None:  # whatever was given up stands for no other one
            count -= sum(map(slot.is_given_up, places))
        slot.unsettled -= count
        if self._unsettled(slot) < 0:  # settled twice: what we know of this slot is wrong, so free nothing more
            poison = self.spares.quota.poison or self.poison  # of the other rings, too
            poison(WalCorruptError(f"a record was settled twice: reopen the directory slot={slot.header.ordinal}"))
        if slot.done:
            self._unmap(slot)

    @staticmethod
    def _settle_copies(slot: Slot, places: Sequence[int]) -> None:
        """Those of the frames that were copied to the retry ring: whichever of the two counts is done."""
        for place in places:
            copy = slot.copies.take(place)
            if copy is not None:
                copy[0].ring.settle(copy[0], [copy[1]])

    @property
    def judged(self) -> bool:
        """Every slot in which settle words are suspect was read to its end, or is gone."""
        if self._in_doubt:  # the newest first: it is the last that is read
            self._in_doubt = any(self.is_suspect(slot) and not slot.complete for slot in reversed(self.live))
        return not self._in_doubt

    def watermark(self) -> int:
        """The highest position known to have nothing unsettled at or below it.

        It stays where it is until all suspect words are judged: what was done again tells that what comes behind it in
        its lane has to be, too, and must not be recycled before that is marked as waiting.
        """
        mark = self._floor
        if not all(ring.judged for ring in self.judged_with):
            return mark
        for slot in self.live:
            if slot.done or (slot.sealed and slot.last_position <= mark):
                mark = max(mark, slot.last_position)
                continue
            sequence = self._sequence  # no call from here on: a signal handler may publish in any
            settled = slot.unsettled + sequence == slot.last_sequence
            if slot is self._slot and settled and sequence >= slot.header.first_sequence:
                mark = max(mark, fmt.position(self.epoch, sequence))
            break
        return mark

    @property
    def recyclable(self) -> bool:
        """A checkpoint would free at least the oldest slot."""
        return bool(self.live) and self._may_recycle(self.live[0], self.watermark())

    def recycle(self, durable_watermark: int, moved: int = 0) -> int:
        """Free the oldest slots that a durable checkpoint covers (I1); how many. ``moved``: its P."""
        self._floor = max(self._floor, durable_watermark)
        self.moved_up_to = max(self.moved_up_to, moved)
        for slot in self.live:
            slot.moved = slot.moved or (slot.sealed and slot.last_position <= moved)
        count = 0
        while count < len(self.live) and self._may_recycle(self.live[count], durable_watermark):
            count += 1
        for slot in self.live[:count]:
            self._unmap(slot)
            self.spares.release(slot.index, slot.salt)
        del self.live[:count]
        self.spares.take_up(self.live, self.damaged_slots)
        return count

    def _may_recycle(self, slot: Slot, durable_watermark: int) -> bool:
        """I1: done or moved, covered by a durable watermark (or P), and nobody stands in it."""
        over = slot.done or slot.moved
        return over and slot.readers == 0 and slot.last_position <= durable_watermark and self.failure is None

    @staticmethod
    def _unmap(slot: Slot) -> None:
        mapping = slot.detach()
        if mapping is not None:
            mapping.close()

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The last sequence given in this epoch; 0 before the first record."""
        return self._sequence

    @property
    def damage(self) -> list[Damage]:
        """What is missing, by name; the first 10,000 places."""
        return self.losses.damage

    @property
    def reached(self) -> Iterator[int]:
        """Of each epoch in the ring, up to where frames are known to stand, as far as they were read by now."""
        if self._sequence:
            yield self.last_position
        at = bisect_left(self.live, self.epoch, key=_epoch_of)
        while at:
            yield self.live[at - 1].reached
            at = bisect_left(self.live, self.live[at - 1].header.epoch, key=_epoch_of)

    @property
    def last_position(self) -> int:
        """Position of the newest frame of this epoch (sequence 0: none yet)."""
        return fmt.position(self.epoch, self._sequence)

    @property
    def accepted(self) -> int:
        """Records stored in this epoch."""
        return self._sequence - self._skipped

    @property
    def floor(self) -> int:
        """Frames up to this position are settled, whatever their settle words say (durable watermark)."""
        return self._floor

    @property
    def known_as_moved(self) -> int:
        """P, without what only seems to be moved because nothing of this ring is there: its file may be put back."""
        return min(self.moved_up_to, self._floor)

    @property
    def holds_copies(self) -> bool:
        """Its payloads begin with the record's place of origin: it is one of those that need no margin."""
        return self._margin == 0

    @property
    def file(self) -> RingFile:
        """The storage below."""
        return self._file

    @property
    def slot_bytes(self) -> int:
        """Size of one slot."""
        return self._slot_bytes

    @property
    def bytes_used(self) -> int:
        """Size of the slots that hold something still needed."""
        return len(self.live) * self._slot_bytes

    @property
    def bytes_allocated(self) -> int:
        """Size of the ring file."""
        return self.spares.allocated * self._slot_bytes

    def note_skipped(self, position: int) -> None:
        """A frame without a record was met; there is none with its id."""
        if len(self.skipped) < SKIPPED_MOST:
            self.skipped.add(position)

    def take_skipped(self) -> list[int]:
        """The positions that were noted since the last call, in order."""
        taken, self.skipped = sorted(self.skipped), set()
        return taken

    def is_current(self, slot: Slot) -> bool:
        """Whether frames still come to ``slot``."""
        return slot is self._slot

    def end_of(self, slot: Slot) -> int | None:
        """Offset behind the slot's last frame; None when a crash left that unknown."""
        if slot.sealed or slot.complete:
            return slot.tail
        return None

    def pending(self) -> int:
        """Records known to wait for settlement."""
        return sum(self._unsettled(slot) for slot in self.live)

    def pending_once(self) -> int:
        """As `pending`, but what was copied counts in one place: here, until the move is made."""
        return sum(self._unsettled(slot) - len(slot.copies) for slot in self.live if not slot.moved)

    def first_waiting(self) -> Slot | None:
        """The oldest slot in which something waits, or may, as nobody has read it; what was copied counts there."""
        counting = (slot for slot in self.live if not slot.moved)
        return next((slot for slot in counting if not slot.complete or self._unsettled(slot)), None)

    def _unsettled(self, slot: Slot) -> int:
        """Known frames of a slot without settlement; in the slot that is written, `append` counts by sequence only."""
        if slot is not self._slot:
            return slot.unsettled
        return slot.unsettled + self._sequence - slot.last_sequence

    def unread(self) -> int:
        """Records of earlier epochs that no reader has reached, settled ones among them, as far as it is known.

        The seals tell; of the slot that a crash left open, how far the newest checkpoint had flushed it, or that it
        was begun.
        """
        return sum(self._unread(slot) for slot in self.live if not (slot.complete or slot.moved))

    def _unread(self, slot: Slot) -> int:
        """Those that are claimed count as pending already, wherever the reader is."""
        count, offset = slot.passed
        passed = offset // fmt.WORD
        claimed = len([place for place in slot.claimed if place > passed])  # asked a thousand times a second, maybe
        return max(0, self._told(slot) - count - claimed)

    def waiting_bytes(self, slot: Slot) -> int:
        """About how much of a slot waits for settlement; all of it where nobody has read to its end yet."""
        if not slot.complete:
            return self._slot_bytes
        given = self._sequence - slot.last_sequence if slot is self._slot else 0
        count = slot.count + given
        return (slot.tail - fmt.FIRST_FRAME) * self._unsettled(slot) // count if count > 0 else 0

    @property
    def rest(self) -> int:
        """Bytes that the slot which is written to has left."""
        return max(0, self._slot.limit - self._slot.tail)

    def _told(self, slot: Slot) -> int:
        if slot.sealed:
            return slot.count
        return max(0, last_flushed(self.ends, slot.header.epoch) - slot.header.first_sequence + 1)

    def is_settled(self, sequence: int, place: int) -> bool:
        """Whether a record of this epoch is done; after `close`, as far as the last watermark tells."""
        if self._closed_at is not None:
            return fmt.position(self.epoch, sequence) <= self._closed_at
        slot = self._find(sequence)
        return slot is None or slot.words is None or slot.is_settled(place)

    def is_lost(self, sequence: int, place: int) -> bool:
        """Whether damage took a record of this epoch before it was done, as far as that is found out by now."""
        if not self.losses.covers(self.epoch, sequence):
            return False
        slot = self._find(sequence)
        if slot is None:
            return True
        return slot not in self.losses.miscounted and (slot.words is None or not slot.is_settled(place))

    def slot_of(self, sequence: int) -> Slot:
        """The slot that holds a frame of this epoch.

        Raises:
            KeyError: it was recycled, or never stored.

        """
        slot = self._find(sequence)
        if slot is None or sequence > self._sequence:
            raise KeyError(sequence)
        return slot

    def _find(self, sequence: int) -> Slot | None:
        at = bisect_right(self.live, (self.epoch, sequence), key=_first_of) - 1
        return self.live[at] if at >= 0 and self.live[at].header.epoch == self.epoch else None

    def is_suspect(self, slot: Slot) -> bool:
        """Whether settle words in it may be wrong."""
        return slot.first_position <= self.suspect.up_to

    def reopen(self, slot: Slot, places: Sequence[int]) -> None:
        """Suspect frames that a reader gave have to be delivered again: they wait, whatever their words said."""
        self._store_words(slot, places, slot.open_word)

    def dismiss(self, slot: Slot, count: int) -> None:
        """Suspect frames that a reader gave are done, as their words said."""
        slot.unsettled -= count
        self.release_if_done(slot)

    def lose(self, slot: Slot, count: int) -> None:
        """So many frames that the slot had counted are damaged: nobody will settle them."""
        slot.unsettled -= count
        self.lost += count
        self.release_if_done(slot)

    def claim(self, slot: Slot, places: Sequence[int], settled: Sequence[int]) -> None:
        """Frames of an earlier epoch go to Kafka as one batch once more, all or none: readers pass them.

        ``settled``: those of ``places`` that are marked as done; they wait again, so that the slot stays until all are.
        No reader has come to them yet.
        """
        self.map_for_settling(slot)
        self.reopen(slot, settled)
        slot.claimed.update(places)
        slot.unsettled += len(places)

    def mark_void(self, slot: Slot, places: Sequence[int]) -> None:
        """Copies that no reader has counted yet never count."""
        self._store_words(slot, places, slot.void_word)

    def _store_words(self, slot: Slot, places: Sequence[int], word: int) -> None:
        if not places:
            return
        self.map_for_settling(slot)
        slot.reach(places)
        for place in places:
            slot.words[place] = word  # type: ignore[index]

    def take_back(self, slot: Slot, place: int, *, settled: bool = False) -> None:
        """A copy of this life never counts, whether it was settled meanwhile or not.

        ``settled``: somebody was told so. Its word tells whether that was stored, too, unless its page was lost since:
        in a slot that is done nothing waits, whatever the file says.
        """
        if self.slot_with(slot.header.ordinal) is not slot:  # all in it was settled, and it was recycled
            return
        self.map_for_settling(slot)
        waits = slot.waits(place) and not (settled and slot.words[place] != slot.open_word)  # type: ignore[index]
        slot.words[place] = slot.void_word  # type: ignore[index]
        if waits and not slot.done:
            slot.unsettled -= 1
        self.release_if_done(slot)

    def discard(self, slot: Slot) -> None:
        """A slot of an earlier epoch, in which nothing counts, is free: no reader needs it.

        No checkpoint covers it, so its header is taken away: who came later would take it for live, or, once another
        one like it has a new life, would miss what stood there.
        """
        self.map_for_settling(slot)
        slot.blank()
        self.live.remove(slot)
        self._unmap(slot)
        self.spares.release(slot.index, slot.salt)

    def count_as_moved(self, up_to: int) -> None:
        """At an opening: up to there copies in another ring count. Slots are free once a checkpoint says so (I1)."""
        self._floor = max(self._floor, up_to)
        self.moved_up_to = max(self.moved_up_to, up_to)
        for slot in self.live:
            slot.moved = slot.moved or (slot.sealed and slot.last_position <= up_to)

    def end_at(self, slot: Slot, last_sequence: int) -> None:
        """Nothing behind this sequence counts in a slot of an earlier epoch: from now on its seal says so.

        Where it has none nobody knows where the last frame ends that counts: the first reader who comes there.
        """
        most = (slot.header.slot_bytes - 2 * fmt.RESERVED) // fmt.FRAME_BYTES
        slot.last_sequence = min(last_sequence, slot.header.first_sequence + most - 1)
        count = slot.last_sequence - slot.header.first_sequence + 1
        if slot.sealed:
            slot.count = min(slot.count, count)
        else:
            slot.count, slot.tail = count, slot.header.slot_bytes - fmt.RESERVED
        slot.limit = 0
        self.seal_old(slot)
        self._unmap(slot)

    def slot_with(self, ordinal: int) -> Slot | None:
        """The slot with this ordinal, while it holds something still needed."""
        at = bisect_left(self.live, ordinal, key=_ordinal_of)
        return self.live[at] if at < len(self.live) and self.live[at].header.ordinal == ordinal else None

    def after(self, slot: Slot) -> Slot | None:
        """The next slot in the order of ordinals."""
        following = bisect_right(self.live, slot.header.ordinal, key=_ordinal_of)
        return self.live[following] if following < len(self.live) else None

    # -- life --------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all stored frames and settle words durable (the keeper's thread).

        Raises:
            WalIOError: and from then on nothing is accepted or recycled (I7).

        """
        self._refuse_after_failure()
        try:
            self._file.sync()
        except WalIOError as error:
            self.poison(error)
            raise
        self._refuse_after_failure()  # poisoned meanwhile: nobody may count on what this one flushed

    def _refuse_after_failure(self) -> None:
        """I7."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # else it would grow with each refusal, and keep every record

    def poison(self, error: WalError) -> None:
        """Accept and recycle nothing until reopened (I7); delivery goes on."""
        self.failure = error
        self._slot.limit = 0

    def map_for_settling(self, slot: Slot) -> None:
        """Have a slot of an earlier epoch mapped before its records are handed out."""
        if slot.words is None:
            slot.attach(self._file.map(slot.file_offset, self._slot_bytes))

    def seal_old(self, slot: Slot) -> None:
        """Seal what a crash left open, once a reader found its end."""
        self.map_for_settling(slot)
        slot.store_seal()

    def release_if_done(self, slot: Slot) -> None:
        """Drop the mapping of a slot in which nothing waits."""
        if slot.done:
            self._unmap(slot)

    def close(self) -> None:
        """Drop every mapping and the file."""
        self._closed_at = self.watermark()
        self._refuse_all()
        for slot in self.live:
            self._unmap(slot)
        self.spares.close()
        self._file.close()

    def abandon(self) -> None:
        """In a forked child: drop the mappings and the file without taking a lock that the parent may have held."""
        self._refuse_all()
        for slot in self.live:
            self._unmap(slot)
        self.spares.abandon()
        self._file.close()

    def _refuse_all(self) -> None:
        """Take no further slot either: a free or a spare one would still be ours, or the parent's."""
        if self.failure is None:
            self.failure = WalIOError(errno.EBADF, "the ring is closed: open the directory again")
        self._slot.limit = 0

    def _old_slot(self, life: Life) -> Slot:
        slot = Slot(life.index, life.header, self._mark)
        slot.ring = self
        slot.limit = 0  # nothing is appended to a slot of an earlier life
        if life.seal is not None:
            slot.adopt_seal(life.seal)
        return slot

    def _nowhere(self) -> Slot:
        """A slot that nothing fits in: the first append takes a real one."""
        header = fmt.SlotHeader(self._slot_bytes, self.producer_id, 0, self.epoch, 0, 1, 0)
        slot = Slot(-1, header, self._mark)
        slot.limit = 0
        return slot

    @property
    def _mark(self) -> int:
        """What settle words bear in their low half from now on."""
        return self.suspect.generation % fmt.MARKS


def _frame(length: int) -> tuple[Callable[..., None], int]:
    """For a payload of ``length`` bytes: what stores header and payload in one call, and the frame's size."""
    return struct.Struct(f"{fmt.FRAME.format}{length}s").pack_into, fmt.frame_end(0, length)


_FRAMES = [_frame(length) for length in range(RECENT_BYTES + 1)]  # once, 2 ms and 0.3 MB: 60 ns a record less
_pack_frame = fmt.FRAME.pack_into


def _first_of(slot: Slot) -> tuple[int, int]:
    return slot.header.epoch, slot.header.first_sequence


def _epoch_of(slot: Slot) -> int:
    return slot.header.epoch


def _ordinal_of(slot: Slot) -> int:
    return slot.header.ordinal
