"""The life of one AIOKafkaProducer after another: connect, watch, close hard, build anew.

aiokafka's ways to hang or die end here (known from its issues: a sender task that dies leaves futures for ever, an
idempotent `stop` never returns while the broker is down, metadata is only asked from brokers it once knew). The
session fails every batch of a dead producer with `SessionLostError`; the lanes send the very same batches again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, kafka_errors
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.config import Config
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.outcomes import UNNAMED_CODES
from aiorecover.errors import ClosedError

log = logging.getLogger("aiorecover.session")

kafka_errors.update(UNNAMED_CODES)  # codes that aiokafka would all show as UnknownError(-1); subclasses of it

CONNECT_LIMIT = 10.0  # seconds for bootstrap and InitProducerId, which aiokafka waits for without a limit
RECONNECT_MAX = 0.5  # seconds between two attempts: delivery must resume within 1 s of the broker's return
WATCH_INTERVAL = 0.5  # seconds; the sender's death is noticed at once, the rest at this pace
CLOSE_LIMIT = 1.0  # seconds for each step of a hard close
METADATA_LIMIT = 10.0  # seconds for one look at a topic; then the session is suspect


class SessionLostError(KafkaError):
    """The producer that carried the batch is gone; what happened to the batch is unknown."""

    retriable = True


class Session:
    """Sends batches through the living AIOKafkaProducer; at most one lives."""

    def __init__(self, config: Config, on_metadata: Callable[[], None]) -> None:
        """Do nothing yet; ``on_metadata`` is called when topics may have changed."""
        self._config = config
        self._on_metadata = on_metadata
        self._patience = config.request_timeout_ms / 1000  # seconds with batches in flight and no answer
        self._producer: AIOKafkaProducer | None = None
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = False
        self._in_flight = 0
        self._progress = 0.0
        self._task: asyncio.Task[None] | None = None
        self._topics: set[str] = set()
        self._followed: set[str] = set()  # topics that the present client was told of
        self._trouble = ""  # what the last attempts to connect failed with
        self.rebuilds = -1  # the first connection is none
        self.state = "connecting"

    # -- for the lanes -----------------------------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """A producer id that the broker has just given out, for a lane without one."""
        producer = await self._ready()
        found = producer._txn_manager._pid_and_epoch  # noqa: SLF001
        return Identity(found.pid, found.epoch)

    async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        """Send one batch and wait for its acknowledgement.

        Raises:
            SessionLostError: the session died first; the batch is possibly persisted: send the same again.
            KafkaError: what Kafka answered.
            ClosedError: the session is closed.

        """
        producer = await self._ready()
        if topic not in self._followed:  # else the client's next metadata would not tell of it any more
            self._followed.add(topic)
            producer.client.add_topic(topic)
        if self._in_flight == 0:
            self._progress = time.monotonic()
        self._in_flight += 1
        try:
            async with asyncio.timeout(METADATA_LIMIT):
                future = await self._add(producer, batch, TopicPartition(topic, partition))
            metadata: RecordMetadata = await future
        except TimeoutError as error:
            raise SessionLostError from error
        finally:
            self._in_flight -= 1
            self._progress = time.monotonic()
        return metadata

    async def _add(self, producer: AIOKafkaProducer, batch: LaneBatch, place: TopicPartition) -> Any:
        """Hand a batch to the sender; its future.

        Without `send_batch` around it, which looks the partition up once more: the lane has come from the metadata.
        """
        accumulator = producer._message_accumulator  # noqa: SLF001
        return await accumulator.add_batch(batch, place, self._config.request_timeout_ms / 1000)

    def partitions(self, topic: str) -> frozenset[int]:
        """The known partitions; empty while the topic is unknown."""
        if self._producer is None:
            return frozenset()
        return frozenset(self._producer.client.cluster.partitions_for_topic(topic) or ())

    def available(self, topic: str) -> frozenset[int]:
        """The partitions that have a leader."""
        if self._producer is None:
            return frozenset()
        return frozenset(self._producer.client.cluster.available_partitions_for_topic(topic) or ())

    @property
    def answered(self) -> bool:
        """Kafka was reached once: what it did not tell of then is not there, or not to be seen."""
        return self.rebuilds >= 0

    def want(self, topic: str) -> None:
        """Keep this topic's metadata from now on."""
        self._topics.add(topic)

    async def discover(self) -> None:
        """Ask for the metadata of all wanted topics now; `on_metadata` tells when something came."""
        producer = await self._ready()
        async with asyncio.timeout(METADATA_LIMIT):
            producer.client.set_topics(self._topics)
            self._followed = set(self._topics)
            await producer.client.force_metadata_update()
        self._on_metadata()

    def give_up(self, reason: str) -> None:
        """Build a new session: this one cannot be trusted any more."""
        if not self._lost.is_set():
            log.warning("the kafka session cannot be trusted any more reason=%s", reason)
            self._lost.set()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background: a broker is not needed to start."""
        self._task = asyncio.create_task(self._run(), name="aiorecover-session")

    async def close(self) -> None:
        """End within a few seconds, whatever the broker does; batches in flight fail with `SessionLostError`."""
        self._closing = True
        self._connected.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._drop()
        self._set_state("closed")

    async def _ready(self) -> AIOKafkaProducer:
        while self._producer is None or not self._connected.is_set():
            if self._closing:
                message = "the producer is stopped"
                raise ClosedError(message)
            await self._connected.wait()
        return self._producer

    async def _run(self) -> None:
        while not self._closing:
            try:
                await self._connect()
                await self._watch()
                self._set_state("connecting")
                await self._drop()
            except Exception:
                log.exception("the kafka session failed unexpectedly: connecting anew")
                await asyncio.sleep(RECONNECT_MAX)

    async def _connect(self) -> None:
        pause = self._config.retry_backoff_ms / 1000
        while True:
            try:
                producer = await self._started()
            except Exception as error:  # noqa: BLE001 - whatever it is, records wait: try on
                self._tell_once(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RECONNECT_MAX)
            else:
                self._take(producer)
                return

    async def _started(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._options())
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await producer.start()
                await producer.client.set_topics(self._topics)
        except BaseException:
            await _close_hard(producer)
            raise
        return producer

    def _tell_once(self, error: BaseException) -> None:
        """One line for each kind of trouble, not two a second."""
        trouble = type(error).__name__
        if trouble != self._trouble:
            self._trouble = trouble
            servers = self._config.bootstrap_servers
            log.warning("kafka cannot be reached, trying on error=%r bootstrap_servers=%s", error, servers)

    def _take(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._followed = set()
        self._lost.clear()
        producer._sender.sender_task.add_done_callback(lambda _: self._sender_ended(producer))  # noqa: SLF001
        producer.client.cluster.add_listener(lambda _: self._on_metadata())
        self.rebuilds += 1
        self._trouble = ""
        self._progress = time.monotonic()
        self._connected.set()
        self._set_state("connected")
        self._on_metadata()

    def _sender_ended(self, producer: AIOKafkaProducer) -> None:
        if producer is self._producer:  # one that was dropped may end later, and concerns nobody any more
            self._lost.set()

    async def _watch(self) -> None:
        """Return when the session has to be given up."""
        while True:
            try:
                async with asyncio.timeout(WATCH_INTERVAL):  # wait_for has a task of its own, which may be cancelled
                    await self._lost.wait()
            except TimeoutError:
                if self._in_flight and time.monotonic() - self._progress > self._patience:
                    log.warning("kafka does not answer: connecting anew batches_in_flight=%d", self._in_flight)
                    return
            else:
                log.warning("the kafka session ended: connecting anew")
                return

    async def _drop(self) -> None:
        self._connected.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            await _close_hard(producer)
        if self._closing:
            self._connected.set()  # whoever waits finds out

    def _set_state(self, state: str) -> None:
        if state == self.state:
            return
        self.state = state
        log.info("kafka session state=%s bootstrap_servers=%s", state, self._config.bootstrap_servers)

    def _options(self) -> dict[str, Any]:
        return {
            **self._config.client,
            "bootstrap_servers": self._config.bootstrap_servers,
            "request_timeout_ms": self._config.request_timeout_ms,
            "retry_backoff_ms": self._config.retry_backoff_ms,
            "max_batch_size": self._config.max_batch_size,
            "enable_idempotence": True,
            "acks": "all",
        }


async def _close_hard(producer: AIOKafkaProducer) -> None:
    """Close within a bounded time, and leave no future unresolved.

    The order matters: with its connections closed, requests that a frozen broker never answers end at once, and the
    sender's task can be ended; aiokafka's own `stop` would wait for them, for ever when idempotent.
    """
    producer._closed = True  # noqa: SLF001 - its finaliser would complain
    _fail_all(producer._message_accumulator)  # noqa: SLF001
    task = producer._sender.sender_task  # noqa: SLF001
    if task is not None:
        task.cancel()
    await _bounded(producer.client.close())
    for _ in range(3):  # each cancel ends one of the sender's nested waits
        if task is None or task.done():
            break
        task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    if task is not None and task.done() and not task.cancelled():
        task.exception()  # retrieved: nobody is told of a session that was given up


def _fail_all(accumulator: Any) -> None:
    """Fail every batch, and say that we know: a lane that was stopped asks no more, and the loop would log an error."""
    waiting = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001
    batches = [*accumulator._pending_batches, *waiting]  # noqa: SLF001
    accumulator.fail_all(SessionLostError())
    for batch in batches:
        for future in (batch.future, batch._drain_waiter):  # noqa: SLF001
            if future.done() and not future.cancelled():
                future.exception()


async def _bounded(closing: Any) -> None:
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    elif not task.cancelled():
        task.exception()
