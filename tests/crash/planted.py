"""Faults that are planted on purpose, each against one invariant: a check that never goes red proves nothing.

`plant` changes the library inside the process that calls it, which is a child that will be killed; `planted` does so
for a while.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from aiorecover import opened
from aiorecover.delivery import delivery, resume, session, sessions, suspicion, transaction, transactions
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.cluster import Cluster
from aiorecover.delivery.committed import Committed
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.journal import Doubt
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.delivery.position_in_kafka import PositionInKafka
from aiorecover.delivery.resume import Taken
from aiorecover.delivery.sender import Sender
from aiorecover.delivery.session import Session
from aiorecover.delivery.transactions import Transactions
from aiorecover.errors import WalIOError
from aiorecover.opened import Opened
from aiorecover.wal import format as fmt
from aiorecover.wal import instance, opening, reading, scan
from aiorecover.wal.directory import LOCK, Directory, Options
from aiorecover.wal.neighbours import Neighbours
from aiorecover.wal.recovery import Plan, plan
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.sources import Sources
from aiorecover.wal.storage import FileSystem, StorageFile
from aiorecover.wal.sync import GroupCommit
from tests.crash.replaced import Replaced
from tests.wal.rig import of_the_epoch_before

__all__ = ["FAULTS", "plant", "planted"]

LATE_S = 2.0  # longer than any transaction that is not held up
FAILING_FLUSH = 3
TICK_S = 0.01  # a timer of the loop's may be early by some part of it
STANDING_S = 3.0  # so short that a span of ten seconds has room for making up for it


def settle_at_hand_over() -> None:
    """Against I3: a record counts as done once aiokafka has it."""
    send = Sender._send

    async def settle_and_send(self: Sender, lane: Lane, batch: LaneBatch) -> Any:
        for slot, places in batch.frames:
            slot.ring.settle(slot, places)
        batch.frames = []  # there is nothing left to settle after the acknowledgement
        return await send(self, lane, batch)

    _put(Sender, "_send", settle_and_send)


def count_what_is_delivered_twice() -> None:
    """Against I9: more records went than came."""
    settle = Sender._settle

    async def count_and_settle(self: Sender, lane: Lane, batch: LaneBatch, metadata: Any) -> None:
        self.delivered += batch.count
        await settle(self, lane, batch, metadata)

    _put(Sender, "_settle", count_and_settle)


def forget_to_settle() -> None:
    """Against settling in place: what was delivered is known to this process only, and is sent again after it."""

    def count_only(self: Ring, slot: Slot, places: Sequence[int]) -> None:
        slot.unsettled -= len(places)

    _put(Ring, "settle", count_only)


def recycle_what_waits() -> None:
    """Against I1: a slot that was left may be reused, whatever waits in it and wherever the watermark stands."""

    def may_recycle(self: Ring, slot: Slot, _: int) -> bool:
        return slot.sealed

    _put(Ring, "_may_recycle", may_recycle)


def trust_every_frame() -> None:
    """Against I2: whatever looks like a frame is one, of this life of the slot or not."""

    def holds(data: bytes | memoryview, at: int, length: int, *_: int) -> bool:
        return 0 < length <= len(data) - at - fmt.FRAME_BYTES

    def parse(self: reading.Reader, slot: Slot, *_: int) -> tuple[Run | None, bool]:
        window = self._window
        buffer, start, stop = window.buffer, window.start, window.stop
        at, place = self.offset - start, self.offset // fmt.WORD + fmt.SETTLE_WORD
        if at + fmt.FRAME_BYTES > stop - start:
            return None, True
        length, _, sequence, state = fmt.FRAME.unpack_from(buffer, at)
        if not holds(buffer[: stop - start], at, length):
            return None, False
        self.offset, self.expected = fmt.frame_end(self.offset, length), sequence + 1
        record = self._record(buffer[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length])
        return None if state == slot.salt else Run(slot, [sequence], [place], [record]), True

    _put(scan, "holds", holds)
    _put(reading.Reader, "_parse", parse)


def let_copies_count_that_were_not_made() -> None:
    """What a move, or a rewriting, had copied when it was killed counts beside its originals."""
    _put(opening, "void_copies", lambda *_: None)


def open_without_a_new_epoch() -> None:
    """Against I5: positions are used again."""

    def same_epoch(*files: Any, **more: Any) -> Plan:
        return of_the_epoch_before(plan(*files, **more))

    def same_producer(before: int | None) -> int:
        return drawn(None) if before is None else before

    drawn = fmt.new_producer_id
    _put(opening, "plan", same_epoch)
    _put(fmt, "new_producer_id", same_producer)


def send_the_newest_batch_first() -> None:
    """Against I6: the batches of a lane overtake each other."""

    def newest(self: Lane) -> LaneBatch | None:
        if self.in_flight is not None or not self.ready:
            return None
        self.in_flight = self.ready.pop()
        return self.in_flight

    _put(Lane, "next", newest)


def stand_still_when_one_is_gone_back_for() -> None:
    """Against the neighbours' rate: a turn of who catches up takes seconds, and nobody else gets one meanwhile."""
    advance = Dispatcher._advance
    until: list[float] = []

    def stand_still(self: Dispatcher) -> bool:
        loop = asyncio.get_running_loop()
        if self._drain and not until:
            until.append(loop.time() + STANDING_S)
            loop.call_at(until[0] + TICK_S, self.wake)
        if until and loop.time() < until[0]:
            return False
        return advance(self)

    _put(Dispatcher, "_advance", stand_still)


def stand_still_in_the_sequence() -> None:
    """Against the lane's identity: a new batch says that it is the one before, and the broker drops it as a repeat."""

    def identify(self: Lane, batch: LaneBatch, fresh: Identity) -> None:
        self.identity = self.identity or fresh
        batch.identify(self.identity.producer_id, self.identity.epoch, 0)

    _put(Lane, "identify", identify)
    _put(Lane, "is_swallowed", lambda *_: False)  # which would see it


def give_every_refused_sequence_back() -> None:
    """Against the rule of what is possibly persisted: the next batch takes the number of one that the broker knows."""
    take_back = Lane.take_back

    def give_back(self: Lane, batch: LaneBatch, fresh: Identity) -> None:
        batch.possibly = False
        take_back(self, batch, fresh)

    _put(Lane, "take_back", give_back)


def follow_without_a_fence() -> None:
    """Against I6: what is parted with while it may be on its way is followed under an identity of the session's."""
    _put(Identity, "fence", lambda *_: None)


def write_down_after_the_send() -> None:
    """Against I6b: what is in flight stands in the journal once it is acknowledged."""
    enter, settle = Journal.enter, Sender._settle

    async def later(*_: Any) -> bool:
        return True

    async def enter_and_settle(self: Sender, lane: Lane, batch: LaneBatch, metadata: Any) -> None:
        await enter(self._journal, lane, batch)
        await settle(self, lane, batch, metadata)

    _put(Journal, "enter", later)
    _put(Sender, "_settle", enter_and_settle)


def go_on_from_every_entry() -> None:
    """Against the journal's doubts: whoever stored an entry, and whenever, the lane goes on from its sequence."""
    start = Delivery.start

    def go_on(self: Delivery) -> None:
        start(self)
        for resumed in self._taken.lanes:
            entry = resumed.entry
            lane = self.router.resumed(*entry.lane)
            lane.identity, lane.sequence = entry.identity, entry.base_sequence + entry.count

    _put(resume, "doubt_of", lambda *_, **__: None)
    _put(Delivery, "start", go_on)


def forget_what_was_in_flight() -> None:
    """Against exactly once: every opening begins with identities of its own, and looks for nothing in Kafka."""
    _put(resume, "doubt_of", lambda *_, **__: Doubt.ELSEWHERE)
    _put(delivery, "oldest_hints", lambda _: [])


def use_identities_of_another_cluster() -> None:
    """Against one cluster: what the journal says of the old one's identities counts at the new one, too."""
    take_up = resume.take_up

    def trusting(directory: Directory, *now: int, **_: Any) -> Taken:
        return take_up(directory, *now)

    _put(opened, "take_up", trusting)


def send_to_any_cluster() -> None:
    """Against one cluster: whoever answers gets the records."""
    _put(Cluster, "is_ours", lambda *_: True)


def adopt_what_is_locked() -> None:
    """Against the lock: a directory is taken over whoever has it."""

    def pass_the_lock(options: Options) -> tuple[Path, StorageFile]:
        if options.lock_timeout > 0:  # our own
            return instance.lock_instance(options)
        path = options.wal_dir / str(options.instance)
        return path, options.file_system.open(path / LOCK)

    _put(Neighbours, "_is_free", lambda *_: True)
    _put(opening, "lock_instance", pass_the_lock)


def bury_behind_settling() -> None:
    """Against I3: a refused record is settled first, and then there is a letter of it."""
    settled = DeadLetters.settled
    wanted: dict[int, tuple[Any, ...]] = {}

    async def later(_: DeadLetters, *letter: Any) -> None:
        wanted[letter[0].position] = letter

    def put_and_settled(self: DeadLetters, position: int) -> None:
        self.put_now(*wanted.pop(position))
        settled(self, position)

    _put(DeadLetters, "put", later)
    _put(DeadLetters, "settled", put_and_settled)


def leave_letters_of_what_came_through() -> None:
    """Against one fate of each record: Kafka takes it after all, and the letter that an earlier life put stays."""
    _put(DeadLetters, "_may_be_left", lambda *_: False)


def commit_the_position_apart() -> None:
    """Against exactly once: the position is not in the transaction of the records that it covers."""
    commit = transaction.commit

    async def apart(producer: AIOKafkaProducer, group: str, topic: str, committed: Committed) -> None:
        if not producer._txn_manager.is_empty_transaction():
            await producer.commit_transaction()
            await producer.begin_transaction()
        await commit(producer, group, topic, committed)

    _put(transaction, "commit", apart)


def settle_before_the_commit() -> None:
    """Against exactly once: an acknowledgement inside a transaction is taken for the end of it."""
    take = Transactions.take

    def settle_and_take(self: Transactions, lane: Lane, batch: LaneBatch, metadata: Any) -> None:
        for slot, places in batch.frames:
            slot.ring.settle(slot, places)
        batch.frames = []  # there is nothing left to settle after the commit
        take(self, lane, batch, metadata)

    _put(Transactions, "take", settle_and_take)


def commit_without_the_answers() -> None:
    """Against exactly once: whatever became of the batches, aiokafka commits; of one lane they are late."""
    send = Session.send

    async def send_late(self: Session, batch: LaneBatch, topic: str, partition: int) -> Any:
        if partition == 0:
            await asyncio.sleep(LATE_S)
        return await send(self, batch, topic, partition)

    async def all_answered(self: Transactions, *_: Any) -> None:
        return

    _put(Session, "send", send_late)
    _put(Transactions, "_until_answered", all_answered)


def commit_without_a_flush() -> None:
    """Against I11: the position covers what a power cut may take."""

    async def at_once(self: Opened) -> None:
        return

    _put(Opened, "_flush_ring", at_once)


def go_on_beside_a_copy() -> None:
    """Against exactly once: whoever has committed instead of us, what we had not is sent in the next session."""
    look = PositionInKafka.look

    async def look_away(self: PositionInKafka) -> Committed | None:
        return None if self.was_read else await look(self)

    _put(PositionInKafka, "look", look_away)


def tell_before_the_flush() -> None:
    """Against the group commit: who waits for a flush is told when it is wanted, not when it has ended."""
    run = GroupCommit._run

    async def told_first(self: GroupCommit) -> None:
        for waiter in self._waiting:
            waiter.set_result(None)
        await asyncio.sleep(0)  # they go on
        await run(self)

    _put(GroupCommit, "_run", told_first)


def remember_a_source_too_many() -> None:
    """Against source positions: what comes next counts as read before anything that is made of it is stored."""
    note = Sources.note

    def note_the_next(self: Sources, stream: str, part: int, number: int) -> None:
        note(self, stream, part, number + 1)

    _put(Sources, "note", note_the_next)


def forget_sources_behind_the_checkpoint() -> None:
    """Against source positions: what the records in the ring were made from since the checkpoint is read once more."""
    _put(opened, "read_on", lambda _: None)


def wait_less_for_transactions() -> None:
    """No fault: what takes half a minute is given up after some seconds."""
    _put(transaction, "STEP_LIMIT", 3.0)
    _put(transactions, "UNFINISHED_LIMIT", 3.0)
    _put(session, "CONNECT_LIMIT", 2.0)


def close_idle_sessions_soon() -> None:
    """No fault: a session that nobody needs any more is closed after a second, not after a minute."""
    _put(sessions, "IDLE_LIMIT", 1.0)
    _put(suspicion, "LONGEST_STAY", 1.0)


def fail_a_flush() -> None:
    """No fault of ours: the disk fails the third flush of the ring, once."""
    sync, flushes = StorageFile.sync, count(1)

    def failing(self: StorageFile) -> None:
        if self.path.name == "ring" and next(flushes) == FAILING_FLUSH:
            raise WalIOError(errno.EIO, "cannot flush the file to the disk: check it", str(self.path))
        sync(self)

    _put(StorageFile, "sync", failing)


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        settle_at_hand_over,
        count_what_is_delivered_twice,
        forget_to_settle,
        recycle_what_waits,
        trust_every_frame,
        let_copies_count_that_were_not_made,
        open_without_a_new_epoch,
        send_the_newest_batch_first,
        stand_still_when_one_is_gone_back_for,
        stand_still_in_the_sequence,
        give_every_refused_sequence_back,
        follow_without_a_fence,
        write_down_after_the_send,
        go_on_from_every_entry,
        forget_what_was_in_flight,
        use_identities_of_another_cluster,
        send_to_any_cluster,
        adopt_what_is_locked,
        bury_behind_settling,
        leave_letters_of_what_came_through,
        commit_the_position_apart,
        settle_before_the_commit,
        commit_without_the_answers,
        commit_without_a_flush,
        go_on_beside_a_copy,
        tell_before_the_flush,
        remember_a_source_too_many,
        forget_sources_behind_the_checkpoint,
        wait_less_for_transactions,
        close_idle_sessions_soon,
        fail_a_flush,
    )
}


_replaced = Replaced()
_put = _replaced.put


def boot(boot_id: str) -> None:
    """Make the library believe that the machine was started anew: no fault, but a condition."""
    _put(FileSystem, "boot_id", lambda _: boot_id)


def later(hours: int) -> None:
    """Make the library believe that so much more time has passed since the boot."""
    since_boot_ms = FileSystem.since_boot_ms
    _put(FileSystem, "since_boot_ms", lambda self: since_boot_ms(self) + hours * 3_600_000)


def plant(fault: str) -> None:
    """Break the library in this process."""
    FAULTS[fault]()


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """The library is broken in this process until this is over; None: it is not."""
    try:
        if fault is not None:
            plant(fault)
        yield
    finally:
        _replaced.restore()
