"""A topic into each format: `land`, which leaves out repeats, beside Spark's own copy to Parquet, which does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiorecover.spark import land
from benchmarks import kafka
from benchmarks.child import call
from benchmarks.setting import Result, Setting
from benchmarks.spark.beside import CORES, NAME, Seconds, table, turns
from tests.spark.lakes import KINDS, Lake, lake
from tests.spark.mixed import PARTITIONS, mixed, publish
from tests.spark.started import started
from tests.support import admin

ROUNDS = 3
RECORDS = 500_000
REPEATS = 0.05
BATCHES = 2


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
    shown = table(
        f"{rows:,} rows of Kafka into a table, in {BATCHES} batches, on {CORES} cores",
        {
            "plain": "Spark's own to Parquet, repeats and all",
            **{kind: f"land, {kind}, each record once" for kind in KINDS},
        },
        measured,
        rows,
        "from the start of the query to its end",
    )
    return Result("spark_land", [shown], {"rows": rows, "records": records, "rounds": measured})


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(bootstrap_servers: str, topic: str, directory: str, rows: int, records: int, rounds: int) -> dict[str, Any]:
    """Seconds of all, of each round but the first."""
    spark = started(Path(directory), NAME, master=f"local[{CORES}]")

    def contender(name: str, way: Callable[..., None], expected: int) -> Callable[[int], Callable[[], None]]:
        def work(number: int) -> Callable[[], None]:
            place = Path(directory) / f"{name}-{number}"
            there = lake(spark, name if name in KINDS else "parquet", place)
            way(there, bootstrap_servers, topic, str(place / "checkpoint"), -(-rows // BATCHES))
            return lambda: _check(there, expected)

        return work

    ours = {kind: contender(kind, _land, records) for kind in KINDS}
    measured = turns({"plain": contender("plain", _plain, rows), **ours}, rounds)
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
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(there.target).awaitTermination()


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
