"""A topic into Parquet: `land`, which leaves out repeats, beside Spark's own Kafka-to-Parquet, which does not."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from aiorecover.spark import land
from benchmarks import kafka
from benchmarks.child import call
from benchmarks.figures import Spread, spread
from benchmarks.setting import Result, Setting, Table
from benchmarks.spark.session import CORES, started
from tests.spark.mixed import PARTITIONS, mixed, publish
from tests.support import admin

ROUNDS = 3
RECORDS = 1_000_000
REPEATS = 0.05
BATCHES = 4


def run(setting: Setting) -> Result:
    records, rounds = setting.records or RECORDS, setting.rounds or ROUNDS
    with kafka.topic(setting.cluster, "land", PARTITIONS) as topic, setting.wal_dir() as directory:
        setting.say(f"spark_land: publishing {records:,} records, {REPEATS:.0%} of them twice")
        servers = setting.cluster.bootstrap_servers
        rows = admin.run(publish(servers, topic, mixed(1, records, REPEATS)))
        setting.say(f"spark_land: {rounds} rounds of both, and one to warm up")
        measured: list[dict[str, float]] = call(
            measure,
            bootstrap_servers=servers,
            topic=topic,
            directory=directory,
            rows=rows,
            records=records,
            rounds=rounds,
        )["rounds"]
    return Result("spark_land", [_table(measured, rows)], {"rows": rows, "records": records, "rounds": measured})


def _table(measured: list[dict[str, float]], rows: int) -> Table:
    ratio = Spread(tuple(one["land"] / one["plain"] for one in measured))
    names = {"plain": "Spark's own, repeats and all", "land": "land, each record once"}
    return Table(
        title=f"{rows:,} rows of Kafka into Parquet, in {BATCHES} batches, on {CORES} cores",
        columns=["", "us a row", "times Spark's own"],
        rows=[
            [title, spread(measured, name, 1e6 / rows).text(".2f"), "1" if name == "plain" else ratio.text(".2f")]
            for name, title in names.items()
        ],
        notes=[
            f"medians over {len(measured)} rounds in turns (least to greatest)",
            "from the start of the query to its end",
        ],
    )


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topic: str, directory: str, rows: int, records: int, rounds: int) -> dict[str, Any]:
    """Seconds of each contender, of each round but the first."""
    spark = started(directory)
    contenders: dict[str, tuple[Callable[..., None], int]] = {"plain": (_plain, rows), "land": (_land, records)}
    measured = []
    for number in range(rounds + 1):
        seconds = {}
        for name, (contender, expected) in contenders.items():
            place = Path(directory) / f"{name}-{number}"
            began = time.perf_counter()
            contender(spark, bootstrap_servers, topic, place, -(-rows // BATCHES))
            seconds[name] = time.perf_counter() - began
            found = spark.read.parquet(str(place / "table")).count()
            assert found == expected, f"a contender did not land what is there: {name=} {found=} {expected=}"
        measured.append(seconds)
    spark.stop()
    return {"rounds": measured[1:]}


def _plain(spark: SparkSession, bootstrap_servers: str, topic: str, place: Path, batch: int) -> None:
    stream = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(batch),
        }
    )
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start(str(place / "table")).awaitTermination()


def _land(spark: SparkSession, bootstrap_servers: str, topic: str, place: Path, batch: int) -> None:
    land(
        spark,
        [topic],
        str(place / "table"),
        str(place / "checkpoint"),
        bootstrap_servers=bootstrap_servers,
        available_now=True,
        max_offsets_per_trigger=batch,
    ).awaitTermination()
