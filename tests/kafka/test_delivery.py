"""Delivery against a real broker: order, outages, refusals, and what callers are answered."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aiorecover.errors import (
    DeliveryPendingError,
    RecoverError,
)
from aiorecover.producer import RecoverableProducer
from aiorecover.receipt import DeliveryReport
from aiorecover.ring.files import Files
from tests.kafka.victim import Disk
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression_type": "zstd"},
        {"compression_type": "gzip"},
        {"compression_type": "snappy"},
        {"compression_type": "lz4"},
        {"fsync": "always"},
        {"guarantee": "exactly_once"},
    ],
    ids=["plain", "zstd", "gzip", "snappy", "lz4", "always", "exactly-once"],
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
