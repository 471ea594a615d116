"""What other recoverable producers got wrong and no other test here covers: see the table in `test_ancestor`."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from aiorecover import DeliveryPendingError, DeliveryReport, RecoverableProducer
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
FLUSH_MS = 40_000
FROZEN_S = 2.0
ALL_IN_SYNC = {"min.insync.replicas": "3"}
TOO_FEW_MS = 6_000  # a dead follower leaves the replicas in sync after about 2 s

Fields = tuple[bytes | None, bytes | None, int]
FIELDS: list[Fields] = [
    (b"key", b"value", 5),
    (None, b"value", 4),
    (b"key", None, 3),
    (b"", b"", 2),
    (None, b"", 1),
    (b"", None, 0),
]


async def restarted(kafka: Cluster, name: str, path: Path) -> None:
    """Everything of a record is the same, whoever delivers it."""
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    began = time.time_ns() // 1_000_000
    first = RecoverableProducer(path, bootstrap_servers=NOWHERE)
    await first.start()
    for key, value, partition in FIELDS:
        await first.publish(name, value, key=key, partition=partition, timestamp_ms=77 + partition, headers=headers)
    await first.publish(name, b"now", partition=0)
    ended = time.time_ns() // 1_000_000
    assert await first.stop(timeout_ms=0) == len(FIELDS) + 1
    await asyncio.sleep(0.05)
    async with RecoverableProducer(path, bootstrap_servers=kafka.bootstrap_servers) as second:
        await second.flush(timeout_ms=FLUSH_MS)
    *others, now = sorted(
        await read_topic(kafka.bootstrap_servers, name), key=lambda record: (record.value == b"now", -record.partition)
    )
    assert [(record.key, record.value, record.partition) for record in others] == FIELDS
    assert [record.timestamp_ms for record in others] == [77 + partition for _, _, partition in FIELDS]
    assert {record.headers[:3] for record in others} == {tuple(headers)}
    assert began <= now.timestamp_ms <= ended  # when it was published, not when it was delivered


async def test_everything_of_a_record_is_the_same_after_a_restart(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    await restarted(kafka, topic(kafka), tmp_path)


async def test_a_frozen_broker_costs_no_report_and_each_comes_once_and_in_the_loop_s_thread(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    assert isinstance(kafka, KafkaCluster)
    name = topic(kafka)
    told: list[DeliveryReport] = []
    threads: set[int] = set()

    def on_delivery(report: DeliveryReport) -> None:
        threads.add(threading.get_ident())
        told.append(report)

    async with RecoverableProducer(
        tmp_path, bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=500, on_delivery=on_delivery
    ) as producer:
        receipts = [await producer.publish(name, b"before", key=b"%d" % number) for number in range(500)]
        await until(lambda: len(told) > 0)
        kafka.nodes[0].pause()
        receipts += [await producer.publish(name, b"while", key=b"%d" % number) for number in range(500)]
        await asyncio.sleep(FROZEN_S)  # longer than any answer is waited for: batches are sent again
        kafka.nodes[0].resume()
        await producer.flush(timeout_ms=FLUSH_MS)
    assert sorted(report.record_id for report in told) == sorted(receipt.record_id for receipt in receipts)
    assert {report.status for report in told} == {"delivered"}
    assert threads == {threading.get_ident()}
    assert len(await read_topic(kafka.bootstrap_servers, name)) == len(receipts)


@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
async def test_a_report_has_the_time_of_the_call_and_so_has_the_record_unless_its_topic_stamps_it_late(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, stamped_by: str
) -> None:
    assert isinstance(kafka, KafkaCluster)
    name = topic(kafka, partitions=1, config={"message.timestamp.type": stamped_by})
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.partitions_for(name)
        kafka.nodes[0].pause()
        began = time.time_ns() // 1_000_000
        receipt = await producer.publish(name, b"value")
        ended = time.time_ns() // 1_000_000
        await asyncio.sleep(0.5)
        resumed = time.time_ns() // 1_000_000
        kafka.nodes[0].resume()
        report = await receipt.delivered(timeout_ms=FLUSH_MS)
    (record,) = await read_topic(kafka.bootstrap_servers, name)
    assert report.timestamp_ms is not None
    assert began <= report.timestamp_ms <= ended
    if stamped_by == "LogAppendTime":
        assert record.timestamp_ms >= resumed
    else:
        assert record.timestamp_ms == report.timestamp_ms


async def published_with_too_few_replicas(kafka3: Cluster, name: str, path: Path) -> None:
    """It waits, its publisher is told so, and it arrives once there are enough."""
    leader = kafka3.leaders(name)[0]
    follower = next(node for node in kafka3.nodes if node.node_id != leader)
    await asyncio.to_thread(follower.kill)
    async with RecoverableProducer(
        path, bootstrap_servers=kafka3.bootstrap_servers, retry_backoff_max_ms=200
    ) as producer:
        receipt = await producer.publish(name, b"value", key=b"k")
        with pytest.raises(DeliveryPendingError, match="do not publish it again"):
            await receipt.delivered(timeout_ms=TOO_FEW_MS)
        assert producer.statistics().dead_lettered == 0
        await asyncio.to_thread(kafka3.heal)
        assert (await receipt.delivered(timeout_ms=FLUSH_MS)).status == "delivered"
    (record,) = await read_topic(kafka3.bootstrap_servers, name)
    assert record.record_id == receipt.record_id


@pytest.mark.timeout(240)
async def test_with_too_few_replicas_a_record_waits_and_its_publisher_is_told_so(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    await published_with_too_few_replicas(kafka3, topic(kafka3, partitions=1, config=ALL_IN_SYNC), tmp_path)
