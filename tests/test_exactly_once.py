"""``guarantee="exactly_once"``: read with ``isolation_level="read_committed"``, each record is there once, in order."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from aiorecover import DeliveryReport, RecoverableProducer, WalError
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE, WITHIN_MS, Published, named, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


def made(wal: Path, servers: str, **options: Any) -> RecoverableProducer:
    options = {"guarantee": "exactly_once", "stop_timeout_ms": 2000, **options}
    return RecoverableProducer(wal, bootstrap_servers=servers, **options)


async def committed_once(cluster: Cluster, name: str, published: Published) -> None:
    perfect(await published.judged(cluster, name, "read_committed"))


async def test_a_time_for_transactions_that_the_brokers_refuse_is_named_and_everything_waits(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 1), Published()
    options = {"transaction_timeout_ms": 2_000_000_000, "stop_timeout_ms": 0}
    async with made(tmp_path, kafka.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 10)
        await named(producer, "lower transaction_timeout_ms")
        assert producer.statistics().pending == 10
    async with made(tmp_path, kafka.bootstrap_servers) as producer:
        await producer.flush(WITHIN_MS)
    await committed_once(kafka, name, published)


async def test_reports_come_once_however_slow_or_failing_the_callback_is(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slower than a transaction may take."""
    name, published = topic(kafka, 3), Published()
    told: list[str] = []

    async def on_delivery(report: DeliveryReport) -> None:
        told.append(report.record_id)
        if len(told) % 20 == 0:
            await asyncio.sleep(0.5)
        if len(told) % 7 == 0:
            raise ValueError

    options = {"on_delivery": on_delivery, "transaction_timeout_ms": 1_000}
    async with made(tmp_path, kafka.bootstrap_servers, **options) as producer:
        for _ in range(5):
            await published.publish(producer, name, 20)
            await asyncio.sleep(0.1)
        await producer.flush(WITHIN_MS)
        assert producer.statistics().callback_errors == 14
    assert sorted(told) == sorted(record.record_id for record in published.accepted)
    await committed_once(kafka, name, published)


async def test_a_transaction_that_takes_longer_than_it_may_begins_again(
    kafka3: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka3, 6), Published()
    options = {"transaction_timeout_ms": 1_500, "request_timeout_ms": 3_000}
    async with made(tmp_path, kafka3.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(kafka3.nodes[1].pause)
        for _ in range(25):
            await published.publish(producer, name, 40)
            await asyncio.sleep(0.1)
        kafka3.nodes[1].resume()
        await producer.flush(2 * WITHIN_MS)
    await committed_once(kafka3, name, published)


async def test_a_partition_that_is_not_there_yet_holds_up_its_own_records(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 2), Published()
    async with made(tmp_path, NOWHERE, stop_timeout_ms=0) as producer:
        await published.publish(producer, name, 10, partition=3)
        await published.publish(producer, name, 10, partition=0)
    async with made(tmp_path, kafka.bootstrap_servers) as producer:
        await until(lambda: producer.statistics().delivered == 10)
        await named(producer, "the topic has no such partition")
        await asyncio.to_thread(lambda: admin.run(admin.grow_topic(kafka.bootstrap_servers, name, 4, [1, 1])))
        await producer.flush(WITHIN_MS)
    await committed_once(kafka, name, published)


async def test_two_hundred_partitions_are_committed_at_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 200), Published()
    async with made(tmp_path, kafka.bootstrap_servers) as producer:
        for partition in range(200):
            await published.publish(producer, name, 10, partition=partition)
        await producer.flush(WITHIN_MS)
    await committed_once(kafka, name, published)


# -- lives -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["none", "well", "frozen"])
async def test_stop_leaves_nothing_running_and_ends_in_time_and_the_next_life_delivers_the_rest(
    kafka: KafkaCluster, topic: TopicFactory, tmp_path: Path, broker: str
) -> None:
    name, published = topic(kafka, 3), Published()
    async with made(tmp_path, kafka.bootstrap_servers):  # what is made once for all
        pass
    before = Census(tmp_path)
    servers = NOWHERE if broker == "none" else kafka.bootstrap_servers
    producer = made(tmp_path, servers, stop_timeout_ms=10_000 if broker == "well" else 500)
    await producer.start()
    await published.publish(producer, name, 100)
    if broker == "frozen":
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(kafka.nodes[0].pause)
        await published.publish(producer, name, 100)
    began = time.perf_counter()
    left = await producer.stop()
    assert time.perf_counter() - began < (12 if broker == "well" else 4)
    assert (left == 0) == (broker == "well")
    await until(lambda: before.left_since() == [])
    kafka.heal()
    async with made(tmp_path, kafka.bootstrap_servers) as producer:
        await producer.flush(WITHIN_MS)
    await committed_once(kafka, name, published)


async def test_records_from_other_threads_with_source_positions_are_committed_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, 3)
    for start in range(3):
        async with made(tmp_path, kafka.bootstrap_servers) as producer:
            first = (await producer.source_positions()).get(TopicPartition("s", 0), 0)

            def publish(producer: RecoverableProducer = producer, first: int = first) -> None:
                for number in range(first, first + 100):
                    producer.publish_threadsafe(name, b"%d" % number, key=b"k", source=("s", 0, number)).result(10)

            await asyncio.to_thread(publish)
            if start != 1:
                await producer.flush(WITHIN_MS)
            else:
                await producer.stop(timeout_ms=0)
    found = await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed")
    assert [record.value for record in found] == [b"%d" % number for number in range(300)]


async def test_the_guarantee_is_changed_where_nothing_waits_and_only_there(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 3), Published()
    ways = "at_least_once", "exactly_once"
    for number in range(4):
        guarantee, other = ways[number % 2], ways[1 - number % 2]
        async with made(tmp_path, NOWHERE, guarantee=guarantee, stop_timeout_ms=0) as producer:
            await published.publish(producer, name, 50)
        with pytest.raises(WalError, match=guarantee):
            await made(tmp_path, kafka.bootstrap_servers, guarantee=other).start()
        async with made(tmp_path, kafka.bootstrap_servers, guarantee=guarantee) as producer:
            await published.publish(producer, name, 50)
            await producer.flush(WITHIN_MS)
    await committed_once(kafka, name, published)


async def test_an_owner_that_was_fenced_by_a_copy_says_so(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name, published = topic(kafka, 3), Published()
    original, copy = tmp_path / "original", tmp_path / "copy"
    async with made(original, kafka.bootstrap_servers, stop_timeout_ms=0) as first:
        await published.publish(first, name, 100)
        await first.flush(WITHIN_MS)
        await asyncio.to_thread(shutil.copytree, original, copy)
        async with made(copy, kafka.bootstrap_servers) as second:
            await published.publish(second, name, 200)
            await second.flush(WITHIN_MS)
        await published.publish(first, name, 100)
        with pytest.raises(Exception, match="another process delivers under this transactional id"):
            await first.flush(WITHIN_MS)
        assert first.state == "interrupted"
