"""Partitions that do not get through, beside others that do."""

import asyncio
from pathlib import Path

import pytest

from aiorecover.producer import RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

ROUNDS = 20
QUICK_MS = 10_000  # for all rounds: half a second each, where one second is what a stuck neighbour costs


async def test_healthy_partitions_do_not_notice_one_that_waits_for_its_replicas(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    stuck = topic(kafka3, 6, replication=3, config={"min.insync.replicas": "3"})
    healthy = topic(kafka3, 6, replication=3, config={"min.insync.replicas": "1"})
    waiting, passing = Published(), Published()
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka3.bootstrap_servers) as producer:
        await waiting.publish(producer, stuck, 100)
        await passing.publish(producer, healthy, 100)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(kafka3.nodes[2].kill)
        await passing.publish(producer, healthy, 100)
        for receipt in passing.receipts[-17:]:
            await receipt.delivered(WITHIN_MS)  # the leaders have moved
        await waiting.publish(producer, stuck, 500)
        await asyncio.sleep(2)
        async with asyncio.timeout(QUICK_MS / 1000):
            for _ in range(ROUNDS):
                await passing.publish(producer, healthy, 17)
                for receipt in passing.receipts[-17:]:
                    await receipt.delivered(QUICK_MS)
        found = producer.statistics()
        assert found.pending >= 400, "the stuck ones still wait"
        assert found.lanes_in_trouble > 0
        await asyncio.to_thread(kafka3.nodes[2].start)
        await asyncio.to_thread(kafka3.wait_ready)
        await producer.flush(WITHIN_MS)
    perfect(await waiting.judged(kafka3, stuck))
    perfect(await passing.judged(kafka3, healthy))
