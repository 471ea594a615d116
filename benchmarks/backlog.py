"""After an outage: how long opening takes, and what replaying costs in memory and in stalls of the event loop.

Also the cost of a record that went through the backlog, as it is stored and as it is replayed, beside one that is
published and delivered at once. Each is measured for a topic that was published to before, and for one that was never
seen, whose records are laid out anew once its partitions are known.
"""

import asyncio
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any, Self

from aiorecover import RecoverableProducer
from benchmarks import kafka, load, throughput
from benchmarks.child import Child, call, stopwatch, tell
from benchmarks.disk import evict
from benchmarks.figures import quantiles, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 1
GIGABYTES = 0.5
WARM_UP = 30_000
LIVE = 300_000  # records that are delivered where there is no backlog, to compare what one costs
STEP = 10_000  # records between two looks at how much there is
TICK_S = 0.001
IDLE_TICKS = 1000
SAMPLE_S = 0.02  # between two looks at the memory
GIB = 1 << 30
SEEN = {"a topic seen before": True, "a topic never seen": False}
KINDS = ("VmRSS", "RssAnon", "RssFile")


def run(setting: Setting) -> Result:
    measured: dict[str, list[dict[str, Any]]] = {title: [] for title in SEEN}
    gigabytes = setting.gigabytes or GIGABYTES
    for number in range(setting.rounds or ROUNDS):
        for title, rounds in measured.items():
            setting.say(f"backlog: round {number + 1} storing {gigabytes} GB without a broker, {title}")
            rounds.append(_one(setting, int(gigabytes * 1e9), seen=SEEN[title]))
            setting.say(f"backlog: replayed {rounds[-1]['delivered_s']:,.0f}/s")
    tables = [_table(title, rounds) for title, rounds in measured.items()]
    return Result("backlog", tables, {"gigabytes": gigabytes, "rounds": measured})


def _one(setting: Setting, size: int, *, seen: bool) -> dict[str, Any]:
    servers = setting.cluster.bootstrap_servers
    with (
        kafka.topic(setting.cluster, "backlog") as topic,
        setting.wal_dir() as wal_dir,
        setting.wal_dir() as idle_dir,
    ):
        if seen:
            call(see, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir)
        with Child(build, topic=topic, wal_dir=wal_dir, size=size) as builder:
            built = builder.read()
        evict(wal_dir)
        places = {"wal_dir": wal_dir, "idle_dir": idle_dir}
        with (
            Child(replay, bootstrap_servers=servers, topic=topic, records=built["records"], **places) as child,
            MemoryWatch(child) as memory,
        ):
            result = child.result()
        kafka.verify(setting.cluster, topic, WARM_UP * (1 + seen) + built["records"])
    live_us = throughput.deliver(setting, "backlog-none", throughput.aiorecover, LIVE)["cpu_us"]
    against_none = (built["stored_us"] + result["cpu_us"]) / live_us
    return {**built, **result, **memory.over_idle(), "live_us": live_us, "against_none": against_none}


def _table(title: str, rounds: list[dict[str, Any]]) -> Table:
    rows = [
        ["records", spread(rounds, "records").text()],
        ["size of the used segments, GB", spread(rounds, "bytes", 1e-9).text(".2f")],
        ["opening: start() returns after, ms", spread(rounds, "open_s", 1e3).text(".1f")],
        ["replayed records/s", spread(rounds, "delivered_s").text()],
        ["processor time a record, µs: replayed", spread(rounds, "cpu_us").text(".2f")],
        ["    stored before, without a broker", spread(rounds, "stored_us").text(".2f")],
        ["    another one, published and delivered at once", spread(rounds, "live_us").text(".2f")],
        ["    stored and replayed, against that", f"{spread(rounds, 'against_none').text('.2f')}x"],
        ["resident memory over idle, at most, MB", spread(rounds, "VmRSS", 1e-6).text(".1f")],
        ["    of it the process's own", spread(rounds, "RssAnon", 1e-6).text(".1f")],
        ["    of it mapped pages of the ring (page cache)", spread(rounds, "RssFile", 1e-6).text(".1f")],
    ]
    for name in ("p50", "p99", "p99.9", "max"):
        stall = spread(rounds, f"stall_{name}", 1e-6).text(".2f")
        idle = spread(rounds, f"idle_{name}", 1e-6).text(".2f")
        rows.append([f"event loop late by, {name}, ms (idle: {idle})", stall])
    return Table(
        title=f"Backlog of {title}: built without a broker, killed, evicted from the page cache, replayed",
        columns=["", ""],
        rows=rows,
        notes=[
            "idle: the same process, connected, after its first 30,000 records in another directory",
            f"late: beyond {TICK_S * 1000:.0f} ms of sleep, by a task that does nothing else",
            "published and delivered at once: flat out, by another process, right behind the replay",
            "every record arrived (end offsets)",
        ],
    )


def memory(pid: int) -> dict[str, int]:
    """Resident memory by kind, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    named = dict(line.split(":", 1) for line in lines)
    return {kind: int(named[kind].split()[0]) * 1024 for kind in KINDS if kind in named}


class MemoryWatch:
    """Looks at a child's memory from outside, from when it says that it opens the backlog."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._idle: dict[str, int] = {}
        self._most: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._idle = self._child.read()["idle"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def over_idle(self) -> dict[str, int]:
        """Each kind at the moment when the total was greatest."""
        return {kind: self._most[kind] - self._idle[kind] for kind in KINDS}

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            now = memory(self._child.pid)
            if now.get("VmRSS", 0) > self._most.get("VmRSS", 0):
                self._most = now


# -- in processes of their own -----------------------------------------------------------------------------------------


async def see(bootstrap_servers: str, topic: str, wal_dir: str) -> None:
    """Have the directory remember the topic's partitions."""
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        await producer.flush()


async def build(topic: str, wal_dir: str, size: int) -> None:
    """Publish until the ring is so large; never returns: a killed process is what leaves a backlog."""
    async with load.producer(wal_dir, load.NOBODY, wal_max_bytes=size + GIB) as producer:
        with stopwatch() as watch:
            while (found := producer.statistics()).bytes_used < size:
                await load.publish_all(producer, topic, STEP)
        tell(records=found.accepted, bytes=found.bytes_used, stored_us=watch.cpu / found.accepted * 1e6)
        await asyncio.Event().wait()


async def replay(bootstrap_servers: str, topic: str, wal_dir: str, idle_dir: str, records: int) -> dict[str, Any]:
    late: list[int] = []
    async with load.producer(idle_dir, bootstrap_servers) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        await producer.flush()
        gc.collect()
        await tick(late, IDLE_TICKS)
        tell(idle=memory(os.getpid()))
    idle = quantiles(late)
    late.clear()
    producer = load.producer(wal_dir, bootstrap_servers)
    ticking = asyncio.create_task(tick(late))
    began = time.perf_counter()
    await producer.start()
    opened = time.perf_counter() - began
    with stopwatch() as watch:
        await _replayed(producer, records)
    ticking.cancel()
    await producer.stop()
    return {
        "open_s": opened,
        "delivered_s": records / watch.elapsed,
        "cpu_us": watch.cpu / records * 1e6,
        **{f"idle_{name}": value for name, value in idle.items()},
        **{f"stall_{name}": value for name, value in quantiles(late).items()},
    }


async def _replayed(producer: RecoverableProducer, records: int) -> None:
    await producer.flush()
    found = producer.statistics()
    assert found.delivered == records, f"not everything was found again: {found}"


async def tick(late: list[int], count: int | None = None) -> None:
    """Sleep again and again, and note by how many ns each sleep was too long."""
    clock = time.perf_counter_ns
    while count is None or len(late) < count:
        began = clock()
        await asyncio.sleep(TICK_S)
        late.append(clock() - began - int(TICK_S * 1e9))
