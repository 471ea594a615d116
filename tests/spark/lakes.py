"""Targets of landings in each format, read and changed by Spark alone."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.stores import KINDS, Store
from tests.spark.buckets import storage_path

__all__ = ["KINDS", "Lake", "lake"]

_ID = "if(sequence is null, null, concat_ws('/', producer_id, epoch, sequence))"


@dataclass(frozen=True)
class Lake:
    """A target, whether it exists or not."""

    spark: SparkSession
    format: str
    target: str

    @property
    def store(self) -> type[Store]:
        """Return the class that writes this format."""
        return KINDS[self.format]

    def rows(self, suffix: str = "") -> DataFrame:
        """Return the rows of the target, or of its table with this suffix."""
        name = f"{self.target}{suffix}"
        if self.format == "iceberg":
            self.spark.catalog.refreshTable(name)
            return self.spark.table(name)
        return self.spark.read.format(self.format).load(name)

    def ids(self) -> Counter[str | None]:
        """Count the rows of each id; None: rows without an id."""
        return Counter(row[0] for row in self.rows().selectExpr(_ID).collect())

    def change(self, *, removed: int, repeated: int, forged: int) -> None:
        """Remove a record of epoch 1, repeat one, and repeat one with another value, by their sequences."""
        rows = self.rows().localCheckpoint()  # Spark cannot read what it overwrites
        in_epoch = F.col("epoch") == 1
        added = rows.where(in_epoch & F.col("sequence").isin(repeated, forged))
        added = added.withColumn("value", F.when(F.col("sequence") == forged, b"forged").otherwise(F.col("value")))
        kept = rows.where(~F.coalesce(in_epoch & (F.col("sequence") == removed), F.lit(False)))
        changed = kept.unionByName(added)
        if self.format == "iceberg":
            changed.writeTo(self.target).overwrite(F.lit(True))
        else:
            changed.write.format(self.format).mode("overwrite").save(self.target)


def lake(spark: SparkSession, kind: str, directory: Path) -> Lake:
    """Return a new target of this format, in the directory or in the session's catalogue."""
    target = f"lake.tests.t{os.urandom(4).hex()}" if kind == "iceberg" else storage_path(directory / "table")
    return Lake(spark, kind, target)
