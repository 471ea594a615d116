"""A record has one id from its receipt to Kafka, over starts; no other has it, also where a directory was copied."""

import asyncio
from typing import Any

import pytest

from aiorecover import Deduplicator, RecoverableProducer, record_id_of
from aiorecover.testing import MemoryDisk, MockCluster
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

IN_TIME_MS = 20_000


def service(disk: MemoryDisk, cluster: MockCluster) -> RecoverableProducer:
    options: dict[str, Any] = {"slot_bytes": 64 * 1024, "wal_min_free_bytes": 0, "retry_backoff_ms": 10}
    return RecoverableProducer(disk, bootstrap_servers=cluster.bootstrap_servers, **options)


async def publish(producer: RecoverableProducer, what: str, count: int) -> dict[str, bytes]:
    """The values by the ids of their receipts."""
    values = [f"{what} {number}".encode() for number in range(count)]
    return {(await producer.publish("orders", value, partition=0)).record_id: value for value in values}


async def in_kafka(cluster: MockCluster) -> list[tuple[str, bytes]]:
    """Ids and values, in order."""
    records = await read_topic(cluster.bootstrap_servers, "orders")
    return [(record_id_of(record.headers) or "", record.value or b"") for record in records]


async def test_what_waits_at_a_stop_is_delivered_by_the_next_start_under_the_id_of_its_receipt() -> None:
    disk, accepted = MemoryDisk(), dict[str, bytes]()
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        cluster.broker_down()
        for start in range(3):
            producer = service(disk, cluster)
            await producer.start()
            accepted |= await publish(producer, f"start {start}", 10)
            assert await producer.stop(timeout_ms=0) == len(accepted)
        cluster.broker_up()
        async with service(disk, cluster) as producer:
            await producer.flush(timeout_ms=IN_TIME_MS)
        assert await in_kafka(cluster) == [*accepted.items()]
    assert len({name.partition("/")[0] for name in accepted}) == 3


async def test_a_reader_that_drops_repeats_by_id_keeps_every_record_of_two_copies_of_a_directory() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        cluster.broker_down()
        disk = MemoryDisk()
        producer = service(disk, cluster)
        await producer.start()
        accepted = await publish(producer, "before the copy", 20)
        copies = [disk.after_process_death() for _ in range(2)]
        await producer.stop(timeout_ms=0)
        cluster.broker_up()
        producers = [service(copy, cluster) for copy in copies]
        for number, producer in enumerate(producers):
            await producer.start()
            accepted |= await publish(producer, f"copy {number}", 20)
        await asyncio.gather(*(producer.flush(timeout_ms=IN_TIME_MS) for producer in producers))
        for producer in producers:
            assert await producer.stop() == 0
        found = await in_kafka(cluster)
    assert len(accepted) == 60
    had = Deduplicator()
    kept = [(name, value) for name, value in found if had.add(name)]
    assert sorted(kept) == sorted(accepted.items())
    assert sorted(value for name, value in found if found.count((name, value)) == 2) == sorted(
        value for value in accepted.values() for _ in range(2) if value.startswith(b"before")
    )
