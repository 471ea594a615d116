"""A driver whose executors have disks of their own, for what stands in `/proc/self/cwd`: each process has another one.

`python -m tests.spark.own_disks '{"servers": ..., "topic": ..., "directory": ...}'`

It lands the topic several times: with nothing there, and with each place there in its turn; then with some untried, as
it is where the executors join later. What came of each is printed as JSON, in the order of `CASES` and `UNTRIED`: what
went wrong, or how many records were landed, as it says.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import Landed, land, landing
from tests.spark.machines import MASTER, Machines
from tests.spark.settings import hive_settings
from tests.spark.started import started

__all__ = ["CASES", "OWN", "UNTRIED"]

OWN = "/proc/self/cwd"
CASES = ["none", "target", "quarantine", "checkpoint", "table"]
UNTRIED = ["late-target", "late-checkpoint"]


def _main(told: dict[str, Any]) -> None:
    directory = Path(told["directory"])
    machines = Machines(directory)
    machines.make()
    os.environ |= machines.environment
    settings = {**hive_settings(directory), "spark.sql.warehouse.dir": f"{OWN}/warehouse"}
    spark = started(directory, "aiorecover own disks", master=MASTER, settings=settings)
    tried = [_landed(spark, told, directory / case, case) for case in CASES]
    landing.check_shared = lambda *_: None  # type: ignore[attr-defined]
    print(json.dumps([*tried, *(_landed(spark, told, directory / case, case) for case in UNTRIED)]))
    spark.stop()


def _landed(spark: SparkSession, told: dict[str, Any], directory: Path, case: str) -> str | int:
    places = {name: f"{directory}/{name}" for name in ("target", "quarantine", "checkpoint")}
    place = "target" if case == "table" else case.removeprefix("late-")
    places[place] = "records" if case == "table" else f"{OWN}/{case}"
    batches: list[Landed] = []
    try:
        query = land(
            spark,
            [told["topic"]],
            places["target"],
            places["checkpoint"],
            bootstrap_servers=told["servers"],
            available_now=True,
            quarantine=places["quarantine"],
            on_batch=batches.append,
        )
        query.awaitTermination()
    except (ConfigError, StreamingQueryException) as error:
        return str(error)
    return sum(batch.landed for batch in batches)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
