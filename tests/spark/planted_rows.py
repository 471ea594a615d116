"""Rows by the million as they stand in a landed table, with faults at known places, and whether the audit finds these.

24 producers publish by turns over 8 partitions. Row n stands at offset 4 n of its partition; of some numbers there is
none (missing), of some there are two (repeated), and some stand behind one that their producer published later into
the same partition (out of order). The places are drawn apart from one another, so that each fault is one by itself.
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

__all__ = ["Cost", "Planted", "Said", "differences", "measured", "planted", "said", "write"]

_PRODUCERS = [f"{chr(97 + number)}bcdefghij234" for number in range(24)]
_PARTITIONS = 8
_EPOCH_ROWS = 250_000  # of a producer
_FILES = 16
_OFFSETS = 4  # from one row to the next: there is room for what stands elsewhere
_NEXT = len(_PRODUCERS) * _PARTITIONS  # rows from one of a producer to its next one in the same partition
_APART = 2 * _NEXT + 1  # no fault is in another one's way

_Id = tuple[str, int, int]
_Epoch = tuple[str, int]
Said = dict[str, list[Any]]


def _id(number: int) -> _Id:
    epoch, sequence = divmod(number // len(_PRODUCERS), _EPOCH_ROWS)
    return _PRODUCERS[number % len(_PRODUCERS)], epoch + 1, sequence + 1


@dataclass(frozen=True)
class Planted:
    """So many rows, and the numbers of those that are not as they should be."""

    rows: int
    missing: frozenset[int]
    repeated: frozenset[int]
    out_of_order: frozenset[int]

    @property
    def last(self) -> dict[_Epoch, int]:
        """The last sequence of each epoch, which its producer is known to have published."""
        found: dict[_Epoch, int] = {}
        for turn, producer in enumerate(_PRODUCERS):
            left, epoch = (self.rows - turn - 1) // len(_PRODUCERS) + 1, 1
            while left > 0:
                found[producer, epoch] = min(left, _EPOCH_ROWS)
                left, epoch = left - _EPOCH_ROWS, epoch + 1
        return found


def planted(seed: int, rows: int, faults: int) -> Planted:
    """Draw so many places for each kind of fault, or as many as there is room for."""
    cells = (rows - 2 * _NEXT) // _APART
    faults = min(faults, cells // 3)
    drawn = [cell * _APART for cell in random.Random(seed).sample(range(cells), 3 * faults)]
    kinds = (frozenset(drawn[kind * faults : (kind + 1) * faults]) for kind in range(3))
    return Planted(rows, *kinds)


def write(spark: SparkSession, what: Planted, directory: Path) -> DataFrame:
    """The rows as a table of Parquet files."""
    number = F.col("id")
    turn = number % len(_PRODUCERS)
    of_producer = F.floor(number / len(_PRODUCERS)).cast("bigint")
    all_rows = spark.range(0, what.rows, 1, _FILES)
    there = all_rows.join(F.broadcast(_numbers(spark, what.missing)), "id", "left_anti").withColumn("shift", F.lit(0))
    late = _numbers(spark, what.out_of_order).withColumn("late", F.lit(_OFFSETS * _NEXT + 1))
    moved = there.join(F.broadcast(late), "id", "left").withColumn("shift", F.coalesce("late", F.lit(0))).drop("late")
    again = _numbers(spark, what.repeated).withColumn("shift", F.lit(2))
    producers = F.array(*(F.lit(producer) for producer in _PRODUCERS))
    table = moved.unionByName(again).select(
        F.lit("records").alias("topic"),
        (of_producer % _PARTITIONS).cast("int").alias("partition"),
        (number * _OFFSETS + F.col("shift")).alias("offset"),
        F.get(producers, turn).alias("producer_id"),
        (F.floor(of_producer / _EPOCH_ROWS) + 1).cast("int").alias("epoch"),
        (of_producer % _EPOCH_ROWS + 1).cast("bigint").alias("sequence"),
    )
    table.write.parquet(str(directory))
    return spark.read.parquet(str(directory))


def _numbers(spark: SparkSession, numbers: Iterable[int]) -> DataFrame:
    return frame(spark, pa.table([pa.array(sorted(numbers), pa.int64())], ["id"]))


# -- what the audit says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The cost of an audit."""

    rows: int
    seconds: float
    shuffled: int
    """Bytes that went from task to task."""
    wrong: list[str] = field(default_factory=list)
    """What it said and should not, or should have said; each thing in words."""

    @property
    def us_per_row(self) -> float:
        """Microseconds."""
        return self.seconds * 1e6 / self.rows

    @property
    def shuffled_per_row(self) -> float:
        """Bytes."""
        return self.shuffled / self.rows


def measured(table: DataFrame, what: Planted) -> Cost:
    """Audit the table once, and hold what it says against what was planted."""
    spark = table.sparkSession
    before, began = _shuffled(spark), time.monotonic()
    found = said(table, what)
    seconds = time.monotonic() - began
    return Cost(what.rows, seconds, _shuffled(spark) - before, differences(found, what))


def said(table: DataFrame, what: Planted, *, order: bool = True) -> Said:
    """Return the audit's result, by the names of its data frames."""
    with audit(table, known_last=what.last, order=order) as found:
        names = "totals", "producers", "missing", "repeated", "out_of_order"
        return {name: getattr(found, name).collect() for name in names}


def _shuffled(spark: SparkSession) -> int:
    """Bytes that all tasks so far have written for others."""
    context: Any = spark.sparkContext
    executors = context._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(number).totalShuffleWrite() for number in range(executors.size()))


def differences(found: Said, what: Planted) -> list[str]:
    """Name the differences between the planted faults and those found."""
    wrong = []
    last = what.last
    for kind, numbers in (
        ("missing", what.missing),
        ("repeated", what.repeated),
        ("out_of_order", what.out_of_order),
    ):
        ranges = {(row["producer_id"], row["epoch"], row["first"], row["last"]) for row in found[kind]}
        wanted = {(*_id(number), _id(number)[2]) for number in numbers}
        wrong += [f"{kind} and not named: {one}" for one in sorted(wanted - ranges)]
        wrong += [f"named and not {kind}: {one}" for one in sorted(ranges - wanted)]
        counts = Counter(_id(number)[:2] for number in numbers)
        told = {(row["producer_id"], row["epoch"]): row[kind] for row in found["producers"]}
        epochs = [epoch for epoch in {*last, *told} if told.get(epoch) != counts[epoch]]
        wrong += [f"{kind} of {epoch}: said={told.get(epoch)} planted={counts[epoch]}" for epoch in sorted(epochs)]
    total = found["totals"][0]
    there = what.rows - len(what.missing)
    wanted_totals = {
        "records": there + len(what.repeated),
        "without_id": 0,
        "epochs": len(last),
        "expected": what.rows,
        "found": there,
        "missing": len(what.missing),
        "repeated": len(what.repeated),
        "out_of_order": len(what.out_of_order),
    }
    wrong += [
        f"{name}: said={total[name]} planted={count}" for name, count in wanted_totals.items() if total[name] != count
    ]
    return wrong
