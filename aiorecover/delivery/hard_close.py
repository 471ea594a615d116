"""The end of an AIOKafkaProducer, within a bounded time, whatever state it is in.

aiokafka's own `stop` waits for what is in flight: for ever when the producer is idempotent and the broker is down, or
its sender's task was cancelled.
"""

import asyncio
import contextlib
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

CLOSE_LIMIT = 1.0  # seconds for each step: closing takes milliseconds, unless the peer's kernel does not answer either
TRANSPORTS = 64  # the last ones opened: one for each broker, and again after each time-out
CANCELS = 3  # of one task: aiokafka's sender waits for its requests when it is cancelled, and each cancel ends one wait


class SessionLostError(KafkaError):
    """The producer that carried the batch is gone; what happened to the batch is unknown."""

    retriable = True


class Holdings:
    """What aiokafka holds and keeps to itself, so that the end of a producer can be the end of all of it.

    The tasks of the sender's requests: one left alone connects anew. The transports of its connections: those that it
    has closed itself, after a request timed out, stay open until the broker has read what was written, and a frozen
    one never does.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        """Note everything that ``producer`` begins from now on."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.transports: deque[asyncio.Transport] = deque(maxlen=TRANSPORTS)
        self._send: Callable[..., Awaitable[None]] = producer._sender._send_produce_req  # noqa: SLF001
        self._connect: Callable[..., Awaitable[Any]] = producer.client._get_conn  # noqa: SLF001
        producer._sender._send_produce_req = self._sending  # type: ignore[method-assign] # noqa: SLF001
        producer.client._get_conn = self._connecting  # type: ignore[method-assign] # noqa: SLF001
        # Called when the sender dies; it raises where there is no transaction. The batches are `close_hard`'s business.
        producer._sender._fail_all = _nothing  # type: ignore[method-assign] # noqa: SLF001

    async def _sending(self, *request: Any) -> None:
        task = asyncio.current_task()
        if task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        await self._send(*request)

    async def _connecting(self, *node: Any, **options: Any) -> Any:
        connection = await self._connect(*node, **options)
        writer = connection._writer if connection is not None else None  # noqa: SLF001
        if writer is not None and writer.transport not in self.transports:
            self.transports.append(writer.transport)
        return connection


def close_hard(producer: AIOKafkaProducer, holdings: Holdings) -> Coroutine[Any, Any, None]:
    """Close everything, and leave no future unresolved: each batch that is left fails with `SessionLostError`.

    What ends it for good is done at once, so that a task that is cancelled, before it begins even, leaves only the
    waiting undone. The connections are closed one by one: aiokafka's client does not, if its metadata task has failed
    before.
    """
    producer._closed = True  # noqa: SLF001 - its finaliser would complain
    _fail_all(producer._message_accumulator)  # noqa: SLF001
    own = [task for task in (producer._sender.sender_task, producer.client._sync_task) if task is not None]  # noqa: SLF001
    tasks = {*own, *holdings.tasks}
    for task in tasks:
        task.cancel()
    return _until_closed(producer, holdings, own, tasks, _close_connections(producer, holdings))


async def _until_closed(
    producer: AIOKafkaProducer,
    holdings: Holdings,
    own: list[asyncio.Task[Any]],
    tasks: set[asyncio.Task[Any]],
    closing: list[Any],
) -> None:
    """Wait for what was begun, and close what it has opened meanwhile; ``own``: of ``tasks``, the producer's two."""
    for _ in range(CANCELS):
        tasks = {task for task in tasks if not task.done()}
        if not tasks:
            break
        await asyncio.wait(tasks, timeout=CLOSE_LIMIT / CANCELS)
        for task in tasks:
            task.cancel()
    for task in own:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved: nobody is told of a session that was given up
    await _bounded(producer.client.close())
    closing += _close_connections(producer, holdings)  # what a request connected to meanwhile
    if closing:
        await asyncio.wait(closing, timeout=CLOSE_LIMIT)


def close_bootstrap(error: BaseException) -> None:
    """Close the connection that aiokafka's bootstrap held when ``error`` ended it: nobody else knows of that one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        connection = frame.f_locals.get("bootstrap_conn")
        if connection is not None:
            connection.close()


def _close_connections(producer: AIOKafkaProducer, holdings: Holdings) -> list[Any]:
    """Close every connection, without a word to the broker; the futures of their ends."""
    connections = list(producer.client._conns.values())  # noqa: SLF001
    closing = [ended for connection in connections if (ended := connection.close()) is not None]
    for transport in holdings.transports:
        transport.abort()
    return closing


def _nothing(_: object) -> None:
    return


def _fail_all(accumulator: Any) -> None:
    """Fail every batch, and say that we know: a lane that was stopped asks no more, and the loop would log an error."""
    waiting = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001
    batches = [*accumulator._pending_batches, *waiting]  # noqa: SLF001
    accumulator.fail_all(SessionLostError())
    # Those that wait to be sent again are no longer in there, and their callback removes them without a look.
    accumulator._pending_batches.update(batch for batch in waiting if batch.retry_count)  # noqa: SLF001
    for batch in batches:
        for future in (batch.future, batch._drain_waiter):  # noqa: SLF001
            if future.done() and not future.cancelled():
                future.exception()


async def _bounded(closing: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
        task.exception()
