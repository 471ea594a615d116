"""The guard over aiokafka: one test for each private attribute and each behaviour that aiorecover relies on.

When an upgrade of aiokafka fails here, the message says what has changed and what rests on it.
"""

import asyncio
import gc
import importlib.metadata
import struct
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.delivery.batch import CODECS, LaneBatch
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.testing import ApiKey, MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

IDENTITY = (0x0102030405060708, 9, 0x0A0B0C0D)
PLACE = TopicPartition("t", 0)


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@asynccontextmanager
async def started(bootstrap_servers: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers, enable_idempotence=True, acks="all", retry_backoff_ms=20, **options
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def batch_of(*values: bytes, codec: int = 0, size: int = 1 << 16) -> LaneBatch:
    batch = LaneBatch(size, codec)
    for number, value in enumerate(values):
        assert batch.add(number, 1_700_000_000_000 + number, b"key", value, [("h", b"1")]) is not None
        batch.count += 1
    return batch


def read(data: bytes | bytearray) -> Any:
    """The batch as aiokafka's own reader, the consumer's, sees it."""
    records = MemoryRecords(bytes(data))
    found = records.next_batch()
    assert isinstance(found, DefaultRecordBatch)
    assert not records.has_next()
    return found


def plain_builder(size: int = 1000, codec: int = 0) -> Any:
    """One of aiokafka's own."""
    return BatchBuilder(size, codec)


def bytes_of(batch: Any) -> Any:
    """What is sent."""
    return batch._build()


async def fresh_producer_id(bootstrap_servers: str) -> int:
    async with started(bootstrap_servers) as producer:
        pid: int = producer._txn_manager._pid_and_epoch.pid
        return pid


async def sent(producer: AIOKafkaProducer, batch: LaneBatch, topic: str, partition: int = 0) -> RecordMetadata:
    async with asyncio.timeout(20):
        metadata: RecordMetadata = await (await producer.send_batch(batch, topic, partition=partition))
        return metadata


async def sent_as(
    producer: AIOKafkaProducer, topic: str, identity: tuple[int, int, int], *values: bytes
) -> RecordMetadata:
    """Send a new batch of ``values`` under an identity of its own."""
    batch = batch_of(*values)
    batch.identify(*identity)
    batch.finish()
    return await sent(producer, batch, topic)


def test_the_installed_aiokafka_is_the_one_that_this_was_written_for() -> None:
    assert importlib.metadata.version("aiokafka") == "0.14.0", "another aiokafka: run this file, then move the pin"


# --- the builder of batches


def test_a_builder_takes_its_size_and_the_number_of_its_codec() -> None:
    for codec in CODECS.values():
        builder = plain_builder(codec=codec)
        builder.append(timestamp=1, key=None, value=b"v")
        assert read(bytes_of(builder)).compression_type in {0, codec}, "the codec is no longer Kafka's number"


def test_the_raw_builder_appends_number_timestamp_key_value_headers_in_this_order() -> None:
    builder = plain_builder()
    assert builder._builder.append(0, 1234, b"k", b"v", [("a", b"1"), ("b", None)]) is not None
    (record,) = read(bytes_of(builder))
    found = (record.offset, record.timestamp, record.key, record.value, record.headers)
    assert found == (0, 1234, b"k", b"v", [("a", b"1"), ("b", None)]), "the arguments of append have changed places"


def test_the_raw_builder_says_none_when_it_is_full_and_takes_a_first_record_of_any_size() -> None:
    builder = plain_builder(100)
    assert builder._builder.append(0, 1, None, b"x" * 5000, []) is not None, (
        "a record above the batch size has no batch"
    )
    assert builder._builder.append(1, 1, None, b"y", []) is None, "a full batch no longer says so with None"
    (record,) = read(bytes_of(builder))
    assert len(record.value) == 5000, "a refused record left traces in the batch"


def test_the_raw_builder_takes_every_timestamp_that_publish_takes() -> None:
    for first, second in ((0, 2**63 - 1), (2**63 - 1, 0), (2**62, 2**62)):
        builder = plain_builder()
        builder._builder.append(0, first, None, b"a", [])
        builder._builder.append(1, second, None, b"b", [])
        assert [record.timestamp for record in read(bytes_of(builder))] == [first, second]


def test_a_builder_builds_once_and_keeps_its_bytes() -> None:
    builder = plain_builder()
    builder.append(timestamp=1, key=None, value=b"v")
    assert builder._buffer is None, "`_buffer` no longer tells whether the batch is built"
    built = bytes_of(builder)
    assert builder._buffer is built
    assert bytes_of(builder) is built, "a batch that is sent again is built again: identities are set in the old bytes"
    assert isinstance(built, bytearray), "the built bytes cannot be changed any more: `identify` patches them"
    assert not hasattr(builder, "_builder"), "the raw builder outlives the building: its memory is counted twice"


def test_a_closed_builder_says_so_and_its_size_is_known_before_it_is_built() -> None:
    builder = plain_builder()
    builder.append(timestamp=1, key=None, value=b"v")
    size = builder.size()
    assert not builder.closed()
    builder.close()
    assert builder.closed(), "an open batch would linger, and `send` would append to it"
    assert len(bytes_of(builder)) == size


def test_the_raw_builder_takes_a_producer_state_until_it_is_built() -> None:
    builder = plain_builder()
    builder._builder.append(0, 1, None, b"v", [])
    builder._builder.set_producer_state(*IDENTITY)
    found = read(bytes_of(builder))
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == IDENTITY


@pytest.mark.parametrize("codec", CODECS.values(), ids=[str(name) for name in CODECS])
def test_checksum_attributes_and_identity_stand_where_identify_writes_them(codec: int) -> None:
    builder = plain_builder(1 << 16, codec)
    for number in range(50):
        builder._builder.append(number, 1, b"key", b"value" * 20, [])
    builder._builder.set_producer_state(*IDENTITY)
    data = bytes(bytes_of(builder))
    assert data[16] == 2, "another format of record batches"
    assert struct.unpack_from(">qhi", data, 43) == IDENTITY, "the identity does not stand at 43 any more"
    assert struct.unpack_from(">I", data, 17) == (calc_crc32c(data[21:]),), "the CRC-32C at 17 is of other bytes"
    assert struct.unpack_from(">h", data, 21)[0] & 7 == codec, "the attributes do not stand at 21 any more"


@pytest.mark.parametrize("codec", CODECS.values(), ids=[str(name) for name in CODECS])
def test_an_identity_set_after_building_gives_the_bytes_of_one_set_before(codec: int) -> None:
    values = [b"%d" % number * 30 for number in range(100)]
    before, after = batch_of(*values, codec=codec), batch_of(*values, codec=codec)
    before.identify(*IDENTITY)
    before.finish()
    expected = bytes(bytes_of(before))
    after.finish()
    built = bytes_of(after)
    for identity in ((1, 2, 3), (-1, -1, -1), IDENTITY):  # again and again
        after.identify(*identity)
        found = read(built)
        assert found.validate_crc()
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == identity == after.identity
    assert bytes(bytes_of(after)) == expected
    assert [record.value for record in read(built)] == values


# --- whom it connects to


@pytest.mark.asyncio
async def test_each_answer_about_the_cluster_is_seen_and_names_it_and_each_connection_is_got_in_one_way(
    mock: MockCluster,
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers, enable_idempotence=True)
    client: Any = producer.client
    update, connect, ids, got = client.cluster.update_metadata, client._get_conn, [], set()

    def updated(metadata: Any) -> None:
        ids.append(metadata.cluster_id)
        update(metadata)

    async def connected(*node: Any, **more: Any) -> Any:
        connection = await connect(*node, **more)
        got.add(connection)
        return connection

    client.cluster.update_metadata, client._get_conn = updated, connected
    await producer.start()
    try:
        assert len(ids) >= 1, "the bootstrap no longer tells the cluster through update_metadata"
        assert set(ids) == {ids[0]}
        assert ids[0].startswith("mockCluster"), "metadata no longer name the cluster"
        assert set(client._conns.values()) <= got, "connections are made in another way: none of them is asked"
        assert got
    finally:
        await producer.stop()


# --- MessageBatch and the accumulator


@pytest.mark.asyncio
async def test_a_producer_state_is_set_once_for_each_sending_through_one_method() -> None:
    calls: list[tuple[Any, ...]] = []

    class Noting(BatchBuilder):  # type: ignore[misc, unused-ignore]
        def _set_producer_state(self, *state: Any) -> None:
            calls.append(state)

    builder: Any = Noting(1000, 0)  # type: ignore[no-untyped-call]
    builder.append(timestamp=1, key=None, value=b"v")
    for number in range(2):
        message = MessageBatch(PLACE, builder, 1.0, 0)
        assert message.retry_count == 0, "the state is set where this is 0"
        message.set_producer_state(7, 8, number)
        message.get_data_buffer()
        message.drain_ready()
    assert calls == [(7, 8, 0), (7, 8, 1)], (
        "the session's identity takes another way into the batch: LaneBatch must too"
    )


@pytest.mark.asyncio
async def test_the_session_s_identity_never_reaches_a_lane_s_batch_built_or_not() -> None:
    batch = batch_of(b"v")
    batch.identify(*IDENTITY)
    batch.finish()
    for _ in range(2):
        message = MessageBatch(PLACE, batch, 1.0, 0)
        message.set_producer_state(1, 1, 1)
        found = read(message.get_data_buffer())
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == IDENTITY


@pytest.mark.asyncio
async def test_a_batch_is_asked_for_its_count_because_an_empty_one_is_never_sent() -> None:
    batch = batch_of(b"a", b"b")
    message = MessageBatch(PLACE, batch, 1.0, 0)
    assert message.record_count == 2
    assert not message.is_empty(), "aiokafka counts records of its own append: it would drop ours without sending"


@pytest.mark.asyncio
async def test_cancelling_the_future_of_a_batch_does_not_cancel_the_batch(mock: MockCluster) -> None:
    mock.create_topic("t")
    async with started(mock.bootstrap_servers) as producer:
        mock.round_trip_ms(300)
        batch = batch_of(b"v")
        batch.identify(await fresh_producer_id(mock.bootstrap_servers), 0, 0)
        batch.finish()
        future = await producer.send_batch(batch, "t", partition=0)
        await asyncio.sleep(0.05)
        (message,) = producer._message_accumulator._pending_batches
        future.cancel()
        mock.round_trip_ms(0)
        metadata = await asyncio.wait_for(asyncio.shield(message.future), 10)
        assert metadata.offset == 0, "the future is not shielded any more: a cancelled lane task would cancel its batch"


@pytest.mark.asyncio
async def test_the_accumulator_takes_a_batch_for_a_place_with_a_time_limit_in_seconds(mock: MockCluster) -> None:
    mock.create_topic("t", partitions=2)
    async with started(mock.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        accumulator = producer._message_accumulator
        mock.round_trip_ms(1000)
        batches = [batch_of(b"v") for _ in range(3)]
        for batch in batches:
            batch.finish()
        in_flight = await accumulator.add_batch(batches[0], TopicPartition("t", 1), 5)
        await asyncio.sleep(0.05)
        await accumulator.add_batch(batches[1], TopicPartition("t", 1), 5)
        with pytest.raises(KafkaTimeoutError):
            await accumulator.add_batch(batches[2], TopicPartition("t", 1), 0.05)
        mock.round_trip_ms(0)
        metadata = await asyncio.wait_for(in_flight, 10)
        assert (metadata.topic, metadata.partition) == ("t", 1), "add_batch no longer gives the future of the batch"


@pytest.mark.asyncio
async def test_every_batch_of_the_accumulator_stands_in_one_of_two_places_with_two_futures(mock: MockCluster) -> None:
    """Those are told that they failed, and that we know, when a session is closed hard."""
    mock.create_topic("t", partitions=2)
    async with started(mock.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        accumulator = producer._message_accumulator
        mock.round_trip_ms(1000)
        for partition in (0, 1):
            batch = batch_of(b"v")
            batch.finish()
            await accumulator.add_batch(batch, TopicPartition("t", partition), 5)
            await asyncio.sleep(0.05)  # the second one stays behind the request of the first
        (in_flight,) = accumulator._pending_batches
        ((queued,),) = accumulator._batches.values()
        assert (in_flight.tp.partition, queued.tp.partition) == (0, 1)
        for message in (in_flight, queued):
            assert not message.future.done()
        assert in_flight._drain_waiter.done(), "a batch in flight is drained"
        assert not queued._drain_waiter.done()
        accumulator.fail_all(KafkaError("given up"))
        for future in (in_flight.future, queued.future, queued._drain_waiter):
            assert isinstance(future.exception(), KafkaError)


@pytest.mark.asyncio
async def test_the_client_follows_a_topic_that_it_is_told_of_and_forgets_the_others(mock: MockCluster) -> None:
    """A new client with no topics knows all of them once: the session tells it of each before it sends."""
    mock.create_topic("t", partitions=1)
    mock.create_topic("other", partitions=1)
    async with started(mock.bootstrap_servers) as producer:
        producer.client.add_topic("other")
        await producer.client.force_metadata_update()
        assert producer.client.cluster.partitions_for_topic("t") is None, "topics that nobody named are kept"
        producer.client.add_topic("t")
        await producer.client.force_metadata_update()
        assert producer.client.cluster.partitions_for_topic("t") == {0}
        assert producer.client.cluster.partitions_for_topic("other") == {0}


@pytest.mark.asyncio
async def test_fail_all_ends_every_batch_queued_or_in_flight_and_refuses_later_ones(mock: MockCluster) -> None:
    mock.create_topic("t", partitions=2)
    async with started(mock.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        mock.round_trip_ms(1000)
        batches = [batch_of(b"v") for _ in range(3)]
        for batch in batches:
            batch.finish()
        in_flight = await producer.send_batch(batches[0], "t", partition=0)
        await asyncio.sleep(0.05)
        queued = await producer.send_batch(batches[1], "t", partition=1)  # behind the request that is under way
        producer._message_accumulator.fail_all(KafkaError("given up"))
        for future in (in_flight, queued):
            assert future.done() or await asyncio.wait({future}, timeout=0.2)
            with pytest.raises(KafkaError, match="given up"):
                future.result()
        with pytest.raises(KafkaError, match="given up"):
            await producer.send_batch(batches[2], "t", partition=0)
        mock.round_trip_ms(0)


# --- the sender


@pytest.mark.asyncio
async def test_the_sender_s_task_is_there_after_start_and_not_before(mock: MockCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers, enable_idempotence=True)
    before = producer._sender.sender_task
    assert before is None, "a producer that never started has a sender: closing hard must cancel it too"
    await producer.start()
    task: Any = producer._sender.sender_task
    assert isinstance(task, asyncio.Task), "its end tells that the session is dead"
    assert not task.done()
    await producer.stop()
    assert task.done()


@pytest.mark.asyncio
async def test_a_cancelled_sender_leaves_its_futures_open_and_its_task_done(mock: MockCluster) -> None:
    """Why the session watches the task: nobody else would tell the lanes."""
    mock.create_topic("t")
    async with started(mock.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        producer._sender.sender_task.cancel()
        await asyncio.wait({producer._sender.sender_task}, timeout=5)
        assert producer._sender.sender_task.done(), "a cancelled sender goes on: closing hard must find another way"
        batch = batch_of(b"v")
        batch.finish()
        future = await producer.send_batch(batch, "t", partition=0)
        await asyncio.wait({future}, timeout=0.2)
        assert not future.done(), "aiokafka fails the batches of a cancelled sender by itself now: less to do for us"
        producer._message_accumulator.fail_all(KafkaError())
        await asyncio.wait({future}, timeout=5)
        future.exception()


@pytest.mark.asyncio
async def test_producer_id_and_epoch_are_known_once_started(mock: MockCluster) -> None:
    async with started(mock.bootstrap_servers) as producer:
        found = producer._txn_manager._pid_and_epoch
        assert found.pid >= 0, "start no longer waits for the producer id: lanes take it from there"
        assert found.epoch >= 0


@pytest.mark.asyncio
async def test_an_idempotent_batch_is_retried_beyond_every_time_limit(mock: MockCluster) -> None:
    mock.create_topic("t")
    async with started(mock.bootstrap_servers, request_timeout_ms=200) as producer:
        mock.push_errors(ApiKey.PRODUCE, *[19] * 20)  # not enough replicas
        batch = batch_of(b"v")
        batch.finish()
        clock = asyncio.get_running_loop().time
        began = clock()
        assert (await sent(producer, batch, "t")).offset == 0, "batches expire now: the lanes must send them again"
        assert clock() - began > 0.3


@pytest.mark.asyncio
async def test_a_batch_without_a_leader_ends_after_the_request_s_time_limit(mock: MockCluster) -> None:
    mock.create_topic("t")
    async with started(mock.bootstrap_servers, request_timeout_ms=500, metadata_max_age_ms=100) as producer:
        await producer.partitions_for("t")
        mock.set_leader("t", 0, None)
        await asyncio.sleep(0.4)
        batch = batch_of(b"v")
        batch.finish()
        with pytest.raises((LeaderNotAvailableError, NotLeaderForPartitionError)):
            await sent(producer, batch, "t")
        assert not producer._sender.sender_task.done()
        mock.set_leader("t", 0, 1)
        assert (await sent(producer, batch, "t")).offset == 0, "the same batch cannot be sent again"


@pytest.mark.asyncio
async def test_a_repeat_that_the_broker_only_recognises_ends_well_without_an_offset(mock: MockCluster) -> None:
    mock.create_topic("t")
    async with started(mock.bootstrap_servers) as producer:
        mock.push_errors(ApiKey.PRODUCE, kafka.DuplicateSequenceNumber.errno)
        batch = batch_of(b"v")
        batch.finish()
        assert (await sent(producer, batch, "t")).offset == -1, "reports take -1 for an offset that is not known"


def test_errors_are_looked_up_by_code_in_one_table_that_can_be_added_to() -> None:
    assert isinstance(kafka.kafka_errors, dict), "codes that aiokafka does not know can no longer be named"
    assert kafka.for_code(10) is kafka.kafka_errors[10]
    assert kafka.for_code(87).errno == 87, "a poison record looks like an accident of the broker again"


# --- the client


@pytest.mark.asyncio
async def test_the_client_learns_of_topics_that_it_is_told_and_tells_its_listeners(mock: MockCluster) -> None:
    mock.create_topic("a", partitions=3)
    mock.create_topic("b", partitions=2)
    async with started(mock.bootstrap_servers) as producer:
        told: list[Any] = []
        producer.client.cluster.add_listener(told.append)
        await producer.client.set_topics({"a"})
        assert told == [producer.client.cluster], "listeners are not called with each metadata update any more"
        assert producer.client.cluster.partitions_for_topic("a") == {0, 1, 2}
        assert producer.client.cluster.partitions_for_topic("b") is None, "an unknown topic is not None any more"
        await producer.client.set_topics({"a", "b"})
        assert producer.client.cluster.available_partitions_for_topic("b") == {0, 1}
        await producer.client.set_topics({"a", "b"})
        assert len(told) == 2, "topics known already are asked for again"
        assert await producer.client.force_metadata_update() is True
        assert len(told) == 3


@pytest.mark.asyncio
async def test_partitions_without_a_leader_are_known_and_not_available(mock: MockCluster) -> None:
    mock.create_topic("t", partitions=2)
    mock.set_leader("t", 1, None)
    async with started(mock.bootstrap_servers) as producer:
        await producer.client.set_topics({"t"})
        assert producer.client.cluster.partitions_for_topic("t") == {0, 1}
        assert producer.client.cluster.available_partitions_for_topic("t") == {0}


@pytest.mark.asyncio
async def test_the_client_closes_alone_and_twice(mock: MockCluster) -> None:
    before = asyncio.all_tasks()
    producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers)
    await producer.start()
    await producer.client.close()
    await producer.client.close()
    producer._sender.sender_task.cancel()
    producer._closed = True
    await asyncio.wait({producer._sender.sender_task}, timeout=5)
    assert asyncio.all_tasks() == before, "closing the client leaves tasks of aiokafka behind"


@pytest.mark.asyncio
async def test_a_producer_marked_as_closed_is_collected_without_complaint(mock: MockCluster) -> None:
    def abandon(*, marked: bool) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers)
        if marked:
            producer._closed = True
        del producer
        gc.collect()

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        abandon(marked=False)
        assert any("Unclosed AIOKafkaProducer" in str(one.message) for one in told), "`_closed` has lost its meaning"
        told.clear()
        abandon(marked=True)
        assert not told, "a session that was closed hard is reported as unclosed"


@pytest.mark.asyncio
async def test_the_cluster_s_id_is_thrown_away(mock: MockCluster) -> None:
    async with started(mock.bootstrap_servers) as producer:
        kept = [name for name in vars(producer.client.cluster) if "cluster_id" in name]
        assert kept == [], "aiokafka keeps the cluster's id now: the session can tell it to the directory"


# --- lanes with identities of their own, on a real broker


@pytest.mark.asyncio
async def test_a_batch_under_a_lane_s_own_identity_is_accepted_beside_the_session_s(
    kafka: Cluster, topic: TopicFactory
) -> None:
    name = topic(kafka, partitions=1)
    lane = Lane(name, 0)
    other = Identity(await fresh_producer_id(kafka.bootstrap_servers), 0)
    async with started(kafka.bootstrap_servers) as producer:
        assert producer._txn_manager._pid_and_epoch.pid != other.producer_id
        for number in range(3):
            lane.open = batch_of(b"%d-a" % number, b"%d-b" % number)
            lane.close_open()
            batch = lane.next()
            assert batch is not None
            lane.identify(batch, other)
            assert batch.identity == (other.producer_id, 0, 2 * number)
            assert (await sent(producer, batch, name)).offset == 2 * number
            lane.acknowledged()
    values = [record.value for record in await read_topic(kafka.bootstrap_servers, name)]
    assert values == [b"0-a", b"0-b", b"1-a", b"1-b", b"2-a", b"2-b"]


@pytest.mark.asyncio
async def test_the_same_batch_sent_again_is_answered_with_its_offset_and_appended_once(
    kafka: Cluster, topic: TopicFactory
) -> None:
    name = topic(kafka, partitions=1)
    identity = (await fresh_producer_id(kafka.bootstrap_servers), 0)
    first, second = batch_of(b"a", b"b"), batch_of(b"c")
    first.identify(*identity, 0)
    second.identify(*identity, 2)
    for batch in (first, second):
        batch.finish()
    async with started(kafka.bootstrap_servers) as producer:
        offsets = [(await sent(producer, batch, name)).offset for batch in (first, first, second, first, second)]
        assert not producer._sender.sender_task.done()
    async with started(kafka.bootstrap_servers) as producer:  # another session, another producer id
        offsets.append((await sent(producer, second, name)).offset)
    assert offsets == [0, 0, 2, 0, 2, 2]
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", CODECS.values(), ids=[str(name) for name in CODECS])
@pytest.mark.asyncio
async def test_a_batch_identified_after_it_was_built_is_accepted(
    kafka: Cluster, topic: TopicFactory, codec: int
) -> None:
    """The broker checks the CRC: a wrong one would be CorruptRecord, retried for ever."""
    name = topic(kafka, partitions=1)
    pid = await fresh_producer_id(kafka.bootstrap_servers)
    batch = batch_of(b"a" * 500, b"b" * 500, codec=codec)
    batch.identify(pid, 0, 0)
    batch.finish()
    async with started(kafka.bootstrap_servers) as producer:
        assert (await sent(producer, batch, name)).offset == 0
        batch.identify(pid, 1, 0)  # a fresh identity: the broker takes it for another batch
        assert (await sent(producer, batch, name)).offset == 2
        assert (await sent(producer, batch, name)).offset == 2
        batch.identify(pid, 0, 2)
        with pytest.raises(ProducerFenced):  # the old epoch is gone, on this batch only
            await sent(producer, batch, name)
        assert (await sent_as(producer, name, (pid, 1, 2), b"c")).offset == 4
    assert [len(record.value or b"") for record in await read_topic(kafka.bootstrap_servers, name)] == [500] * 4 + [1]


@pytest.mark.asyncio
async def test_sequences_wrap_at_two_to_the_31st_as_the_broker_wants_them(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka, partitions=1)
    lane = Lane(name, 0)
    lane.identity = Identity(await fresh_producer_id(kafka.bootstrap_servers), 0)
    lane.sequence = 2**31 - 3
    across, behind = batch_of(b"0", b"1", b"2", b"3", b"4"), batch_of(b"5", b"6")
    async with started(kafka.bootstrap_servers) as producer:
        for batch, base, offset in ((across, 2**31 - 3, 0), (behind, 2, 5)):
            lane.identify(batch, lane.identity)
            batch.finish()
            assert batch.identity == (lane.identity.producer_id, 0, base)
            assert read(bytes_of(batch)).base_sequence == base
            assert (await sent(producer, batch, name)).offset == offset
            assert (await sent(producer, batch, name)).offset == offset  # a repeat is recognised, across the wrap too
        assert lane.sequence == 4
        assert (await sent(producer, across, name)).offset == 0
        with pytest.raises(OutOfOrderSequenceNumber):
            await sent_as(producer, name, (lane.identity.producer_id, 0, 2**31 - 1), b"x")
        assert (await sent_as(producer, name, (lane.identity.producer_id, 0, 4), b"7")).offset == 7
    values = [record.value for record in await read_topic(kafka.bootstrap_servers, name)]
    assert values == [b"%d" % number for number in range(8)]


@pytest.mark.asyncio
async def test_a_gap_is_refused_and_the_right_sequence_still_works_in_the_same_session(
    kafka: Cluster, topic: TopicFactory
) -> None:
    name = topic(kafka, partitions=1)
    pid = await fresh_producer_id(kafka.bootstrap_servers)
    async with started(kafka.bootstrap_servers) as producer:
        assert (await sent_as(producer, name, (pid, 0, 0), b"a")).offset == 0
        with pytest.raises(OutOfOrderSequenceNumber):
            await sent_as(producer, name, (pid, 0, 9), b"x")
        assert not producer._sender.sender_task.done(), "a gap ends the whole session: other lanes suffer for one"
        assert (await sent_as(producer, name, (pid, 0, 1), b"b")).offset == 1


# --- repeats by aiokafka itself


@pytest.mark.asyncio
@pytest.mark.parametrize("refusals", [0, 1, 3])
async def test_a_batch_is_built_once_for_each_request_so_repeats_can_be_counted(
    mock: MockCluster, refusals: int
) -> None:
    mock.create_topic("t")
    async with started(mock.bootstrap_servers) as producer:
        batch = batch_of(b"v")
        batch.identify(await fresh_producer_id(mock.bootstrap_servers), 0, 0)
        batch.finish()
        mock.track_requests()
        mock.push_errors(ApiKey.PRODUCE, *[kafka.NotEnoughReplicasError.errno] * refusals)
        batch.begin_attempt(1, 1)
        await sent(producer, batch, "t")
        requests = [one for one in mock.requests() if one.api_key == ApiKey.PRODUCE]
        assert len(requests) == refusals + 1, "aiokafka no longer repeats a batch by itself"
        assert batch.requests == refusals + 1, "`_build` is no longer called once for each request"
        assert batch.possibly is (refusals > 0), "a batch sent more than once is possibly persisted"


@pytest.mark.asyncio
async def test_what_aiokafka_repeated_before_the_refusal_leaves_the_batch_possibly_persisted(mock: MockCluster) -> None:
    """The refusal is the last answer, and the only one that is shown."""
    mock.create_topic("t")
    async with started(mock.bootstrap_servers) as producer:
        batch = batch_of(b"v")
        batch.identify(await fresh_producer_id(mock.bootstrap_servers), 0, 0)
        batch.finish()
        mock.push_errors(
            ApiKey.PRODUCE, kafka.NotEnoughReplicasAfterAppendError.errno, kafka.MessageSizeTooLargeError.errno
        )
        batch.begin_attempt(1, 1)
        with pytest.raises(kafka.MessageSizeTooLargeError):
            await sent(producer, batch, "t")
        assert batch.possibly
