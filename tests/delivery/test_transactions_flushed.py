"""The ring is flushed while the batches of a transaction are answered, and the commit is behind both (I11)."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.errors import WalIOError
from aiorecover.opened import Opened
from aiorecover.testing import MemoryDisk
from tests.delivery.committing import Broker, producer_on, serving, transactions_of
from tests.delivery.expiring import adds_up
from tests.delivery.test_transactions import LIMIT, acknowledged, cancel, each_once, publish
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

PARTITIONS = 2
A_WHILE = 0.1  # seconds: something would have happened by then
FLUSHING = "aiorecover-transactions-flush"


class Flushes:
    """Those that transactions wait for: what was stored when they began, and what keeps them from ending."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.covered = 0  # the last position that was stored when one began that has ended
        self.failure: Exception | None = None
        self._may_end = asyncio.Event()
        self._may_end.set()
        flush_ring = Opened._flush_ring
        flushes = self

        async def flushing(self: Opened) -> None:
            stored = self.directory.ring.last_position
            flushes.begun += 1
            await flushes._may_end.wait()
            if flushes.failure is not None:
                raise flushes.failure
            await flush_ring(self)
            flushes.covered = max(flushes.covered, stored)

        patch.setattr(Opened, "_flush_ring", flushing)

    def hold(self) -> None:
        """None ends."""
        self._may_end.clear()

    def let_go(self) -> None:
        self._may_end.set()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield from serving(monkeypatch, PARTITIONS)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    return Flushes(monkeypatch)


async def begun(producer: RecoverableProducer) -> None:
    await until(lambda: transactions_of(producer).begun)


def unfinished() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task.get_name() == FLUSHING]


async def test_a_position_is_added_only_when_a_flush_has_ended_that_began_behind_it(
    broker: Broker, flushes: Flushes
) -> None:
    too_far: list[tuple[int, int]] = []
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)

        def look(step: str) -> None:
            offsets = broker.session.transaction._offsets.values()
            if step == "commit":
                too_far.extend((one.position, flushes.covered) for one in offsets if one.position > flushes.covered)

        broker.met = look
        for number in range(60):
            await publish(producer, number)
            await asyncio.sleep(0.005)
        await producer.flush(LIMIT)
    assert each_once(broker, 60)
    assert len(broker.transactions) > 2
    assert too_far == []


async def test_the_ring_is_flushed_before_the_batches_are_answered_and_nothing_is_committed(
    broker: Broker, flushes: Flushes
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        added = broker.reached["add"]
        broker.hold("sent")
        await publish(producer, 0, 1)
        await until(lambda: flushes.covered > 0)
        await asyncio.sleep(A_WHILE)
        assert (broker.reached["add"], acknowledged(producer)) == (added, 0)
        broker.let_go("sent")
        await producer.flush(LIMIT)
        assert flushes.begun == 1
    assert each_once(broker, 2)


async def test_a_flush_that_does_not_end_holds_up_the_commit_of_what_is_acknowledged(
    broker: Broker, flushes: Flushes
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        added = broker.reached["add"]
        flushes.hold()
        await publish(producer, 0, 1)
        await until(lambda: flushes.begun == 1 and acknowledged(producer) == 2)
        await asyncio.sleep(A_WHILE)
        assert (broker.reached["add"], producer.statistics().delivered) == (added, 0)
        flushes.let_go()
        await producer.flush(LIMIT)
    assert each_once(broker, 2)


async def test_where_the_session_is_lost_meanwhile_the_next_transaction_waits_for_a_flush_of_its_own(
    broker: Broker, flushes: Flushes
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        flushes.hold()
        broker.hold("sent")
        await publish(producer, 0, 1)
        await until(lambda: flushes.begun == 1 and broker.reached["sent"] == 2)
        broker.lose()
        broker.let_go("sent")
        await until(lambda: flushes.begun == 2)
        assert len(unfinished()) == 1  # nobody waits for the first one any more
        await until(lambda: acknowledged(producer) == 2)
        added = broker.reached["add"]
        await asyncio.sleep(A_WHILE)
        assert broker.reached["add"] == added
        flushes.let_go()
        await producer.flush(LIMIT)
        adds_up(producer)
    assert each_once(broker, 2)
    assert unfinished() == []


async def test_one_that_fails_while_the_session_is_lost_is_made_again_and_nothing_is_printed(
    broker: Broker, flushes: Flushes, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        flushes.failure = WalIOError(5, "the disk is gone")
        broker.hold("sent")
        await publish(producer, 0, 1)
        await until(lambda: flushes.begun == 1 and broker.reached["sent"] == 2)
        await until(lambda: unfinished() == [])
        flushes.failure = None
        broker.lose()
        broker.let_go("sent")
        await producer.flush(LIMIT)
        gc.collect()
        assert flushes.begun == 2
        adds_up(producer)
    assert each_once(broker, 2)
    assert "never retrieved" not in caplog.text


async def test_one_that_fails_before_the_batches_are_answered_leaves_them_to_the_next_end_of_the_run(
    broker: Broker, flushes: Flushes, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        flushes.failure = WalIOError(5, "the disk is gone")
        added = broker.reached["add"]
        await publish(producer, 0, 1)
        await until(lambda: flushes.begun > 2)
        assert (broker.reached["add"], acknowledged(producer)) == (added, 2)
        await publish(producer, 2, 3)
        flushes.failure = None
        await until(lambda: producer.statistics().delivered == 4)
        adds_up(producer)
    assert each_once(broker, 4)
    assert caplog.text.count("the ring cannot be flushed") == 1


@pytest.mark.parametrize("answered", [True, False])
async def test_a_task_that_is_cancelled_meanwhile_leaves_no_flush_behind_and_begins_again(
    broker: Broker, flushes: Flushes, *, answered: bool
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await begun(producer)
        flushes.hold()
        if not answered:
            broker.hold("sent")
        await publish(producer, 0, 1)
        await until(lambda: flushes.begun == 1 and broker.reached["sent"] == 2)
        await until(lambda: acknowledged(producer) == (2 if answered else 0))
        await cancel()
        await asyncio.sleep(0)
        assert unfinished() == []
        if not answered:
            broker.let_go("sent")
        flushes.let_go()
        await publish(producer, 2, 3)
        await producer.flush(LIMIT)
        adds_up(producer)
    assert each_once(broker, 4)
