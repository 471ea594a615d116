"""The delivery side as one thing: dispatcher, lanes, session and reports, put together."""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from aiokafka.errors import KafkaConnectionError, KafkaError

from aiorecover.config import Config
from aiorecover.delivery.batch import CODECS, LaneBatch
from aiorecover.delivery.behind import Order
from aiorecover.delivery.chatter import Chatter
from aiorecover.delivery.cluster import Cluster
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.delay import Delays
from aiorecover.delivery.dispatcher import DISCOVER_INTERVAL, DISCOVER_MAX, Dispatcher
from aiorecover.delivery.exactly_once import ExactlyOnce, first_id
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.flush import Flush
from aiorecover.delivery.frames import frames_of, position_at
from aiorecover.delivery.gone import LOOK_MOST
from aiorecover.delivery.holders import Frames, Holders
from aiorecover.delivery.identity_life import is_forgotten
from aiorecover.delivery.in_kafka import InKafka, oldest_hints
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import START_ANEW, Lane, lane_halted, lane_waits
from aiorecover.delivery.moves import Moves
from aiorecover.delivery.recovery_check import RecoveryCheck
from aiorecover.delivery.refused import Refused
from aiorecover.delivery.rehoming import Rehoming
from aiorecover.delivery.reports import Reports, tell_halted
from aiorecover.delivery.resume import Resumed, Taken, rebuild
from aiorecover.delivery.router import Router
from aiorecover.delivery.sender import Sender
from aiorecover.delivery.sessions import Sessions
from aiorecover.delivery.transactional_sender import TransactionalSender
from aiorecover.delivery.transactions import Transactions
from aiorecover.delivery.untimely import Untimely
from aiorecover.errors import ClosedError, DeliveryPendingError, WalDestinationError
from aiorecover.record import decode
from aiorecover.supervised import Supervised
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Destination
from aiorecover.wal.directory import Directory
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.stream import Stream

log = logging.getLogger("aiorecover.delivery")


class Delivery:
    """Brings every frame that is not settled to Kafka."""

    def __init__(
        self,
        config: Config,
        directory: Directory,
        taken: Taken,
        dead: DeadLetters,
        *,
        grow: Callable[[], Awaitable[None]],
        remember: Callable[[], Awaitable[None]],
        durable: Callable[[], Coroutine[Any, Any, None]],
        on_idle: Callable[[], None],
    ) -> None:
        """Know the opened directory, and what was ``taken`` up of the last process.

        ``grow`` has more blocks allocated in the file `lanes`; ``remember`` makes a checkpoint, with `destination`;
        ``durable`` returns once the ring is flushed;
        ``on_idle``: the dispatcher sleeps, and the next publish must call `wake`.
        """
        self._directory = directory
        self._ring = directory.ring
        self._codec = CODECS[config.client.get("compression_type")]
        self._halts = config.on_permanent_error == "halt"
        self._taken = taken
        # Of an entry that was lost in a power cut nothing is known, not even that there was one.
        doubtful = bool(taken.doubts or taken.left)
        self._doubtful_up_to = fmt.position(self._ring.epoch, 0) if doubtful else self._ring.suspect.up_to
        self._destination = directory.checkpoint.destination
        self._remember = remember
        self.cluster = Cluster(
            self._destination, config.cluster_id, remember=self._remember_cluster, on_change=self._on_cluster
        )
        untimely = Untimely(directory.accepted, directory.file_system.wall_ms)
        self._clock_ms = clock_ms = directory.file_system.since_boot_ms
        in_transactions = config.guarantee == "exactly_once"
        name = first_id(directory) if in_transactions else None
        self.sessions = Sessions(config, self._on_metadata, self._on_failed, self.cluster, untimely, name, clock_ms)
        self.session = self.sessions.healthy
        self.router = Router(self.session.partitions, self.session.available, self.session.want, config.partitioner)
        self.reports = Reports(directory, config.on_delivery)
        in_kafka = InKafka(fmt.directory_of(directory.checkpoint.producer_id), directory.ring.epoch)
        hints = oldest_hints(taken.hints) if config.recovery_check and not in_transactions else []
        self.check = RecoveryCheck(config, self.session, hints, in_kafka)
        self.expiry = self._expiry_of(config, dead)
        self.dispatcher = self._dispatcher_of(config, in_kafka, on_idle)
        journal = Journal(
            directory.lanes, grow, clock_ms, lambda: self.cluster.destination.cluster_number, self._on_failed
        )
        self.refused = self._refused_of(config, dead, journal)
        self.exactly_once = self._exactly_once_of(config, durable) if in_transactions else None
        self._journal = journal
        self.sender = self._sender_of(config, journal)
        self.rehoming = Rehoming(
            self.router,
            journal,
            self.dispatcher.batches,
            codec=self._codec,
            deliver=self._deliver,
            on_left=self._on_left,
            on_unreadable=self._on_unreadable,
            on_open=self._on_open,
        )
        lost, missing = self._lost_transaction, self._missing_right
        passed_over = self.dispatcher.passed_over
        self.delays = Delays(self._ring, self.session, self.check, self.router, passed_over, lost, missing)
        self._closed = False
        self._wrong: DeliveryPendingError | None = None  # why nothing is delivered
        self._stands = False  # for good
        self._progress: set[asyncio.Future[None]] = set()
        self._held: deque[tuple[Lane, Resumed]] = deque()  # lanes whose batch in flight is not built again yet
        self._in_no_lane = [resumed for resumed in taken.lanes if resumed.frames]
        self.moves = Moves(
            directory, self.router, self.dispatcher, journal, self._in_no_lane, contiguous=in_transactions
        )
        self.holders = Holders(
            self.router, self.dispatcher, self.refused, self.expiry, self._in_no_lane, self._uncommitted
        )
        self._resuming = Supervised("resume", self._resume)
        self._checking = Supervised("recovery-check", self._check)
        self.batches_resumed = 0
        self.identities_renewed = taken.doubts.total()  # the sender counts those that it renews

    # -- its parts ---------------------------------------------------------------------------------------------------

    def _expiry_of(self, config: Config, dead: DeadLetters) -> Expiry:
        directory = self._directory
        return Expiry(
            dead,
            self.reports,
            limit_ms=config.delivery_timeout_ms,
            expired=lambda: directory.expired,
            topic=config.dead_letter_topic,
            floor=self._ring.floor,
            doubtful_up_to=self._doubtful_up_to,
            on_change=self._on_expiry,
        )

    def _dispatcher_of(self, config: Config, in_kafka: InKafka, on_idle: Callable[[], None]) -> Dispatcher:
        return Dispatcher(
            Stream(self._directory, decode),
            self.router,
            codec=self._codec,
            batch_bytes=config.max_batch_size,
            linger=config.linger_ms / 1000,
            answered=self._answered,
            deliver=self._deliver,
            refuse=self._refuse,
            undecodable=self._undecodable,
            on_idle=on_idle,
            expiry=self.expiry,
            doubtful_up_to=self._doubtful_up_to,
            holds=self._holds,
            in_kafka=in_kafka,
            session=lambda: self.session.number,
            has_delivered=lambda: self.delivered > 0,
            on_flush=self._notify,
            cover=self._cover if config.guarantee == "exactly_once" else None,
        )

    def _refused_of(self, config: Config, dead: DeadLetters, journal: Journal) -> Refused:
        return Refused(
            dead,
            self.reports,
            codec=self._codec,
            topic=config.dead_letter_topic,
            on_cut=self._on_cut,
            part_with=journal.part_with,
            on_buried=self._on_acknowledged,
            on_full=self._on_dead_ring_full,
            on_room=self._on_dead_ring_room,
        )

    def _exactly_once_of(self, config: Config, durable: Callable[[], Coroutine[Any, Any, None]]) -> ExactlyOnce:
        return ExactlyOnce(
            self._directory,
            self.session,
            self.router,
            self.dispatcher,
            self.reports,
            self.refused,
            self.expiry,
            backoff=_backoff(config),
            deliver=self._deliver,
            flush_ring=durable,
            remember=self._remember,
            on_change=self._notify,
            on_disk_error=self._on_disk_error,
            on_fenced=self._on_fenced,
        )

    def _sender_of(self, config: Config, journal: Journal) -> Sender:
        once = self.exactly_once
        made = Sender if once is None else partial(TransactionalSender, once.transactions)
        return made(
            self.sessions,
            self.reports,
            self.refused,
            journal,
            self.expiry,
            halts=self._halts,
            is_forgotten=self._is_forgotten,
            backoff=_backoff(config),
            on_acknowledged=self._on_acknowledged,
            on_halted=self._on_halted,
            on_parted=self._on_parted,
        )

    def _is_forgotten(self, since_ms: int) -> bool:
        return is_forgotten(self._clock_ms() - since_ms, self.cluster.destination.expiration_ms)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, and to send what was in flight; the loops are run by `background`."""
        for resumed in self._taken.lanes:
            entry = resumed.entry
            lane = self.router.resumed(*entry.lane)
            lane.resume(entry.offset, resumed.block)
            if entry.parted:
                lane.inherit(entry.identity.fence(random.uniform))
            else:
                self._journal.took_up(lane)
            if resumed.frames:
                lane.hold(entry.count)
                self._held.append((lane, resumed))
        self.dispatcher.reader.count(self._taken.claimed)
        self.dispatcher.batches.resuming = bool(self._held)
        self._resuming.start()
        if not self.check.over:
            self._checking.start(Chatter().context())  # it says itself what its consumer's lines are about
        self.sessions.start()
        if self.exactly_once is not None:
            self.exactly_once.start()
        self.expire()

    async def _resume(self) -> None:
        """Build again what was in flight, a batch a turn, and no more of them than may be in memory."""
        await self.expiry.until_known()
        with contextlib.suppress(ClosedError):
            while self._held:
                while self.dispatcher.batches.full:
                    await self._changed()
                await self._resume_lane(*self._held[0])
                self._held.popleft()
                await asyncio.sleep(0)
            self.dispatcher.batches.resuming = False
            self.dispatcher.wake()

    async def _check(self) -> None:
        await self.check.run()
        self.dispatcher.wake()

    async def _resume_lane(self, lane: Lane, resumed: Resumed) -> None:
        try:
            batch = await rebuild(resumed, self._codec)
        except Exception as error:  # noqa: BLE001 - it could be read when the directory was opened: the next opening decides anew
            self._on_unreadable(lane, error)
            return
        self.batches_resumed += 1
        self.dispatcher.batches.closed_bytes += batch.bytes
        self._in_no_lane.remove(resumed)
        lane.release(batch, resumed.entry.identity.fence(random.uniform))
        self.sender.deliver(lane)

    def _on_unreadable(self, lane: Lane, error: Exception) -> None:
        where = lane.topic, lane.partition
        log.error("what was in flight cannot be read again topic=%s partition=%d", *where, exc_info=error)
        lane.halt(f"{type(error).__name__}: {error}", START_ANEW)
        tell_halted(lane)
        self._on_halted(lane)

    async def close(self) -> None:
        """Stop sending; whatever is not acknowledged stays in the ring."""
        self._closed = True
        self._notify()
        try:  # at the same time: a lane that waits for the user's `on_delivery` must not keep the connections open
            ended = self._resuming.end() | self._checking.end() | self.rehoming.end()
            await asyncio.gather(*ended, return_exceptions=True)
            committing = self.exactly_once.end() if self.exactly_once is not None else set()
            await asyncio.gather(self.sender.close(), self.sessions.close())
            await asyncio.gather(*committing, return_exceptions=True)  # it waits for the user, too
        finally:
            try:
                await self.expiry.close()
                if self.exactly_once is not None:
                    await self.exactly_once.close()
                await self.refused.close()
            finally:
                self.reports.close()
                self.dispatcher.close()

    def wake(self) -> None:
        """Records came."""
        self.dispatcher.wake()

    def expire(self) -> None:
        """A durable checkpoint says that more has expired, or may have."""
        if self.expiry.limit_ms is None:
            return
        self.expiry.begin()
        self.dispatcher.expire()

    async def run_dispatcher(self) -> None:
        """Dispatch for ever."""
        await self.dispatcher.run()

    async def run_discovery(self) -> None:
        """Look for topics that are not known, and for partitions that did not exist, or do not any more."""
        while True:
            await self.dispatcher.fell_behind.wait()
            pause = DISCOVER_INTERVAL
            while self.dispatcher.has_gaps or self.router.undecided or self.dispatcher.undecided:
                if self.dispatcher.fell_behind.is_set():
                    self.dispatcher.fell_behind.clear()
                    pause = DISCOVER_INTERVAL
                try:
                    await self.session.discover()
                except (OSError, RuntimeError, ClosedError) as error:  # KafkaError is a RuntimeError
                    log.debug("no metadata yet error=%r", error)
                await self._until_more_falls_behind(pause)
                pause = min(pause * 2, LOOK_MOST if self.router.undecided else DISCOVER_MAX)
            self.dispatcher.fell_behind.clear()

    async def _until_more_falls_behind(self, pause: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may swallow a cancellation in Python 3.11
                await self.dispatcher.fell_behind.wait()

    @property
    def oldest(self) -> int:
        """Position of the oldest record that waits, in a lane or for one."""
        firsts = [frame for lane in self.router.lanes() if lane.first for frame in islice(frames_of(lane.first), 1)]
        held = [position_at(*frame) for frame in firsts]
        return min([self.dispatcher.waiting_from, *filter(None, held)])  # 0: it is settled

    async def flush(self, *, leave_halted: bool = False) -> None:
        """Wait until everything that is in the ring now is settled; not for what comes meanwhile.

        And until what is missing of it was reported, also where nothing waits.

        ``leave_halted``: also where a lane is halted wait until all others are done.

        Raises:
            PermanentDeliveryError: a lane is halted.
            WalError: what cannot be decoded stays in the ring, as the disk failed.
            DeliveryPendingError: nothing is delivered until somebody mends what is wrong.
            ClosedError: delivery was stopped.

        """
        if self.exactly_once is not None:
            await self._flush_transactions(self.exactly_once.transactions, self._tail())
            return
        flush = Flush(self._tail(), lambda: [self.refused, *self.expiry.queues], leaves_halted=leave_halted)
        self.dispatcher.begin_flush(flush)
        try:
            while not (flush.dispatched and flush.buried):
                if flush.dispatched:
                    self.refused.check()
                await self._next_look(flush)
            while (lane := flush.unsettled()) is not None:
                if lane.halted is not None and not lane.resumes:
                    raise lane_halted(lane, lane.in_flight)
                self.dispatcher.batches.hand_over()
                await self._next_look(flush)
        finally:
            self.dispatcher.end_flush(flush)
        for lane in self.halted if leave_halted else ():
            raise lane_halted(lane, lane.in_flight)

    async def _flush_transactions(self, transactions: Transactions, tail: int) -> None:
        self.dispatcher.begin_flush(flush := Flush(tail))
        try:
            while not (self.dispatcher.reader.caught_up and transactions.is_done(tail)):
                self.refused.check()
                for lane in self.halted:
                    if not lane.resumes:
                        raise lane_halted(lane, lane.in_flight)
                transactions.hurry(tail)
                await self._next_look(flush)
        finally:
            self.dispatcher.end_flush(flush)

    async def _next_look(self, flush: Flush) -> None:
        """Wait for the next change, unless there is no use in it."""
        if self._wrong is not None:
            raise self._wrong.with_traceback(None)  # else it would grow with each call, and keep whoever was told
        await self._changed()
        if not flush.leaves_halted:
            self._check_room()

    @property
    def destination(self) -> Destination:
        """Where the records belong, as far as that is known now."""
        known = self.exactly_once.known if self.exactly_once is not None else None
        return msgspec.structs.replace(self.cluster.destination, transactional=known)

    async def _remember_cluster(self) -> None:
        """Have it durable, and only then forget what was kept of the cluster before this one.

        In one checkpoint it says where the records go, and by the cluster's number that no identity of before counts.
        So a process that dies before it uses them where they were given, and one that dies behind it uses none.
        """
        left = self._taken.left
        if left is not None:
            left.release()
        await self._remember()
        if left is not None:
            forgotten = await left.forget()
            self.identities_renewed += forgotten

    def _on_fenced(self, owner: str) -> None:
        message = (
            "another process delivers a copy of this directory, and has taken over: nothing more is delivered from "
            "here before the next start. what was accepted here since it was copied stays in the ring until then"
        )
        log.error("%s taken_over_by=%s path=%s", message, owner, self._directory.path)
        self._stand_still(WalDestinationError(f"{message} taken_over_by={owner}"))

    def _on_disk_error(self, error: Exception) -> None:
        if self._ring.failure is not None:  # I7: nothing becomes durable any more, so nothing is committed
            self._stand_still(error)

    def _stand_still(self, cause: Exception) -> None:
        """Nothing more is delivered by this producer, whatever the cluster is."""
        self._stands = True
        self._wrong = _not_delivered(cause)
        self.reports.hold_off(self._wrong)
        self._notify()

    def _on_cluster(self) -> None:
        if self._stands:
            return
        wrong = self.cluster.wrong_id
        self._wrong = None if wrong is None else _not_delivered(self.cluster.error(wrong))
        self.reports.hold_off(self._wrong)
        self._notify()

    def _check_room(self) -> None:
        """Who waits for a lane that waits for room may be the one who has to make it."""
        for lane in self.halted:
            if lane.resumes or self.dispatcher.is_behind(lane):
                raise lane_halted(lane, lane.in_flight)

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic, asked from Kafka where they are not known; bounded by the caller.

        Raises:
            KafkaConnectionError: Kafka is another cluster: it would wait until somebody mends that.
            ClosedError: delivery was stopped.

        """
        self.session.want(topic)
        while not (found := self.session.partitions(topic)):
            if self._wrong is not None:
                raise KafkaConnectionError(str(self._wrong.__cause__)) from self._wrong.__cause__
            if self.session.number is None and not self._closed:
                await self._news()
                continue
            with contextlib.suppress(KafkaError):  # a session that ends meanwhile is replaced: the next one may tell
                await self.session.discover()
            if not self.session.partitions(topic):
                await asyncio.sleep(DISCOVER_INTERVAL)
        return set(found)

    @property
    def fenced(self) -> bool:
        """Somebody else delivers a copy of this directory."""
        return self.exactly_once is not None and self.exactly_once.fenced

    @property
    def delivered(self) -> int:
        """Records that are in Kafka; in transactions: committed."""
        return self.sender.delivered if self.exactly_once is None else self.exactly_once.delivered

    @property
    def dead_lettered(self) -> int:
        """Records that became dead letters."""
        return self.refused.dead_lettered + self.expiry.dead_lettered

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        tasks = self.sessions, self._resuming, self._checking, self.rehoming, self.refused, self.expiry
        more = () if self.exactly_once is None else (self.exactly_once,)
        return self.sender.interrupted > 0 or any(task.interrupted for task in (*tasks, *more))

    @property
    def halted(self) -> list[Lane]:
        """Lanes that a permanent error stopped."""
        return [lane for lane in self.router.lanes() if lane.halted is not None]

    def _tail(self) -> Order:
        """Of the newest record in either ring."""
        ring = self._ring
        if not ring.live:  # -1: before everything, also before a reader that has not begun: nothing to wait for
            return ring.moved_up_to if self._directory.retry.live else -1
        slot = ring.live[-1]
        if slot.header.epoch == ring.epoch:
            return ring.last_position
        return slot.last_position if slot.sealed else fmt.position(slot.header.epoch, fmt.SEQUENCE_MASK)

    def _answered(self, run: Run) -> bool:
        begun = self.exactly_once is None or self.exactly_once.transactions.begun
        return begun and self.session.answered and not self.expiry.holds(run) and not self._holds(run)

    def _holds(self, run: Run) -> bool:
        if self.exactly_once is not None and self.exactly_once.transactions.may_have(run.epoch):
            return True
        return self.check.holds(own_epoch=run.epoch == self._ring.epoch)

    def _cover(self, run: Run) -> int | None:
        return 0 if self.exactly_once is None else self.exactly_once.take(run)

    def _lost_transaction(self) -> str:
        return "" if self.exactly_once is None else self.exactly_once.transactions.trouble

    def _missing_right(self) -> str:
        return "" if self.exactly_once is None else self.exactly_once.transactions.missing

    def _uncommitted(self) -> Iterable[Frames]:
        return () if self.exactly_once is None else self.exactly_once.taken

    def _deliver(self, lane: Lane) -> None:
        self.sender.deliver(lane)

    def _refuse(self, lane: Lane, entry: Placed) -> None:
        self.reports.refuse([entry[2]], lane_waits(lane))

    def _on_acknowledged(self, lane: Lane, batch: LaneBatch) -> None:
        self.dispatcher.acknowledged(lane, batch)
        self._notify()

    def _on_parted(self, lane: Lane, batch: LaneBatch, rest: LaneBatch | None) -> None:
        self.dispatcher.parted(lane, batch, rest)
        self._notify()

    def _on_expiry(self) -> None:
        self.dispatcher.expire()
        self._notify()

    def _on_failed(self, lane: Lane, began: float | None) -> None:
        if self.exactly_once is None:  # there, a lane that does not get through holds up all, and none is passed over
            self.dispatcher.failed(lane, began)

    def _undecodable(self, entry: Placed, reason: str) -> bool:
        return not self._halts and self.refused.take_undecodable(entry, reason)

    def _on_cut(self, batch: LaneBatch, parts: Sequence[LaneBatch]) -> None:
        self.dispatcher.batches.closed_bytes += sum(part.bytes for part in parts) - batch.bytes

    def _on_dead_ring_full(self, lane: Lane) -> None:
        """The lane keeps its batches, which do not count for the others meanwhile; what comes is passed over."""
        self.dispatcher.stalled.end(lane)
        self.dispatcher.batches.closed_bytes -= lane.closed_bytes
        self.router.forget(lane)
        self.dispatcher.wake()
        self._notify()

    def _on_dead_ring_room(self, lane: Lane) -> None:
        self.dispatcher.batches.closed_bytes += lane.closed_bytes
        self.dispatcher.start_catching_up()
        self._notify()

    def _on_halted(self, lane: Lane) -> None:
        self.dispatcher.stalled.end(lane)
        self.dispatcher.batches.closed_bytes -= lane.closed_bytes
        lane.ready.clear()
        self.dispatcher.batches.drop_open(lane)
        self.router.forget(lane)
        self.dispatcher.wake()

    def _on_left(self, lane: Lane, to: Iterable[Lane]) -> None:
        self.identities_renewed += 1
        if lane.holds_nothing:
            self.sessions.forget(lane)
        self.dispatcher.left(lane, to)

    def _on_open(self) -> None:
        self.dispatcher.start_catching_up()
        self.dispatcher.wake()
        self._notify()

    def _on_metadata(self) -> None:
        undecided = self.router.undecided
        known = self.router.refresh()
        if self.router.undecided and not undecided:
            self.dispatcher.fell_behind.set()  # more answers are needed
        if self.exactly_once is None:
            self.rehoming.begin()
        if known or self.dispatcher.has_gaps:
            self.dispatcher.start_catching_up()
        self.dispatcher.look_again()  # in any case: it may hold records until the first answer, whatever that says
        self._notify()

    async def _changed(self) -> None:
        """Wait for the next acknowledgement or change.

        Raises:
            ClosedError: delivery was stopped: nothing will change any more.

        """
        if self._closed:
            message = "the producer was stopped before everything was in kafka: it is delivered after the next start"
            raise ClosedError(message)
        await self._news()

    async def _news(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress.add(future)
        try:
            await asyncio.wait({future}, timeout=DISCOVER_INTERVAL)
        finally:
            self._progress.discard(future)

    def _notify(self) -> None:
        for future in self._progress:
            if not future.done():
                future.set_result(None)


def _not_delivered(cause: Exception) -> DeliveryPendingError:
    error = DeliveryPendingError(f"it is accepted and stays in the ring, do not publish it again: {cause}")
    error.__cause__ = cause
    return error


def _backoff(config: Config) -> tuple[float, float]:
    return config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
