"""Records that a real broker refuses for good, of each kind: found, kept, and the others delivered in order.

A policy is no kind of it: Kafka says POLICY_VIOLATION of topics, settings and deletions, never of what is produced
(other brokers may; `test_refused` answers it in their place).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from aiorecover import DeadLetter, PermanentDeliveryError, RecoverableProducer
from aiorecover.dead_letters import REQUEUED_HEADER
from tests.support.admin import configure_topic, until, until_taken_without_key
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

STAMPED = 1_800_000_000_000 - 365 * 86_400_000

Publish = Callable[[RecoverableProducer, str, int, bool], Any]


def too_large(producer: RecoverableProducer, topic: str, number: int, poison: bool) -> Any:
    return producer.publish_nowait(topic, b"%d " % number + (b"x" * 60_000 if poison else b""), key=b"k")


def years_ago(producer: RecoverableProducer, topic: str, number: int, poison: bool) -> Any:
    return producer.publish_nowait(topic, b"%d " % number, key=b"k", timestamp_ms=1 if poison else None)


def without_key(producer: RecoverableProducer, topic: str, number: int, poison: bool) -> Any:
    return producer.publish_nowait(topic, b"%d " % number, key=None if poison else b"%d" % number)


KINDS = [
    pytest.param(too_large, {"max.message.bytes": "50000"}, "MessageSizeTooLargeError", id="too large"),
    pytest.param(years_ago, {"message.timestamp.before.max.ms": "3600000"}, "InvalidTimestampError", id="timestamp"),
    pytest.param(without_key, {"cleanup.policy": "compact"}, "InvalidRecordError", id="no key"),
]


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


async def numbers(kafka: Cluster, topic: str) -> list[int]:
    return [int((record.value or b"").split()[0]) for record in await read_topic(kafka.bootstrap_servers, topic)]


@pytest.mark.parametrize(("publish", "config", "error"), KINDS)
async def test_one_poison_record_in_ten_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path, publish: Publish, config: dict[str, str], error: str
) -> None:
    name = topic(kafka3, partitions=1, config=config)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka3.bootstrap_servers) as producer:
        receipts = []
        for number in range(10_000):
            receipts.append(publish(producer, name, number, number == 3333))
            if number % 200 == 199:
                await asyncio.sleep(0)
        await producer.flush(timeout_ms=40_000)
        with pytest.raises(PermanentDeliveryError, match=error):
            await receipts[3333].delivered(timeout_ms=1000)
        statistics = producer.statistics()
        (letter,) = await letters_of(producer)
    assert (letter.record_id, letter.error, letter.persisted) == (receipts[3333].record_id, error, "not")
    assert await numbers(kafka3, name) == [number for number in range(10_000) if number != 3333]
    assert (statistics.delivered, statistics.dead_lettered, statistics.pending) == (9_999, 1, 0)
    assert statistics.rebuilds == 0, "all of it happens in one session"


@pytest.mark.parametrize(("publish", "config", "error"), KINDS)
async def test_only_poison_becomes_dead_letters_and_the_lane_lives_on(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path, publish: Publish, config: dict[str, str], error: str
) -> None:
    name = topic(kafka3, partitions=1, config=config)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka3.bootstrap_servers) as producer:
        for number in range(50):
            publish(producer, name, number, True)
        await producer.flush(timeout_ms=40_000)
        letters = await letters_of(producer)
        publish(producer, name, 50, False)
        await producer.flush(timeout_ms=40_000)
    assert [int((letter.value or b"").split()[0]) for letter in letters] == list(range(50))
    assert {letter.error for letter in letters} == {error}
    assert await numbers(kafka3, name) == [50]


async def test_a_topic_s_limit_below_the_batch_size_makes_smaller_batches(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"max.message.bytes": "10000"})
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in range(2000):
            producer.publish_nowait(name, b"%d " % number + b"x" * 100)
        await producer.flush(timeout_ms=40_000)
        assert await letters_of(producer) == []
    assert await numbers(kafka, name) == list(range(2000))


async def test_a_dead_letter_arrives_in_its_topic_with_the_usual_headers(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, dead = topic(kafka, partitions=1, config={"cleanup.policy": "compact"}), topic(kafka, partitions=1)
    began_ms = int(time.time() * 1000)
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=kafka.bootstrap_servers, dead_letter_topic=dead
    ) as producer:
        receipt = await producer.publish(name, b"no key", headers=[("mine", b"1")], timestamp_ms=STAMPED)
        with pytest.raises(PermanentDeliveryError):
            await receipt.delivered(timeout_ms=20_000)
        async with asyncio.timeout(20):
            while not (found := await read_topic(kafka.bootstrap_servers, dead)):  # noqa: ASYNC110 - Kafka tells nobody
                await asyncio.sleep(0.1)
    (copy,) = found
    headers = {name: value or b"" for name, value in copy.headers}
    assert (copy.key, copy.value) == (None, b"no key")
    assert headers.pop("aiorecover-id").decode() == copy.record_id != receipt.record_id, "the copy is a record itself"
    assert began_ms <= int(headers.pop("aiorecover-dlq-time")) <= time.time() * 1000
    assert headers.pop("__connect.errors.exception.message").startswith(b"the broker's validation refuses the record")
    assert headers == {
        "mine": b"1",
        "__connect.errors.topic": name.encode(),
        "__connect.errors.partition": b"0",
        "__connect.errors.exception.class.name": b"InvalidRecordError",
        "aiorecover-dlq-id": receipt.record_id.encode(),
        "aiorecover-dlq-timestamp": b"%d" % STAMPED,
        "aiorecover-dlq-attempts": b"1",
    }


async def test_a_letter_that_is_requeued_after_its_topic_was_mended_arrives_and_names_the_id_that_it_had(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"cleanup.policy": "compact"})
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        refused = await producer.publish(name, b"no key", headers=[("mine", b"1")], timestamp_ms=STAMPED)
        with pytest.raises(PermanentDeliveryError):
            await refused.delivered(timeout_ms=20_000)
        await configure_topic(kafka.bootstrap_servers, name, {"cleanup.policy": "delete", "retention.ms": "-1"})
        await until_taken_without_key(kafka.bootstrap_servers, name)
        assert await producer.dead_letters.requeue() == 1
        await producer.flush(timeout_ms=40_000)
        assert await letters_of(producer) == []
        statistics = producer.statistics()
    probe, *found = await read_topic(kafka.bootstrap_servers, name)
    assert probe.value == b"probe"
    (record,) = found
    assert (record.key, record.value, record.timestamp_ms) == (None, b"no key", STAMPED)
    headers = dict(record.headers)
    assert headers["mine"] == b"1"
    assert headers[REQUEUED_HEADER] == refused.record_id.encode() != (record.record_id or "").encode()
    assert (statistics.delivered, statistics.dead_lettered, statistics.pending) == (1, 1, 0)


async def test_a_record_for_one_of_kafka_s_own_topics_is_a_dead_letter_and_harms_no_other(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:  # Kafka makes the topic when somebody asks who keeps a group's offsets
        await until_answered(lambda: admin.find_coordinator("a-group"))
    finally:
        await admin.close()
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        refused = await producer.publish("__consumer_offsets", b"0", key=b"k", partition=0)
        await producer.publish(name, b"1", key=b"k")
        await producer.flush(timeout_ms=40_000)
        with pytest.raises(PermanentDeliveryError, match="InvalidTopicError"):
            await refused.delivered(timeout_ms=1000)
    assert await numbers(kafka, name) == [1]


async def until_answered(ask: Callable[[], Awaitable[object]]) -> None:
    async def attempt() -> bool:
        await ask()
        return True

    await until(attempt, timeout_s=30, what="no coordinator")


async def test_what_grew_old_in_an_outage_waits_until_the_topic_takes_it_and_is_no_dead_letter(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit_ms = 3_000
    name = topic(kafka, partitions=2, config={"message.timestamp.before.max.ms": str(limit_ms)})
    old, poison, young = range(5_000), 5_000, range(5_001, 5_101)
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=kafka.bootstrap_servers, retry_backoff_max_ms=500
    ) as producer:
        await producer.publish(name, b"0", partition=1)
        await producer.flush(timeout_ms=40_000)
        kafka.nodes[0].kill()
        for number in old:
            await producer.publish(name, b"%d" % number, partition=0)
        refused = await producer.publish(name, b"%d" % poison, partition=0, timestamp_ms=1)
        await asyncio.sleep(limit_ms / 1000 + 1)
        await asyncio.to_thread(kafka.heal)
        for number in young:
            await producer.publish(name, b"%d" % number, partition=0)
        async with asyncio.timeout(60):
            while "kafka refuses timestamps that were right" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await (await producer.publish(name, b"1", partition=1)).delivered(timeout_ms=40_000)
        await asyncio.sleep(2)
        assert await letters_of(producer) == []
        assert producer.statistics().pending == len(old) + 1 + len(young)
        await configure_topic(kafka.bootstrap_servers, name, {"message.timestamp.before.max.ms": "86400000"})
        await producer.flush(timeout_ms=40_000)
        (letter,) = await letters_of(producer)
    assert letter.record_id == refused.record_id
    found = await read_topic(kafka.bootstrap_servers, name)
    assert [int(record.value or b"") for record in found if record.partition == 0] == [*old, *young]
