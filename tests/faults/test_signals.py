"""Ctrl-C at a process that publishes: the first one stops it in its time, the second one ends it at once."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.kafka.kills import Lives, end
from tests.support.broker import Cluster, TopicFactory
from tests.support.published import NOWHERE, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

STOP_S = 4.0


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("there", [True, False], ids=["kafka", "no-kafka"])
async def test_an_interrupted_process_ends_in_its_time_and_loses_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, times: int, there: bool
) -> None:
    lives = Lives(kafka, topic(kafka), tmp_path, stop_timeout_ms=int(STOP_S * 1000))
    victim = await asyncio.to_thread(lives.start, 1, servers=None if there else NOWHERE)
    await asyncio.sleep(0.5)
    began = time.monotonic()
    for _ in range(times):
        victim.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
    await asyncio.to_thread(victim.wait, 30)
    took = time.monotonic() - began
    end(victim)
    assert took < (STOP_S + 3.0 if times == 1 else STOP_S - 0.5), took
    perfect(await lives.verdict())
