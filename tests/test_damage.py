"""Damage under a producer: the rest is delivered in order, what is gone is counted and named, its bytes are kept."""

import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

WITHIN_MS = 20_000
DAMAGE = b"\xee" * 200


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_a_damaged_batch_is_named_counted_and_kept_and_the_rest_is_delivered(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(kafka, 1)
    options: dict[str, Any] = {"guarantee": guarantee, "max_batch_size": 4096, "max_request_size": 4096}
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        receipts = [await producer.publish(name, b"%d." % number * 100, partition=0) for number in range(300)]
    ring = tmp_path / "0" / "ring"
    place = ring.read_bytes().index(b"150." * 100)
    with ring.open("r+b") as file:
        file.seek(place)
        file.write(DAMAGE)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await producer.flush(WITHIN_MS)
        counts = producer.statistics()
        assert counts.recovered == counts.delivered + counts.damaged == 300
        assert 1 <= counts.damaged <= 20, "a batch of 4 KiB"
    found = await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed")
    ids = [receipt.record_id for receipt in receipts]
    delivered = [record.record_id for record in found]
    gone = [one for one in ids if one not in delivered]
    assert delivered == [one for one in ids if one not in gone]
    assert receipts[150].record_id in gone
    assert len(gone) == counts.damaged
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    (line,) = [line for line in lines if "damaged" in line]
    assert all(one.rpartition("/")[2] in line for one in (gone[0], gone[-1])), line
    assert any(DAMAGE in one.read_bytes() for one in (tmp_path / "0" / "damaged").iterdir())


async def test_a_ring_that_holds_nothing_any_more_is_no_reason_not_to_start(tmp_path: Path) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
        for number in range(100):
            await producer.publish("orders", b"%d" % number, partition=0)
        producer_id, epoch = producer.producer_id, producer.epoch
    ring = tmp_path / "0" / "ring"
    ring.write_bytes(random.Random(1).randbytes(1 << 20) + bytes(ring.stat().st_size - (1 << 20)))
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
        assert (producer.producer_id, producer.epoch) == (producer_id, epoch + 1), "no id is given out twice"
        await producer.publish("orders", b"v", partition=0)
        counts = producer.statistics()
        assert (counts.accepted, counts.recovered, counts.pending) == (1, 0, 1)


@pytest.mark.parametrize(
    ("place", "damage", "damaged"), [(4, b"\xff" * 20, 1), (-5, b"\xc1", 0)], ids=["end", "content"]
)
async def test_a_damaged_context_that_no_flush_covered_holds_up_no_other_record(
    place: int, damage: bytes, damaged: int
) -> None:
    """Where its end is gone, so is where the others begin; else its record is delivered without it."""
    disk = MemoryDisk()
    async with RecoverableProducer(disk, bootstrap_servers=NOWHERE, fsync="never", stop_timeout_ms=0) as producer:
        await producer.publish("orders", b"1", context={"note": 1})
        await producer.publish("others", b"2", context={"more": 2})
        left = disk.after_process_death()
    ring = left.files.stored.files[left.path / "0" / "ring"].live
    os.pwrite(ring, damage, os.pread(ring, os.fstat(ring).st_size, 0).index(b"note") + place)
    with MockCluster() as cluster:
        async with RecoverableProducer(left, bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.flush(WITHIN_MS)
            counts = producer.statistics()
    assert (counts.delivered, counts.damaged) == (2 - damaged, damaged)
    assert not counts.flush_failed
