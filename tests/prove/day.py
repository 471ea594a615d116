"""`python -m tests.prove day --seed S --count HOURS --seconds S --rate R`: a day of outages, and nothing is left of it.

What it looks at: `tests.crash.day`. Every record has to stand there once, in order, and the process to be as it was
before: memory, the ring's file, descriptors, threads, tasks; nor may memory creep up from one quarter to another.

A run in which next to nothing was published, or hardly a broker failed, proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.crash.day import Day, run_day
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import below
from tests.support.broker import KafkaCluster

__all__ = ["main", "too_little"]

_BROKERS = 3
_FLOOR_HOURS = 12  # a shorter run may be over before all of that has come
_FAULTS = ("kill all", "roll")  # at least once each
_HOURS_PER_DARK = 5
_HOURS_PER_FREEZE = 2  # three in two hours
_HOURS_PER_KILL = 4  # one each
_ACCEPTED_PER_HOUR = 5_000  # some 50,000


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def run(cluster: KafkaCluster, directory: Path, seed: int) -> Judged:
        day = run_day(cluster, directory, seed=seed, hours=options.count, hour_s=options.seconds, rate=options.rate)
        left = [f"left of it: {what}" for what in day.left()]
        return Judged(day.verdict.ok and day.verdict.repeated == 0, str(day), [*left, *too_little(day, options.count)])

    return prove_once("day", lambda: KafkaCluster(_BROKERS), options.seed, run)


def too_little(day: Day, hours: int) -> list[str]:
    """What there was so little of that it proves nothing, in words."""
    if hours < _FLOOR_HOURS:
        return []
    floors = {
        **dict.fromkeys(_FAULTS, 1),
        "dark": hours // _HOURS_PER_DARK,
        "freeze": hours // _HOURS_PER_FREEZE,
        "kill": hours // _HOURS_PER_KILL,
        "accepted": hours * _ACCEPTED_PER_HOUR,
    }
    return below(day.faults + Counter(accepted=day.verdict.accepted), floors)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove day", description="a day of outages")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=24, help="how many hours (default 24)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each is (default 25)")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second in the busiest hour (default 5000)")
    return parser.parse_args(arguments)
