"""A Spark cluster on one machine: two executors in processes of their own, each with a core and a directory."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pyspark

__all__ = ["MASTER", "executors_of", "make_spark_home"]

MASTER = "local-cluster[2,1,1024]"  # executors, cores and MiB of each
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def make_spark_home(directory: Path) -> dict[str, str]:
    """Make a SPARK_HOME in which executors can write; return the environment of a driver that uses it."""
    home = directory / "spark"
    home.mkdir(parents=True)
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}


def executors_of(session: int) -> list[int]:
    """Return the process ids of the executors' Java in this session of processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _is_executor(path, session)]


def _is_executor(process: Path, session: int) -> bool:
    with suppress(OSError):  # the process has ended meanwhile
        return os.getsid(int(process.name)) == session and _EXECUTOR in (process / "cmdline").read_bytes()
    return False
