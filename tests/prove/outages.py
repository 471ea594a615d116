"""`python -m tests.prove outages --count N --seconds S --rate R`: all brokers gone for minutes, under steady load.

What it looks at: `tests.crash.outages`. Memory may grow by 16 MiB, delivery has to resume within a second of the
brokers' return, and at last every record stands there once, in order. What `publish` took is told as a ratio.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.lives import ChildFailedError
from tests.crash.outages import run_outages
from tests.support.broker import BrokerUnavailableError, KafkaCluster
from tests.support.jars import JarsError

__all__ = ["main"]

REST_S = 75.0  # until the ring file has become small again


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="aiorecover-outages-"))
    try:
        with KafkaCluster(options.brokers) as cluster:
            print(f"broker: {cluster.description}", flush=True)
            outcome = run_outages(
                cluster, directory, count=options.count, seconds=options.seconds, rate=options.rate, rest=REST_S
            )
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
    except ChildFailedError as error:
        print(f"NOT OK: {error}\nkept: {directory}", flush=True)
        return 1
    for outage in outcome.outages:
        print(f"  {outage}", flush=True)
    left = f"memory_left_mb={outcome.memory_left / 1e6:.1f} file_left_mb={outcome.file_left / 1e6:.1f}"
    print(f"{'proved' if outcome.ok else 'NOT OK'}: {outcome.verdict} {left} seconds={time.monotonic() - began:.0f}")
    if outcome.ok:
        shutil.rmtree(directory)
        return 0
    print(f"kept: {directory}", flush=True)
    return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove outages", description="all brokers gone for minutes")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many outages (default 1)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each is (default 600)")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="size of the cluster (default 1)")
    return parser.parse_args(arguments)
