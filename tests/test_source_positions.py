"""Where to go on reading what records were made from: never behind what is in the ring, whatever ends the process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from aiorecover import RecoverableProducer, RecoverError
from aiorecover.testing import MemoryDisk, MockCluster
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

ORDERS = TopicPartition("orders", 0)
CLICKS = TopicPartition("clicks", 3)
NOWHERE = "127.0.0.1:1"
NEVER = 3_600_000  # ms


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


def producer_on(disk: MemoryDisk | Path, servers: str = NOWHERE, **options: Any) -> RecoverableProducer:
    given = {"checkpoint_interval_ms": NEVER, "fsync": "never", "slot_bytes": 1 << 14, "max_batch_size": 4096}
    return RecoverableProducer(disk, bootstrap_servers=servers, **{**given, "stop_timeout_ms": 500, **options})


async def consume(producer: RecoverableProducer, partition: TopicPartition, *offsets: int) -> None:
    for offset in offsets:
        await producer.publish("t", b"%d" % offset + bytes(100), source=(*partition, offset))


async def died(disk: MemoryDisk, producer: RecoverableProducer) -> MemoryDisk:
    left = disk.after_process_death()
    await producer.stop(timeout_ms=0)
    return left


async def positions(disk: MemoryDisk) -> dict[TopicPartition, int]:
    """What the next process is told."""
    async with producer_on(disk) as producer:
        return await producer.source_positions()


async def test_a_new_directory_knows_of_none_and_goes_on_behind_the_highest_offset_of_each_partition() -> None:
    disk = MemoryDisk()
    producer = producer_on(disk)
    await producer.start()
    assert await producer.source_positions() == {}
    await consume(producer, ORDERS, 0, 1, 2, 191, 192)  # whose last byte is that of a record without a source
    await consume(producer, CLICKS, 7)
    await producer.publish("t", b"made from nothing")
    assert await producer.source_positions() == {ORDERS: 193, CLICKS: 8}
    assert await positions(await died(disk, producer)) == {ORDERS: 193, CLICKS: 8}


async def test_offsets_that_come_again_or_late_take_nothing_back() -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await producer.source_positions()
        await consume(producer, ORDERS, 5, 9, 3)
        assert await producer.source_positions() == {ORDERS: 10}
    assert await positions(disk) == {ORDERS: 10}


async def test_a_source_is_refused_until_somebody_has_asked_where_to_go_on_and_stores_nothing() -> None:
    async with producer_on(MemoryDisk()) as producer:
        with pytest.raises(RecoverError, match=r"await source_positions\(\) before the first publish with a source"):
            await consume(producer, ORDERS, 1)
        assert producer.statistics().accepted == 0
        await producer.source_positions()
        await consume(producer, ORDERS, 1)


async def test_who_has_asked_once_need_not_in_the_next_life() -> None:
    disk = MemoryDisk()
    await positions(disk)
    async with producer_on(disk) as producer:
        await consume(producer, ORDERS, 1)
    assert await positions(disk) == {ORDERS: 2}


async def test_a_neighbour_that_adopts_the_directory_takes_nothing_back(mock: MockCluster) -> None:
    disk = MemoryDisk()
    options: dict[str, Any] = {"name": "s"}
    gone = producer_on(disk, mock.bootstrap_servers, instance="gone", adoption_grace_ms=None, **options)
    mock.broker_down()
    await gone.start()
    await gone.source_positions()
    await consume(gone, ORDERS, *range(300))
    left = await died(disk, gone)
    mock.broker_up()
    async with producer_on(left, mock.bootstrap_servers, instance="there", adoption_grace_ms=0, **options) as producer:
        await until(lambda: producer.statistics().directories_adopted == 1)
        assert await producer.source_positions() == {}, "they are the directory's own"
    async with producer_on(left, instance="gone", adoption_grace_ms=None, **options) as back:
        assert await back.source_positions() == {ORDERS: 300}


async def test_it_may_be_asked_by_many_at_once() -> None:
    async with producer_on(MemoryDisk()) as producer:
        found = await asyncio.gather(*(producer.source_positions() for _ in range(5)))
        assert found == [{}] * 5
        await consume(producer, ORDERS, 1)


@pytest.mark.parametrize(("was", "becomes"), [("at_least_once", "exactly_once"), ("exactly_once", "at_least_once")])
async def test_a_start_with_the_other_guarantee_that_dies_before_its_first_checkpoint_takes_nothing_back(
    was: str, becomes: str
) -> None:
    """It makes that durable at once, and with it up to where the ring is flushed: what stands there is read by then."""
    producer = producer_on(disk := MemoryDisk(), guarantee=was)
    await producer.start()
    await producer.source_positions()
    await consume(producer, CLICKS, 5)  # in a slot that is full, and nothing more of it behind that
    await consume(producer, ORDERS, *range(500))
    assert producer.statistics().bytes_ring > 2 << 14
    disk = await died(disk, producer)
    for _ in range(2):
        producer = producer_on(disk, guarantee=becomes)
        await producer.start()
        assert await producer.source_positions() == {CLICKS: 6, ORDERS: 500}
        disk = await died(disk, producer)
