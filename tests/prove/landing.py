"""`python -m tests.prove landing --seed S --count RECORDS --kills K --batches B`: a topic landed while drivers die.

With `--who executors` these die, one or all at a time, and the driver has to live on; with `--into iceberg` the table
is one of Iceberg's.

What it looks at: `tests.spark.killed_landing`. Each record has to stand in the table once, though one in twenty stands
in Kafka twice, and the audit has to agree; what the landing remembers must not grow with what it has landed. At least
eight in ten kills have to be in the middle of a batch: else little is proved.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too few kills hit, 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.prove.once import Judged, prove_once
from tests.spark.killed_landing import DRIVERS, EXECUTORS, Outcome, run_landing
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main", "too_little"]

_PARQUET = "parquet"
_INTO = {_PARQUET: None, "iceberg": "lake.db.records"}
_HITS = 0.8  # of the kills
_GROWTH = 1.5  # of the state of ids: it is as large as what comes in at a time, and that is chance


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    asked = {"records": options.count, "kills": options.kills, "batches": options.batches, "who": options.who}
    asked["table"] = _INTO[options.into]

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        outcome = run_landing(cluster, directory, seed=seed, **asked)
        return Judged(outcome.ok, str(outcome), too_little(outcome))

    return prove_once("landing", lambda: choose_cluster(1), options.seed, run)


def too_little(outcome: Outcome) -> list[str]:
    """What a run had too little or too much of, in words."""
    little = []
    if outcome.hits < _HITS * outcome.kills:
        little.append(f"in the middle of a batch were {outcome.hits} of {outcome.kills} kills")
    if outcome.growth > _GROWTH:
        little.append(f"the state of ids grew {outcome.growth:.2f} times")
    return little


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove landing", description="drivers killed as they land")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=2_000_000, help="how many records (default 2000000)")
    parser.add_argument("--kills", type=int, default=10, help="how often some are killed (default 10)")
    parser.add_argument("--who", choices=[DRIVERS, EXECUTORS], default=DRIVERS, help="are killed (default drivers)")
    parser.add_argument("--into", choices=_INTO, default=_PARQUET, help=f"of what the table is (default {_PARQUET})")
    parser.add_argument("--batches", type=int, default=20, help="how many batches, at least (default 20)")
    return parser.parse_args(arguments)
