"""Workers that move records from topic to topic and are killed again and again: each record exactly once.

The workers are `examples/etl_worker.py` as it stands. Each of them has its share of the partitions and is killed and
started by itself, at moments that a seed says, while orders are published: most are killed once they have moved
something, and always have more to move; a few before that, while they open and recover. Which of the kills hit a worker
that was moving is told by the times at which the records were made that are found in the target at the end.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.crash.moved import Moved
from tests.crash.orders import Orders, key_of, total_of
from tests.prove.rounds import below
from tests.support.broker import Cluster
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic
from tests.support.signals import handles

__all__ = ["Life", "Outcome", "run_workers", "verdict"]

PARTITIONS: Final = 6
_REPOSITORY: Final = Path(__file__).parents[2]
_WORKER: Final = _REPOSITORY / "examples" / "etl_worker.py"
_EARLY: Final = 25  # of so many lives one ends while it begins
_BEGINNING_S: Final = 1.0  # Python is started, the directory opened, the rest of the life before is delivered
_LONGEST_MOVING_S: Final = 1.5
_LATELY_MS: Final = 1_000  # who has made nothing for so long is not moving
_MOVING: Final = 0.9  # of the kills, at least
_ORDERS_PER_KILL: Final = 500  # at least; some 6,000 on two cores
_WITHIN_S: Final = 60.0
_QUIET_S: Final = 30.0  # when nothing more comes for so long, nothing will
_LOOK_S: Final = 0.05
_READ_WITHIN_S: Final = 600.0
_EXAMPLES: Final = 3


@dataclass(frozen=True)
class Life:
    """Of one worker, until it was killed; by the clock on the wall."""

    worker: int
    began_ms: int
    killed_ms: int


@dataclass
class Outcome:
    """What stands in the target, held against what was to be moved."""

    records: int = 0
    """Orders that were accepted, and so to be moved: their numbers are those below this one."""
    source: int = 0
    """Records in the topic that they were published to."""
    landed: int = 0
    """Records in the target."""
    wanted: int = 0
    """So many were to be moved while workers were killed."""
    kills: int = 0
    moving: int = 0
    """Kills that hit a worker which had moved something since its start, and was at it."""
    stopped: int = 0
    """Workers that ended well when they were asked to."""
    missing: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Made of no order, under another key, scattered over partitions."""

    @property
    def ok(self) -> bool:
        """Each exactly once, in the order of its key; as many came through as were accepted."""
        return not any(self._faults) and self.records == self.source == self.landed

    @property
    def too_little(self) -> list[str]:
        """What there was so little of that it proves nothing, in words: who has nothing to do loses nothing."""
        landed = max(self.wanted, _ORDERS_PER_KILL * self.kills)
        floors = {"kills": 1, "moving": ceil(_MOVING * self.kills), "landed": landed}
        return below(Counter(kills=self.kills, moving=self.moving, landed=self.landed), floors)

    def __str__(self) -> str:
        examples = "".join(f"; {one}" for kind in self._faults for one in kind[:_EXAMPLES])
        return (
            f"{'ok' if self.ok else 'BROKEN'}: records={self.records} source={self.source} landed={self.landed} "
            f"kills={self.kills} moving={self.moving} missing={len(self.missing)} repeated={len(self.repeated)} "
            f"out_of_order={len(self.out_of_order)} wrong={len(self.wrong)}{examples}"
        )

    @property
    def _faults(self) -> Sequence[Sequence[object]]:
        return self.missing, self.repeated, self.out_of_order, self.wrong


class Worker:
    """One of them, from life to life."""

    def __init__(
        self, number: int, start: Callable[[int], "subprocess.Popen[bytes]"], moved: Moved, rng: random.Random
    ) -> None:
        self._number = number
        self._start = start
        self._moved = moved
        self._rng = rng
        self._lives = 0
        self.is_up = asyncio.Event()
        """The last of them can be asked to end."""

    async def live(self, at_least: int) -> Life:
        """Start it, and kill it, but for an early end not before so many orders are moved by all of them."""
        began_ms = _now_ms()
        self._lives += 1
        process = self._start(self._number)
        try:
            if self._lives % _EARLY == _EARLY // 2:
                await asyncio.sleep(self._rng.uniform(0.0, _BEGINNING_S))
            else:
                await until(lambda: self._has_moved_since(began_ms) or process.poll() is not None, _WITHIN_S)
                await asyncio.sleep(self._rng.uniform(0.0, _LONGEST_MOVING_S))
                await until(lambda: self._moved.count >= at_least or process.poll() is not None, _WITHIN_S)
                await until(lambda: self._is_moving() or process.poll() is not None, _WITHIN_S)
            assert process.poll() is None, f"a worker ended by itself: {process.returncode}"
            return Life(self._number, began_ms, _now_ms())
        finally:
            process.kill()
            process.wait()

    def _is_moving(self) -> bool:
        """It may have nothing to do for a while, where few orders come because another worker is being started."""
        return self._has_moved_since(_now_ms() - _LATELY_MS // 2)

    def _has_moved_since(self, then_ms: int) -> bool:
        return self._moved.newest_ms[self._number] >= then_ms

    async def live_until(self, over: asyncio.Event) -> bool:
        """Start it, and ask it to end; whether it ended well."""
        process = self._start(self._number)
        try:
            await until(lambda: handles(process.pid, signal.SIGTERM), _WITHIN_S)
            self.is_up.set()
            await over.wait()
            process.send_signal(signal.SIGTERM)
            return await asyncio.to_thread(process.wait, _WITHIN_S) == 0
        finally:
            process.kill()
            process.wait()


def run_workers(
    cluster: Cluster,
    directory: Path,
    *,
    seed: int,
    kills: int,
    records: int = 0,
    guarantee: str = "at_least_once",
    workers: int = 2,
    quiet_s: float = _QUIET_S,
) -> Outcome:
    """Have orders moved by workers of which one or the other is killed, ``kills`` times in all.

    ``records``: so many are moved by the last kill, and of them the same share by each other one.
    """
    topics = {"ORDERS": f"orders-{os.urandom(4).hex()}", "TOTALS": f"totals-{os.urandom(4).hex()}"}
    for name in topics.values():
        cluster.create_topic(name, PARTITIONS)
    environ = {
        **os.environ,
        **topics,
        "KAFKA": cluster.bootstrap_servers,
        "WAL_DIR": str(directory / "wal"),
        "GUARANTEE": guarantee,
    }
    moved = Moved(cluster.bootstrap_servers, topics["TOTALS"], PARTITIONS, workers)
    orders = Orders(
        cluster.bootstrap_servers, directory / "orders", topics["ORDERS"], seed, lambda: moved.behind_the_slowest
    )
    with (directory / "workers.log").open("ab") as log:

        def start(number: int) -> "subprocess.Popen[bytes]":
            command = [sys.executable, str(_WORKER), str(number), str(workers)]
            return subprocess.Popen(command, env=environ, stderr=log, cwd=_REPOSITORY)

        running = [Worker(number, start, moved, random.Random(f"{seed}/{number}")) for number in range(workers)]
        outcome, lives = asyncio.run(_run(running, orders, moved, kills, records, quiet_s))
    outcome.wanted = records
    outcome.source = asyncio.run(_count(cluster, topics["ORDERS"]))
    level = "read_committed" if guarantee == "exactly_once" else "read_uncommitted"
    found = asyncio.run(
        read_topic(cluster.bootstrap_servers, topics["TOTALS"], isolation_level=level, timeout_s=_READ_WITHIN_S)
    )
    return verdict(outcome, found, lives, workers)


async def _run(
    workers: Sequence[Worker], orders: Orders, moved: Moved, kills: int, records: int, quiet_s: float
) -> tuple[Outcome, list[Life]]:
    lives: list[Life] = []
    over = asyncio.Event()

    async def live_on(worker: Worker) -> bool:
        while len(lives) < kills:
            lives.append(await worker.live(records * (len(lives) + 1) // kills))
        return await worker.live_until(over)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(moved.watch())
        publishing = group.create_task(orders.publish())
        living = [group.create_task(live_on(worker)) for worker in workers]
        await asyncio.gather(*[worker.is_up.wait() for worker in workers])
        orders.end()
        await publishing
        await _until_moved(moved, orders, quiet_s)
        over.set()
        stopped = sum(await asyncio.gather(*living))
        watching.cancel()
    return Outcome(orders.published, kills=len(lives), stopped=stopped), lives


async def _until_moved(moved: Moved, orders: Orders, quiet_s: float) -> None:
    """All of them, or until nothing more comes."""
    count, since = -1, time.monotonic()
    while moved.count < orders.published and time.monotonic() - since < quiet_s:
        if moved.count != count:
            count, since = moved.count, time.monotonic()
        await asyncio.sleep(_LOOK_S)


async def _count(cluster: Cluster, topic: str) -> int:
    """Records in a topic that only one publisher has written to, without transactions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    await consumer.start()
    try:
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        return sum(ends.values())
    finally:
        await consumer.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- the judgement -----------------------------------------------------------------------------------------------------


def verdict(outcome: Outcome, found: Sequence[Consumed], lives: Sequence[Life], workers: int) -> Outcome:
    """Hold what was found against what was to be moved."""
    outcome.landed = len(found)
    totals = [json.loads(record.value or b"{}") for record in found]
    numbers = [total["id"] for total in totals]
    times = Counter(numbers)
    outcome.missing = [number for number in range(outcome.records) if number not in times]
    outcome.repeated = [number for number, count in times.items() if count > 1]
    places: dict[bytes | None, int] = {}
    last: dict[bytes | None, int] = {}
    for record, number, total in zip(found, numbers, totals, strict=True):
        if number < last.get(record.key, -1):
            outcome.out_of_order.append(f"{number} behind {last[record.key]}")
        last[record.key] = number
        if number not in range(outcome.records) or total["total"] != total_of(number) or record.key != key_of(number):
            outcome.wrong.append(f"{total} under {record.key!r}")
        if places.setdefault(record.key, record.partition) != record.partition:
            outcome.wrong.append(f"{number} is in another partition than others of {record.key!r}")
    outcome.moving = _moving(found, lives, workers)
    return outcome


def _moving(found: Sequence[Consumed], lives: Sequence[Life], workers: int) -> int:
    """How many of the lives had made something right before their end; a worker's number is its partitions'."""
    made: dict[int, list[int]] = defaultdict(list)
    for record in found:
        made[record.partition % workers].append(record.timestamp_ms)
    for times in made.values():
        times.sort()

    def was_moving(life: Life) -> bool:
        before = bisect_right(made[life.worker], life.killed_ms)
        return before > 0 and made[life.worker][before - 1] >= max(life.began_ms, life.killed_ms - _LATELY_MS)

    return sum(map(was_moving, lives))
