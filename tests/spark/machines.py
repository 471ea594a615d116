"""A cluster in small: executors of Spark in processes of their own, two, each with a core and a directory."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pyspark

__all__ = ["MASTER", "Machines", "executors_of"]

MASTER = "local-cluster[2,1,1024]"  # executors, cores and MiB of each
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Machines:
    """Homes for executors: a folder of Spark's to work in, and a Python whose starts are counted."""

    def __init__(self, directory: Path) -> None:
        self._home, self._started = directory / "spark", directory / "pythons"
        self._python = directory / "python"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that leads a driver there."""
        return {"SPARK_HOME": str(self._home), "PYSPARK_PYTHON": str(self._python)}

    def make(self) -> None:
        """Set them up."""
        self._home.mkdir(parents=True)
        for part in ("bin", "jars"):
            (self._home / part).symlink_to(Path(pyspark.__file__).parent / part)
        self._python.write_text(f'#!/bin/sh\npwd >>"{self._started}"\nexec "{sys.executable}" "$@"\n')
        self._python.chmod(0o700)

    def pythons(self) -> list[str]:
        """The directory of the executor by which each one was started."""
        told = self._started.read_text().splitlines() if self._started.exists() else []
        return [directory for directory in told if Path(directory).is_relative_to(self._home)]


def executors_of(session: int) -> list[int]:
    """The Java of each executor that runs in this session of processes, the driver's."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _is_executor(path, session)]


def _is_executor(process: Path, session: int) -> bool:
    with suppress(OSError):  # it has ended meanwhile
        return os.getsid(int(process.name)) == session and _EXECUTOR in (process / "cmdline").read_bytes()
    return False
