"""Group commit without Kafka: publishers that wait for a flush each.

    the ring      `Writer.append`, then `Keeper.flushed`
    publish       ``fsync="always"``, no broker can be reached

The ring gives the loop a turn as often as `publish` does; `publish` itself checks, serialises and tries to deliver as
well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

from aiorecover.ring.flush import Keeper
from benchmarks import child, load
from benchmarks.disk import PROBE_BYTES, count_syncs, sync_us
from benchmarks.figures import quantiles, spread
from benchmarks.ring.store import KEYS, TOPIC, TURN, OtherBoot, Store, now_ms
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
PUBLISHERS = (1, 10, 100, 1000)
SECONDS = 1.0
WARM_UP_SHARE = 0.3  # of these seconds, not counted
NO_BROKER_MS = 1  # that publish waits at its end for what cannot be delivered

Publish = Callable[[bytes], Awaitable[None]]
Key = tuple[int, str]  # publishers, contender
Rounds = list[dict[str, Any]]


def run(setting: Setting) -> Result:
    rounds, seconds = setting.rounds or ROUNDS, setting.seconds or SECONDS
    measured: dict[Key, Rounds] = {(publishers, name): [] for publishers in PUBLISHERS for name in CONTENDERS}
    for number in range(rounds):
        for (publishers, name), figures in measured.items():
            figures.append(_one(setting, name, publishers, seconds))
            told = f"{publishers} publishers, {name} {figures[-1]['records_s']:,.0f}/s"
            setting.say(f"ring commit: round {number + 1}/{rounds} {told}")
    data = {f"{publishers} publishers, {name}": figures for (publishers, name), figures in measured.items()}
    return Result("ring_commit", [_table(measured)], {"seconds": seconds, "rounds": data})


def _one(setting: Setting, name: str, publishers: int, seconds: float) -> dict[str, Any]:
    with setting.wal_dir() as directory:
        given = {"directory": directory, "name": name, "publishers": publishers, "seconds": seconds}
        figures = child.call(commit, **given)
        if name == OURS:
            found = child.call(count_after_power_cut, directory=directory)["records"]
            assert found == figures["stored"], f"not all was durable: stored={figures['stored']} {found=}"
    return figures


def _table(measured: dict[Key, Rounds]) -> Table:
    rows = []
    for (publishers, name), rounds in measured.items():
        rate = spread(rounds, "records_s")
        ours = spread(measured[publishers, OURS], "records_s").median
        cells = [rate.text(), f"{ours / rate.median:.2f}", spread(rounds, "records_a_sync").text(",.1f")]
        waits = [f"{spread(rounds, name, 1e-6).median:,.2f}" for name in ("p50", "p99", "p99.9")]
        rows.append([f"{publishers:,} publishers, {name}", *cells, *waits, f"{spread(rounds, 'cpu_us').median:,.1f}"])
    probes = [one["probe_us"] for rounds in measured.values() for one in rounds]
    return Table(
        title="Records of 160 B that wait for a flush each, without Kafka",
        columns=["", "records/s", "the ring against it", "records a flush", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest); ratios of them",
            f"the disk alone: {PROBE_BYTES} bytes and fdatasync in {min(probes):,.0f} to {max(probes):,.0f} µs (p50)",
            "the ring: all records were found again as after a power cut, by what the flushes had covered",
        ],
    )


# -- in processes of their own -----------------------------------------------------------------------------------------


async def commit(directory: str, name: str, publishers: int, seconds: float) -> dict[str, Any]:
    probe = sync_us(directory)
    place = str(Path(directory) / "wal")
    syncs = count_syncs()
    async with CONTENDERS[name](place) as publish:
        warm_up = await _publish_for(publish, publishers, seconds * WARM_UP_SHARE)
        before = syncs()
        with child.stopwatch() as watch:
            waits = await _publish_for(publish, publishers, seconds)
        synced = syncs() - before
    return {
        "stored": len(warm_up) + len(waits),
        "records_s": len(waits) / watch.elapsed,
        "records_a_sync": len(waits) / synced,
        "cpu_us": watch.cpu / len(waits) * 1e6,
        "probe_us": probe,
        **quantiles(waits),
    }


async def _publish_for(publish: Publish, publishers: int, seconds: float) -> list[int]:
    """Return the wait of each record, in ns."""
    waits: list[int] = []
    clock = time.perf_counter_ns
    until = clock() + int(seconds * 1e9)

    async def publish_in_turn(key: bytes) -> None:
        began = clock()
        while began < until:
            await publish(key)
            ended = clock()
            waits.append(ended - began)
            began = ended

    await asyncio.gather(*[publish_in_turn(key) for _, key in zip(range(publishers), cycle(KEYS), strict=False)])
    return waits


def count_after_power_cut(directory: str) -> dict[str, Any]:
    """How many records the flushes have covered."""
    store = Store(str(Path(directory) / "wal"), files=OtherBoot())
    records = store.recover().records
    store.close()
    return {"records": records}


@asynccontextmanager
async def _ring(directory: str) -> AsyncIterator[Publish]:
    store = Store(directory)
    keeper = Keeper(store.ring, "always")
    keeper.start()
    append, flushed, calls = store.writer.append, keeper.flushed, count(1)

    async def publish(key: bytes) -> None:
        append(TOPIC, key, load.VALUE, now_ms())
        if not next(calls) % TURN:
            await asyncio.sleep(0)
        await flushed()

    yield publish
    await keeper.stop()
    store.close()


@asynccontextmanager
async def _publish(directory: str) -> AsyncIterator[Publish]:
    options = {"fsync": "always", "stop_timeout_ms": NO_BROKER_MS}
    async with load.producer(directory, load.NOBODY, **options) as producer:
        publish_record = producer.publish

        async def publish(key: bytes) -> None:
            await publish_record(TOPIC, load.VALUE, key=key)

        yield publish


OURS = "the ring"
CONTENDERS = {OURS: _ring, "publish": _publish}
