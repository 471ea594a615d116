"""Processes that are killed, or lose their power, beside brokers that are killed or frozen; judged from outside.

`Lives` is one directory with its processes, `kill_cycles` many kills of them; the oracle looks for each record by id.
"""

import asyncio
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.kafka.victim import DELIVERED_WITHIN_MS, Task, as_json, copy_file
from tests.support.broker import Cluster
from tests.support.frozen import freeze
from tests.support.oracle import Accepted, Verdict, judge, read_topic
from tests.support.published import NOWHERE

START_S = 60.0  # on a busy machine a process takes seconds to start
ALONE = 0.4  # of the lives never reach Kafka: the ring alone has what they accept
SECTORS = (512, 4096)  # bytes that the disk writes as a whole


class Lives:
    """Processes that publish through one directory, one after the other."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        directory: Path,
        *,
        servers: str | None = None,
        keys: int = 40,
        keyless: int = 11,
        power: bool = False,
        **options: Any,
    ) -> None:
        """``power``: it can be cut; ``options``: the producer's."""
        self.cluster, self.topic, self.directory, self.options = cluster, topic, directory, options
        self.servers = servers or cluster.bootstrap_servers
        self.keys, self.keyless = keys, keyless
        self.wal_dir, self.log = directory / "wal", directory / "log"
        self._boot = uuid.uuid4().hex if power else None
        self._lives = 0
        self._cut: set[int] = set()  # numbers of the lives that ended so

    def start(self, seed: int, *, servers: str | None = None) -> "subprocess.Popen[bytes]":
        """Begin a life; return once it has accepted something."""
        before = self.log.stat().st_size if self.log.exists() else 0
        victim = self._run(seed, servers=servers)
        until = time.monotonic() + START_S
        while victim.poll() is None and time.monotonic() < until:
            if self.log.exists() and self.log.stat().st_size > before + 100:
                break
            time.sleep(0.02)
        return victim

    def kill(self, victim: "subprocess.Popen[bytes]") -> None:
        """`kill -9`.

        Raises:
            AssertionError: it had ended by itself.

        """
        assert victim.poll() is None, self.errors()
        end(victim)

    def cut_power(self, victim: "subprocess.Popen[bytes]", chance: random.Random) -> None:
        """End the life, and leave of the ring what a disk may have; the next life is another boot."""
        assert victim.poll() is None, self.errors()
        freeze(victim.pid)
        ring, durable = self.wal_dir / "0" / "ring", self.log.with_name("durable")
        now, then = ring.read_bytes(), durable.read_bytes() if durable.exists() else b""
        end(victim)
        sector, newer = chance.choice(SECTORS), chance.choice((0.0, 0.1, 0.5, 0.9))
        with ring.open("r+b") as file:
            for place in _differences(now, then, sector):
                if chance.random() >= newer:
                    file.seek(place)
                    file.write(then[place : place + sector].ljust(sector, b"\0"))
            file.flush()
            copy_file(file.fileno(), durable)
        self._cut.add(self._lives)
        self._boot = uuid.uuid4().hex

    async def verdict(self) -> Verdict:
        """Deliver what is left, and compare what Kafka has with what was accepted, and had to survive."""
        drain = await asyncio.to_thread(self._run, 0, drain=True)
        code = await asyncio.to_thread(drain.wait, DELIVERED_WITHIN_MS / 1000 + START_S)
        end(drain)
        assert code == 0, self.errors()
        exactly_once = self.options.get("guarantee") == "exactly_once"
        isolation = "read_committed" if exactly_once else "read_uncommitted"
        accepted = list(self._accepted())
        consumed = await read_topic(self.cluster.bootstrap_servers, self.topic, isolation_level=isolation)
        verdict = judge([one for one, _ in accepted], consumed)
        lost = {one.record_id for one, survives in accepted if not survives}
        return replace(verdict, missing=[one for one in verdict.missing if one not in lost])

    def errors(self) -> str:
        """Return the end of what the processes wrote to stderr."""
        return (self.directory / "stderr").read_text()[-3000:]

    def _run(self, seed: int, *, drain: bool = False, servers: str | None = None) -> "subprocess.Popen[bytes]":
        self._lives += 1
        task = Task(
            wal_dir=str(self.wal_dir),
            servers=servers or (self.cluster.bootstrap_servers if drain else self.servers),
            topic=self.topic,
            log=str(self.log),
            seed=seed,
            keys=self.keys,
            keyless=self.keyless,
            boot=self._boot,
            drain=drain,
            options=self.options,
        )
        command = [sys.executable, "-m", "tests.kafka.victim", as_json(task)]
        with (self.directory / "stderr").open("ab") as errors:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)

    def _accepted(self) -> Iterator[tuple[Accepted, bool]]:
        """The records that were accepted, and whether each had to survive.

        A power cut takes what no flush covered, of the lives before in the same boot, too.
        """
        lives: list[list[Accepted]] = []
        sure: list[int] = []  # so many records of each life are covered
        at_risk: list[int] = []  # numbers of the lives that are not covered as a whole
        for line in [*self.log.read_text().split("\n")[:-1], "# life"]:
            if line == "# life":
                if len(lives) in self._cut:
                    at_risk.clear()
                at_risk.append(len(lives))
                lives.append([])
                sure.append(0)
            elif line.startswith("# "):
                sure[-1] = int(line.rpartition(" ")[2])
                if line.startswith("# all "):
                    for earlier in at_risk[:-1]:
                        sure[earlier] = len(lives[earlier])
                    del at_risk[:-1]
            else:
                record_id, key, value = line.split(" ", 2)
                lives[-1].append(Accepted(record_id, key.encode() or None, value.encode()))
        for number in at_risk:
            sure[number] = len(lives[number])
        for records, covered in zip(lives, sure, strict=True):
            for place, record in enumerate(records):
                yield record, place < covered


def _differences(now: bytes, then: bytes, sector: int) -> Iterator[int]:
    """The places of the sectors that are not the same."""
    large = 1 << 16
    for start in range(0, len(now), large):
        if now[start : start + large] != then[start : start + large]:
            for place in range(start, min(start + large, len(now)), sector):
                if now[place : place + sector] != then[place : place + sector]:
                    yield place


async def kill_cycles(
    cluster: Cluster,
    topic: str,
    directory: Path,
    *,
    cycles: int,
    seed: int,
    harm: bool = False,
    power: bool = False,
    keys: int = 40,
    guarantee: str = "at_least_once",
) -> Verdict:
    """Run and kill ``cycles`` processes, deliver what is left, and compare with what Kafka has.

    ``harm``: now and then a broker is killed or frozen while a process publishes, and is back before it is killed.
    ``power``: every other process loses its power instead.
    """
    options: dict[str, Any] = {
        "guarantee": guarantee,
        **({"fsync_interval_ms": 100} if power else {}),
    }  # a life has many flushes
    lives = Lives(cluster, topic, directory, keys=keys, power=power, **options)
    await asyncio.to_thread(_run_and_kill, lives, cycles, seed, harm=harm, power=power)
    await asyncio.to_thread(cluster.heal)
    return await lives.verdict()


def _run_and_kill(lives: Lives, cycles: int, seed: int, *, harm: bool, power: bool) -> None:
    chance = random.Random(seed)
    for cycle in range(cycles):
        alone = chance.random() < ALONE
        victim = lives.start(seed * 1000 + cycle, servers=NOWHERE if alone else None)
        try:
            time.sleep(chance.uniform(0.1, 2.5))
            if harm and not alone and chance.random() < 0.5:
                _harm(lives.cluster, chance)
            if power and chance.random() < 0.5:
                lives.cut_power(victim, chance)
            else:
                lives.kill(victim)
        finally:
            end(victim)


def end(victim: "subprocess.Popen[bytes]") -> None:
    """Leave nothing of a process, dead or not."""
    victim.kill()
    victim.wait()
    if victim.stdin is not None:
        victim.stdin.close()


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
