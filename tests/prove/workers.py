"""`python -m tests.prove workers --seed S --count N [--most M] [--brokers 1|3] [--faults]`: workers that come and go.

All of it over one `wal_dir`: in each cycle workers are started, or ended, or scaled down to two, or up to as many as
may be (`tests.crash.workers`). Most end with `kill -9`, some with SIGTERM. With `--faults` the brokers are paused,
resumed, killed and restarted meanwhile, one at a time.

A run in which next to nothing was published, killed, handed over or adopted, or never as many workers were alive as may
be, proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.broker_faults import BrokerFaults
from tests.crash.judgement import Verdict
from tests.crash.workers import run_workers
from tests.prove.brokers import on_brokers
from tests.prove.rounds import ROUND, below, chosen, progress, prove_rounds
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main", "too_little"]

_ACCEPTED_PER_CHANGE = 100  # some 1,000 on two cores
_CHANGES_PER_ADOPTED = 50  # one in ten; only those count of which somebody was left to tell
_CHANGES_PER_KILL = 2  # one each
_CHANGES_PER_TERMINATED = 8  # one in three
_CHANGES_PER_HANDED_OVER = 40  # one in ten: three workers in ten reach no broker
_CHANGES_PER_FULL = 60  # one in ten


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def prove(cluster: Cluster) -> int:
        flags = f" --most {options.most} --brokers {cluster.size}{' --faults' if options.faults else ''}"
        return prove_rounds(
            "workers",
            partial(_play, cluster, options.most, options.faults),
            chosen(options.seed),
            options.count,
            size=options.count,
            flags=flags,
            floor=too_little,
        )

    return on_brokers(lambda: choose_cluster(options.brokers), prove, faults=options.faults)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove workers", description="workers that come and go")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many changes (default 200)")
    parser.add_argument("--most", type=int, default=20, help="workers at the same time (default 20)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=3, help="size of the cluster (default 3)")
    parser.add_argument("--faults", action="store_true", help="pause and kill the brokers as well")
    return parser.parse_args(arguments)


def too_little(happened: Counter[str], changes: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if changes < ROUND:
        return []
    floors = {
        "kills": changes // _CHANGES_PER_KILL,
        "terminated": changes // _CHANGES_PER_TERMINATED,
        "handed over": changes // _CHANGES_PER_HANDED_OVER,
        "full": changes // _CHANGES_PER_FULL,
        "adopted": max(1, changes // _CHANGES_PER_ADOPTED),
        "accepted": changes * _ACCEPTED_PER_CHANGE,
    }
    return below(happened, floors)


def _play(
    cluster: Cluster, most: int, faults: bool, seed: int, count: int, directory: Path, happened: Counter[str]
) -> tuple[Verdict, str]:
    broken = BrokerFaults(cluster, seed) if faults else None
    outcome = run_workers(cluster, count, seed, directory, most=most, meanwhile=broken, report=progress)
    happened += outcome.happened
    happened["adopted"] += outcome.adopted
    if broken is not None:
        happened += broken.done
    return outcome.verdict, f"directories={outcome.directories}"
