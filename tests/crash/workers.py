"""Many workers over one ``wal_dir``: started, killed and scaled down to two, again and again, and then judged.

Some workers never reach a broker: whatever they accept is left in their directory when they are killed, and has to be
delivered by whoever takes its number next, or adopts it. Every record is looked for by its id at the end, so that a
directory delivered by two processes at the same time shows as records out of order or twice, and one that nobody
adopts as records that are missing.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiorecover.wal.instances import instances
from tests.crash.child import Task
from tests.crash.cycles import PARTITIONS, TOPICS, changed, loud_lines, some_options
from tests.crash.judgement import Ledger, Verdict, examine
from tests.crash.lives import Child
from tests.support.broker import Cluster

__all__ = ["FEWEST", "Fleet", "Outcome", "run_workers"]

FEWEST = 2  # as many are left after scaling down
_NOWHERE = "127.0.0.1:1"  # no broker listens there
_CUT_OFF = 0.3  # of the workers reach no broker
_FIXED = 0.2  # of the workers ask for a home by name
_HOMES = 3  # names that are asked for
_OPENED = 0.8  # of the workers have begun to publish before the next change; the others may be killed while they open
_ROUND_S = (0.1, 1.0)  # from one change to the next
_GRACE_MS = (0, 100, 500)
_ADOPTED_WITHIN_S = 180.0
_LOOK_S = 0.2
_FLUSH_MS = 60_000
_RECORDS_AT_MOST = 3_000  # of one worker: the judgement holds them all in memory


@dataclass(frozen=True)
class Outcome:
    """What came of it: of the records, and of the directories without an owner."""

    verdict: Verdict
    directories: int
    adopted: int
    """Directories that the last two workers have delivered; those before them could not tell all."""

    def __str__(self) -> str:
        return f"{self.verdict} directories={self.directories} adopted={self.adopted}"


def run_workers(
    cluster: Cluster,
    rounds: int,
    seed: int,
    directory: Path,
    *,
    most: int = 20,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Start and kill up to `most` workers in so many rounds, let the last two deliver everything, and judge.

    What the seed decides is repeated with it, what the machine decides is not.
    """
    fleet = Fleet(cluster, seed, directory, most)
    try:
        for number in range(1, rounds + 1):
            what = fleet.change()
            report(f"seed={seed} round={number}/{rounds} {what}")
        return fleet.end()
    finally:
        fleet.kill_all()


class Fleet:
    """The workers that live now, and what all of them have said."""

    def __init__(self, cluster: Cluster, seed: int, directory: Path, most: int, **options: Any) -> None:
        """``most``: workers at the same time; ``options``: those that all of them have."""
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._most = most
        self._log = directory / "children.log"
        self._wal_dir = directory / "wal"
        self.topics = [f"workers-{seed}-{number}-{os.urandom(3).hex()}" for number in range(TOPICS)]
        """Where they publish."""
        for topic in self.topics:
            cluster.create_topic(topic, PARTITIONS)
        self._shared = {"slot_bytes": self._rng.choice([1 << 14, 1 << 16]), **options}
        self._ledger = Ledger()
        self._living: list[Child] = []
        self._lives = 0
        self._base = Task(
            parent_pid=0,
            report_fd=-1,
            bootstrap_servers=f"{cluster.bootstrap_servers},{_NOWHERE}",  # an address in common: see `orphans`
            wal_dir=str(self._wal_dir),
            topics=self.topics,
            partitions=PARTITIONS,
            life=0,
            seed=seed,
            steps=[],
        )

    def change(self) -> str:
        """One round: some workers come, some die, and now and then all but two."""
        rng = self._rng
        what = rng.choices(["start", "kill", "scale down"], [5, 3, 1])[0]
        if what == "start" or len(self._living) <= FEWEST:
            begun = [self._start() for _ in range(min(rng.randrange(1, 5), self._most - len(self._living)))]
            for child in begun:
                if "instance" not in child.task.options and rng.random() < _OPENED:
                    child.wait_for("publish")
            what = "start"
        elif what == "kill":
            for _ in range(rng.randrange(1, 4)):
                self._kill_one()
        else:
            while len(self._living) > FEWEST:
                self._kill_one()
        time.sleep(rng.uniform(*_ROUND_S))
        return f"{what}: workers={len(self._living)} accepted={sum(map(len, self._ledger.accepted.values()))}"

    def end(self) -> Outcome:
        """All die; the last two deliver what every directory holds, and stop."""
        self.kill_all()
        last = [self._last() for _ in range(FEWEST)]
        for child in last:
            child.wait_for("wait")
        left = self._wait_until_adopted()
        adopted = 0
        for child in last:
            child.tell()
            statistics = child.finish(_ADOPTED_WITHIN_S)
            self._ledger.take(child)
            adopted += statistics["directories_adopted"]
        self._living.clear()
        self._ledger.complaints += [f"nobody has delivered {name}" for name in left] + loud_lines(self._log)
        verdict = examine(self._cluster, self.topics, self._ledger)
        return Outcome(verdict, len(instances(self._wal_dir)), adopted)

    def kill_all(self) -> None:
        """Nobody is left."""
        while self._living:
            self._kill_one()

    def _start(self) -> Child:
        rng = self._rng
        cut_off = rng.random() < _CUT_OFF
        options = self._options()
        if rng.random() < _FIXED:
            options["instance"] = f"home-{rng.randrange(_HOMES)}"
            options["full_timeout_ms"] = 600_000  # another one may live there for long
        load = {"rate": rng.choice([100, 1_000, 5_000]), "count": rng.randrange(1, _RECORDS_AT_MOST)}
        steps: list[tuple[str, dict[str, Any]]] = [("publish", load)]
        if rng.random() < 0.8:  # the others stop by themselves
            steps.append(("wait", {}))
        servers = _NOWHERE if cut_off else self._base.bootstrap_servers
        return self._begin(steps, options, bootstrap_servers=servers)

    def _last(self) -> Child:
        steps = [("publish", {"count": 10}), ("wait", {}), ("flush", {"timeout_ms": _FLUSH_MS})]
        return self._begin(steps, self._options())

    def _begin(self, steps: list[tuple[str, dict[str, Any]]], options: dict[str, Any], **changes: Any) -> Child:
        self._lives += 1
        task = changed(
            self._base,
            life=self._lives,
            steps=steps,
            options=options,
            group=self._rng.choice([1, 8, 64]),
            uvloop=self._rng.random() < 0.5,
            **changes,
        )
        child = Child(task, self._log)
        self._living.append(child)
        return child

    def _options(self) -> dict[str, Any]:
        return {**some_options(self._rng, self._shared), "adoption_grace_ms": self._rng.choice(_GRACE_MS)}

    def _kill_one(self) -> None:
        child = self._living.pop(self._rng.randrange(len(self._living)))
        child.kill()
        self._ledger.take(child)

    def _wait_until_adopted(self) -> list[str]:
        """Directories without an owner in which something is left when the time is up."""
        until = time.monotonic() + _ADOPTED_WITHIN_S
        while True:
            left = [
                one.path.name for one in instances(self._wal_dir) if one.state == "free" and one.waiting is not False
            ]
            busy = [one for one in instances(self._wal_dir) if one.state == "locked"]
            if (not left and len(busy) == FEWEST) or time.monotonic() > until:
                return left
            time.sleep(_LOOK_S)
