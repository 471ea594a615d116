"""`python -m tests.prove cycles --seed S --count N …`: kill -9 again and again, every record looked for in Kafka.

``--brokers 3 --harm`` kills and freezes brokers as well, ``--power`` cuts the power of every other process instead,
``--guarantee exactly_once`` publishes in transactions. Rounds of 25 cycles, each with a directory and a topic of its
own; round r has the seed S + r - 1. Exit status: 0 proved, 1 something is missing, came twice or out of order (the
directory is kept and named), or next to nothing was published, 2 cannot run.
"""

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.kills import kill_cycles
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster
from tests.support.jars import JarsError

ROUND = 25
KEYS_PER_PARTITION = 7
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
    parser.add_argument("--power", action="store_true", help="cut the power, too")
    parser.add_argument("--partitions", type=int, default=6, help="of each topic (default 6)")
    parser.add_argument("--guarantee", choices=["at_least_once", "exactly_once"], default="at_least_once")
    options = parser.parse_args(arguments)
    try:
        with choose_cluster(options.brokers) as cluster:
            return _prove(cluster, options)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2


def _prove(cluster: Cluster, options: argparse.Namespace) -> int:
    accepted, delivered, began = 0, 0, time.monotonic()
    for number in range(-(-options.count // ROUND)):
        seed, cycles = options.seed + number, min(ROUND, options.count - number * ROUND)
        topic, directory = f"cycles-{seed}", Path(tempfile.mkdtemp(prefix=f"aiorecover-cycles-{seed}-"))
        cluster.create_topic(topic, options.partitions)
        run = kill_cycles(
            cluster,
            topic,
            directory,
            cycles=cycles,
            seed=seed,
            harm=options.harm,
            power=options.power,
            keys=KEYS_PER_PARTITION * options.partitions,
            guarantee=options.guarantee,
        )
        verdict = asyncio.run(run)
        print(f"  seed {seed}, {cycles} cycles, {time.monotonic() - began:.0f} s: {verdict}", flush=True)
        if not verdict.ok or verdict.repeated:
            print(f"NOT OK: seed={seed} kept: {directory}", flush=True)
            return 1
        shutil.rmtree(directory)
        accepted, delivered = accepted + verdict.accepted, delivered + verdict.delivered
    found = f"{accepted} accepted, {delivered} in Kafka, each once and in order"
    print(f"{options.count} kills, {found}, {time.monotonic() - began:.0f} s")
    return 0 if accepted >= ACCEPTED_PER_CYCLE * options.count else 1
