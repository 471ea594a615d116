"""Group commit without Kafka: ``fsync="always"`` beside the best that can be made of SQLite for as many publishers.

Nothing in Python's queues shares a flush: N callers take turns there, one flush each, and the figure is that of one
caller in `ring_levels`, whatever N. So the one to beat is what somebody would write around SQLite: the coroutines that
wait are committed together in one transaction by one thread, the next ones while it runs. It uses aiorecover's own
`GroupCommit` and `Keeper`, so that only what is below them differs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiorecover.wal.keeper import Keeper
from aiorecover.wal.sync import GroupCommit
from benchmarks import load
from benchmarks.child import Child, call, stopwatch, tell
from benchmarks.disk import PROBE_BYTES, count_syncs, sync_us
from benchmarks.figures import quantiles, spread
from benchmarks.ring import ours, payloads
from benchmarks.ring.others import connect, insert_all, sqlite_back
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
PUBLISHERS = (1, 10, 100, 1000)
SECONDS = 1.5
WARM_UP_SECONDS = 0.3
SIZES = (160,)

Publish = Callable[[bytes], Awaitable[object]]
Key = tuple[int, int, str]  # size, publishers, contender


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    sizes = setting.sizes or SIZES
    measured: dict[Key, list[dict[str, Any]]] = {
        (size, publishers, name): [] for size in sizes for publishers in PUBLISHERS for name in CONTENDERS
    }
    for number in range(rounds):
        for (size, publishers, name), figures in measured.items():
            figures.append(_one(setting, name, size, publishers))
            told = f"{size} B, {publishers} publishers, {name} {figures[-1]['records_s']:,.0f}/s"
            setting.say(f"ring commit: round {number + 1}/{rounds} {told}")
    data = {f"{size} B, {publishers} publishers, {name}": found for (size, publishers, name), found in measured.items()}
    return Result(
        "ring_commit",
        [_table(measured, size) for size in sizes],
        {"seconds": setting.seconds or SECONDS, "rounds": data},
    )


def _one(setting: Setting, name: str, size: int, publishers: int) -> dict[str, Any]:
    with setting.wal_dir() as directory:
        arguments = {"name": name, "size": size, "directory": directory}
        with Child(commit, publishers=publishers, seconds=setting.seconds or SECONDS, **arguments) as child:
            figures = child.read()
        call(find, stored=figures["stored"], **arguments)
    return figures


def _table(measured: dict[Key, list[dict[str, Any]]], size: int) -> Table:
    rows = []
    for (its_size, publishers, name), rounds in measured.items():
        if its_size != size:
            continue
        rate, first = (spread(measured[size, publishers, which], "records_s").median for which in (name, OURS))
        rows.append(
            [
                f"{publishers:,} publishers, {name}",
                spread(rounds, "records_s").text(),
                f"{first / rate:.1f}x",
                spread(rounds, "records_a_sync").text(",.1f"),
                *(f"{spread(rounds, quantile, 1e-6).median:,.2f}" for quantile in ("p50", "p99", "p99.9")),
                f"{spread(rounds, 'cpu_us').median:,.1f}",
            ]
        )
    probes = [one["sync_us"] for rounds in measured.values() for one in rounds]
    return Table(
        title=f'Group commit without Kafka, {size:,}-byte records, fsync="always"',
        columns=["", "records/s", "ours against it", "records a flush", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            "SQLite: WAL, synchronous=FULL, those who wait together in one transaction; a flush is a transaction there",
            f"the disk alone: {PROBE_BYTES} bytes and fdatasync in {min(probes):,.0f} to {max(probes):,.0f} µs (p50)",
            "every record was read back by another process after kill -9",
        ],
    )


# -- in processes of their own -----------------------------------------------------------------------------------------


async def commit(name: str, size: int, directory: str, publishers: int, seconds: float) -> None:
    """Tell the figures, and wait to be killed."""
    probe = sync_us(directory)
    async with CONTENDERS[name](directory) as (publish, flushes):
        numbers = count()
        await _publish_for(publish, size, publishers, WARM_UP_SECONDS, numbers)
        before = flushes()
        with stopwatch() as watch:
            waits = await _publish_for(publish, size, publishers, seconds, numbers)
        flushed = flushes() - before
        tell(
            stored=next(numbers),
            records_s=len(waits) / watch.elapsed,
            records_a_sync=len(waits) / flushed,
            cpu_us=watch.cpu / len(waits) * 1e6,
            sync_us=probe,
            **quantiles(waits),
        )
        await asyncio.Event().wait()


def find(name: str, size: int, directory: str, stored: int) -> dict[str, Any]:
    """Read everything back; publishers overtake each other, so in any order."""
    back = ours.values_back if name == OURS else sqlite_back
    payloads.check(back(directory), size, stored, ordered=False)
    return {"found": stored}


async def _publish_for(
    publish: Publish, size: int, publishers: int, seconds: float, numbers: "count[int]"
) -> list[int]:
    """What each publish waited, in ns."""
    waits: list[int] = []
    clock, contents = time.perf_counter_ns, payloads.payloads(size)
    until = clock() + int(seconds * 1e9)

    async def publish_in_turn() -> None:
        began = clock()
        while began < until:
            await publish(contents[next(numbers) % payloads.DIFFERENT])
            ended = clock()
            waits.append(ended - began)
            began = ended

    await asyncio.gather(*[publish_in_turn() for _ in range(publishers)])
    return waits


Opened = tuple[Publish, Callable[[], int]]
"""To store one payload and wait until it is durable; how many flushes there were."""


@asynccontextmanager
async def _aiorecover(directory: str) -> AsyncIterator[Opened]:
    flushes = count_syncs()
    async with load.producer(directory, load.NOBODY, fsync="always") as producer:
        publish = producer.publish

        async def publish_payload(payload: bytes) -> None:
            await publish(ours.TOPIC, payload)

        yield publish_payload, flushes


@asynccontextmanager
async def _sqlite(directory: str) -> AsyncIterator[Opened]:
    store = _SqliteGroup(directory)
    yield store.publish, lambda: store.transactions


class _SqliteGroup:
    """Whoever waits is inserted in one transaction, in the keeper's thread."""

    def __init__(self, directory: str) -> None:
        self._connection = connect(directory, "FULL")
        self._keeper = Keeper("benchmark-sqlite")
        self._commit = GroupCommit(self._flush)
        self._waiting: list[bytes] = []
        self.transactions = 0

    async def publish(self, payload: bytes) -> None:
        self._waiting.append(payload)
        await self._commit.durable()

    async def _flush(self) -> None:
        taken, self._waiting = self._waiting, []
        await self._keeper.submit(insert_all, self._connection, taken)
        self.transactions += 1


OURS = "aiorecover publish"
CONTENDERS = {OURS: _aiorecover, "SQLite, grouped by hand": _sqlite}
