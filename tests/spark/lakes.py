"""Where tests land, in each format, and how others than the landing read and change what is there."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.stores import KINDS, Store
from tests.spark.buckets import stored

__all__ = ["KINDS", "Lake", "lake"]

_ID = "if(sequence is null, null, concat_ws('/', producer_id, epoch, sequence))"


@dataclass(frozen=True)
class Lake:
    """A target that is not there yet, and where it will be."""

    spark: SparkSession
    format: str
    target: str

    @property
    def store(self) -> type[Store]:
        """The class that lands in it."""
        return KINDS[self.format]

    def rows(self, suffix: str = "") -> DataFrame:
        """Return what another reader finds, in the target or in what stands beside it."""
        name = f"{self.target}{suffix}"
        if self.format == "iceberg":
            self.spark.catalog.refreshTable(name)
            return self.spark.table(name)
        return self.spark.read.format(self.format).load(name)

    def ids(self) -> Counter[str | None]:
        """Count how often each id stands there."""
        found = self.rows().selectExpr(_ID).collect()
        return Counter(one[0] for one in found)

    def change(self, *, left_out: int, again: int, other: int) -> None:
        """By hand: leave out a record, repeat one, and repeat one with another value; by their sequences."""
        rows = self.rows().localCheckpoint()  # what is written over cannot be read meanwhile
        ours = F.col("epoch") == 1
        added = rows.where(ours & F.col("sequence").isin(again, other))
        added = added.withColumn("value", F.when(F.col("sequence") == other, b"forged").otherwise(F.col("value")))
        left = rows.where(~F.coalesce(ours & (F.col("sequence") == left_out), F.lit(False)))
        changed = left.unionByName(added)
        if self.format == "iceberg":
            changed.writeTo(self.target).overwrite(F.lit(True))
        else:
            changed.write.format(self.format).mode("overwrite").save(self.target)


def lake(spark: SparkSession, kind: str, directory: Path) -> Lake:
    """One of this format, in the directory."""
    target = f"lake.tests.t{os.urandom(4).hex()}" if kind == "iceberg" else stored(directory / "table")
    return Lake(spark, kind, target)
