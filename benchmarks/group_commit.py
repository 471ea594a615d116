"""fsync="always": how many records a second become durable, and how many publishers share one fdatasync."""

import asyncio
import time
from typing import Any

from aiorecover import RecoverableProducer
from benchmarks import kafka, load
from benchmarks.child import call, stopwatch
from benchmarks.disk import PROBE_BYTES, count_syncs, sync_us
from benchmarks.figures import quantiles, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
PUBLISHERS = (1, 10, 100, 1000)
SECONDS = 1.5
WARM_UP_SECONDS = 0.5


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    measured: dict[int, list[dict[str, Any]]] = {publishers: [] for publishers in PUBLISHERS}
    for number in range(rounds):
        for publishers, figures in measured.items():
            figures.append(_one(setting, publishers))
            setting.say(
                f"group commit: round {number + 1}/{rounds} {publishers} publishers {figures[-1]['accepted_s']:,.0f}/s"
            )
    return Result("group_commit", [_table(measured)], {"seconds": SECONDS, "rounds": measured})


def _one(setting: Setting, publishers: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "group-commit") as topic, setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        figures = call(commit, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir, publishers=publishers)
        kafka.verify(setting.cluster, topic, figures["delivered"])
        return figures


def _table(measured: dict[int, list[dict[str, Any]]]) -> Table:
    rows = [
        [
            f"{publishers:,}",
            spread(rounds, "accepted_s").text(),
            spread(rounds, "syncs_s").text(),
            spread(rounds, "records_a_sync").text(",.1f"),
            spread(rounds, "p50_ms").text(".2f"),
            spread(rounds, "p99_ms").text(".2f"),
        ]
        for publishers, rounds in measured.items()
    ]
    probes = [one["probe_us"] for rounds in measured.values() for one in rounds]
    return Table(
        title='Group commit, fsync="always", with delivery running',
        columns=["publishers", "accepted/s", "fdatasync/s", "records per fdatasync", "publish p50 ms", "p99 ms"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            "fdatasync: all of the process, those of checkpoints too",
            f"the disk alone: {PROBE_BYTES} bytes and fdatasync in {min(probes):,.0f} to {max(probes):,.0f} µs (p50)",
        ],
    )


# -- in its own process ------------------------------------------------------------------------------------------------


async def commit(bootstrap_servers: str, topic: str, wal_dir: str, publishers: int) -> dict[str, Any]:
    probe_us = sync_us(wal_dir)
    syncs = count_syncs()
    async with load.producer(wal_dir, bootstrap_servers, fsync="always") as producer:
        warm_up = await _publish_for(producer, topic, publishers, WARM_UP_SECONDS)
        syncs_before = syncs()
        with stopwatch() as watch:
            waits = await _publish_for(producer, topic, publishers, SECONDS)
        synced = syncs() - syncs_before
        await producer.flush()
    waited = quantiles(waits)
    return {
        "accepted_s": len(waits) / watch.elapsed,
        "syncs_s": synced / watch.elapsed,
        "records_a_sync": len(waits) / synced,
        "p50_ms": waited["p50"] / 1e6,
        "p99_ms": waited["p99"] / 1e6,
        "cpu_us": watch.cpu / len(waits) * 1e6,
        "probe_us": probe_us,
        "delivered": len(warm_up) + len(waits),
    }


async def _publish_for(producer: RecoverableProducer, topic: str, publishers: int, seconds: float) -> list[int]:
    """Return the wait of each publish, in ns."""
    waits: list[int] = []
    until = time.perf_counter_ns() + int(seconds * 1e9)
    clock = time.perf_counter_ns

    async def publish(key: bytes) -> None:
        began = clock()
        while began < until:
            await producer.publish(topic, load.VALUE, key=key)
            ended = clock()
            waits.append(ended - began)
            began = ended

    await asyncio.gather(*[publish(key) for key in load.keys(publishers)])
    return waits
