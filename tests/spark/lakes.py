"""Where tests land, in each format, and how others than the landing read and change what is there."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.stores import Delta, Iceberg, Parquet, Store
from tests.spark.buckets import stored

__all__ = ["KINDS", "Lake", "lake"]

KINDS = {"parquet": Parquet, "delta": Delta, "iceberg": Iceberg}
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
        """By hand: leave out a record, repeat one, and repeat one with another value; all by their sequences."""
        rows = self.rows().where("epoch = 1").drop("batch_id").withColumn("batch_id", F.lit(0).cast("bigint"))
        added = rows.where(F.col("sequence").isin(again, other))
        added = added.withColumn("value", F.when(F.col("sequence") == other, b"forged").otherwise(F.col("value")))
        if self.format == "parquet":
            self._rewrite([one.asDict(recursive=True) for one in added.drop("batch_id").collect()], left_out)
            return
        where = f"epoch = 1 AND sequence = {left_out}"
        if self.format == "iceberg":
            added.writeTo(self.target).append()
            self.spark.sql(f"DELETE FROM {self.target} WHERE {where}")  # noqa: S608 - of our own
        else:
            added.write.format("delta").mode("append").save(self.target)
            self.spark.sql(f"DELETE FROM delta.`{self.target}` WHERE {where}")  # noqa: S608 - of our own

    def _rewrite(self, added: list[dict[str, Any]], left_out: int) -> None:
        for file in Path(self.target).glob("batch_id=*/*.parquet"):
            table = pq.ParquetFile(file).read()
            gone = pc.and_(pc.equal(table["epoch"], 1), pc.equal(table["sequence"], left_out))
            kept = table.filter(pc.fill_null(pc.invert(gone), True))
            if len(kept) < len(table):
                changed = pa.concat_tables([kept, pa.Table.from_pylist(added, kept.schema)])
                pq.write_table(changed, file, use_deprecated_int96_timestamps=True)  # as Spark does
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def lake(spark: SparkSession, kind: str, directory: Path) -> Lake:
    """One of this format, in the directory."""
    target = f"lake.tests.t{os.urandom(4).hex()}" if kind == "iceberg" else stored(directory / "table")
    return Lake(spark, kind, target)
