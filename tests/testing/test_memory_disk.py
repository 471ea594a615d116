"""The disk in memory under a producer: what a kill and a power cut leave, and a disk that is full or broken."""

from collections.abc import Callable
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.errors import WalFullError, WalIOError
from aiorecover.testing import MemoryDisk, MockCluster
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

BEFORE, DURING = 30, 70  # records
SEEDS = range(20)


def service(disk: MemoryDisk, cluster: MockCluster, fsync: Any) -> RecoverableProducer:
    return RecoverableProducer(
        disk, bootstrap_servers=cluster.bootstrap_servers, fsync=fsync, fsync_interval_ms=60_000, retry_backoff_ms=10
    )


async def two_lives(fsync: str, image: Callable[[MemoryDisk], MemoryDisk], before: int = BEFORE) -> list[int]:
    """Publish, crash, and deliver in the next life: the numbers of the records that Kafka has then.

    ``before``: records that are in Kafka when its outage begins; it goes on until after the crash.
    """
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        disk = MemoryDisk()
        first = service(disk, cluster, fsync)
        await first.start()
        for number in range(before):
            await first.publish("orders", b"%d" % number)
        await first.flush(timeout_ms=20_000)
        cluster.broker_down()
        for number in range(before, before + DURING):
            await first.publish("orders", b"%d" % number)
        left = image(disk)
        await first.stop(timeout_ms=0)
        cluster.broker_up()
        async with service(left, cluster, fsync) as second:
            await second.flush(timeout_ms=20_000)
        return [int(record.value or b"") for record in await read_topic(cluster.bootstrap_servers, "orders")]


@pytest.mark.parametrize("fsync", ["never", "always"])
async def test_after_the_death_of_the_process_every_accepted_record_is_delivered_once(fsync: str) -> None:
    assert await two_lives(fsync, MemoryDisk.after_process_death) == list(range(BEFORE + DURING))


async def test_a_power_cut_takes_nothing_that_fsync_always_has_accepted() -> None:
    for seed in SEEDS:
        found = await two_lives("always", lambda disk, seed=seed: disk.after_power_cut(seed))  # type: ignore[misc]
        assert found == list(range(BEFORE + DURING)), f"seed {seed}"


async def test_without_a_flush_a_power_cut_takes_the_end_and_nothing_else() -> None:
    lengths = set()
    for seed in SEEDS:
        found = await two_lives("never", lambda disk, seed=seed: disk.after_power_cut(seed), before=0)  # type: ignore[misc]
        assert found == list(range(len(found))), f"seed {seed}"
        lengths.add(len(found))
    assert min(lengths) < DURING


async def test_a_full_disk_refuses_and_a_broken_one_accepts_nothing_more() -> None:
    disk = MemoryDisk()
    async with RecoverableProducer(disk, bootstrap_servers="127.0.0.1:1", fsync="always", stop_timeout_ms=0) as first:
        await first.publish("orders", b"0")
        disk.full = True
        with pytest.raises(WalFullError):
            await first.publish("orders", bytes(500_000))
        disk.full = False
        await first.publish("orders", bytes(500_000))
        disk.failing = True
        with pytest.raises(WalIOError, match="check the disk"):
            await first.publish("orders", b"1")
        assert first.state == "failed"
