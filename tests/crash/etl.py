"""Workers that move records from topic to topic and are killed again and again: each record exactly once.

The workers are `examples/etl_worker.py` as it stands. Each of them has its share of the partitions and is killed and
started by itself, at moments that a seed says; what it was to move has stood there from the beginning.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiorecover import RecoverableProducer
from tests.support import admin
from tests.support.broker import Cluster
from tests.support.oracle import Consumed, read_topic

__all__ = ["Outcome", "run_workers", "verdict"]

WORKER = Path(__file__).parents[2] / "examples" / "etl_worker.py"
PARTITIONS = 6
KEYS = 300
SHORTEST_LIFE_S = 0.4  # a part of them is killed before it has read anything
LONGEST_LIFE_S = 3.0
STARTED_WITHIN_S = (1.0, 4.0, 16.0)
WITHIN_S = 600.0  # for what is left behind the last kill
READ_WITHIN_S = 600.0


@dataclass
class Outcome:
    """What stands in the target, held against what was to be moved."""

    records: int
    kills: int = 0
    stopped: int = 0
    """Workers that ended well when they were asked to."""
    missing: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    altered: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Each exactly once, in the order of its key."""
        return not (self.missing or self.repeated or self.out_of_order or self.altered)

    def __str__(self) -> str:
        return (
            f"{'ok' if self.ok else 'BROKEN'}: records={self.records} kills={self.kills} missing={len(self.missing)} "
            f"repeated={len(self.repeated)} out_of_order={len(self.out_of_order)} altered={len(self.altered)} "
            f"examples={self.missing[:3]}{self.repeated[:3]}{self.out_of_order[:3]}{self.altered[:3]}"
        )


class Worker:
    """One of them, from life to life."""

    def __init__(self, number: int, start: Callable[[int], "subprocess.Popen[bytes]"], rng: random.Random) -> None:
        self._number = number
        self._start = start
        self._rng = rng
        self._process = start(number)
        self._ends = self._next_end()

    def _next_end(self) -> float:
        return time.monotonic() + self._rng.uniform(SHORTEST_LIFE_S, LONGEST_LIFE_S)

    def look(self) -> int:
        """Kill it, and start it once more, if it is its time; how many times that was so."""
        assert self._process.poll() is None, f"a worker ended by itself: {self._process.returncode}"
        if time.monotonic() < self._ends:
            return 0
        self._process.kill()
        self._process.wait()
        self._process = self._start(self._number)
        self._ends = self._next_end()
        return 1

    def stop(self) -> bool:
        """Ask it to end; whether it ended well. One that has only just been started cannot hear that yet."""
        for seconds in STARTED_WITHIN_S:
            time.sleep(seconds)
            self._process.send_signal(signal.SIGTERM)
            if self._process.wait(WITHIN_S) != -signal.SIGTERM:
                break
            self._process = self._start(self._number)
        return self._process.wait(WITHIN_S) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run_workers(cluster: Cluster, directory: Path, *, seed: int, kills: int, records: int, workers: int = 2) -> Outcome:
    """Have so many ``records`` moved by workers of which one or the other is killed, ``kills`` times in all."""
    rng = random.Random(seed)
    names = {"ORDERS": f"orders-{os.urandom(4).hex()}", "TOTALS": f"totals-{os.urandom(4).hex()}"}
    for name in names.values():
        cluster.create_topic(name, PARTITIONS)
    asyncio.run(_order(cluster, directory / "orders", names["ORDERS"], records))
    environ = {**os.environ, **names, "KAFKA": cluster.bootstrap_servers, "WAL_DIR": str(directory / "wal")}
    outcome = Outcome(records)
    with (directory / "workers.log").open("ab") as log:

        def start(number: int) -> "subprocess.Popen[bytes]":
            command = [sys.executable, str(WORKER), str(number), str(workers)]
            return subprocess.Popen(command, env=environ, stderr=log)

        running = [Worker(number, start, rng) for number in range(workers)]
        try:
            while outcome.kills < kills:
                outcome.kills += sum(worker.look() for worker in running)
                time.sleep(0.01)
            until = time.monotonic() + WITHIN_S
            count = partial(admin.count_records, cluster.bootstrap_servers, names["TOTALS"], PARTITIONS)
            while asyncio.run(count()) < records and time.monotonic() < until:
                time.sleep(0.5)
            outcome.stopped = sum(worker.stop() for worker in running)
        finally:
            for worker in running:
                worker.kill()
    return verdict(
        outcome, asyncio.run(read_topic(cluster.bootstrap_servers, names["TOTALS"], timeout_s=READ_WITHIN_S))
    )


async def _order(cluster: Cluster, wal: Path, topic: str, count: int) -> None:
    async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(count):
            order = b'{"id":%d,"price":3,"count":%d}' % (number, number)
            await producer.publish(topic, order, key=b"%d" % (number % KEYS))
        await producer.flush()


def verdict(outcome: Outcome, found: list[Consumed]) -> Outcome:
    """Hold what was found against what was to be moved."""
    totals = [json.loads(record.value or b"{}") for record in found]
    times = Counter(total["id"] for total in totals)
    outcome.missing = [number for number in range(outcome.records) if number not in times]
    outcome.repeated = [number for number, count in times.items() if count > 1]
    outcome.altered = [total["id"] for total in totals if total["total"] != 3 * total["id"]]
    last: dict[bytes | None, int] = {}
    for record, total in zip(found, totals, strict=True):
        if total["id"] < last.get(record.key, -1):
            outcome.out_of_order.append(f"{total['id']} behind {last[record.key]}")
        last[record.key] = total["id"]
    return outcome
