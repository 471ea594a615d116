"""The benchmarks reach into the library in a few places: each of these ways still delivers."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiorecover.testing import MockClusterProcess
from benchmarks import acknowledgement, latency, partitions, streams, throughput, warm
from tests.support.admin import count_records
from tests.support.oracle import read_topic

DELIVERED_WITHIN = 30.0  # seconds: a fraction of one, unless nothing gets through

Way = Callable[..., Any]


async def run(way: Way, **arguments: Any) -> dict[str, Any]:
    """As in a child, where what is no coroutine has the thread for itself."""
    async with asyncio.timeout(DELIVERED_WITHIN):
        result = way(**arguments) if inspect.iscoroutinefunction(way) else asyncio.to_thread(way, **arguments)
        figures: dict[str, Any] = await result
        return figures


@pytest.mark.asyncio
@pytest.mark.parametrize("way", [*throughput.CONTENDERS.values(), *partitions.CONTENDERS.values()])
async def test_a_way_of_delivering_that_is_measured_delivers(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "WARM_UP", 1000)
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        servers = cluster.bootstrap_servers
        figures = await run(way, bootstrap_servers=servers, topic="t", records=2000, wal_dir=str(tmp_path))
        found = await count_records(servers, "t", 6)
    assert found == 1000 + 2000
    assert figures["delivered_s"] > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("way", acknowledgement.CONTENDERS.values())
async def test_each_record_of_a_slow_pace_is_acknowledged(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgement, "WARM_UP", 1000)
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        arguments = {"topic": "t", "wal_dir": str(tmp_path), "rate": 1000, "seconds": 0.2}
        figures = await run(way, bootstrap_servers=cluster.bootstrap_servers, **arguments)
        found = await count_records(cluster.bootstrap_servers, "t", 6)
    assert found == 1000 + 200
    assert sum(count for _, count in figures["ack_histogram"]) == 200
    assert sum(count for _, count in figures["call_histogram"]) == 200
    assert figures["ack"]["p50"] > figures["call"]["p50"]


@pytest.mark.asyncio
async def test_each_partition_is_warmed_up_with_as_many_records(tmp_path: Path) -> None:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        async with asyncio.timeout(DELIVERED_WITHIN):
            await warm.fill(cluster.bootstrap_servers, "t", str(tmp_path), 6)
        found = await read_topic(cluster.bootstrap_servers, "t")
    assert Counter(record.partition for record in found) == dict.fromkeys(range(6), warm.RECORDS_A_PARTITION)


@pytest.mark.asyncio
async def test_delivered_is_timed_for_records_that_were_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "WARM_UP", 1000)
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        async with asyncio.timeout(DELIVERED_WITHIN):
            figures = await latency.asking(cluster.bootstrap_servers, "t", str(tmp_path), 500)
        found = await count_records(cluster.bootstrap_servers, "t", 6)
    assert figures["delivered"] == found == 2000
    assert figures["asked"]["p50"] > 0
    assert figures["asked_us"] > 0


@pytest.mark.asyncio
async def test_streams_are_published_at_their_pace_and_a_fresh_topic_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FRESH_RECORDS", 2)
    monkeypatch.setattr(streams, "WARM_UP_S", 0.02)
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("t", partitions=6)
        servers = cluster.bootstrap_servers
        async with asyncio.timeout(DELIVERED_WITHIN):
            paced = await streams.streams(servers, "t", str(tmp_path / "paced"), 0.05)
            filled = [await streams.fill(servers, "t", str(tmp_path / "fresh"))]
            filled.append(await asyncio.to_thread(streams.fill_confluent, servers, "t", ""))
        found = await count_records(servers, "t", 6)
    assert found == (2 + 5 + 2 * 2) * streams.STREAMS
    assert paced["ack"]["p50"] > 0
    assert all(one["delivered_s"] > 0 for one in filled)
