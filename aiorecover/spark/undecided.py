"""What landing knows of sinks: the manifests that came so far, and the records that wait for one.

The query that lands reads the manifest topic beside the others. So a manifest is a row of a batch, and what was known
when a batch was landed is the same when it is landed again after a crash; a manifest that comes starts a batch by
itself. A record whose write has no manifest yet is *held*: put aside, and looked at again with each batch, until its
manifest is there. What stands in a directory of its own, each whole or not there:

    manifests/after=<batch>    the parts of manifests, of those that count or may count
    held/after=<batch>         rows that wait
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.files import Files
from aiorecover.spark.leftovers import PARTS_SCHEMA, UNDECIDED, judged, needed, parse_manifests, winners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Undecided"]


class Undecided:
    """The state, in a directory that belongs to one landing."""

    def __init__(self, spark: SparkSession, directory: str, topic: str) -> None:
        """``topic`` is the manifests'."""
        self._files = Files(spark, directory)
        self._directory = directory
        self._topic = topic

    def judge(self, batch: DataFrame, batch_id: int) -> DataFrame:
        """The rows of a batch and those that were held before it, with their ``verdict``; without manifests."""
        spark = batch.sparkSession
        of_manifests = F.col("topic") == self._topic
        known = self._path("manifests", batch_id)
        if not self._files.exists(known):
            parts = self._manifests(spark, batch_id - 1).unionByName(parse_manifests(batch.where(of_manifests)))
            self._store(needed(parts), known)
        rows = batch.where(~of_manifests).unionByName(self._held(batch, batch_id - 1))
        return judged(rows, winners(self._manifests(spark, batch_id)))

    def hold(self, rows: DataFrame, batch_id: int) -> None:
        """Put aside those of `judge` that are undecided, unless that was done before the driver died."""
        path = self._path("held", batch_id)
        if not self._files.exists(path):
            self._store(rows.where(F.col("verdict") == UNDECIDED).drop("verdict"), path)

    def forget(self, batch_id: int) -> None:
        """What no batch will ask for again: the state before this batch must stay until the next one is done."""
        needed_names = {f"after={batch_id}", f"after={batch_id - 1}"}
        for kind in ("manifests", "held"):
            for name in self._files.names(f"{self._directory}/{kind}"):
                if name not in needed_names:
                    self._files.delete(f"{self._directory}/{kind}/{name}")

    def clear(self) -> None:
        """Remove what killed attempts have left."""
        self._files.delete(f"{self._directory}/_staging")

    def _manifests(self, spark: SparkSession, batch_id: int) -> DataFrame:
        path = self._path("manifests", batch_id)
        if not self._files.exists(path):
            nothing = F.from_json(F.lit(None).cast("string"), PARTS_SCHEMA).alias("parts")
            return spark.range(0).select(nothing).select("parts.*")
        return spark.read.schema(PARTS_SCHEMA).parquet(path)

    def _held(self, batch: DataFrame, batch_id: int) -> DataFrame:
        path = self._path("held", batch_id)
        if not self._files.exists(path):
            return batch.limit(0)
        return batch.sparkSession.read.schema(batch.schema).parquet(path)

    def _store(self, rows: DataFrame, path: str) -> None:
        aside = f"{self._directory}/_staging/{uuid.uuid4().hex}"
        rows.write.parquet(aside)
        self._files.make_directory(path.rpartition("/")[0])
        self._files.move(aside, path)

    def _path(self, kind: str, batch_id: int) -> str:
        return f"{self._directory}/{kind}/after={batch_id}"
