"""The future that aiokafka's `send` returns: a record's delivery as aiokafka's metadata of it."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Self

from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.delivery.reports import Reports
from aiorecover.receipt import DeliveryReport

Reported = asyncio.Future[DeliveryReport]


class Sent(asyncio.Future[RecordMetadata]):
    """Nobody is told of a record any more whose future was cancelled, or dropped without a callback.

    Most code drops what `send` returns, and an outage must not fill the memory with what nobody asks for. Who awaits a
    future has a callback there, as `asyncio.wait` and `asyncio.gather` have: it is held until these were called.
    """

    def __init__(self, reports: Reports, topic: str, sequence: int, place: int) -> None:
        """For a record of this epoch, in the running loop; as `Reports.waiter`."""
        super().__init__()
        self._reported = reports.waiter(topic, sequence, place)
        self._forget = partial(reports.forget, sequence, self._reported)
        self._callbacks_held = 0
        dropped = partial(_dropped, reports, sequence, weakref.ref(self._reported), self.get_loop())
        self._reported.add_done_callback(
            partial(_tell_weakly, weakref.ref(self, partial(dropped, threading.get_ident())))
        )

    def add_done_callback(self, callback: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        """As asyncio's; from now on the record's waiter holds this future."""
        super().add_done_callback(callback, context=context)
        if self._callbacks_held == 0:
            self._reported.add_done_callback(self._tell)
        self._callbacks_held += 1

    def remove_done_callback(self, callback: Callable[[Self], object], /) -> int:
        """As asyncio's; without callbacks nothing holds this future."""
        removed = super().remove_done_callback(callback)
        self._callbacks_held -= removed
        if removed and self._callbacks_held == 0:
            self._reported.remove_done_callback(self._tell)
        return removed

    def cancel(self, msg: Any | None = None) -> bool:
        """As asyncio's; the record is delivered all the same."""
        self._forget()
        return super().cancel(msg)

    def _tell(self, reported: Reported) -> None:
        _hand_on(reported, self)


def _tell_weakly(sent: weakref.ref[Sent], reported: Reported) -> None:
    future = sent()
    if future is not None:
        _hand_on(reported, future)
    elif not reported.cancelled():
        reported.exception()  # a future that nobody awaits is no error


def _dropped(
    reports: Reports,
    sequence: int,
    reported: weakref.ref[Reported],
    loop: asyncio.AbstractEventLoop,
    thread: int,
    _: weakref.ref[Sent],
) -> None:
    """Garbage is collected anywhere, in the middle of a change to what waits, too: forgotten in a turn of its own."""
    waiter = reported()
    if waiter is None or waiter.done():
        return
    soon = loop.call_soon if threading.get_ident() == thread else loop.call_soon_threadsafe
    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the producer
        soon(reports.forget, sequence, waiter)


def _hand_on(reported: Reported, future: Sent) -> None:
    """A delivery report as aiokafka's RecordMetadata; offset -1 where it is not known, as aiokafka says it."""
    error = None if reported.cancelled() else reported.exception()
    if future.done():
        return
    if reported.cancelled():
        future.cancel()
    elif error is not None:
        future.set_exception(error)
        future.exception()  # a future that nobody awaits is no error
    else:
        report = reported.result()
        partition = report.partition if report.partition is not None else -1
        future.set_result(
            RecordMetadata(
                topic=report.topic,
                partition=partition,
                topic_partition=TopicPartition(report.topic, partition),
                offset=report.offset if report.offset is not None else -1,
                timestamp=report.timestamp_ms,
                timestamp_type=0,
                log_start_offset=None,
            )
        )
