"""Topics into a table, each record once, whatever is killed.

Spark writes down in its checkpoint which offsets a batch has before it runs it, and after a crash runs the same batch
again, under the same number: a fixed set of rows, whose number is its name. So for each batch

1. the ids that were landed *before* it are read (:mod:`aiorecover.spark.seen`), and rows sorted out by them
   (:mod:`aiorecover.spark.sorting`): new, repeat, conflict, undecodable;
2. conflicts and undecodable ids are added to ``<target>__quarantine``, new rows to the target, each once
   (:mod:`aiorecover.spark.stores`);
3. the ids of the batch are read *back from the target* and added to ``<target>__ids``.

A driver that dies between two of these does all of them again, and what is there already stays. Nothing is renamed but
batches of Parquet, so Iceberg and Delta are landed on any store, and the checkpoint may be on one, too.

A target belongs to one checkpoint for good: it carries the id that Spark gave the checkpoint's query. Both are put back
from backups of one day, or a number would have other offsets than were landed under it. An unfinished batch is finished
first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files
from aiorecover.spark.handed_over import path_of
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.seen import Seen
from aiorecover.spark.session import clear_errors
from aiorecover.spark.sorting import CONFLICT, NEW, REPEAT, UNDECODABLE, VERDICT, judged, mark_seen, originals
from aiorecover.spark.stores import store_for
from aiorecover.spark.subscription import check_subscription
from aiorecover.spark.topic_ids import check_topic_ids
from aiorecover.spark.topics import loss_is_accepted, source_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import PurePath

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorecover.spark.stores import Store

__all__ = ["DEFAULT_MAX_OFFSETS_PER_TRIGGER", "Landed", "checked_options", "land"]

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""So many records make up a batch at most: what a killed driver does again, and what is sorted at a time."""

_REPORT_FAILED = 'because the return value of "scala.Option.get()" is null'

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Landed:
    """What became of a batch."""

    batch_id: int
    landed: int
    """Rows that the target got, those without an id included."""
    without_id: int
    """Of these, rows without a record id: nothing tells whether they are repeats, so all are there."""
    repeats: int
    """Rows left out: the same record was landed already."""
    conflicts: int
    """Rows in the quarantine: another record with the same id was landed already."""
    undecodable: int
    """Rows in the quarantine: their ``aiorecover-id`` is no record id."""


def land(
    spark: SparkSession,
    topics: Sequence[str],
    target: str | PurePath,
    checkpoint: str | PurePath,
    *,
    bootstrap_servers: str,
    format: str | None = None,  # noqa: A002 - Spark's word
    available_now: bool = False,
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER,
    files_per_batch: int | None = None,
    options: Mapping[str, str] | None = None,
    on_batch: Callable[[Landed], object] | None = None,
) -> StreamingQuery:
    """Start to land the topics in ``target``: Kafka's columns, the ids as columns, and ``batch_id``.

    ``topics``: those that were landed with the ``checkpoint`` before, in any order, and perhaps others, which are
    landed from their first records on (:mod:`aiorecover.spark.subscription` tells what is refused, and how to leave
    one out).

    With ``available_now`` the query ends when everything is landed that stands in Kafka now; otherwise it goes on.
    ``query.awaitTermination()`` waits for it, and raises what went wrong. Started
    again with the same ``target`` and ``checkpoint`` it goes on where it was, also after a kill.

    ``target``: with a ``/`` in it, or as a `Path`, a directory of Parquet, or a table of Delta with the ``format``
    ``delta``; else the name of a table of Iceberg or Delta, which is made if it is not there. One that was made before,
    for the sake of its partitions for example, must be empty, and have the columns. Beside it stand
    ``<target>__ids`` and ``<target>__quarantine``. ``checkpoint``: a directory; it and the target are only ever used
    together, put back from backups of one day, and by one landing at a time.

    ``max_offsets_per_trigger``: so many records are read for a batch, at most. ``files_per_batch``: by so many tasks a
    batch is sorted and written; default, as many as Spark has cores now. ``options`` are those of Spark's Kafka source
    and win over the defaults: from the earliest offset on, committed records only. ``on_batch`` is called on the driver
    after each batch; the log ``aiorecover.spark`` tells it, too. Not over Spark Connect.

    Raises:
        RecordsGoneError: a topic was deleted and made anew since it was landed last, or Kafka has deleted records of
            a batch that was left unfinished. (Of later batches the query says it: `StreamingQueryException`.)
        ConfigError: no topic or server is named, a number is out of range, the target is none that can be landed in,
            lacks columns, or does not belong to the checkpoint, these are not the topics of the checkpoint, one is not
            there, Kafka cannot be reached, or Spark lacks its connector.
        StreamingQueryException: a batch that was left unfinished is done first, before this returns, and failed again.

    """
    if max_offsets_per_trigger < 1 or (files_per_batch is not None and files_per_batch < 1):
        raise ConfigError(f"at least 1: {max_offsets_per_trigger=} {files_per_batch=}")
    target, checkpoint = path_of("target", target), path_of("checkpoint", checkpoint)
    told = checked_options(topics, target, checkpoint, bootstrap_servers, options)
    checkpoint = checkpoint.rstrip("/")
    files_per_batch = files_per_batch or spark.sparkContext.defaultParallelism
    stream = spark.readStream.format("kafka").options(**told)
    stream = stream.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    with clear_errors(target=target):
        store = store_for(spark, target, format)
        lossy = loss_is_accepted(told)
        landing = _Landing(spark, store, checkpoint, files_per_batch, on_batch, lossy=lossy)
        records = parse_record_id(stream.load())
        landing.check(records.schema)
    check_subscription(spark, told, checkpoint)
    check_topic_ids(spark, checkpoint, told)
    writer = records.writeStream.foreachBatch(landing.land_batch)
    writer = writer.option("checkpointLocation", f"{checkpoint}/query").queryName(f"aiorecover land {target}")
    if QueryLog(spark, f"{checkpoint}/query").unfinished() is not None:
        _finish(writer.trigger(once=True).start())
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def checked_options(
    topics: Sequence[str], target: str, checkpoint: str, bootstrap_servers: str, options: Mapping[str, str] | None
) -> dict[str, str]:
    """The options of Spark's Kafka source for what `land` is told.

    Raises:
        ConfigError: it cannot be right, as is seen without Spark and without looking at any file.

    """
    if not checkpoint.rstrip("/"):
        raise ConfigError(
            "name a checkpoint, a directory that belongs to the target for good: a landing goes on from it after a "
            f"crash, and knows by it what is landed {target=}"
        )
    if "/" in target and checkpoint.rstrip("/") in (target.rstrip("/"), *_beside(target)):
        raise ConfigError(f"name a directory of its own for the checkpoint: {checkpoint=} {target=}")
    return source_options(topics, bootstrap_servers, options)


def _beside(target: str) -> list[str]:
    return [f"{target.rstrip('/')}__{suffix}" for suffix in ("ids", "quarantine")]


def _finish(query: StreamingQuery) -> None:
    """Wait for the batch that a driver left when it died.

    The connector of Spark 4.1 fails when it reports how such a batch went, which is done by then (SPARK-57438); whoever
    starts the query once more finds nothing wrong. So it is done apart, and this one error is no error.
    """
    try:
        with clear_errors():
            query.awaitTermination()
    except StreamingQueryException as error:
        if _REPORT_FAILED not in str(error):
            raise
    except BaseException:  # Ctrl-C in a notebook: it must not go on when others are let in
        query.stop()
        raise


class _Landing:
    """What is done with each batch; ``lossy``: one that is done again may have fewer rows, as Kafka deleted some."""

    def __init__(
        self,
        spark: SparkSession,
        target: Store,
        checkpoint: str,
        files_per_batch: int,
        on_batch: Callable[[Landed], object] | None,
        *,
        lossy: bool,
    ) -> None:
        self._lossy = lossy
        self._target, self._checkpoint = target, checkpoint
        self._quarantine, self._seen = target.beside("quarantine"), Seen(target.beside("ids"))
        self._files = Files(spark, checkpoint)
        self._log = QueryLog(spark, f"{checkpoint}/query")
        self._files_per_batch, self._on_batch = files_per_batch, on_batch
        self._mark: str | None = None

    def check(self, schema: StructType) -> None:
        """Hold target and checkpoint against each other; ``schema``: of what is landed.

        Raises:
            ConfigError: they do not belong together, or are not of one day, or the target's columns have changed.

        """
        named = f"target={self._target.name} checkpoint={self._checkpoint}"
        ours, mark = self._given(), self._target.mark()
        if mark is None and self._target.is_there() and not self._target.is_empty():
            raise ConfigError(f"something else is in the target: name a new one, or one that was landed in {named}")
        if mark is None and self._log.last_done() >= 0:
            raise ConfigError(
                f"the target of this checkpoint is gone, or is another one: name the right one, restore it, or name a "
                f"new checkpoint {named}"
            )
        if mark is not None and mark != ours:
            raise ConfigError(f"the target was landed with another checkpoint: name that one, or a new target {named}")
        if mark is not None and self._log.last_done() >= 0 and self._seen.mark() != mark:
            raise ConfigError(
                "which ids were landed is not known any more, so that repeats would be landed again: put back what "
                f"belongs to the target, or land with a new target and a new checkpoint ids={self._seen.name} {named}"
            )
        last = self._log.last_begun()
        if mark is not None and (beyond := self._target.beyond(last)) is not None:
            raise ConfigError(
                "the target holds batches that this checkpoint knows nothing of, so that new records would be taken "
                f"for landed: put back the checkpoint that belongs to the target, or name a new checkpoint and a new "
                f"target, for all that is in Kafka batch_id={beyond} last_in_checkpoint={last} {named}"
            )
        if self._target.is_there():
            self._target.check_columns(_with_batch_id(schema))

    def land_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Sort the rows out, add them, and then their ids; what is there already stays."""
        mark = self._claimed(batch.schema)
        with ExitStack() as kept:
            marked = mark_seen(batch, self._seen.before(batch_id), self._files_per_batch).persist()
            kept.callback(marked.unpersist)
            landed_before = originals(marked, lambda: self._target.before(batch_id))
            if landed_before is not None:
                kept.callback(landed_before.persist().unpersist)
            rows = judged(marked, landed_before)
            counts = _counts(rows)
            if counts[CONFLICT] or counts[UNDECODABLE]:
                apart = rows.where(F.col(VERDICT).isin(CONFLICT, UNDECODABLE))
                self._quarantine.append(apart.withColumnRenamed(VERDICT, "reason"), batch_id, mark)
            self._target.append(rows.where(F.col(VERDICT) == NEW).drop(VERDICT), batch_id, mark)
        landed = self._target.batch(batch_id)
        there = landed.count()
        if there < counts[NEW] or (there > counts[NEW] and not self._lossy):
            raise ConfigError(
                "the table has other rows of a batch than were written: see that all executors share the directory "
                "with the driver, and that nobody else changes the table; put back target and checkpoint, or land with "
                f"new ones batch_id={batch_id} written={counts[NEW]} found={there} target={self._target.name}"
            )
        self._seen.add(landed, batch_id, mark)
        self._tell(batch_id, counts)

    def _given(self) -> str | None:
        """The id that Spark gave the query of this checkpoint."""
        told = self._files.read(f"{self._checkpoint}/query/metadata")
        return None if told is None else str(json.loads(told)["id"])

    def _claimed(self, schema: StructType) -> str:
        """Make the tables, or find them, and return whose they are."""
        if self._mark is None:
            mark = self._given() or ""
            self._target.claim(_with_batch_id(schema), mark)
            self._quarantine.claim(_with_batch_id(schema, StructField("reason", StringType())), mark)
            self._seen.claim(mark)
            if self._target.mark() != mark:  # of two landings that claim it at once
                raise ConfigError(
                    f"another landing claims the target: name a new one target={self._target.name} "
                    f"checkpoint={self._checkpoint}"
                )
            self._mark = mark
        return self._mark

    def _tell(self, batch_id: int, counts: Mapping[str, int]) -> None:
        told = Landed(
            batch_id, counts[NEW], counts["without_id"], counts[REPEAT], counts[CONFLICT], counts[UNDECODABLE]
        )
        _log.info(
            "batch landed batch_id=%d landed=%d without_id=%d repeats=%d conflicts=%d undecodable=%d",
            *(told.batch_id, told.landed, told.without_id, told.repeats, told.conflicts, told.undecodable),
        )
        if told.conflicts or told.undecodable:
            _log.warning(
                "records are in the quarantine: an id stands on records that differ, or is no record id; look who "
                "forwards records with all their headers conflicts=%d undecodable=%d quarantine=%s",
                *(told.conflicts, told.undecodable, self._quarantine.name),
            )
        if self._on_batch is not None:
            self._on_batch(told)


def _with_batch_id(schema: StructType, *more: StructField) -> StructType:
    return StructType([*schema.fields, *more, StructField("batch_id", LongType())])


def _counts(rows: DataFrame) -> dict[str, int]:
    counts = dict.fromkeys((NEW, REPEAT, CONFLICT, UNDECODABLE, "without_id"), 0)
    found = rows.groupBy(VERDICT).agg(F.count(F.lit(1)), F.count_if(F.col("sequence").isNull())).collect()
    for verdict, count, without_id in found:
        counts[verdict] = count
        if verdict == NEW:
            counts["without_id"] = without_id
    return counts
