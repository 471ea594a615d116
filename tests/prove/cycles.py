"""`python -m tests.prove cycles --seed S --count N [--brokers 1|3] [--harm] [--guarantee G]`: the second core, killed.

Rounds of 25 cycles, each with a directory and a topic of its own; round r has the seed S + r - 1. Exit status: 0
proved, 1 something is missing, came twice or out of order, or next to nothing was published.
"""

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.kills import kill_cycles
from tests.support.broker import choose_cluster

ROUND = 25
ACCEPTED_PER_CYCLE = 200  # some thousands on two cores: fewer prove nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove cycles", description="kill -9 and look for every record"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeat a run")
    parser.add_argument("--count", type=int, default=100, help="how many kills")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1)
    parser.add_argument("--harm", action="store_true", help="kill and freeze brokers as well")
    parser.add_argument("--guarantee", choices=["at_least_once", "exactly_once"], default="at_least_once")
    options = parser.parse_args(arguments)
    accepted, began = 0, time.monotonic()
    with choose_cluster(options.brokers) as cluster:
        for number in range(-(-options.count // ROUND)):
            seed = options.seed + number
            cycles = min(ROUND, options.count - number * ROUND)
            topic = f"cycles-{seed}"
            cluster.create_topic(topic, 6)
            with tempfile.TemporaryDirectory() as directory:
                verdict = asyncio.run(
                    kill_cycles(
                        cluster,
                        topic,
                        Path(directory),
                        cycles=cycles,
                        seed=seed,
                        harm=options.harm,
                        guarantee=options.guarantee,
                    )
                )
            print(f"  seed {seed}, {cycles} cycles, {time.monotonic() - began:.0f} s: {verdict}", flush=True)
            if not verdict.ok or verdict.repeated:
                return 1
            accepted += verdict.accepted
    print(f"{options.count} kills, {accepted} records, each once and in order, {time.monotonic() - began:.0f} s")
    return 0 if accepted >= ACCEPTED_PER_CYCLE * options.count else 1
