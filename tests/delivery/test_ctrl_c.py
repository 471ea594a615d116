"""Ctrl-C in the middle of delivery, in a program that leaves the event loop for it and goes on with it later."""

import asyncio
import linecache
import sys
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

import pytest
from aiokafka.structs import RecordMetadata

from aiorecover import RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery import dispatcher as dispatcher_module
from aiorecover.delivery import sender as sender_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import settling as settling_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.errors import PermanentDeliveryError
from aiorecover.testing import MemoryDisk
from aiorecover.wal import reading as reading_module
from aiorecover.wal import stream as stream_module
from tests.delivery.refusing import Broker

RECORDS = 60
BACKLOG = 20  # of these, before the start
OPTIONS: dict[str, Any] = {"bootstrap_servers": "nowhere:1", "slot_bytes": 1 << 18, "linger_ms": 1}
LIMIT = 20_000  # ms: what takes longer hangs
PASSES = [(dispatcher_module, 500, 37), (reading_module, 50, 1), (stream_module, 20, 1), (batches_module, 20, 1)]
"""What records pass on their way into a batch; so many lines are run at least, and one in so many is tried."""


SETTLING = {"settle_batch", "_settle"}


class KnowsRepeats(Broker):
    """As Kafka does."""

    def __init__(self) -> None:
        super().__init__(t=1)
        self._taken: dict[tuple[int, int, int] | None, RecordMetadata] = {}

    def take(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        if batch.identity not in self._taken:
            self._taken[batch.identity] = super().take(batch, topic, partition)
        return self._taken[batch.identity]


class Interrupting:
    """A trace function that raises at the n-th line of a module at which Python looks for signals, once.

    It does so in calls, and where a loop begins anew.
    """

    def __init__(self, at: int, module: ModuleType) -> None:
        self.left = at
        self.file = module.__file__
        self.within = SETTLING if module in (settling_module, sender_module) else None

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if self.within is not None and frame.f_code.co_name not in self.within:
            return None
        if event == "line" and ("(" in line or line.lstrip().startswith(("for ", "while "))):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


async def backlog(broker: Broker) -> MemoryDisk:
    """What a process leaves that is killed before anything is answered."""
    disk = MemoryDisk()
    broker.answers.clear()
    producer = RecoverableProducer(disk, **OPTIONS)
    await producer.start()
    for number in range(BACKLOG):
        await producer.publish("t", b"%d" % number, key=b"k")
    left = disk.after_process_death()
    await producer.stop(timeout_ms=0)
    broker.answers.set()
    return left


async def publish(producer: RecoverableProducer, unsure: set[bytes]) -> None:
    """Some turns of the loop come in between."""
    for number in range(BACKLOG, RECORDS):
        try:
            await producer.publish("t", b"%d" % number, key=b"k")
        except KeyboardInterrupt:  # it struck as the dispatcher was woken
            unsure.add(b"%d" % number)
        if number % 20 == 0:
            await asyncio.sleep(0)


def run_through(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """However often the loop is left for it."""
    task = loop.create_task(work)
    while not task.done():
        with suppress(KeyboardInterrupt, RuntimeError):  # a run that was left has left a call that ends the next one
            loop.run_until_complete(asyncio.wait({task}))
    with suppress(KeyboardInterrupt, PermanentDeliveryError):
        task.result()


def interrupted(at: int, module: ModuleType) -> tuple[int, list[bytes], set[bytes], int]:
    """Lines that were left, what arrived, what may have, and what the stop says is left."""
    broker, unsure, interrupting = KnowsRepeats(), set[bytes](), Interrupting(at, module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions_module, "Session", broker.session())
        patch.setattr(supervised_module, "RESTART_PAUSE", 0.001)
        patch.setattr(sender_module, "RESTART_PAUSE", 0.001)
        loop = asyncio.new_event_loop()
        disk = loop.run_until_complete(backlog(broker))
        producer = RecoverableProducer(disk, **OPTIONS)
        loop.run_until_complete(producer.start())
        sys.settrace(interrupting)
        try:
            run_through(loop, publish(producer, unsure))
            run_through(loop, producer.flush(LIMIT))
        finally:
            sys.settrace(None)
        run_through(loop, producer.flush(LIMIT))
        left = loop.run_until_complete(producer.stop())
        loop.close()
    return interrupting.left, broker.values("t"), unsure, left


def lines_of(module: ModuleType) -> int:
    """That are run where nothing interrupts."""
    most = 10_000_000
    return most - interrupted(most, module)[0]


@pytest.mark.parametrize(("module", "least", "stride"), PASSES)
def test_at_any_line_on_the_way_into_a_batch_nothing_is_lost_or_repeated_and_the_counts_are_right(
    module: ModuleType, least: int, stride: int
) -> None:
    lines = lines_of(module)
    assert lines > least
    for at in range(1, lines, stride):
        _, arrived, unsure, left = interrupted(at, module)
        published = [value for number in range(RECORDS) if (value := b"%d" % number) not in unsure]
        assert [value for value in arrived if value not in unsure] == published, at
        assert len(set(arrived)) == len(arrived), at
        assert left == 0, at


@pytest.mark.parametrize("module", [settling_module, sender_module])
def test_at_any_line_of_settling_a_batch_it_is_neither_sent_nor_settled_twice(module: ModuleType) -> None:
    """Its lane stands until the next start, if it must."""
    lines = lines_of(module)
    for at in range(1, lines):
        _, arrived, unsure, left = interrupted(at, module)
        assert len(set(arrived)) == len(arrived), at
        assert 0 <= left <= RECORDS, at
        assert len(arrived) + left >= RECORDS - len(unsure), at
