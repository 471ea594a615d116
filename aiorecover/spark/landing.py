"""Topics into a table of Parquet files, each record once, whatever is killed.

How each record comes once:

- Spark writes down in its checkpoint which offsets a micro-batch has before it runs it, and after a crash it runs the
  same batch again, under the same number. So a batch is a fixed set of rows, and its number its name.
- The rows of a batch whose ids have been landed by an earlier one are left out (:mod:`aiorecover.spark.landed_ids`; the
  state *before* the batch is asked, which stays until the next batch is done), and of rows of the batch with the same
  id the first by topic, partition and offset is kept. Rows without an id pass.
- What is left is written to a directory of its own, ``_staging/<batch>-<random>``, and this is then renamed to
  ``batch_id=<batch>``: that name appears whole or not at all, and once. A batch whose directory is there already is not
  written again. Tasks of a driver that was killed may still be writing for a while: to a directory of theirs, which
  nobody will ever rename.
- From the ids in the files of the batch and the state before it the state after it is made, likewise; then Spark's
  checkpoint says that the batch is done.

So a reader of ``batch_id=*`` sees whole batches, and each record once at any time, without knowing anything of this.
It stands on directories that are renamed in one step, as HDFS and local file systems do it; object stores without
directories (S3) do not.

A target belongs to one checkpoint, and says so in ``_aiorecover.json``: another one would also count from 0.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark import landed_ids
from aiorecover.spark.files import Files
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.topics import source_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["DEFAULT_MAX_OFFSETS_PER_TRIGGER", "Landed", "land"]

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""So many records make up a batch at most: what a killed driver does again, and what is sorted at a time."""

_CHUNK_BITS = 10  # so many sequences (1,024) stay together: a busy producer is spread over all cores
_LANDING = "landing"
_REPORT_FAILED = 'because the return value of "scala.Option.get()" is null'
_OURS = (".", "_", f"{_LANDING}.json")  # a start that was killed may have left these
_PLACE = "_aiorecover_place"
_CHUNK = "_aiorecover_chunk"
_APPEARANCE = "_aiorecover_appearance"

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Landed:
    """What became of a batch."""

    batch_id: int
    landed: int
    """Rows in the files of the batch, those without an id included."""
    without_id: int
    """Of these, rows without a record id: nothing tells whether they are repeats, so all are there."""
    repeats: int | None
    """Rows left out, because the record was landed already. None where the batch was written by a process that died
    before it could count."""


def land(
    spark: SparkSession,
    topics: Sequence[str],
    target: str,
    checkpoint: str,
    *,
    bootstrap_servers: str,
    available_now: bool = False,
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER,
    files_per_batch: int | None = None,
    options: Mapping[str, str] | None = None,
    on_batch: Callable[[Landed], object] | None = None,
) -> StreamingQuery:
    """Start to land the topics in ``target``: Kafka's columns, the ids as columns, and ``batch_id``.

    With ``available_now`` the query ends when everything is landed that stands in Kafka now; otherwise it goes on.
    ``query.awaitTermination()`` waits for it, and raises what went wrong. Started again with the same ``target`` and
    ``checkpoint`` it goes on where it was, also after a kill. Both are directories that Spark can write to (see the
    module about their file systems), and only ever used together.

    ``max_offsets_per_trigger``: records of a batch, at most. ``files_per_batch``: default, as many as Spark has cores.
    ``options`` are those of Spark's Kafka source and win over the defaults: from the earliest offset on, committed
    records only. ``on_batch`` is called on the driver after each batch; the log ``aiorecover.spark`` tells it, too.
    Not over Spark Connect: directories are renamed through the driver's JVM.

    Raises:
        ConfigError: no topic or server is named, a number is out of range, or target and checkpoint do not belong
            together.
        StreamingQueryException: a batch that was left unfinished is done first, before this returns, and failed again.

    """
    if max_offsets_per_trigger < 1 or (files_per_batch is not None and files_per_batch < 1):
        raise ConfigError(f"at least 1: {max_offsets_per_trigger=} {files_per_batch=}")
    told = source_options(topics, bootstrap_servers, options)
    target, checkpoint = target.rstrip("/"), checkpoint.rstrip("/")
    _claim(spark, target, checkpoint)
    stream = spark.readStream.format("kafka").options(**told).option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    landing = _Landing(
        spark, target, f"{checkpoint}/ids", files_per_batch or spark.sparkContext.defaultParallelism, on_batch
    )
    writer = parse_record_id(stream.load()).writeStream.foreachBatch(landing.land_batch)
    writer = writer.option("checkpointLocation", f"{checkpoint}/query").queryName(f"aiorecover land {target}")
    if _is_unfinished(spark, f"{checkpoint}/query"):
        _finish(writer.trigger(once=True).start())
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def _is_unfinished(spark: SparkSession, query: str) -> bool:
    """Whether the last batch that Spark has written down is not done yet."""
    files = Files(spark, query)
    begun, done = (
        max((int(name) for name in files.names(f"{query}/{log}") if name.isdigit()), default=-1)
        for log in ("offsets", "commits")
    )
    return begun > done


def _finish(query: StreamingQuery) -> None:
    """Wait for the batch that a driver left when it died.

    The connector of Spark 4.1 fails when it reports how such a batch went, which is done by then (SPARK-57438); whoever
    starts the query once more finds nothing wrong. So it is done apart, and this one error is no error.
    """
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if _REPORT_FAILED not in str(error):
            raise


def _claim(spark: SparkSession, target: str, checkpoint: str) -> None:
    """Bind the two directories to each other, or find them bound; clear away what killed attempts have left.

    Raises:
        ConfigError: they are not a pair.

    """
    there, here = Files(spark, target), Files(spark, checkpoint)
    there.make_directory(target)
    here.make_directory(checkpoint)
    target_name, checkpoint_name = f"{target}/_aiorecover.json", f"{checkpoint}/{_LANDING}.json"
    theirs, ours = there.read(target_name), here.read(checkpoint_name)
    used = [name for name in there.names(target) + here.names(checkpoint) if not name.startswith(_OURS)]
    if theirs is None and ours is None and used:
        raise ConfigError(f"begin with a new target and a new checkpoint: these are not empty {target=} {checkpoint=}")
    if ours is None and theirs is not None:
        raise ConfigError(
            f"the target was landed with another checkpoint: name that one, or a new target {target=} {checkpoint=}"
        )
    if ours is None:
        ours = json.dumps({_LANDING: uuid.uuid4().hex}).encode()
        here.write_new(checkpoint_name, ours)
    if theirs is None:
        # Killed between the two, or the table was taken away: then what this checkpoint calls done is not there.
        if here.names(f"{checkpoint}/query/commits"):
            raise ConfigError(
                f"the target of this checkpoint is gone: restore it, or name a new checkpoint {target=} {checkpoint=}"
            )
        there.write_new(target_name, ours)
    elif json.loads(theirs) != json.loads(ours):
        raise ConfigError(
            f"target and checkpoint belong to others: name the two that were used together {target=} {checkpoint=}"
        )
    there.delete(f"{target}/_staging")
    here.delete(f"{checkpoint}/ids/_staging")


class _Landing:
    """What is done with each batch."""

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        ids: str,
        files_per_batch: int,
        on_batch: Callable[[Landed], object] | None,
    ) -> None:
        self._spark = spark
        self._target = target
        self._ids = ids
        self._files_per_batch = files_per_batch
        self._on_batch = on_batch

    def land_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Land it, unless that was done before the driver died; then the state."""
        table, states = Files(self._spark, self._target), Files(self._spark, self._ids)
        place, state = f"{self._target}/batch_id={batch_id}", f"{self._ids}/after={batch_id}"
        rows = None
        if not table.exists(place):
            aside = self._aside(self._target, batch_id)
            rows = self._write(batch, batch_id, aside)
            table.move(aside, place)
        landed = self._spark.read.schema(batch.schema).parquet(place)
        if not states.exists(state):
            aside = self._aside(self._ids, batch_id)
            self._before(self._spark, batch_id).with_landed(landed).write(aside)
            states.move(aside, state)
        self._forget(states, batch_id)
        self._tell(landed, batch_id, rows)

    def _write(self, batch: DataFrame, batch_id: int, aside: str) -> int:
        """Write what has not been landed before; the number of rows that the batch had."""
        seen = Observation()
        records = batch.observe(seen, F.count(F.lit(1)).alias("rows"))
        new = self._before(batch.sparkSession, batch_id).without_landed(records)
        _once(new, self._files_per_batch).write.parquet(aside)
        return int(seen.get["rows"])

    def _before(self, spark: SparkSession, batch_id: int) -> landed_ids.LandedIds:
        if batch_id == 0:
            return landed_ids.empty(spark)
        return landed_ids.read(spark, f"{self._ids}/after={batch_id - 1}")

    def _forget(self, states: Files, batch_id: int) -> None:
        """States that no batch will ask for again: the one before this batch must stay until the next one is done."""
        needed = {f"after={batch_id}", f"after={batch_id - 1}", "_staging"}
        for name in states.names(self._ids):
            if name not in needed:
                states.delete(f"{self._ids}/{name}")

    def _tell(self, landed: DataFrame, batch_id: int, rows: int | None) -> None:
        count, identified = landed.agg(F.count(F.lit(1)), F.count("sequence")).collect()[0]
        told = Landed(batch_id, count, count - identified, None if rows is None else rows - count)
        _log.info(
            "batch landed batch_id=%d landed=%d without_id=%d repeats=%s",
            *(told.batch_id, told.landed, told.without_id, told.repeats),
        )
        if self._on_batch is not None:
            self._on_batch(told)

    @staticmethod
    def _aside(directory: str, batch_id: int) -> str:
        return f"{directory}/_staging/{batch_id}-{uuid.uuid4().hex}"


def _once(records: DataFrame, partitions: int) -> DataFrame:
    """Of the rows with the same id the first by topic, partition and offset; all rows without an id.

    Always the same one: a batch that is done again must come out the same, or readers of the first attempt's files
    would have seen another row.
    """
    place = F.when(F.col("sequence").isNull(), F.struct("topic", "partition", "offset"))
    near = F.xxhash64("topic", "partition", F.shiftright("offset", _CHUNK_BITS))
    chunk = F.coalesce(F.shiftright("sequence", _CHUNK_BITS), near)
    spread = records.withColumns({_PLACE: place, _CHUNK: chunk})
    spread = spread.repartition(partitions, "producer_id", "epoch", _CHUNK)
    same = Window.partitionBy("producer_id", "epoch", _CHUNK, "sequence", _PLACE)
    first = F.row_number().over(same.orderBy("topic", "partition", "offset"))
    return spread.withColumn(_APPEARANCE, first).where(f"{_APPEARANCE} = 1").drop(_PLACE, _CHUNK, _APPEARANCE)
