"""`kill -9` under load: how soon the successor delivers."""

import asyncio
import time
from itertools import count
from typing import Any

from aiorecover import RecoverableProducer
from benchmarks import load, warm
from benchmarks.child import Child, call, tell
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
LANES = (6, 1000)
RATE = 50_000  # records/s, spread over all lanes
BURST = 50  # records between two looks at the clock
LOAD_SECONDS = 2.0  # after the first record was delivered
LOOK_S = 0.001  # between two looks whether something was delivered: the resolution of the result


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    measured: dict[int, list[dict[str, Any]]] = {lanes: [] for lanes in LANES}
    with warm.topics(setting, "restart", LANES) as topics:
        for number in range(rounds):
            for lanes, figures in measured.items():
                figures.append(_one(setting, topics[lanes], lanes))
                setting.say(
                    f"restart: round {number + 1}/{rounds} {lanes} lanes, first acknowledgement after "
                    f"{figures[-1]['first_s'] * 1000:.0f} ms"
                )
    return Result("restart", [_table(measured)], {"rate": RATE, "rounds": measured})


def _one(setting: Setting, topic: str, lanes: int) -> dict[str, Any]:
    with setting.wal_dir() as wal_dir:
        arguments = {
            "bootstrap_servers": setting.cluster.bootstrap_servers,
            "topic": topic,
            "wal_dir": wal_dir,
            "lanes": lanes,
        }
        with Child(publish_for_ever, **arguments) as victim:
            victim.read()
            time.sleep(LOAD_SECONDS)
            victim.kill()
        return call(succeed, **arguments)


def _table(measured: dict[int, list[dict[str, Any]]]) -> Table:
    rows = [
        [
            f"{lanes:,}",
            spread(rounds, "recovered").text(),
            spread(rounds, "open_s", 1e3).text(".1f"),
            spread(rounds, "first_s", 1e3).text(".1f"),
            spread(rounds, "own_s", 1e3).text(".1f"),
            spread(rounds, "all_s", 1e3).text(".1f"),
        ]
        for lanes, rounds in measured.items()
    ]
    return Table(
        title=f"Restart after kill -9 at {RATE:,} records/s, ms since start() was called",
        columns=["lanes", "records left", "start() returned", "first acknowledged", "own record acknowledged", "all"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            "own record: published by the successor as soon as start() returned; all: everything that was left too",
        ],
    )


# -- in processes of their own -----------------------------------------------------------------------------------------


async def publish_for_ever(bootstrap_servers: str, topic: str, wal_dir: str, lanes: int) -> None:
    """Publish to all lanes in turn at a steady rate, until killed."""
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await (await producer.publish(topic, load.VALUE, partition=0)).delivered()
        tell(running=True)
        began = time.perf_counter()
        for number in count():
            await producer.publish(topic, load.VALUE, key=load.KEYS[number % 1000], partition=number % lanes)
            if number % BURST == 0:
                await asyncio.sleep(max(0.0, number / RATE - (time.perf_counter() - began)))


async def succeed(bootstrap_servers: str, topic: str, wal_dir: str, lanes: int) -> dict[str, Any]:  # noqa: ARG001
    producer = load.producer(wal_dir, bootstrap_servers)
    began = time.perf_counter()
    await producer.start()
    opened = time.perf_counter() - began
    receipt = await producer.publish(topic, load.VALUE, partition=0)
    first = asyncio.create_task(_first_acknowledgement(producer))
    await receipt.delivered()
    own = time.perf_counter() - began
    await producer.flush()
    everything = time.perf_counter() - began
    found = producer.statistics()
    await producer.stop()
    return {
        "open_s": opened,
        "first_s": await first - began,
        "own_s": own,
        "all_s": everything,
        "recovered": found.recovered,
    }


async def _first_acknowledgement(producer: RecoverableProducer) -> float:
    while producer.statistics().delivered == 0:  # noqa: ASYNC110 - nothing tells when it changes
        await asyncio.sleep(LOOK_S)
    return time.perf_counter()
