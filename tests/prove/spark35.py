"""`make prove WHAT=spark35`: what runs on Spark 3.5, too, in an environment of its own: land, audit and record ids.

It is made in `build/spark35`, with Spark 3.5 in the place of the one that development has; the tests of `tests/spark`
then run in it with the connectors of that version, but for those of the ring as a data frame, which came with 4.1.

Exit status: that of pytest; 2: Spark 3.5 cannot run here, since it knows Python up to 3.11.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["SPARK", "main"]

SPARK = "3.5.7"  # as in tests/support/ivy_spark35.xml
REPOSITORY = Path(__file__).parents[2]
_PLACE = REPOSITORY / "build" / "spark35"
_NEWEST_PYTHON = (3, 11)
_PYARROW = "pyarrow<22"  # later ones want NumPy 2, which pyspark 3.5 does not
_NEEDED = re.compile(r"(pytest|hypothesis|httpx|trustme|testcontainers|confluent-kafka)\b")  # of the group dev
_NOT_THERE = ("tests/spark/test_source.py",)


def main(arguments: Sequence[str]) -> int:
    """Make the environment, if it is not there, and run the tests; ``arguments`` are pytest's."""
    if sys.version_info[:2] > _NEWEST_PYTHON:
        print("Spark 3.5 knows Python up to 3.11: make the environment with that, PYTHON=python3.11", file=sys.stderr)
        return 2
    python = _PLACE / "bin" / "python"
    made = _PLACE / f"made-with-{SPARK}"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", _PLACE], check=True)
        wanted = [f"{REPOSITORY}[cli]", f"pyspark[sql]=={SPARK}", "pandas<3", _PYARROW, *_tools()]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
        made.touch()
    left_out = [f"--ignore={name}" for name in _NOT_THERE]
    tested = [one for one in arguments if one.startswith("tests/")] or ["tests/spark"]
    rest = [one for one in arguments if one not in tested]
    command = [str(python), "-m", "pytest", *tested, *left_out, "-q", "-p", "no:cacheprovider", *rest]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


def _tools() -> Iterator[str]:
    """Yield what the tests need of the tools of development."""
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    for wanted in groups["dev"]:
        if _NEEDED.match(wanted):
            yield wanted
