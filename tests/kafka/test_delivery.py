"""Delivery against a real broker: order, outages, refusals, and what callers are answered."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aiorecover.errors import (
    DeliveryPendingError,
    EncodeError,
    PermanentDeliveryError,
    RecoverError,
    WalDestinationError,
)
from aiorecover.producer import RecoverableProducer
from aiorecover.receipt import DeliveryReport, Receipt
from aiorecover.ring.files import Files
from tests.kafka.victim import Disk
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import NOWHERE, WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression_type": "zstd"},
        {"compression_type": "gzip"},
        {"fsync": "always"},
        {"guarantee": "exactly_once"},
    ],
    ids=["plain", "zstd", "gzip", "always", "exactly-once"],
)
async def test_every_record_arrives_once_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, options: dict[str, Any]
) -> None:
    name, published = topic(kafka), Published()
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 5000)
        await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.accepted, found.delivered, found.pending) == (5000, 5000, 0)
        report = await published.receipts[-1].delivered(1000)
        assert report.record_id == published.receipts[-1].record_id
    perfect(await published.judged(kafka, name, "read_committed"))


async def test_a_topic_never_seen_and_no_broker_at_the_start(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka), Published()
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=100) as producer:
        await published.publish(producer, name, 3000)
        with pytest.raises(DeliveryPendingError, match="cannot be reached"):
            await published.receipts[0].delivered(100)
        assert producer.state == "connecting"
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await published.publish(producer, name, 3000)
        await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.accepted, found.recovered, found.delivered, found.pending) == (3000, 3000, 6000, 0)
    perfect(await published.judged(kafka, name))


async def test_all_brokers_die_under_load_and_come_back(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name, published = topic(kafka), Published()
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await published.publish(producer, name, 2000)
        await asyncio.to_thread(kafka.nodes[0].kill)
        for _ in range(10):
            await published.publish(producer, name, 300)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(kafka.nodes[0].start)
        await asyncio.to_thread(kafka.wait_ready)
        await published.publish(producer, name, 2000)
        await producer.flush(WITHIN_MS)
    perfect(await published.judged(kafka, name))


async def test_a_record_that_is_too_large_is_a_dead_letter_and_the_others_arrive_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, 1, config={"max.message.bytes": "5000"})
    published = Published()
    refused: list[Receipt] = []
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        for _ in range(3):
            await published.publish(producer, name, 200)
            refused.append(await producer.publish(name, b"y" * 9000, context={"n": len(refused)}))
        await published.publish(producer, name, 200)
        await producer.flush(WITHIN_MS)
        with pytest.raises(PermanentDeliveryError, match="too large for the topic"):
            await refused[0].delivered(1000)
        letters = [letter async for letter in producer.dead_letters.list()]
        assert [letter.record_id for letter in letters] == [receipt.record_id for receipt in refused]
        assert (letters[1].topic, letters[1].partition, letters[1].context) == (name, 0, {"n": 1})
        assert await producer.dead_letters.export(tmp_path / "letters.jsonl") == 3
        assert await producer.dead_letters.purge(refused[1].record_id) == 1
        found = producer.statistics()
        assert (found.delivered, found.dead_lettered, found.dead_letters, found.pending) == (800, 3, 2, 0)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.flush(WITHIN_MS)
        assert [letter.record_id async for letter in producer.dead_letters.list()] == [
            refused[0].record_id,
            refused[2].record_id,
        ]
    perfect(await published.judged(kafka, name))


async def test_a_lane_that_is_refused_halts_where_the_caller_wants_that_and_no_other_does(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 2, config={"max.message.bytes": "5000"}), Published()
    options: dict[str, Any] = {"on_permanent_error": "halt", "stop_timeout_ms": 200}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await producer.publish(name, b"y" * 9000, partition=0)
        await published.publish(producer, name, 500, partition=1)
        for receipt in published.receipts[-3:]:
            await receipt.delivered(WITHIN_MS)
        with pytest.raises(PermanentDeliveryError, match="halted until the next start: too large"):
            await producer.flush(WITHIN_MS)
        assert producer.state == "halted"
        assert producer.statistics().lanes_halted == 1
    perfect(await published.judged(kafka, name))


async def test_records_that_are_too_old_become_dead_letters(tmp_path: Path) -> None:
    options: dict[str, Any] = {"delivery_timeout_ms": 1000, "request_timeout_ms": 900, "stop_timeout_ms": 100}
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options) as producer:
        receipt = await producer.publish("topic", b"late", partition=0)
        with pytest.raises(PermanentDeliveryError, match="not delivered within delivery_timeout_ms"):
            await receipt.delivered(10_000)
        assert [letter.value async for letter in producer.dead_letters.list()] == [b"late"]


async def test_on_delivery_is_called_for_each_record_in_order_before_it_counts(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(kafka, 1), Published()
    reports: list[DeliveryReport] = []

    async def on_delivery(report: DeliveryReport) -> None:
        await asyncio.sleep(0)
        reports.append(report)
        if len(reports) == 5:
            raise ValueError("the caller's")

    options: dict[str, Any] = {"on_delivery": on_delivery}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 300, context="kept")
        await producer.flush(WITHIN_MS)
        assert producer.statistics().callback_errors == 1
    assert [report.record_id for report in reports] == [one.record_id for one in published.accepted]
    assert [report.offset for report in reports] == list(range(300))
    assert {report.context for report in reports} == {"kept"}


async def test_another_cluster_gets_nothing(
    kafka: Cluster, kafka3: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await (await producer.publish(name, b"1", key=b"k")).delivered(WITHIN_MS)
    options: dict[str, Any] = {"stop_timeout_ms": 100}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka3.bootstrap_servers, **options) as producer:
        receipt = await producer.publish(name, b"2", key=b"k")
        with pytest.raises(DeliveryPendingError, match="another cluster"):
            await receipt.delivered(2000)
    assert issubclass(WalDestinationError, Exception)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.flush(WITHIN_MS)
    assert len(await read_topic(kafka.bootstrap_servers, name)) == 2


@pytest.mark.parametrize(
    ("timestamp_ms", "unit"), [(1_800_000_000_000_000, "micro"), (1_800_000_000_000_000_000, "nano")]
)
async def test_a_timestamp_in_another_unit_is_refused(tmp_path: Path, timestamp_ms: int, unit: str) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50) as producer:
        with pytest.raises(EncodeError, match=f"looks like {unit}seconds"):
            await producer.publish("topic", b"x", timestamp_ms=timestamp_ms)
        assert producer.statistics().accepted == 0


async def test_sources_are_remembered_with_their_records(tmp_path: Path) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50) as producer:
        assert await producer.source_positions() == {}
        for offset in range(10):
            await producer.publish("out", b"x", source=("in", offset % 2, offset))
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50) as producer:
        positions = await producer.source_positions()
        assert {(one.topic, one.partition): offset for one, offset in positions.items()} == {
            ("in", 0): 9,
            ("in", 1): 10,
        }


async def test_a_partitioner_that_fails_where_no_caller_waits_makes_its_topic_wait(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, other, published = topic(kafka, 3), topic(kafka, 3), Published()
    broken = True

    def partitioner(key: bytes | None, partitions: list[int], _: list[int]) -> int:
        if broken:
            raise KeyError(key)
        return partitions[hash(key) % len(partitions)]

    options: dict[str, Any] = {"partitioner": partitioner}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 100)  # its partitions are not known yet
        with pytest.raises(DeliveryPendingError, match="the partitioner failed: KeyError"):
            await published.receipts[0].delivered(2000)
        await (await producer.publish(other, b"x", partition=1)).delivered(WITHIN_MS)
        broken = False
        await producer.flush(WITHIN_MS)
    perfect(await published.judged(kafka, name))


class SlowFiles(Files):
    """A disk that takes its time for each flush."""

    def flush(self, fd: int) -> None:
        time.sleep(0.15)
        super().flush(fd)


async def test_records_do_not_overtake_those_that_waited_for_the_topic_s_partitions(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Though two flushes pass until these are in their lanes; and `flush` waits for them."""
    name, keys = topic(kafka, 100), [b"key-%d" % number for number in range(100)]
    accepted: list[Accepted] = []
    disk = Disk(str(tmp_path), SlowFiles())
    async with RecoverableProducer(disk, bootstrap_servers=kafka.bootstrap_servers) as producer:
        for turn in range(2):
            for key in keys:
                receipt = await producer.publish(name, b"%d" % turn, key=key)
                accepted.append(Accepted(receipt.record_id, key, b"%d" % turn))
                await asyncio.sleep(0.01 * turn)
            if not turn:
                flush = asyncio.create_task(producer.flush(WITHIN_MS))
        await flush
    perfect(judge(accepted, await read_topic(kafka.bootstrap_servers, name)))


async def test_flush_is_refused_within_on_delivery_and_nowhere_else(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, 1)
    refusals: list[str] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def on_delivery(_: DeliveryReport) -> None:
        try:
            await producer.flush(100)
        except RecoverError as error:
            refusals.append(str(error))
        entered.set()
        await leave.wait()

    options: dict[str, Any] = {"on_delivery": on_delivery}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await producer.publish(name, b"x", key=b"k")
        await entered.wait()
        with pytest.raises(DeliveryPendingError):
            await producer.flush(100)  # from elsewhere: it waits
        leave.set()
        await producer.flush(WITHIN_MS)
    assert len(refusals) == 1
