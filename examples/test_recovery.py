"""How a service tests its own recovery, with pytest: no Kafka, no Docker, nothing on the real disk.

Each test takes an image of the disk at the moment of the crash, and starts the next life of the service on it.
"""

import asyncio
import functools
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster

PARTITION = TopicPartition("orders", 0)


def orders_service(disk: MemoryDisk, cluster: MockCluster) -> RecoverableProducer:
    return RecoverableProducer(
        disk,
        bootstrap_servers=cluster.bootstrap_servers,
        fsync="always",
        retry_backoff_ms=10,
    )


async def crash(
    cluster: MockCluster, image: Callable[[MemoryDisk], MemoryDisk]
) -> tuple[list[bytes | None], MemoryDisk]:
    """Take orders while Kafka is away, until the crash: what was accepted, and what the crash leaves of the disk."""
    disk = MemoryDisk()
    service = orders_service(disk, cluster)
    cluster.broker_down()
    await service.start()
    accepted: list[bytes | None] = []
    for number in range(100):
        order = b"order %d" % number
        await service.publish("orders", order, partition=0)
        accepted.append(order)
    left = image(disk)  # the crash: whatever this service does from here on does not count
    await service.stop(timeout_ms=0)
    cluster.broker_up()
    return accepted, left


async def recover(cluster: MockCluster, disk: MemoryDisk) -> list[bytes | None]:
    """The next life of the service: what Kafka has when everything is delivered."""
    async with orders_service(disk, cluster) as service:
        await service.flush(timeout_ms=20_000)
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    await consumer.start()
    try:
        consumer.assign([PARTITION])
        await consumer.seek_to_beginning()
        end = (await consumer.end_offsets([PARTITION]))[PARTITION]
        return [(await consumer.getone()).value for _ in range(end)]
    finally:
        await consumer.stop()


def test_a_killed_service_loses_no_order() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        accepted, left = asyncio.run(crash(cluster, MemoryDisk.after_process_death))
        assert asyncio.run(recover(cluster, left)) == accepted


def test_a_power_cut_loses_no_order() -> None:
    for seed in range(5):  # each seed is another choice of what came through
        with MockCluster() as cluster:
            cluster.create_topic("orders")
            image = functools.partial(MemoryDisk.after_power_cut, seed=seed)
            accepted, left = asyncio.run(crash(cluster, image))
            assert asyncio.run(recover(cluster, left)) == accepted
