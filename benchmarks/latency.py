"""How long `await publish` takes, beside an empty coroutine of the same signature that is awaited right after it.

Nothing is subtracted: every figure holds one reading of the clock, whose cost is measured too.
"""

import asyncio
import gc
import time
from array import array
from collections.abc import Callable
from typing import Any

from aiorecover import RecoverableProducer
from benchmarks import kafka, load, machine
from benchmarks.child import call
from benchmarks.figures import quantiles, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
RECORDS = 300_000
WARM_UP = 30_000
IDLE_RATE = 3_000  # records/s: three in each millisecond, the first of them with cold caches
IDLE_RECORDS = 15_000
PACED_RATE = 100_000
TICK_S = 0.001  # a paced publisher sleeps so long, then publishes what is due
TURN_CALLS = 256  # so often does publish give the loop a turn by itself
STOP_MS = 500  # without a broker nothing can be delivered: stop does not wait long

Percentiles = dict[str, int]


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: dict[str, list[dict[str, Any]]] = {title: [] for title in SCENARIOS}
    for number in range(rounds):
        for title, figures in measured.items():
            figures.append(_one(setting, SCENARIOS[title], records))
            setting.say(f"latency: round {number + 1}/{rounds} {title} {figures[-1]['publish']}")
    return Result("latency", [_table(measured)], {"records": records, "rounds": measured})


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
        columns=["", "p50", "p99", "p99.9", "max"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            f"every figure includes one reading of the clock: {min(clocks)} to {max(clocks)} ns (p50)",
            f"one publish in {TURN_CALLS} gives the loop a turn, in which delivery works: that turn is included,",
            "or it is given by the caller, outside of what is measured",
        ],
    )


def _row(title: str, rounds: list[Percentiles]) -> list[str]:
    return [title, *(spread(rounds, name, 1e-3).text(".2f") for name in ("p50", "p99", "p99.9", "max"))]


# -- the scenarios, each in its own process ----------------------------------------------------------------------------


async def idle(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:  # noqa: ARG001
    """No Kafka, a few thousand records a second."""
    async with load.producer(wal_dir, load.NOBODY, stop_timeout_ms=STOP_MS) as producer:
        return {**await _measured(producer, topic, IDLE_RECORDS, _Paced(IDLE_RATE)), "delivered": 0}


async def paced(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, _Paced(PACED_RATE))


async def full_speed(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, _Unpaced())


async def full_speed_turning(bootstrap_servers: str, topic: str, wal_dir: str, records: int) -> dict[str, Any]:
    return await _delivering(bootstrap_servers, topic, wal_dir, records, _Turning())


SCENARIOS: dict[str, Callable[..., Any]] = {
    f"no Kafka, {IDLE_RATE:,}/s": idle,
    f"delivering, {PACED_RATE:,}/s": paced,
    "delivering, full speed, turns given by the caller": full_speed_turning,
    "delivering, full speed, turns included": full_speed,
}


async def _delivering(bootstrap_servers: str, topic: str, wal_dir: str, records: int, pace: "_Pace") -> dict[str, Any]:
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        await producer.flush()
        figures = await _measured(producer, topic, records, pace)
        await producer.flush()
        return {**figures, "delivered": WARM_UP + records}


async def _measured(producer: RecoverableProducer, topic: str, records: int, pace: "_Pace") -> dict[str, Any]:
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
    return {"publish": quantiles(published), "empty": quantiles(empty), "clock_ns": machine.clock_ns()}


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


class _Unpaced:
    """As fast as it goes; publish gives the turns."""

    pause_at = 1 << 62

    def begin(self) -> None:
        """The measurement begins."""

    async def pause(self, number: int) -> None:
        raise NotImplementedError


class _Turning(_Unpaced):
    """As fast as it goes; the loop gets a turn before publish would give one."""

    def begin(self) -> None:
        self.pause_at = TURN_CALLS // 2

    async def pause(self, number: int) -> None:
        self.pause_at = number + TURN_CALLS // 2
        await asyncio.sleep(0)


class _Paced(_Unpaced):
    """So many records a second, those of a tick together."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()
        self.pause_at = 0

    async def pause(self, number: int) -> None:
        while self.pause_at <= number:
            await asyncio.sleep(TICK_S)
            self.pause_at = int((time.perf_counter() - self._began) * self._rate)


_Pace = _Unpaced
