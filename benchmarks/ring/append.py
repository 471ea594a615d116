"""`Writer.append`: ns a record beside an empty function, and latency beside an empty coroutine."""

import asyncio
import gc
import time
from array import array
from typing import Any

from aiorecover.ring.flush import Keeper
from benchmarks import child, machine
from benchmarks.figures import quantiles, spread
from benchmarks.load import VALUE
from benchmarks.ring.store import TOPIC, TURN, TURN_KEYS, Store, now_ms, store_turns
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
RECORDS = 500_000
CHUNK = 64 * TURN  # records between two times that batches are settled, outside of what is measured
FLUSH_S = 0.1
LANES = (1, 6)
REUSED, FLUSHED, FRESH = "reused segments", f"a flush every {FLUSH_S * 1000:.0f} ms", "fresh pages"
WAYS = (REUSED, FLUSHED, FRESH)
QUANTILES = ("p50", "p99", "p99.9", "max")

Key = tuple[str, int]  # way, lanes
Rounds = list[dict[str, Any]]


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: dict[Key, Rounds] = {(way, lanes): [] for way in WAYS for lanes in LANES}
    for number in range(rounds):
        for (way, lanes), figures in measured.items():
            with setting.wal_dir() as directory:
                figures.append(child.call(measure, directory=directory, way=way, lanes=lanes, records=records))
            told = f"{_name((way, lanes))} {figures[-1]['append_ns']:,.0f} ns"
            setting.say(f"ring append: round {number + 1}/{rounds} {told}")
    data = {_name(key): figures for key, figures in measured.items()}
    return Result("ring_append", [_costs(measured), _latencies(measured)], {"records": records, "rounds": data})


def _name(key: Key) -> str:
    way, lanes = key
    return f"{lanes} {'lane' if lanes == 1 else 'lanes'}, {way}"


def _costs(measured: dict[Key, Rounds]) -> Table:
    number, rows = len(next(iter(measured.values()))), []
    for (way, lanes), rounds in measured.items():
        cost, empty = spread(rounds, "append_ns"), spread(rounds, "empty_ns")
        alone = spread(measured[REUSED, lanes], "append_ns").median
        ratios = [f"{cost.median / empty.median:.1f}", f"{cost.median / alone:.2f}"]
        rows.append([_name((way, lanes)), cost.text(), empty.text(), *ratios])
    return Table(
        title="Writer.append of 160 B, ns a record",
        columns=["", "append", "empty function", "ratio", "ratio to reused segments, alone"],
        rows=rows,
        notes=[
            f"medians over {number} interleaved rounds (least to greatest), ratios of medians",
            f"with a turn of the loop and a look at the clock every {TURN} records, as publish gives them",
            f"batches are settled every {CHUNK:,} records, outside of what is measured; with fresh pages they are not",
        ],
    )


def _latencies(measured: dict[Key, Rounds]) -> Table:
    rows = []
    for key, rounds in measured.items():
        empty = spread([one["empty"] for one in rounds], "p50").median
        for name in ("append", "empty"):
            spreads = [spread([one[name] for one in rounds], quantile) for quantile in QUANTILES]
            cells = [f"{one.median / 1e3:.2f} ({one.median / empty:,.1f}x)" for one in spreads]
            rows.append([_name(key) if name == "append" else "    empty coroutine, same loop", *cells])
    clocks = [one["clock_ns"] for rounds in measured.values() for one in rounds]
    return Table(
        title="Latency of Writer.append in µs, and how many times the p50 of an empty coroutine that is",
        columns=["", *QUANTILES],
        rows=rows,
        notes=[
            f"every figure includes one reading of the clock: {min(clocks)} to {max(clocks)} ns (p50)",
            "turns of the loop lie outside of what is measured",
        ],
    )


# -- in a process of its own -------------------------------------------------------------------------------------------


async def measure(directory: str, way: str, lanes: int, records: int) -> dict[str, Any]:
    store = Store(directory, lanes)
    keeper = Keeper(store.ring, "interval", FLUSH_S)
    if way == FLUSHED:
        keeper.start()
    chunks = -(-records // CHUNK)
    await _store(store, way, max(2, chunks // 4))  # not counted
    gc.collect()
    spent = await _store(store, way, chunks)
    gc.collect()
    began = time.perf_counter_ns()
    await store_turns(_empty, chunks * CHUNK // TURN)
    empty_ns = time.perf_counter_ns() - began
    figures = await _timed(store, way, chunks)
    if way == FLUSHED:
        await keeper.stop()
    store.close()
    each = {"append_ns": spent / (chunks * CHUNK), "empty_ns": empty_ns / (chunks * CHUNK)}
    return {**each, **figures, "clock_ns": machine.clock_ns()}


async def _store(store: Store, way: str, chunks: int) -> int:
    """Store so many chunks; what that took without settling, in ns."""
    spent = 0
    for _ in range(chunks):
        began = time.perf_counter_ns()
        await store_turns(store.writer.append, CHUNK // TURN)
        spent += time.perf_counter_ns() - began
        _make_room(store, way)
    return spent


def _make_room(store: Store, way: str) -> None:
    if way != FRESH:
        store.settle()
    if way == REUSED:
        store.flush()  # with a keeper it is the keeper's


async def _timed(store: Store, way: str, chunks: int) -> dict[str, Any]:
    """Take the time of each call, and of an empty coroutine right after it."""
    append, clock = store.writer.append, time.perf_counter_ns
    took, empty = array("q"), array("q")
    gc.collect()
    for _ in range(chunks):
        for _ in range(CHUNK // TURN):
            timestamp = now_ms()
            for key in TURN_KEYS:
                began = clock()
                append(TOPIC, key, VALUE, timestamp)
                ended = clock()
                await _empty_coroutine(TOPIC, key, VALUE, timestamp)
                empty.append(clock() - ended)
                took.append(ended - began)
            await asyncio.sleep(0)
        _make_room(store, way)
    return {"append": quantiles(took), "empty": quantiles(empty)}


def _empty(
    topic: str,
    key: Any,
    value: bytes | None,
    timestamp_ms: int,
    headers: Any = None,
    partition: int | None = None,
    note: bytes | None = None,
) -> None:
    """The signature of append, and nothing else."""


async def _empty_coroutine(
    topic: str,
    key: Any,
    value: bytes | None,
    timestamp_ms: int,
    headers: Any = None,
    partition: int | None = None,
    note: bytes | None = None,
) -> None:
    """The same."""
