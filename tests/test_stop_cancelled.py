"""A stop whose own task somebody cancels: who else has called `stop` finishes it."""

import asyncio
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk

pytestmark = pytest.mark.asyncio

HANG = 20  # seconds


async def started(disk: MemoryDisk) -> RecoverableProducer:
    producer = RecoverableProducer(disk, bootstrap_servers="127.0.0.1:1", stop_timeout_ms=100)
    await producer.start()
    await producer.publish("t", b"one")
    return producer


def task_of_the_stop() -> asyncio.Task[Any]:
    (found,) = [task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-stop"]
    return found


@pytest.mark.parametrize("turns", [[0], [2, 1], [0, 0]], ids=str)
async def test_the_stop_s_own_task_is_cancelled_after_some_turns_and_all_who_wait_are_told(turns: list[int]) -> None:
    """Once is enough where it could not begin; begun, it closes in a hurry the first time."""
    disk = MemoryDisk()
    producer = await started(disk)
    stops = [asyncio.create_task(producer.stop()) for _ in range(3)]
    await asyncio.sleep(0)
    for count in turns:
        for _ in range(count):
            await asyncio.sleep(0)
        task_of_the_stop().cancel()
        for _ in range(5):  # until who waits has begun it anew, if it has to be
            await asyncio.sleep(0)
    async with asyncio.timeout(HANG):
        assert await asyncio.gather(*stops) == [1, 1, 1]
    assert producer.state == "stopped"
    following = await started(disk)  # it was let go of
    assert await following.stop() == 2


async def test_who_is_cancelled_while_the_stop_s_own_task_is_does_not_go_on() -> None:
    producer = await started(MemoryDisk())
    first, second = (asyncio.create_task(producer.stop()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    task_of_the_stop().cancel()
    async with asyncio.timeout(HANG):
        assert await second == 1
    assert first.cancelled()
    assert producer.state == "stopped"
