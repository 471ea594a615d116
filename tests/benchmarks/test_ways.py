"""What is measured reaches into the library here and there: each such way still delivers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aiorecover.testing import MockClusterProcess
from benchmarks import journal, sessions, throughput

DELIVERED_WITHIN = 30.0  # seconds: a fraction of one, unless nothing gets through

Way = Callable[[str, str, int, str], Awaitable[dict[str, Any]]]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", [throughput.aiorecover, journal.journaled, journal.without, sessions.apart])
async def test_a_way_of_delivering_that_is_measured_delivers(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "WARM_UP", 1000)
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        async with asyncio.timeout(DELIVERED_WITHIN):
            figures = await way(cluster.bootstrap_servers, "t", 2000, str(tmp_path))
    assert figures["delivered_s"] > 0
