"""Both copies of the checkpoint are lost while moved records wait: for stalled lanes, or a topic not there."""

import asyncio
import logging
import random
import re
from typing import Any

import pytest
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.moves import Moves
from aiorecover.testing import MemoryDisk
from tests.delivery.stand_in import StandIn
from tests.delivery.test_stalled_lives import Kafka, Place, stand_in_for
from tests.delivery.test_stalled_lives import short as short  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.asyncio

SLOT = 16 * 1024
STALLED = {1, 5}
LATER = 100  # numbers of the partitions of the second topic begin here in the logs


def producer_of(disk: MemoryDisk) -> RecoverableProducer:
    options: dict[str, Any] = {"slot_bytes": SLOT, "max_batch_size": SLOT // 2, "max_request_size": SLOT // 2}
    options |= {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "checkpoint_interval_ms": 20, "stop_timeout_ms": 0}
    options |= {"recovery_check": False, "fsync": "never", "wal_max_bytes": 64 * SLOT}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **options)


def of_two_topics(kafka: Kafka, absent: set[str]) -> type[StandIn]:
    one: type[StandIn] = stand_in_for(kafka)

    class OfTwo(one):  # type: ignore[valid-type, misc]
        async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
            number = partition + LATER if topic == "later" else partition
            told: RecordMetadata = await super().send(batch, topic, number)
            return told._replace(partition=partition, topic_partition=TopicPartition(topic, partition))

        def partitions(self, topic: str) -> frozenset[int]:
            return frozenset() if topic in absent else super().partitions(topic)

    return OfTwo


async def publish(producer: RecoverableProducer, rng: random.Random) -> list[Place]:
    accepted = []
    for number in range(900):
        topic = "later" if number % 40 == 1 else "t"
        receipt = await producer.publish(topic, b"v" * rng.randrange(10, 400), key=b"%d" % rng.randrange(100))
        accepted.append((receipt.epoch, receipt.sequence))
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    return accepted


def missed(caplog: pytest.LogCaptureFixture) -> set[int]:
    """Sequences that the log names as missing from the main ring."""
    lines = [record.getMessage() for record in caplog.records]
    named = [match for line in lines if (match := re.search(r"file ring epoch=1 sequences=(\d+)-(\d+)", line))]
    return {sequence for match in named for sequence in range(int(match[1]), int(match[2]) + 1)}


@pytest.mark.parametrize("seed", [0, 2, 3])
async def test_a_flush_waits_for_all_that_was_moved_and_nothing_of_it_is_missed_or_out_of_order(
    short: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rng, absent = random.Random(seed), {"later"}
    kafka = Kafka(rng)
    monkeypatch.setattr(sessions_module, "Session", of_two_topics(kafka, absent))
    monkeypatch.setattr(Moves, "may_rewrite", lambda *_: False)  # what was copied twice counts twice then
    disk, kafka.stalled = MemoryDisk(), set(STALLED)
    async with producer_of(disk) as producer:
        accepted = await publish(producer, rng)
        await asyncio.sleep(0.2)
        assert producer._opened is not None
        assert producer._opened.directory.ring.moved_up_to > 0
        kafka.life += 1
        disk = disk.after_process_death()
    disk.file("0/checkpoint").cut(0)
    kafka.life += 1
    caplog.set_level(logging.ERROR)

    def all_is_well() -> None:
        absent.clear()
        kafka.stalled.clear()

    well = asyncio.get_running_loop().call_later(0.1, all_is_well)
    async with producer_of(disk) as producer:
        await producer.flush(timeout_ms=20_000)
        assert well.when() < asyncio.get_running_loop().time()
        assert (producer.statistics().pending, producer.statistics().records_left) == (0, 0)
    kafka.judge(accepted, once=False)
    waited = [log for lane, log in kafka.logs.items() if lane in STALLED or lane >= LATER]
    assert missed(caplog).isdisjoint(sequence for log in waited for (_, sequence), _ in log)
