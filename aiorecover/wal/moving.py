"""Moving the unsettled frames of the oldest main slot to the retry ring: thin, the deciding is in `compaction`.

    1. copy     every unsettled frame of the slot to the retry ring, in order
    2. flush    the retry ring
    3. make it  a durable checkpoint with P = the slot's last position: from here on the copies count, and the
                originals do not
    4. recycle  the slot

A crash before step 3 leaves copies that do not count. The next opening marks them void (`void_copies`): they stand
behind what the newest checkpoint knows of the retry ring. Left as they are, the next checkpoint would bring them to
life. A move that fails marks its own; not one whose checkpoint failed: perhaps the disk has it, and then only its
copies count. Void is more than settled: after a power cut the lane suffix rule delivers settled frames again, and void
ones never. So those are marked, too, whose originals were settled before the move was made.

The retry ring is rewritten in the same way (`Rewrite`), once most of it is settled: copied to its own end, flushed, and
a checkpoint whose retry watermark covers the originals makes the copies count in their place.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from aiorecover.errors import WalCorruptError
from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import NO_PARTITION, Moved, pack_moved, unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

STEP = 512  # frames between two turns of the loop: about a millisecond

PartitionOf = Callable[[bytes], int]


def no_partition(_: bytes) -> int:
    """Where nobody knows better: the partition is found anew."""
    return NO_PARTITION


class Move:
    """One slot on its way; `step` until it says that all is copied, then flush and checkpoint, then `finish`."""

    def __init__(self, main: Ring, retry: Ring, slot: Slot, partition_of: PartitionOf = no_partition) -> None:
        """Begin to copy ``slot``, the oldest of ``main``."""
        self.slot = slot
        self.copies_from = retry.last_position
        self._retry = retry
        self._partition_of = partition_of
        self._reader = Reader.inside(main, slot, bytes)
        self._copies: list[tuple[Slot, int]] = []

    def step(self, limit: int = STEP) -> bool:
        """Copy up to ``limit`` frames; True when all are copied.

        Raises:
            WalFullError: the retry ring has no room: the copies so far count for nothing, `abandon` was called.

        """
        run = self._reader.look(limit)
        if run is None:
            return not self._reader.moved
        try:
            for sequence, place, payload in zip(run.sequences, run.places, run.records, strict=True):
                position = fmt.position(self.slot.header.epoch, sequence)
                if self.slot.waits(place):  # it may have been settled since the reader's window was filled
                    self._copy(position, place, payload)
        except BaseException:
            self.abandon()
            raise
        return False

    def _copy(self, position: int, place: int, payload: bytes) -> None:
        moved = pack_moved(position, self._partition_of(payload), payload)
        copy_place, sequence = self._retry.append(moved, None)
        slot = self._retry.slot_of(sequence)
        self._copies.append((slot, copy_place))
        _join(self.slot, place, self._retry, slot, copy_place)
        copies.mark(slot, position, copy_place, sequence)

    @property
    def count(self) -> int:
        """Records copied so far."""
        return len(self._copies)

    def check(self) -> None:
        """Everything that waits is copied.

        Raises:
            WalCorruptError: something cannot be read any more: the slot must stay.

        """
        _check(self.slot)

    def abandon(self) -> None:
        """The move is not made: its copies must never count."""
        self._reader.close()
        self.slot.copies.clear()
        copies.take_back(self._retry, self._copies, self.copies_from)
        self._copies.clear()

    def finish(self) -> None:
        """The move is made: the copies count."""
        self._reader.close()


class Rewrite:
    """The retry ring copied to its own end, so that the slots before can be freed; used like a `Move`.

    The originals count until a durable checkpoint's retry watermark covers them (``next_checkpoint(rewritten=…)``),
    the copies from then on. Nobody else may append meanwhile. Where settle words are suspect, all suspect slots of the
    main ring have to be read before: the lane suffix rule finds in the originals that a lane was delivered again.
    """

    def __init__(self, retry: Ring) -> None:
        """Begin to copy; the copies start in a slot of their own.

        Raises:
            WalFullError: there is no room.

        """
        self.copies_from = retry.last_position
        self._retry = retry
        self._originals = [slot for slot in retry.live if not slot.moved]  # others wait for a reader to leave them
        self._slots = list(self._originals)
        retry.go_on()
        self._reader: Reader | None = None
        self._copies: list[tuple[Slot, int]] = []

    def step(self, limit: int = STEP) -> bool:
        """Copy up to ``limit`` frames; True when all are copied.

        Raises:
            WalFullError: there is no room: the copies so far count for nothing, `abandon` was called.

        """
        if self._reader is None:
            if not self._slots:
                return True
            self._reader = Reader.inside(self._retry, self._slots[0], bytes)
        run = self._reader.look(limit)
        if run is None and self._reader.moved:
            return False
        if run is None:
            self._reader.close()
            self._reader = None
            self._slots.pop(0)
            return False
        try:
            for place, payload in zip(run.places, run.records, strict=True):
                if run.slot.waits(place):  # as in a move
                    self._copy(run.slot, place, payload)
        except BaseException:
            self.abandon()
            raise
        return False

    def _copy(self, original: Slot, place: int, payload: bytes) -> None:
        copy_place, sequence = self._retry.append(payload, None)
        slot = self._retry.slot_of(sequence)
        self._copies.append((slot, copy_place))
        _join(original, place, self._retry, slot, copy_place)
        copies.mark(slot, unpack_moved(memoryview(payload)).position, copy_place, sequence)

    def check(self) -> None:
        """As of a move."""
        for slot in self._originals:
            _check(slot)

    def finish(self) -> None:
        """The rewriting is made: the copies count."""

    @property
    def count(self) -> int:
        """Records copied so far."""
        return len(self._copies)

    def abandon(self) -> None:
        """The copies must never count."""
        if self._reader is not None:
            self._reader.close()
        for slot in self._originals:
            slot.copies.clear()
        copies.take_back(self._retry, self._copies, self.copies_from)
        self._copies.clear()
        self._slots.clear()


def _check(slot: Slot) -> None:
    """What is settled leaves the copies, too: so they are as many as wait, if all could be read."""
    if len(slot.copies) < slot.unsettled:
        message = "records of a slot cannot be read any more, so it is not moved: check the disk"
        raise WalCorruptError(f"{message} slot={slot.header.ordinal} waiting={slot.unsettled} read={len(slot.copies)}")


def _join(original: Slot, place: int, retry: Ring, home: Slot, place_there: int) -> None:
    """Whatever becomes of the one becomes of the other; readers pass what is on its way to its destination already."""
    original.copies[place] = (retry, home, place_there)
    if place in original.claimed:
        home.claimed.add(place_there)


def void_copies(retry: Ring, valid_up_to: int | None, originals: Sequence[tuple[int, int]]) -> int:
    """Mark the copies that were never made to count as void; how many. Before anything else is read or appended.

    Args:
        retry: as opened.
        valid_up_to: retry position up to which the newest checkpoint lets them count; None: there is no checkpoint.
            Then those are void whose originals in the main ring are still there: nothing is lost. What a rewriting had
            copied once more, and not recycled yet, counts twice: only the checkpoint knew which of the two does.
        originals: first and last position of each main slot that is still there, in order.

    """
    count = 0
    for slot in list(retry.live):
        if valid_up_to is not None and slot.sealed and slot.last_position <= valid_up_to:
            continue
        reader = Reader.inside(retry, slot, unpack_moved, everything=True)
        while (run := reader.take(STEP)) is not None:
            places = [
                place
                for place, sequence, copy in zip(run.places, run.sequences, run.records, strict=True)
                if _is_void(fmt.position(slot.header.epoch, sequence), copy, valid_up_to, originals)
            ]
            retry.mark_void(slot, places)
            count += len(places)
        reader.close()
    return count


def _is_void(position: int, copy: object, valid_up_to: int | None, originals: Sequence[tuple[int, int]]) -> bool:
    if valid_up_to is not None:
        return position > valid_up_to
    if not isinstance(copy, Moved):
        return False
    at = bisect_right(originals, copy.position, key=_first) - 1
    return at >= 0 and copy.position <= originals[at][1]


def _first(positions: tuple[int, int]) -> int:
    return positions[0]
