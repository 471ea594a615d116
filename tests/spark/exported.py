"""A table of the tests' catalogue as Parquet files, batch by batch, written by a Spark of its own.

`python -m tests.spark.exported DIRECTORY TABLE` writes it to `exported` in the directory that has the catalogue.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.started import started

__all__ = ["exported"]

_INTO = "exported"
_WITHIN_S = 900.0


def exported(directory: Path, table: str) -> Path:
    """Where the files stand."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(directory), table],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return directory / _INTO


def _main(directory: Path, table: str) -> None:
    spark = started(directory, "aiorecover exported")
    spark.table(table).write.partitionBy("batch_id").parquet(str(directory / _INTO))
    spark.stop()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
