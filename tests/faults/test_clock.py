"""The system clock jumps, by a little and by a year."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

HOUR_NS = 3_600_000_000_000
JUMPS = (0, -1_000_000, -HOUR_NS, -365 * 24 * HOUR_NS, 365 * 24 * HOUR_NS, 10_000)


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_a_clock_that_jumps_delays_loses_and_repeats_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Any
) -> None:
    name, published, real, offset = topic(kafka), Published(), time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + offset)
    count = 1000 if fsync == "interval" else 30
    for _ in range(2):  # the second life begins in the past of the first one
        async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, fsync=fsync) as producer:
            for jump in JUMPS:
                offset += jump
                turns = asyncio.create_task(_count_turns())
                await published.publish(producer, name, count)
                turns.cancel()
                assert fsync == "always" or await turns >= 1, "a loop that only publishes gives turns"
                await producer.flush(WITHIN_MS)
        offset -= HOUR_NS
    perfect(await published.judged(kafka, name))


async def _count_turns() -> int:
    turns = 0
    try:
        while True:
            await asyncio.sleep(0)
            turns += 1
    except asyncio.CancelledError:
        return turns
