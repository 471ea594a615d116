"""`Ring.append` and `await publish` at four sizes while everything is delivered to Kafka and fdatasync runs.

First at a pace, for the time that each takes; then as fast as one publisher goes, for records/s.
"""

import asyncio
import gc
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

from aiorecover import RecoverableProducer
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
FLAT_OUT_BYTES = 64_000_000  # published without a pause, for records/s: two seconds and more for each size, measured
FLAT_OUT_MOST = 200_000  # records, likewise
WARM_UP = 1000
TICK_S = 0.001  # a publisher sleeps so long, then publishes what is due


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    measured: dict[int, list[dict[str, Any]]] = {size: [] for size in setting.sizes or payloads.SIZES}
    for number in range(rounds):
        for size, figures in measured.items():
            figures.append(_one(setting, size))
            setting.say(f"ring delivery: round {number + 1}/{rounds} {size} B {figures[-1]['publish']}")
    tables = [_table(measured), _flat_out_table(measured)]
    return Result("ring_delivery", tables, {"seconds": setting.seconds or SECONDS, "rounds": measured})


def rate(size: int) -> int:
    """Records/s of this size."""
    return min(MOST_S, BYTES_S // size)


def flat_out(size: int) -> int:
    """Records of this size that are published without a pause."""
    return min(FLAT_OUT_MOST, FLAT_OUT_BYTES // size)


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


def _flat_out_table(measured: dict[int, list[dict[str, Any]]]) -> Table:
    rows = []
    for size, rounds in measured.items():
        each = [one["flat_out"] for one in rounds]
        figures = [spread(each, name).text() for name in ("accepted_s", "delivered_s")]
        rows.append([f"{size:,} B, {flat_out(size):,} records", *figures])
    return Table(
        title="The same as fast as one publisher goes, in records/s",
        columns=["", "accepted", "delivered"],
        rows=rows,
        notes=[
            "accepted: until the last `await publish` came back, delivery taking its turns meanwhile",
            "delivered: until `flush` came back, everything is in Kafka",
        ],
    )


# -- in its own process ------------------------------------------------------------------------------------------------


async def deliver(bootstrap_servers: str, topic: str, wal_dir: str, size: int, seconds: float) -> dict[str, Any]:
    appended, published = array("q"), array("q")
    contents, records = payloads.payloads(size), int(rate(size) * seconds)
    options = {"fsync": "interval", "fsync_interval_ms": int(OFTEN_S * 1000)}
    async with load.producer(wal_dir, bootstrap_servers, **options) as producer:
        untimed = producer._append
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
        producer._append = untimed
        rates = await _flat_out(producer, publish, flat_out(size))
    assert len(appended) == records, f"append was not measured: {len(appended)=} {records=}"
    return {
        "append": quantiles(appended),
        "publish": quantiles(published),
        "flat_out": rates,
        "clock_ns": machine.clock_ns(),
        "published": WARM_UP + records + flat_out(size),
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


async def _flat_out(
    producer: RecoverableProducer, publish: Callable[[int], Awaitable[None]], records: int
) -> dict[str, float]:
    clock, began = time.perf_counter, time.perf_counter()
    for number in range(records):
        await publish(number)
    accepted = clock()
    await producer.flush()
    return {"accepted_s": records / (accepted - began), "delivered_s": records / (clock() - began)}
