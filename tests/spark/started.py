"""A Spark of this process, set up as the tests have it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.settings import session_settings

__all__ = ["ended", "started"]


def started(
    directory: Path, name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """``directory`` takes what it needs meanwhile; ``settings`` win over those of the tests."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else its workers' Python is whichever is called python3
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**session_settings(directory), **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def ended(session: SparkSession, within_s: float = 60) -> None:
    """Stop it, and Java, too: pyspark keeps it for a next session."""
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(within_s)
    SparkContext._gateway = SparkContext._jvm = None
