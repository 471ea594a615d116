"""``guarantee="exactly_once"`` on a real broker: whatever a record, a right or the order of starts may do.

Each test reads back what is committed with a plain consumer and judges it by record id.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from aiorecover import ConfigError, DeliveryPendingError, DeliveryReport, PermanentDeliveryError, RecoverableProducer
from tests.publishing import FLUSH_MS, Publisher, assert_once_in_order, committed, producer_of, warnings
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import Accepted

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

NOWHERE = "127.0.0.1:1"


# -- records that Kafka never takes -----------------------------------------------------------------------------------

LARGE = b"x" * 30_000
SMALL_TOPIC = {"max.message.bytes": "20000"}


async def publish_with_poison(producer: RecoverableProducer, publisher: Publisher, poison: int) -> list[str]:
    """Among the records of each key some that the topic does not take; the ids of these."""
    refused = []
    for _ in range(poison):
        await publisher.publish(producer, 20)
        refused.append((await producer.publish(publisher.topic, LARGE, key=b"k1")).record_id)
        await publisher.publish(producer, 20)
    return refused


async def test_what_is_refused_for_good_is_a_dead_letter_and_the_rest_is_committed_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=3, config=SMALL_TOPIC))
    told: list[DeliveryReport] = []
    async with producer_of(tmp_path, kafka.bootstrap_servers, on_delivery=told.append) as producer:
        refused = await publish_with_poison(producer, publisher, 3)
        await producer.flush(timeout_ms=FLUSH_MS)
        assert [letter.record_id async for letter in producer.dead_letters.list()] == refused
        statistics = producer.statistics()
        assert (statistics.delivered, statistics.dead_lettered, statistics.pending) == (120, 3, 0)
    assert sorted(report.record_id for report in told if report.status == "dead_lettered") == sorted(refused)
    assert len(told) == 123
    await assert_once_in_order(kafka, publisher)


async def test_a_timestamp_that_the_topic_refuses_is_a_dead_letter(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=2, config={"message.timestamp.before.max.ms": "3600000"}))
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 50)
        receipt = await producer.publish(publisher.topic, b"old", key=b"k1", timestamp_ms=1_000_000)
        await publisher.publish(producer, 50)
        await producer.flush(timeout_ms=FLUSH_MS)
        with pytest.raises(PermanentDeliveryError):
            await receipt.delivered(timeout_ms=0)
    await assert_once_in_order(kafka, publisher)


async def test_a_time_for_transactions_that_the_brokers_refuse_is_named_and_everything_waits(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(kafka, partitions=1))
    caplog.set_level(logging.WARNING, "aiorecover")
    async with producer_of(tmp_path, kafka.bootstrap_servers, transaction_timeout_ms=2_000_000_000) as producer:
        await publisher.publish(producer, 10)
        await until(lambda: bool(caplog.records))
        await asyncio.sleep(1)
        assert (producer.state, producer.statistics().pending) == ("connecting", 10)
    (told,) = {record.getMessage() for record in caplog.records if record.name == "aiorecover.session"}
    assert "lower transaction_timeout_ms" in told
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)


async def test_a_lane_that_halts_holds_up_all_until_the_next_start(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=3, config=SMALL_TOPIC))
    async with producer_of(tmp_path, kafka.bootstrap_servers, on_permanent_error="halt") as producer:
        await publisher.publish(producer, 50)
        await producer.flush(timeout_ms=FLUSH_MS)
        await publish_with_poison(producer, publisher, 1)
        with pytest.raises(PermanentDeliveryError):
            await producer.flush(timeout_ms=FLUSH_MS)
        assert 50 <= len(await committed(kafka.bootstrap_servers, publisher.topic)) < 80
    async with producer_of(tmp_path, kafka.bootstrap_servers, on_permanent_error="halt") as producer:
        with pytest.raises(PermanentDeliveryError):
            await producer.flush(timeout_ms=FLUSH_MS)
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await producer.flush(timeout_ms=FLUSH_MS)
        assert len([letter async for letter in producer.dead_letters.list()]) == 1
    await assert_once_in_order(kafka, publisher)


# -- reports ----------------------------------------------------------------------------------------------------------


async def test_everybody_is_told_before_it_is_settled_however_slow_or_failing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slower than the transaction may take: it is begun anew, and goes on."""
    publisher = Publisher(topic(kafka, partitions=3))
    told: list[str] = []

    async def on_delivery(report: DeliveryReport) -> None:
        told.append(report.record_id)
        if len(told) % 20 == 0:
            await asyncio.sleep(1)
        if len(told) % 7 == 0:
            raise ValueError

    options = {"on_delivery": on_delivery, "transaction_timeout_ms": 1_000}
    async with producer_of(tmp_path, kafka.bootstrap_servers, **options) as producer:
        for _ in range(10):
            await publisher.publish(producer, 10)
            await asyncio.sleep(0.1)
        await producer.flush(timeout_ms=FLUSH_MS)
        assert producer.statistics().callback_errors == 14
    assert sorted(told) == sorted(record.record_id for record in publisher.accepted)
    await assert_once_in_order(kafka, publisher)


# -- records without a place ------------------------------------------------------------------------------------------


async def test_a_partition_that_is_not_there_and_a_partitioner_that_fails_hold_up_until_they_do_not(
    kafka: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=2))
    fails, failed = True, 0

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        nonlocal failed
        if fails and key == b"k3":
            failed += 1
            raise ValueError
        return every[-1]

    async with producer_of(tmp_path, NOWHERE, stop_timeout_ms=0) as producer:
        await publisher.publish(producer, 10, partition=0)
        await publisher.publish(producer, 10, partition=3)
        await publisher.publish(producer, 10)
    async with producer_of(tmp_path, kafka.bootstrap_servers, partitioner=partitioner) as producer:
        await until(lambda: producer.statistics().delivered == 10)
        await asyncio.sleep(0.3)
        assert producer.statistics().delivered == 10
        grow(kafka, publisher.topic, 5)
        await until(lambda: producer.statistics().delivered > 20)
        before = failed
        for _ in range(20):
            await publisher.publish(producer, 1, partition=0)  # which are no reason to ask again
            await asyncio.sleep(0.1)
        assert failed - before <= 5
        assert producer.statistics().pending > 0
        fails = False
        await producer.flush(timeout_ms=FLUSH_MS)
        assert producer.statistics().delivered == 50
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    assert sorted(record.record_id or "" for record in found) == sorted(one.record_id for one in publisher.accepted)


def grow(cluster: Cluster, topic: str, partitions: int) -> None:
    asked = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for answer in asked.create_partitions([NewPartitions(topic, partitions)]).values():
        answer.result()


# -- time -------------------------------------------------------------------------------------------------------------


async def test_a_transaction_that_takes_longer_than_it_may_is_begun_anew(
    kafka3: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka3, partitions=6))
    options = {"transaction_timeout_ms": 1_500, "request_timeout_ms": 3_000}
    async with producer_of(tmp_path, kafka3.bootstrap_servers, **options) as producer:
        await publisher.publish(producer, 100)
        await producer.flush(timeout_ms=FLUSH_MS)
        frozen = kafka3.nodes[1]
        publishing = asyncio.create_task(publish_slowly(producer, publisher))
        await asyncio.sleep(0.3)
        frozen.pause()
        await asyncio.sleep(2.5)
        frozen.resume()
        await publishing
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka3, publisher)


async def publish_slowly(producer: RecoverableProducer, publisher: Publisher) -> None:
    for _ in range(100):
        await publisher.publish(producer, 10)
        await asyncio.sleep(0.02)


async def test_one_record_is_visible_soon_and_two_hundred_lanes_are_committed(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=200), keys=1_000)
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 5_000)
        await producer.flush(timeout_ms=FLUSH_MS)
        began, told = {}, []
        async with reading(kafka.bootstrap_servers, publisher.topic) as read_at:
            for number in range(10):
                await asyncio.sleep(0.3)
                value = b"one %d" % number
                began[value] = time.perf_counter()
                receipt = await producer.publish(publisher.topic, value, key=b"k1")
                publisher.accepted.append(Accepted(receipt.record_id, b"k1", value))
                await receipt.delivered(timeout_ms=FLUSH_MS)
                told.append(time.perf_counter() - began[value])
            await until(lambda: began.keys() <= read_at.keys())
        read = [read_at[value] - then for value, then in began.items()]
        print("told", told, "read", read)
        assert sorted(told)[5] < 0.25
        assert sorted(read)[5] < 0.25
    await assert_once_in_order(kafka, publisher)


@asynccontextmanager
async def reading(servers: str, topic: str) -> AsyncIterator[dict[bytes | None, float]]:
    """When somebody who reads what is committed, from now on, has had each value."""
    read_at: dict[bytes | None, float] = {}
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, isolation_level="read_committed")

    async def read() -> None:
        async for record in consumer:
            read_at[record.value] = time.perf_counter()

    await consumer.start()
    await consumer.seek_to_end()
    task = asyncio.create_task(read())  # all the time: who only reads now and then meets a request that waits
    try:
        yield read_at
    finally:
        task.cancel()
        await consumer.stop()


# -- from one guarantee to the other ----------------------------------------------------------------------------------


async def test_the_guarantee_is_changed_where_nothing_waits_and_only_there(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    ways = "at_least_once", "exactly_once"
    for number in range(6):
        guarantee, other = ways[number % 2], ways[1 - number % 2]
        async with producer_of(tmp_path, kafka.bootstrap_servers, guarantee=guarantee) as producer:
            await publisher.publish(producer, 50)
            await producer.flush(timeout_ms=FLUSH_MS)
        async with producer_of(tmp_path, NOWHERE, guarantee=guarantee, stop_timeout_ms=0) as producer:
            await publisher.publish(producer, 50)
        with pytest.raises(ConfigError, match=guarantee):
            await producer_of(tmp_path, kafka.bootstrap_servers, guarantee=other).start()
        async with producer_of(tmp_path, kafka.bootstrap_servers, guarantee=guarantee) as producer:
            await publisher.publish(producer, 50)
            await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)
    assert "copy" not in warnings(caplog)
    assert "has no position" not in warnings(caplog)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_what_a_neighbour_has_left_is_delivered_as_it_was_accepted(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    for servers in (kafka.bootstrap_servers, NOWHERE):
        async with producer_of(tmp_path, servers, instance="a", stop_timeout_ms=0, adoption_grace_ms=None) as producer:
            await publisher.publish(producer, 100)
            if servers is not NOWHERE:
                await producer.flush(timeout_ms=FLUSH_MS)
    options = {"instance": "b", "adoption_grace_ms": 500, "guarantee": guarantee}
    async with producer_of(tmp_path, kafka.bootstrap_servers, **options) as producer:
        await until(lambda: producer.statistics().directories_adopted > 0)
        await publisher.publish(producer, 10)
        await producer.flush(timeout_ms=FLUSH_MS)
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    assert sorted(record.record_id or "" for record in found) == sorted(one.record_id for one in publisher.accepted)
    async with producer_of(tmp_path, kafka.bootstrap_servers, instance="a") as producer:  # as it was
        await producer.flush(timeout_ms=FLUSH_MS)
    assert len(await committed(kafka.bootstrap_servers, publisher.topic)) == 210


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["none", "well", "frozen"])
async def test_stop_leaves_nothing_running_and_ends_in_time(
    kafka: KafkaCluster, topic: TopicFactory, tmp_path: Path, broker: str
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    async with producer_of(tmp_path, kafka.bootstrap_servers):  # what is made once for all
        pass
    before = Census(tmp_path)
    servers = NOWHERE if broker == "none" else kafka.bootstrap_servers
    # A broker that is well has to take all of it: on a busy machine that may take a second.
    producer = producer_of(tmp_path, servers, stop_timeout_ms=3_000 if broker == "well" else 500)
    await producer.start()
    await publisher.publish(producer, 100)
    if broker == "frozen":
        await producer.flush(timeout_ms=FLUSH_MS)
        await publisher.publish(producer, 100)
        kafka.nodes[0].pause()
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(0.01)
    flushing.cancel()
    began = time.perf_counter()
    left = await producer.stop()
    assert time.perf_counter() - began < 4
    assert (left == 0) == (broker == "well")
    await asyncio.sleep(0.05)
    assert before.left_since() == []
    kafka.heal()
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)


async def test_records_from_other_threads_with_source_positions_are_committed_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    for start in range(3):
        async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
            first = (await producer.source_positions()).get(TopicPartition("s", 0), 0)

            def publish(producer: RecoverableProducer = producer, first: int = first) -> None:
                for number in range(first, first + 100):
                    producer.publish_threadsafe(name, b"%d" % number, key=b"k", source=("s", 0, number)).result(10)

            await asyncio.to_thread(publish)
            if start != 1:
                await producer.flush(timeout_ms=FLUSH_MS)
            else:
                await producer.stop(timeout_ms=0)
    found = await committed(kafka.bootstrap_servers, name)
    assert [record.value for record in found] == [b"%d" % number for number in range(300)]


# -- copies -----------------------------------------------------------------------------------------------------------


async def test_who_was_taken_over_from_says_so_and_delivers_what_it_accepted_beside_the_copy_after_its_next_start(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    original, copy = tmp_path / "original", tmp_path / "copy"
    async with producer_of(original, kafka.bootstrap_servers) as first:
        await publisher.publish(first, 100)
        await first.flush(timeout_ms=FLUSH_MS)
        await publisher.publish(first, 1)
        shutil.copytree(original, copy)
        async with producer_of(copy, kafka.bootstrap_servers) as heir:
            await publisher.publish(heir, 200)
            await heir.flush(timeout_ms=FLUSH_MS)
        await publisher.publish(first, 100)
        with pytest.raises(DeliveryPendingError, match="another process delivers a copy"):
            await first.flush(timeout_ms=FLUSH_MS)
        with pytest.raises(DeliveryPendingError, match="another process delivers a copy"):
            await first.flush(timeout_ms=FLUSH_MS)
    for directory in (original, copy, original):
        async with producer_of(directory, kafka.bootstrap_servers) as again:
            await publisher.publish(again, 50)
            await again.flush(timeout_ms=FLUSH_MS)
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    assert sorted(record.record_id or "" for record in found) == sorted(one.record_id for one in publisher.accepted)
    assert "has delivered a copy of this directory, or this is the copy" in caplog.text


# -- letters ----------------------------------------------------------------------------------------------------------


async def test_a_full_dead_ring_holds_up_all_until_there_is_room(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=1, config=SMALL_TOPIC))
    options = {"wal_max_bytes": 6 << 16, "wal_min_free_bytes": 0, "transaction_timeout_ms": 1_000}
    async with producer_of(tmp_path, kafka.bootstrap_servers, **options) as producer:
        letters = 0
        while producer.state != "halted":
            await producer.publish(publisher.topic, LARGE, key=b"k1")
            letters += 1
            with suppress(PermanentDeliveryError):
                await producer.flush(timeout_ms=FLUSH_MS)
        await publisher.publish(producer, 20)
        await asyncio.sleep(1.5)
        assert await producer.dead_letters.purge("all") == letters - 1
        await producer.flush(timeout_ms=FLUSH_MS)
        assert len([letter async for letter in producer.dead_letters.list()]) == 1
    await assert_once_in_order(kafka, publisher)


async def test_killed_between_the_letter_and_settling_there_is_one_letter_and_the_rest_is_committed_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=2, config=SMALL_TOPIC))
    buried = asyncio.Event()

    async def never(report: DeliveryReport) -> None:
        if report.status == "dead_lettered":
            buried.set()
            await asyncio.Event().wait()

    async with producer_of(tmp_path / "wal", kafka.bootstrap_servers, on_delivery=never) as producer:
        refused = await publish_with_poison(producer, publisher, 1)
        await buried.wait()
        shutil.copytree(tmp_path / "wal", tmp_path / "killed")
        await producer.stop(timeout_ms=0)
    async with producer_of(tmp_path / "killed", kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 20)
        await producer.flush(timeout_ms=FLUSH_MS)
        assert [letter.record_id async for letter in producer.dead_letters.list()] == refused
    await assert_once_in_order(kafka, publisher)
