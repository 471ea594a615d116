"""``guarantee="exactly_once"``, with every public call cancelled at its waits, and in each step of a transaction."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.publishing import Publisher, assert_once_in_order, committed, producer_of
from tests.support.broker import Cluster, TopicFactory
from tests.support.census import Census
from tests.support.victim import HANG, Victim, each_time
from tests.test_cancelling import CALLS, Call, cancelled_at_each_wait, until_nothing_is_left

pytestmark = pytest.mark.asyncio

LIMIT = HANG * 1000
PARTITIONS = 2


# -- on a real broker, where a reader sees what is committed -----------------------------------------------------------


@pytest.mark.parametrize(("call", "options", "waits"), CALLS)
async def test_a_call_cancelled_at_each_of_its_waits_commits_what_was_accepted_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, call: Call, options: dict[str, Any], waits: int
) -> None:
    name, before = topic(kafka, partitions=PARTITIONS), Census(tmp_path)
    producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, **options)
    await producer.start()
    await producer.partitions_for(name)
    accepted = await cancelled_at_each_wait(producer, call, waits, name)
    assert await producer.stop() == 0
    await until_nothing_is_left(before)
    assert Counter(record.value for record in await committed(kafka.bootstrap_servers, name)) == accepted


async def test_start_cancelled_at_each_of_its_waits_goes_on_where_the_last_life_ended(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=PARTITIONS))

    async def scenario(victim: Victim, _: int) -> None:
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, instance="mine")
        await victim.run(producer.start())
        await producer.start()
        await publisher.publish(producer, 10)
        await producer.flush(LIMIT)
        await publisher.publish(producer, 10)
        await producer.stop(timeout_ms=0)  # what is in the transaction that is open goes into one of the next life
        await until_nothing_is_left(before)

    await each_time(scenario)
    await deliver_what_is_left(tmp_path, kafka, instance="mine")
    await assert_once_in_order(kafka, publisher)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("who", ["its caller", "its task"])
async def test_stop_cancelled_at_any_time_leaves_the_rest_to_the_next_life(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, who: str, seed: int
) -> None:
    """It lasts as long as its last transactions: a few tenths of a second."""
    publisher, rng = Publisher(topic(kafka, partitions=PARTITIONS)), random.Random(seed)
    for _ in range(5):
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers)
        await producer.start()
        await publisher.publish(producer, 20)
        if rng.random() < 0.7:  # else not even the position is known
            await producer.flush(LIMIT)
        await publisher.publish(producer, 50)
        stopping = asyncio.create_task(producer.stop(LIMIT))
        await asyncio.sleep(rng.random() * 0.3)
        for task in [stopping] if who == "its caller" else of_the_stop():
            task.cancel()
        await asyncio.wait({stopping}, timeout=HANG)
        left = await producer.stop(LIMIT)
        assert producer.state == "stopped"
        assert left == 0 or who == "its task"
        await until_nothing_is_left(before)
    await deliver_what_is_left(tmp_path, kafka)
    await assert_once_in_order(kafka, publisher)


async def deliver_what_is_left(tmp_path: Path, kafka: Cluster, **options: Any) -> None:
    """In a life of its own."""
    async with producer_of(tmp_path / "wal", kafka.bootstrap_servers, **options) as producer:
        await producer.flush(LIMIT)


def of_the_stop() -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-stop"]


async def test_async_with_cancelled_at_each_of_its_waits_commits_what_was_accepted_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=PARTITIONS))

    async def scenario(victim: Victim, _: int) -> None:
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, fsync="always", instance="mine")

        async def use() -> None:
            async with producer:
                for _ in range(3):
                    await publisher.publish(producer, 1)
                await producer.flush()

        await victim.run(use())
        await producer.stop()
        await until_nothing_is_left(before)

    await each_time(scenario)
    await deliver_what_is_left(tmp_path, kafka, instance="mine")
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    ids = [record.record_id for record in found]
    assert len(set(ids)) == len(ids)
    assert {record.record_id for record in publisher.accepted} <= set(ids)  # one that was cancelled may be there


# -- in each step of a transaction -------------------------------------------------------------------------------------


async def stopped(producer: RecoverableProducer) -> None:
    await producer.stop(LIMIT)
