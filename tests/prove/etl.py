"""`python -m tests.prove etl --seed S --count KILLS --guarantee G`: workers that move records, killed again and again.

What it looks at: `tests.crash.etl`. At least a thousand records a kill have to be moved, or little is proved. Exit
status: 0 proved, 1 a promise was broken or too little happened (the directory is kept and named), 2 cannot run.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.crash.etl import move_orders
from tests.prove.once import Judged, prove_once
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main"]

MOVED_PER_KILL = 1000
SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove etl", description="workers from topic to topic")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many kills (default 200)")
    parser.add_argument("--guarantee", choices=["at_least_once", "exactly_once"], default="at_least_once")
    options = parser.parse_args(arguments)

    def run(cluster: Cluster, directory: Path, seed: int) -> Judged:
        outcome = asyncio.run(
            move_orders(cluster, directory, seed=seed, kills=options.count, guarantee=options.guarantee)
        )
        wrong = list(outcome.wrong[:SHOWN])
        if outcome.landed < MOVED_PER_KILL * options.count:
            wrong.append("too little was moved")
        return Judged(not wrong, f"orders={outcome.orders} landed={outcome.landed} kills={outcome.kills}", wrong)

    return prove_once("etl", lambda: choose_cluster(1), options.seed, run)
