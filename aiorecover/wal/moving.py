"""Moving the unsettled frames of the oldest main slot to the retry ring: thin, the deciding is in `compaction`.

    1. copy     every unsettled frame of the slot to the retry ring, in order
    2. flush    the retry ring
    3. make it  a durable checkpoint with P = the slot's last position: from here on the copies count, and the
                originals do not
    4. recycle  the slot

A crash before step 3 leaves copies that do not count: they stand behind what the newest checkpoint knows of the retry
ring. Left as they are, the next checkpoint would bring them to life. So the next opening has the seal of their slot say
that it ends before them (`void_copies`), and nobody reads behind that, in this life or a later one. No read is needed
for it, and none can fail: marked one by one, those that could not be read at that moment would count beside their
originals later on. A checkpoint that knows more of the ring flushes it first, and the seal with it; until then the next
opening does the same again. Slots in which nothing else stands are free at once, or kills in the middle of rewritings
would use up its room.

What fails goes on where it stood, and what was copied stays: checkpoints may come in between, and copies do not count
in them. Only what finds no room, and a slot that cannot be read, are given up, and mark their copies; not what has a
checkpoint that failed: perhaps the disk has it, and then only the copies count. Void is more than settled: after a
power cut the lane suffix rule delivers settled frames again, and void ones never. So those are marked, too, whose
originals were settled before the move was made.

The retry ring is rewritten in the same way (`Rewrite`), once most of it is settled: copied to its own end, flushed, and
a checkpoint whose retry watermark covers the originals makes the copies count in their place. It is rewritten whole,
and not slot by slot, since its order is that of the positions: a slot that was put behind the others on its own would
be read too late. So it needs room for all that waits, which is why `room` has moves leave as much, and why it begins
once it has that: the slots of one that is given up are free only behind its originals.
"""

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import compress, repeat
from typing import NamedTuple

from aiorecover.errors import WalCorruptError, WalIOError
from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import NO_PARTITION, Moved, pack_moved, unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import RECENT, Ring
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot, first_position

log = logging.getLogger("aiorecover.wal")

STEP = 512  # frames between two turns of the loop: about a millisecond

PartitionOf = Callable[[bytes], int]


class Found(NamedTuple):
    """A frame that was read."""

    slot: Slot
    place: int
    sequence: int
    payload: bytes


def no_partition(_: bytes) -> int:
    """Where nobody knows better: the partition is found anew."""
    return NO_PARTITION


class Copying:
    """Slots on their way to the end of the retry ring.

    `step` until it says that all is copied, then `check`, flush and checkpoint, then `finish`. Whatever `step` raises,
    what is copied stays copied, and the next call goes on behind it: so a try that fails costs nothing.

    That holds for a signal handler that raises, too. A copy counts as made once its original knows of it (`Copied`);
    one that a handler left behind before that is void, and another one is made in its place: nobody else appends to the
    retry ring. What was read and not noted down by then is not copied at all: `check` finds that it is missing, and the
    slot stays.
    """

    def __init__(self, source: Ring, retry: Ring, slots: Sequence[Slot], tried: Collection[Slot]) -> None:
        """Begin to copy ``slots`` of ``source``.

        ``tried``: those that were counted anew, as something could not be read there: that is passed over at once, and
        `check` tells whether it counts.
        """
        self.copies_from = retry.last_position
        self.slots = slots
        self.count = 0  # records copied so far
        self.failures = 0  # reads that failed so far
        self._source = source
        self._tried = tried
        self._retry = retry
        self._to_read = list(slots)
        self._reader: Reader | None = None
        self._read: deque[Found] = deque()  # and not copied yet
        self._known = retry.sequence  # of the retry ring's frames, those up to this one are known to their originals

    def step(self, limit: int = STEP) -> bool:
        """Copy up to ``limit`` frames; True when all are copied.

        Raises:
            WalFullError: the retry ring has no room.
            WalIOError: something cannot be read; what stands there counts as damaged when that is so for long.

        """
        self._take_back_unknown()
        if not self._read and not self._look(limit):
            return not self._to_read
        while self._read:
            if self._read[0].slot.waits(self._read[0].place):  # it may have been settled since it was read
                self._copy(self._read[0])
            else:
                del self._read[0]
        return False

    def _look(self, limit: int) -> bool:
        """Read on; False at the end of a slot."""
        if self._reader is not None and self._reader.slot not in self._to_read[:1]:
            self._close_reader()  # a signal handler raised when that was to be done
        while self._reader is None and self._to_read and self._to_read[0].done:  # it may have been recycled meanwhile
            del self._to_read[0]
        if not self._to_read:
            return False
        if self._reader is None:
            slot = self._to_read[0]
            self._reader = Reader.inside(self._source, slot, bytes, tried=slot in self._tried)
        self._reader.forget()  # since the last look a frame may have been settled, and its page lost
        try:
            run = self._reader.look(limit)
        except WalIOError:
            self.failures += 1
            raise
        if run is None and self._reader.moved:
            return True
        if run is None:
            del self._to_read[0]
            self._close_reader()
            return False
        self._read.extend(map(Found, repeat(run.slot), run.places, run.sequences, run.records))
        return True

    def _copy(self, original: Found) -> None:
        """Store one more copy; ``original`` comes next until it knows of it."""
        position, moved = self._packed(original)
        place, sequence = self._retry.append(moved, None)
        home = self._retry.slot_of(sequence)
        if original.place in original.slot.claimed:  # it is on its way to its destination already: readers pass it
            home.claimed.add(place)
        copies.mark(home, position, place, sequence)
        original.slot.copies.add(original.place, home, place)  # whatever becomes of the one becomes of the other
        self._known = sequence  # no call from here on
        del self._read[0]
        self.count += 1

    def _take_back_unknown(self) -> None:
        """Void what a signal handler that raised has left unknown to an original, as is what holds no record.

        The newest one may be known to its original, which comes next all the same: not any more.
        """
        retry = self._retry
        while self._known < retry.sequence:
            sequence = self._known + 1
            copy = retry.slot_of(sequence), retry.recent_places[sequence % RECENT]
            if any(slot.copies.last == copy for slot in self.slots):
                del self._read[0]
                self.count += 1
            else:
                retry.take_back(*copy)
            self._known = sequence

    def _packed(self, original: Found) -> tuple[int, bytes]:
        """The position that the record was accepted with, and what is stored of it."""
        raise NotImplementedError

    def doubt(self) -> None:
        """What is to be read next cannot be: its slot is to be counted anew."""
        for slot in self._to_read[:1]:
            slot.ring.losses.miscounts(slot)

    def check(self) -> None:
        """Everything that waits is copied.

        Raises:
            WalCorruptError: something cannot be read any more: the slot must stay until it is counted anew.

        """
        for slot in self.slots:
            # What is settled leaves the copies, too: they are as many as wait, if all could be read.
            copied = len(slot.copies)
            if copied < slot.unsettled:
                slot.ring.losses.miscounts(slot)
                message = "records of a slot cannot be read any more, so it is not moved: check the disk"
                figures = f"slot={slot.header.ordinal} waiting={slot.unsettled} read={copied}"
                raise WalCorruptError(f"{message} {figures}")

    def captured(self, directory: Directory) -> Checkpoint:
        """The checkpoint that makes the copies count in place of the originals."""
        raise NotImplementedError

    def finish(self) -> None:
        """It is made: the copies count."""
        self._close_reader()

    def abandon(self, limit: int | None = None) -> bool:
        """It is not made: mark up to ``limit`` copies, which must never count; True when all are.

        If it fails, it can be called again.
        """
        self._take_back_unknown()
        self._close_reader()
        self._to_read.clear()
        self._read.clear()
        copies.forget(self._retry, self.copies_from)
        for slot in self.slots:
            while (copy := slot.copies.last) is not None:
                if limit == 0:
                    return False
                self._retry.take_back(*copy, settled=not slot.copies.last_waits)
                slot.copies.drop_last()
                limit = None if limit is None else limit - 1
        return True

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Move(Copying):
    """The oldest slot of the main ring."""

    def __init__(
        self,
        main: Ring,
        retry: Ring,
        slot: Slot,
        partition_of: PartitionOf = no_partition,
        *,
        tried: Collection[Slot] = (),
    ) -> None:
        """Begin to copy ``slot``, the oldest of ``main``."""
        super().__init__(main, retry, [slot], tried)
        self.slot = slot
        self._partition_of = partition_of

    def _packed(self, original: Found) -> tuple[int, bytes]:
        header = original.slot.header
        position, nonce = fmt.position(header.epoch, original.sequence), fmt.nonce_of(header.producer_id)
        return position, pack_moved(position, nonce, self._partition_of(original.payload), original.payload)

    def captured(self, directory: Directory) -> Checkpoint:
        """With P, the slot's last position."""
        return directory.next_checkpoint(moved=self.slot.last_position)


class Rewrite(Copying):
    """The retry ring copied to its own end, so that the slots before can be freed.

    The originals count until a durable checkpoint's retry watermark covers them (``next_checkpoint(rewritten=…)``),
    the copies from then on. Nobody else may append meanwhile. Where settle words are suspect, all suspect slots of the
    main ring have to be read before: the lane suffix rule finds in the originals that a lane was delivered again.
    """

    def __init__(self, retry: Ring, *, tried: Collection[Slot] = ()) -> None:
        """Begin to copy; the copies start in a slot of their own.

        Raises:
            WalFullError: there is no room.

        """
        counting = [slot for slot in retry.live if not slot.moved]  # others wait for a reader
        super().__init__(retry, retry, counting, tried)
        self._position = 0  # of the record whose copy came last
        retry.go_on()

    def _packed(self, original: Found) -> tuple[int, bytes]:
        """A copy that tells of no record stays, behind the one before it: nobody knows that it is done."""
        with suppress(ValueError):
            self._position = unpack_moved(memoryview(original.payload)).position
        return self._position, original.payload

    def captured(self, directory: Directory) -> Checkpoint:
        """With everything before the copies covered."""
        return directory.next_checkpoint(rewritten=self.copies_from)


def void_copies(retry: Ring, valid_up_to: int | None, main: Ring) -> None:
    """Have the copies never count that were never made to. Before anything else is read or appended.

    Slots in which nothing else stands are free then, unread: what a rewriting that was not made has taken is there for
    the next one.

    Args:
        retry: as opened.
        valid_up_to: retry position up to which the newest checkpoint lets them count; None: there is no checkpoint.
        main: as opened, with the originals; read only where there is no checkpoint.

    """
    if valid_up_to is None:
        _void_by_originals(retry, main)
        return
    for slot in list(retry.live):
        if slot.first_position > valid_up_to:
            retry.discard(slot)
    epoch, last = fmt.parts(valid_up_to)
    for slot in reversed(retry.live):
        if slot.header.epoch != epoch:
            break
        if not (slot.sealed and slot.last_sequence <= last):
            retry.end_at(slot, last)
        last = slot.header.first_sequence - 1


def _void_by_originals(retry: Ring, main: Ring) -> None:
    """Mark those void whose originals hold in the main ring: nothing is lost.

    But where the slot of an original is gone its move was made, and every slot before it was moved or done by then: so
    P is that position at least, and what stands below it in slots that nobody has used again does not count. The newest
    slots of the retry ring are read first: what they tell of P is known where older ones are judged.

    What a rewriting had copied once more, and not recycled yet, counts twice: only the checkpoint knew which of the two
    does. What cannot be read is passed over at once, however much that is: a copy there is not marked, and if it can be
    read later, it counts.
    """
    originals = _Originals(main)
    for slot in reversed(retry.live):
        copied = array("Q")
        places = array("L")
        for run in _readable(retry, slot, unpack_moved):
            there = [number for number, copy in enumerate(run.records) if isinstance(copy, Moved)]
            places.extend(run.places[number] for number in there)
            copied.extend(run.records[number].position for number in there)
        main.count_as_moved(max((position for position in copied if originals.are_gone(position)), default=0))
        waits = (position > main.moved_up_to and position in originals for position in copied)
        retry.mark_void(slot, list(compress(places, waits)))


class _Originals:
    """Positions of the records that hold in the main ring, settled or not.

    The header of a slot says too little: a power cut may leave it where a part of the slot's next life is on the disk.
    So the slot is read; one at a time, and rarely twice, since copies come in the order of their positions.
    """

    def __init__(self, main: Ring) -> None:
        self._main = main
        self._slot: Slot | None = None
        self._positions = array("Q")

    def __contains__(self, position: int) -> bool:
        live = self._main.live
        at = bisect_right(live, position, key=first_position) - 1
        if at < 0:
            return False
        if live[at] is not self._slot:
            self._read(live[at])
        number = bisect_left(self._positions, position)
        return number < len(self._positions) and self._positions[number] == position

    def are_gone(self, position: int) -> bool:
        """The slot in which that record stood is none of those that are left, as far as headers and seals tell.

        Where there are some of which nothing tells what stood in them, it may be one of these, and not moved.
        """
        live = self._main.live
        if self._main.damaged_slots:
            return False
        at = bisect_right(live, position, key=first_position) - 1
        return at < 0 or (live[at].sealed and live[at].last_position < position)

    def _read(self, slot: Slot) -> None:
        self._slot, self._positions = slot, array("Q")
        for run in _readable(self._main, slot, _nothing):
            self._positions.extend(fmt.position(slot.header.epoch, sequence) for sequence in run.sequences)


def _readable(ring: Ring, slot: Slot, decode: Callable[[memoryview], object]) -> Iterator[Run]:
    """All that a slot holds, settled or not. A bad sector must not keep the directory closed: it is passed over."""
    reader = Reader.inside(ring, slot, decode, everything=True, patient=False)
    while (run := reader.take(STEP)) is not None:
        yield run
    if reader.gave_up:
        message = "a part of the ring cannot be read, and counts as damaged: check the disk"
        log.warning("%s path=%s slot=%d", message, ring.file.path, slot.header.ordinal)
    reader.close()


def _nothing(_: memoryview) -> None:
    """Of an original only its position counts."""
