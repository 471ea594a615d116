"""`python -m tests.prove stalled --seconds S`: one partition of 51 without a leader for minutes, while the others flow.

What it looks at: `tests.crash.stalled`. At the pace at which records come, the slowest of the other 50 partitions and
all of them together have to keep nine tenths in every span, from the kill on (`moving` are the first 2.5 seconds); ring
and retry ring together stay within twice what waits for the one that is stuck, and four slots; and at last every record
stands there once, in order.

A run in which the rings had no reason to shrink proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken or too little happened (the directory is kept and named), 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.crash.stalled import run_stalled
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.support.broker import KafkaCluster

__all__ = ["main"]

_BROKERS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def run(cluster: KafkaCluster, directory: Path, _: int) -> Judged:
        told, wrong = [], []
        for number in range(options.count):
            stall = run_stalled(cluster, directory / str(number), seconds=options.seconds)
            told.append(str(stall))
            wrong += stall.wrong()
            progress(told[-1])
        return Judged(not wrong, f"stalls={len(told)}", wrong)

    return prove_once("stalled", lambda: KafkaCluster(_BROKERS), options.seed, run)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove stalled", description="a partition without a leader")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many times (default 1)")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long it has no leader (default 180)")
    return parser.parse_args(arguments)
