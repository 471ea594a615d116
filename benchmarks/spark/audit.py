"""The audit of a table, with the order of its records and without, beside the bitmaps that both are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from benchmarks.child import call
from benchmarks.figures import Spread, spread
from benchmarks.setting import Result, Setting, Table
from benchmarks.spark.beside import CORES, NAME, Seconds, turns
from tests.spark.planted_rows import Planted, audit_rows, plant, write_table
from tests.spark.session import start_spark

ROUNDS = 3
ROWS = 4_000_000
_ROWS_A_FAULT = 40_000  # of each kind: as many as `python -m tests.prove audit` has
_MEMORY = "4g"  # as there, so that nothing need be sorted on disk
_NAMES = {
    "whole": "audit(...)",
    "unordered": "audit(..., order=False)",
    "bitmaps": "its bitmaps alone, handed to nobody",
}


def run(setting: Setting) -> Result:
    rows, rounds = setting.records or ROWS, setting.rounds or ROUNDS
    with setting.wal_dir() as directory:
        setting.say(f"spark_audit: {rows:,} rows, {rounds} rounds in turns, and one to warm up")
        measured: list[Seconds] = call(measure, directory=directory, rows=rows, rounds=rounds)["rounds"]
    ratios = {key: Spread(tuple(one[key] / one["whole"] for one in measured)) for key in _NAMES}
    table = Table(
        title=f"{rows:,} rows of a table audited, on {CORES} cores",
        columns=["", "us a row", "times the whole"],
        rows=[
            [name, spread(measured, key, 1e6 / rows).text(".2f"), ratios[key].text(".2f")]
            for key, name in _NAMES.items()
        ],
        notes=[
            f"medians over {len(measured)} rounds in turns (least to greatest)",
            "what is missing, repeated and out of order is named; for the repeated ones rows are read a second time",
        ],
    )
    return Result("spark_audit", [table], {"rows": rows, "rounds": measured})


# -- in a process of its own -------------------------------------------------------------------------------------------


def measure(directory: str, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first."""
    place = Path(directory)
    spark = start_spark(place, NAME, master=f"local[{CORES}]", settings={"spark.driver.memory": _MEMORY})
    planted = plant(1, rows, rows // _ROWS_A_FAULT)
    table = write_table(spark, planted, place / "table")

    def audited(*, order: bool) -> Callable[[int], Callable[[], None]]:
        def contender(_: int) -> Callable[[], None]:
            found = audit_rows(table, planted, order=order)
            return lambda: _check(found["totals"][0].asDict(), planted, order=order)

        return contender

    def bitmaps(_: int) -> Callable[[], None]:
        _bitmaps(table).write.format("noop").mode("overwrite").save()
        return lambda: None

    contenders = {"whole": audited(order=True), "unordered": audited(order=False), "bitmaps": bitmaps}
    measured = turns(contenders, rounds)
    spark.stop()
    return {"rounds": measured}


def _bitmaps(table: DataFrame) -> DataFrame:
    bucket = F.bitmap_bucket_number("sequence").alias("bucket")
    return table.groupBy("producer_id", "epoch", bucket).agg(F.bitmap_construct_agg(F.bitmap_bit_position("sequence")))


def _check(totals: dict[str, Any], planted: Planted, *, order: bool) -> None:
    wanted = {
        "missing": len(planted.missing),
        "repeated": len(planted.repeated),
        "out_of_order": len(planted.out_of_order) if order else None,
    }
    found = {name: totals[name] for name in wanted}
    assert found == wanted, f"the audit found something else: {found=} {wanted=}"
