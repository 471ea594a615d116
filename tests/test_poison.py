"""Records that a real broker refuses for good, of each kind: found, kept, and the others delivered in order."""

from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeadLetter, PermanentDeliveryError, RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

WITHIN_MS = 40_000
COUNT, POISON = 4000, (0, 1333, 1334, 3999)

LARGE: tuple[Any, ...] = {"value": b"9999 " + b"x" * 60_000}, {"max.message.bytes": "50000"}, "too large"
KINDS = [
    pytest.param(*LARGE, id="size"),
    pytest.param({"timestamp_ms": 1}, {"message.timestamp.before.max.ms": "3600000"}, "the timestamp", id="timestamp"),
    pytest.param({"key": None}, {"cleanup.policy": "compact"}, "validation refuses the record", id="key"),
]


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


async def numbers(kafka: Cluster, topic: str) -> list[int]:
    found = await read_topic(kafka.bootstrap_servers, topic, isolation_level="read_committed")
    return [int((record.value or b"").split()[0]) for record in found]


@pytest.mark.parametrize(("poison", "config", "error"), KINDS)
async def test_poison_becomes_dead_letters_and_copies_and_the_others_arrive_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, poison: dict[str, Any], config: dict[str, str], error: str
) -> None:
    await bury(kafka, topic, tmp_path, poison, config, error)


async def test_poison_in_transactions_becomes_dead_letters_too(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Refused for its size; without a key: tests/crash/test_letters.py."""
    await bury(kafka, topic, tmp_path, *LARGE, guarantee="exactly_once")


async def bury(
    kafka: Cluster,
    topic: TopicFactory,
    wal: Path,
    poison: dict[str, Any],
    config: dict[str, str],
    error: str,
    **options: Any,
) -> None:
    name, dead, servers = topic(kafka, 1, config=config), topic(kafka, 1), kafka.bootstrap_servers
    async with RecoverableProducer(wal, bootstrap_servers=servers, dead_letter_topic=dead, **options) as producer:
        receipts = []
        for number in range(COUNT):
            fields: dict[str, Any] = {"value": b"%d " % number, "key": b"k"}
            receipts.append(await producer.publish(name, **fields | (poison if number in POISON else {})))
        await producer.flush(WITHIN_MS)
        with pytest.raises(PermanentDeliveryError, match=error):
            await receipts[POISON[1]].delivered(1000)
        refused = [receipts[number].record_id for number in POISON]
        letters = await letters_of(producer)
        assert [letter.record_id for letter in letters] == refused
        assert {letter.topic for letter in letters} == {name}
        assert all(error in letter.error for letter in letters)
        await producer.flush(WITHIN_MS)  # the copies
        now = producer.statistics()
        assert (now.accepted, now.delivered) == (COUNT + len(POISON), COUNT)
        assert (now.dead_lettered, now.pending) == (len(POISON), 0)
    assert await numbers(kafka, name) == [number for number in range(COUNT) if number not in POISON]
    copies = await read_topic(servers, dead)
    assert [(dict(copy.headers)["aiorecover-dlq-id"] or b"").decode() for copy in copies] == refused


async def test_a_topic_s_limit_below_the_batch_size_makes_smaller_batches(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, 1, config={"max.message.bytes": "10000"})
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in range(2000):
            await producer.publish(name, b"%d " % number + b"x" * 100)
        await producer.flush(WITHIN_MS)
        assert await letters_of(producer) == []
    assert await numbers(kafka, name) == list(range(2000))
