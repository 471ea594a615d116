"""`python -m tests.prove outages --count N --seconds S --rate R`: all brokers gone for minutes, under steady load.

What it looks at: `tests.crash.outages`. Memory may grow by 16 MiB, `publish` may take a fifth longer than in the half
minute before (at the median and at p99: a machine with other work may miss that), delivery has to resume within a
second of the brokers' return, `seconds_left` may be off by twice when half of what waited is delivered, the ring's file
has to be small again some minutes later, and at last every record stands there once, in order.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.crash.outages import run_outages
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.support.broker import KafkaCluster

__all__ = ["main"]

_BEFORE_S = 30.0  # what `publish` takes in these seconds is what it takes


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def run(cluster: KafkaCluster, directory: Path, _: int) -> Judged:
        outcome = run_outages(
            cluster,
            directory,
            count=options.count,
            seconds=options.seconds,
            rate=options.rate,
            before=_BEFORE_S,
            rest=True,
        )
        for outage in outcome.outages:
            progress(str(outage))
        return Judged(outcome.ok, str(outcome), outcome.wrong())

    return prove_once("outages", lambda: KafkaCluster(options.brokers), options.seed, run)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove outages", description="all brokers gone for minutes")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many outages (default 1)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each is (default 600)")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=3, help="size of the cluster (default 3)")
    return parser.parse_args(arguments)
