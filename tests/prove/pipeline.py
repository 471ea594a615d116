"""`python -m tests.prove pipeline --seed S --count KILLS`: from publish to the table, and all of it killed.

What it looks at: `tests.spark.pipeline`, on three brokers that are killed and frozen meanwhile. Nothing may be missing,
twice, or in one place and not in the other, and the audit has to say so.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too little happened, 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.spark.pipeline import Outcome, run_pipeline
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main", "too_little"]

_HITS = 0.5  # of the kills of drivers are in the middle of a batch
_ACCEPTED_PER_KILL = 100  # some thousands on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove pipeline", description="from publish to the table")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=100, help="how many producers are killed (default 100)")
    options = parser.parse_args(arguments)

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        outcome = run_pipeline(cluster, directory, seed=seed, cycles=options.count, report=progress)
        return Judged(outcome.ok, str(outcome), too_little(outcome, options.count))

    return prove_once("pipeline", lambda: choose_cluster(3), options.seed, run)


def too_little(outcome: Outcome, cycles: int) -> list[str]:
    """Name the events that came too seldom in a run to prove anything."""
    floors = {
        "driver kills in a batch": (outcome.hits, max(1, _HITS * outcome.kills)),
        "accepted": (outcome.verdict.accepted, _ACCEPTED_PER_KILL * cycles),
    }
    return [f"{what}={count} expected>={floor}" for what, (count, floor) in floors.items() if count < floor]
