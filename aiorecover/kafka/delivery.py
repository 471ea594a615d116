"""Delivery as a whole: what is connected, what each outcome leads to, and what the rest of the package asks of it."""

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiorecover.errors import DeliveryError, WalIOError
from aiorecover.kafka.broker_task import BrokerTask
from aiorecover.kafka.client import Client
from aiorecover.kafka.connection import PAUSE_S, Connection
from aiorecover.kafka.lanes import DeliveryLane, Event, LaneState
from aiorecover.kafka.log_throttle import LogThrottle
from aiorecover.kafka.outcomes import UNREAD, Action, Outcome, Persisted
from aiorecover.kafka.produce import ProduceRequest, payload
from aiorecover.kafka.recovery_check import RecoveryCheck
from aiorecover.kafka.rewrite import Rewriter
from aiorecover.kafka.router import Partitioner, Router, Topic
from aiorecover.kafka.transactions import TransactionTask
from aiorecover.kafka.waiters import Waiters
from aiorecover.ring.format import BatchState
from aiorecover.ring.loading import IDENTITY_MS, read_ahead, take_ahead
from aiorecover.ring.ring import Ring
from aiorecover.ring.segments import Batch, store_all
from aiorecover.ring.writer import Writer

LINGER_LANES = 20  # a broker task waits the linger once for so many lanes, or it would wake for each of them
LINGER_MAX_S = 0.15
STALL_S = 5.0  # before a lane is tried again whose rights or topic an operator has to mend
SEQUENCES = 1 << 31  # Kafka's sequences wrap there (R13)
EPOCHS = 32_000  # producer epochs of a lane: below the 15 bits of Kafka's; then the next Kafka producer id
SMALL_BATCH = 1024  # bytes: smaller ones are not made on purpose
SLICE = 32  # batches between two turns for the loop
CANCEL_AGAIN_S = 0.05
THREADS_S = 2.0  # that a slow disk may take to end a write, at the stop

_log = logging.getLogger("aiorecover")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """The producer's options, as far as delivery needs them; times in seconds."""

    client: Mapping[str, Any]
    linger_s: float = 0.005
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0
    request_timeout_s: float = 40.0
    metadata_max_age_s: float = 300.0
    compression: str | None = None
    always: bool = False  # send only what a completed flush covers
    halt: bool = False  # a record that is refused for good halts its lane
    check: bool = True  # look in Kafka for what may have been sent before (R11)
    cluster_id: str | None = None
    dead_letter_topic: str | None = None  # dead letters are published there, too
    partitioner: Partitioner | None = None
    transactional_id: str | None = None  # exactly once, in transactions of this id
    transaction_timeout_ms: int = 60_000


class Delivery:
    """Bring what is in the lanes to Kafka.

    Attributes:
        report: awaited with each batch that was acknowledged, before it is settled, and with each of dead letters.
        delivered, dead_lettered, requests, errors: counts since the start; the first two are records.

    """

    def __init__(
        self, ring: Ring, writer: Writer, options: DeliveryOptions, flushed: Callable[[], Awaitable[None]]
    ) -> None:
        """``flushed()`` waits for a flush of the ring that begins from now on."""
        self.ring, self.writer, self.options = ring, writer, options
        self.flushed = flushed
        self.now: Callable[[], float] = lambda: asyncio.get_running_loop().time()  # the loop's, in seconds
        self.always, self.request_timeout_s = options.always, options.request_timeout_s
        self.report: Callable[[Batch], Awaitable[None]] | None = None
        self.connection = Connection(self)
        self.client = Client(options.client, self.connection.check_cluster)
        self.throttle = LogThrottle(ring.files.monotonic)
        self.router = Router(self, options.partitioner)
        self.rewriter = Rewriter(self)
        self.checker = RecoveryCheck(self)
        self.waiters = Waiters(self)
        self.failure: BaseException | None = None
        self.delivered = self.dead_lettered = self.requests = self.errors = 0
        self.settled_before = options.transactional_id is None  # what earlier transactions committed is settled
        self.hurried = 0  # callers that wait for all to be delivered: nothing lingers
        self.threads: set[asyncio.Future[Any]] = set()  # work that writes to the directory
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unflushed: dict[DeliveryLane, None] = {}
        self._gated: dict[DeliveryLane, None] = {}
        self._loading: dict[DeliveryLane, asyncio.Event] = {}  # set at the end of `load`

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, vital: bool = True) -> asyncio.Task[None]:
        """Run ``work`` beside the rest; the failure of what is ``vital`` stops delivery."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended if vital else self._tasks.discard)
        return task

    async def in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``work`` in a thread; it goes on where the caller is cancelled, and `stop` waits for it."""
        running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        self.threads.add(running)
        running.add_done_callback(self._thread_ended)
        return await asyncio.shield(running)

    def _thread_ended(self, running: asyncio.Future[Any]) -> None:
        self.threads.discard(running)
        _ = running.cancelled() or running.exception()  # the caller has it, or is gone

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self.stop_delivering(task.exception())
        elif not self.ring.closing:
            self.stop_delivering(DeliveryError("a task of the library was cancelled", persisted="not"))

    def stop_delivering(self, error: BaseException | None) -> None:
        """Send nothing more: a fault of ours, of the disk, or another owner of the directory."""
        if self.failure is None and error is not None:
            self.failure = error
            self.connection.cause = f"delivery has stopped: {error}"
            _log.critical(
                "delivery_stopped records stay in the ring until the next start error=%r", error, exc_info=error
            )
            for task in self._tasks:
                task.cancel()
            self.waiters.stop()

    def begin(self) -> None:
        """Begin to send: what earlier lives left is in the lanes now."""
        for task in self.router.tasks.values():
            task.wake.set()
        for topic in self.router.topics.values():
            if topic.count and topic.gate is not None:
                self.rewriter.assign(topic)
        self.waiters.check()

    def new_task(self, node: int, *, apart: bool) -> BrokerTask:
        """Return the task that sends the batches of a broker; in transactions, those of all."""
        if self.options.transactional_id is not None:
            return TransactionTask(self, self.options.transactional_id, self.options.transaction_timeout_ms)
        return BrokerTask(self, node, apart=apart)

    def start(self) -> None:
        """Begin; in the loop, once what earlier lives left is in the lanes, or before."""
        self.now = asyncio.get_running_loop().time
        self.ring.on_ready = self.router.ready
        self.spawn(self.connection.watch(), "aiorecover-metadata")

    async def stop(self) -> None:
        """End every task, wait for the threads that write, at most `THREADS_S`, and close every connection."""
        await cancel_all(self._tasks)
        if self.threads:
            await asyncio.wait(self.threads, timeout=THREADS_S)
        self.waiters.stop()
        await self.client.close()

    # -- what can go ---------------------------------------------------------------------------------------------------

    def linger(self, lanes: int) -> float:
        """Return how long an open batch waits for more records, beside so many lanes of its broker; seconds."""
        if self.hurried:
            return 0.0
        return min(max(LINGER_MAX_S, self.options.linger_s), self.options.linger_s * max(1.0, lanes / LINGER_LANES))

    def linger_of(self, lane: DeliveryLane) -> float:
        """Return how long this lane's open batch waits."""
        return self.linger(len(lane.task.lanes) if lane.task is not None else 0)

    async def load(self, lane: DeliveryLane) -> None:
        """Have objects for a lane's next batches."""
        stored = lane.stored
        while (other := self._loading.get(lane)) is not None:
            await other.wait()
        if stored.later and (stored.short or not stored.loaded):
            loaded = self._loading[lane] = asyncio.Event()
            try:
                if all(segment.mapping is not None for segment in list(stored.later)[:2]):
                    ahead = read_ahead(self.ring, stored)
                else:
                    ahead = await asyncio.to_thread(read_ahead, self.ring, stored)
                take_ahead(self.ring, stored, ahead)
            finally:
                del self._loading[lane]
                loaded.set()
            if lane.state is LaneState.SEALED and lane.contents() is not Event.NEXT_SEALED:
                self.router.go_on(lane)
            self.waiters.check()  # damaged batches are done now

    def hold_for_gate(self, lane: DeliveryLane) -> None:
        """Wait until the topic's older records have their partitions (R9)."""
        self.hold(lane)
        older = lane.topic.unassigned
        if older is not None and older.state is LaneState.HALTED:
            self.rewriter.halt(lane, "older records of the topic have no partition, and the disk has failed")
        else:
            self._gated[lane] = None

    def open_gate(self, topic: Topic) -> None:
        """Older records of the topic have their partitions now."""
        for lane in [lane for lane in self._gated if lane.topic is topic]:
            del self._gated[lane]
            self.router.go_on(lane)

    def hold_for_flush(self, lane: DeliveryLane) -> None:
        """Wait for a flush that covers the lane's oldest batch (R7)."""
        self.hold(lane)
        self._unflushed[lane] = None
        if len(self._unflushed) == 1:
            self.spawn(self._await_flush(), "aiorecover-flushed")

    async def _await_flush(self) -> None:
        try:
            await self.flushed()
        except WalIOError:
            lanes, self._unflushed = self._unflushed, {}
            for lane in lanes:  # poisoned: what is not covered is not sent in this life
                self.rewriter.halt(lane, "the disk has failed before the records were durable")
            return
        lanes, self._unflushed = self._unflushed, {}
        for lane in lanes:
            self.router.go_on(lane)

    def hold_for_check(self, lane: DeliveryLane, batch: Batch) -> bool:
        """Look in Kafka for a batch that may have been sent before (R2, R11); whether it waits for that."""
        if self.options.transactional_id is not None:
            return False
        if batch.identity is not None and self.ring.files.boot_ms() - batch.sent_at >= IDENTITY_MS:
            batch.identity = None
        sent = batch.state is BatchState.SENT and batch.identity is None
        if not self.options.check or not (sent or not (batch.segment.trusted or lane.checked)):
            return False
        self.hold(lane)
        self.spawn(self._check(lane), "aiorecover-check")
        return True

    async def _check(self, lane: DeliveryLane) -> None:
        if await self.checker.look(lane):
            self.router.go_on(lane)
            self.waiters.check()
        else:
            self.failed(lane, UNREAD)

    def hold(self, lane: DeliveryLane) -> None:
        """Send nothing of a lane until `Router.go_on`."""
        self.router.displace(lane)
        lane.step(Event.HOLD)

    def check_owner(self) -> None:
        """See that the directory is still ours, before each request.

        Raises:
            WalIOError: a file of it was removed.

        """
        lost = self.ring.directory.lost()
        if lost is not None:
            raise WalIOError(errno.ESTALE, lost, str(self.ring.directory.path))

    async def build(self, lanes: list[DeliveryLane], batches: list[Batch], timeout_ms: int) -> ProduceRequest:
        """Store what each batch is sent under, then SENT; return the request.

        Raises:
            WalIOError: the disk failed.

        """
        payloads: list[tuple[str, int, list[Any]]] = []
        for start in range(0, len(batches), SLICE):
            some = list(zip(lanes[start : start + SLICE], batches[start : start + SLICE], strict=True))
            if self.options.compression is None and all(batch.segment.mapping is not None for _, batch in some):
                parts = [self._prepare(lane, batch) for lane, batch in some]
            else:
                parts = await self.in_thread(self._prepare_all, some)
            payloads += [
                (lane.stored.topic, lane.stored.partition, part) for (lane, _), part in zip(some, parts, strict=True)
            ]
            if start:
                await asyncio.sleep(0)
        return ProduceRequest(None, timeout_ms, payloads)

    def _prepare_all(self, some: list[tuple[DeliveryLane, Batch]]) -> list[list[Any]]:
        return [self._prepare(lane, batch) for lane, batch in some]

    def _prepare(self, lane: DeliveryLane, batch: Batch) -> list[Any]:
        if batch.identity is None:
            if lane.producer is None or lane.producer[0] != self.connection.producer[0]:
                lane.producer, lane.sequence = self.connection.producer, 0
            batch.store_identity((*lane.producer, lane.sequence), self.ring.files.boot_ms(), self.ring.epoch)
        return payload(batch, self.options.compression)

    # -- what became of it ---------------------------------------------------------------------------------------------

    async def settle(self, passed: list[tuple[DeliveryLane, Batch, int]], turn: int) -> None:
        """Settle batches that were acknowledged, each with its offset."""
        cold = [batch for _, batch, _ in passed if batch.segment.mapping is None]
        if self.report is not None:
            for lane, _, _ in passed:
                lane.step(Event.HOLD)
        for number, (lane, batch, offset) in enumerate(passed, 1):
            batch.offset = offset if offset >= 0 else None
            if batch.identity is not None and batch.identity[:2] == lane.producer:
                lane.sequence = (batch.identity[2] + batch.count) % SEQUENCES
            if self.report is not None:
                await self.report(batch)
            if not number % turn:
                await asyncio.sleep(0)
        if cold:
            await self.in_thread(store_all, cold, BatchState.SETTLED, self.ring.epoch)
        stored = set(map(id, cold))
        for lane, batch, _ in passed:
            self.finish(lane, batch, stored=id(batch) in stored)

    def finish(self, lane: DeliveryLane, batch: Batch, *, stored: bool = False) -> None:
        """Settle a batch that is in Kafka, and go on."""
        self.delivered += batch.count
        self.ring.finish(batch, BatchState.SETTLED, stored=stored)
        if lane.error is not None:
            self.throttle.over("delivery_failed", lane.stored, "the lane gets through again lane=%s", lane.stored)
        lane.succeeded()
        if lane.trouble:
            lane.trouble = False
            self.router.displace(lane)
        self.router.go_on(lane)
        self.waiters.check()

    def settle_found(self, lane: DeliveryLane, batch: Batch) -> None:
        """Settle a batch that was found in Kafka; the lane is held, and goes on later."""
        self.delivered += batch.count
        self.ring.finish(batch, BatchState.SETTLED)
        lane.acknowledged = True
        self.renew(lane)

    def failed(self, lane: DeliveryLane, outcome: Outcome, *, logged: bool = False) -> None:
        """Send the lane's oldest batch again later; ``logged``: a line about the whole request says why."""
        lane.tries += 1
        lane.doubt = lane.doubt or outcome.persisted is not Persisted.NOT
        lane.error = outcome.reason
        if not logged and (lane.tries > 1 or outcome.action is not Action.MOVED):  # once is nothing: leaders move
            message = "%s: it is sent again lane=%s tries=%d"
            self.throttle.warn("delivery_failed", lane.stored, message, outcome.reason, lane.stored, lane.tries)
        pause = min(self.options.backoff_max_s, self.options.backoff_s * 2 ** min(lane.tries - 1, 16))
        if outcome.action is Action.STALL:
            pause = max(pause, STALL_S)
        lane.step(Event.FAILED)
        lane.due = self.now() + pause * random.uniform(0.5, 1.0)
        self.router.displace(lane)
        if outcome.action is Action.MOVED:
            self.router.homeless[lane] = None
            self.connection.want_metadata()
        else:
            self.router.place(lane)

    def too_large(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Halve a batch, and those that come after it, or bury the one record that is too large."""
        if batch.count > 1:
            lane.most = min(lane.most, max(SMALL_BATCH, batch.size // 2))
        self.refused(lane, batch, reason)

    def refused(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Kafka refuses something in a batch for good: halve it until the record at fault stands alone."""
        lane.error = reason
        self.hold(lane)
        self.spawn(self.rewriter.refused(lane, batch, reason), "aiorecover-rewrite")

    def renew(self, lane: DeliveryLane, *, producer_lost: bool = False) -> None:
        """Send what comes next under another identity: sequences of the last one may be in Kafka (R13)."""
        if lane.producer is None or self.options.transactional_id is not None:  # transactions begin with a new epoch
            return
        if producer_lost or lane.producer[1] >= EPOCHS:
            lane.producer = None
            self.connection.lost_producer()
        else:
            lane.producer, lane.sequence = (lane.producer[0], lane.producer[1] + 1), 0

    def lost_identity(self, lane: DeliveryLane, batch: Batch, outcome: Outcome) -> None:
        """Give a batch another identity; where an attempt may have persisted it, look for it first (R11, R13)."""
        doubt = lane.doubt
        batch.identity = None
        self.renew(lane, producer_lost=outcome.action is Action.NEW_PRODUCER)
        lane.error = outcome.reason
        self.throttle.warn("identity_lost", lane.stored, "%s: it gets another one lane=%s", outcome.reason, lane.stored)
        if doubt and self.options.check:
            self.hold(lane)
            self.spawn(self._check(lane), "aiorecover-check")
        else:
            self.failed(lane, outcome)

    def throttled(self, node: int, ms: int) -> None:
        """Log that a broker wants no more for a while: a quota is used up."""
        self.throttle.warn("kafka_throttles", node, "throttled: a quota is used up node=%d ms=%d", node, ms)

    async def partitions_of(self, name: str) -> set[int]:
        """Return a topic's partitions, as soon as Kafka says them."""
        topic = self.router.topic(name)
        while not topic.leaders:
            topic.used_at = self.now()
            self.client.stale = True
            self.connection.want_metadata()
            await asyncio.sleep(PAUSE_S)
        return set(topic.leaders)

    def troubles(self) -> Iterable[str]:
        """Say what holds records up, the worst first."""
        if self.connection.cause is not None:
            yield self.connection.cause
        for topic in self.router.topics.values():
            if topic.error is not None and topic.busy:
                yield topic.error
        for lane in self.router.in_trouble():
            if not lane.stored.idle:
                yield f"{lane.error} lane={lane.stored}"
        for task in self.router.tasks.values():
            if task.quiet_until > self.now():
                yield f"throttled: a quota is used up, delivery goes on more slowly node={task.node}"
        if self.ring.recovering:
            yield "records of earlier starts are being read, delivery begins after that"
        if self.checker.reading:
            yield "kafka is being read for records that were sent before (recovery_check), their partition waits"


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends; again and again, since `asyncio.wait_for` may swallow a cancellation."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
