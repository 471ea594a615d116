"""Every call of `dead_letters` cancelled at each of its waits: no letter is lost, and it can be repeated."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import DeadLetter, RecoverableProducer
from aiorecover.testing import MemoryDisk
from tests.stand_in import Broker, Sent, put_in_place
from tests.support.victim import HANG, Victim, each_time

pytestmark = pytest.mark.asyncio

POISON = b"poison"
VALUES = [POISON + b"-%d" % number for number in range(3)]

Call = Callable[[RecoverableProducer, Path], Coroutine[Any, Any, Any]]
"""One call; the path is of a file that is not there."""


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {
        "wal_min_free_bytes": 0,
        "slot_bytes": 256 * 1024,
        "linger_ms": 500,  # what a test publishes at once is one batch: `flush` hands it over
        "retry_backoff_ms": 1,
        **options,
    }
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value.startswith(POISON) for record in records) else None


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


def adds_up(producer: RecoverableProducer) -> None:
    """I9."""
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.pending, now


async def publish_batch(producer: RecoverableProducer, topic: str, values: list[bytes]) -> list[Any]:
    """One batch: nothing is awaited in between."""
    return [producer.publish_nowait(topic, value, key=b"k") for value in values]


async def listed(producer: RecoverableProducer, _: Path) -> None:
    assert [letter.value for letter in await letters_of(producer)] == VALUES


async def exported(producer: RecoverableProducer, path: Path) -> None:
    await producer.dead_letters.export(path)


async def requeued(producer: RecoverableProducer, _: Path) -> None:
    await producer.dead_letters.requeue()


async def requeued_one_by_one(producer: RecoverableProducer, _: Path) -> None:
    for letter in await letters_of(producer):
        await producer.dead_letters.requeue(letter.record_id)


async def purged(producer: RecoverableProducer, _: Path) -> None:
    await producer.dead_letters.purge("all")


async def exported_and_purged(producer: RecoverableProducer, path: Path) -> None:
    await producer.dead_letters.purge(await producer.dead_letters.export(path))


CALLS: list[Call] = [listed, exported, requeued, requeued_one_by_one, purged, exported_and_purged]


class Kafka(Protocol):
    """A stand-in of either guarantee."""

    refuses: Callable[[list[Sent]], BaseException | None]

    def values(self, topic: str) -> list[bytes]:
        """What is there to be read."""


async def cancelled_and_repeated(
    producer: RecoverableProducer, broker: Kafka, call: Call, victim: Victim, files: Path
) -> None:
    """With three letters; ``files`` is an empty directory."""
    broker.refuses = refusing_poison
    await publish_batch(producer, "t", VALUES)
    await producer.flush(timeout_ms=HANG * 1000)
    broker.refuses = lambda _: None
    await victim.run(call(producer, files / "letters-1"))
    adds_up(producer)
    left = [letter.value for letter in await letters_of(producer)]
    assert left == VALUES[len(VALUES) - len(left) :], "in order, and none of them twice"
    if call in {listed, exported}:
        assert left == VALUES
    if victim.reached:
        assert list(files.glob(".*")) == [], "a part of a file is left"
        await call(producer, files / "letters-2")
    await producer.flush(timeout_ms=HANG * 1000)
    adds_up(producer)
    assert broker.values("t") == (VALUES if call in {requeued, requeued_one_by_one} else [])
    for file in files.glob("*-*"):
        assert len([json.loads(line) for line in file.read_bytes().splitlines()]) in {len(left), len(VALUES)}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_cancelled_at_each_of_its_waits_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    async def scenario(victim: Victim, at: int) -> None:
        broker = Broker(t=1)
        put_in_place(broker, monkeypatch)
        files = tmp_path / f"{at}"
        files.mkdir()
        async with producer_on(MemoryDisk()) as producer:
            await cancelled_and_repeated(producer, broker, call, victim, files)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    await each_time(scenario)
