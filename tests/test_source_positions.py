"""Where to go on reading what records were made from: never ahead of what is in the ring, whatever ends the process."""

import asyncio
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from aiorecover import RecoverableProducer, RecoverError
from aiorecover.testing import MemoryDisk, MockClusterProcess
from tests.support.eventually import until
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

ORDERS = TopicPartition("orders", 0)
CLICKS = TopicPartition("clicks", 3)


def producer_on(disk: MemoryDisk, servers: str = NOWHERE, **options: Any) -> RecoverableProducer:
    given = {"fsync": "never", "stop_timeout_ms": 100, "adoption_grace_ms": None}
    return RecoverableProducer(disk, bootstrap_servers=servers, **{**given, **options})


async def consume(producer: RecoverableProducer, partition: TopicPartition, *offsets: int) -> None:
    for offset in offsets:
        await producer.publish("t", b"%d" % offset + bytes(100), partition=0, source=(*partition, offset))


async def positions(disk: MemoryDisk, **options: Any) -> dict[TopicPartition, int]:
    """Return the positions that the next process gets."""
    async with producer_on(disk, **options) as producer:
        return await producer.source_positions()


async def test_positions_are_of_the_newest_records_through_kills_and_stops() -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        assert await producer.source_positions() == {}
        await consume(producer, ORDERS, 0, 1, 2, 191, 192)
        await consume(producer, CLICKS, 7)
        await producer.publish("t", b"made from nothing")
        assert await producer.source_positions() == {ORDERS: 193, CLICKS: 8}
        killed = disk.after_process_death()
    assert await positions(killed) == {ORDERS: 193, CLICKS: 8}
    assert await positions(disk.after_power_cut(seed=1)) == {ORDERS: 193, CLICKS: 8}, "a stop makes them durable"


@pytest.mark.parametrize("seed", range(5))
async def test_after_a_power_cut_they_are_never_ahead_of_the_records_that_are_left(seed: int) -> None:
    """Flushes and checkpoints run beside it; each record's value is the offset that it was made from."""
    disk = MemoryDisk()
    options: dict[str, Any] = {"fsync": "interval", "fsync_interval_ms": 10}
    async with producer_on(disk, **options) as producer:
        await producer.source_positions()
        for offset in range(3_000):
            await consume(producer, ORDERS, offset)
            if not offset % 100:
                await asyncio.sleep(0.005)
        cut = disk.after_power_cut(seed)
    async with producer_on(cut) as producer:
        position = (await producer.source_positions()).get(ORDERS, 0)
        left = producer.statistics().recovered
    assert 0 < position <= left


async def test_a_flush_makes_them_durable() -> None:
    disk = MemoryDisk()
    async with producer_on(disk, fsync="interval", fsync_interval_ms=50) as producer:
        await producer.source_positions()
        await consume(producer, ORDERS, 1)
        await until(lambda: producer.statistics().flushes > 0)
        assert await positions(disk.after_power_cut(seed=2)) == {ORDERS: 2}


async def test_a_source_is_refused_until_the_positions_were_asked_for() -> None:
    async with producer_on(MemoryDisk()) as producer:
        with pytest.raises(RecoverError, match=r"await source_positions\(\) before the first publish with a source"):
            await consume(producer, ORDERS, 1)
        assert producer.statistics().accepted == 0
        await producer.source_positions()
        await consume(producer, ORDERS, 1)


async def test_a_neighbour_that_delivers_the_records_takes_nothing_back() -> None:
    """The records and their segments are gone then: the checkpoint has the position."""
    async with MockClusterProcess() as mock:
        await mock.create_topic("t")
        disk = MemoryDisk()
        async with producer_on(disk, instance="gone") as gone:
            await gone.source_positions()
            await consume(gone, ORDERS, *range(300))
        async with producer_on(disk, mock.bootstrap_servers, instance="there", adoption_grace_ms=0) as neighbour:
            await until(lambda: neighbour.statistics().directories_adopted == 1)
            assert await neighbour.source_positions() == {}, "they are the directory's own"
    assert await positions(disk.after_power_cut(seed=3), instance="gone") == {ORDERS: 300}
