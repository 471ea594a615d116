"""Rows of Spark into a topic: through the recoverable producer, beside Spark's own Kafka sink."""

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from benchmarks import kafka
from benchmarks.child import call
from benchmarks.figures import Spread, spread
from benchmarks.setting import Result, Setting, Table
from benchmarks.spark.session import CORES, started

ROUNDS = 3
ROWS = 1_000_000
VALUE_BYTES = 100


def run(setting: Setting) -> Result:
    rows, rounds = setting.records or ROWS, setting.rounds or ROUNDS
    cluster = setting.cluster
    with (
        kafka.topic(cluster, "sink") as ours,
        kafka.topic(cluster, "sink-plain") as plain,
        kafka.topic(cluster, "sink-manifests", 1) as manifests,
        setting.wal_dir() as directory,
    ):
        setting.say(f"spark_sink: {rows:,} rows, {rounds} rounds of both, and one to warm up")
        topics = {"ours": ours, "plain": plain, "manifests": manifests}
        told = {"bootstrap_servers": cluster.bootstrap_servers, "topics": topics, "directory": directory}
        measured: list[dict[str, float]] = call(measure, **told, rows=rows, rounds=rounds)["rounds"]
        for name in (ours, plain):
            kafka.verify(cluster, name, rows * (rounds + 1))
    return Result("spark_sink", [_table(measured, rows)], {"rows": rows, "rounds": measured})


def _table(measured: list[dict[str, float]], rows: int) -> Table:
    ratio = Spread(tuple(one["ours"] / one["plain"] for one in measured))
    names = {"plain": "Spark's own, repeats after failures", "ours": 'format("aiorecover")'}
    return Table(
        title=f"{rows:,} rows of {VALUE_BYTES} bytes into Kafka, from {CORES} cores",
        columns=["", "us a row", "times Spark's own"],
        rows=[
            [title, spread(measured, name, 1e6 / rows).text(".2f"), "1" if name == "plain" else ratio.text(".2f")]
            for name, title in names.items()
        ],
        notes=[f"medians over {len(measured)} rounds in turns (least to greatest)", "acknowledged, with the manifest"],
    )


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topics: dict[str, str], directory: str, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of each contender, of each round but the first."""
    spark = started(directory)
    numbers = spark.range(0, rows, 1, CORES)
    frame = numbers.selectExpr("cast(id as string) as key", f"lpad(cast(id as string), {VALUE_BYTES}, '.') as value")

    def plain(frame: DataFrame) -> None:
        told = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topics["plain"], "kafka.acks": "all"}
        frame.write.format("kafka").options(**told).save()

    def ours(frame: DataFrame) -> None:
        told = {"bootstrap_servers": bootstrap_servers, "topic": topics["ours"], "manifest_topic": topics["manifests"]}
        frame.write.format("aiorecover").options(**told).mode("append").save()

    contenders: dict[str, Callable[[DataFrame], None]] = {"plain": plain, "ours": ours}
    measured = []
    for _ in range(rounds + 1):
        seconds = {}
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender(frame)
            seconds[name] = time.perf_counter() - began
        measured.append(seconds)
    spark.stop()
    return {"rounds": measured[1:]}
