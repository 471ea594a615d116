"""RecoverableProducer: life cycle and public methods, nothing else.

The way of a record: `publish` → `acceptor.Acceptor.store` → `ring.writer.Writer.append` → a batch in the ring →
`kafka.broker_task` → Kafka, and back: `kafka.delivery.Delivery.settle` → `ring.ring.Ring.finish`.
"""

import asyncio
import concurrent.futures
import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from aiokafka.errors import KafkaTimeoutError
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.acceptor import MISSING, TURN_CALLS, Acceptor
from aiorecover.checks import seconds_of
from aiorecover.config import Config, Options
from aiorecover.dead_letters import DeadLetters
from aiorecover.errors import (
    ClosedError,
    ConfigError,
    DeliveryPendingError,
    RecoverError,
    WalFullError,
    WalIOError,
)
from aiorecover.inbox import Inbox
from aiorecover.kafka.lanes import LaneState
from aiorecover.receipt import DeliveryReport, Receipt
from aiorecover.runtime import Runtime, let_go
from aiorecover.serialization import Headers, check_topic
from aiorecover.statistics import Statistics

log = logging.getLogger("aiorecover")

TURN_NS = 1_000_000  # a task that only publishes gives the other ones a turn once a millisecond at least
ROOM_S = 0.01  # between two attempts to store, while callers wait for room

_STARTED: weakref.WeakSet["RecoverableProducer"] = weakref.WeakSet()  # a forked child refuses to use these


class Fields(TypedDict, total=False):
    """The arguments of `RecoverableProducer.publish` beside topic and value."""

    key: bytes | str | None
    partition: int | None
    timestamp_ms: int | None
    headers: Headers | None
    context: object
    source: tuple[str, int, int] | None


class RecoverableProducer:
    """The asyncio producer for Kafka that does not lose records.

    >>> async with RecoverableProducer("wal", bootstrap_servers="localhost:9092") as producer:  # doctest: +SKIP
    ...     receipt = await producer.publish("orders", {"id": 1}, key="1")  # accepted: survives kill -9
    ...     report = await receipt.delivered(timeout_ms=10_000)  # in Kafka

    Constructing does no I/O and needs no loop; `Config` describes every option. One producer belongs to one event
    loop; use `publish_threadsafe` from other threads.

    Raises:
        ConfigError: an option is unknown, wrong or in conflict with another one.

    """

    def __init__(
        self, wal_dir: str | os.PathLike[str], *, bootstrap_servers: str | Sequence[str], **options: Unpack[Options]
    ) -> None:
        """Check the options; `start` does the rest."""
        self._config = Config.from_options(wal_dir, bootstrap_servers, options)
        self._always = self._config.fsync == "always"
        self._life = "created"
        self._runtime: Runtime | None = None
        self._opening: asyncio.Task[Runtime] | None = None
        self._accept: Callable[..., Receipt] = self._refuse  # what accepts a record while it runs
        self._stopping: asyncio.Task[int] | None = None
        self._line = asyncio.Lock()  # callers that wait for room, first come, first served
        self._in_line = 0
        self._turn_ends = 0  # the next publish looks closer once the clock is past this
        self._turned = True  # the loop has had a turn since the last look
        self._turn_first = 0  # the sequence of the next record at that look
        self.producer_id = ""
        self.epoch = 0

    def __repr__(self) -> str:
        """Name the directory and the state."""
        return f"<RecoverableProducer {self.wal_path or self._config.wal_dir} {self.state}>"

    # -- life cycle ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory and begin to deliver what it holds; needs no broker.

        Raises:
            WalError: the directory cannot be used; the message says why and what to do.
            ClosedError: the producer was stopped, also meanwhile: make a new one.
            RecoverError: it runs already, in another event loop.

        """
        if self._life == "running":
            self._refuse_elsewhere()
            return
        if self._life != "created":
            raise self._closed_error()
        self._life = "starting"
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(self._loop, self.publish_nowait)
        _STARTED.add(self)
        self._opening = self._loop.create_task(Runtime.open(self._config), name="aiorecover-open")
        try:
            runtime = await self._opening
        except BaseException as error:
            self._opening.add_done_callback(let_go)  # cancelled in the turn in which it was opened
            if self._life == "starting":
                self._life = "created"
            elif isinstance(error, asyncio.CancelledError) and not _is_cancelled():  # `stop` did that
                raise self._closed_error() from None
            raise
        if self._life != "starting":
            runtime.ring.close()
            raise self._closed_error()
        self._runtime = runtime
        runtime.ring.owner = self
        self.producer_id, self.epoch = runtime.ring.producer_id, runtime.ring.epoch
        runtime.start()
        self._life = "running"
        self._acceptor = Acceptor(self._config, runtime.ring, runtime.writer, self._end_turn)
        self._accept = self._acceptor.function()
        log.info("started path=%s producer_id=%s epoch=%d", runtime.directory.path, self.producer_id, self.epoch)

    async def stop(self, timeout_ms: int | None = None) -> int:
        """Deliver what can be delivered in time, then close; return the number of records left in the ring.

        The next start delivers them. The number is 1 where it is not known, since the ring could not be read yet.

        Args:
            timeout_ms: for all of it, in milliseconds; None takes ``stop_timeout_ms``.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds; the producer goes on.
            RecoverError: it is awaited in `on_delivery`, which it waits for, or in another event loop.

        """
        limit = seconds_of(self._config.stop_timeout_ms if timeout_ms is None else timeout_ms)
        if self._life == "forked":
            return 0
        runtime = self._runtime
        if runtime is None or self._life == "created":
            self._life = "stopped"
            if self._opening is not None:
                self._opening.cancel()
            return 0
        if self._stopping is None and self._loop.is_closed():  # nothing of ours can run in it any more
            self._life, self._accept, self._turn_ends = "stopped", self._refuse, 0
            return await asyncio.to_thread(runtime.abandon)
        if self._life != "stopped":
            self._refuse_elsewhere()
        self._refuse_in_callback("stop")
        if self._stopping is None:
            self._life = "stopping"
            self._accept, self._turn_ends = self._refuse, 0
            self._stopping = self._loop.create_task(runtime.stop(limit or 0.0), name="aiorecover-stop")
            self._stopping.add_done_callback(self._stopped)
        else:
            runtime.hurry(limit or 0.0)
        await asyncio.wait({self._stopping})  # a caller that is cancelled here leaves it alone
        return self._stopping.result()

    def _stopped(self, task: "asyncio.Task[int]") -> None:
        self._life = "stopped"
        if not task.cancelled() and task.exception() is None and task.result():
            log.warning(
                "stopped records are left in the ring: the next start delivers them path=%s records=%d",
                self.wal_path,
                task.result(),
            )

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: object = MISSING,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        context: object = None,
        source: tuple[str, int, int] | None = None,
    ) -> Receipt:
        """Accept one record: when this returns, it is in the ring and survives the death of the process.

        Does not wait, except for ``fsync="always"``, for space with ``on_full="wait"``, and for the turn that it gives
        to a loop that has had none for 256 calls or 1 ms (at most twice that), before it stores: cancelled there,
        nothing is accepted (cancelled while ``fsync="always"`` waits for the disk, the record is stored and will be
        delivered).

        Args:
            topic: Kafka's topic.
            value: bytes as they are, str as UTF-8, None as a tombstone, anything else as JSON (NaN and infinity as
                null); or what ``value_serializer`` takes.
            key: bytes, str or None.
            partition: None lets the partitioner choose.
            timestamp_ms: milliseconds since 1970; None is now.
            headers: pairs of a name and bytes.
            context: anything msgspec can encode; given back in the delivery report.
            source: (topic, partition, offset) of the consumed record that this one was made from, and the last one
                that is: `source_positions` remembers that it need not be read again.

        Raises:
            EncodeError: this record cannot become a Kafka record; nothing was stored.
            RecordTooLargeError: it is above ``max_request_size``; nothing was stored.
            WalFullError: the disk threshold is reached; nothing was stored.
            WalIOError: the disk failed; without fsync="always" nothing was stored.
            ClosedError: not started, stopped, or a forked child.
            RecoverError: not in the loop's thread, or with a ``source`` before `source_positions` was awaited.

        """
        now = time.time_ns()
        if now > self._turn_ends:
            await self._give_turn(now)
        receipt = None
        if not self._in_line:
            try:
                receipt = self._accept(topic, value, key, partition, timestamp_ms, headers, context, source, now)
            except WalFullError:
                if self._config.on_full != "wait":
                    raise
        if receipt is None:
            record = (topic, value, key, partition, timestamp_ms, headers, context, source, now)
            receipt = await self._store_when_room(record)
        if self._always:
            await self._get_runtime().keeper.flushed()
        return receipt

    def publish_nowait(
        self,
        topic: str,
        value: object = MISSING,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        context: object = None,
        source: tuple[str, int, int] | None = None,
    ) -> Receipt:
        """Accept one record as `publish` does, in a plain call that gives the loop no turn.

        Raises:
            ConfigError: with ``fsync="always"``, which has to wait.

        """
        if self._always:
            raise ConfigError(
                'publish_nowait cannot wait for the disk: await publish, or choose fsync="interval" fsync=always'
            )
        now = time.time_ns()
        if now > self._turn_ends:
            self._look(now)
        return self._accept(topic, value, key, partition, timestamp_ms, headers, context, source, now)

    def publish_threadsafe(
        self, topic: str, value: object = MISSING, **fields: Unpack[Fields]
    ) -> "concurrent.futures.Future[Receipt]":
        """Accept one record as `publish` does, from another thread; the future is done once it is accepted.

        The calls of one thread keep their order, unless they have to wait (``fsync="always"``, ``on_full="wait"``).

        Raises:
            ClosedError: at once, or through the future, when the producer is not running.

        """
        if self._life != "running":
            raise self._closed_error()
        self._refuse_without_loop()
        if self._always or self._config.on_full == "wait":
            return asyncio.run_coroutine_threadsafe(self.publish(topic, value, **fields), self._loop)
        return self._inbox.put(topic, value, fields)

    async def _give_turn(self, now: int) -> None:
        """Look at the state, and let the rest of the loop run where it has not since the last look."""
        counted, sequence = self._turn_ends == 0, self._get_runtime().writer.next_sequence()
        if asyncio.get_running_loop() is not self._loop:
            self._refuse_without_loop()
            return  # another thread's is refused where it would store
        self._look(now)
        if not self._turned:
            if counted and sequence - self._turn_first < TURN_CALLS:
                return
            await asyncio.sleep(0)
            self._look(time.time_ns())
        self._turned, self._turn_first = False, sequence
        self._loop.call_soon(self._note_turn)

    def _note_turn(self) -> None:
        self._turned = True

    def _end_turn(self) -> None:
        self._turn_ends = 0

    def _look(self, now: int) -> None:
        runtime = self._get_runtime()
        failed = runtime.ring.flusher.failed
        if failed is not None:
            raise failed
        if isinstance(runtime.delivery.failure, WalIOError):  # the disk, or another owner of the directory
            raise runtime.delivery.failure
        self._turn_ends = now + TURN_NS

    async def _store_when_room(self, record: tuple[Any, ...]) -> Receipt:
        """Store a record once there is room, in turn with other callers, within ``full_timeout_ms``."""
        last: WalFullError | None = None
        self._in_line += 1
        try:
            async with asyncio.timeout(self._config.full_timeout_ms / 1000), self._line:
                while True:
                    self._look(time.time_ns())
                    try:
                        return self._accept(*record)
                    except WalFullError as error:
                        last = error
                    await asyncio.sleep(ROOM_S)
        except TimeoutError:
            message = last or "the ring is full, and others wait for room before this record"
            raise WalFullError(f"{message} full_timeout_ms={self._config.full_timeout_ms}") from None
        finally:
            self._in_line -= 1

    async def source_positions(self) -> dict[TopicPartition, int]:
        """Return where to go on reading: for each partition that a ``source`` has named, the next offset.

        It is the offset after that of the record accepted last, also where that is lower than one before. Await this
        before the first `publish` with a ``source``. After a power cut a position goes back to what a completed flush
        covered: records after it are made again.

        Raises:
            ClosedError: the producer is not running.
            WalError: what earlier starts left could not be read.

        """
        runtime = self._get_runtime_here()
        await runtime.read()
        found = runtime.ring.sources.items()
        self._acceptor.takes_sources = True
        return {TopicPartition(topic, partition): newest[0] + 1 for (topic, partition), newest in found}

    # -- delivery ------------------------------------------------------------------------------------------------------

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything that is in the ring now, earlier epochs included, is in Kafka or a dead letter.

        Args:
            timeout_ms: the time limit in milliseconds; None: until all is delivered, or the producer stops.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds.
            ClosedError: the producer is not running, or was stopped first.
            DeliveryPendingError: not within ``timeout_ms``; everything is still in the ring.
            PermanentDeliveryError: a lane is halted.
            RecoverError: it is awaited in `on_delivery`, or in another event loop than the producer's.

        """
        limit = seconds_of(timeout_ms)
        runtime = self._get_runtime_here()
        self._refuse_in_callback("flush")
        await runtime.drained(limit)

    async def wait_delivered(self, receipt: Receipt, timeout_ms: int | None) -> DeliveryReport:
        """Do what `Receipt.delivered` says."""
        limit = seconds_of(timeout_ms)
        if self._runtime is None or self._life == "forked":
            raise self._closed_error()
        if self._life == "running":
            self._refuse_elsewhere()
        try:
            async with asyncio.timeout(limit):
                waiters = self._runtime.delivery.waiters
                batch, index = await waiters.settled(receipt._batch, receipt._index, receipt.record_id)  # noqa: SLF001
        except TimeoutError:
            message = f"accepted as {receipt.record_id} and not delivered yet, do not publish it again"
            raise DeliveryPendingError(f"{message}: {self._runtime.why()} timeout_ms={timeout_ms}") from None
        return DeliveryReport(
            topic=batch.lane.topic,
            partition=batch.lane.partition,
            offset=None if batch.offset is None else batch.offset + index,
            record_id=receipt.record_id,
            context=receipt._context,  # noqa: SLF001
        )

    # -- for code written for aiokafka ---------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Accept one record, and return a future of its metadata, as aiokafka's.

        Each future takes 2 KB until its record is in Kafka: call `publish` where an outage may be long.
        """
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        receipt = await self.publish(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        future = self._loop.create_task(self._metadata_of(receipt, timestamp_ms, None))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # many callers never ask
        return future

    async def _metadata_of(self, receipt: Receipt, timestamp_ms: int, timeout_ms: int | None) -> RecordMetadata:
        report = await self.wait_delivered(receipt, timeout_ms)
        offset = -1 if report.offset is None else report.offset
        partition = -1 if report.partition is None else report.partition
        return RecordMetadata(
            report.topic, partition, TopicPartition(report.topic, partition), offset, timestamp_ms, 0, -1
        )

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Wait until the record is in Kafka, as aiokafka's; it is delivered also where the caller is cancelled.

        Raises:
            DeliveryPendingError: not within ``request_timeout_ms``; it stays in the ring: do not publish it again.

        """
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        receipt = await self.publish(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return await self._metadata_of(receipt, timestamp_ms, self._config.request_timeout_ms)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the topic's partitions, as aiokafka's.

        Raises:
            KafkaTimeoutError: Kafka did not say within ``request_timeout_ms``.

        """
        check_topic(topic)
        delivery = self._get_runtime_here().delivery
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000):
                return await delivery.partitions_of(topic)
        except TimeoutError:
            reached = "is the topic there?" if delivery.connection.connected else "kafka is not reached"
            limit = self._config.request_timeout_ms
            message = f"kafka does not say the partitions: {reached} topic={topic} request_timeout_ms={limit}"
            raise KafkaTimeoutError(message) from None

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The producer's state, as one word.

        ``created``, ``starting``, ``connecting``, ``connected``, ``halted`` (a lane waits for the next start),
        ``failed`` (the disk, or another owner of the directory: nothing is accepted), ``interrupted`` (delivery has
        stopped: a restart delivers), ``stopping``, ``stopped``, ``forked``.
        """
        if self._life != "running" or self._runtime is None:
            return self._life
        runtime = self._runtime
        failure = runtime.delivery.failure
        if runtime.ring.flusher.failed is not None or isinstance(failure, WalIOError):
            return "failed"
        if failure is not None:
            return "interrupted"
        if any(lane.state is LaneState.HALTED for lane in list(runtime.delivery.router.lanes.values())):
            return "halted"
        return (
            "connected"
            if runtime.delivery.connection.connected and runtime.delivery.connection.cause is None
            else "connecting"
        )

    @property
    def wal_path(self) -> Path | None:
        """The instance directory in use; None before `start`."""
        return self._runtime.directory.path if self._runtime is not None else None

    @property
    def dead_letters(self) -> DeadLetters:
        """The records that Kafka refused for good, or that came too late: list, requeue, export, purge."""
        return DeadLetters(self._get_runtime_here)

    def statistics(self) -> Statistics:
        """Return a frozen snapshot whose counts add up.

        Other threads may call it; some counts may then be ahead of others by what is published meanwhile.

        Raises:
            ClosedError: before `start`, or in a forked child.

        """
        if self._runtime is None or self._life == "forked":
            raise self._closed_error()
        return self._runtime.statistics(self.state)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _get_runtime(self) -> Runtime:
        if self._life != "running" or self._runtime is None:
            raise self._closed_error()
        return self._runtime

    def _get_runtime_here(self) -> Runtime:
        """Return the runtime to a coroutine, which has to run in the producer's own loop."""
        runtime = self._get_runtime()
        self._refuse_elsewhere()
        return runtime

    def _refuse_elsewhere(self) -> None:
        self._refuse_without_loop()
        if asyncio.get_running_loop() is not self._loop:
            message = "this is not the event loop of the producer, which goes on: await it there"
            raise RecoverError(f"{message}, from others by asyncio.run_coroutine_threadsafe(..., its loop)")

    def _refuse_without_loop(self) -> None:
        if self._loop.is_closed():
            message = "the event loop of the producer has ended: await its stop() in a running loop, and make a new one"
            raise ClosedError(f"{message} path={self.wal_path}") from None

    def _refuse_in_callback(self, call: str) -> None:
        reporter = None if self._runtime is None else self._runtime.reporter
        if reporter is not None and reporter.in_callback:
            message = f"{call} waits for on_delivery, so on_delivery cannot wait for it"
            raise RecoverError(f"{message}: asyncio.create_task(producer.{call}()), keep the task, and return")

    def _closed_error(self) -> ClosedError:
        reasons = {
            "created": "the producer is not started: use 'async with' or await start()",
            "forked": "the producer belongs to the parent process: make a new one in the child",
        }
        return ClosedError(f"{reasons.get(self._life, 'the producer is stopped: make a new one')} state={self._life}")

    def _forked(self) -> None:
        self._life, self._turn_ends, self._accept = "forked", 0, self._refuse

    def _refuse(self, *_: Any) -> Any:
        raise self._closed_error()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _after_fork_in_child() -> None:
    for producer in list(_STARTED):
        producer._forked()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
