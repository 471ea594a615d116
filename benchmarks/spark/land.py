"""A topic into Parquet: `land`, which leaves out repeats, beside Spark's own Kafka-to-Parquet, which does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from aiorecover.spark import land
from benchmarks import kafka
from benchmarks.child import call
from benchmarks.setting import Result, Setting
from benchmarks.spark.beside import CORES, NAME, Seconds, table, turns
from tests.spark.mixed import PARTITIONS, mixed, publish
from tests.spark.started import started
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
        measured: list[Seconds] = call(
            measure,
            bootstrap_servers=servers,
            topic=topic,
            directory=directory,
            rows=rows,
            records=records,
            rounds=rounds,
        )["rounds"]
    shown = table(
        f"{rows:,} rows of Kafka into Parquet, in {BATCHES} batches, on {CORES} cores",
        {"plain": "Spark's own, repeats and all", "ours": "land, each record once"},
        measured,
        rows,
        "from the start of the query to its end",
    )
    return Result("spark_land", [shown], {"rows": rows, "records": records, "rounds": measured})


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topic: str, directory: str, rows: int, records: int, rounds: int) -> dict[str, Any]:
    """Seconds of both, of each round but the first."""
    spark = started(Path(directory), NAME, master=f"local[{CORES}]")

    def contender(name: str, way: Callable[..., None], expected: int) -> Callable[[int], Callable[[], None]]:
        def work(number: int) -> Callable[[], None]:
            place = Path(directory) / f"{name}-{number}"
            way(spark, bootstrap_servers, topic, place, -(-rows // BATCHES))
            return lambda: _check(spark, place, expected)

        return work

    contenders = {"plain": contender("plain", _plain, rows), "ours": contender("ours", _land, records)}
    measured = turns(contenders, rounds)
    spark.stop()
    return {"rounds": measured}


def _check(spark: SparkSession, place: Path, expected: int) -> None:
    found = spark.read.parquet(str(place / "table")).count()
    assert found == expected, f"a contender did not land what is there: {place.name} {found=} {expected=}"


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
