"""Cycles of publish and `kill -9`, and the judgement of what then stands in Kafka.

`run_cycles` starts the publishing process (`tests.crash.child`) on one directory again and again and kills it at
random moments: while it opens and recovers, while it publishes, while it stops. At last it lets it deliver what is
left, and judges (`tests.crash.judgement`).
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.child import Task
from tests.crash.crash_points import POINTS
from tests.crash.judgement import Ledger, Verdict, examine
from tests.crash.lives import Child
from tests.support.broker import Cluster

__all__ = ["changed", "loud_lines", "run_cycles", "some_options"]

TOPICS = 3
PARTITIONS = 4
_DRAIN_WITHIN_S = 300.0
_START_S = 1.0  # until a life publishes
ENDS = {"opening": 25, "publishing": 55, "stopping": 15, "stopped": 5}
"""How lives end, with weights: killed while they open, publish or stop, or not killed at all."""
SELF_KILL = {"crash point": 50}
_LOUD = (" ERROR aiorecover", " ERROR asyncio", " CRITICAL ", "Traceback (most recent call last)")


def run_cycles(
    cluster: Cluster,
    cycles: int,
    seed: int,
    directory: Path,
    *,
    name: str = "cycles",
    servers: str = "",
    meanwhile: AbstractContextManager[Any] | None = None,
    longest_life_s: float = 1.2,
    crash_points: bool | Sequence[str] = False,
    isolation_level: str = "read_uncommitted",
    report: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Verdict:
    """Kill `cycles` lives of one publisher, let another one deliver the rest, and judge.

    What the seed decides is repeated with it (load, options, moments); what the machine decides is not. `directory`
    takes the write-ahead log and the children's log; `servers` are what the lives connect to, the cluster's own by
    default. `meanwhile` is entered for the cycles and left before the rest is delivered: what fails in these. A life
    that publishes is killed within `longest_life_s`. With `crash_points` some lives kill themselves at one of
    `tests.crash.crash_points`, or at one of those that are named. `options` are those of all lives.
    """
    rng = random.Random(seed)
    topics = [f"{name}-{seed}-{number}-{os.urandom(3).hex()}" for number in range(TOPICS)]
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS)
    ledger = Ledger()
    log = directory / "children.log"
    shared = {"slot_bytes": rng.choice([1 << 14, 1 << 16, 1 << 20]), **options}
    points = [*POINTS] if crash_points is True else [*(crash_points or ())]
    ends = {**ENDS, **(SELF_KILL if crash_points else {})}
    base = Task(
        parent_pid=0,
        report_fd=-1,
        bootstrap_servers=servers or cluster.bootstrap_servers,
        wal_dir=str(directory / "wal"),
        topics=topics,
        partitions=PARTITIONS,
        life=0,
        seed=seed,
        steps=[],
    )
    with meanwhile or nullcontext():
        for cycle in range(1, cycles + 1):
            child, how = _one_cycle(rng, base, cycle, shared, ends, log, longest_life_s, points)
            ledger.take(child)
            report(f"seed={seed} cycle={cycle}/{cycles} {how} accepted={sum(map(len, ledger.accepted.values()))}")
    drain = [("flush", {"timeout_ms": int(_DRAIN_WITHIN_S * 1000)})]
    last = Child(changed(base, life=cycles + 1, steps=drain, options=some_options(rng, shared)), log)
    statistics = last.finish(_DRAIN_WITHIN_S * 2)
    ledger.take(last)
    ledger.complaints += loud_lines(log)
    return examine(cluster, topics, ledger, left=statistics["left"], isolation_level=isolation_level)


def _one_cycle(
    rng: random.Random,
    base: Task,
    cycle: int,
    shared: dict[str, Any],
    ends: Mapping[str, int],
    log: Path,
    longest_life_s: float,
    points: Sequence[str],
) -> tuple[Child, str]:
    """One life and its end; how it ended, for people."""
    end = rng.choices([*ends], [*ends.values()])[0]
    options = some_options(rng, shared)
    publishers = rng.choice([4, 16]) if options["fsync"] == "always" else rng.choice([1, 1, 3])
    rate = rng.choices([0, 20_000, 2_000, 100], [2, 5, 3, 1])[0]
    load: dict[str, Any] = {"rate": rate, "publishers": publishers}
    if end in {"stopping", "stopped"}:
        load["seconds"] = rng.uniform(0.05, 0.5)
    if rate == 0:
        load["count"] = rng.randrange(1_000, 30_000)
    steps = [("publish", load)]
    if end in {"opening", "publishing", "crash point"}:
        steps.append(("wait", {}))  # a load that is over waits for its kill
    task = changed(
        base,
        life=cycle,
        steps=steps,
        options=options,
        group=rng.choice([1, 8, 64]),
        uvloop=rng.random() < 0.5,
        crash=_crash(rng, points) if end == "crash point" else None,
    )
    child = Child(task, log)
    if end == "stopped":
        child.finish()
        return child, end
    if end == "crash point":
        child.wait_for("starting")  # Python takes its time on a busy machine
        reached = child.wait_dead(longest_life_s + _START_S)
        return child, f"{task.crash}{'' if reached else ' not reached'}"
    child.wait_for({"opening": "starting", "publishing": "opened", "stopping": "stopping"}[end])
    longest = {"opening": 0.06, "publishing": longest_life_s, "stopping": 0.05}[end]
    pause = rng.uniform(0.0, longest)
    time.sleep(pause)
    child.kill()
    return child, f"{end}+{pause * 1000:.0f}ms"


def _crash(rng: random.Random, points: Sequence[str]) -> tuple[str, int]:
    return rng.choice(points), rng.choice([1, 2, 5, 20])


def some_options(rng: random.Random, shared: dict[str, Any]) -> dict[str, Any]:
    """Options of one life; the directory's own stay the same."""
    return {
        **shared,
        "fsync": rng.choices(["never", "interval", "always"], [4, 4, 1])[0],
        "fsync_interval_ms": rng.choice([10, 200]),
        "checkpoint_interval_ms": rng.choice([10, 100, 1000]),
        "linger_ms": rng.choice([0, 5, 20]),
        "compression_type": rng.choice([None, None, "gzip", "lz4"]),
        "stop_timeout_ms": 3000,
    }


def changed(task: Task, **changes: Any) -> Task:
    """The task with some of it replaced."""
    return Task(**{**asdict(task), **changes})


def loud_lines(log: Path) -> list[str]:
    """Nothing that happens here is an error of the library's; aiokafka may complain of brokers."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if any(word in line for word in _LOUD)]
