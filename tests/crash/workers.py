"""Many workers over one ``wal_dir``: started, ended and scaled down to two, again and again, and then judged.

Most are ended with `kill -9`, some with SIGTERM: these stop, in their time, and hand over what they could not deliver.
Now and then as many as may be live at the same time. Some workers never reach a broker: whatever they accept is left in
their directory when they end, and has to be delivered by whoever takes its number next, or adopts it. Every record is
looked for by its id at the end, so that a directory delivered by two processes at the same time shows as records out of
order or twice, and one that nobody adopts as records that are missing.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiorecover.cli.inspection import inspect
from tests.crash.adopting import waiting_in
from tests.crash.child import Task
from tests.crash.cycles import PARTITIONS, TOPICS, changed, loud_lines, some_options
from tests.crash.judgement import Ledger, Verdict, examine
from tests.crash.lives import Child
from tests.crash.scenario import Step
from tests.support.broker import Cluster

__all__ = ["FEWEST", "Fleet", "Outcome", "run_workers", "too_late"]

FEWEST = 2  # as many are left after scaling down
_NOWHERE = "127.0.0.1:1"  # no broker listens there
_CUT_OFF = 0.3  # of the workers reach no broker
_FIXED = 0.2  # of the workers ask for a home by name
_HOMES = 3  # names that are asked for
_OPENED = 0.8  # of the workers have begun to publish before the next change; the others may be killed while they open
_STAY = 0.8  # of the workers; the others stop by themselves
_STAY_ON: Step = ("wait", {})
_CHANGES = {"start": 5.0, "end": 3.0, "scale up": 0.4, "scale down": 1.0}
"""What a round does, with weights."""
_TERMINATED = 0.3  # of the workers end with SIGTERM; all others with `kill -9`
_STOPPED_WITHIN_S = 60.0  # else something hangs
_STOP_LATE_S = 2.0  # on a busy machine, beyond what `stop` may take
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
    """Directories that workers have delivered which came to an end and told of it; those that were killed could not."""
    happened: Counter[str]
    """"full": rounds at whose end as many workers as may be were alive; "terminated": those that have stopped at a
    SIGTERM; "handed over": those of them that left something."""

    def __str__(self) -> str:
        happened = " ".join(f"{what.replace(' ', '_')}={times}" for what, times in sorted(self.happened.items()))
        return f"{self.verdict} directories={self.directories} adopted={self.adopted} {happened}".rstrip()


def run_workers(
    cluster: Cluster,
    rounds: int,
    seed: int,
    directory: Path,
    *,
    most: int = 20,
    meanwhile: AbstractContextManager[Any] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Start and end up to `most` workers in so many rounds, let the last two deliver everything, and judge.

    What the seed decides is repeated with it, what the machine decides is not. `meanwhile` is entered for the rounds,
    and left before the rest is delivered.
    """
    fleet = Fleet(cluster, seed, directory, most)
    try:
        with meanwhile or nullcontext():
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
        self._adopted = 0
        self._happened = Counter[str]()
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
        """One round: some workers come, some go, and now and then all but two, or as many come as may be."""
        rng = self._rng
        what = rng.choices([*_CHANGES], [*_CHANGES.values()])[0]
        if what == "scale up":
            self._end([child for child in self._living if not _stays(child)])
            self._start(self._most - len(self._living), stay=True)
        elif what == "start" or len(self._living) <= FEWEST:
            self._start(min(rng.randrange(1, 5), self._most - len(self._living)))
            what = "start"
        else:
            self._end_some(rng.randrange(1, 4) if what == "end" else len(self._living) - FEWEST)
        time.sleep(rng.uniform(*_ROUND_S))
        self._happened["full"] += sum(child.running for child in self._living) >= self._most
        return f"{what}: workers={len(self._living)} accepted={sum(map(len, self._ledger.accepted.values()))}"

    def end(self) -> Outcome:
        """All die; the last two deliver what every directory holds, and stop."""
        self.kill_all()
        last = [self._last() for _ in range(FEWEST)]
        for child in last:
            child.wait_for("wait")
        left = self._wait_until_adopted()
        for child in last:
            child.tell()
            self._take_stopped(child, _ADOPTED_WITHIN_S)
        self._living.clear()
        self._ledger.complaints += [f"nobody has delivered {name}" for name in left] + loud_lines(self._log)
        verdict = examine(self._cluster, self.topics, self._ledger)
        return Outcome(verdict, len(inspect(self._wal_dir, 0)), self._adopted, self._happened)

    def kill_all(self) -> None:
        """Nobody is left."""
        while self._living:
            child = self._living.pop()
            child.kill()
            self._ledger.take(child)

    def _start(self, count: int, *, stay: bool = False) -> None:
        """So many more; with ``stay`` none of them stops by itself."""
        begun = [self._start_one(stay=stay) for _ in range(count)]
        for child in begun:
            if "instance" not in child.task.options and self._rng.random() < _OPENED:
                child.wait_for("publish")

    def _start_one(self, *, stay: bool) -> Child:
        rng = self._rng
        cut_off = rng.random() < _CUT_OFF
        options = self._options()
        if rng.random() < _FIXED:
            options["instance"] = f"home-{rng.randrange(_HOMES)}"
            options["full_timeout_ms"] = 600_000  # another one may live there for long
        load = {"rate": rng.choice([100, 1_000, 5_000]), "count": rng.randrange(1, _RECORDS_AT_MOST)}
        steps: list[Step] = [("publish", load)]
        if rng.random() < _STAY or stay:
            steps.append(_STAY_ON)
        servers = _NOWHERE if cut_off else self._base.bootstrap_servers
        return self._begin(steps, options, bootstrap_servers=servers)

    def _last(self) -> Child:
        steps = [("publish", {"count": 10}), _STAY_ON, ("flush", {"timeout_ms": _FLUSH_MS})]
        return self._begin(steps, self._options())

    def _begin(self, steps: list[Step], options: dict[str, Any], **changes: Any) -> Child:
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

    def _end_some(self, count: int) -> None:
        rng = self._rng
        self._end([self._living[number] for number in rng.sample(range(len(self._living)), count)])

    def _end(self, children: Sequence[Child]) -> None:
        """All at once, as when a service is scaled down; some as it should be, some in the hard way."""
        asked = [child for child in children if _stays(child) and self._rng.random() < _TERMINATED]
        stopping = [child for child in asked if child.running and child.opened]
        for child in stopping:
            child.terminate()
        for child in children:
            self._living.remove(child)
            if child in stopping:
                continue
            if child.running:
                child.kill()
                self._ledger.take(child)
            else:
                self._take_stopped(child)
        for child in stopping:
            self._happened["terminated"] += 1
            self._happened["handed over"] += self._take_stopped(child) > 0

    def _take_stopped(self, child: Child, within_s: float = _STOPPED_WITHIN_S) -> int:
        """Enter what one had said that comes to its end by itself; how many records it has left."""
        statistics = child.finish(within_s)
        self._ledger.take(child)
        self._ledger.complaints += too_late(statistics, child.task.options["stop_timeout_ms"])
        self._adopted += statistics["directories_adopted"]
        left: int = statistics["left"]
        return left

    def _wait_until_adopted(self) -> list[str]:
        """Directories without an owner in which something is left when the time is up."""
        until = time.monotonic() + _ADOPTED_WITHIN_S
        while True:
            found = inspect(self._wal_dir, 0)
            left = [one["path"] for one in found if one["state"] == "free" and (one["error"] or waiting_in(one))]
            busy = [one for one in found if one["state"] == "locked"]
            if (not left and len(busy) == FEWEST) or time.monotonic() > until:
                return left
            time.sleep(_LOOK_S)


def _stays(child: Child) -> bool:
    """It does not stop by itself."""
    return child.task.steps[-1] == _STAY_ON


def too_late(statistics: Mapping[str, Any], limit_ms: int) -> list[str]:
    """`stop` returns in its time, whatever it leaves; else how it did not."""
    took, limit = statistics["stop_s"], limit_ms / 1000
    return [] if took <= limit + _STOP_LATE_S else [f"a stop took {took:.1f} s, may take {limit:.1f} s"]
