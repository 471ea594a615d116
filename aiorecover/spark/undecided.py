"""What landing knows of sinks: the manifests that came so far, and the records that wait for one.

The query that lands reads the manifest topic beside the others. So a manifest is a row of a batch, and what was known
when a batch was landed is the same when it is landed again after a crash; a manifest that comes starts a batch by
itself. A record whose write has no manifest yet is *held*: put aside once, and read again when its manifest is there.
What never gets one is held for good: `aiorecover.spark.give_up_writes` makes it leftovers.

A write is *over* once as many ids of each of its attempts have been landed as the manifest says: nothing but repeats
and leftovers can come of it. Then it is forgotten, with the ids of its attempts, but for one row for each job: the
number of its last write that is over. Spark does the batches of a job one after the other, so what comes of an earlier
one that is not known any more is a repeat or a leftover, too. So the state is as small as what is under way.

Two kinds of writes stay for good. Those that go to topics that are not landed, too: ids of theirs never come here. And
those with dead letters, though a letter that is published again gets another id. It may be in Kafka all the same, where
an earlier attempt to send it had no answer (`DeadLetter.persisted`), and is landed then. In a sum of what is landed and
of dead letters it would stand twice, in the place of a record that comes with a later batch, and would be passed over.

What stands in a directory of its own, each whole or not there:

    over/after=<batch>         the attempts that are over since the batch before, with their write
    jobs/after=<batch>         job, over: the number of the last write that is over
    manifests/after=<batch>    the parts of manifests, of those that count or may count, and are not over
    held/batch=<batch>         rows of this batch that had to wait; dropped when none of them does
    waiting/after=<batch>      which writes wait, how many rows of each, and of which batch

In an earlier form all that waits was ``held/after=<batch>``, written anew with each batch. It is read on.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StringType, StructType

from aiorecover.spark.files import Files
from aiorecover.spark.leftovers import (
    PARTS_SCHEMA,
    UNDECIDED,
    batch_of,
    job_of,
    judged,
    needed,
    parse_manifests,
    winners,
    write_of,
)
from aiorecover.spark.staging import STAGING, clear_staging
from aiorecover.spark.written import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from aiorecover.spark.landed_ids import LandedIds

__all__ = ["Undecided", "Waiting", "waiting_in"]

_STATES = ("over", "jobs", "manifests", "waiting")  # after a batch
_HELD = "held"
_OVER_SCHEMA = "write string, job string, batch_id bigint, producer_id string, epoch int"
_JOBS_SCHEMA = "job string, over bigint"
_WAITING_SCHEMA = "batch_id bigint, write string, records bigint"
_EPOCH = ["producer_id", "epoch"]
_WRITE = "_aiorecover_write"  # of rows that are held, beside Kafka's columns
_NAMED_MOST = 10  # writes that wait: enough to look for what has become of their jobs


class Undecided:
    """The state, in a directory that belongs to one landing."""

    def __init__(self, spark: SparkSession, directory: str, topic: str) -> None:
        """``topic`` is the manifests'."""
        self._files = Files(spark, directory)
        self._directory = directory
        self._topic = topic
        self._held_directory = f"{directory}/{_HELD}"
        self._rows: dict[int, dict[int, int]] = {}  # of `_held_rows`: what was stored never changes

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
        decided = winners(self._manifests(spark, batch_id))
        own = batch.where(~of_manifests).unionByName(self._held_in_earlier_form(batch, batch_id - 1))
        return judged(own.unionByName(self._held_no_longer(batch, batch_id)), decided, jobs)

    def hold(self, rows: DataFrame, batch_id: int) -> None:
        """Put aside those of `judge` that are undecided, unless that was done before the driver died.

        They are all the batch's own: what was held before it is not read while it is undecided.
        """
        waits = rows.where(F.col("verdict") == UNDECIDED).drop("verdict")
        self._make(_HELD, batch_id, lambda: waits.withColumn(_WRITE, write_of()))
        self._make("waiting", batch_id, lambda: self._waiting_after(rows.sparkSession, batch_id))

    def held(self, spark: SparkSession, batch_id: int) -> int:
        """How many rows wait after a batch, of which `hold` has put aside what does."""
        return sum(self._held_rows(spark, batch_id).values())

    def over(self, spark: SparkSession, batch_id: int) -> DataFrame:
        """The attempts of which nothing new can come any more since a batch: ``producer_id``, ``epoch``, ``write``."""
        return self._read(spark, "over", batch_id, _OVER_SCHEMA)

    def forget(self, spark: SparkSession, batch_id: int) -> None:
        """What no batch will ask for again: the state before this batch must stay until the next one is done.

        What is later is another landing's, which got ahead where nothing is locked: without it none could go on.
        """
        for kind in (*_STATES, _HELD):
            self._drop(kind, "after=", lambda number: number < batch_id - 1)
        if self._files.names(self._held_directory):
            waits = {*self._held_rows(spark, batch_id - 1), *self._held_rows(spark, batch_id)}
            self._drop(_HELD, "batch=", lambda number: number <= batch_id and number not in waits)
        self._rows = {batch_id: self._held_rows(spark, batch_id)}

    def is_touched(self, batch_id: int) -> bool:
        """Whether anything was stored for a batch."""
        return any(self._files.exists(self._path(kind, batch_id)) for kind in (*_STATES, _HELD))

    def clear(self, *, is_locked: bool) -> None:
        """Remove what killed attempts have left; ``is_locked``: nobody else works with the checkpoint."""
        clear_staging(self._files, self._directory, is_locked=is_locked)

    def _jobs(self, spark: SparkSession, batch_id: int) -> DataFrame:
        return self._read(spark, "jobs", batch_id, _JOBS_SCHEMA)

    def _jobs_after(self, spark: SparkSession, batch_id: int) -> DataFrame:
        over = self.over(spark, batch_id).select("job", F.col("batch_id").alias("over"))
        both = self._jobs(spark, batch_id - 1).unionByName(over)
        return both.groupBy("job").agg(F.max("over").alias("over"))

    def _manifests(self, spark: SparkSession, batch_id: int) -> DataFrame:
        return self._read(spark, "manifests", batch_id, PARTS_SCHEMA)

    def _held_in_earlier_form(self, batch: DataFrame, batch_id: int) -> DataFrame:
        path = f"{self._held_directory}/after={batch_id}"
        if self._files.exists(self._path("waiting", batch_id)) or not self._files.exists(path):
            return batch.limit(0)
        return batch.sparkSession.read.schema(batch.schema).parquet(path)

    def _held_no_longer(self, batch: DataFrame, batch_id: int) -> DataFrame:
        """The rows that waited before a batch, and are decided with it."""
        if not self._any_waited(batch_id):
            return batch.limit(0)
        spark, decided = batch.sparkSession, self._decided(batch.sparkSession, batch_id)
        paths = [self._path(_HELD, number) for (number,) in decided.select("batch_id").distinct().collect()]
        if not paths:
            return batch.limit(0)
        schema = StructType([*batch.schema.fields]).add(_WRITE, StringType())
        rows = spark.read.schema(schema).parquet(*paths)
        return rows.join(decided.select(F.col("write").alias(_WRITE)), _WRITE, "left_semi").select(*batch.columns)

    def _decided(self, spark: SparkSession, batch_id: int) -> DataFrame:
        """Of `_waiting` before a batch, what it decides, some of it twice."""
        waiting = self._waiting(spark, batch_id - 1)
        told = waiting.join(winners(self._manifests(spark, batch_id)), "write", "left_semi")
        over = waiting.join(self._jobs(spark, batch_id), job_of("write") == F.col("job"))
        return told.unionByName(over.where(batch_of("write") <= F.col("over")).select(*waiting.columns))

    def _waiting(self, spark: SparkSession, batch_id: int) -> DataFrame:
        return self._read(spark, "waiting", batch_id, _WAITING_SCHEMA)

    def _waiting_after(self, spark: SparkSession, batch_id: int) -> DataFrame:
        held = spark.read.schema(f"{_WRITE} string").parquet(self._path(_HELD, batch_id))
        counted = held.groupBy(F.lit(batch_id).cast("bigint").alias("batch_id"), F.col(_WRITE).alias("write"))
        new = counted.agg(F.count(F.lit(1)).alias("records"))
        if not self._any_waited(batch_id):
            return new
        before = self._waiting(spark, batch_id - 1).join(self._decided(spark, batch_id), "write", "left_anti")
        return before.unionByName(new)

    def _any_waited(self, batch_id: int) -> bool:
        """Whether rows of batches before this one may be held; mostly none are, and nothing needs to be asked."""
        own = f"batch={batch_id}"
        return any(name.startswith("batch=") and name != own for name in self._files.names(self._held_directory))

    def _held_rows(self, spark: SparkSession, batch_id: int) -> dict[int, int]:
        """Of which batches rows wait after one, and how many."""
        if batch_id not in self._rows:
            of_batch = self._waiting(spark, batch_id).groupBy("batch_id").agg(F.sum("records").alias("records"))
            self._rows[batch_id] = {row["batch_id"]: row["records"] for row in of_batch.collect()}
        return self._rows[batch_id]

    def _drop(self, kind: str, prefix: str, is_done: Callable[[int], bool]) -> None:
        directory = f"{self._directory}/{kind}"
        for number in self._files.numbers(directory, prefix):
            if is_done(number):
                self._files.delete(f"{directory}/{prefix}{number}")

    def _read(self, spark: SparkSession, kind: str, batch_id: int, schema: str) -> DataFrame:
        path = self._path(kind, batch_id)
        if self._files.exists(path):
            return spark.read.schema(schema).parquet(path)
        return spark.range(0).select(F.from_json(F.lit(""), schema).alias("nothing")).select("nothing.*")

    def _make(self, kind: str, batch_id: int, rows: Callable[[], DataFrame]) -> None:
        """Store it, unless that was done before the driver died."""
        path = self._path(kind, batch_id)
        if not self._files.exists(path):
            aside = f"{self._directory}/{STAGING}/{uuid.uuid4().hex}"
            write_whole(rows(), aside)
            self._files.make_directory(path.rpartition("/")[0])
            self._files.move(aside, path)

    def _path(self, kind: str, batch_id: int) -> str:
        return f"{self._directory}/{kind}/{'batch' if kind == _HELD else 'after'}={batch_id}"


class Waiting(NamedTuple):
    """What waits for its manifest."""

    records: int
    writes: list[str]
    """Their names, the longest waiting first; not all of them."""


def waiting_in(spark: SparkSession, directory: str) -> Waiting:
    """Of the state in a directory, after the last batch that was landed."""
    above = f"{directory}/waiting"
    names = [name for name in Files(spark, directory).names(above) if name.startswith("after=")]
    if not names:
        return Waiting(0, [])
    last = max(names, key=lambda name: int(name.partition("=")[2]))
    rows = spark.read.schema(_WAITING_SCHEMA).parquet(f"{above}/{last}")
    of_write = rows.groupBy("write").agg(F.sum("records").alias("records"), F.min("batch_id").alias("since"))
    records = of_write.agg(F.coalesce(F.sum("records"), F.lit(0))).collect()[0][0]
    oldest = of_write.orderBy("since", "write").limit(_NAMED_MOST).collect() if records else []
    return Waiting(records, [row["write"] for row in oldest])


def _over(parts: DataFrame, landed: LandedIds) -> DataFrame:
    """The attempts of the writes that have been landed whole; with a dead letter no sum tells (see the module)."""
    attempts = winners(parts).select("write", "batch_id", F.inline_outer("attempts"))
    counted = attempts.join(landed.counts(), _EPOCH, "left")
    whole = (F.size("dead_letters") == 0) & (F.coalesce("landed", F.lit(0)) == F.col("last"))
    is_whole = F.coalesce(F.col("producer_id").isNull() | whole, F.lit(False))  # noqa: FBT003 - a literal
    each = counted.withColumn("whole", is_whole)
    writes = each.groupBy("write").agg(F.bool_and("whole").alias("all")).where("all").select("write")
    found = each.join(writes, "write")
    return found.select("write", job_of("write").alias("job"), "batch_id", *_EPOCH)
