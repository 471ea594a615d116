"""The Spark that is measured."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.settings import session_settings

__all__ = ["CORES", "started"]

CORES = 2


def started(directory: str) -> SparkSession:
    """With the jars of the tests, and whatever it needs meanwhile in this directory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else its workers' Python is whichever is called python3
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("aiorecover benchmarks")
    for key, value in session_settings(Path(directory)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
