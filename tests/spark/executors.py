"""A driver whose executors are processes of their own, as on a cluster: two, each with a core and a directory.

`python -m tests.spark.executors '{"servers": ..., "feed": ..., "ring": ..., "sink": ..., "rows": ..., ...}'`

It lands the topic `feed` and audits it, reads `ring`, writes so many rows through the sink, while an executor is killed
with -9 in the middle of each, and prints as JSON what it found. Each Python that is started by an executor is written
down first, so that it shows what needs none.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import audit, land, read_topics
from tests.spark.machines import MASTER, Machines, executors_of
from tests.spark.planted_sinks import FORMAT, register_planted
from tests.spark.settings import PLAIN
from tests.spark.started import started

_TASKS = 3
_BATCH_RECORDS = 700
_ID = "producer_id || '/' || epoch || '/' || sequence"


def _main(told: dict[str, Any]) -> None:
    directory = Path(told["directory"])
    machines = Machines(directory)
    machines.make()
    os.environ |= machines.environment
    spark = started(directory, "aiorecover executors", master=MASTER, settings=PLAIN)
    servers, sink = told["servers"], told["sink"]
    _land(spark, servers, told["feed"], directory)
    found: dict[str, Any] = {"audit": _audited(spark, servers, told["feed"])}
    found["pythons_by_then"] = machines.pythons()
    register_planted(spark)
    found["ring"] = _ids(_planted(spark.read, "reader", directory).load(told["ring"]).where("state = 'waiting'"))
    found["pythons"] = machines.pythons()
    numbers = spark.range(0, told["rows"], 1, _TASKS).selectExpr("cast(id as string) as value")
    _planted(numbers.write, "executor", directory).options(**sink).mode("append").save()
    print(json.dumps(found))
    spark.stop()


def _land(spark: SparkSession, servers: str, topic: str, directory: Path) -> None:
    checkpoint = directory / "checkpoint"
    query = land(
        spark,
        [topic],
        directory / "table",
        checkpoint,
        bootstrap_servers=servers,
        available_now=True,
        max_offsets_per_trigger=_BATCH_RECORDS,
    )
    while query.isActive and not (checkpoint / "query" / "offsets" / "1").exists():
        time.sleep(0.01)
    os.kill(executors_of(os.getsid(0))[0], signal.SIGKILL)
    query.awaitTermination()


def _audited(spark: SparkSession, servers: str, topic: str) -> dict[str, Any]:
    with audit(read_topics(spark, [topic], servers)) as found:
        (totals,) = found.totals.collect()
        missing = [(row["producer_id"], row["epoch"], row["first"], row["last"]) for row in found.missing.collect()]
    return {"totals": totals.asDict(), "missing": missing}


def _ids(rows: DataFrame) -> list[str]:
    return [row[0] for row in rows.selectExpr(_ID).collect()]


def _planted(io: Any, plant: str, directory: Path) -> Any:
    """What reads or writes, with this fault in it."""
    return io.format(FORMAT).options(plant=plant, marker=str(directory))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
