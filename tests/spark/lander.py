"""Lands a topic in a process of its own, which is killed with -9, Java and all, in the middle of its second batch.

`python -m tests.spark.lander '{"servers": ..., "topic": ..., "directory": ..., "target": ..., "death": ..., ...}'`

`death`: before the files of the batch are renamed (`rename`), before a table knows them (`partition`), as soon as a
file of it stands in the directory of an Iceberg table (`file`); none: the ids in the table are printed as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from aiorecover.spark import land
from aiorecover.spark.files import Files
from aiorecover.spark.tables import IcebergTable, ParquetTable
from tests.spark.started import started

_BATCH = 1


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


def _die_before_rename() -> None:
    move = Files.move

    def move_or_die(self: Files, source: str, destination: str) -> None:
        # All files of the batch are written, and nobody can see them yet.
        if destination.endswith(f"/batch_id={_BATCH}"):
            _die()
        move(self, source, destination)

    Files.move = move_or_die  # type: ignore[method-assign]


def _die_before_partition() -> None:
    make_known = ParquetTable._make_known

    def make_known_or_die(self: ParquetTable, batch_id: int) -> None:
        if batch_id == _BATCH:
            _die()
        make_known(self, batch_id)

    ParquetTable._make_known = make_known_or_die  # type: ignore[method-assign]


def _die_at_file(directory: Path) -> None:
    add = IcebergTable.add

    def add_and_be_watched(self: IcebergTable, rows: DataFrame, batch_id: int, fingerprint: str | None) -> None:
        if batch_id == _BATCH:
            threading.Thread(target=watch, args=(set(directory.rglob("*.parquet")),), daemon=True).start()
        add(self, rows, batch_id, fingerprint)

    def watch(before: set[Path]) -> None:
        while set(directory.rglob("*.parquet")) <= before:
            time.sleep(0.001)
        _die()

    IcebergTable.add = add_and_be_watched  # type: ignore[method-assign]


def _main(told: dict[str, Any]) -> None:
    directory = Path(told["directory"])
    deaths: dict[str, Callable[[], None]] = {
        "rename": _die_before_rename,
        "partition": _die_before_partition,
        "file": lambda: _die_at_file(directory / "lake"),
    }
    if told["death"]:
        deaths[told["death"]]()
    spark = started(directory, "aiorecover lander", settings=told["settings"])
    query = land(
        spark,
        [told["topic"]],
        told["target"],
        str(directory / "checkpoint"),
        bootstrap_servers=told["servers"],
        available_now=True,
        max_offsets_per_trigger=told["rows"],
    )
    query.awaitTermination()
    ids = spark.table(told["target"]).selectExpr("producer_id || '/' || epoch || '/' || sequence").collect()
    print(json.dumps([row[0] for row in ids]))
    spark.stop()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
