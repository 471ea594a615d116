"""`python -m tests.prove coverage`: how much of `aiorecover.wal` its own unit tests reach, branches included.

Lists the lines and branches that they do not. Exit status: 0 enough, 1 too little or red tests, 2 cannot run.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

ENOUGH = 95  # percent of lines and branches
ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure it; there is no seed: the unit tests are the same each time."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove coverage", description="branch coverage of the log")
    parser.add_argument("--seed", type=int, help="not used: nothing is random here")
    parser.add_argument("--count", type=int, default=ENOUGH, help=f"percent that are enough (default {ENOUGH})")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("pytest_cov") is None:
        print("pytest-cov is not installed: python -m pip install pytest-cov, then run this again", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", "tests/wal", "-q", "-p", "no:cacheprovider"]
    command += ["--cov=aiorecover.wal", "--cov-branch", "--cov-report=term-missing", "--cov-precision=1"]
    command += [f"--cov-fail-under={options.count}"]
    with tempfile.TemporaryDirectory(prefix="aiorecover-coverage-") as directory:
        environment = os.environ | {"COVERAGE_FILE": str(Path(directory) / "coverage")}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    print("proved" if status == 0 else f"NOT OK: below {options.count} % or a test failed")
    return 0 if status == 0 else 1
