"""A ring that a dead process left behind, as a data frame."""

import time
from pathlib import Path
from typing import Any

from aiorecover import RecoverableProducer
from benchmarks.child import call
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table
from benchmarks.spark.beside import CORES, NAME
from tests.spark.session import start_spark

ROUNDS = 3
ROWS = 1_000_000
VALUE_BYTES = 100
_ROOM = 400  # bytes of the ring for a record, ample


def run(setting: Setting) -> Result:
    rows, rounds = setting.records or ROWS, setting.rounds or ROUNDS
    setting.require_room(rows * _ROOM)
    with setting.wal_dir() as directory:
        setting.say(f"spark_source: {rows:,} records, {rounds} rounds, and one to warm up")
        call(fill, directory=directory, rows=rows)
        measured: list[dict[str, float]] = call(measure, directory=directory, rows=rows, rounds=rounds)["rounds"]
    table = Table(
        title=f"{rows:,} records of {VALUE_BYTES} bytes from a ring into a data frame, on {CORES} cores",
        columns=["", "us a row"],
        rows=[['format("aiorecover")', spread(measured, "seconds", 1e6 / rows).text(".2f")]],
        notes=[f"median over {len(measured)} rounds (least to greatest)", "all columns, handed to nobody"],
    )
    return Result("spark_source", [table], {"rows": rows, "rounds": measured})


# -- in processes of their own -----------------------------------------------------------------------------------------


async def fill(directory: str, rows: int) -> dict[str, Any]:
    """Make the ring of a producer that reaches no broker."""
    producer = RecoverableProducer(
        Path(directory) / "wal",
        bootstrap_servers="127.0.0.1:1",
        fsync="never",
        wal_max_bytes=rows * _ROOM + (64 << 20),
        stop_timeout_ms=0,
    )
    async with producer:
        value = bytes(VALUE_BYTES)
        for number in range(rows):
            await producer.publish("records", value, key=b"key %d" % number, partition=1, headers=[("h", b"1")])
    return {}


def measure(directory: str, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first."""
    spark = start_spark(Path(directory), NAME, master=f"local[{CORES}]")
    frame = spark.read.format("aiorecover").load(str(Path(directory) / "wal"))
    found = frame.where("state = 'waiting'").count()
    assert found == rows, f"the ring is not read as it was left: {found=} {rows=}"
    measured = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        measured.append({"seconds": time.perf_counter() - began})
    spark.stop()
    return {"rounds": measured[1:]}
