"""After a power cut a quiet lane is done again in part, among busy ones, and recycled so far; then a kill.

Real producers on disks in memory, and an embedded broker. The reader of the ring is never far ahead of the busiest
lane, so a quiet one has been done again up to somewhere while the rest of it has not been looked at. As in
`test_suffix_rule` the newest value of each lane has to stand last once all is delivered.
"""

import asyncio
import itertools

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from tests.delivery.test_suffix_rule import partitions_of
from tests.support.oracle import Consumed, read_topic

TOPIC = "values"
BUSY = 2
PARTITIONS = 12
RECORDS = 1800
SEEDS = 8  # where things are covered too early, a seed shows it in one run of three (8 of 24)


def partition_of(number: int) -> int:
    """A quiet one has a record in 260, which is a slot and a half."""
    return number % BUSY if number % 26 else BUSY + number // 26 % (PARTITIONS - BUSY)


class Service:
    """One life."""

    def __init__(self, disk: MemoryDisk, cluster: MockCluster) -> None:
        self.enough = asyncio.Event()
        self._reports = itertools.count(1)
        self.producer = RecoverableProducer(
            disk,
            bootstrap_servers=cluster.bootstrap_servers,
            on_delivery=self._count,
            fsync="never",
            checkpoint_interval_ms=600_000,
            slot_bytes=16 * 1024,
            max_request_size=8 * 1024,
            max_batch_size=1024,
            linger_ms=0,
            retry_backoff_ms=10,
            recovery_check=False,
        )

    def _count(self, _: DeliveryReport) -> None:
        if next(self._reports) == RECORDS // 6:
            self.enough.set()

    async def deliver(self) -> None:
        async with self.producer:
            await self.producer.flush(timeout_ms=20_000)


async def after_a_power_cut(disk: MemoryDisk, cluster: MockCluster, seed: int) -> MemoryDisk:
    """All is delivered; records are durable, settle words are not."""
    cluster.broker_down()
    producer = Service(disk, cluster).producer
    await producer.start()
    for number in range(RECORDS):
        await producer.publish(TOPIC, b"%d" % number + bytes(100), partition=partition_of(number))
    assert producer._opened is not None
    producer._opened.directory.ring.sync()
    cluster.broker_up()
    await producer.flush(timeout_ms=20_000)
    disk.write_back(seed)
    left = disk.after_power_cut(seed)
    await producer.stop(timeout_ms=0)
    return left


async def ended_behind_a_checkpoint(disk: MemoryDisk, cluster: MockCluster) -> MemoryDisk:
    """In the middle of what is to be done again."""
    service = Service(disk, cluster)
    await service.producer.start()
    flush = asyncio.ensure_future(service.producer.flush(timeout_ms=20_000))
    enough = asyncio.ensure_future(service.enough.wait())
    await asyncio.wait({flush, enough}, return_when=asyncio.FIRST_COMPLETED)
    assert service.producer._opened is not None
    await service.producer._opened.background.checkpoint()
    left = disk.after_process_death()
    for future in (flush, enough):
        future.cancel()
    await service.producer.stop(timeout_ms=0)
    return left


async def lives(cluster: MockCluster, seed: int) -> list[Consumed]:
    left = await after_a_power_cut(MemoryDisk(), cluster, seed)
    left = await ended_behind_a_checkpoint(left, cluster)
    await Service(left, cluster).deliver()
    return await read_topic(cluster.bootstrap_servers, TOPIC)


def test_a_quiet_lane_is_done_again_to_its_end_though_its_beginning_is_recycled() -> None:
    wrong = {}
    for seed in range(SEEDS):
        with MockCluster() as cluster:
            cluster.create_topic(TOPIC, PARTITIONS)
            consumed = [
                record._replace(value=(record.value or b"").rstrip(b"\0"))
                for record in asyncio.run(lives(cluster, seed))
            ]
        for stood in partitions_of(consumed):
            last = list(dict.fromkeys(reversed(stood)))[::-1]
            if last != sorted(last):
                wrong[seed, partition_of(last[0])] = stood
    assert wrong == {}, "an old value stands behind a newer one"
