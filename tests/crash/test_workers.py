"""Workers of one ``wal_dir`` that are killed at random, adopters among them: each record arrives once, in order."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.ring.directory import instances
from aiorecover.ring.inspect import look
from tests.kafka.victim import Task, as_json
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

CUT_OFF = 0.3  # of the workers reach no broker: what they accept, others have to deliver
MOST = 4  # workers at a time
PAUSE_S = 0.2  # between two bursts of each
STARTED_WITHIN_S = ADOPTED_WITHIN_S = 60.0
SOME_BYTES = 100  # of a log: a record or more


class Fleet:
    """The workers that live, and what all of them have accepted."""

    def __init__(self, cluster: Cluster, topic: str, directory: Path, seed: int, **options: Any) -> None:
        self._cluster, self._topic, self._directory, self._options = cluster, topic, directory, options
        self._chance = random.Random(seed)
        self._living: list[subprocess.Popen[bytes]] = []
        self.started = self.killed = 0

    async def change(self) -> None:
        """Start workers up to the most; once all publish, kill one or two after a while."""
        while len(self._living) < MOST:
            self._start()
        await until(self._all_publish, STARTED_WITHIN_S)
        await asyncio.sleep(self._chance.uniform(0.2, 1.5))
        for _ in range(self._chance.randint(1, 2)):
            self._kill(self._living.pop(self._chance.randrange(len(self._living))))

    def end(self) -> None:
        """Kill all."""
        while self._living:
            self._kill(self._living.pop())

    def accepted(self) -> Iterator[Accepted]:
        """The records that were accepted, as the workers wrote them down, the first worker's first."""
        for number in range(1, self.started + 1):
            for line in self._log(number).read_text().split("\n")[:-1]:  # the last one may be cut short
                if not line.startswith("#"):
                    record_id, key, value = line.split(" ", 2)
                    yield Accepted(record_id, key.encode() or None, value.encode())

    def _all_publish(self) -> bool:
        assert all(worker.poll() is None for worker in self._living), self._errors()
        logs = [self._log(number) for number in range(1, self.started + 1)]
        return all(log.exists() and log.stat().st_size > SOME_BYTES for log in logs)

    def _log(self, number: int) -> Path:
        return self._directory / f"log-{number}"

    def _errors(self) -> str:
        return (self._directory / "stderr").read_text()[-3000:]

    def _start(self) -> None:
        self.started += 1
        cut_off = self._chance.random() < CUT_OFF
        task = Task(
            wal_dir=str(self._directory / "wal"),
            servers=NOWHERE if cut_off else self._cluster.bootstrap_servers,
            topic=self._topic,
            log=str(self._log(self.started)),
            seed=self.started,
            pause_s=PAUSE_S,
            options=self._options,
        )
        with (self._directory / "stderr").open("ab") as errors:
            command = [sys.executable, "-m", "tests.kafka.victim", as_json(task)]
            self._living.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors))

    def _kill(self, worker: "subprocess.Popen[bytes]") -> None:
        assert worker.poll() is None, self._errors()
        worker.kill()
        worker.communicate()
        self.killed += 1


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_whatever_is_killed_each_record_arrives_once_in_order_and_no_directory_is_left_behind(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    name, options = topic(kafka), {"guarantee": guarantee, "adoption_grace_ms": 500}
    fleet = Fleet(kafka, name, tmp_path, seed=34, **options)
    try:
        for _ in range(6):
            await fleet.change()
    finally:
        fleet.end()
    left = [one.path for one in instances(tmp_path / "wal")]
    last: Any = {**options, "instance": "last"}
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=kafka.bootstrap_servers, **last) as producer:
        waiting = [path for path in left if look(path).records]
        await until(lambda: producer.statistics().directories_adopted >= len(waiting), ADOPTED_WITHIN_S)
        assert [path for path in left if look(path).records] == []
    accepted = list(fleet.accepted())
    verdict = judge(accepted, await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed"))
    print(verdict, f"started={fleet.started} killed={fleet.killed} directories={len(left)} adopted_last={len(waiting)}")
    assert verdict.ok, verdict
    assert verdict.repeated == 0
    assert verdict.accepted > 1_000
    assert waiting  # else the last adoption proves nothing
