"""Test the recovery of a service with pytest: no Kafka, no Docker, nothing on the real disk.

Each test takes an image of the disk at the moment of the crash, and starts the next life of the service on it. The
fixtures come with aiorecover.
"""

import asyncio
from collections.abc import Callable

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster, read_topic

Life = Callable[..., RecoverableProducer]

ORDERS = [b"order %d" % number for number in range(100)]


async def take_orders(
    service: Life, disk: MemoryDisk, crash: Callable[[MemoryDisk], list[MemoryDisk]]
) -> list[MemoryDisk]:
    """Take orders while Kafka is away, until the crash; return what it may leave of the disk."""
    async with service(disk, fsync="always", stop_timeout_ms=0) as producer:
        for order in ORDERS:
            await producer.publish("orders", order, partition=0)
        return crash(disk)  # whatever this life does from here on does not count


async def recover(service: Life, disk: MemoryDisk) -> None:
    """The next life of the service."""
    async with service(disk) as producer:
        await producer.flush(timeout_ms=20_000)


def test_a_killed_service_loses_no_order(mock_kafka: MockCluster, recoverable_producer: Life) -> None:
    mock_kafka.broker_down()
    [left] = asyncio.run(take_orders(recoverable_producer, MemoryDisk(), lambda disk: [disk.after_process_death()]))
    mock_kafka.broker_up()
    asyncio.run(recover(recoverable_producer, left))
    assert [record.value for record in read_topic(mock_kafka.bootstrap_servers, "orders")] == ORDERS


def test_a_power_cut_loses_no_order(
    mock_kafka: MockCluster, recoverable_producer: Life, power_cut: Callable[[MemoryDisk], list[MemoryDisk]]
) -> None:
    mock_kafka.broker_down()
    images = asyncio.run(take_orders(recoverable_producer, MemoryDisk(), power_cut))
    mock_kafka.broker_up()
    for number, left in enumerate(images, 1):  # each is another choice of what came through
        asyncio.run(recover(recoverable_producer, left))
        found = [record.value for record in read_topic(mock_kafka.bootstrap_servers, "orders")]
        assert found == ORDERS * number
