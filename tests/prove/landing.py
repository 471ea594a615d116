"""`python -m tests.prove landing --seed S --count RECORDS --kills K --batches B`: a topic landed while drivers die.

With `--who executors` these die, one or all at a time, and the driver has to live on; with `--who twins` two drivers
land at once. `--format` is delta, iceberg or parquet.

What it looks at: `tests.spark.killed_landing`. Each record has to stand in the table once, though one in twenty stands
in Kafka twice, and the audit has to agree. At least half of the kills have to be in the middle of a batch.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too few kills hit, 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.prove.once import Judged, prove_once
from tests.spark.killed_landing import VICTIMS, run_landing
from tests.spark.lakes import KINDS
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main"]

_HITS = 0.5  # of the kills


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove landing", description="drivers killed as they land")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=2_000_000, help="how many records (default 2000000)")
    parser.add_argument("--kills", type=int, default=10, help="how often some are killed (default 10)")
    parser.add_argument("--who", choices=VICTIMS, default=VICTIMS[0], help="are killed (default drivers)")
    parser.add_argument("--format", choices=list(KINDS), default="parquet", help="of the table (default parquet)")
    parser.add_argument("--batches", type=int, default=20, help="how many batches, at least (default 20)")
    options = parser.parse_args(arguments)
    asked = {"records": options.count, "kills": options.kills, "batches": options.batches, "victims": options.who}
    asked["format"] = options.format

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        outcome = run_landing(cluster, directory, seed=seed, **asked)
        few = outcome.hits < _HITS * outcome.kills
        wrong = [f"in the middle of a batch were {outcome.hits} of {outcome.kills} kills"] if few else []
        return Judged(outcome.ok, str(outcome), wrong)

    return prove_once("landing", lambda: choose_cluster(1), options.seed, run)
