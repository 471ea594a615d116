"""A driver whose executors are processes of their own, as on a cluster: two, each with a core and a directory.

`python -m tests.spark.executors '{"servers": ..., "feed": ..., "ring": ..., "sink": ..., "rows": ..., ...}'`

It lands the topic `feed` and audits it, reads `ring`, writes so many rows through the sink while an executor is killed
with -9, and prints as JSON what it found. Each Python that is started by an executor is written down first, so that it
shows what needs none.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import audit, land, read_topics
from tests.spark.machines import MASTER, Machines
from tests.spark.planted_sinks import FORMAT, register_planted
from tests.spark.started import started

_TASKS = 3
_BATCH_RECORDS = 700
_ID = "producer_id || '/' || epoch || '/' || sequence"


def _main(told: dict[str, Any]) -> None:
    directory = Path(told["directory"])
    machines = Machines(directory)
    machines.make()
    os.environ |= machines.environment
    spark = started(directory, "aiorecover executors", master=MASTER)
    _land(spark, told["servers"], told["feed"], directory)
    found: dict[str, Any] = {"audit": _audited(spark, told["servers"], told["feed"])}
    found["pythons_by_then"] = machines.pythons()
    found["ring"] = _ids(spark.read.format("aiorecover").load(told["ring"]).where("state = 'waiting'"))
    found["pythons"] = machines.pythons()
    _write(spark, told["sink"], told["rows"], directory)
    print(json.dumps(found))
    spark.stop()


def _land(spark: SparkSession, servers: str, topic: str, directory: Path) -> None:
    query = land(
        spark,
        [topic],
        str(directory / "table"),
        str(directory / "checkpoint"),
        bootstrap_servers=servers,
        available_now=True,
        max_offsets_per_trigger=_BATCH_RECORDS,
    )
    query.awaitTermination()


def _audited(spark: SparkSession, servers: str, topic: str) -> dict[str, Any]:
    with audit(read_topics(spark, [topic], servers)) as found:
        (totals,) = found.totals.collect()
        missing = [(row["producer_id"], row["epoch"], row["first"], row["last"]) for row in found.missing.collect()]
    return {"totals": totals.asDict(), "missing": missing}


def _ids(rows: DataFrame) -> list[str]:
    return [row[0] for row in rows.selectExpr(_ID).collect()]


def _write(spark: SparkSession, options: dict[str, str], rows: int, directory: Path) -> None:
    register_planted(spark)
    numbers = spark.range(0, rows, 1, _TASKS).selectExpr("cast(id as string) as value")
    planted = {**options, "plant": "executor", "marker": str(directory)}
    numbers.write.format(FORMAT).options(**planted).mode("append").save()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
