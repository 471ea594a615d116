"""Millions of rows of a landed table with faults at known places, and a check that the audit finds exactly these.

24 producers publish in turns to 8 partitions. Row n stands at offset 4 n of its partition; some numbers have no row
(missing), some have two (repeated), and some rows stand after one that their producer published later to the same
partition (out of order). The places are drawn apart from one another, so that no fault hides another one.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark import audit
from tests.spark.frames import frame

__all__ = ["AuditRows", "Cost", "Planted", "audit_rows", "differences", "measure", "plant", "write_table"]

_PRODUCERS = [f"{chr(97 + number)}bcdefghij234" for number in range(24)]
_PARTITIONS = 8
_EPOCH_ROWS = 250_000  # of a producer
_FILES = 16
_OFFSETS = 4  # from one row to the next: there is room for rows out of place
_NEXT = len(_PRODUCERS) * _PARTITIONS  # rows from one of a producer to its next one in the same partition
_APART = 2 * _NEXT + 1  # rows from one fault to the next, at least

_Id = tuple[str, int, int]
_Epoch = tuple[str, int]
AuditRows = dict[str, list[Any]]
"""The rows of the audit's data frames, by their names."""


def _id(number: int) -> _Id:
    epoch, sequence = divmod(number // len(_PRODUCERS), _EPOCH_ROWS)
    return _PRODUCERS[number % len(_PRODUCERS)], epoch + 1, sequence + 1


@dataclass(frozen=True)
class Planted:
    """The count of rows, and the numbers of those with a fault."""

    rows: int
    missing: frozenset[int]
    repeated: frozenset[int]
    out_of_order: frozenset[int]

    @property
    def last(self) -> dict[_Epoch, int]:
        """Return the last sequence that was published in each epoch."""
        last: dict[_Epoch, int] = {}
        for turn, producer in enumerate(_PRODUCERS):
            left, epoch = (self.rows - turn - 1) // len(_PRODUCERS) + 1, 1
            while left > 0:
                last[producer, epoch] = min(left, _EPOCH_ROWS)
                left, epoch = left - _EPOCH_ROWS, epoch + 1
        return last


def plant(seed: int, rows: int, faults: int) -> Planted:
    """Draw this many places for each kind of fault, or as many as there is room for."""
    cells = (rows - 2 * _NEXT) // _APART
    faults = min(faults, cells // 3)
    drawn = [cell * _APART for cell in random.Random(seed).sample(range(cells), 3 * faults)]
    kinds = (frozenset(drawn[kind * faults : (kind + 1) * faults]) for kind in range(3))
    return Planted(rows, *kinds)


def write_table(spark: SparkSession, planted: Planted, directory: Path) -> DataFrame:
    """Write the rows as Parquet files; return them as Spark reads these."""
    number = F.col("id")
    turn = number % len(_PRODUCERS)
    place = F.floor(number / len(_PRODUCERS)).cast("bigint")
    all_rows = spark.range(0, planted.rows, 1, _FILES)
    kept = all_rows.join(F.broadcast(_numbers(spark, planted.missing)), "id", "left_anti").withColumn("shift", F.lit(0))
    late = _numbers(spark, planted.out_of_order).withColumn("late", F.lit(_OFFSETS * _NEXT + 1))
    moved = kept.join(F.broadcast(late), "id", "left").withColumn("shift", F.coalesce("late", F.lit(0))).drop("late")
    repeats = _numbers(spark, planted.repeated).withColumn("shift", F.lit(2))
    producers = F.array(*(F.lit(producer) for producer in _PRODUCERS))
    table = moved.unionByName(repeats).select(
        F.lit("records").alias("topic"),
        (place % _PARTITIONS).cast("int").alias("partition"),
        (number * _OFFSETS + F.col("shift")).alias("offset"),
        F.get(producers, turn).alias("producer_id"),
        (F.floor(place / _EPOCH_ROWS) + 1).cast("int").alias("epoch"),
        (place % _EPOCH_ROWS + 1).cast("bigint").alias("sequence"),
    )
    table.write.parquet(str(directory))
    return spark.read.parquet(str(directory))


def _numbers(spark: SparkSession, numbers: Iterable[int]) -> DataFrame:
    return frame(spark, pa.table([pa.array(sorted(numbers), pa.int64())], ["id"]))


# -- the audit of these rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The cost of an audit."""

    rows: int
    seconds: float
    shuffled: int
    """Bytes that went from task to task."""
    wrong: list[str] = field(default_factory=list)
    """The result of `differences`."""

    @property
    def us_per_row(self) -> float:
        """Return the microseconds for each row."""
        return self.seconds * 1e6 / self.rows

    @property
    def shuffled_per_row(self) -> float:
        """Return the bytes shuffled for each row."""
        return self.shuffled / self.rows


def measure(table: DataFrame, planted: Planted) -> Cost:
    """Audit the table once; return the cost, and the differences between the result and the planted faults."""
    spark = table.sparkSession
    before, began = _shuffled(spark), time.monotonic()
    found = audit_rows(table, planted)
    seconds = time.monotonic() - began
    return Cost(planted.rows, seconds, _shuffled(spark) - before, differences(found, planted))


def audit_rows(table: DataFrame, planted: Planted, *, order: bool = True) -> AuditRows:
    """Audit the table, and collect the result."""
    with audit(table, known_last=planted.last, order=order) as found:
        names = "totals", "producers", "missing", "repeated", "out_of_order"
        return {name: getattr(found, name).collect() for name in names}


def _shuffled(spark: SparkSession) -> int:
    """Return the bytes that all tasks so far have written for other tasks."""
    context: Any = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(number).totalShuffleWrite() for number in range(executors.size()))


def differences(found: AuditRows, planted: Planted) -> list[str]:
    """Name the differences between the planted faults and the found ones."""
    wrong = []
    last = planted.last
    for kind, numbers in (
        ("missing", planted.missing),
        ("repeated", planted.repeated),
        ("out_of_order", planted.out_of_order),
    ):
        ranges = {(row["producer_id"], row["epoch"], row["first"], row["last"]) for row in found[kind]}
        expected = {(*_id(number), _id(number)[2]) for number in numbers}
        wrong += [f"{kind} and not named: {one}" for one in sorted(expected - ranges)]
        wrong += [f"named and not {kind}: {one}" for one in sorted(ranges - expected)]
        counts = Counter(_id(number)[:2] for number in numbers)
        counted = {(row["producer_id"], row["epoch"]): row[kind] for row in found["producers"]}
        epochs = [epoch for epoch in {*last, *counted} if counted.get(epoch) != counts[epoch]]
        wrong += [f"{kind} in {one}: found={counted.get(one)} planted={counts[one]}" for one in sorted(epochs)]
    totals = found["totals"][0]
    there = planted.rows - len(planted.missing)
    expected_totals = {
        "records": there + len(planted.repeated),
        "without_id": 0,
        "epochs": len(last),
        "expected": planted.rows,
        "found": there,
        "missing": len(planted.missing),
        "repeated": len(planted.repeated),
        "out_of_order": len(planted.out_of_order),
    }
    wrong += [
        f"{name}: found={totals[name]} planted={count}"
        for name, count in expected_totals.items()
        if totals[name] != count
    ]
    return wrong
