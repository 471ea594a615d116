"""Rows of Spark into a topic: through the recoverable producer, beside Spark's own Kafka sink."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import kafka
from benchmarks.child import call
from benchmarks.setting import Result, Setting
from benchmarks.spark.beside import CORES, NAME, Seconds, table, turns
from tests.spark.started import started

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
        measured: list[Seconds] = call(measure, **told, rows=rows, rounds=rounds)["rounds"]
        for name in (ours, plain):
            kafka.verify(cluster, name, rows * (rounds + 1))
    shown = table(
        f"{rows:,} rows of {VALUE_BYTES} bytes into Kafka, from {CORES} cores",
        {"plain": "Spark's own, repeats after failures", "ours": 'format("aiorecover")'},
        measured,
        rows,
        "acknowledged, with the manifest",
    )
    return Result("spark_sink", [shown], {"rows": rows, "rounds": measured})


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topics: dict[str, str], directory: str, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of both, of each round but the first; the topics are counted at the end."""
    spark = started(Path(directory), NAME, master=f"local[{CORES}]")
    numbers = spark.range(0, rows, 1, CORES)
    frame = numbers.selectExpr("cast(id as string) as key", f"lpad(cast(id as string), {VALUE_BYTES}, '.') as value")

    def plain(_: int) -> Callable[[], None]:
        told = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topics["plain"], "kafka.acks": "all"}
        frame.write.format("kafka").options(**told).save()
        return _nothing

    def ours(_: int) -> Callable[[], None]:
        told = {"bootstrap_servers": bootstrap_servers, "topic": topics["ours"], "manifest_topic": topics["manifests"]}
        frame.write.format("aiorecover").options(**told).mode("append").save()
        return _nothing

    measured = turns({"plain": plain, "ours": ours}, rounds)
    spark.stop()
    return {"rounds": measured}


def _nothing() -> None:
    """The topics are counted when all rounds are over."""
