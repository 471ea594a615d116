"""The disk fails while records become dead letters: none is lost between the two, and delivery goes on."""

import asyncio
import errno
import logging

import pytest
from aiokafka.errors import NotEnoughReplicasAfterAppendError

from aiorecover import WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.directory import Directory
from tests.delivery.expiring import Clock, Distant, adds_up, distant, failing, letters_of, producer_on
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

TOLD = "nothing expires until the directory is reopened"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    return distant(monkeypatch, t=1, other=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def fail_the_dead_ring(patch: pytest.MonkeyPatch) -> None:
    """From now on its flushes fail, as the disk's would: nothing is accepted any more (I7)."""

    def sync_dead(directory: Directory) -> None:
        error = WalIOError(errno.EIO, "flushing failed")
        directory.poison(error)
        raise error

    patch.setattr(Directory, "sync_dead", sync_dead)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_no_lane_holds_yet_is_given_back_and_delivered(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    values = [b"%d" % number for number in range(700)]
    async with producer_on(MemoryDisk()) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in values]
        await clock.known(producer)
        fail_the_dead_ring(monkeypatch)
        await clock.age(producer)
        await until(lambda: TOLD in caplog.text)
        assert (producer.statistics().expired, producer.statistics().pending) == (0, len(values))
        assert producer.state == "failed"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await producer.flush()
        broker.come()
        await producer.flush(timeout_ms=20_000)
        assert (await receipts[0].delivered(timeout_ms=1_000)).status == "delivered"
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values("t") == values
    assert len([line for line in lines(caplog) if TOLD in line]) == 1


async def test_a_lane_tries_on_with_the_very_same_batch(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refuses = failing("t", NotEnoughReplicasAfterAppendError)
    values = [b"%d" % number for number in range(30)]
    async with producer_on(MemoryDisk(), linger_ms=50) as producer:
        for value in values:
            await producer.publish("t", value, key=b"k")
        await until(lambda: producer.statistics().in_flight == len(values))
        await clock.known(producer)
        fail_the_dead_ring(monkeypatch)
        await clock.age(producer)
        await until(lambda: TOLD in caplog.text)
        assert producer.statistics().lanes_halted == 0
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values("t") == values
    assert len({identity for _, _, identity, _ in broker.sends}) == 1, "it may have come through under the first one"
    assert len([line for line in lines(caplog) if TOLD in line]) == 1
    assert not [line for line in lines(caplog) if "halted" in line]
