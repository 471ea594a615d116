"""What other recoverable producers got wrong and no other test here covers: see the table in `test_ancestor`."""

import asyncio
import operator
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import NotEnoughReplicasError

from aiorecover import DeliveryPendingError, DeliveryReport, PermanentDeliveryError, RecoverableProducer
from aiorecover.delivery import delivery as delivery_module
from aiorecover.delivery import outcomes
from aiorecover.delivery.outcomes import Outcome, Persisted, Verdict
from aiorecover.record import HEADERS, KEY, PARTITION, TIMESTAMP, VALUE, decode
from aiorecover.wal.storage import StorageFile
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


SPOILED: dict[str, Callable[[list[Any]], Any]] = {
    "an empty key is none": lambda fields: operator.setitem(fields, KEY, fields[KEY] or None),
    "no value is an empty one": lambda fields: operator.setitem(fields, VALUE, fields[VALUE] or b""),
    "the partition is chosen anew": lambda fields: operator.setitem(fields, PARTITION, None),
    "the time is that of the delivery": lambda fields: operator.setitem(fields, TIMESTAMP, int(time.time() * 1000)),
    "a header is lost": lambda fields: fields[HEADERS] and fields[HEADERS].pop(1),
}


@pytest.mark.parametrize("what", SPOILED)
async def test_what_a_restart_changed_would_be_seen(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def spoiled(payload: memoryview) -> Any:
        fields = list(decode(payload))
        SPOILED[what](fields)
        return tuple(fields)

    monkeypatch.setattr(delivery_module, "decode", spoiled)
    with pytest.raises(AssertionError):
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


@pytest.mark.timeout(240)
async def test_a_record_that_did_not_wait_for_its_replicas_would_be_seen(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Outcome(Verdict.PERMANENT, Persisted.NOT, "planted")
    monkeypatch.setattr(outcomes, "OUTCOMES", {**outcomes.OUTCOMES, NotEnoughReplicasError: refused})
    with pytest.raises(PermanentDeliveryError):
        await published_with_too_few_replicas(kafka3, topic(kafka3, partitions=1, config=ALL_IN_SYNC), tmp_path)


async def test_publishers_do_not_wait_for_a_checkpoint_whose_flush_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, goes_on = threading.Event(), threading.Event()
    sync = StorageFile.sync

    def slow(file: StorageFile) -> None:
        hanging.set()
        assert goes_on.wait(60)
        sync(file)

    producer = RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, fsync_interval_ms=1, checkpoint_interval_ms=1, stop_timeout_ms=0
    )
    await producer.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(StorageFile, "sync", slow)
            await producer.publish("t", b"0")
            await until(hanging.is_set)
            for number in range(1, 10_000):  # some slots' worth would need a flush; these need none
                await producer.publish("t", b"%d" % number)
            assert not goes_on.is_set()
            assert producer.statistics().accepted == 10_000
            goes_on.set()
    finally:
        goes_on.set()
        await producer.stop()
