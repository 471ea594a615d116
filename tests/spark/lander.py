"""Lands a topic in a process of its own, which is killed with -9, Java and all, in the middle of a batch.

`python -m tests.spark.lander '{"servers": ..., "topic": ..., "target": ..., "checkpoint": ..., "batch": 1}'`
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from aiorecover.spark import land
from aiorecover.spark.files import Files
from tests.spark.settings import session_settings


def _main(told: dict[str, str]) -> None:
    builder = SparkSession.builder.master("local[2]")
    for key, value in session_settings(Path(told["target"]).parent / "child").items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    move = Files.move

    def move_or_die(self: Files, source: str, destination: str) -> None:
        # All files of the batch are written, and nobody can see them yet.
        if destination.endswith(f"/batch_id={told['batch']}"):
            os.killpg(0, signal.SIGKILL)
        move(self, source, destination)

    Files.move = move_or_die  # type: ignore[method-assign]
    query = land(
        spark,
        [told["topic"]],
        told["target"],
        told["checkpoint"],
        bootstrap_servers=told["servers"],
        available_now=True,
        max_offsets_per_trigger=int(told["rows"]),
    )
    query.awaitTermination()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
