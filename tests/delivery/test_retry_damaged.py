"""A life in which a lane was stalled ends, and its retry ring is damaged: what is lost stands where the log says."""

import random
import re

import pytest

from aiorecover.testing import MemoryDisk
from tests.delivery.test_compacting import SLOT, STUCK, kafka, producer_of, publish
from tests.delivery.test_stalled_lives import Kafka, Place, short
from tests.support.eventually import until

__all__ = ["kafka", "short"]

pytestmark = pytest.mark.asyncio

LINE = re.compile(r"records are missing from the file retry records_at_most=(\d+) after=(\S+) before=(\S+) ")


def damaged(disk: MemoryDisk, rng: random.Random) -> None:
    """In each slot of its retry ring, whether copies that wait stand there or not."""
    retry = disk.file("0/retry")
    for start in range(0, retry.size(), SLOT):
        retry.damage(start + 200 + rng.randrange(2000), b"x" * rng.randrange(500, 5000))


def place(text: str, unknown: Place) -> Place:
    epoch, _, sequence = text.partition("/")
    return unknown if text == "?" else (int(epoch), int(sequence))


@pytest.mark.parametrize("seed", [0, 1])
async def test_what_is_lost_of_the_retry_ring_was_accepted_between_the_records_that_the_log_names(
    kafka: Kafka, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng, disk = random.Random(seed), MemoryDisk()
    async with producer_of(disk) as producer:
        accepted = await publish(producer, 100)
        kafka.stalled = {STUCK}
        for _ in range(6):
            accepted += await publish(producer, 1000, every=30)
        await until(lambda: producer.statistics().slots_moved > 5)
        left = disk.after_process_death()
        kafka.life += 1
    kafka.stalled = set()
    damaged(left, rng)
    async with producer_of(left) as producer:
        await producer.flush(timeout_ms=30_000)
        missing = producer.statistics().missing
    told = [
        (int(most), place(after, (0, 0)), place(before, (9, 0))) for most, after, before in LINE.findall(caplog.text)
    ]
    lost = set(accepted) - {found for log in kafka.logs.values() for found, _ in log}
    assert 0 < len(lost) <= sum(most for most, _, _ in told) == missing
    assert all(any(after < one < before for _, after, before in told) for one in lost)
