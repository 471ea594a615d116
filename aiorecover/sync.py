"""The producer as plain calls, for scripts, Django, Celery: its event loop runs in a thread of its own.

>>> with RecoverableProducer("wal", bootstrap_servers="localhost:9092") as producer:  # doctest: +SKIP
...     receipt = producer.publish("orders", {"id": 1}, key="1")  # accepted: survives kill -9
...     report = receipt.delivered(timeout_ms=10_000)  # in Kafka

Each process starts its own: make the producer where modules are loaded, and call `start` after the fork
(docs/integrations.md shows where, for gunicorn and Celery).
"""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, Unpack

from aiokafka.structs import TopicPartition

import aiorecover
from aiorecover import ClosedError, DeadLetter, DeliveryReport, RecoverError, Statistics
from aiorecover.config import Options
from aiorecover.producer import Fields

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # installed with the package, but only where it exists
    from asyncio import new_event_loop

__all__ = ["DeadLetters", "Receipt", "RecoverableProducer"]

LOOK_S: Final = 1.0  # between two looks whether the thread is there that a caller waits for
JOIN_S: Final = 5.0  # a thread that waits for a hanging disk is left to the end of the process

T = TypeVar("T")


class _Running(NamedTuple):
    """A started producer, and the thread that its event loop runs in."""

    producer: aiorecover.RecoverableProducer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that the thread runs."""
        return self.wait(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def wait(self, future: "concurrent.futures.Future[T]") -> T:
        """Return the result of a future that the thread completes."""
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
                if not self.thread.is_alive():
                    raise _closed() from None

    def end(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(JOIN_S)


class RecoverableProducer:
    """`aiorecover.RecoverableProducer` as plain calls, which any thread may make.

    It takes the same options; constructing does no I/O. `start` begins a new life after `stop`, and in a forked child.
    The next life delivers the records that a life leaves, also where a script ended without `stop`.

    Raises:
        ConfigError: an option is unknown, wrong or in conflict with another one.

    """

    def __init__(
        self, wal_dir: str | os.PathLike[str], *, bootstrap_servers: str | Sequence[str], **options: Unpack[Options]
    ) -> None:
        """Check the options; `start` does the rest."""

        def make() -> aiorecover.RecoverableProducer:
            return aiorecover.RecoverableProducer(wal_dir, bootstrap_servers=bootstrap_servers, **options)

        self._make = make
        self._last = make()
        self._running: _Running | None = None
        self._changing = threading.Lock()
        _made.add(self)

    def __repr__(self) -> str:
        """Name the directory and the state."""
        return f"<sync.{repr(self._last)[1:]}"

    # -- life cycle ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the directory and begin to deliver what it holds; needs no broker. Does nothing while it runs.

        Raises:
            WalError: the directory cannot be used; the message says why and what to do.

        """
        with self._changing:
            if self._running is not None:
                return
            producer, loop = self._make(), new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop,), name="aiorecover", daemon=True)
            running = _Running(producer, loop, thread)
            thread.start()
            try:
                running.call(producer.start())
            except BaseException:
                running.end()
                raise
            self._last, self._running = producer, running

    def stop(self, timeout_ms: int | None = None) -> int:
        """Deliver what can be delivered in time, then close; return the number of records left in the ring.

        Args:
            timeout_ms: for all of it, in milliseconds; None takes ``stop_timeout_ms``.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds; the producer goes on.
            RecoverError: it is called in `on_delivery`.

        """
        running = self._running
        if running is None:
            return 0
        _refuse_inside(running)
        with self._changing:
            if self._running is not running:  # another thread was first
                return 0
            left = running.call(running.producer.stop(timeout_ms))
            running.end()
            self._running = None
            return left

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # -- publishing and delivery ---------------------------------------------------------------------------------------

    def publish(self, topic: str, value: object, **fields: Unpack[Fields]) -> "Receipt":
        """Accept one record: when this returns, it is in the ring and survives the death of the process.

        Arguments and errors are those of `aiorecover.RecoverableProducer.publish`, which the thread of the producer
        calls.
        """
        running = self._get_running()
        receipt = running.wait(running.producer.publish_threadsafe(topic, value, **fields))
        return Receipt(receipt, running)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything that is in the ring now is in Kafka or a dead letter.

        Args:
            timeout_ms: at most so long, in milliseconds; None waits as long as it takes.

        Raises:
            DeliveryPendingError: not within ``timeout_ms``; everything is still in the ring.
            PermanentDeliveryError: a lane is halted.

        """
        running = self._get_running()
        running.call(running.producer.flush(timeout_ms))

    def source_positions(self) -> dict[TopicPartition, int]:
        """Return where to go on reading: for each partition that a ``source`` has named, the next offset.

        Call it before the first `publish` with a ``source``.

        Raises:
            WalError: what earlier starts left could not be read.

        """
        running = self._get_running()
        return running.call(running.producer.source_positions())

    @property
    def dead_letters(self) -> "DeadLetters":
        """The records that Kafka refused for good, or that came too late: list, requeue, export, purge."""
        return DeadLetters(self._get_running())

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The producer's state, as one word: see `aiorecover.RecoverableProducer.state`."""
        return self._last.state

    @property
    def wal_path(self) -> Path | None:
        """The instance directory in use; None before `start`."""
        return self._last.wal_path

    def statistics(self) -> Statistics:
        """Return a frozen snapshot; some counts may be ahead of others by what is published meanwhile.

        Raises:
            ClosedError: before `start`, or in a forked child.

        """
        return self._last.statistics()

    def _get_running(self) -> _Running:
        running = self._running
        if running is None:
            raise _closed()
        _refuse_inside(running)
        return running


class Receipt:
    """A record was accepted: it is in the ring and survives the death of the process."""

    __slots__ = ("_receipt", "_running")

    def __init__(self, receipt: aiorecover.Receipt, running: _Running) -> None:
        """`RecoverableProducer.publish` makes it."""
        self._receipt, self._running = receipt, running

    @property
    def topic(self) -> str:
        """The record's topic."""
        return self._receipt.topic

    @property
    def record_id(self) -> str:
        """``producer id/epoch/sequence``, as in the Kafka header ``aiorecover-id``; never given twice."""
        return self._receipt.record_id

    def delivered(self, timeout_ms: int | None = None) -> DeliveryReport:
        """Wait until the record is in Kafka.

        Args:
            timeout_ms: at most so long, in milliseconds; None waits until it is settled or the producer stops.

        Raises:
            DeliveryPendingError: not within the time; it stays in the ring: do not publish it again.
            PermanentDeliveryError: it became a dead letter, its lane is halted, or damage took it from the disk.
            ClosedError: the producer is stopped; the record is delivered after the next start, if it was not before.

        """
        _refuse_inside(self._running)
        if not self._running.thread.is_alive():
            raise _closed()
        return self._running.call(self._receipt.delivered(timeout_ms))

    def __repr__(self) -> str:
        """Topic and id; enough to find the record again."""
        return repr(self._receipt)


class DeadLetters:
    """`aiorecover.DeadLetters` as plain calls."""

    def __init__(self, running: _Running) -> None:
        """`RecoverableProducer.dead_letters` makes it."""
        self._running, self._letters = running, running.producer.dead_letters

    def list(self) -> Iterator[DeadLetter]:
        """Yield the letters, oldest first."""
        letters = aiter(self._letters.list())
        while (letter := self._running.call(anext(letters, None))) is not None:
            yield letter

    def requeue(self, record_id: str | None = None) -> int:
        """Publish a letter, or all of them, again, under new ids; return the number."""
        return self._running.call(self._letters.requeue(record_id))

    def purge(self, what: str) -> int:
        """Forget a letter, by its id, or "all"; return the number."""
        return self._running.call(self._letters.purge(what))

    def export(self, path: str | Path) -> int:
        """Write the letters into a file, as JSON lines with bytes as base64; return the number."""
        return self._running.call(self._letters.export(path))


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _closed() -> ClosedError:
    message = "the producer is not started in this process: use 'with', or call start(), in a forked child once more"
    return ClosedError(message)


def _refuse_inside(running: _Running) -> None:
    if threading.current_thread() is running.thread:
        message = "on_delivery runs in the thread of the producer, which cannot wait for itself"
        raise RecoverError(f"{message}: hand the report to a thread of yours")


_made: "weakref.WeakSet[RecoverableProducer]" = weakref.WeakSet()
_inherited: list[_Running | None] = []  # kept: closing a parent's event loop would close it for the parent, too


def _after_fork_in_child() -> None:
    for producer in list(_made):
        _inherited.append(producer._running)  # noqa: SLF001
        producer._running, producer._changing = None, threading.Lock()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
