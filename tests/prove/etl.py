"""`python -m tests.prove etl --seed S --count KILLS --guarantee G`: workers that move records, killed again and again.

What it looks at: `tests.crash.etl`. Each record has to arrive exactly once, in the order of its key; with
``--guarantee exactly_once`` for a consumer that reads what is committed. As many have to be in the target as the
source has accepted. At least nine in ten kills have to hit a worker that is moving records, and the last one comes when
a million were moved (of fewer kills as many each): else nothing is proved.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too little happened, 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.crash.etl import run_workers
from tests.prove.once import Judged, prove_once
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main"]

_RECORDS_PER_KILL = 5_000  # a million in 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        kills, records = options.count, options.count * _RECORDS_PER_KILL
        outcome = run_workers(cluster, directory, seed=seed, kills=kills, records=records, guarantee=options.guarantee)
        return Judged(outcome.ok, f"{options.guarantee} {outcome}", outcome.too_little)

    return prove_once("etl", lambda: choose_cluster(1), options.seed, run)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove etl", description="workers from topic to topic")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many kills (default 200)")
    guarantees = ["at_least_once", "exactly_once"]
    parser.add_argument("--guarantee", choices=guarantees, default=guarantees[0], help="of the workers")
    return parser.parse_args(arguments)
