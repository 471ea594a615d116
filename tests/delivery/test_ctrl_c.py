"""Ctrl-C in the middle of dispatching, in a program that leaves the event loop for it and goes on with it later."""

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import dispatcher as dispatcher_module
from aiorecover.delivery import drain as drain_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.testing import MemoryDisk
from tests.delivery.refusing import Broker

RECORDS = 60
LIMIT = 20_000  # ms: what takes longer hangs
STRIDE = 11  # lines between two that are tried: prime to those that a record takes
FILES = {dispatcher_module.__file__, drain_module.__file__}


class Interrupting:
    """A trace function that raises at the n-th line which is run of the dispatcher, once."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


async def publish(producer: RecoverableProducer, unsure: set[bytes]) -> None:
    """Some turns of the loop come in between."""
    for number in range(RECORDS):
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
    with suppress(KeyboardInterrupt):
        task.result()


def interrupted(at: int) -> tuple[int, list[bytes], set[bytes], int]:
    """Lines that were left, what arrived, what may have, and what the stop says is left."""
    broker, unsure, interrupting = Broker(t=1), set[bytes](), Interrupting(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions_module, "Session", broker.session())
        patch.setattr(supervised_module, "RESTART_PAUSE", 0.001)
        loop = asyncio.new_event_loop()
        producer = RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", slot_bytes=1 << 18, linger_ms=1)
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


def test_at_any_line_of_it_nothing_is_lost_or_repeated_and_the_counts_are_right() -> None:
    lines = 10_000_000
    lines -= interrupted(lines)[0]
    assert lines > 1000
    for at in range(1, lines, STRIDE):
        _, arrived, unsure, left = interrupted(at)
        published = [value for number in range(RECORDS) if (value := b"%d" % number) not in unsure]
        assert [value for value in arrived if value not in unsure] == published, at
        assert len(set(arrived)) == len(arrived), at
        assert left == 0, at
