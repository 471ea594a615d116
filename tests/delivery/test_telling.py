"""Whoever is slow to be told of expired records keeps that partition waiting, and no other."""

import asyncio
from typing import Any

import pytest

from aiorecover import DeliveryReport
from aiorecover.delivery import telling as telling_module
from aiorecover.delivery.dead_record import DeadRecord
from aiorecover.delivery.telling import Telling
from aiorecover.testing import MemoryDisk
from tests.delivery.expiring import Clock, Distant, adds_up, distant, letters_of, producer_on
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

MOST = 50


class Slow:
    """An `on_delivery` that does not come back from dead letters of one partition until it may."""

    def __init__(self, topic: str, partition: int | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.may = asyncio.Event()
        self.heard: list[str] = []

    async def __call__(self, report: DeliveryReport) -> None:
        if report.status == "dead_lettered" and (report.topic, report.partition) == (self.topic, self.partition):
            await self.may.wait()
        self.heard.append(report.record_id)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    monkeypatch.setattr(telling_module, "MOST", MOST)
    monkeypatch.setattr(telling_module, "HOLD", 0.1)
    return distant(monkeypatch, t=1, other=1, wide=4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_another_topic_expires_and_is_delivered_meanwhile(broker: Distant, clock: Clock) -> None:
    broker.away, slow = True, Slow("t")
    old = [b"old-%d" % number for number in range(6 * MOST)]
    async with producer_on(MemoryDisk(), on_delivery=slow) as producer:
        for value in old:
            await producer.publish("t", value, key=b"k")
            await producer.publish("other", value, key=b"k")
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == len(old))
        for topic in ("t", "other"):
            await producer.publish(topic, b"young", key=b"k")
        broker.come()
        await until(lambda: broker.values("other") == [b"young"])
        assert broker.values("t") == []
        assert (producer.statistics().expired, producer.statistics().pending) == (len(old), len(old) + 1)
        adds_up(producer)
        slow.may.set()
        await producer.flush(timeout_ms=20_000)
        assert (producer.statistics().expired, producer.statistics().pending) == (2 * len(old), 0)
        adds_up(producer)
        letters = await letters_of(producer)
    assert [letter.value for letter in letters if letter.topic == "t"] == old
    assert broker.values("t") == [b"young"]
    assert len(slow.heard) == len(set(slow.heard)) == 2 * len(old) + 2


async def test_so_does_another_partition_of_the_topic(broker: Distant, clock: Clock) -> None:
    broker.away, slow = True, Slow("wide", 1)
    async with producer_on(MemoryDisk(), on_delivery=slow) as producer:
        for number in range(4 * MOST):
            for partition in (0, 1):
                await producer.publish("wide", b"%d" % number, partition=partition)
        await clock.age(producer)
        for partition in (0, 1):
            await producer.publish("wide", b"young", partition=partition)
        await until(lambda: producer.statistics().expired > 0)
        broker.come()
        await until(lambda: broker.values("wide", 0) == [b"young"])
        assert producer.statistics().expired == 4 * MOST
        slow.may.set()
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().expired == 8 * MOST
        adds_up(producer)
    assert broker.values("wide", 1) == [b"young"]


async def test_what_waits_for_all_partitions_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling_module, "ALL", 100)
    monkeypatch.setattr(telling_module, "FEWEST", 3)
    may = asyncio.Event()

    async def settle(_: DeadRecord) -> None:
        await may.wait()

    telling = Telling(settle, lambda: None)
    one: Any = None
    for partition in range(10):
        while telling.add(("t", partition), one):
            pass
    assert [len(queue.taken) for queue in telling._queues.values()] == [100, 50, 33, 25, 20, 16, 14, 12, 11, 10]
    for partition in range(10, 60):
        while telling.add(("t", partition), one):
            pass
    assert [len(queue.taken) for queue in telling._queues.values()][-10:] == [3] * 10
    may.set()
    await until(lambda: not telling.queues)
    await telling.close()
