"""A backlog in the ring alone: how long opening takes; what reading costs in time, memory and stalls of the loop."""

import asyncio
import gc
import os
import time
from typing import Any

from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from benchmarks.backlog import MemoryWatch, memory, tick
from benchmarks.child import Child, stopwatch, tell
from benchmarks.disk import evict
from benchmarks.figures import quantiles, spread
from benchmarks.ring import ours, payloads
from benchmarks.setting import Result, Setting, Table

ROUNDS = 1
SIZES = (160,)
IDLE_TICKS = 500
CHECKPOINT_BYTES = 700_000_000  # stored between two: a producer at its fastest, 140 MB/s of 1 KB, each five seconds
WAYS = ("read", "read and settled")  # in this order: what is settled cannot be read again

Rounds = dict[str, list[dict[str, Any]]]


def run(setting: Setting) -> Result:
    setting.require_room(int(setting.gigabytes * 1e9))
    tables, data = [], {}
    for size in setting.sizes or SIZES:
        rounds: Rounds = {way: [] for way in WAYS}
        for number in range(setting.rounds or ROUNDS):
            setting.say(f"ring backlog: round {number + 1} storing {setting.gigabytes} GB of {size}-byte records")
            _one(setting, size, rounds)
        tables.append(_table(rounds, size))
        data[f"{size} B"] = rounds
    return Result("ring_backlog", tables, {"gigabytes": setting.gigabytes, **data})


def _one(setting: Setting, size: int, rounds: Rounds) -> None:
    with setting.wal_dir() as directory:
        with Child(build, directory=directory, size=size, total=int(setting.gigabytes * 1e9)) as builder:
            built = builder.read()
        for way in WAYS:
            evict(directory)
            arguments = {"directory": directory, "size": size, "stored": built["stored"], "way": way}
            with Child(replay, **arguments) as child, MemoryWatch(child) as watched:
                result = child.result()
            rounds[way].append({**built, **result, **watched.over_idle()})
            opened = f"opened in {result['open_s'] * 1000:,.0f} ms"
            setting.say(f"ring backlog: {opened}, {way} {result['records_s']:,.0f}/s")


def _table(rounds: Rounds, size: int) -> Table:
    kinds: list[tuple[str, str, float, str]] = [
        ("records", "stored", 1, ",.0f"),
        ("size of the used slots, GB", "bytes", 1e-9, ".2f"),
        ("opening the directory, ms", "open_s", 1e3, ".1f"),
        ("records/s", "records_s", 1, ",.0f"),
        ("MB/s of payload", "records_s", size / 1e6, ",.0f"),
        ("processor time a record, µs", "cpu_us", 1, ".2f"),
        ("resident memory over idle, at most, MB", "VmRSS", 1e-6, ".1f"),
        ("    of it the process's own", "RssAnon", 1e-6, ".1f"),
        ("    of it mapped pages of the ring (page cache)", "RssFile", 1e-6, ".1f"),
        *[(f"one read, {name}, ms", f"step_{name}", 1e-6, ".2f") for name in ("p50", "p99", "p99.9", "max")],
        *[(f"event loop late by, {name}, ms", f"stall_{name}", 1e-6, ".2f") for name in ("p50", "p99", "p99.9", "max")],
    ]
    idle = ", ".join(f"{name} {spread(rounds['read'], f'idle_{name}', 1e-6).text('.2f')}" for name in ("p99.9", "max"))
    return Table(
        title=f"Backlog of {size:,}-byte payloads in the ring",
        columns=["", *WAYS],
        rows=[[title, *(spread(rounds[way], key, by).text(form) for way in WAYS)] for title, key, by, form in kinds],
        notes=[
            f"one read: Reader.look of up to {ours.STEP} records, with settling, as one turn of the dispatcher",
            f"late: beyond 1 ms of sleep, by a task that does nothing else; in the same process before: {idle} ms",
            "number, order and content of all records were compared while they were read",
        ],
    )


# -- in processes of their own -----------------------------------------------------------------------------------------


async def build(directory: str, size: int, total: int) -> None:
    """Append until the used slots are so large; never returns: a killed process is what leaves a backlog."""
    store, stored, checked = ours.RingStore(directory), 0, 0
    for chunk in payloads.chunks(size):
        await store.store(chunk)
        stored += len(chunk)
        if store.ring.bytes_used >= checked + CHECKPOINT_BYTES:
            checked = store.ring.bytes_used
            await store.checkpoint()
        if store.ring.bytes_used >= total:
            break
    tell(stored=stored, bytes=store.ring.bytes_used)
    await asyncio.Event().wait()


async def replay(directory: str, size: int, stored: int, way: str) -> dict[str, Any]:
    late: list[int] = []
    expected = payloads.payloads(size)
    gc.collect()
    await tick(late, IDLE_TICKS)
    idle = quantiles(late)
    late.clear()
    tell(idle=memory(os.getpid()))
    began = time.perf_counter()
    found = ours.opened(directory)
    opened = time.perf_counter() - began
    ticking = asyncio.create_task(tick(late))
    reading = _Reading(found.ring, expected, settles=way == "read and settled")
    with stopwatch() as watch:
        while reading.step():  # noqa: ASYNC110 - each step does work
            await asyncio.sleep(0)
    ticking.cancel()
    assert reading.count == stored, f"records are missing: found={reading.count} {stored=}"
    return {
        "open_s": opened,
        "records_s": stored / watch.elapsed,
        "cpu_us": watch.cpu / stored * 1e6,
        **{f"idle_{name}": value for name, value in idle.items()},
        **{f"step_{name}": value for name, value in quantiles(reading.took).items()},
        **{f"stall_{name}": value for name, value in quantiles(late).items()},
    }


class _Reading:
    """What the dispatcher does with the ring in each turn of the loop, and nothing of what it does with Kafka."""

    def __init__(self, ring: Ring, expected: list[bytes], *, settles: bool) -> None:
        self._ring = ring
        self._reader = Reader(ring, bytes)
        self._expected = expected + expected  # so that what is read together stands together here too
        self._settles = settles
        self.count = 0
        self.took: list[int] = []

    def step(self) -> bool:
        """Read once; False at the end."""
        began = time.perf_counter_ns()
        taken = self._reader.look(ours.STEP)
        records = [] if taken is None else taken.records
        if taken is not None and self._settles:
            self._ring.settle(taken.slot, taken.places)
        self.took.append(time.perf_counter_ns() - began)
        first = self.count % payloads.DIFFERENT
        assert records == self._expected[first : first + len(records)], f"other records were read: {self.count=}"
        self.count += len(records)
        return bool(records) or self._reader.moved
