"""`python -m tests.prove sink --seed S --count ROWS --kills K --writes W`: Spark's sink while executors die.

What it looks at: `tests.spark.killed_sink`. Of each row one record has to count, every attempt has to have ids of its
own, also those that were killed, and what these have left must be in no table and no audit. At least half of the kills
have to hit an executor in the middle of a write, and leave something behind: else little is proved.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too little happened, 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.prove.once import Judged, prove_once
from tests.spark.killed_sink import Outcome, run_sink
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main", "too_little"]

_LANDING_KILLS = 3
_HITS = 0.5  # of the kills: how long a write takes is up to the machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    asked = {"rows": options.count, "kills": options.kills, "writes": options.writes, "landing_kills": _LANDING_KILLS}

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        outcome = run_sink(cluster, directory, seed=seed, **asked)
        return Judged(outcome.ok, str(outcome), too_little(outcome))

    return prove_once("sink", lambda: choose_cluster(1), options.seed, run)


def too_little(outcome: Outcome) -> list[str]:
    """What a run had too little of, in words."""
    little = []
    if outcome.hits < _HITS * outcome.kills:
        little.append(f"in the middle of a write were {outcome.hits} of {outcome.kills} kills")
    if outcome.sent == outcome.counting.total():
        little.append("no attempt that was killed had sent anything")
    return little


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove sink", description="executors killed as they write")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=600_000, help="how many rows, at least (default 600000)")
    parser.add_argument("--kills", type=int, default=10, help="how often executors are killed (default 10)")
    parser.add_argument("--writes", type=int, default=20, help="in how many writes, at least as many (default 20)")
    return parser.parse_args(arguments)
