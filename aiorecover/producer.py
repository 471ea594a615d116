"""RecoverableProducer: life cycle and public methods, nothing else.

The flow of one record: `publish` here → `wal.ring.Ring.append` → `delivery.dispatcher` → `delivery.sender` →
`delivery.session` → Kafka, and back: `Sender._settle` → `Ring.settle`.
"""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka.errors import KafkaTimeoutError
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import record as rec
from aiorecover.config import Config
from aiorecover.dead_letters import DeadLetters
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.sent import Sent
from aiorecover.errors import (
    ClosedError,
    DeliveryPendingError,
    EncodeError,
    RecordTooLargeError,
    RecoverError,
    WalFullError,
)
from aiorecover.opened import Opened
from aiorecover.receipt import DeliveryReport, Receipt
from aiorecover.serialization import (
    check_headers,
    check_partition,
    check_timestamp_ms,
    check_topic,
    key_encoder,
    value_encoder,
)
from aiorecover.statistics import Statistics
from aiorecover.time_limit import seconds_of
from aiorecover.waiting import WaitingLine

log = logging.getLogger("aiorecover")

TURN_NS = 1_000_000  # a loop that only publishes gives everybody else a turn at least once a millisecond
TURN_CALLS = 256  # or after so many calls: measured to cost nothing (29 ns a record less with delivery running)
TURN_LEAST = 128  # but not after fewer than these since everybody had a turn anyway
KNOWN_TOPICS = 10_000  # topic names whose check is remembered
ENCODING_SLACK = 512  # bytes that a record may grow from the ring to Kafka without a closer look

_MISSING: Any = object()
_STARTED: weakref.WeakSet["RecoverableProducer"] = weakref.WeakSet()  # a forked child must disown these


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
        self, wal_dir: str | os.PathLike[str], *, bootstrap_servers: str | Sequence[str], **options: Any
    ) -> None:
        """Check the options; `start` does the rest."""
        self._config = Config.from_options(wal_dir, bootstrap_servers, options)
        self._encode_key = key_encoder(self._config.key_serializer)
        self._encode_value = value_encoder(self._config.value_serializer)
        self._plain_value = bytes if self._config.value_serializer is None else None  # the type that goes as it is
        self._plain_key = bytes if self._config.key_serializer is None else None
        self._fits = self._config.max_request_size - ENCODING_SLACK
        self._every = self._config.fsync == "always"
        self._known_topics: set[str] = set()
        self._life = "created"
        self._opened: Opened | None = None
        self._starting: asyncio.Timeout | None = None  # over when it is stopped meanwhile
        self._stopping: asyncio.Task[int] | None = None
        self._waiting = WaitingLine()
        self._append: Callable[[bytes, object], tuple[int, int]] = self._refuse  # the ring's, while it is open
        self._turn_ends = 0  # the next publish looks closer once the clock is past this
        self._turn_started = 0
        self._turn_first = 0  # calls when everybody else had a turn last
        self._asked = 0  # calls that asked for a report: they take turns with those that publish
        self._now_ms = 0  # the time, as far as `_turn_ends` it is right
        self._in_turn = False
        self._turn_spent = False
        self._dispatcher_idle = False
        self.producer_id = ""
        self.epoch = 0

    def __repr__(self) -> str:
        """Where its directory is, and its state."""
        return f"<RecoverableProducer {self.wal_path or self._config.wal_dir} {self.state}>"

    # -- life cycle --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory and begin to deliver what it holds; needs no broker.

        A directory on a disk that hangs is waited for until somebody cancels this call or calls `stop`.

        Raises:
            WalError: the directory cannot be used; the message says why and what to do.
            ClosedError: the producer was stopped, also meanwhile: make a new one.
            RecoverError: it runs already, in another event loop.

        """
        if self._life == "running":
            self._refuse_elsewhere()
            return
        if self._life == "forked":
            raise self._closed_error()
        if self._life != "created":
            message = f"a producer starts once: make a new one state={self._life}"
            raise ClosedError(message)
        self._life = "starting"
        self._loop = asyncio.get_running_loop()
        _STARTED.add(self)
        try:
            async with asyncio.timeout(None) as self._starting:
                opened = await Opened.open(self._config, on_idle=self._on_dispatcher_idle, on_room=self._waiting.wake)
        except BaseException as error:
            if self._life == "starting":  # else it was stopped meanwhile
                self._life = "created"
            elif isinstance(error, TimeoutError):
                raise self._closed_error() from None
            raise
        finally:
            self._starting = None
        if self._life != "starting":
            opened.close()
            raise self._closed_error()
        self._opened, directory = opened, opened.directory
        self._append = directory.ring.append
        self.producer_id = directory.producer_id
        self.epoch = directory.ring.epoch
        self._thread = threading.get_ident()
        self._life = "running"
        opened.start()
        opened.background.want_spare()
        log.info(
            "producer started path=%s producer_id=%s epoch=%d slots=%d",
            directory.path,
            self.producer_id,
            self.epoch,
            len(directory.ring.live),
        )

    async def stop(self, timeout_ms: int | None = None) -> int:
        """Deliver what can be delivered in time, then close; the number of records known to be left in the ring.

        The copies of dead letters for ``dead_letter_topic``, too; what is still owed then, the next start publishes.
        Records of earlier epochs that were not looked at yet are counted as far as they are known, as in
        `statistics().unread`.

        Args:
            timeout_ms: for all of it, in milliseconds; None takes ``stop_timeout_ms``. It returns in time whatever
                the broker does, and some 2 seconds later at most where the disk is slow to let go of the directory;
                what is left is delivered after the next start. Called once more meanwhile, or after it was cancelled,
                the shortest limit counts.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds; the producer goes on.
            RecoverError: it is awaited in `on_delivery`, which it waits for, or in another event loop than the
                producer's, unless that one is closed; the producer goes on.

        """
        limit = seconds_of(self._config.stop_timeout_ms if timeout_ms is None else timeout_ms)
        if self._life == "forked":
            return 0
        if self._life not in ("created", "stopped") and not self._loop.is_closed():
            self._refuse_elsewhere()
        self._refuse_in_callback("stop")
        if self._opened is None or self._life == "created":
            self._life = "stopped"
            if self._starting is not None and not self._starting.expired():  # it may wait for a disk that hangs
                self._starting.reschedule(asyncio.get_running_loop().time())
            return 0
        self._opened.hurry(limit or 0.0)
        while True:
            stopping = self._get_stopping(self._opened, limit or 0.0)
            await asyncio.wait({stopping})  # who is cancelled here leaves it alone
            if not stopping.cancelled():
                return stopping.result()

    def _get_stopping(self, opened: Opened, limit: float) -> "asyncio.Task[int]":
        """The stop that is under way, or was; begun anew where somebody has cancelled its own task."""
        if self._stopping is None or self._stopping.cancelled():
            self._life = "stopping"
            self._turn_ends = 0
            self._stopping = asyncio.create_task(opened.stop(limit), name="aiorecover-stop")
            self._stopping.add_done_callback(self._stopped)
        return self._stopping

    def _tell_left(self, records: int) -> None:
        gone = None if self._opened is None else self._opened.files_gone
        if gone is None:
            message = "records are left in the ring: they are delivered after the next start"
            log.warning("%s path=%s records=%d", message, self.wal_path, records)
        else:
            message = (
                "records are left in files that were removed or replaced: no start finds them unless you put those"
            )
            log.critical("%s back path=%s records=%d", message, gone, records)

    def _stopped(self, stopping: "asyncio.Task[int]") -> None:
        if not stopping.cancelled():
            self._life = "stopped"
            if stopping.exception() is None and stopping.result():
                self._tell_left(stopping.result())
        self._append = self._refuse
        self._waiting.wake_all()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: object = _MISSING,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        context: object = None,
        source: tuple[str, int, int] | None = None,
    ) -> Receipt:
        """Accept one record: when this returns, it is in the ring and survives the death of the process.

        Does not wait, except for ``fsync="always"``, for space with ``on_full="wait"``, and for the turn that it gives
        to the loop every 256 calls or 1 ms, before it stores: cancelled there, nothing is accepted (cancelled while
        ``fsync="always"`` waits for the disk, the record is stored and will be delivered). Calls that run at
        the same time in several tasks may overtake each other there; order is that of the receipts' sequences.

        Args:
            topic: Kafka's topic.
            value: bytes as they are, str as UTF-8, None as a tombstone, anything else as JSON; or what
                ``value_serializer`` takes.
            key: bytes, str or None.
            partition: None lets the partitioner choose.
            timestamp_ms: milliseconds since 1970; None is now.
            headers: pairs of a name and bytes.
            context: anything msgspec can encode; given back in the delivery report.
            source: (topic, partition, offset) of the consumed record that this one was made from, and the last one
                that is: `source_positions` remembers that it need not be read again.

        Raises:
            EncodeError: this record cannot become a Kafka record; nothing was stored.
            RecordTooLargeError: it is above ``max_request_size`` or does not fit a slot; nothing was stored.
            WalFullError: the disk threshold is reached; nothing was stored.
            WalIOError: the disk failed; without fsync="always" nothing was stored.
            ClosedError: not started, stopped, or a forked child.
            RecoverError: not in the loop's thread (seen once in each turn of the loop), or with a ``source`` before
                `source_positions` was awaited; nothing was stored.

        """
        now = time.time_ns()
        if now > self._turn_ends:
            await self._give_turn(now)
        try:
            receipt = self._store(topic, value, key, partition, timestamp_ms, headers, context, source)
        except WalFullError:
            if self._config.on_full != "wait":
                raise
            timestamp_ms = now // 1_000_000 if timestamp_ms is None else timestamp_ms  # of the call, not of the room
            receipt = await self._store_when_room(topic, value, key, partition, timestamp_ms, headers, context, source)
        if self._every:
            await self._get_opened().commit.durable()
        return receipt

    def publish_nowait(
        self,
        topic: str,
        value: object = _MISSING,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        context: object = None,
        source: tuple[str, int, int] | None = None,
    ) -> Receipt:
        """As `publish`, as a plain call; also from a signal handler in the loop's thread. It gives no turn.

        Raises:
            ConfigError: with ``fsync="always"``, which has to wait.

        """
        if self._every:
            raise _refused_nowait()
        now = time.time_ns()
        if now > self._turn_ends:
            self._look(now)
        return self._store(topic, value, key, partition, timestamp_ms, headers, context, source)

    def publish_threadsafe(
        self, topic: str, value: object = _MISSING, **fields: Any
    ) -> "concurrent.futures.Future[Receipt]":
        """As `publish`, from another thread; the future is done once the record is accepted.

        Cancelled before the loop comes to it, nothing is accepted; afterwards as `publish` cancelled.
        The calls of one thread keep their order, unless they have to wait (``fsync="always"``, ``on_full="wait"``).

        Raises:
            ClosedError: at once, or through the future, when the producer is not running.

        """
        if self._life != "running":
            raise self._closed_error()
        self._refuse_without_loop()
        try:
            if self._every or self._config.on_full == "wait":  # these wait, and give their turns
                return self._publish_waiting_for_thread(topic, value, fields)
            future: concurrent.futures.Future[Receipt] = concurrent.futures.Future()
            self._loop.call_soon_threadsafe(self._publish_for_thread, future, topic, value, fields)
        except RuntimeError:  # it has ended since we looked
            self._refuse_without_loop()
            raise
        return future

    def _publish_waiting_for_thread(
        self, topic: str, value: object, fields: dict[str, Any]
    ) -> "concurrent.futures.Future[Receipt]":
        asked: list[concurrent.futures.Future[Receipt]] = []
        waiting = asyncio.run_coroutine_threadsafe(self._publish_waiting(asked, topic, value, fields), self._loop)
        asked.append(waiting)
        return waiting

    async def _publish_waiting(
        self, asked: "list[concurrent.futures.Future[Receipt]]", topic: str, value: object, fields: dict[str, Any]
    ) -> Receipt:
        """A future that was cancelled already cancels its task a turn too late: the record would be stored."""
        if any(future.cancelled() for future in asked):
            raise asyncio.CancelledError
        return await self.publish(topic, value, **fields)

    def _publish_for_thread(
        self, future: "concurrent.futures.Future[Receipt]", topic: str, value: object, fields: dict[str, Any]
    ) -> None:
        """In the loop's thread, in the order of the calls."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self.publish_nowait(topic, value, **fields))
        except Exception as error:  # noqa: BLE001 - the caller's, in its own thread
            future.set_exception(error)

    def _store(
        self,
        topic: str,
        value: object,
        key: bytes | str | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        context: object,
        source: Any,
    ) -> Receipt:
        if type(topic) is not str or topic not in self._known_topics:
            self._learn_topic(topic)
        if headers is not None:
            headers = check_headers(headers)
        if type(value) is not self._plain_value:
            value = self._wire_value(topic, value, headers, key)
        if key is not None and type(key) is not self._plain_key:
            key = self._wire_key(topic, key, headers, value)
        if partition is not None:
            partition = self._existing_partition(topic, partition)
        timestamp_ms = self._now_ms if timestamp_ms is None else check_timestamp_ms(timestamp_ms)
        source = None if source is None else self._check_source(source)
        fields = (topic, key, value, partition, timestamp_ms, headers, context, source)
        try:
            payload = rec.encode(fields)
        except Exception as error:
            _refuse_unencodable(error, context)
            raise  # a signal handler's, that ran meanwhile
        if context is not None:
            rec.check_context(payload)
        if len(payload) > self._fits:
            self._check_size(fields)
        # Not called as a method: looking for one on the class first takes 20 ns.
        append = self._append if source is None else partial(self._append_made_from, source)
        place, sequence = append(payload, fields)
        if not sequence & 255:
            self._turn_spent = True
            self._turn_ends = 0
        return Receipt(self, topic, sequence, place)

    def _append_made_from(self, source: tuple[str, int, int], payload: bytes, fields: object) -> tuple[int, int]:
        stored = self._append(payload, fields)
        sources = self._get_opened().sources
        if sources is not None:
            sources.note(*source)
        return stored

    def _check_source(self, source: object) -> tuple[str, int, int]:
        topic, partition, offset = rec.check_source(source)
        sources = self._get_opened().sources
        if sources is None:
            message = "await source_positions() before the first publish with a source: it says where to go on reading"
            raise RecoverError(message)
        sources.check(topic, partition)
        return topic, partition, offset

    def _wire_value(self, topic: str, value: object, headers: Any, key: object) -> bytes | None:
        if value is _MISSING:
            message = "the value is missing: pass it, or None for a tombstone"
            raise EncodeError(f"{message} topic={topic}")
        wire = self._encode_value(topic, value, headers)
        if wire is None and key is None:
            raise _nothing_in_it(topic)
        return wire

    def _wire_key(self, topic: str, key: object, headers: Any, value: object) -> bytes | None:
        wire = self._encode_key(topic, key, headers)
        if wire is None and value is None:
            raise _nothing_in_it(topic)
        return wire

    def _learn_topic(self, topic: object) -> None:
        checked = check_topic(topic)
        if type(topic) is not str:
            raise EncodeError(f"a topic must be a plain str: pass str(topic) type={type(topic).__qualname__}")
        if len(self._known_topics) >= KNOWN_TOPICS:
            self._known_topics.clear()
        self._known_topics.add(checked)

    def _existing_partition(self, topic: str, partition: object) -> int | None:
        number = check_partition(partition)
        known = self._get_opened().delivery.router.topics.get(topic)
        if number is None or known is None or not known.count or number in known.lanes:
            return number
        if number not in known.partitions:
            message = "the partition does not exist, as far as is known by now: choose one of the topic's"
            raise EncodeError(f"{message} topic={topic} partition={number} partitions={known.count}")
        return number

    def _check_size(self, fields: tuple[Any, ...]) -> None:
        size = rec.wire_bytes(fields[rec.KEY], fields[rec.VALUE], fields[rec.HEADERS])
        most, slot_bytes = self._config.max_request_size, self._config.slot_bytes
        if size > most and self._config.bounded_by_slots:
            message = "the record is too large for a slot: make it smaller, or raise slot_bytes for a new directory"
            raise RecordTooLargeError(f"{message} bytes={size} most={most} slot_bytes={slot_bytes}")
        if size > most:
            message = "the record is too large for Kafka: make it smaller or raise max_request_size (and Kafka's limit)"
            raise RecordTooLargeError(f"{message} bytes={size} max_request_size={most}")

    # -- turns of the loop -------------------------------------------------------------------------------------------

    async def _give_turn(self, now: int) -> None:
        """Let everybody else run if publishing went on for long enough; nothing is stored yet."""
        if self._look(now):
            await asyncio.sleep(0)
            self._look(time.time_ns())

    async def _give_turn_to_asking(self) -> None:
        """As `_give_turn`: a loop that only asks for what is delivered never waits."""
        self._asked += 1
        if not self._asked & 255:
            self._turn_spent = True
            self._turn_ends = 0
        now = time.time_ns()
        if now > self._turn_ends and self._life == "running" and self._look(now):
            await asyncio.sleep(0)

    def _look(self, now: int) -> bool:
        """Once in a turn, or when something is up: is the producer open, does anybody wait; True asks for a turn.

        A signal handler may raise out of any line: what a callback is to do counts as asked for once it stands in the
        loop's queue.
        """
        opened = self._get_opened()
        if threading.get_ident() != self._thread:
            raise RecoverError("this is not the thread of the producer's loop: call publish_threadsafe from others")
        calls = opened.directory.ring.sequence + self._asked
        try:
            if opened.directory.ring.wants_spare:
                self._loop.call_soon(opened.background.want_spare)
            if self._dispatcher_idle:
                self._wake(opened.delivery)
                self._dispatcher_idle = False
            if not self._in_turn:
                self._loop.call_soon(self._end_turn)
                self._in_turn = True
                self._turn_spent = False
                self._begin_turn(now, calls)
                return False
        except RuntimeError:
            self._turn_ends = 0
            self._refuse_without_loop()
            raise
        self._refuse_without_loop()  # it was closed in a turn
        spent = self._turn_spent and calls - self._turn_first >= TURN_LEAST
        self._turn_spent = False
        if spent or not 0 <= now - self._turn_started <= TURN_NS:
            self._begin_turn(now, calls)
            self._wake(opened.delivery)
            return True
        self._look_again_after(now)
        return False

    def _begin_turn(self, now: int, calls: int) -> None:
        self._turn_started = now
        self._turn_first = calls
        self._look_again_after(now)

    def _look_again_after(self, now: int) -> None:
        """Not before the turn is over, or the millisecond: its number is the timestamp of all that come until then."""
        self._now_ms = now_ms = now // 1_000_000
        self._turn_ends = min(self._turn_started + TURN_NS, now_ms * 1_000_000 + 999_999)

    def _end_turn(self) -> None:
        self._in_turn = False
        self._turn_ends = 0
        if self._opened is not None:
            self._opened.directory.ring.prefault()

    def _wake(self, delivery: Delivery) -> None:
        """Wake the dispatcher; a signal handler may run while the loop sleeps in its selector, which must end then.

        Not at once: a signal handler that raises between the end of a future and the call of who waits for it leaves a
        task that nothing wakes any more, not even a cancellation.
        """
        if asyncio.current_task(self._loop) is None:
            self._loop.call_soon_threadsafe(delivery.wake)
        else:
            self._loop.call_soon(delivery.wake)

    def _on_dispatcher_idle(self) -> None:
        self._dispatcher_idle = True
        self._turn_ends = 0

    # -- room --------------------------------------------------------------------------------------------------------

    async def _store_when_room(self, *fields: Any) -> Receipt:
        """Stand in line until there is room, up to ``full_timeout_ms``."""
        self._append = self._refuse_full  # whoever comes now stands behind us
        try:
            return await self._waiting.store(partial(self._store_in_turn, *fields), self._config.full_timeout_ms / 1000)
        finally:
            if not self._waiting and self._append == self._refuse_full:
                self._append = self._get_append()

    def _store_in_turn(self, *fields: Any) -> Receipt:
        self._look(time.time_ns())  # open still? and whoever sleeps is woken for what is stored now
        self._append = self._get_append()
        try:
            return self._store(*fields)
        finally:
            self._append = self._refuse_full

    def _get_append(self) -> Callable[[bytes, object], tuple[int, int]]:
        opened = self._opened
        return opened.directory.ring.append if opened is not None and self._life == "running" else self._refuse

    def _refuse_full(self, _payload: bytes, _fields: object) -> tuple[int, int]:
        message = "the ring is full and others wait for room already: await publish, or free space"
        raise WalFullError(f"{message} waiting={len(self._waiting)}")

    async def source_positions(self) -> dict[TopicPartition, int]:
        """Where to go on reading what this directory's records were made from.

        Of each partition that the ``source`` of an accepted record has named: the offset behind the highest one. A
        record and its source are accepted together, so a worker that is killed at any moment goes on without a gap and
        without a repeat, if it publishes in the order of the offsets, with the ``source`` at the last record that is
        made from one. To be awaited before the first `publish` with a ``source``: from then on the directory remembers,
        whatever is delivered and recycled.

        After a power cut it goes back to the first record that is gone, if ``fsync`` allows that one is; what is left
        of those behind it is made again. A directory that has lost both copies of its checkpoint has forgotten it.

        Raises:
            ClosedError: the producer is not running.
            WalError: the disk failed.

        """
        sources = await self._get_opened_here().remember_sources()
        return {
            TopicPartition(topic, partition): offset
            for topic, partitions in sources.captured().items()
            for partition, offset in partitions.items()
        }

    # -- delivery ----------------------------------------------------------------------------------------------------

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything that is in the ring now, earlier epochs included, is in Kafka or a dead letter.

        Dead letters are on disk then. Their copies for ``dead_letter_topic`` are records of their own, stored behind
        them: those that are there when this is called are waited for, those of letters that come meanwhile are not.
        What damage took of all that is counted in `statistics().missing`, and named in the log, by then; what it took
        of dead letters that were there before, once those were read, in the background.

        Args:
            timeout_ms: at most so long, in milliseconds; None waits as long as it takes, or until it is stopped.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds.
            ClosedError: the producer is not running, or was stopped first.
            DeliveryPendingError: not within ``timeout_ms``, or Kafka is another cluster than the one that the records
                belong to, or under "exactly_once" a copy has taken over or the disk has failed (then at once; the cause
                says what to do); everything is still in the ring.
            PermanentDeliveryError: Kafka refused a record for good and its lane is halted.
            WalError: the disk failed, and what cannot be decoded stays in the ring.
            RecoverError: it is awaited in `on_delivery`, which it waits for, or in another event loop than the
                producer's.

        """
        limit = seconds_of(timeout_ms)
        opened = self._get_opened_here()
        self._refuse_in_callback("flush")
        await self._all_in_kafka(opened, opened.flush, limit, "not everything is in kafka yet")

    async def drain(self, timeout_ms: int | None = None) -> None:
        """Behind the sink of Spark: as `flush`, and for the copies of dead letters, too, as `stop` does it.

        Raises:
            DeliveryError: as `flush`; where a lane is halted, not before all that waits for others is settled.
            WalError: as `flush`; or copies are left to the next start.

        """
        limit = seconds_of(timeout_ms)
        opened = self._get_opened_here()
        self._refuse_in_callback("drain")
        otherwise = "not everything, copies of dead letters included, is in kafka yet"
        await self._all_in_kafka(opened, opened.drain, limit, otherwise)

    async def _all_in_kafka(
        self, opened: Opened, wait: Callable[[], Awaitable[None]], limit: float | None, otherwise: str
    ) -> None:
        try:
            async with asyncio.timeout(limit):
                await wait()
        except TimeoutError:
            message = f"{otherwise}, {_where_it_is(opened)}, do not publish it again"
            why, pending = opened.delivery.delays.of_any(), self.statistics().pending
            raise DeliveryPendingError(f"{message}: {why} pending={pending}") from None

    async def wait_delivered(self, receipt: Receipt, timeout_ms: int | None) -> DeliveryReport:
        """Behind `Receipt.delivered`."""
        limit = seconds_of(timeout_ms)
        if self._opened is None or self._life == "forked":
            raise self._closed_error()
        if self._life == "running":
            self._refuse_elsewhere()
        await self._give_turn_to_asking()
        delivery = self._opened.delivery
        reports, record = delivery.reports, (receipt.topic, receipt.sequence, receipt._place)  # noqa: SLF001
        future = reports.waiter(*record)
        if future.done():
            return future.result()
        try:
            async with asyncio.timeout(limit):
                return await future
        except TimeoutError:
            message = f"accepted as {receipt.record_id} and not delivered yet, do not publish it again"
            raise DeliveryPendingError(f"{message}: {delivery.delays.of(*record)} timeout_ms={timeout_ms}") from None
        finally:
            reports.forget(receipt.sequence, future)

    # -- for code written for aiokafka -------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """As aiokafka's: a future of the record's metadata. The record is accepted when this returns."""
        receipt = await self.publish(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return Sent(self._get_opened().delivery.reports, topic, receipt.sequence, receipt._place)  # noqa: SLF001

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> RecordMetadata:
        """As aiokafka's: wait until the record is in Kafka; cancelled, it is delivered all the same.

        Raises:
            DeliveryPendingError: not within ``request_timeout_ms``; it stays in the ring: do not publish it again.

        """
        receipt = await self.publish(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        record, delivery = (topic, receipt.sequence, receipt._place), self._get_opened().delivery  # noqa: SLF001
        limit = self._config.request_timeout_ms
        try:
            async with asyncio.timeout(limit / 1000):
                return await Sent(delivery.reports, *record)
        except TimeoutError:
            message = f"accepted as {receipt.record_id} and not delivered yet, do not publish it again"
            why = delivery.delays.of(*record)
            raise DeliveryPendingError(f"{message}: {why} request_timeout_ms={limit}") from None

    async def partitions_for(self, topic: str) -> set[int]:
        """As aiokafka's: the topic's partitions.

        Raises:
            KafkaTimeoutError: Kafka did not tell within ``request_timeout_ms``.
            KafkaConnectionError: Kafka is another cluster than the one that the records belong to.

        """
        check_topic(topic)
        delivery = self._get_opened_here().delivery
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000):
                return await delivery.partitions_for(topic)
        except TimeoutError:
            reached = delivery.session.state == "connected"
            message = "kafka does not tell the partitions: is the topic there?" if reached else "kafka is not reached"
            limit = self._config.request_timeout_ms
            raise KafkaTimeoutError(f"{message} topic={topic} request_timeout_ms={limit}") from None

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """What it does now, as one word.

        ``created``, ``starting``, ``connecting``, ``connected``, ``wrong_cluster`` (Kafka is another cluster than the
        one that the records belong to: nothing is sent), ``halted`` (Kafka refused a record for good, and the
        dead ring is full or on_permanent_error="halt": its lane stands), ``failed`` (the disk; nothing is accepted),
        ``fenced`` (exactly once: a copy of the directory is delivered elsewhere, and nothing more from here),
        ``interrupted`` (somebody has cancelled tasks of ours, all tasks perhaps: they are begun again after a second),
        ``stopping``, ``stopped``, ``forked``.
        """
        if self._life != "running" or self._opened is None:
            return self._life
        if self._opened.directory.ring.failure is not None:
            return "failed"
        if self._opened.interrupted:
            return "interrupted"
        if self._opened.delivery.fenced:
            return "fenced"
        if self._opened.delivery.halted:
            return "halted"
        return self._opened.delivery.session.state

    @property
    def wal_path(self) -> Path | None:
        """The instance directory in use; None before `start`."""
        return self._opened.directory.path if self._opened is not None else None

    @property
    def dead_letters(self) -> DeadLetters:
        """What Kafka refused for good: list, requeue, export, purge."""
        return DeadLetters(self._get_opened_here)

    def statistics(self) -> Statistics:
        """A frozen snapshot whose counts add up.

        Raises:
            ClosedError: before `start`, or in a forked child.

        """
        if self._opened is None or self._life == "forked":
            raise self._closed_error()
        return self._opened.statistics(self.state)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _get_opened(self) -> Opened:
        if self._life != "running" or self._opened is None:
            raise self._closed_error()
        return self._opened

    def _get_opened_here(self) -> Opened:
        """For what is awaited: its futures and locks are those of one loop."""
        opened = self._get_opened()
        self._refuse_elsewhere()
        return opened

    def _refuse_elsewhere(self) -> None:
        """Not in the producer's loop; before anything is touched, so nothing has happened."""
        self._refuse_without_loop()
        if asyncio.get_running_loop() is not self._loop:
            message = "this is not the event loop of the producer, which goes on: await it there"
            raise RecoverError(f"{message}, from others by asyncio.run_coroutine_threadsafe(..., its loop)")

    def _refuse_without_loop(self) -> None:
        """Its loop has ended, and nobody has stopped it: what is left of it can be stopped in any other loop."""
        if self._loop.is_closed():
            message = "the event loop of the producer has ended: await its stop() in a running loop, and make a new one"
            raise ClosedError(f"{message} path={self.wal_path}") from None

    def _refuse_in_callback(self, call: str) -> None:
        if self._opened is not None and self._opened.delivery.reports.in_callback:
            message = f"{call} waits for on_delivery, so on_delivery cannot wait for it"
            raise RecoverError(f"{message}: asyncio.create_task(producer.{call}()), keep the task, and return")

    def _closed_error(self) -> ClosedError:
        told = {
            "created": "the producer is not started: use 'async with' or await start()",
            "forked": "the producer belongs to the parent process: make a new one in the child",
        }
        return ClosedError(f"{told.get(self._life, 'the producer is stopped: make a new one')} state={self._life}")

    def _forked(self) -> None:
        """We are the child of a fork: nothing of the parent's is ours (its directories are abandoned by themselves)."""
        self._life = "forked"
        self._turn_ends = 0
        self._append = self._refuse

    def _refuse(self, _payload: bytes, _fields: object) -> tuple[int, int]:
        raise self._closed_error()


def _nothing_in_it(topic: str) -> EncodeError:
    message = "a record needs a key or a value: a tombstone without a key deletes nothing"
    return EncodeError(f"{message} topic={topic}")


def _refuse_unencodable(error: Exception, context: object) -> None:
    """If it is msgspec's own, or whatever the context's attributes raise."""
    if context is not None or isinstance(error, rec.UNENCODABLE):
        message = "the record cannot be stored: context must be plain data that msgspec can encode"
        raise EncodeError(f"{message} error={error}") from error


def _where_it_is(opened: Opened) -> str:
    gone = opened.directory.moved_away()
    if gone is None:
        return "it stays in the ring"
    return f"it is in files that were removed or replaced ({gone}) and no start finds it unless you put those back"


def _refused_nowait() -> Exception:
    from aiorecover.errors import ConfigError  # noqa: PLC0415

    return ConfigError(
        'publish_nowait cannot wait for the disk: await publish, or choose fsync="interval" fsync=always'
    )


def _after_fork_in_child() -> None:
    for producer in list(_STARTED):
        producer._forked()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
