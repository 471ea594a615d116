"""What landing knows of sinks: the manifests that came so far, and the records that wait for one.

The query that lands reads the manifest topic beside the others. So a manifest is a row of a batch, and what was known
when a batch was landed is the same when it is landed again after a crash; a manifest that comes starts a batch by
itself. A record whose write has no manifest yet is *held*: put aside, and looked at again with each batch, until its
manifest is there.

A write is *over* once as many ids of each of its attempts have been landed as the manifest says: nothing but repeats
and leftovers can come of it. Then it is forgotten, with the ids of its attempts, but for one row for each job: the
number of its last write that is over. Spark does the batches of a job one after the other, so what comes of an earlier
one that is not known any more is a repeat or a leftover, too. So the state is as small as what is under way. Two kinds
of writes stay for good, as ids of theirs are in topics that are not landed: those with dead letters, and those that go
to other topics, too.

What stands in a directory of its own, each whole or not there:

    over/after=<batch>         the attempts that are over since the batch before, with their write
    jobs/after=<batch>         job, over: the number of the last write that is over
    manifests/after=<batch>    the parts of manifests, of those that count or may count, and are not over
    held/after=<batch>         rows that wait
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.files import Files
from aiorecover.spark.leftovers import PARTS_SCHEMA, UNDECIDED, job_of, judged, needed, parse_manifests, winners

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from aiorecover.spark.landed_ids import LandedIds

__all__ = ["Undecided"]

_KINDS = ("over", "jobs", "manifests", "held")
_OVER_SCHEMA = "write string, job string, batch_id bigint, producer_id string, epoch int"
_JOBS_SCHEMA = "job string, over bigint"
_EPOCH = ["producer_id", "epoch"]


class Undecided:
    """The state, in a directory that belongs to one landing."""

    def __init__(self, spark: SparkSession, directory: str, topic: str) -> None:
        """``topic`` is the manifests'."""
        self._files = Files(spark, directory)
        self._directory = directory
        self._topic = topic

    def judge(self, batch: DataFrame, batch_id: int, before: LandedIds) -> DataFrame:
        """The rows of a batch and those that were held before it, with their ``verdict``; without manifests.

        ``before``: what was landed before the batch.
        """
        spark = batch.sparkSession
        of_manifests = F.col("topic") == self._topic
        known = self._manifests(spark, batch_id - 1)
        self._make("over", batch_id, lambda: _over(known, before))
        self._make("jobs", batch_id, lambda: self._jobs_after(spark, batch_id))
        jobs, over = self._jobs(spark, batch_id), self.over(spark, batch_id)
        new = parse_manifests(batch.where(of_manifests)).join(jobs, job_of("write") == F.col("job"), "left")
        # A second manifest of what is over comes too late, and nothing else tells.
        new = new.where("over is null or batch_id > over").select(*known.columns)
        self._make("manifests", batch_id, lambda: needed(known.join(over, "write", "left_anti").unionByName(new)))
        rows = batch.where(~of_manifests).unionByName(self._held(batch, batch_id - 1))
        return judged(rows, winners(self._manifests(spark, batch_id)), jobs)

    def hold(self, rows: DataFrame, batch_id: int) -> None:
        """Put aside those of `judge` that are undecided, unless that was done before the driver died."""
        self._make("held", batch_id, lambda: rows.where(F.col("verdict") == UNDECIDED).drop("verdict"))

    def over(self, spark: SparkSession, batch_id: int) -> DataFrame:
        """The attempts of which nothing new can come any more since a batch: ``producer_id``, ``epoch``, ``write``."""
        return self._read(spark, "over", batch_id, _OVER_SCHEMA)

    def forget(self, batch_id: int) -> None:
        """What no batch will ask for again: the state before this batch must stay until the next one is done."""
        asked_for = {f"after={batch_id}", f"after={batch_id - 1}"}
        for kind in _KINDS:
            for name in self._files.names(f"{self._directory}/{kind}"):
                if name not in asked_for:
                    self._files.delete(f"{self._directory}/{kind}/{name}")

    def is_touched(self, batch_id: int) -> bool:
        """Whether anything was stored for a batch."""
        return any(self._files.exists(self._path(kind, batch_id)) for kind in _KINDS)

    def clear(self) -> None:
        """Remove what killed attempts have left."""
        self._files.delete(f"{self._directory}/_staging")

    def _jobs(self, spark: SparkSession, batch_id: int) -> DataFrame:
        return self._read(spark, "jobs", batch_id, _JOBS_SCHEMA)

    def _jobs_after(self, spark: SparkSession, batch_id: int) -> DataFrame:
        over = self.over(spark, batch_id).select("job", F.col("batch_id").alias("over"))
        both = self._jobs(spark, batch_id - 1).unionByName(over)
        return both.groupBy("job").agg(F.max("over").alias("over"))

    def _manifests(self, spark: SparkSession, batch_id: int) -> DataFrame:
        return self._read(spark, "manifests", batch_id, PARTS_SCHEMA)

    def _held(self, batch: DataFrame, batch_id: int) -> DataFrame:
        path = self._path("held", batch_id)
        if not self._files.exists(path):
            return batch.limit(0)
        return batch.sparkSession.read.schema(batch.schema).parquet(path)

    def _read(self, spark: SparkSession, kind: str, batch_id: int, schema: str) -> DataFrame:
        path = self._path(kind, batch_id)
        if self._files.exists(path):
            return spark.read.schema(schema).parquet(path)
        return spark.range(0).select(F.from_json(F.lit(""), schema).alias("nothing")).select("nothing.*")

    def _make(self, kind: str, batch_id: int, rows: Callable[[], DataFrame]) -> None:
        """Store it, unless that was done before the driver died."""
        path = self._path(kind, batch_id)
        if not self._files.exists(path):
            aside = f"{self._directory}/_staging/{uuid.uuid4().hex}"
            rows().write.parquet(aside)
            self._files.make_directory(path.rpartition("/")[0])
            self._files.move(aside, path)

    def _path(self, kind: str, batch_id: int) -> str:
        return f"{self._directory}/{kind}/after={batch_id}"


def _over(parts: DataFrame, landed: LandedIds) -> DataFrame:
    """The attempts of the writes that have been landed whole."""
    attempts = winners(parts).select("write", "batch_id", F.inline_outer("attempts"))
    counted = attempts.join(landed.counts(), _EPOCH, "left")
    whole = (F.size("dead_letters") == 0) & (F.coalesce("landed", F.lit(0)) == F.col("last"))
    is_whole = F.coalesce(F.col("producer_id").isNull() | whole, F.lit(False))  # noqa: FBT003 - a literal
    each = counted.withColumn("whole", is_whole)
    writes = each.groupBy("write").agg(F.bool_and("whole").alias("all")).where("all").select("write")
    found = each.join(writes, "write")
    return found.select("write", job_of("write").alias("job"), "batch_id", *_EPOCH)
