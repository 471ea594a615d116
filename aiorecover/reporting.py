"""``on_delivery``: the caller's function, called with each record's report before the record counts as delivered."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from aiorecover.kafka.log_throttle import LogThrottle
from aiorecover.receipt import DeliveryReport
from aiorecover.ring.lane import DEAD
from aiorecover.ring.notes import Note, notes_by_index
from aiorecover.ring.records import id_of, timestamp_delta, walk
from aiorecover.ring.segments import Batch

CALL_S = 30.0  # a coroutine is cancelled then: it holds up its broker's other partitions, too
OnDelivery = Callable[[DeliveryReport], Awaitable[None] | None]

log = logging.getLogger("aiorecover")


class Reporter:
    """Call ``on_delivery`` for the records of acknowledged batches."""

    def __init__(self, call: OnDelivery, throttle: LogThrottle) -> None:
        self._call, self._throttle = call, throttle
        self.errors = 0
        self._calling: set[asyncio.Task[Any] | None] = set()

    @property
    def in_callback(self) -> bool:
        """Whether the present task is one that ``on_delivery`` runs in."""
        return asyncio.current_task() in self._calling

    async def report(self, batch: Batch) -> None:
        """Call it for each record of a batch, in order."""
        task = asyncio.current_task()
        for report in reports_of(batch, await asyncio.to_thread(batch_bytes, batch)):
            self._calling.add(task)
            try:
                result = self._call(report)
                if inspect.isawaitable(result):
                    async with asyncio.timeout(CALL_S):
                        await result
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # delivery ends; else the callback was cancelled by itself
                self.errors += 1
                self._throttle.warn(
                    "on_delivery_failed", "on_delivery", "on_delivery raised, and delivery goes on error=%r", error
                )
            finally:
                self._calling.discard(task)


def batch_bytes(batch: Batch) -> tuple[bytes, bytes]:
    """Return a batch's records and notes; blocks where it is cold."""
    return bytes(batch.read()), batch.read_notes()


def reports_of(batch: Batch, data: tuple[bytes, bytes]) -> list[DeliveryReport]:
    """Return the reports of a batch's records, in order."""
    records, raw = data
    notes = notes_by_index(raw)
    dead = batch.lane.partition == DEAD
    found = []
    for index, span in enumerate(walk(records)):
        producer, epoch, sequence = id_of(records, span[4])
        note = notes.get(index)
        found.append(
            DeliveryReport(
                topic=note.topic or "" if dead and note is not None else batch.lane.topic,
                partition=note.partition if dead and note is not None else batch.lane.partition,
                offset=None if batch.offset is None else batch.offset + index,
                record_id=f"{producer}/{epoch}/{sequence}",
                timestamp_ms=batch.base + timestamp_delta(records, span),
                context=context_of(note),
                status="dead_lettered" if dead else "delivered",
                error=note.error if dead and note is not None else None,
            )
        )
    return found


def context_of(note: Note | None) -> Any:
    """Return the caller's context, as plain data; None: it gave none."""
    return None if note is None or note.context is None else msgspec.msgpack.decode(note.context)
