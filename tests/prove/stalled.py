"""`python -m tests.prove stalled --how HOW --seconds S`: partitions of 51 stuck for minutes, while the others flow.

HOW (`tests.crash.stuck`): one is without a leader (`leaderless`), two are below `min.insync.replicas`
(`below_min_isr`), or a broker that leads one and follows another is frozen for longer than every time-out, its own, the
clients' and the other brokers' (`frozen`).

What it looks at: `tests.crash.stalled`. At the pace at which records come, the slowest of the other partitions and
all of them together have to keep nine tenths of what is published in each span of ten seconds: while lanes move (the
first 2.5 seconds from the harm on without a leader, and the first ten else), while the partitions are stuck, and from
the moment when the brokers are mended until nothing waits any more. While lanes move a record of the others waits for
eight seconds at the most; from then on until all is caught up for one, which is looked at four times a second: so in
any ten seconds of that nine tenths get through, wherever the spans are cut. Before the harm, and once all is caught up,
one span of ten seconds has to keep it, of six at the most: for some of them the machine may have no time. Ring and
retry ring together stay within twice what waits for those that are stuck, and four slots; and at last every record
stands there once, in order.

A run in which the rings had no reason to shrink proves nothing, and fails; so does one in which records of the stuck
partitions got through, the brokers tell something else of them, or a time-out was longer.

Exit status: 0 proved, 1 a promise was broken or too little happened (the directory is kept and named), 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.crash.stalled import run_stalled
from tests.crash.stuck import CAUSES
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.support.broker import KafkaCluster

__all__ = ["main"]

_BROKERS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    cause = CAUSES[options.how]
    seconds = cause.seconds if options.seconds is None else options.seconds

    def run(cluster: KafkaCluster, directory: Path, _: int) -> Judged:
        told, wrong = [], []
        for number in range(options.count):
            stall = run_stalled(cluster, directory / str(number), cause, seconds=seconds)
            told.append(str(stall))
            wrong += stall.wrong()
            progress(told[-1])
        return Judged(not wrong, f"how={cause.name} stalls={len(told)}", wrong)

    return prove_once("stalled", lambda: KafkaCluster(_BROKERS, cause.settings), options.seed, run)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove stalled", description="partitions that are stuck")
    parser.add_argument("--how", choices=sorted(CAUSES), default="leaderless", help="why (default leaderless)")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many times (default 1)")
    parser.add_argument("--seconds", type=float, help="how long (default 180, frozen 660)")
    return parser.parse_args(arguments)
