"""The public interface against a real broker: what a user writes, and what comes back."""

import asyncio
import dataclasses
import logging
import threading
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
    Receipt,
    RecoverableProducer,
    WalFullError,
)
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, Consumed, judge, read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there


@asynccontextmanager
async def producing(wal: Path, cluster: Cluster, **options: Any) -> AsyncIterator[RecoverableProducer]:
    async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
        yield producer


async def consumed(cluster: Cluster, topic: str) -> list[Consumed]:
    return await read_topic(cluster.bootstrap_servers, topic)


async def fill(producer: RecoverableProducer, name: str) -> int:
    """Publish numbered records until the ring refuses; how many it took."""
    for stored in range(10_000):
        try:
            await producer.publish(name, b"%06d" % stored + b"x" * 1000)
        except WalFullError:
            return stored
    pytest.fail("the ring was never full")


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Order:
    number: int


class Person(pydantic.BaseModel):
    name: str


async def test_a_published_record_arrives_with_everything_it_was_given(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        receipt = await producer.publish(
            name, b"value", key=b"key", partition=3, timestamp_ms=1_700_000_000_123, headers=[("a", b"1"), ("b", None)]
        )
        report = await receipt.delivered(timeout_ms=20_000)
    (record,) = await consumed(kafka, name)
    assert (record.key, record.value, record.partition, record.timestamp_ms) == (b"key", b"value", 3, 1_700_000_000_123)
    assert list(record.headers)[:2] == [("a", b"1"), ("b", None)]
    assert record.record_id == receipt.record_id == report.record_id
    assert (report.topic, report.partition, report.offset) == (name, 3, record.offset)
    assert (report.status, report.timestamp_ms, report.error) == ("delivered", 1_700_000_000_123, None)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (b"raw", b"raw"),
        (bytearray(b"ba"), b"ba"),
        (memoryview(b"mv"), b"mv"),
        ("grüße", "grüße".encode()),
        (None, None),
        (b"", b""),
        ({"id": 1}, b'{"id":1}'),
        ([1, "a", None], b'[1,"a",null]'),
        (Point(1), b'{"x":1}'),
        (Order(7), b'{"number":7}'),
        (Person(name="x"), b'{"name":"x"}'),
    ],
)
async def test_values_arrive_as_bytes_text_or_json(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, value: object, wire: bytes | None
) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka) as producer:
        await producer.publish(name, value, key="k")
        await producer.flush(timeout_ms=20_000)
    (record,) = await consumed(kafka, name)
    assert record.value == wire
    assert record.key == b"k"


async def test_null_and_empty_stay_different(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka) as producer:
        for key, value in ((None, b""), (b"", b""), (b"", None), (b"k", None)):
            await producer.publish(name, value, key=key)
        await producer.flush(timeout_ms=20_000)
    assert [(r.key, r.value) for r in await consumed(kafka, name)] == [
        (None, b""),
        (b"", b""),
        (b"", None),
        (b"k", None),
    ]


class _Suffixing:
    def serialize(self, topic: str, value: object, headers: object) -> bytes:
        return f"{topic}|{value}|{headers}".encode()


async def test_serializers_are_called_as_given(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    async with producing(
        tmp_path, kafka, value_serializer=_Suffixing(), key_serializer=lambda key: str(key).encode()
    ) as producer:
        await producer.publish(name, b"v", key=12)  # type: ignore[arg-type]
        await producer.flush(timeout_ms=20_000)
    (record,) = await consumed(kafka, name)
    assert (record.key, record.value) == (b"12", f"{name}|b'v'|None".encode())


async def test_keys_go_where_kafkas_own_clients_send_them(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka)
    keys = [f"key-{number}".encode() for number in range(100)]
    async with producing(tmp_path, kafka) as producer:
        for key in keys:
            await producer.publish(name, b"v", key=key)
        await producer.flush(timeout_ms=20_000)
    found = {record.key: record.partition for record in await consumed(kafka, name)}
    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 6 for key in keys}


async def test_a_partitioner_with_aiokafkas_signature_decides(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka, partitioner=lambda key, every, available: max(every)) as producer:
        for key in (b"a", b"b", None):
            await producer.publish(name, b"v", key=key)
        await producer.flush(timeout_ms=20_000)
    assert {record.partition for record in await consumed(kafka, name)} == {5}


async def test_a_hundred_thousand_records_arrive_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    accepted = []
    async with producing(tmp_path, kafka) as producer:
        for number in range(100_000):
            key, value = b"k%d" % (number % 500), b"%d" % number
            receipt = await producer.publish(name, value, key=key)
            accepted.append(Accepted(receipt.record_id, key, value))
        await producer.flush(timeout_ms=60_000)
        figures = producer.statistics()
    verdict = judge(accepted, await consumed(kafka, name))
    assert verdict.ok, str(verdict)
    assert verdict.repeated == 0
    assert (figures.accepted, figures.delivered, figures.pending) == (100_000, 100_000, 0)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_every_compression_of_kafka_works(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, compression: str
) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka, compression_type=compression) as producer:
        for number in range(1000):
            await producer.publish(name, b"x" * 500 + b"%d" % number)
        await producer.flush(timeout_ms=20_000)
    assert [r.value for r in await consumed(kafka, name)] == [b"x" * 500 + b"%d" % number for number in range(1000)]


async def test_on_delivery_is_called_for_each_record_with_its_context(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    plain: list[DeliveryReport] = []
    async with producing(tmp_path / "a", kafka, on_delivery=plain.append) as producer:
        for number in range(50):
            await producer.publish(name, b"v", key=b"%d" % number, context={"n": number, "tags": ["a"]})
        await producer.flush(timeout_ms=20_000)
    assert sorted(report.context["n"] for report in plain) == list(range(50))
    assert all(report.context["tags"] == ["a"] and report.offset is not None for report in plain)

    awaited: list[str] = []

    async def on_delivery(report: DeliveryReport) -> None:
        await asyncio.sleep(0)
        awaited.append(report.record_id)

    async with producing(tmp_path / "b", kafka, on_delivery=on_delivery) as producer:
        receipts = [await producer.publish(name, b"v") for _ in range(10)]
        await producer.flush(timeout_ms=20_000)
    assert sorted(awaited) == sorted(receipt.record_id for receipt in receipts)


async def test_a_failing_on_delivery_is_logged_and_delivery_goes_on(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(report: DeliveryReport) -> None:
        raise ValueError(report.record_id)

    async with producing(tmp_path, kafka, on_delivery=broken) as producer:
        for _ in range(3):
            await producer.publish(topic(kafka), b"v")
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
    assert (figures.callback_errors, figures.delivered) == (3, 3)
    assert "on_delivery failed" in caplog.text


async def test_context_and_reports_are_the_same_after_a_restart(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    first = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await first.start()
    receipt = await first.publish(name, b"v", key=b"k", context={"at": (1, 2)}, timestamp_ms=5)
    assert await first.stop(timeout_ms=500) == 1
    reports: list[DeliveryReport] = []
    async with producing(tmp_path, kafka, on_delivery=reports.append) as second:
        await second.flush(timeout_ms=20_000)
        assert second.statistics().recovered == 1
        assert second.epoch == receipt.epoch + 1
    (report,) = reports
    assert (report.record_id, report.context, report.timestamp_ms) == (receipt.record_id, {"at": [1, 2]}, 5)


async def test_delivered_can_be_asked_for_late_and_twice(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        receipt = await producer.publish(name, b"v", partition=2, context="c")
        early, second = await asyncio.gather(receipt.delivered(20_000), receipt.delivered(20_000))
        late = await receipt.delivered(timeout_ms=20_000)
    assert early == second == late
    assert (late.partition, late.offset, late.context) == (2, 0, "c")


async def test_delivered_times_out_without_a_broker_and_says_not_to_publish_again(tmp_path: Path) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=500) as producer:
        receipt = await producer.publish("t", b"v")
        with pytest.raises(DeliveryPendingError, match="do not publish it again") as raised:
            await receipt.delivered(timeout_ms=50)
        assert receipt.record_id in str(raised.value)
        assert isinstance(raised.value, KafkaError)
        with pytest.raises(DeliveryPendingError):
            await producer.flush(timeout_ms=50)
        waiting = asyncio.create_task(receipt.delivered())
        await asyncio.sleep(0.05)
        assert await producer.stop(timeout_ms=300) == 1
        with pytest.raises(ClosedError):
            await waiting


async def test_aiokafkas_methods_keep_their_signatures_and_results(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        metadata = await producer.send_and_wait(name, b"value", b"key", 1, 1_700_000_000_000, [("h", b"v")])
        assert isinstance(metadata, RecordMetadata)
        assert (metadata.topic, metadata.partition, metadata.offset) == (name, 1, 0)
        assert metadata.topic_partition == (name, 1)
        future = await producer.send(name, value=b"second", partition=1)
        assert (await future).offset == 1
        assert await producer.partitions_for(name) == {0, 1, 2, 3, 4, 5}
        await producer.flush()
    assert [record.value for record in await consumed(kafka, name)] == [b"value", b"second"]


async def test_partitions_for_a_topic_nobody_tells_of_ends_with_aiokafkas_time_out(tmp_path: Path) -> None:
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, request_timeout_ms=200, stop_timeout_ms=300
    ) as producer:
        with pytest.raises(KafkaTimeoutError, match="topic=t"):
            await producer.partitions_for("t")


async def test_send_and_wait_cancelled_delivers_all_the_same(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka, linger_ms=200) as producer:
        waiting = asyncio.create_task(producer.send_and_wait(name, b"v"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await producer.flush(timeout_ms=20_000)
    assert [record.value for record in await consumed(kafka, name)] == [b"v"]


async def test_one_unknown_topic_does_not_hold_up_the_others(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    known = topic(kafka, partitions=1)
    later = f"later-{known}"[:200]
    async with producing(tmp_path, kafka) as producer:
        for number in range(50):
            await producer.publish(known, b"%d" % number)
            await producer.publish(later, b"%d" % number, key=b"k")
        await producer.flush(timeout_ms=30_000)
    assert [r.value for r in await consumed(kafka, known)] == [b"%d" % number for number in range(50)]
    assert [r.value for r in await consumed(kafka, later)] == [b"%d" % number for number in range(50)]


async def test_a_partition_that_comes_later_is_caught_up_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka) as producer:
        for number in range(300):  # the metadata is not known yet: these are accepted
            producer.publish_nowait(name, b"%d" % number, partition=number % 2)
        await asyncio.sleep(1)
        assert producer.statistics().delivered == 150
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        await admin.start()
        await admin.create_partitions({name: NewPartitions(2)})
        await admin.close()
        await producer.flush(timeout_ms=30_000)
    found = await consumed(kafka, name)
    assert [int(r.value or b"") for r in found if r.partition == 0] == list(range(0, 300, 2))
    assert [int(r.value or b"") for r in found if r.partition == 1] == list(range(1, 300, 2))


async def test_a_refused_batch_halts_its_lane_loudly_and_no_other(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = topic(kafka, partitions=1, config={"max.message.bytes": "1000"})
    other = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka, stop_timeout_ms=1000, on_permanent_error="halt") as producer:
        refused = await producer.publish(small, b"x" * 5000)
        with pytest.raises(PermanentDeliveryError, match="halted"):
            await producer.flush(timeout_ms=20_000)
        assert producer.state == "halted"
        assert (await (await producer.publish(other, b"fine")).delivered(20_000)).offset == 0
        with pytest.raises(PermanentDeliveryError, match="MessageSizeTooLarge"):
            await refused.delivered(timeout_ms=1000)
        assert await producer.stop() == 1
    assert "halted" in caplog.text
    assert await consumed(kafka, small) == []


async def test_a_full_ring_refuses_and_goes_on_once_delivery_freed_it(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    options = {"slot_bytes": 65536, "wal_max_bytes": 65536 * 6, "max_request_size": 16384, "max_batch_size": 16384}
    first = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options)
    await first.start()
    stored = await fill(first, name)
    assert stored > 200
    assert await first.stop(timeout_ms=300) == stored
    async with producing(tmp_path, kafka, on_full="wait", checkpoint_interval_ms=100, **options) as second:
        for number in range(stored, stored + 1000):
            await second.publish(name, b"%06d" % number + b"x" * 1000)
        await second.flush(timeout_ms=30_000)
        assert second.statistics().bytes_allocated <= options["wal_max_bytes"]  # of the three rings together
    assert [int((r.value or b"")[:6]) for r in await consumed(kafka, name)] == list(range(stored + 1000))


async def test_waiting_for_room_ends_with_the_time_limit(tmp_path: Path) -> None:
    options = {"slot_bytes": 65536, "wal_max_bytes": 65536 * 6, "max_request_size": 16384, "max_batch_size": 16384}
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, on_full="wait", full_timeout_ms=200, stop_timeout_ms=200, **options
    ) as producer:
        assert 200 < await fill(producer, "t") < 1000


async def test_fsync_always_accepts_only_what_is_durable_and_refuses_to_hurry(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka, fsync="always") as producer:
        receipts = await asyncio.gather(*(producer.publish(name, b"v", key=b"%d" % n) for n in range(500)))
        assert len({receipt.sequence for receipt in receipts}) == 500
        with pytest.raises(ConfigError, match="publish_nowait"):
            producer.publish_nowait(name, b"v")
        await producer.flush(timeout_ms=20_000)
    assert len(await consumed(kafka, name)) == 500


async def test_workers_of_one_wal_dir_take_a_directory_each(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as first, producing(tmp_path, kafka) as second:
        assert first.wal_path is not None
        assert second.wal_path is not None
        assert {first.wal_path.name, second.wal_path.name} == {"0", "1"}
        assert first.producer_id != second.producer_id
        await first.publish(name, b"1")
        await second.publish(name, b"2")
    assert sorted(record.value or b"" for record in await consumed(kafka, name)) == [b"1", b"2"]


async def test_after_stop_no_task_thread_descriptor_or_mapping_is_left(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    def held() -> set[str]:
        return {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            if str(tmp_path) in line
        }

    before = {task for task in asyncio.all_tasks() if not task.done()}
    threads = set(threading.enumerate())
    async with producing(tmp_path, kafka) as producer:
        await (await producer.publish(topic(kafka), b"v")).delivered(20_000)
        assert held()
        assert set(threading.enumerate()) > threads
    assert {task for task in asyncio.all_tasks() if not task.done()} == before
    assert set(threading.enumerate()) <= threads
    assert not held()
    opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [path for path in opened if str(tmp_path) in str(path)]


async def test_stop_is_bounded_without_a_broker_and_says_what_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    for _ in range(10):
        await producer.publish("t", b"v")
    async with asyncio.timeout(10):
        assert await producer.stop(timeout_ms=300) == 10
    assert await producer.stop() == 10
    assert "records are left in the ring" in caplog.text
    assert producer.statistics().pending == 10
    assert producer.state == "stopped"


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 5, 100])
async def test_of_two_stops_the_shorter_limit_counts(tmp_path: Path, turns: int, cancelled: bool) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    await producer.publish("t", b"v")
    first = asyncio.create_task(producer.stop(timeout_ms=600_000))
    for _ in range(turns):
        await asyncio.sleep(0)
    if cancelled:
        first.cancel()
    async with asyncio.timeout(30):
        assert await producer.stop(timeout_ms=0) == 1
        assert await producer.stop(timeout_ms=600_000) == 1
        await asyncio.wait({first})
    assert first.cancelled() is cancelled


async def test_publishing_outside_start_and_stop_is_refused_in_plain_words(tmp_path: Path) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=200)
    calls: list[Callable[[], Any]] = [
        lambda: producer.publish_nowait("t", b"v"),
        lambda: producer.publish_threadsafe("t", b"v"),
        producer.statistics,
    ]
    with pytest.raises(ClosedError, match="not started"):
        await producer.publish("t", b"v")
    for call in calls:
        with pytest.raises(ClosedError, match="not started"):
            call()
    await producer.start()
    await producer.start()  # a second start changes nothing
    await producer.publish("t", b"v")
    await producer.stop()
    with pytest.raises(ClosedError, match="stopped"):
        await producer.publish("t", b"v")
    with pytest.raises(ClosedError, match="stopped"):
        producer.publish_nowait("t", b"v")
    with pytest.raises(ClosedError, match="make a new one"):
        await producer.start()


async def test_a_producer_shows_its_directory_and_its_state(tmp_path: Path) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers="localhost:1", stop_timeout_ms=100)
    assert repr(producer) == f"<RecoverableProducer {tmp_path} created>"
    async with producer:
        assert repr(producer) == f"<RecoverableProducer {tmp_path / '0'} connecting>"
    assert repr(producer) == f"<RecoverableProducer {tmp_path / '0'} stopped>"


async def test_flushing_an_empty_ring_returns_at_once(tmp_path: Path) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=300) as producer:
        await producer.flush(timeout_ms=5_000)


async def test_a_flush_that_waits_ends_with_the_producer(tmp_path: Path) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    await producer.publish("t", b"v")
    waiting = asyncio.create_task(producer.flush())
    await asyncio.sleep(0.05)
    assert await producer.stop(timeout_ms=300) == 1
    with pytest.raises(ClosedError, match="next start"):
        await waiting


async def test_the_log_names_the_directory_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorecover")
    monkeypatch.chdir(tmp_path)
    async with RecoverableProducer("wal", bootstrap_servers=NOWHERE, stop_timeout_ms=100) as producer:
        receipt = await producer.publish("t", b"v")
        assert isinstance(receipt, Receipt)
        assert receipt.record_id in repr(receipt)
    assert f"path={tmp_path}/wal/0" in caplog.text
