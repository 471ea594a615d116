"""`Ring.append` and `await publish` at four sizes while everything is delivered to Kafka and fdatasync runs."""

import asyncio
import gc
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks import kafka, load, machine
from benchmarks.child import call
from benchmarks.figures import quantiles, spread
from benchmarks.ring import payloads
from benchmarks.ring.contenders import OFTEN_S
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
BYTES_S = 16_000_000  # published each second, so that small records do not stand behind large ones
MOST_S = 30_000  # records each second
SECONDS = 3.0
WARM_UP = 1000
TICK_S = 0.001  # a publisher sleeps so long, then publishes what is due


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    measured: dict[int, list[dict[str, Any]]] = {size: [] for size in setting.sizes or payloads.SIZES}
    for number in range(rounds):
        for size, figures in measured.items():
            figures.append(_one(setting, size))
            setting.say(f"ring delivery: round {number + 1}/{rounds} {size} B {figures[-1]['publish']}")
    return Result("ring_delivery", [_table(measured)], {"seconds": setting.seconds or SECONDS, "rounds": measured})


def rate(size: int) -> int:
    """Records/s of this size."""
    return min(MOST_S, BYTES_S // size)


def _one(setting: Setting, size: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "ring-delivery") as topic, setting.wal_dir() as wal_dir:
        servers, seconds = setting.cluster.bootstrap_servers, setting.seconds or SECONDS
        figures = call(deliver, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir, size=size, seconds=seconds)
        kafka.verify(setting.cluster, topic, figures["published"])
        return figures


def _table(measured: dict[int, list[dict[str, Any]]]) -> Table:
    rows = []
    for size, rounds in measured.items():
        for what in ("append", "publish"):
            each = [one[what] for one in rounds]
            quantiles_us = [spread(each, name, 1e-3).text(".2f") for name in ("p50", "p99", "p99.9", "max")]
            rows.append([f"{size:,} B, {rate(size):,}/s: {what}", *quantiles_us])
    clocks = [one["clock_ns"] for rounds in measured.values() for one in rounds]
    return Table(
        title=f"Delivering to Kafka, fdatasync every {OFTEN_S * 1000:.0f} ms, in µs",
        columns=["", "p50", "p99", "p99.9", "max"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            f"every figure includes one reading of the clock, {min(clocks)} to {max(clocks)} ns (p50);",
            "publish two more and a Python call, because append is measured inside of it",
            "every record arrived (end offsets)",
        ],
    )


# -- in its own process ------------------------------------------------------------------------------------------------


async def deliver(bootstrap_servers: str, topic: str, wal_dir: str, size: int, seconds: float) -> dict[str, Any]:
    appended, published = array("q"), array("q")
    contents, records = payloads.payloads(size), int(rate(size) * seconds)
    options = {"fsync": "interval", "fsync_interval_ms": int(OFTEN_S * 1000)}
    async with load.producer(wal_dir, bootstrap_servers, **options) as producer:
        producer._append = _timed(producer._append, appended)

        async def publish(number: int) -> None:
            await producer.publish(topic, contents[number % payloads.DIFFERENT], key=load.KEYS[number % 1000])

        for number in range(WARM_UP):
            await publish(number)
        await producer.flush()
        del appended[:]
        gc.collect()
        await _paced(publish, records, rate(size), published)
        await producer.flush()
    assert len(appended) == records, f"append was not measured: {len(appended)=} {records=}"
    return {
        "append": quantiles(appended),
        "publish": quantiles(published),
        "clock_ns": machine.clock_ns(),
        "published": WARM_UP + records,
    }


def _timed(append: Callable[..., Any], times: "array[int]") -> Callable[..., Any]:
    clock = time.perf_counter_ns

    def timed(payload: bytes, record: object) -> Any:
        began = clock()
        stored = append(payload, record)
        times.append(clock() - began)
        return stored

    return timed


async def _paced(publish: Callable[[int], Awaitable[None]], records: int, rate: int, times: "array[int]") -> None:
    clock, began, due = time.perf_counter_ns, time.perf_counter(), 0
    for number in range(records):
        while due <= number:
            await asyncio.sleep(TICK_S)
            due = int((time.perf_counter() - began) * rate)
        before = clock()
        await publish(number)
        times.append(clock() - before)
