"""What a letter says of whether its record is in Kafka, after a power cut that took the journal's word with it."""

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk
from tests.delivery.expiring import Clock, Distant, adds_up, distant, letters_of, producer_on
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    return distant(monkeypatch, t=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def cut_off_in_flight(broker: Distant) -> MemoryDisk:
    """A record was sent, nobody knows with what success, and its entry was never flushed."""
    disk = MemoryDisk()
    broker.answers.clear()
    async with producer_on(disk, fsync="always", checkpoint_interval_ms=3_600_000) as producer:
        await producer.publish("t", b"in flight", key=b"k")
        await until(lambda: producer.statistics().in_flight == 1)
        left = disk.after_power_cut(1)
    broker.answers.set()
    return left


async def letter_of(producer: RecoverableProducer) -> tuple[bytes | None, str]:
    await until(lambda: producer.statistics().dead_lettered == 1)
    assert producer.statistics().identities_renewed == 0, "an entry was found"
    adds_up(producer)
    (letter,) = await letters_of(producer)
    return letter.value, letter.persisted


async def test_what_expires_in_no_lane_may_be_there(broker: Distant, clock: Clock) -> None:
    left = await cut_off_in_flight(broker)
    broker.topics.clear()  # the topic is gone meanwhile
    async with producer_on(left, recovery_check=False) as producer:
        await clock.age(producer)
        assert await letter_of(producer) == (b"in flight", "possibly")


async def test_so_may_what_kafka_refuses_today_and_not_what_came_since(broker: Distant) -> None:
    left = await cut_off_in_flight(broker)
    broker.refuses = lambda _: MessageSizeTooLargeError()
    async with producer_on(left, recovery_check=False) as producer:
        assert await letter_of(producer) == (b"in flight", "possibly")
        await producer.publish("t", b"new", key=b"k")
        await until(lambda: producer.statistics().dead_lettered == 2)
        assert [letter.persisted for letter in await letters_of(producer)] == ["possibly", "not"]
