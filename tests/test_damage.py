"""Damage under a producer: the rest is delivered, what is missing is counted, the bytes are kept."""

import asyncio
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from tests.support.eventually import until

NOWHERE = "127.0.0.1:1"  # no broker listens there


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
        at = left.file("0/ring").live().index(b"4" * 400) + 100
        left.file("0/ring").damage(at, b"\xee" * 200)
        cluster.broker_up()
        async with producer(left, cluster) as second:
            await second.flush(timeout_ms=20_000)
            assert second.statistics().missing == 1
        after = left.after_power_cut(seed=1)  # the names, too, were made durable
        (name,) = after.file_system.names(after.path / "0" / "damaged")
        assert b"\xee" * 200 in after.file(f"0/damaged/{name}").live()


def test_figures_are_right_from_the_first_look_on_or_as_soon_as_the_ring_was_read() -> None:
    asyncio.run(_stop_start_and_look())


async def _stop_start_and_look() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        cluster.broker_down()
        disk = MemoryDisk()
        async with producer(disk, cluster, stop_timeout_ms=0) as first:
            for number in range(1_000):  # two full slots, and one that is left open
                await first.publish("orders", b"%d" % number * 50, partition=0)
        second = producer(disk, cluster)
        await second.start()
        known = second.statistics()
        assert (known.unread, known.pending, known.missing) == (1_000, 0, 0)
        assert await second.stop(timeout_ms=0) == 1_000
        disk.file("0/ring").damage(0, b"\xee" * len(disk.file("0/ring").live()))
        third = producer(disk, cluster)
        await third.start()
        try:
            await until(lambda: third.statistics().missing == 1_000)  # Kafka is not needed to see that nothing is there
            assert third.statistics().unread == 0
        finally:
            assert await third.stop(timeout_ms=0) == 0


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_what_is_missing_is_known_when_a_flush_returns_though_nothing_waits(guarantee: str) -> None:
    asyncio.run(_flush_what_is_gone(guarantee))


async def _flush_what_is_gone(guarantee: str) -> None:
    disk = MemoryDisk()
    first = RecoverableProducer(disk, bootstrap_servers=NOWHERE, guarantee=guarantee, stop_timeout_ms=100)
    async with first:
        for number in range(9):
            await first.publish("orders", b"%d" % number, partition=0)
    disk.file("0/ring").cut(0)
    async with RecoverableProducer(disk, bootstrap_servers=NOWHERE, guarantee=guarantee, stop_timeout_ms=100) as second:
        began = asyncio.get_running_loop().time()
        await second.flush(timeout_ms=20_000)
        assert second.statistics().missing == 9
        assert asyncio.get_running_loop().time() - began < 0.5, "it is told, and does not just look again"


def producer(disk: MemoryDisk, cluster: MockCluster, **options: int) -> RecoverableProducer:
    given: dict[str, Any] = {"slot_bytes": 64 * 1024, "retry_backoff_ms": 10, **options}
    return RecoverableProducer(disk, bootstrap_servers=cluster.bootstrap_servers, **given)
