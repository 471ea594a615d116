"""`python -m tests.prove day --seed S --count HOURS --seconds S --rate R`: a day of outages, and nothing is left of it.

What it looks at: `tests.crash.day`. Every record has to stand there once, in order, and the process to be as it was
before: memory, the ring's file, descriptors, threads, tasks.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.day import run_day
from tests.crash.lives import ChildFailedError
from tests.prove.rounds import chosen
from tests.support.broker import BrokerUnavailableError, KafkaCluster
from tests.support.jars import JarsError

__all__ = ["main"]

_BROKERS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    began, seed = time.monotonic(), chosen(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="aiorecover-day-"))
    try:
        with KafkaCluster(_BROKERS) as cluster:
            print(f"broker: {cluster.description} seed={seed}", flush=True)
            day = run_day(cluster, directory, seed=seed, hours=options.count, hour_s=options.seconds, rate=options.rate)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
    except ChildFailedError as error:
        print(f"NOT OK: seed={seed} {error}\nkept: {directory}", flush=True)
        return 1
    left = day.left()
    proved = day.verdict.ok and day.verdict.repeated == 0 and not left
    print(f"{'proved' if proved else 'NOT OK'}: seed={seed} {day} seconds={time.monotonic() - began:.0f}")
    if proved:
        shutil.rmtree(directory)
        return 0
    print(f"left of it: {', '.join(left) or 'nothing'}\nkept: {directory}", flush=True)
    return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove day", description="a day of outages")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=24, help="how many hours (default 24)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each is (default 25)")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second in the busiest hour (default 5000)")
    return parser.parse_args(arguments)
