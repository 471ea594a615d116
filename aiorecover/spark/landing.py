"""Land topics in a table, each record once, whatever is killed.

Spark writes into its checkpoint which offsets a batch has before it runs the batch, and after a crash runs the same
batch again, under the same number: a fixed set of rows, whose number is its name. For each batch

1. the ids that were landed *before* it are read (:mod:`aiorecover.spark.seen`), and its rows sorted by them
   (:mod:`aiorecover.spark.sorting`): new ones, repeats, conflicts, undecodable ids;
2. conflicts and undecodable ids are added to ``<target>__quarantine``, new rows to the target, each once
   (:mod:`aiorecover.spark.stores`);
3. the ids of the batch are read *back from the target* and added to ``<target>__ids``.

If a driver dies between two of these steps, the next one repeats all of them, and what is there already stays. Only
batches of Parquet are renamed, so Iceberg and Delta can be on any store, and so can the checkpoint.

A target belongs to one checkpoint for good: it carries the id that Spark gave the checkpoint's query. Restore both from
backups of the same moment, or a number would stand for other offsets than were landed under it. A batch that is begun
and not done runs first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aiorecover.errors import ConfigError
from aiorecover.spark.checkpoint import QueryLog, check_topics
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.seen import Seen
from aiorecover.spark.session import clear_errors
from aiorecover.spark.sorting import sorted_batch
from aiorecover.spark.stores import catalogue_in, store_for
from aiorecover.spark.topics import loss_is_accepted, source_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorecover.spark.stores import Store

__all__ = ["DEFAULT_MAX_OFFSETS_PER_TRIGGER", "Landed", "checked_options", "land"]

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""Records of a batch at most: what is repeated after a kill, and what is sorted at a time."""

_REPORT_FAILED = 'because the return value of "scala.Option.get()" is null'

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Landed:
    """The outcome of a batch."""

    batch_id: int
    landed: int
    """Rows that were added to the target, including those without an id."""
    without_id: int
    """The added rows without a record id: whether these are repeats is not known, so all are added."""
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
    landed from their first records on (:mod:`aiorecover.spark.checkpoint` says what is refused, and how to leave one
    out).

    With ``available_now`` the query ends when all is landed that is in Kafka now; otherwise it goes on.
    ``query.awaitTermination()`` waits for it, and raises what went wrong. Started again with the same ``target`` and
    ``checkpoint`` it goes on where it was, also after a kill.

    ``target``: with a ``/`` in it, or as a `Path`, a directory of Parquet, or a table of Delta with the ``format``
    ``delta``; else the name of a table of Iceberg or Delta, which is made if it does not exist. Name its catalogue, too
    (``lake.shop.orders``): a query does not follow ``USE`` into another catalogue, so without it the name is refused
    there. A table that you made before, to give it partitions for example, must be empty and have the columns.
    ``<target>__ids`` and ``<target>__quarantine`` are made beside it. ``checkpoint``: a directory. Use it and the
    target only together, by one landing at a time, and restore both from backups of the same moment.

    ``max_offsets_per_trigger``: records of a batch at most. ``files_per_batch``: files of a batch at most, each
    with the rows of some of the topics' partitions; default, as many as Spark has cores now. ``options`` are those of
    Spark's Kafka source and win over the defaults: from the earliest offset on, committed records only. ``on_batch`` is
    called on the driver after each batch, which is also logged by ``aiorecover.spark``. Spark Connect cannot do this.

    Raises:
        RecordsGoneError: a topic was deleted and made anew since it was landed last, or Kafka has deleted records of an
            unfinished batch. (For later batches the query raises `StreamingQueryException`.)
        ConfigError: no topic or server is named, a number is out of range, the target cannot be landed in, lacks
            columns, or does not belong to the checkpoint, these are not the topics of the checkpoint, one does not
            exist, Kafka cannot be reached, or Spark lacks its connector.
        StreamingQueryException: an unfinished batch, which runs before this returns, failed again.

    """
    if max_offsets_per_trigger < 1 or (files_per_batch is not None and files_per_batch < 1):
        raise ConfigError(f"at least 1: {max_offsets_per_trigger=} {files_per_batch=}")
    target, checkpoint = _text(target), _text(checkpoint)
    source = checked_options(topics, target, checkpoint, bootstrap_servers, options)
    checkpoint = checkpoint.rstrip("/")
    files_per_batch = files_per_batch or spark.sparkContext.defaultParallelism
    stream = spark.readStream.format("kafka").options(**source)
    stream = stream.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    with clear_errors(target=target):
        log = QueryLog(spark, f"{checkpoint}/query")
        ours = _cloned(spark)
        _check_catalogue(spark, ours, target)
        _tune(ours, files_per_batch)
        store = store_for(ours, target, format)
        landing = _Landing(log, store, checkpoint, files_per_batch, on_batch, lossy=loss_is_accepted(source))
        records = parse_record_id(stream.load())
        landing.check(records.schema)
    check_topics(spark, source, checkpoint, log)
    writer = records.writeStream.foreachBatch(landing.land_batch)
    writer = writer.option("checkpointLocation", f"{checkpoint}/query").queryName(f"aiorecover land {target}")
    if log.last_begun() > log.last_done():
        _finish(writer.trigger(once=True).start())
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def checked_options(
    topics: Sequence[str], target: str, checkpoint: str, bootstrap_servers: str, options: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the options of Spark's Kafka source for the arguments of `land`.

    Raises:
        ConfigError: they cannot be right, which shows without Spark and without any file.

    """
    if not target.strip():
        raise ConfigError(f"name a target, a directory or a table: {target=}")
    if not checkpoint.rstrip("/"):
        raise ConfigError(
            "name a checkpoint, a directory that belongs to the target for good: a landing goes on from it after a "
            f"crash, and knows by it what is landed {target=}"
        )
    ours = [f"{target.rstrip('/')}{suffix}" for suffix in ("", "__ids", "__quarantine")]
    if "/" in target and checkpoint.rstrip("/") in ours:
        raise ConfigError(f"name a directory of its own for the checkpoint: {checkpoint=} {target=}")
    return source_options(topics, bootstrap_servers, options)


def _text(path: str | PurePath) -> str:
    """A `Path` is a directory, also without a ``/`` in it."""
    text = str(path)
    return text if isinstance(path, str) or "/" in text else f"./{text}"


def _cloned(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings, to change some; as a query does, with which it shares no plans."""
    java: Any = spark
    return type(spark)(spark.sparkContext, java._jsparkSession.cloneSession())  # noqa: SLF001 - pyspark offers newSession alone


def _check_catalogue(spark: SparkSession, cloned: SparkSession, target: str) -> None:
    """Check that the target's name means the same in both sessions: a clone forgets the catalogue that is chosen."""
    if "/" in target or catalogue_in(spark, target):
        return
    chosen, kept = ((one.catalog.currentCatalog(), one.catalog.currentDatabase()) for one in (spark, cloned))
    if chosen != kept:
        raise ConfigError(
            "a landing does not follow USE into another catalogue: name the target with its catalogue, as "
            f"lake.db.orders {target=!s} current={'.'.join(filter(None, chosen))}"
        )


def _tune(session: SparkSession, tasks: int) -> None:
    """Set how many tasks a shuffle has, and a look at Delta's log: by default 200 and 50, however small a batch is.

    Spark does not join small ones in a query (before 4.1), and would write a file for each. Rows of a batch are in
    memory for seconds: to compress them there costs more than it saves.
    """
    session.conf.set("spark.sql.shuffle.partitions", tasks)
    session.conf.set("spark.databricks.delta.snapshotPartitions", tasks)
    session.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")


def _finish(query: StreamingQuery) -> None:
    """Wait for the batch that a driver left when it died.

    After such a batch is done, the connector of Spark 4.1 fails when it reports how it went (SPARK-57438). A query that
    is started after that finds nothing wrong. So the batch runs by itself, and this one error is ignored.
    """
    try:
        with clear_errors():
            query.awaitTermination()
    except StreamingQueryException as error:
        if _REPORT_FAILED not in str(error):
            raise
    except BaseException:  # Ctrl-C in a notebook: the query must not go on alone
        query.stop()
        raise


class _Landing:
    """The work on each batch; ``lossy``: Kafka may have deleted rows of a batch that runs again."""

    def __init__(
        self,
        log: QueryLog,
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
        self._log, self._files_per_batch, self._on_batch = log, files_per_batch, on_batch
        self._mark: str | None = None

    def check(self, schema: StructType) -> None:
        """Check that target and checkpoint belong together; ``schema``: of what is landed.

        Raises:
            ConfigError: they do not, or were restored from different moments, or the target's columns have changed.

        """
        named = f"target={self._target.name} checkpoint={self._checkpoint}"
        ours, mark = self._log.query_id(), self._target.mark()
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
        """Sort the rows, add them, and then their ids; what is there already stays."""
        mark = self._claimed(batch.schema)
        _tune(batch.sparkSession, self._files_per_batch)
        before = self._seen.before(batch_id)
        with sorted_batch(batch, before, lambda: self._target.before(batch_id), self._files_per_batch) as rows:
            if rows.apart is not None:
                self._quarantine.append(rows.apart, batch_id, mark)
            self._target.append(rows.new.coalesce(self._files_per_batch), batch_id, mark)
        landed = self._target.batch(batch_id)
        there, written = landed.count(), rows.counts["landed"]
        if there < written or (there > written and not self._lossy):
            raise ConfigError(
                "the table has other rows of a batch than were written: see that all executors share the directory "
                "with the driver, and that nobody else changes the table; put back target and checkpoint, or land with "
                f"new ones {batch_id=} {written=} found={there} target={self._target.name}"
            )
        self._seen.add(landed, batch_id, mark)
        self._report(Landed(batch_id, **rows.counts))

    def _claimed(self, schema: StructType) -> str:
        """Make the tables, or find them, and return which checkpoint they belong to."""
        if self._mark is None:
            mark = self._log.query_id() or ""
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

    def _report(self, landed: Landed) -> None:
        _log.info("batch landed %s", " ".join(f"{name}={count}" for name, count in asdict(landed).items()))
        if landed.conflicts or landed.undecodable:
            _log.warning(
                "records are in the quarantine: an id stands on records that differ, or is no record id; find "
                "the program that forwards records with all their headers conflicts=%d undecodable=%d quarantine=%s",
                *(landed.conflicts, landed.undecodable, self._quarantine.name),
            )
        if self._on_batch is not None:
            self._on_batch(landed)


def _with_batch_id(schema: StructType, *more: StructField) -> StructType:
    return StructType([*schema.fields, *more, StructField("batch_id", LongType())])
