"""Tasks of ours that others cancel while a batch is sent or refused: what is known of it must not be forgotten."""

import asyncio
import errno
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover import log as log_module
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


class FullDisk(logging.Handler):
    """A handler whose file has no room, and which does not hide it."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(errno.ENOSPC, "no space left for the log")


@pytest.fixture
def _log_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_module, "_told", set())
    logger, handler = logging.getLogger("aiorecover"), FullDisk()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("_log_fails")
async def test_a_log_that_fails_changes_nothing_of_what_is_delivered(broker: Broker) -> None:
    """Whatever there is to tell: of records that are refused, callbacks that fail, tasks that somebody cancels."""

    def on_delivery(_: DeliveryReport) -> None:
        raise ValueError("broken")

    broker.topics["t"] = 3
    producer = producer_on(MemoryDisk(), on_delivery=on_delivery)
    await producer.start()
    for number in range(100):
        await producer.publish("t", POISON if number in {20, 60} else b"%d" % number, partition=number % 3)
    await producer.flush(LIMIT)
    assert producer.statistics().dead_lettered == 2
    for name in ["dispatcher", "checkpoint", "discovery", "spare", "backlog"]:
        await cancel(name)
    await until(lambda: producer.state == "interrupted")
    await until(lambda: producer.state == "connected")
    for number in range(100, 200):
        await producer.publish("t", b"%d" % number, partition=number % 3)
    await producer.flush(LIMIT)
    assert await producer.stop() == 0
    delivered = sorted(int(value) for partition in range(3) for value in broker.values("t", partition))
    assert delivered == [number for number in range(200) if number not in {20, 60}]


@pytest.mark.usefixtures("_log_fails")
async def test_a_lane_goes_on_though_nobody_can_be_told_that_its_task_was_cancelled(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        broker.answers.clear()
        await producer.publish("t", b"1")
        await until(lambda: producer.statistics().in_flight == 1)
        await cancel("lane")
        await until(lambda: producer.state == "interrupted")
        broker.answers.set()
        await producer.flush(LIMIT)
    assert broker.values("t") == [b"1"]
