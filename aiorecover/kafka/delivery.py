"""Delivery as a whole: what is connected, what each outcome leads to, and what the rest of the package asks of it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiorecover.errors import ClosedError, DeliveryError, WalDestinationError, WalError, WalIOError
from aiorecover.kafka.broker_task import BrokerTask
from aiorecover.kafka.client import Client, ConnectError
from aiorecover.kafka.compression import compressed_payload
from aiorecover.kafka.lanes import DeliveryLane, Event
from aiorecover.kafka.lanes import State as Lanes
from aiorecover.kafka.log_throttle import LogThrottle
from aiorecover.kafka.outcomes import Action, Outcome, Persisted
from aiorecover.kafka.produce import ProduceRequest, payload
from aiorecover.kafka.recovery_check import RecoveryCheck
from aiorecover.kafka.rewrite import Rewriter
from aiorecover.kafka.router import Partitioner, Router, Topic
from aiorecover.kafka.transactions import TransactionTask
from aiorecover.ring.format import State as Stored
from aiorecover.ring.loading import IDENTITY_MS, read_ahead, take_ahead
from aiorecover.ring.ring import Ring
from aiorecover.ring.segments import Batch, store_all
from aiorecover.ring.writer import Writer

LINGER_LANES = 20  # a broker task waits the linger once for so many lanes, or it would wake for each of them
LINGER_MAX_S = 0.25
METADATA_PAUSE_S = 0.05  # between two looks for leaders that are not known, doubled up to the next
METADATA_PAUSE_MAX_S = 1.0  # so delivery goes on within a second
STALL_S = 5.0  # before a lane is tried again whose rights or topic somebody has to mend
SEQUENCES = 1 << 31  # Kafka's sequences wrap there (R13)
EPOCHS = 32_000  # producer epochs of a lane: below the 15 bits of Kafka's; then the next Kafka producer id
SLICE = 32  # batches between two turns for the loop
CANCEL_AGAIN_S = 0.05

_log = logging.getLogger("aiorecover")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """What delivery takes from the producer's options; times in seconds."""

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
    partitioner: Partitioner | None = None
    transactional_id: str | None = None  # exactly once, in transactions of this id
    transaction_timeout_ms: int = 60_000


class Listener(Protocol):
    """What delivery says to the producer."""

    async def delivered(self, batch: Batch) -> None:
        """A batch was acknowledged, and is not settled yet; only called where `reports` is True."""

    def stopped(self, error: BaseException) -> None:
        """Nothing more is delivered."""


class Delivery:
    """Bring what is in the lanes to Kafka.

    Attributes:
        connected: a Kafka producer id is there, and the cluster is the right one.
        producer: Kafka producer id and epoch of this start.
        cause: why Kafka is not reached, or nothing is sent; None: it is.
        delivered, dead_lettered, requests, errors: counts since the start; the first two are records.

    """

    def __init__(
        self, ring: Ring, writer: Writer, options: DeliveryOptions, flushed: Callable[[], Awaitable[None]]
    ) -> None:
        """``flushed()`` waits for a flush of the ring that begins from now on."""
        self.ring, self.writer, self.options = ring, writer, options
        self.flushed = flushed
        self.always, self.request_timeout_s = options.always, options.request_timeout_s
        self.listener: Listener | None = None
        self.reports = False  # the listener wants to hear of each batch
        self.client = Client(options.client)
        self.throttle = LogThrottle(ring.files.monotonic)
        self.router = Router(self, options.partitioner)
        self.rewriter = Rewriter(self)
        self.checker = RecoveryCheck(self)
        self.connected = False
        self.producer = (-1, -1)
        self.cause: str | None = "not connected yet"
        self.failure: BaseException | None = None
        self.delivered = self.dead_lettered = self.requests = self.errors = 0
        self.hurried = 0  # callers that wait for all to be delivered: nothing lingers
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wanted = asyncio.Event()
        self._unflushed: set[DeliveryLane] = set()
        self._gated: set[DeliveryLane] = set()
        self._stopped = False
        self._watching: set[asyncio.Future[None]] = set()
        self._waiters: list[tuple[tuple[int, int], asyncio.Future[None]]] = []

    def now(self) -> float:
        """The loop's time, in seconds."""
        return asyncio.get_running_loop().time()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` beside the rest; its failure stops delivery."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stop_delivering(task.exception())

    def stop_delivering(self, error: BaseException | None) -> None:
        """Send nothing more: a fault of ours, of the disk, or another owner of the directory."""
        if self.failure is None and error is not None:
            self.failure = error
            self.cause = f"delivery has stopped: {error}"
            _log.critical(
                "delivery_stopped records stay in the ring until the next start error=%r", error, exc_info=error
            )
            if self.listener is not None:
                self.listener.stopped(error)
            for task in self._tasks:
                task.cancel()

    def adopted(self) -> None:
        """What earlier lives left is in the lanes now: begin to send."""
        for task in self.router.tasks.values():
            task.wake.set()
        for topic in self.router.topics.values():
            if topic.count and topic.gate is not None:
                self.rewriter.assign(topic)
        self.check_waiters()

    def new_task(self, node: int, *, apart: bool) -> BrokerTask:
        """Return the task that sends the batches of a broker; in transactions, those of all."""
        if self.options.transactional_id is not None:
            return TransactionTask(self, self.options.transactional_id, self.options.transaction_timeout_ms)
        return BrokerTask(self, node, apart=apart)

    def start(self) -> None:
        """Begin; in the loop, once what earlier lives left is in the lanes, or before."""
        self.ring.on_ready = self.router.ready
        self.spawn(self._watch(), "aiorecover-metadata")

    async def stop(self) -> None:
        """End every task and close every connection."""
        self._stopped = True
        await cancel_all(self._tasks)
        for waiter in list(self._watching):
            if not waiter.done():
                waiter.set_exception(
                    ClosedError("the producer is stopped: the record is delivered after the next start")
                )
        await self.client.close()

    # -- the connection ------------------------------------------------------------------------------------------------

    def want_metadata(self) -> None:
        """Some lane or topic needs to know more."""
        self._wanted.set()

    async def _watch(self) -> None:
        """Keep the connection and the metadata."""
        pause = METADATA_PAUSE_S
        while True:
            try:
                if not self.connected:
                    await self._connect()
                settled = await self._refresh()
            except ConnectError as error:
                self._unreached(str(error))
                settled = False
            except WalDestinationError as error:
                self._unreached(str(error))
                pause = METADATA_PAUSE_MAX_S
                settled = False
            if settled:
                pause = METADATA_PAUSE_S
                self._wanted.clear()
                await self._wait_for_need()
            else:
                await asyncio.sleep(max(pause * random.uniform(0.75, 1.25), self.client.pause))
                pause = min(2 * pause, METADATA_PAUSE_MAX_S)

    async def _wait_for_need(self) -> None:
        if self.client.stale and self.router.wanted_topics(self.now(), 0.0):
            await asyncio.sleep(METADATA_PAUSE_S)
            return
        try:
            async with asyncio.timeout(self.options.metadata_max_age_s):
                await self._wanted.wait()
        except TimeoutError:
            return

    def _unreached(self, cause: str) -> None:
        self.cause = cause
        self.throttle.warn("kafka_unreachable", "kafka", "%s", cause)

    async def _connect(self) -> None:
        await self.client.bootstrap()
        await self._check_cluster()
        self.producer = await self.client.new_producer()
        self.connected = True
        self._reached()
        self.router.replace_all()

    def _reached(self) -> None:
        self.cause = None
        self.throttle.over("kafka_unreachable", "kafka", "kafka is reached again")

    async def _check_cluster(self) -> None:
        """Compare the cluster with the one that the records belong to; remember the first one.

        Raises:
            WalDestinationError: it is another one: nothing is sent.

        """
        found, checkpoint = self.client.metadata.cluster_id, self.ring.checkpoint
        if found is None or checkpoint is None:
            return
        if self.options.cluster_id is not None:
            if found != self.options.cluster_id:
                raise WalDestinationError(
                    "kafka is not the cluster that the option cluster_id names, nothing is sent: mend one of the two "
                    f"found={found!r} cluster_id={self.options.cluster_id!r}"
                )
        else:
            self.ring.directory.check_destination(checkpoint.name, None, found)
        if checkpoint.cluster_id != found:
            await asyncio.to_thread(self.ring.remember_cluster, found)

    async def _refresh(self) -> bool:
        """Ask for the topics that need it; whether nothing is missing then."""
        router, now = self.router, self.now()
        waiting = router.wanted_topics(now, 0.0)
        recent = [name for name in router.wanted_topics(now, self.options.metadata_max_age_s) if name not in waiting]
        if not waiting and not recent:
            return True
        for names, create in ((waiting, True), (recent, False)):
            if names:
                await self.client.refresh(names, create=create)
                await self._check_cluster()
                for name in names:
                    self._learn(name)
        self._reached()
        router.settle_homeless()
        return not router.homeless and not any(
            topic.unassigned is not None and not topic.count and not topic.unassigned.stored.idle
            for topic in router.topics.values()
        )

    def _learn(self, name: str) -> None:
        topic, found = self.router.topics[name], self.client.metadata.topics.get(name)
        if found is None or (found.code and not found.leaders):
            topic.error = _topic_error(name, found.code if found is not None else 3)
            if topic.busy:
                self.throttle.warn("topic_unavailable", name, "%s", topic.error)
            return
        self.throttle.over("topic_unavailable", name, "the topic is there now topic=%s", name)
        if self.router.learn(name, len(found.leaders), found.leaders) or topic.gate is not None:
            self.rewriter.assign(topic)
        for lane in topic.lanes.values():
            if lane.stored.partition not in found.leaders and not lane.stored.idle:
                lane.error = f"the topic has no such partition lane={lane.stored} partitions={topic.count}"
                self.throttle.warn("partition_missing", lane.stored, "%s", lane.error)

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
        if stored.later and (stored.short or not stored.loaded):
            if all(segment.mapping is not None for segment in list(stored.later)[:2]):
                ahead = read_ahead(self.ring, stored)
            else:
                ahead = await asyncio.to_thread(read_ahead, self.ring, stored)
            take_ahead(self.ring, stored, ahead)
            if lane.state is Lanes.SEALED and lane.contents() is not Event.NEXT_SEALED:
                self.router.go_on(lane)
                self.check_waiters()

    def hold_for_gate(self, lane: DeliveryLane) -> None:
        """Wait until the topic's older records have their partitions (R9)."""
        self._hold(lane)
        self._gated.add(lane)

    def open_gate(self, topic: Topic) -> None:
        """Older records of the topic have their partitions now."""
        for lane in [lane for lane in self._gated if lane.topic is topic]:
            self._gated.discard(lane)
            self.router.go_on(lane)

    def hold_for_flush(self, lane: DeliveryLane) -> None:
        """Wait for a flush that covers the lane's oldest batch (R7)."""
        self._hold(lane)
        if not self._unflushed:
            self.spawn(self._await_flush(), "aiorecover-flushed")
        self._unflushed.add(lane)

    async def _await_flush(self) -> None:
        try:
            await self.flushed()
        except WalIOError:
            self._unflushed.clear()  # poisoned: what is not covered is not sent in this life
            return
        lanes, self._unflushed = self._unflushed, set()
        for lane in lanes:
            self.router.go_on(lane)

    def hold_for_check(self, lane: DeliveryLane, batch: Batch) -> bool:
        """Look in Kafka for a batch that may have been sent before (R2, R11); whether it waits for that."""
        if self.options.transactional_id is not None:
            return False
        if batch.identity is not None and self.ring.files.boot_ms() - batch.sent_at >= IDENTITY_MS:
            batch.identity = None
        sent = batch.state is Stored.SENT and batch.identity is None
        if not self.options.check or not (sent or not (batch.segment.trusted or lane.checked)):
            return False
        self._hold(lane)
        self.spawn(self._check(lane), "aiorecover-check")
        return True

    async def _check(self, lane: DeliveryLane) -> None:
        await self.checker.look(lane)
        self.router.go_on(lane)

    def _hold(self, lane: DeliveryLane) -> None:
        self.router.displace(lane)
        lane.step(Event.HOLD)

    def check_owner(self) -> None:
        """See that the directory is still ours, before each request.

        Raises:
            WalIOError: a file of it was removed.

        """
        lost = self.ring.directory.lost()
        if lost is not None:
            raise WalIOError(None, lost, str(self.ring.directory.path))

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
                parts = await asyncio.to_thread(self._prepare_all, some)
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
            if lane.producer is None or lane.producer[0] != self.producer[0]:
                lane.producer, lane.sequence = self.producer, 0
            batch.store_identity((*lane.producer, lane.sequence), self.ring.files.boot_ms(), self.ring.epoch)
        if self.options.compression is None:
            return payload(batch)
        return compressed_payload(batch, self.options.compression)

    # -- what became of it ---------------------------------------------------------------------------------------------

    async def settle(self, passed: list[tuple[DeliveryLane, Batch, int]], turn: int) -> None:
        """Settle batches that were acknowledged, each with its offset."""
        cold = [batch for _, batch, _ in passed if batch.segment.mapping is None]
        if self.reports:
            for lane, _, _ in passed:
                lane.step(Event.HOLD)
        for number, (lane, batch, offset) in enumerate(passed, 1):
            batch.offset = offset if offset >= 0 else None
            if batch.identity is not None and batch.identity[:2] == lane.producer:
                lane.sequence = (batch.identity[2] + batch.count) % SEQUENCES
            if self.reports and self.listener is not None:
                await self.listener.delivered(batch)
            if not number % turn:
                await asyncio.sleep(0)
        if cold:
            await asyncio.to_thread(store_all, cold, Stored.SETTLED, self.ring.epoch)
        stored = set(map(id, cold))
        for lane, batch, _ in passed:
            self.finish(lane, batch, stored=id(batch) in stored)

    def finish(self, lane: DeliveryLane, batch: Batch, *, stored: bool = False) -> None:
        """Settle a batch that is in Kafka, and go on."""
        if batch.kind == 0:
            self.delivered += batch.count
        self.ring.finish(batch, Stored.SETTLED, stored=stored)
        if lane.error is not None:
            self.throttle.over("delivery_failed", lane.stored, "the lane gets through again lane=%s", lane.stored)
        lane.succeeded()
        if lane.trouble:
            lane.trouble = False
            self.router.displace(lane)
        self.router.go_on(lane)
        self.check_waiters()

    def settle_found(self, lane: DeliveryLane, batch: Batch) -> None:
        """Settle a batch that was found in Kafka; the lane is held, and goes on later."""
        self.delivered += batch.count if batch.kind == 0 else 0
        self.ring.finish(batch, Stored.SETTLED)
        lane.acknowledged = True

    def failed(self, lane: DeliveryLane, outcome: Outcome) -> None:
        """Send the lane's oldest batch again later."""
        lane.tries += 1
        lane.doubt = lane.doubt or outcome.persisted is not Persisted.NOT
        lane.error = outcome.reason
        self.throttle.warn(
            "delivery_failed",
            lane.stored,
            "%s: it is sent again lane=%s tries=%d",
            outcome.reason,
            lane.stored,
            lane.tries,
        )
        pause = min(self.options.backoff_max_s, self.options.backoff_s * 2 ** min(lane.tries - 1, 16))
        if outcome.action is Action.STALL:
            pause = max(pause, STALL_S)
        lane.step(Event.FAILED)
        lane.due = self.now() + pause * random.uniform(0.5, 1.0)
        self.router.displace(lane)
        if outcome.action is Action.MOVED:
            self.router.homeless[lane] = None
            self.want_metadata()
        else:
            self.router.place(lane)

    def too_large(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Halve a batch, or bury the one record that is too large."""
        lane.most = batch.size // 2
        self.refused(lane, batch, reason)

    def refused(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Kafka refuses something in a batch for good: halve it until the record at fault stands alone."""
        lane.error = reason
        self._hold(lane)
        self.spawn(self.rewriter.refused(lane, batch, reason), "aiorecover-rewrite")

    def lost_identity(self, lane: DeliveryLane, batch: Batch, outcome: Outcome) -> None:
        """Give a batch another identity; where an attempt may have persisted it, look for it first (R11, R13)."""
        doubt = lane.doubt
        batch.identity = None
        if lane.producer is not None and lane.producer[1] < EPOCHS and outcome.action is not Action.NEW_PRODUCER:
            lane.producer, lane.sequence = (lane.producer[0], lane.producer[1] + 1), 0
        else:
            lane.producer = None
            self.connected = False
            self.want_metadata()
        lane.error = outcome.reason
        self.throttle.warn("identity_lost", lane.stored, "%s: it gets another one lane=%s", outcome.reason, lane.stored)
        if doubt and self.options.check:
            self._hold(lane)
            self.spawn(self._check(lane), "aiorecover-check")
        else:
            self.failed(lane, outcome)

    def throttled(self, node: int, ms: int) -> None:
        """A broker wants no more for a while: a quota."""
        self.throttle.warn("kafka_throttles", node, "a quota is used up: delivery slows down node=%d ms=%d", node, ms)

    # -- what callers wait for -----------------------------------------------------------------------------------------

    def seal_all(self) -> None:
        """Seal every open batch that has records."""
        for lane in list(self.router.lanes.values()):
            cursor = lane.stored.published
            if cursor.index:
                cursor.seal()
                if lane.task is not None:
                    lane.task.wake.set()

    async def drained(self) -> None:
        """Wait until what was published so far is done.

        Raises:
            DeliveryError: delivery has stopped.

        """
        if self.failure is not None:
            raise DeliveryError(str(self.cause))
        upto = self.ring.epoch, self.ring.next_sequence()
        if not self._before(upto):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((upto, waiter))
        self.hurried += 1
        try:
            self.seal_all()
            await waiter
        finally:
            self.hurried -= 1
            self._waiters = [one for one in self._waiters if one[1] is not waiter]

    async def wait_for(self, batch: Batch) -> None:
        """Wait until a batch is done, or delivery ends."""
        if self._stopped:
            raise ClosedError("the producer is stopped: the record is delivered after the next start")
        waiter = asyncio.get_running_loop().create_future()
        if batch.waiters is None:
            batch.waiters = []
        batch.waiters.append(waiter)
        self._watching.add(waiter)
        try:
            await waiter
        finally:
            self._watching.discard(waiter)
            if batch.waiters and waiter in batch.waiters:
                batch.waiters.remove(waiter)

    async def partitions_of(self, name: str) -> set[int]:
        """Return a topic's partitions, as soon as Kafka says them."""
        topic = self.router.topic(name)
        while not topic.leaders:
            topic.used_at = self.now()
            self.client.stale = True
            self.want_metadata()
            await asyncio.sleep(METADATA_PAUSE_S)
        return set(topic.leaders)

    def expire_before(self, moment: float) -> None:
        """Bury what was accepted before ``moment``, Unix seconds, and is neither in flight nor held."""
        for lane in list(self.router.lanes.values()):
            cursor = lane.stored.published
            if cursor.batch is not None and cursor.index and cursor.batch.accepted_at < moment:
                cursor.seal()
            batch = lane.head
            waits = lane.state in (Lanes.SEALED, Lanes.BACKING_OFF) or lane.topic.unassigned is lane
            if batch is None or batch.accepted_at >= moment or not waits or lane.state is Lanes.HELD:
                continue
            self._hold(lane)
            self.spawn(self.rewriter.expire(lane, batch), "aiorecover-expire")

    def check_waiters(self) -> None:
        """Wake who waits for what is done now."""
        for upto, waiter in self._waiters:
            if not waiter.done() and not self._before(upto):
                waiter.set_result(None)

    def _before(self, upto: tuple[int, int]) -> bool:
        return self.ring.recovering or any(_oldest(lane) < upto for lane in self.router.lanes.values())

    def troubles(self) -> Iterable[str]:
        """Say what holds records up, the worst first."""
        if self.cause is not None:
            yield self.cause
        for topic in self.router.topics.values():
            if topic.error is not None and topic.busy:
                yield topic.error
        for lane in self.router.in_trouble():
            if not lane.stored.idle:
                yield f"{lane.error} lane={lane.stored}"


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends; again and again, since `asyncio.wait_for` may swallow a cancellation."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


def _oldest(lane: DeliveryLane) -> tuple[int, int]:
    stored = lane.stored
    if stored.queue:
        return stored.queue[0].order
    if stored.later:
        return (stored.later[0].ordinal >> 32, 0)
    batch = stored.published.batch
    return batch.order if batch is not None and stored.published.index else (1 << 62, 0)


def _topic_error(name: str, code: int) -> str:
    reasons = {
        3: "the topic is not there: make it, or let the cluster make topics by itself",
        5: "the topic is being made",
        17: "kafka refuses the topic: internal, or its name collides with another one ('.' is '_')",
        29: "not authorized: grant Describe and Write on the topic",
    }
    return f"{reasons.get(code, f'kafka answers with error code {code}')} topic={name}"


__all__ = ["Delivery", "DeliveryOptions", "Listener", "WalError"]
