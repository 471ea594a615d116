"""Kill -9 of publishing processes, beside brokers that are killed or frozen, judged by record id from outside."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aiorecover.core.producer import RecoverableProducer
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Verdict, judge, read_topic

DELIVERED_WITHIN_MS = 120_000
START_S = 60.0


async def kill_cycles(
    cluster: Cluster,
    topic: str,
    directory: Path,
    *,
    cycles: int,
    seed: int,
    harm: bool = False,
    guarantee: str = "at_least_once",
) -> Verdict:
    """Run and kill ``cycles`` processes, deliver what is left, and compare with what Kafka has.

    ``harm``: now and then a broker is killed or frozen while a process publishes, and is back before it is killed.
    """
    chance = random.Random(seed)
    await asyncio.to_thread(_run_and_kill, cluster, topic, directory, cycles, seed, guarantee, chance if harm else None)
    wal_dir, log = directory / "wal", directory / "log"
    await asyncio.to_thread(cluster.heal)
    async with RecoverableProducer(
        wal_dir, bootstrap_servers=cluster.bootstrap_servers, guarantee=guarantee
    ) as producer:
        await producer.flush(DELIVERED_WITHIN_MS)
    isolation = "read_committed" if guarantee == "exactly_once" else "read_uncommitted"
    consumed = await read_topic(cluster.bootstrap_servers, topic, isolation_level=isolation)
    return judge(_accepted(log), consumed)


def _run_and_kill(
    cluster: Cluster, topic: str, directory: Path, cycles: int, seed: int, guarantee: str, harming: random.Random | None
) -> None:
    chance = harming or random.Random(seed)
    for cycle in range(cycles):
        places = (str(directory / "wal"), cluster.bootstrap_servers, topic, str(directory / "log"))
        arguments = (*places, str(seed * 1000 + cycle), guarantee)
        with (directory / "stderr").open("ab") as errors:
            victim = subprocess.Popen([sys.executable, "-m", "tests.kafka.victim", *arguments], stderr=errors)
        try:
            _wait_for_records(directory / "log", victim)
            time.sleep(chance.uniform(0.1, 2.5))
            if harming is not None and chance.random() < 0.5:
                _harm(cluster, chance)
            assert victim.poll() is None, (directory / "stderr").read_text()[-2000:]
        finally:
            victim.kill()
            victim.wait()


def _wait_for_records(log: Path, victim: "subprocess.Popen[bytes]") -> None:
    """Wait until the process has accepted something: on a busy machine it takes seconds to start."""
    before = log.stat().st_size if log.exists() else 0
    until = time.monotonic() + START_S
    while victim.poll() is None and time.monotonic() < until:
        if log.exists() and log.stat().st_size > before:
            return
        time.sleep(0.02)


def _harm(cluster: Cluster, chance: random.Random) -> None:
    node = chance.choice(list(cluster.nodes))
    if chance.random() < 0.5:
        node.kill()
        time.sleep(chance.uniform(0.2, 2.0))
        node.start()
    else:
        node.pause()
        time.sleep(chance.uniform(0.2, 3.0))
        node.resume()
    time.sleep(chance.uniform(0.0, 2.0))


def _accepted(log: Path) -> Sequence[Accepted]:
    found = []
    lines = log.read_text().split("\n")
    for line in lines[:-1]:  # the last one may be cut short
        record_id, key, value = line.split(" ", 2)
        found.append(Accepted(record_id, key.encode() or None, value.encode()))
    return found
