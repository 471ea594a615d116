"""An opened instance directory: its files, its three rings, and the checkpoint over them.

wal_dir/            0700
  0/ 1/ … or NAME/  one per process at a time
    lock            flock; the owner's process id, for people
    checkpoint      two alternating copies
    ring            the slots of what was published
    retry           the slots of what was moved out of its way
    dead            the slots of what Kafka will never take
    lanes           what delivery wrote down before it sent it
    damaged/        bytes in which no frame holds, see `kept`
"""

import errno
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aiorecover.errors import WalError, WalFullError, WalIOError
from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import Acceptance, Ages, StoredAges
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Destination, RingState
from aiorecover.wal.ends import above, furthest
from aiorecover.wal.epochs import Epochs
from aiorecover.wal.kept import DAMAGED, keep
from aiorecover.wal.lanes import LEAST_BYTES, Lanes
from aiorecover.wal.losses import Losses, Stretch
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.ring import Ring
from aiorecover.wal.sources import Sources
from aiorecover.wal.spares import Quota
from aiorecover.wal.storage import OPERATING_SYSTEM, FileSystem, StorageFile, when_forked
from aiorecover.wal.suffix import Suspicion

_OPEN: weakref.WeakSet["Directory"] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for directory in list(_OPEN):
        directory.abandon()


when_forked(_abandon_in_child)

LOCK = "lock"
CHECKPOINT = "checkpoint"
LANES = "lanes"
FILES = {LOCK, CHECKPOINT, RING, RETRY, DEAD, LANES, DAMAGED}
RING_GONE = (
    "the file ring is gone, and nothing tells what was stored there behind the last checkpoint: stop, put it back and "
    "start anew, or publish that again from where it came"
)
UNSURE = (
    "records may be missing that nothing names, for the checkpoint is damaged, too: stop, put the files back and start "
    "anew, or publish those again from where they came"
)
CHECKPOINT_LOST = (
    "the checkpoint cannot be read, so nothing tells what was missing before and behind the records that are left: the "
    "next start goes by these alone, and may deliver some of the settled ones again"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What an opening needs to know; durations in seconds.

    ``cluster_id`` and ``servers``: where it belongs if it remembers no cluster. ``limit_ms``: as in
    `Ages`.
    """

    wal_dir: Path
    slot_bytes: int
    max_bytes: int
    min_free_bytes: int
    instance: str | None = None
    name: str | None = None
    cluster_id: str | None = None
    servers: tuple[str, ...] = ()
    lock_timeout: float = 0.0
    limit_ms: int | None = None
    file_system: FileSystem = OPERATING_SYSTEM


@dataclass(slots=True)
class Files:
    """The open files of an instance directory."""

    lock: StorageFile
    checkpoint: StorageFile
    ring: StorageFile
    retry: StorageFile
    dead: StorageFile
    lanes: StorageFile

    def __iter__(self) -> Iterator[StorageFile]:
        """The lock first: it is closed last, in reverse."""
        return iter((self.lock, self.checkpoint, self.ring, self.retry, self.dead, self.lanes))

    def close(self) -> None:
        """Close all; the lock goes with its last descriptor (in a forked child it stays the parent's)."""
        for file in reversed(list(self)):
            file.close()


@dataclass(slots=True, weakref_slot=True, eq=False)
class Directory:
    """An opened, locked instance directory."""

    path: Path
    files: Files
    checkpoint_file: CheckpointFile
    ring: Ring
    retry: Ring
    dead: Ring
    lanes: Lanes
    producer_id: str
    checkpoint: Checkpoint
    file_system: FileSystem
    ages: Ages
    sources: Sources | None  # None: nobody has asked for them yet
    same_boot: bool = False  # the machine was not down since the checkpoint that was found
    epochs: Epochs = field(default_factory=Epochs)  # before the present one
    copies_from: int | None = None  # retry position before the copies that are not made to count yet
    all_copies_settled: bool | None = None  # known once the files are closed
    _writing: bool = False  # the keeper's thread writes a checkpoint
    _untold: bool = False  # a flush has failed, and no word of it was left yet
    _gave_in_vain: bool = False  # somebody else took the slots that were given up for a lane

    def __post_init__(self) -> None:
        """Have a forked child abandon it, and the rings wait for one another where settle words are suspect."""
        _OPEN.add(self)
        self.ring.judged_with = self.retry.judged_with = (self.ring, self.retry)
        self.dead.judged_with = ()  # its words are taken as they stand

    @property
    def rings(self) -> tuple[Ring, Ring, Ring]:
        """Main, retry, dead."""
        return self.ring, self.retry, self.dead

    @property
    def records_left(self) -> int:
        """Known to wait, or not looked at yet: settled ones of earlier epochs may be among the latter."""
        return self.pending() + self.unread()

    def next_checkpoint(
        self,
        *,
        moved: int | None = None,
        rewritten: int | None = None,
        closed: bool = False,
        destination: Destination | None = None,
    ) -> Checkpoint:
        """Capture what a checkpoint says now, before its flush begins (I4).

        Args:
            moved: the P of a move whose copies are stored; None keeps it.
            rewritten: retry position up to which everything was copied to the end of the retry ring; None: nothing.
            closed: nothing will be stored any more.
            destination: None keeps it.

        """
        old = self.checkpoint
        retry = _state(self.retry)
        if rewritten is not None:
            retry = msgspec.structs.replace(retry, watermark=max(retry.watermark, rewritten))
        elif moved is None and self.copies_from is not None:  # copies behind it do not count yet
            retry = msgspec.structs.replace(retry, flushed=min(retry.flushed, self.copies_from))
        return msgspec.structs.replace(
            old,
            main=_state(self.ring),
            retry=retry,
            dead=_state(self.dead),
            moved=max(old.moved, self.ring.known_as_moved) if moved is None else moved,
            closed=closed,
            suspect=self._suspicion(),
            destination=old.destination if destination is None else destination,
            ages=self._ages(),
            sources=None if self.sources is None else self.sources.captured(),  # behind the position of the ring
        )

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Flush the rings and the lanes, then make ``checkpoint`` durable (the keeper's thread).

        The copies of a move are flushed with the retry ring before the checkpoint makes the move, in both of its own
        copies: the originals go, and with only one of them readable the moved records must still count.

        Raises:
            WalError: and from then on nothing is accepted or recycled (I7).

        """
        checkpoint = checkpoint.after(self.checkpoint)
        try:
            self._write_alone(checkpoint)
        except WalFullError as error:  # the copy may be half written, and room alone does not mend that
            failure = _no_room(self.files.checkpoint.path)
            self.poison(failure)
            raise failure from error
        except WalError as error:
            self.poison(error)
            raise
        finally:
            self._leave_word()

    def write_end(self, end: Checkpoint) -> None:
        """Make ``end`` durable, by which nothing waits, though files were removed or replaced (the keeper's thread).

        The rings are not flushed: whatever the next opening finds in their place, all that they held is done. Nothing
        is written where lock or checkpoint are not the ones that were opened: then the directory may be somebody's.

        Raises:
            WalError: it is not durable.

        """
        if self._wrong_with(self.files.lock) is None and self._wrong_with(self.files.checkpoint) is None:
            self.checkpoint_file.write(end.after(self.checkpoint))

    def _write_alone(self, checkpoint: Checkpoint) -> None:
        """Nobody leaves word meanwhile."""
        self._writing = True
        try:
            self._write(checkpoint)
        finally:
            self._writing = False

    def _write(self, checkpoint: Checkpoint) -> None:
        for ring in self.rings:
            ring.sync()
        self.lanes.sync()
        if self._makes_copies_count(checkpoint) or checkpoint.tells_first(self.checkpoint):
            self.checkpoint_file.write_both(checkpoint)
        else:
            self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    def _makes_copies_count(self, checkpoint: Checkpoint) -> bool:
        rewritten = self.copies_from is not None and checkpoint.retry.flushed > self.copies_from
        return rewritten or checkpoint.moved > self.checkpoint.moved

    def sync(self) -> None:
        """Make everything that was published durable (the keeper's thread).

        Raises:
            WalError: and from then on nothing is accepted or recycled (I7).

        """
        self._sync(self.ring)

    def sync_dead(self) -> None:
        """Make the dead letters durable (the keeper's thread).

        Raises:
            WalError: and from then on nothing is accepted or recycled (I7).

        """
        self._sync(self.dead)

    def _sync(self, ring: Ring) -> None:
        try:
            ring.sync()
        except WalError as error:
            self.poison(error)
            raise

    def recycle(self, durable: Checkpoint) -> int:
        """Free what a durable checkpoint covers (I1); how many slots of the main ring."""
        self.retry.recycle(durable.retry.watermark, moved=durable.retry.watermark)
        self.dead.recycle(durable.dead.watermark)
        return self.ring.recycle(max(durable.main.watermark, durable.moved), moved=durable.moved)

    def settled_up_to(self) -> int:
        """A position up to which everything is settled, what was moved included.

        What waits in the retry ring is known to the slot: it stands behind the first copy in it. Of copies that were in
        flight when a process died nothing is known there: readers pass them.
        """
        mark = self.ring.watermark()
        slot = self.retry.first_waiting()
        if slot is None:
            return mark
        return min(mark, slot.marks[0][0] - 1) if slot.marks and not slot.claimed else 0

    def pending(self) -> int:
        """Records known to wait in the main and the retry ring."""
        return self.ring.pending_once() + self.retry.pending_once()

    def unread(self) -> int:
        """Records of earlier epochs in the two that no reader has reached; see `Ring.unread`."""
        return self.ring.unread() + self.retry.unread()

    def is_settled(self, sequence: int, place: int) -> bool | None:
        """Whether a record of this epoch is done; after `close`, as far as it can be told.

        None: damage may have taken its copy: it is not known before that slot is counted anew, or nothing waits there.
        """
        position = fmt.position(self.ring.epoch, sequence)
        if position > self.ring.moved_up_to:
            return self.ring.is_settled(sequence, place)
        if self.all_copies_settled is not None:
            return self.all_copies_settled
        waits = copies.waits(self.retry, position, self.copies_from)
        return None if waits is None else not waits

    def is_lost(self, sequence: int, place: int) -> bool:
        """Whether damage in the main ring took a record of this epoch; see `Ring.is_lost`.

        Not if it had been copied by then, as long as its copy waits, or may.
        """
        if not self.ring.is_lost(sequence, place):
            return False
        position = fmt.position(self.ring.epoch, sequence)
        if position > self.ring.moved_up_to or self.all_copies_settled is not None:
            return True
        return copies.waits(self.retry, position, self.copies_from) is False

    @property
    def lost(self) -> int:
        """Records of the two rings that damage took after they had been counted."""
        return self.ring.lost + self.retry.lost

    @property
    def wants_spare(self) -> bool:
        """A ring's next slot is not ready yet: let the keeper call `prepare_spares`."""
        wanted = self.lanes.wants_room or self.checkpoint_file.wants_room
        return wanted or any(ring.wants_spare for ring in self.rings)

    def prepare_spares(self) -> None:
        """Have the next slots ready (the keeper's thread).

        The retry and the dead ring have one reserved from the opening on: a full disk must not keep the main ring from
        being freed. Where there was no room for it, or it was used, it is tried again here, before the main ring grows.

        Raises:
            WalFullError: there is no room in the main ring.

        """
        if self.checkpoint_file.wants_room:
            with suppress(WalFullError), self._allocating:
                self.checkpoint_file.allocate()
        reserved = self.retry, self.dead
        for ring in reserved:
            if ring.wants_spare and ring.spares.empty:
                with suppress(WalFullError):
                    ring.prepare_spare()
        with suppress(WalFullError):  # whoever needs a block asks again
            self.grow_lanes()
        try:
            if self.ring.wants_spare:
                self.ring.prepare_spare()
        finally:
            for ring in reserved:  # what an opening has reserved is read behind it: publishing waits for the main ring
                if ring.wants_spare and not ring.spares.empty:
                    with suppress(WalFullError):
                        ring.prepare_spare()

    def grow_lanes(self) -> None:
        """Have blocks for more lanes, if they are wanted (the keeper's thread).

        A lane that waits for one gets it in the place of free slots, where the disk has no more room: else nothing of
        it would be delivered before a person makes some, and it would fill the rings.

        Raises:
            WalFullError: the disk is full.

        """
        with self._allocating:
            try:
                self.lanes.grow()
            except WalFullError:
                if not self._make_room_for_a_lane():
                    raise
                self.lanes.grow()
            self._gave_in_vain = False

    def _make_room_for_a_lane(self) -> bool:
        """Give up free slots, once: who fills the disk as fast as that takes no more of them."""
        if self._gave_in_vain or not self.lanes.awaited:
            return False
        self._gave_in_vain = self._quota.make_room(LEAST_BYTES)
        return self._gave_in_vain

    @property
    def _allocating(self) -> AbstractContextManager[bool]:
        """Nobody else allocates: what a file takes before it fails must not refuse a slot that there is room for."""
        return self._quota.lock

    @property
    def _quota(self) -> Quota:
        return self.ring.spares.quota

    def shrink(self) -> int:
        """Give back to the disk what was not needed for long; bytes (the keeper's thread)."""
        return sum(ring.spares.shrink() * ring.slot_bytes for ring in self.rings)

    def give_back_free(self, keep: int | None) -> int:
        """Give free slots back to the disk at the end, all but ``keep`` of each ring; bytes (the keeper's thread)."""
        return sum(ring.spares.give_back_free(keep) * ring.slot_bytes for ring in self.rings)

    def give_back_memory(self) -> None:
        """Have mapped slots count as memory no longer, some at a time."""
        for ring in self.rings:
            ring.give_back_memory()

    def take_damaged(self) -> list[list[Stretch]]:
        """Damaged bytes of each ring that are to be kept; they stay in place until `release_damaged`."""
        return [ring.losses.take_pinned() for ring in self.rings]

    def keep_damaged(self, stretches: list[list[Stretch]]) -> None:
        """Copy them to files of their own (the keeper's thread); what cannot be kept is a warning."""
        for file, of_ring in zip((self.files.ring, self.files.retry, self.files.dead), stretches, strict=True):
            keep(self.file_system, self.path, file, of_ring)

    def release_damaged(self, stretches: list[list[Stretch]]) -> None:
        """They are kept, or cannot be: their slots may be recycled."""
        for of_ring in stretches:
            Losses.unpin(of_ring)

    def poison(self, error: WalError) -> None:
        """Accept and recycle nothing until reopened (I7), and leave word of it for the next opening.

        The word is stored without a flush, which would tell nothing any more: it survives the death of the process, and
        after a power cut the next opening is careful anyway.
        """
        for ring in self.rings:
            ring.poison(error)
        self._untold = True
        self._leave_word()

    def _leave_word(self) -> None:
        """Unless a checkpoint is just being written: then whoever writes it does so behind it.

        Any thread may poison at any moment. In the place of a checkpoint that is being made durable the word would say
        what the one before said, and whoever has made that one counts on what it says. None is begun behind this look:
        the rings refuse the flush that comes first. So it takes no lock, which a signal handler that raises could have
        stay taken; what such a one left undone, or two threads do at once, is only stored again.
        """
        if self._untold and not self._writing:
            self.checkpoint_file.leave_word(msgspec.structs.replace(self.checkpoint, poisoned=True, closed=False))
            self._untold = False

    def moved_away(self) -> str | None:
        """What is wrong with the files behind our paths, if anything: somebody removed or replaced them."""
        return next(filter(None, map(self._wrong_with, self.files)), None)

    def _wrong_with(self, file: StorageFile) -> str | None:
        try:
            found = self.file_system.identity(file.path)
        except OSError as error:
            return f"{file.path}: {error.strerror}"
        return f"{file.path}: replaced by another file" if found != file.identity() else None

    def abandon(self) -> None:
        """In a forked child: close everything; the lock stays with the parent."""
        for ring in self.rings:
            ring.abandon()
        self.files.close()

    def close(self) -> None:
        """Close every file."""
        self.all_copies_settled = self.retry.pending() == 0
        for ring in self.rings:
            ring.close()
        self.files.close()

    @property
    def expired(self) -> int:
        """Position up to which all records are too old, as a durable checkpoint says: it does not fall again."""
        return self.checkpoint.ages.expired

    def note_age(self) -> tuple[bool, bool]:
        """Look at the clock: whether a checkpoint would know more of ages, and whether more has expired that waits."""
        position = self.ring.last_position  # before the clock: what comes in between is younger
        now = self.file_system.since_boot_ms()
        watermark = 0 if self.retry.live else self.ring.watermark()  # what was moved stands below it, and waits
        self.ages.look_at_wall(now, self.file_system.wall_ms(), all_settled=position <= watermark)
        self.ages.forget(watermark)
        news = position > watermark and self.ages.note(position, now)
        return news, self.ages.expired(now) > max(self.expired, watermark)

    def accepted(self, position: int) -> Acceptance:
        """When a record of the main ring that waits was accepted."""
        now = self.file_system.since_boot_ms()
        self.ages.look_at_wall(now, self.file_system.wall_ms())
        return self.ages.accepted(position, now)

    def _ages(self) -> StoredAges:
        self.note_age()
        return self.ages.captured(self.file_system.since_boot_ms(), self.file_system.wall_ms())

    def _suspicion(self) -> Suspicion:
        """What is still suspect: over once no slot of that time is left in the main and the retry ring."""
        suspect = self.checkpoint.suspect
        if any(slot.first_position <= suspect.up_to for ring in (self.ring, self.retry) for slot in ring.live):
            return suspect
        return Suspicion(0, suspect.generation, suspect.since)


def _no_room(path: Path) -> WalIOError:
    """Not as a full ring says it: who gets that waits for room."""
    message = "no room to write the checkpoint: free disk space, then stop and start again"
    return WalIOError(errno.ENOSPC, message, str(path))


def _state(ring: Ring) -> RingState:
    """As the flush that follows makes it: what is known to stand there by now, of each epoch."""
    mark = ring.watermark()
    *earlier, flushed = furthest(ring.ends, ring.reached)
    by_originals = ring.by_originals and not ring.sequence
    return RingState(mark, ring.next_ordinal, flushed, by_originals, above(mark, earlier))
