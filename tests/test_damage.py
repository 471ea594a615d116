"""Damage under a producer: the rest is delivered, what is missing is counted, the bytes are kept."""

import asyncio

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from aiorecover.wal import format as fmt
from aiorecover.wal.kept import DAMAGED


def test_a_producer_keeps_what_is_damaged_and_counts_what_is_missing() -> None:
    asyncio.run(_produce_and_damage())


async def _produce_and_damage() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        cluster.broker_down()
        disk = MemoryDisk()
        first = producer(disk, cluster)
        await first.start()
        for number in range(9):
            await first.publish("orders", b"%d" % number * 400, partition=0)
        left = disk.after_process_death()
        await first.stop(timeout_ms=0)
        left.file("0/ring").damage(fmt.FIRST_FRAME + 600, b"\xee" * 300)
        cluster.broker_up()
        async with producer(left, cluster) as second:
            await second.flush(timeout_ms=20_000)
            assert second.statistics().missing in {1, 2}  # one frame, or two that stand side by side
        after = left.after_power_cut(seed=1)  # the names, too, were made durable
        (name,) = after.file_system.names(after.path / "0" / DAMAGED)
        assert b"\xee" * 300 in after.file(f"0/{DAMAGED}/{name}").live()


def producer(disk: MemoryDisk, cluster: MockCluster) -> RecoverableProducer:
    return RecoverableProducer(
        disk, bootstrap_servers=cluster.bootstrap_servers, slot_bytes=64 * 1024, retry_backoff_ms=10
    )
