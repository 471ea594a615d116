"""`python -m tests.prove workers --seed S --count N [--most M]`: workers that come and go over one `wal_dir`.

What a round is: `rounds`; in each of its cycles workers are started, or killed with `kill -9`, or scaled down to two.

A run in which next to nothing was published, killed or adopted proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.judgement import Verdict
from tests.crash.workers import run_workers
from tests.prove.rounds import ROUND, below, chosen, progress, prove_rounds
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster
from tests.support.jars import JarsError

__all__ = ["main", "too_little"]

_ACCEPTED_PER_CHANGE = 100  # some 1,000 on two cores
_CHANGES_PER_ADOPTED = 50  # one in ten; only those count that the last two adopt


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove workers", description="workers that come and go")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many changes (default 200)")
    parser.add_argument("--most", type=int, default=20, help="workers at the same time (default 20)")
    options = parser.parse_args(arguments)
    try:
        with choose_cluster(1) as cluster:
            print(f"broker: {cluster.description}", flush=True)
            play, flags = partial(_play, cluster, options.most), f" --most {options.most}"
            return prove_rounds("workers", play, chosen(options.seed), options.count, flags=flags, floor=too_little)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2


def too_little(happened: Counter[str], changes: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if changes < ROUND:
        return []
    floors = {
        "kills": changes // 2,
        "adopted": max(1, changes // _CHANGES_PER_ADOPTED),
        "accepted": changes * _ACCEPTED_PER_CHANGE,
    }
    return below(happened, floors)


def _play(
    cluster: Cluster, most: int, seed: int, count: int, directory: Path, happened: Counter[str]
) -> tuple[Verdict, str]:
    outcome = run_workers(cluster, count, seed, directory, most=most, report=progress)
    happened["adopted"] += outcome.adopted
    return outcome.verdict, f"directories={outcome.directories} adopted={outcome.adopted}"
