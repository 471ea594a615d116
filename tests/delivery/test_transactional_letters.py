"""In transactions: a record that Kafka has refused, and takes after all, is no dead letter any more."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka.errors import KafkaError, PolicyViolationError

from aiorecover import DeliveryReport
from aiorecover.opened import Opened
from aiorecover.testing import MemoryDisk
from tests.delivery.committing import Broker, producer_on, serving, transactions_of
from tests.delivery.expiring import adds_up, letters_of
from tests.delivery.refusing import Sent
from tests.support.eventually import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

LIMIT = 20_000  # ms: what takes longer hangs
POISON = b"poison"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield from serving(monkeypatch, 1)


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value == POISON for record in records) else None


async def with_a_letter_and_not_settled(broker: Broker) -> MemoryDisk:
    """What a process leaves that dies in `on_delivery` of a record that Kafka has refused."""
    told, goes_on = asyncio.Event(), asyncio.Event()

    async def on_delivery(report: DeliveryReport) -> None:
        if report.status == "dead_lettered":
            told.set()
            await goes_on.wait()

    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, on_delivery=on_delivery) as producer:
        await producer.publish("t", POISON, partition=0)
        await told.wait()
        left = disk.after_process_death()
        goes_on.set()
    return left


async def committed_by_one_that_dies(broker: Broker, disk: MemoryDisk, *, power: bool = False) -> MemoryDisk:
    """The topic takes it by now; who has committed it dies before anything is settled, or the machine goes down."""
    broker.refuses = lambda _: None
    async with producer_on(disk) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("committed")
        await until(lambda: POISON in broker.values())
        left = disk.after_power_cut(seed=1) if power else disk.after_process_death()
        broker.let_go("committed")
    return left


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
async def test_what_a_process_has_committed_that_dies_before_it_settles_is_no_dead_letter_any_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, power: bool
) -> None:
    monkeypatch.setattr("aiorecover.testing.memory_file.SHARES", (0.0,))  # the power takes all that it may
    left = await committed_by_one_that_dies(broker, await with_a_letter_and_not_settled(broker), power=power)
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values() == [POISON]


async def test_what_is_refused_once_more_behind_a_transaction_that_was_lost_is_a_dead_letter(broker: Broker) -> None:
    left = await with_a_letter_and_not_settled(broker)

    def fails() -> None:
        broker.refuses = refusing_poison
        raise KafkaError("not today")

    broker.refuses = lambda _: None
    broker.once("add", lambda: broker.once("add", fails))  # behind the one that gives the position our name
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
        assert transactions_of(producer).aborts == 1
        assert [letter.value for letter in await letters_of(producer)] == [POISON]
        adds_up(producer)
    assert broker.values() == []


async def test_a_dead_letter_within_what_was_committed_stays_where_a_power_cut_takes_the_word_that_settled_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position covers it as it covers all of the run: nothing but the letter is left of it."""
    monkeypatch.setattr("aiorecover.testing.memory_file.SHARES", (0.0,))
    flush_ring, flushed = Opened._flush_ring, asyncio.Event()

    async def flush(self: Opened) -> None:
        await flush_ring(self)
        flushed.set()

    async def on_delivery(report: DeliveryReport) -> None:
        if report.status == "dead_lettered":
            await flushed.wait()  # so no flush has the word before it is committed

    monkeypatch.setattr(Opened, "_flush_ring", flush)
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, on_delivery=on_delivery) as producer:
        await until(lambda: transactions_of(producer).begun)
        flushed.clear()
        broker.hold("committed")
        producer.publish_nowait("t", POISON, partition=0)
        producer.publish_nowait("t", b"0", partition=0)
        await until(lambda: broker.values() == [b"0"])
        left = disk.after_power_cut(seed=1)
        broker.let_go("committed")
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
        assert producer.statistics().delivered == 2, "its word was not lost"
        assert [letter.value for letter in await letters_of(producer)] == [POISON]
    assert broker.values() == [b"0"]
