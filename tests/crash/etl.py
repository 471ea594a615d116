"""Workers that move records from topic to topic and are killed again and again: each record exactly once.

The workers are `examples/etl_worker.py` as it stands; each has its share of the partitions. While orders are published,
one or the other is killed, most of them once they have moved something.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic
from tests.support.signals import handles

PARTITIONS = 6
WORKERS = 2
KEYS = 300
PRICE = 3
RATE = 2000  # orders a second
EARLY = 0.1  # of the kills hit a worker that is starting
MOVED_WITHIN_S = 60.0
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """The records of the target topic; `wrong` names what is repeated or missing there."""

    orders: int
    landed: int
    kills: int
    wrong: Sequence[str]


class _Worker:
    def __init__(self, number: int, environ: dict[str, str], log: Path) -> None:
        self.number, self._environ, self._log = number, environ, log
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(REPOSITORY / "examples" / "etl_worker.py"), str(self.number), str(WORKERS)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environ, stderr=log, cwd=REPOSITORY)

    def kill(self) -> None:
        assert self.process.poll() is None, self._log.read_text()[-2000:]
        self.process.kill()
        self.process.wait()

    async def end(self) -> int:
        """Ask it to end, once it has a handler for that; its exit status."""
        ended, pid = self.process.poll, self.process.pid
        await until(lambda: ended() is not None or handles(pid, signal.SIGTERM), MOVED_WITHIN_S)
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, MOVED_WITHIN_S)


async def move_orders(cluster: Cluster, directory: Path, *, seed: int, kills: int, guarantee: str) -> Outcome:
    """Have orders moved by workers, of which ``kills`` are killed."""
    topics = {name: f"{name.lower()}-{seed}-{time.time_ns()}" for name in ("ORDERS", "TOTALS")}
    for topic in topics.values():
        cluster.create_topic(topic, PARTITIONS)
    servers = cluster.bootstrap_servers
    environ = {
        **os.environ,
        **topics,
        "KAFKA": servers,
        "WAL_DIR": str(directory / "wal"),
        "GUARANTEE": guarantee,
    }
    workers = [_Worker(number, environ, directory / "workers.log") for number in range(WORKERS)]
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        async with RecoverableProducer(directory / "orders", bootstrap_servers=servers) as producer:
            publishing = asyncio.create_task(_publish(producer, topics["ORDERS"]))
            ends = _Ends(consumer, topics["TOTALS"])
            await _kill_again_and_again(workers, ends, random.Random(seed), kills)
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
            orders = producer.statistics().accepted
            await producer.flush(60_000)
        level = "read_committed" if guarantee == "exactly_once" else "read_uncommitted"
        found = await _read_all(cluster, topics["TOTALS"], orders, level)
        statuses = [await worker.end() for worker in workers]
    finally:
        await consumer.stop()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    wrong = [f"a worker ended with {status}" for status in statuses if status]
    return Outcome(orders, len(found), kills, [*wrong, *judge(found, orders)])


async def _publish(producer: RecoverableProducer, topic: str) -> None:
    number = 0
    while True:
        for _ in range(RATE // 50):
            order = {"id": number, "price": PRICE, "count": number}
            await producer.publish(topic, order, key=key_of(number))
            number += 1
        await asyncio.sleep(1 / 50)


async def _kill_again_and_again(workers: list[_Worker], ends: "_Ends", chance: random.Random, kills: int) -> None:
    for _ in range(kills):
        worker = chance.choice(workers)
        if chance.random() < EARLY:
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        else:
            before = await ends.of(worker.number)
            async with asyncio.timeout(MOVED_WITHIN_S):
                while await ends.of(worker.number) == before:
                    assert worker.process.poll() is None, "a worker ended by itself"
                    await asyncio.sleep(0.05)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        worker.kill()
        worker.start()


class _Ends:
    """How far the target has come."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic

    async def of(self, worker: int) -> int:
        """Sum the ends of a worker's partitions: a record stays in the partition of its order."""
        places = [TopicPartition(self._topic, number) for number in range(worker, PARTITIONS, WORKERS)]
        return sum((await self._consumer.end_offsets(places)).values())


async def _read_all(cluster: Cluster, topic: str, orders: int, level: str) -> list[Consumed]:
    """Read until every order is there, or nothing more comes."""
    found: list[Consumed] = []
    since = time.monotonic()
    while True:
        before = len(found)
        found = await read_topic(cluster.bootstrap_servers, topic, isolation_level=level, timeout_s=120)
        if len(found) > before:
            since = time.monotonic()
        if len(found) >= orders or time.monotonic() - since > MOVED_WITHIN_S / 2:
            return found
        await asyncio.sleep(0.5)


def key_of(number: int) -> bytes:
    """The key of an order, and of what is made of it."""
    return b"%d" % (number % KEYS)


def judge(found: Sequence[Consumed], orders: int) -> list[str]:
    """Say what is wrong with the target: missing, repeated, altered, out of order."""
    totals = [json.loads(record.value or b"{}") for record in found]
    times = Counter(total["id"] for total in totals)
    wrong = [f"{number} is missing" for number in range(orders) if number not in times]
    wrong += [f"{number} is there {count} times" for number, count in times.items() if count > 1]
    last: dict[bytes | None, int] = {}
    for record, total in zip(found, totals, strict=True):
        number = total["id"]
        if total != {"id": number, "total": PRICE * number} or record.key != key_of(number):
            wrong.append(f"{total} is under {record.key!r}")
        if number < last.get(record.key, -1):
            wrong.append(f"{number} comes after {last[record.key]}")
        last[record.key] = number
    return wrong
