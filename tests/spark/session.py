"""A Spark session in this process, with the settings of the tests."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.settings import session_settings

__all__ = ["start_spark", "stop_spark"]


def start_spark(
    directory: Path, name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session that keeps its files in ``directory``; ``settings`` win over those of the tests."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers run whichever Python is called python3
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**session_settings(directory), **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def stop_spark(session: SparkSession, within_s: float = 60) -> None:
    """Stop the session and its Java, which pyspark would keep for the next session."""
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(within_s)
    SparkContext._gateway = SparkContext._jvm = None
