"""A topic into each format: `land`, which leaves out repeats, beside Spark's own copy, which does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiorecover.spark import land
from benchmarks import kafka
from benchmarks.child import call
from benchmarks.figures import Spread, spread
from benchmarks.setting import Result, Setting, Table
from benchmarks.spark.beside import CORES, NAME, Seconds, turns
from tests.spark.lakes import KINDS, Lake, lake
from tests.spark.mixed import PARTITIONS, mixed, publish
from tests.spark.session import start_spark
from tests.support import admin

ROUNDS = 3
RECORDS = 1_000_000
REPEATS = 0.05
BATCHES = 2
# What the tests set for their small tables is as users have it here.
_DEFAULTS = {"spark.sql.shuffle.partitions": "200", "spark.databricks.delta.snapshotPartitions": "50"}


def run(setting: Setting) -> Result:
    records, rounds = setting.records or RECORDS, setting.rounds or ROUNDS
    with kafka.topic(setting.cluster, "land", PARTITIONS) as topic, setting.wal_dir() as directory:
        setting.say(f"spark_land: publishing {records:,} records, {REPEATS:.0%} of them twice")
        servers = setting.cluster.bootstrap_servers
        rows = admin.run(publish(servers, topic, mixed(1, records, REPEATS)))
        setting.say(f"spark_land: {rounds} rounds of all, and one to warm up")
        measured: list[Seconds] = call(
            measure,
            bootstrap_servers=servers,
            topic=topic,
            directory=directory,
            rows=rows,
            records=records,
            rounds=rounds,
        )["rounds"]
    return Result("spark_land", [_table(measured, rows)], {"rows": rows, "records": records, "rounds": measured})


def _table(measured: list[Seconds], rows: int) -> Table:
    shown = []
    for kind in KINDS:
        us = [spread(measured, name, 1e6 / rows).text(".2f") for name in (f"plain {kind}", f"land {kind}")]
        times = Spread(tuple(one[f"land {kind}"] / one[f"plain {kind}"] for one in measured))
        shown.append([kind, *us, times.text(".2f")])
    return Table(
        title=f"{rows:,} rows of Kafka into a table, in {BATCHES} batches, on {CORES} cores; us a row",
        columns=["", "Spark's own copy, repeats and all", "land, each record once", "times Spark's own"],
        rows=shown,
        notes=[
            f"medians over {len(measured)} rounds in turns (least to greatest)",
            "from the query's start to its end",
        ],
    )


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topic: str, directory: str, rows: int, records: int, rounds: int) -> dict[str, Any]:
    """Seconds of all, of each round but the first."""
    spark = start_spark(Path(directory), NAME, master=f"local[{CORES}]", settings=_DEFAULTS)

    def contender(kind: str, way: Callable[..., None], expected: int) -> Callable[[int], Callable[[], None]]:
        def work(number: int) -> Callable[[], None]:
            place = Path(directory) / f"{way.__name__}-{kind}-{number}"
            there = lake(spark, kind, place)
            way(there, bootstrap_servers, topic, str(place / "checkpoint"), rows // BATCHES + PARTITIONS)
            return lambda: _check(there, expected)

        return work

    contenders = {}
    for kind in KINDS:
        contenders[f"plain {kind}"] = contender(kind, _plain, rows)
        contenders[f"land {kind}"] = contender(kind, _land, records)
    measured = turns(contenders, rounds)
    spark.stop()
    return {"rounds": measured}


def _check(there: Lake, expected: int) -> None:
    found = there.rows().count()
    assert found == expected, f"a contender did not land what is there: {there.target} {found=} {expected=}"


def _plain(there: Lake, bootstrap_servers: str, topic: str, checkpoint: str, batch: int) -> None:
    stream = there.spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(batch),
        }
    )
    writer = stream.load().writeStream.format(there.format).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True)
    query = writer.toTable(there.target) if there.format == "iceberg" else writer.start(there.target)
    query.awaitTermination()


def _land(there: Lake, bootstrap_servers: str, topic: str, checkpoint: str, batch: int) -> None:
    land(
        there.spark,
        [topic],
        there.target,
        checkpoint,
        bootstrap_servers=bootstrap_servers,
        format=there.format,
        available_now=True,
        max_offsets_per_trigger=batch,
    ).awaitTermination()
