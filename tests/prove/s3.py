"""`python -m tests.prove s3 --seed S --count RECORDS --kills K`: landing in Delta and Iceberg on S3.

The server is moto's, on this machine, and Spark's checkpoint is there, too. First the tests whose drivers die between
data and state run there; then drivers are killed with -9 as they land (`tests.prove.landing`), and the table and the
audit are looked at.

Needs the dependency group `s3`: `.venv/bin/python -m pip install --group s3`. Exit status: 0 proved, 1 a promise was
broken, 2 cannot run.
"""

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from tests.prove import landing
from tests.prove.rounds import chosen
from tests.spark.buckets import bucket

__all__ = ["main"]

_FORMATS = "delta", "iceberg"
_TESTS = "(delta or iceberg) and (driver_dies or add_a_batch_at_once)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove s3", description="drivers killed as they land on S3")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=100_000, help="how many records (default 100000)")
    parser.add_argument("--kills", type=int, default=5, help="how often a driver is killed (default 5)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("moto") is None:
        print("moto's server is needed: .venv/bin/python -m pip install --group s3", file=sys.stderr)
        return 2
    seed = chosen(options.seed)
    asked = ["--seed", str(seed), "--count", str(options.count), "--kills", str(options.kills)]
    with bucket():
        tests = [sys.executable, "-m", "pytest", "tests/spark/test_landing.py", "-q", "-k", _TESTS]
        status = subprocess.run(tests, check=False).returncode
        for format_ in _FORMATS:
            batches = str(2 * options.kills)
            status = status or landing.main([*asked, "--batches", batches, "--format", format_])
    return status
