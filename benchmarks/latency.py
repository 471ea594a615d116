"""How long `await publish` takes, beside an empty coroutine of the same signature that is awaited right after it.

And `await receipt.delivered()` of a record that is delivered already: one by one in the same way, and what it adds to a
record's processor time where it is awaited for every record.

Nothing is subtracted: every figure holds one reading of the clock, whose cost is measured too.
"""

import gc
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from aiorecover import Receipt, RecoverableProducer
from benchmarks import kafka, load, machine
from benchmarks.child import call, stopwatch
from benchmarks.figures import histogram, quantiles, spread
from benchmarks.pace import TURN_CALLS, Paced, Turning, Unpaced
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
RECORDS = 300_000
WARM_UP = 30_000
IDLE_RATE = 3_000  # records/s: three in each millisecond, the first of them with cold caches
IDLE_RECORDS = 15_000
PACED_RATE = 100_000
ASKED = 50_000  # records whose delivery is asked for: the last 65,536 are told all, and a batch may hold 4,084
NAMES = ("p50", "p99", "p99.9", "max")
STOP_MS = 500  # without a broker nothing can be delivered: stop does not wait long

Percentiles = dict[str, int]


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: dict[str, list[dict[str, Any]]] = {title: [] for title in SCENARIOS}
    asked: list[dict[str, Any]] = []
    for number in range(rounds):
        for title, figures in measured.items():
            figures.append(_one(setting, SCENARIOS[title], records))
            setting.say(f"latency: round {number + 1}/{rounds} {title} {figures[-1]['publish']}")
        asked.append(_one(setting, asking, ASKED))
        setting.say(f"latency: round {number + 1}/{rounds} delivered already {asked[-1]['asked']}")
    tables = [_table(measured), _asked_table(asked)]
    return Result("latency", tables, {"records": records, "rounds": measured, "delivered": asked})


def _one(setting: Setting, scenario: Callable[..., Any], records: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "latency") as topic, setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        figures = call(scenario, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir, records=records)
        kafka.verify(setting.cluster, topic, figures["delivered"])
        return figures


def _table(measured: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for title, rounds in measured.items():
        rows.append(_row(title, [one["publish"] for one in rounds]))
        rows.append(_row("    empty coroutine, same loop", [one["empty"] for one in rounds]))
    clocks = [one["clock_ns"] for rounds in measured.values() for one in rounds]
    return Table(
        title="Latency of await publish, in µs",
        columns=["", *NAMES],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            f"every figure includes one reading of the clock: {min(clocks)} to {max(clocks)} ns (p50)",
            f"one publish in {TURN_CALLS} gives the loop a turn, in which delivery works: that turn is included,",
            "or it is given by the caller, outside of what is measured",
        ],
    )


def _asked_table(rounds: list[dict[str, Any]]) -> Table:
    adds, others = spread(rounds, "asked_us").text(".2f"), spread(rounds, "delivered_us").text(".2f")
    return Table(
        title="Latency of await receipt.delivered() where the record is delivered already, in µs",
        columns=["", *NAMES],
        rows=[
            _row("await receipt.delivered()", [one["asked"] for one in rounds]),
            _row("    empty coroutine, same loop", [one["empty"] for one in rounds]),
        ],
        notes=[
            f"{ASKED:,} records that were delivered last, as many as are told their offset; else as above",
            f"awaited for each of as many others, without a clock around it: {adds} µs of CPU a record,",
            f"beside {others} that publishing and delivering these took",
        ],
    )


def _row(title: str, rounds: list[Percentiles]) -> list[str]:
    return [title, *(spread(rounds, name, 1e-3).text(".2f") for name in NAMES)]


# -- the scenarios, each in its own process ----------------------------------------------------------------------------


async def idle(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:  # noqa: ARG001
    """No Kafka, a few thousand records a second."""
    async with load.producer(wal_dir, load.NOBODY, stop_timeout_ms=STOP_MS) as producer:
        return {**await _measured(producer, topic, IDLE_RECORDS, Paced(IDLE_RATE)), "delivered": 0}


async def paced(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, Paced(PACED_RATE))


async def full_speed(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, Unpaced())


async def full_speed_turning(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, Turning())


SCENARIOS: dict[str, Callable[..., Any]] = {
    f"no Kafka, {IDLE_RATE:,}/s": idle,
    f"delivering, {PACED_RATE:,}/s": paced,
    "delivering, full speed, turns given by the caller": full_speed_turning,
    "delivering, full speed, turns included": full_speed,
}


async def asking(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    """Ask for records that are delivered: with a clock around each, then for others without."""
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        figures = await _asked(await _receipts(producer, topic, records))
        with stopwatch() as delivering:
            receipts = await _receipts(producer, topic, records)
        gc.collect()
        with stopwatch() as watch:
            for receipt in receipts:
                await receipt.delivered()
        return {
            **figures,
            "asked_us": watch.cpu / records * 1e6,
            "delivered_us": delivering.cpu / records * 1e6,
            "delivered": WARM_UP + 2 * records,
        }


async def _receipts(producer: RecoverableProducer, topic: str, records: int) -> list[Receipt]:
    """Return receipts of records that are delivered already."""
    receipts = [await producer.publish(topic, load.VALUE, key=key) for key in load.keys(records)]
    await producer.flush()
    return receipts


async def _asked(receipts: Sequence[Receipt]) -> dict[str, Any]:
    clock = time.perf_counter_ns
    asked, empty = (array("q", bytes(8 * len(receipts))) for _ in range(2))
    gc.collect()
    for number, receipt in enumerate(receipts):
        began = clock()
        await receipt.delivered()
        ended = clock()
        await _empty_asking()
        empty[number] = clock() - ended
        asked[number] = ended - began
    return {"asked": quantiles(asked), "empty": quantiles(empty), "clock_ns": machine.clock_ns()}


async def _empty_asking(timeout_ms: int | None = None) -> None:
    """The signature of delivered, and nothing else."""


async def _delivering(bootstrap_servers: str, topic: str, wal_dir: str, records: int, pace: Unpaced) -> dict[str, Any]:
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        await producer.flush()
        figures = await _measured(producer, topic, records, pace)
        await producer.flush()
        return {**figures, "delivered": WARM_UP + records}


async def _measured(producer: RecoverableProducer, topic: str, records: int, pace: Unpaced) -> dict[str, Any]:
    publish, clock = producer.publish, time.perf_counter_ns
    published, empty = (array("q", bytes(8 * records)) for _ in range(2))
    gc.collect()
    pace.begin()
    for number, key in enumerate(load.keys(records)):
        if number >= pace.pause_at:
            await pace.pause(number)
        began = clock()
        await publish(topic, load.VALUE, key=key)
        ended = clock()
        await _empty(topic, load.VALUE, key=key)
        empty[number] = clock() - ended
        published[number] = ended - began
    return {
        "publish": quantiles(published),
        "empty": quantiles(empty),
        "publish_histogram": histogram(published),
        "empty_histogram": histogram(empty),
        "clock_ns": machine.clock_ns(),
    }


async def _empty(
    topic: str,
    value: object = None,
    *,
    key: bytes | str | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    headers: object = None,
    context: object = None,
    source: object = None,
) -> None:
    """The signature of publish, and nothing else."""
