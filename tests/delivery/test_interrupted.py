"""Tasks of ours that others cancel while a batch is sent or refused: what is known of it must not be forgotten."""

import asyncio
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import sender as sender_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.testing import MemoryDisk
from tests.delivery.refusing import Broker, Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

LIMIT = 20_000  # ms: what takes longer hangs
POISON = b"poison"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=1)
    made.refuses = refusing_poison
    monkeypatch.setattr(sessions_module, "Session", made.session())
    monkeypatch.setattr(sender_module, "RESTART_PAUSE", 0.01)
    monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 0.01)
    return made


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value.startswith(POISON) for record in records) else None


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {"wal_min_free_bytes": 0, "slot_bytes": 256 * 1024, "linger_ms": 1, "retry_backoff_ms": 1, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


class Hanging:
    """An `on_delivery` that does not return the first time."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def __call__(self, _: DeliveryReport) -> None:
        if not self.called.is_set():
            self.called.set()
            await asyncio.Event().wait()


def running(name: str) -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(f"aiorecover-{name}")]


async def cancel(name: str) -> None:
    """As soon as it is there."""
    async with asyncio.timeout(LIMIT / 1000):
        while not running(name):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0)
    for task in running(name):
        task.cancel()


async def test_a_batch_whose_task_was_cancelled_while_it_was_sent_is_possibly_persisted(broker: Broker) -> None:
    """Its sequence given back, the broker would swallow the next batch as a repeat of it."""
    async with producer_on(MemoryDisk()) as producer:
        broker.answers.clear()
        await producer.publish("t", POISON, key=b"k")
        await until(lambda: producer.statistics().in_flight == 1)
        await cancel("lane")
        await until(lambda: producer.statistics().in_flight == 0)
        broker.answers.set()
        await producer.flush(LIMIT)
        await producer.publish("t", b"1", key=b"k")
        await producer.flush(LIMIT)
        (letter,) = [letter async for letter in producer.dead_letters.list()]
    assert letter.persisted == "possibly"
    assert [identity for _, _, identity, _ in broker.sends] == [(1, 0, 0), (1, 1, 0)]


async def test_a_batch_that_is_sent_again_because_its_callback_was_cancelled_is_in_the_log(broker: Broker) -> None:
    broker.refuses = lambda _: None
    hanging = Hanging()
    async with producer_on(MemoryDisk(), on_delivery=hanging) as producer:
        await producer.publish("t", POISON, key=b"k")
        await hanging.called.wait()
        broker.refuses = refusing_poison  # too old by now; Kafka looks at that first
        broker.forget()
        await cancel("lane")
        await producer.flush(LIMIT)
        await producer.publish("t", b"1", key=b"k")
        await producer.flush(LIMIT)
        (letter,) = [letter async for letter in producer.dead_letters.list()]
    assert letter.persisted == "possibly"
    assert broker.sends[-1][2] == (1, 1, 0)


async def test_cancelled_between_the_letter_and_settling_there_is_one_letter(broker: Broker) -> None:
    hanging = Hanging()
    async with producer_on(MemoryDisk(), on_delivery=hanging) as producer:
        await producer.publish("t", POISON, key=b"k")
        await hanging.called.wait()
        await cancel("lane")
        await producer.flush(LIMIT)
        assert [letter.value async for letter in producer.dead_letters.list()] == [POISON]
        assert producer.statistics().dead_lettered == 1


async def test_a_lane_goes_on_when_the_flush_of_its_letter_was_cancelled(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), fsync="never") as producer:
        await producer.publish("t", POISON, key=b"k")
        await producer.publish("t", b"1", key=b"k")
        await cancel("group-commit")
        await producer.flush(LIMIT)
        assert producer.statistics().dead_lettered == 1
    assert broker.values("t") == [b"1"]


async def test_what_cannot_be_decoded_becomes_a_letter_although_its_task_was_cancelled(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        assert producer._opened is not None
        producer._opened.directory.ring.append(b"\xc1no record", None)
        await producer.publish("t", b"1", key=b"k")
        await cancel("undecodable")
        await until(lambda: producer.statistics().dead_lettered == 1)
        assert [letter.error async for letter in producer.dead_letters.list()] == ["Undecodable"]
