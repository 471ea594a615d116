"""``guarantee="exactly_once"`` on a real broker: whatever a record, a right or the order of starts may do.

Each test reads back what is committed with a plain consumer and judges it by record id.
"""

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka.admin import AdminClient, NewPartitions

from aiorecover import ConfigError, DeliveryPendingError, DeliveryReport, PermanentDeliveryError, RecoverableProducer
from aiorecover.delivery import transaction
from aiorecover.delivery.pace import Pace
from tests.delivery.committing import delivery_of, transactions_of
from tests.delivery.publishing import FLUSH_MS, Publisher, assert_once_in_order, committed, producer_of, warnings
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import Accepted, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

NOWHERE = "127.0.0.1:1"


# -- what a reader sees ------------------------------------------------------------------------------------------------


async def seen(servers: str, topic: str) -> tuple[int, int]:
    """So many records are there, and so many of them are committed."""
    return len(await read_topic(servers, topic)), len(await committed(servers, topic))


@pytest.mark.parametrize("ends", ["committed", "aborted", "left open"])
async def test_what_is_in_a_transaction_is_seen_when_it_is_committed_and_never_if_it_is_not(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    publisher, servers = Publisher(topic(kafka, partitions=2)), kafka.bootstrap_servers
    commit, in_step, may_go_on = transaction.commit, asyncio.Event(), asyncio.Event()
    may_go_on.set()

    async def held(*arguments: Any) -> None:
        if not may_go_on.is_set():
            in_step.set()
            await may_go_on.wait()
        await commit(*arguments)

    monkeypatch.setattr(transaction, "commit", held)
    async with producer_of(tmp_path, servers) as producer:
        await publisher.publish(producer, 10)
        await producer.flush(timeout_ms=FLUSH_MS)
        may_go_on.clear()
        await publisher.publish(producer, 10)
        await in_step.wait()
        assert await seen(servers, publisher.topic) == (20, 10)
        assert producer.statistics().delivered == 10
        if ends == "left open":
            await producer.stop(timeout_ms=0)
            assert await seen(servers, publisher.topic) == (20, 10)
        elif ends == "aborted":
            delivery_of(producer).session.give_up("a test does not trust it")
        may_go_on.set()
        if ends != "left open":
            await producer.flush(timeout_ms=FLUSH_MS)
    async with producer_of(tmp_path, servers) as producer:
        await producer.flush(timeout_ms=FLUSH_MS)
    assert await seen(servers, publisher.topic) == (20 if ends == "committed" else 30, 20)
    await assert_once_in_order(kafka, publisher)


async def test_as_long_as_a_batch_is_not_answered_nothing_of_its_transaction_is_seen(
    kafka3: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Attempts run out of time, and the commit does not go without them; in the end all is there once."""
    first, well, stuck = (
        Publisher(name) for name in (topic(kafka3), f"well-{tmp_path.name}", f"stuck-{tmp_path.name}")
    )
    async with producer_of(tmp_path, kafka3.bootstrap_servers) as producer:
        await first.publish(producer, 10)
        await producer.flush(timeout_ms=FLUSH_MS)
        frozen, *others = (node for node in kafka3.nodes if node.node_id not in coordinators(producer))
        one = others[0] if others else next(node for node in kafka3.nodes if node is not frozen)
        for publisher, node in ((stuck, frozen), (well, one)):  # the last transaction needs nobody who is frozen
            await admin.create_placed_topic(kafka3.bootstrap_servers, publisher.topic, {0: [node.node_id]})
            await publisher.publish(producer, 10)
            await producer.flush(timeout_ms=FLUSH_MS)
        frozen.pause()
        for publisher in (stuck, well):
            await publisher.publish(producer, 10)
        await until(lambda: in_transaction(producer) == 10)
        await asyncio.sleep(3)  # beyond the patience with a request, and how long a run lasts
        assert await seen(one.address, well.topic) == (20, 10)
        assert producer.statistics().delivered == 30
        frozen.resume()
        await producer.flush(timeout_ms=FLUSH_MS)
    for publisher in (well, stuck):
        await assert_once_in_order(kafka3, publisher)


def coordinators(producer: RecoverableProducer) -> set[int]:
    """The nodes without which a transaction cannot go on."""
    client: Any = delivery_of(producer).session._producer
    return {*client._sender._coordinators.values()}


def in_transaction(producer: RecoverableProducer) -> int:
    """Records that are acknowledged, and not committed."""
    return sum(batch.count for batch in transactions_of(producer).uncommitted)


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


async def test_what_is_refused_for_good_is_cut_out_of_its_transaction_and_its_neighbours_are_committed_in_that(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is aborted and sent again: Kafka has each record once, and one mark of a commit in each partition."""
    monkeypatch.setattr(Pace, "is_over", lambda *_, urgent, **__: urgent)  # a run ends for nothing else
    publisher = Publisher(topic(kafka, partitions=3, config=SMALL_TOPIC))
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        refused = await publish_with_poison(producer, publisher, 3)
        await until(lambda: in_transaction(producer) == 120)
        assert await committed(kafka.bootstrap_servers, publisher.topic) == []
        await producer.flush(timeout_ms=FLUSH_MS)
        assert [letter.record_id async for letter in producer.dead_letters.list()] == refused
        assert (transactions_of(producer).aborts, producer.statistics().rebuilds) == (0, 0)
    there = await read_topic(kafka.bootstrap_servers, publisher.topic)
    records = Counter(record.partition for record in there)
    assert records.total() == 120
    assert await ends(kafka.bootstrap_servers, publisher.topic) == {one: count + 1 for one, count in records.items()}
    await assert_once_in_order(kafka, publisher)


async def ends(servers: str, topic: str) -> dict[int, int]:
    """Of each partition that something was appended to: the offset that comes next, marks of transactions included."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(3)]
        return {place.partition: end for place, end in (await consumer.end_offsets(partitions)).items() if end}
    finally:
        await consumer.stop()


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


# -- whatever comes between a commit and what follows it --------------------------------------------------------------


class HeldCommit:
    """Lets commits through, and from some moment on holds what follows the next one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.holds = False
        self.committed = asyncio.Event()
        commit = transaction.commit

        async def held(*arguments: Any) -> None:
            await commit(*arguments)
            if self.holds:
                self.holds = False
                self.committed.set()
                await asyncio.Event().wait()

        patch.setattr(transaction, "commit", held)


async def test_a_task_that_somebody_cancels_behind_a_commit_commits_nothing_twice(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    held = HeldCommit(monkeypatch)
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 100)
        await producer.flush(timeout_ms=FLUSH_MS)
        held.holds = True
        await publisher.publish(producer, 100)
        await held.committed.wait()
        await publisher.publish(producer, 100)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-transactions"]
        task.cancel()
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)


async def test_a_task_that_somebody_cancels_before_the_next_transaction_begins_loses_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the lanes begun anew in the same session, Kafka would take their next batches for repeats."""
    publisher = Publisher(topic(kafka, partitions=1))
    begin, hangs = transaction.begin, asyncio.Event()
    holds = False

    async def held(producer: Any) -> None:
        if holds:
            hangs.set()
            await asyncio.Event().wait()
        await begin(producer)

    monkeypatch.setattr(transaction, "begin", held)
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 50)
        await producer.flush(timeout_ms=FLUSH_MS)
        holds = True
        await publisher.publish(producer, 50)
        await hangs.wait()
        holds = False
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-transactions"]
        task.cancel()
        await publisher.publish(producer, 50)
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)


async def test_a_first_commit_that_fails_is_tried_again_and_no_position_is_missed(
    kafka: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher = Publisher(topic(kafka, partitions=1))
    commit, failures = transaction.commit, [KafkaError("it fails")]

    async def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await commit(*arguments)

    monkeypatch.setattr(transaction, "commit", failing)
    async with producer_of(tmp_path, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 10)
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(kafka, publisher)
    assert "it fails" in warnings(caplog)
    assert "has no position" not in warnings(caplog)


async def test_of_what_was_committed_and_not_settled_the_next_start_tells_once_more(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    held = HeldCommit(monkeypatch)
    told: list[DeliveryReport] = []
    waiting: list[int] = []
    async with producer_of(tmp_path / "wal", kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 10)
        await producer.flush(timeout_ms=FLUSH_MS)
        held.holds = True
        for number in range(100):
            await publisher.publish(producer, 1, context=number)
        await held.committed.wait()
        shutil.copytree(tmp_path / "wal", tmp_path / "killed")
        await producer.stop(timeout_ms=0)

    async def on_delivery(report: DeliveryReport) -> None:
        await asyncio.sleep(0)
        waiting.append(heir.statistics().pending)
        told.append(report)
        raise ValueError

    heir = producer_of(tmp_path / "killed", kafka.bootstrap_servers, on_delivery=on_delivery)
    async with heir:
        await heir.flush(timeout_ms=FLUSH_MS)
        assert heir.statistics().pending == 0
        assert heir.statistics().delivered == 100
    assert [report.record_id for report in told] == [record.record_id for record in publisher.accepted[10:]]
    assert [report.context for report in told] == [*range(100)]
    assert min(waiting) > 0
    await assert_once_in_order(kafka, publisher)


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


async def test_a_copy_that_cannot_reach_a_broker_at_first_commits_what_it_accepts_and_nothing_of_the_original(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(topic(kafka, partitions=3))
    original, copy = tmp_path / "original", tmp_path / "copy"
    held = HeldCommit(monkeypatch)
    async with producer_of(original, kafka.bootstrap_servers) as producer:
        await publisher.publish(producer, 100)
        await producer.flush(timeout_ms=FLUSH_MS)
        held.holds = True
        await publisher.publish(producer, 100)
        await held.committed.wait()
        await publisher.publish(producer, 100)
        shutil.copytree(original, copy)
        await producer.stop(timeout_ms=0)
    for _ in range(2):
        async with producer_of(original, kafka.bootstrap_servers) as producer:
            await publisher.publish(producer, 100)
            await producer.flush(timeout_ms=FLUSH_MS)
    for servers in (NOWHERE, NOWHERE, kafka.bootstrap_servers):
        async with producer_of(copy, servers, stop_timeout_ms=0) as producer:
            await publisher.publish(producer, 10)
            if servers is not NOWHERE:
                await producer.flush(timeout_ms=FLUSH_MS)
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    assert sorted(record.record_id or "" for record in found) == sorted(one.record_id for one in publisher.accepted)


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
