"""The guard of CI: ratios of processor time, measured in turns in one process, against those that are stored.

    python -m benchmarks.guard              measure, compare, and fail where a ratio fell by 30 %
    python -m benchmarks.guard --update     store what was measured, for the language of the writer that runs

A ratio says how many times as fast aiorecover is as something that does not change, by processor time: `append` and
`publish` beside a few lines of Python, `deliver` beside confluent-kafka's `produce`, against a mock broker in a process
of its own. The two take turns, so that what disturbs the machine disturbs both, and the median over all turns counts.
While a ratio is too low there are more turns; a slower core does not get faster by them.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from struct import Struct
from typing import Any
from zlib import crc32

import uvloop
from confluent_kafka import Producer

from aiorecover import RecoverableProducer
from aiorecover.ring import writer
from aiorecover.testing import MockClusterProcess
from benchmarks import load, throughput
from benchmarks.ring.store import KEYS, TOPIC, Store, now_ms

EXPECTED = Path(__file__).with_suffix(".json")
LEAST = 0.7  # of the ratio that is expected
LEAST_ROUNDS, ROUNDS = 5, 20
WARM_UP = 50  # rounds of append that do not count
SLICES = 25  # of append and of publish in a round, each beside one of what does not change
SLICE_KEYS = (KEYS * 128)[:128]  # fewer than publish takes to give the loop a turn
DELIVERED = 5_000  # records in a round

Ratios = dict[str, float]


def fallen(found: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """Name the ratios that are too low."""
    return [
        f"{name}: {found[name]:.2f} times as fast as its baseline; {ratio:.2f} is expected, {LEAST * ratio:.2f} allowed"
        for name, ratio in expected.items()
        if found[name] < LEAST * ratio
    ]


def expected() -> dict[str, Ratios]:
    """Return the expected ratios of each language of the writer."""
    stored: dict[str, Ratios] = json.loads(EXPECTED.read_text())
    return stored


# -- in a process of its own -------------------------------------------------------------------------------------------


async def measure(directory: str, stored: dict[str, Ratios], rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the language of the writer, its ratios, and the median times in ns; ``stored`` is `expected`."""
    os.fdatasync = _flush_nothing  # type: ignore[assignment]
    aim = stored.get(writer.LANGUAGE)
    store = Store(f"{directory}/ring")
    async with (
        MockClusterProcess() as cluster,
        load.producer(f"{directory}/producer", cluster.bootstrap_servers) as producer,
    ):
        await cluster.create_topic(TOPIC, partitions=load.PARTITIONS)
        other = Producer({**throughput.confluent_options(cluster.bootstrap_servers), "log_level": 0})
        await _warm_up(store, producer, other)
        pairs = [
            Pair("append", lambda: _append(store), _call_function),
            Pair("publish", lambda: _publish(producer), _call_coroutine),
            Pair("deliver", lambda: _deliver(producer), lambda: _deliver_by(other)),
        ]
        for number in range(rounds):
            for pair in pairs:
                gc.collect()
                for _ in range(1 if pair.name == "deliver" else SLICES):
                    await pair.run()
                await producer.flush()
            _reuse(store)
            ratios = {pair.name: pair.ratio() for pair in pairs}
            if aim and number + 1 >= LEAST_ROUNDS and not fallen(ratios, aim):
                break
    store.close()
    times = {pair.name: [median(pair.ours), median(pair.others)] for pair in pairs}
    return {"language": writer.LANGUAGE, "ratios": ratios, "ns": times, "rounds": number + 1}


async def _warm_up(store: Store, producer: RecoverableProducer, other: Producer) -> None:
    """Connect, and use each segment of the ring at least once: the first store to a page is a fault."""
    for _ in range(WARM_UP):
        for _ in range(SLICES):
            await _append(store)
        _reuse(store)
    await _deliver(producer)
    await _deliver_by(other)


def _reuse(store: Store) -> None:
    store.settle()
    store.flush()


def _flush_nothing(descriptor: int) -> None:
    """Leave the disk out: what it costs depends on the disk, and each flushed page on a fault."""


Slice = Callable[[], Awaitable[float]]


class Pair:
    """Measure the guarded code and the code that never changes, again and again, one right after the other."""

    def __init__(self, name: str, ours: Slice, other: Slice) -> None:
        self.name = name
        self._ours, self._other = ours, other
        self.ours: list[float] = []
        self.others: list[float] = []

    async def run(self) -> None:
        self.ours.append(await self._ours())
        self.others.append(await self._other())

    def ratio(self) -> float:
        """The median over the pairs: what disturbs the machine for a while disturbs both."""
        return median(other / ours for ours, other in zip(self.ours, self.others, strict=True))


async def _append(store: Store) -> float:
    append, timestamp, value = store.writer.append, now_ms(), load.VALUE
    began = time.thread_time_ns()
    for key in SLICE_KEYS:
        append(TOPIC, key, value, timestamp)
    return (time.thread_time_ns() - began) / len(SLICE_KEYS)


async def _publish(producer: RecoverableProducer) -> float:
    publish, value = producer.publish, load.VALUE
    await asyncio.sleep(0)  # delivery works in turns of the loop: outside of what is measured
    began = time.thread_time_ns()
    for key in SLICE_KEYS:
        await publish(TOPIC, value, key=key)
    return (time.thread_time_ns() - began) / len(SLICE_KEYS)


async def _deliver(producer: RecoverableProducer) -> float:
    began = time.process_time_ns()
    await load.publish_all(producer, TOPIC, DELIVERED)
    await producer.flush()
    return (time.process_time_ns() - began) / DELIVERED


async def _deliver_by(producer: Producer) -> float:
    began = time.process_time_ns()
    throughput.produce_all(producer, TOPIC, DELIVERED)
    producer.flush()
    return (time.process_time_ns() - began) / DELIVERED


# -- what does not change: a line of it that did would make all stored ratios void -------------------------------------

_HEAD = Struct(">IH")
_PLACES = {key: 4096 * number for number, key in enumerate(KEYS)}
_BUFFER = bytearray(4096 * len(_PLACES))


def _function(topic: str, key: bytes, value: bytes, timestamp_ms: int) -> int:  # noqa: ARG001
    place = _PLACES[key]
    _HEAD.pack_into(_BUFFER, place, crc32(value), len(value))
    place += _HEAD.size
    _BUFFER[place : place + len(value)] = value
    return place


async def _coroutine(topic: str, value: bytes, *, key: bytes) -> int:
    return _function(topic, key, value, 0)


async def _call_function() -> float:
    append, timestamp, value = _function, now_ms(), load.VALUE
    began = time.thread_time_ns()
    for key in SLICE_KEYS:
        append(TOPIC, key, value, timestamp)
    return (time.thread_time_ns() - began) / len(SLICE_KEYS)


async def _call_coroutine() -> float:
    publish, value = _coroutine, load.VALUE
    await asyncio.sleep(0)
    began = time.thread_time_ns()
    for key in SLICE_KEYS:
        await publish(TOPIC, value, key=key)
    return (time.thread_time_ns() - began) / len(SLICE_KEYS)


# -- the command -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="Compare ratios with stored ones.")
    parser.add_argument("--update", action="store_true", help=f"store them in {EXPECTED.name} instead")
    options = parser.parse_args()
    logging.getLogger("aiorecover").setLevel(logging.ERROR)  # no broker is there, on purpose
    stored = expected() if EXPECTED.exists() else {}
    with (
        tempfile.TemporaryDirectory(prefix="aiorecover-benchmark-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measure(directory, {} if options.update else stored))
    language, ratios = found["language"], found["ratios"]
    print(f"writer in {language}, {found['rounds']} rounds; medians of the processor time of a record:")
    for name, (ours, other) in found["ns"].items():
        print(f"  {name}: {ours:,.0f} ns, beside it {other:,.0f} ns; {ratios[name]:.2f} times as fast")
    if options.update:
        kept = {**stored, language: {name: round(ratio, 2) for name, ratio in ratios.items()}}
        EXPECTED.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
        return 0
    too_low = fallen(ratios, stored[language])
    print("\n".join(too_low), end="\n" if too_low else "")
    return 1 if too_low else 0


if __name__ == "__main__":
    sys.exit(main())
