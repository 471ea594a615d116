"""`python -m tests.prove outages --count N --seconds S --rate R`: all brokers gone for minutes, under steady load.

What it looks at: `tests.crash.outage`. Exit status: 0 proved, 1 a promise was broken, 2 cannot run.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.crash.outage import run_outage
from tests.prove.once import Judged, prove_once
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove outages", description="all brokers gone for minutes")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many outages (default 1)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each is (default 600)")
    parser.add_argument("--rate", type=int, default=5000, help="records a second (default 5000)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=3, help="size of the cluster (default 3)")
    options = parser.parse_args(arguments)

    def run(cluster: Cluster, directory: Path, _: int) -> Judged:
        wrong: list[str] = []
        for number in range(options.count):
            topic = f"outage-{number}"
            cluster.create_topic(topic, 6)
            outage = run_outage(cluster, topic, directory / topic, seconds=options.seconds, rate=options.rate)
            found = asyncio.run(outage)
            print(f"  {found}", flush=True)
            wrong += found.wrong()
        return Judged(not wrong, f"outages={options.count} seconds={options.seconds:.0f}", wrong)

    return prove_once("outages", lambda: choose_cluster(options.brokers), options.seed, run)
