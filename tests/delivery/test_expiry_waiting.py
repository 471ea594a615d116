"""Records expire also where their lane waits for something else than Kafka's answer."""

import pytest
from aiokafka.errors import MessageSizeTooLargeError, OutOfOrderSequenceNumber

from aiorecover import WalFullError
from aiorecover.delivery import journaling
from aiorecover.testing import MemoryDisk
from aiorecover.wal.lanes import Lanes
from tests.delivery.expiring import Clock, Distant, adds_up, distant, letters_of, producer_on
from tests.delivery.refusing import Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    return distant(monkeypatch, t=1, other=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_lane_that_finds_no_room_in_the_journal(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journaling, "ROOM_PAUSE", 0.01)
    async with producer_on(MemoryDisk()) as producer:
        with monkeypatch.context() as full:

            def no_room(_: Lanes) -> None:
                raise WalFullError("no room")

            full.setattr(Lanes, "free", 0)
            full.setattr(Lanes, "take", lambda _: None)
            full.setattr(Lanes, "grow", no_room)
            await producer.publish("t", b"old", key=b"k")
            await until(lambda: "cannot be written down" in caplog.text)
            await clock.age(producer)
            await producer.publish("t", b"young", key=b"k")
            await until(lambda: producer.statistics().expired == 1)
        await producer.flush(timeout_ms=20_000)
        assert [(letter.value, letter.persisted) for letter in await letters_of(producer)] == [(b"old", "not")]
        adds_up(producer)
    assert broker.values("t") == [b"young"]


@pytest.mark.parametrize("error", [OutOfOrderSequenceNumber, MessageSizeTooLargeError])
async def test_a_lane_that_waits_for_a_fresh_identity(
    broker: Distant, clock: Clock, error: type[BaseException]
) -> None:
    """The session is lost with that very answer."""

    def refuse(_: list[Sent]) -> BaseException:
        for session in broker.sessions:
            session._connected.clear()
        return error()

    broker.refuses = refuse
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"old", key=b"k")
        await until(lambda: len(broker.sends) == 1)
        await clock.age(producer)
        await producer.publish("t", b"young", key=b"k")
        await until(lambda: producer.statistics().expired == 1)
        broker.refuses = lambda _: None
        broker.come()
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert broker.values("t") == [b"young"]
