"""The public interface against a real broker: what a user writes, and what comes back."""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import KafkaError, KafkaTimeoutError
from aiokafka.partitioner import murmur2
from aiokafka.structs import RecordMetadata

from aiorecover import (
    ClosedError,
    ConfigError,
    DeliveryPendingError,
    DeliveryReport,
    PermanentDeliveryError,
    RecoverableProducer,
)
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.oracle import Consumed, read_topic
from tests.support.published import NOWHERE

pytestmark = pytest.mark.asyncio

WITHIN_MS = 30_000


@asynccontextmanager
async def producing(wal: Path, cluster: Cluster | None, **options: Any) -> AsyncIterator[RecoverableProducer]:
    servers = NOWHERE if cluster is None else cluster.bootstrap_servers
    if cluster is None:
        options = {"stop_timeout_ms": 100, **options}
    async with RecoverableProducer(wal, bootstrap_servers=servers, **options) as producer:
        yield producer


async def consumed(cluster: Cluster, topic: str) -> list[Consumed]:
    return await read_topic(cluster.bootstrap_servers, topic)


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Order:
    number: int


class Person(pydantic.BaseModel):
    name: str


# --- what a record is


async def test_everything_of_a_record_arrives_also_after_a_restart(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Null and empty stay different; the time is that of the call."""
    name = topic(kafka)
    fields = [(b"key", b"value"), (None, b"value"), (b"key", None), (b"", b""), (None, b""), (b"", None)]
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    began = time.time_ns() // 1_000_000
    async with producing(tmp_path, None) as producer:
        receipts = [
            await producer.publish(name, value, key=key, partition=5 - at, timestamp_ms=77 + at, headers=headers)
            for at, (key, value) in enumerate(fields)
        ]
        receipts.append(await producer.publish(name, b"now", partition=0, context={"at": (1, 2)}))
    ended = time.time_ns() // 1_000_000
    reports: list[DeliveryReport] = []
    async with producing(tmp_path, kafka, on_delivery=reports.append) as second:
        await second.flush(WITHIN_MS)
        assert (second.statistics().recovered, second.epoch) == (7, receipts[0].epoch + 1)
    found = {record.record_id: record for record in await consumed(kafka, name)}
    for at, ((key, value), receipt) in enumerate(zip(fields, receipts, strict=False)):
        record = found[receipt.record_id]
        assert (record.key, record.value, record.partition, record.timestamp_ms) == (key, value, 5 - at, 77 + at)
        assert record.headers == (*headers, ("aiorecover-id", receipt.record_id.encode()))
    now = found[receipts[-1].record_id]
    assert began <= now.timestamp_ms <= ended
    (report,) = [one for one in reports if one.record_id == now.record_id]
    assert (report.topic, report.partition, report.offset) == (name, 0, now.offset)
    assert (report.timestamp_ms, report.context, report.status) == (now.timestamp_ms, {"at": [1, 2]}, "delivered")


async def test_values_arrive_as_bytes_text_or_json(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    values: dict[bytes, object] = {
        b"ba": bytearray(b"ba"),
        "grüße".encode(): "grüße",
        b'{"id":1}': {"id": 1},
        b'[1,"a",null]': [1, "a", None],
        b'{"x":1}': Point(1),
        b'{"number":7}': Order(7),
        b'{"name":"x"}': Person(name="x"),
    }
    async with producing(tmp_path, kafka) as producer:
        for value in values.values():
            await producer.publish(name, value, key=memoryview(bytearray(b"k")))  # type: ignore[arg-type]
        await producer.flush(WITHIN_MS)
    assert [(record.key, record.value) for record in await consumed(kafka, name)] == [(b"k", wire) for wire in values]


async def test_changes_of_a_value_after_publish_do_not_reach_kafka(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    headers: list[Any] = [["name", header]]
    context = {"list": [1]}
    async with producing(tmp_path, kafka, linger_ms=100) as producer:
        receipt = await producer.publish(name, value, key=key, headers=headers, context=context)  # type: ignore[arg-type]
        value[:], key[:], header[:] = b"other", b"KEY", b"HEADER"
        headers.clear()
        context["list"].append(2)
        report = await receipt.delivered(WITHIN_MS)
    (found,) = await consumed(kafka, name)
    assert (found.key, found.value, found.headers[0]) == (b"key", b"value", ("name", b"header"))
    assert report.context == {"list": [1]}


# --- where it goes


async def test_keys_go_where_kafkas_own_clients_send_them_and_others_everywhere(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    keys = [f"key-{number}".encode() for number in range(100)]
    async with producing(tmp_path, kafka) as producer:
        for known in (False, True):
            for key in keys:
                await producer.publish(name, b"%d" % known, key=key)
            await producer.flush(WITHIN_MS)
        for _ in range(60):
            await (await producer.publish(name, b"keyless")).delivered(WITHIN_MS)
    found = await consumed(kafka, name)
    assert {(one.key, one.partition) for one in found if one.key} == {
        (key, (murmur2(key) & 0x7FFFFFFF) % 6) for key in keys
    }
    assert {one.partition for one in found if one.key is None} == set(range(6))


async def test_a_partitioner_decides_and_what_it_raises_is_the_callers(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if key == b"odd":
            raise LookupError("no such tenant")
        assert set(available) <= set(every)
        return max(every)

    name = topic(kafka)
    async with producing(tmp_path, kafka, partitioner=partitioner) as producer:
        await producer.partitions_for(name)
        for key in ("a", b"b", None):
            await producer.publish(name, b"v", key=key)
        with pytest.raises(LookupError, match="no such tenant"):
            await producer.publish(name, b"v", key=b"odd")
        await producer.flush(WITHIN_MS)
        assert producer.statistics().accepted == 3
    assert {record.partition for record in await consumed(kafka, name)} == {5}


async def test_an_unknown_topic_and_a_partition_that_is_missing_hold_up_nothing_else(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Both arrive in order once they are there."""
    known = topic(kafka, partitions=1)
    later = f"later-{known}"[:200]
    async with producing(tmp_path, kafka) as producer:
        waiting = [producer.publish_nowait(known, b"%d" % number, partition=1) for number in range(50)]
        for number in range(50):
            await (await producer.publish(known, b"%d" % number, partition=0)).delivered(WITHIN_MS)
            await producer.publish(later, b"%d" % number, key=b"k")
        with pytest.raises(DeliveryPendingError, match=f"no such partition lane={known}/1"):
            await waiting[0].delivered(200)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        await admin.start()
        await admin.create_partitions({known: NewPartitions(2)})
        await admin.close()
        await producer.flush(WITHIN_MS)
    values = [b"%d" % number for number in range(50)]
    for partition in (0, 1):
        assert [r.value for r in await consumed(kafka, known) if r.partition == partition] == values
    assert [r.value for r in await consumed(kafka, later)] == values


# --- receipts, reports, callbacks


async def test_delivered_can_be_asked_for_late_and_twice(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        receipt = await producer.publish(name, b"v", partition=2, context="c")
        early, second = await asyncio.gather(receipt.delivered(WITHIN_MS), receipt.delivered(WITHIN_MS))
        late = await receipt.delivered(timeout_ms=WITHIN_MS)
    assert early == second == late
    assert (late.record_id, late.topic, late.partition, late.offset) == (receipt.record_id, name, 2, 0)
    assert (late.context, late.status, late.error) == ("c", "delivered", None)
    assert receipt.record_id in repr(receipt)


async def test_on_delivery_hears_of_each_record_once_in_the_loop_s_thread_and_of_dead_letters_too(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Over a broker that is frozen for longer than any answer is waited for, so that batches are sent again."""
    assert isinstance(kafka, KafkaCluster)
    name, small = topic(kafka), topic(kafka, partitions=1, config={"max.message.bytes": "1000"})
    told: list[DeliveryReport] = []
    threads: set[int] = set()

    def on_delivery(report: DeliveryReport) -> None:
        threads.add(threading.get_ident())
        told.append(report)

    async with producing(tmp_path, kafka, request_timeout_ms=500, on_delivery=on_delivery) as producer:
        receipts = [await producer.publish(name, b"before", key=b"%d" % number) for number in range(500)]
        await receipts[-1].delivered(WITHIN_MS)
        kafka.nodes[0].pause()
        receipts += [await producer.publish(name, b"while", key=b"%d" % number) for number in range(500)]
        await asyncio.sleep(1.5)
        kafka.nodes[0].resume()
        refused = await producer.publish(small, b"x" * 5000, context="large")
        await producer.flush(WITHIN_MS)
    assert threads == {threading.get_ident()}
    assert sorted(one.record_id for one in told if one.status == "delivered") == sorted(
        one.record_id for one in receipts
    )
    (letter,) = [one for one in told if one.status == "dead_lettered"]
    assert (letter.record_id, letter.topic, letter.partition) == (refused.record_id, small, 0)
    assert (letter.offset, letter.context) == (None, "large")
    assert "too large" in (letter.error or "")
    assert len(await consumed(kafka, name)) == len(receipts)


async def test_without_a_broker_a_receipt_says_why_and_not_to_publish_again(tmp_path: Path) -> None:
    async with producing(tmp_path, None) as producer:
        receipt = await producer.publish("t", b"v")
        for call in (receipt.delivered, producer.flush):
            with pytest.raises(DeliveryPendingError, match=r"do not publish it again: .*127.0.0.1:1") as raised:
                await call(timeout_ms=300)
            assert isinstance(raised.value, KafkaError)
        assert producer.state == "connecting"
        waiting = [asyncio.create_task(one) for one in (receipt.delivered(), producer.flush())]
        await asyncio.sleep(0.05)
        assert await producer.stop(timeout_ms=300) == 1
        for one in waiting:
            with pytest.raises(ClosedError):
                await one


async def test_a_halted_lane_is_said_at_once_and_the_next_start_tries_again(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = topic(kafka, partitions=1, config={"max.message.bytes": "1000"})
    other = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka, stop_timeout_ms=1000, on_permanent_error="halt") as producer:
        refused = await producer.publish(small, b"x" * 5000)
        behind = asyncio.create_task((await producer.publish(small, b"after it")).delivered())
        with pytest.raises(PermanentDeliveryError, match=r"halted until the next start: .*too large"):
            await producer.flush()
        with pytest.raises(PermanentDeliveryError, match="too large"):
            await refused.delivered()
        with pytest.raises(DeliveryPendingError, match="halted"):
            await behind
        assert (producer.state, producer.statistics().lanes_halted) == ("halted", 1)
        await (await producer.publish(other, b"fine")).delivered(WITHIN_MS)
        assert await producer.stop() == 2
    assert "lane_halted" in caplog.text
    async with producing(tmp_path, kafka) as producer:
        await producer.flush(WITHIN_MS)
        assert [one.value async for one in producer.dead_letters.list()] == [b"x" * 5000]
    assert [record.value for record in await consumed(kafka, small)] == [b"after it"]


# --- for code written for aiokafka, and other ways in


async def test_aiokafkas_methods_keep_their_signatures_and_results(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        metadata = await producer.send_and_wait(name, b"value", b"key", 1, 1_700_000_000_000, [("h", b"v")])
        assert isinstance(metadata, RecordMetadata)
        assert (metadata.topic, metadata.partition, metadata.offset) == (name, 1, 0)
        assert (metadata.topic_partition, metadata.timestamp) == ((name, 1), 1_700_000_000_000)
        future = await producer.send(name, value=b"second", partition=1)
        assert (await future).offset == 1
        assert await producer.partitions_for(name) == {0, 1, 2, 3, 4, 5}
        cancelled = asyncio.create_task(producer.send_and_wait(name, b"third", partition=1))
        while producer.statistics().accepted < 3:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await producer.flush()
    assert [record.value for record in await consumed(kafka, name)] == [b"value", b"second", b"third"]


async def test_aiokafkas_methods_end_with_the_request_s_time(tmp_path: Path) -> None:
    async with producing(tmp_path, None, request_timeout_ms=200) as producer:
        with pytest.raises(KafkaTimeoutError, match="kafka is not reached topic=t"):
            await producer.partitions_for("t")
        with pytest.raises(DeliveryPendingError, match="do not publish it again"):
            await producer.send_and_wait("t", b"v")


async def test_fsync_always_accepts_only_what_is_durable_and_refuses_to_hurry(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka, fsync="always") as producer:
        receipts = await asyncio.gather(*(producer.publish(name, b"v", key=b"%d" % n) for n in range(500)))
        assert len({receipt.sequence for receipt in receipts}) == 500
        assert producer.statistics().flushes >= 1
        with pytest.raises(ConfigError, match="publish_nowait"):
            producer.publish_nowait(name, b"v")
        await producer.flush(WITHIN_MS)
    assert len(await consumed(kafka, name)) == 500


# --- life cycle


async def test_stop_is_bounded_without_a_broker_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorecover")
    monkeypatch.chdir(tmp_path)
    producer = RecoverableProducer("wal", bootstrap_servers=NOWHERE)
    assert repr(producer) == f"<RecoverableProducer {tmp_path / 'wal'} created>"
    await producer.start()
    await producer.start()  # a second one changes nothing
    assert repr(producer) == f"<RecoverableProducer {tmp_path / 'wal' / '0'} connecting>"
    for _ in range(10):
        await producer.publish("t", b"v")
    async with asyncio.timeout(10):
        assert await producer.stop(timeout_ms=300) == 10
    assert await producer.stop() == 10
    assert f"started path={tmp_path}/wal/0 producer_id={producer.producer_id}" in caplog.text
    assert "stopped records are left in the ring" in caplog.text
    assert (producer.statistics().pending, producer.state) == (10, "stopped")
    again = RecoverableProducer("wal", bootstrap_servers=NOWHERE)
    await again.start()
    assert await again.stop(timeout_ms=0) == 10, "before they are read"


@pytest.mark.parametrize("turns", [0, 5, 100])
async def test_the_shorter_limit_of_two_stops_counts(tmp_path: Path, turns: int) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    await producer.publish("t", b"v")
    first = asyncio.create_task(producer.stop(timeout_ms=600_000))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert await producer.stop(timeout_ms=0) == 1
        assert await producer.stop(timeout_ms=600_000) == 1
        assert await first == 1


async def test_calls_before_start_and_from_stop_on_are_refused_and_store_nothing(
    tmp_path: Path,
) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)

    async def refused(remedy: str) -> None:
        awaited: list[Callable[[], Any]] = [
            lambda: producer.publish("t", b"bad"),
            lambda: producer.send("t", b"bad"),
            lambda: producer.send_and_wait("t", b"bad"),
            producer.flush,
            producer.source_positions,
            lambda: producer.partitions_for("t"),
        ]
        for call in awaited:
            with pytest.raises(ClosedError, match=remedy):
                await call()
        for plain in (producer.publish_nowait, producer.publish_threadsafe):
            with pytest.raises(ClosedError, match=remedy):
                plain("t", b"bad")

    await refused("not started: use 'async with' or await start")
    with pytest.raises(ClosedError, match="not started"):
        producer.statistics()
    await producer.start()
    for number in range(3):
        await producer.publish("t", b"%d" % number)
    stopping = asyncio.create_task(producer.stop(timeout_ms=300))
    while producer.state != "stopping":  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0)
    await refused("make a new one")
    assert await stopping == 3
    await refused("make a new one")
    with pytest.raises(ClosedError, match="make a new one"):
        await producer.start()


async def test_flushing_an_empty_ring_returns_at_once(tmp_path: Path) -> None:
    async with producing(tmp_path, None) as producer:
        await producer.flush(timeout_ms=5_000)
