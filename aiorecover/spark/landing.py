"""Topics into a table, each record once, whatever is killed.

How each record comes once:

- Spark writes down in its checkpoint which offsets a micro-batch has before it runs it, and after a crash it runs the
  same batch again, under the same number. So a batch is a fixed set of rows, and its number its name.
- The rows of a batch whose ids have been landed by an earlier one are left out (:mod:`aiorecover.spark.landed_ids`; the
  state *before* the batch is asked, which stays until the next batch is done), and of rows of the batch with the same
  id the first by topic, partition and offset is kept. Rows without an id pass.
- What is left is added to the target in one step, under the number of the batch; a batch that is there already is not
  added again. A directory of Parquet files gets a directory ``batch_id=<batch>``, which is renamed
  (:mod:`aiorecover.spark.directory`); a table of Iceberg gets one append; a table of the session catalogue gets a
  partition (:mod:`aiorecover.spark.tables`).
- Rows whose ``aiorecover-id`` is no record id are no rows of the target: likewise, they are added to the quarantine.
- With ``sink_manifests``, of the records that Spark's sinks have written those pass that a manifest names, once it is
  there (:mod:`aiorecover.spark.undecided`).
- From the ids of the batch in the target and the state before it the state after it is made, likewise; then Spark's
  checkpoint says that the batch is done.

So a reader of the target sees whole batches, and each record once at any time, without knowing anything of this. The
checkpoint, and a target of Parquet, stand on directories that are renamed in one step, as HDFS and local file systems
do it; object stores without directories (S3) do not, and are refused (:mod:`aiorecover.spark.places`). So are local
directories that executors do not share with the driver (:mod:`aiorecover.spark.sharing`).

All rows of what is renamed are known to stand there (:mod:`aiorecover.spark.written`): executors that were not tried
may have disks of their own, and where nothing is locked somebody else may clear away what is being written.

A target belongs to one checkpoint, and says so: another one would also count from 0. The two are of one day, or a
number would have other offsets than those that were landed under it (:mod:`aiorecover.spark.progress`), and they and
the quarantine stand apart (:mod:`aiorecover.spark.places`). A checkpoint is locked while one works with it, where its
file system can (:mod:`aiorecover.spark.lock`), and keeps to its topics (:mod:`aiorecover.spark.subscription`). One that
was deleted and made anew is another topic, which its id tells (:mod:`aiorecover.spark.topic_ids`).
"""

from __future__ import annotations

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
from aiorecover.spark.claiming import claim
from aiorecover.spark.files import Files
from aiorecover.spark.handed_over import path_of
from aiorecover.spark.leftovers import COUNTS
from aiorecover.spark.lock import Lock
from aiorecover.spark.manifest_topic import check_manifest_topic, keep_manifest_topic
from aiorecover.spark.observed import counts_of
from aiorecover.spark.places import check_places, check_renaming
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.record_id import ID_COLUMNS, parse_record_id, undecodable
from aiorecover.spark.schemes import LOCAL, default_scheme
from aiorecover.spark.session import clear_errors
from aiorecover.spark.sharing import check_shared
from aiorecover.spark.staging import STAGING
from aiorecover.spark.subscription import check_subscription
from aiorecover.spark.targets import find_target
from aiorecover.spark.topic_ids import check_topic_ids
from aiorecover.spark.topics import checked_topic, source_options
from aiorecover.spark.undecided import Undecided, Waiting, waiting_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import PurePath

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorecover.spark.directory import Directory
    from aiorecover.spark.targets import Target

__all__ = ["DEFAULT_MAX_OFFSETS_PER_TRIGGER", "Landed", "checked_options", "held_in", "land"]

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""So many records make up a batch at most: what a killed driver does again, and what is sorted at a time."""

_CHUNK_BITS = 10  # so many sequences (1,024) stay together: a busy producer is spread over all cores
_REPORT_FAILED = 'because the return value of "scala.Option.get()" is null'
_PLACE = "_aiorecover_place"
_CHUNK = "_aiorecover_chunk"
_APPEARANCE = "_aiorecover_appearance"
_LANDED = "_aiorecover_landed"

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Landed:
    """What became of a batch."""

    batch_id: int
    landed: int
    """Rows that the target got, those without an id included."""
    without_id: int
    """Of these, rows without a record id: nothing tells whether they are repeats, so all are there."""
    undecodable: int
    """Rows in the quarantine: their ``aiorecover-id`` is no record id."""
    repeats: int | None
    """Rows left out, because the record was landed already. None where nobody could count them: the process that wrote
    the batch died, Spark did not tell what it had counted, or tasks that were done again, because an executor died,
    were counted again."""
    held: int = 0
    """With ``sink_manifests``: rows, of this batch and those before it, that wait for their manifest, and are not in
    the target. What waits for good is for `give_up_writes`."""


def land(
    spark: SparkSession,
    topics: Sequence[str],
    target: str | PurePath,
    checkpoint: str | PurePath,
    *,
    bootstrap_servers: str,
    available_now: bool = False,
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER,
    files_per_batch: int | None = None,
    quarantine: str | PurePath | None = None,
    sink_manifests: str | None = None,
    options: Mapping[str, str] | None = None,
    on_batch: Callable[[Landed], object] | None = None,
) -> StreamingQuery:
    """Start to land the topics in ``target``: Kafka's columns, the ids as columns, and ``batch_id``.

    ``topics``: those that were landed with the ``checkpoint`` before, in any order, and perhaps others, which are
    landed from their first records on (:mod:`aiorecover.spark.subscription` tells what is refused, and how to leave
    one out).

    With ``available_now`` the query ends when everything is landed that stands in Kafka now; otherwise it goes on.
    ``query.awaitTermination()`` waits for it, and raises what went wrong. Started again with the same ``target`` and
    ``checkpoint`` it goes on where it was, also after a kill.

    ``target``: with a ``/`` in it, or as a `Path`, a directory, else the name of a table, which is made if it is not
    there: of Parquet in the session catalogue, in other catalogues of Iceberg. One that was made before, for the sake
    of its partitions for example, must be empty, and have the columns. ``checkpoint``: a directory (see the module
    about its file system); the two are only ever used together, put back from backups of one day, and by one landing at
    a time. ``quarantine``: the directory, of its own, for records whose ``aiorecover-id`` is no record id; default,
    ``quarantine`` in the checkpoint.

    ``sink_manifests``: the manifest topic of ``df.write.format("aiorecover")`` jobs that write to these topics: what
    their failed attempts have left is not landed, and the rest once its manifest is there. The query reads that topic,
    too; a checkpoint keeps to it.

    What is remembered stands in the checkpoint: of ids as much as the front takes at which records come in, where all
    topics of a producer are landed, and up to an eighth of a byte for each of its records where others have the rest;
    with ``sink_manifests`` what is under way, and for good the writes with dead letters or with rows for topics that
    are not landed.

    ``max_offsets_per_trigger``: so many records are read for a batch, at most; those of a sink's write that were held
    come on top, all in the batch in which its manifest comes. ``files_per_batch``: by so many tasks a batch is sorted
    and written; default, as many as Spark has cores now, which with dynamic allocation is often two for all that
    follows. ``options`` are those of Spark's Kafka source and win over the defaults: from the earliest offset on,
    committed records only. ``on_batch`` is called on the driver after each batch; the log ``aiorecover.spark`` tells
    it, too. Not over Spark Connect: directories are renamed through the driver's JVM.

    Raises:
        RecordsGoneError: a topic was deleted and made anew since it was landed last, or Kafka has deleted records of
            a batch that was left unfinished. (Of later batches the query says it: `StreamingQueryException`.)
        ConfigError: no topic or server is named, a number is out of range, the target is none that can be landed in,
            target and checkpoint do not belong together or are not of one day, one of them or the quarantine is in
            another one's way, in an object store, on a local disk that executors do not share with the driver, not to
            be reached, or may not be written, another landing works with the checkpoint, these are not the topics of
            the checkpoint, one is not there, Kafka cannot be reached, or Spark lacks its connector.
        StreamingQueryException: a batch that was left unfinished is done first, before this returns, and failed again.

    """
    if max_offsets_per_trigger < 1 or (files_per_batch is not None and files_per_batch < 1):
        raise ConfigError(f"at least 1: {max_offsets_per_trigger=} {files_per_batch=}")
    target, checkpoint = path_of("target", target), path_of("checkpoint", checkpoint)
    quarantine = None if quarantine is None else path_of("quarantine", quarantine)
    told = checked_options(topics, target, checkpoint, quarantine, bootstrap_servers, sink_manifests, options)
    _check_names(target, checkpoint, quarantine, default_scheme(spark))
    checkpoint = checkpoint.rstrip("/")
    apart_in = f"{checkpoint}/quarantine" if quarantine is None else quarantine
    with clear_errors(target=target):
        there = find_target(spark, target)
        check_places(spark, there, apart_in, checkpoint)
    check_shared(spark, {"target": there.where(), "quarantine": apart_in, "checkpoint": checkpoint})
    lock = Lock(spark, checkpoint)
    try:
        apart = claim(spark, there, checkpoint, apart_in, is_locked=lock.is_held)
        sinks = _sinks(spark, checkpoint, sink_manifests, is_locked=lock.is_held)
        files_per_batch = files_per_batch or spark.sparkContext.defaultParallelism
        log = QueryLog(spark, f"{checkpoint}/query")
        landing = _Landing(spark, there, apart, log, f"{checkpoint}/ids", sinks, files_per_batch, on_batch)
        stream = spark.readStream.format("kafka").options(**told)
        stream = stream.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        with clear_errors():
            records = stream.load()
        check_subscription(spark, told, checkpoint, landing.is_touched)
        check_topic_ids(spark, checkpoint, told)
        if sink_manifests is not None:
            keep_manifest_topic(spark, _sinks_in(checkpoint), sink_manifests)
        writer = parse_record_id(records).writeStream.foreachBatch(landing.land_batch)
        writer = writer.option("checkpointLocation", f"{checkpoint}/query").queryName(f"aiorecover land {target}")
        if log.unfinished() is not None:
            _finish(writer.trigger(once=True).start())
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
        lock.release_after(query)
    except BaseException:
        lock.release()
        raise
    return query


def checked_options(
    topics: Sequence[str],
    target: str,
    checkpoint: str,
    quarantine: str | None,
    bootstrap_servers: str,
    sink_manifests: str | None,
    options: Mapping[str, str] | None,
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
    _check_names(target, checkpoint, quarantine)
    told = source_options(topics, bootstrap_servers, options)
    if sink_manifests is None:
        return told
    if checked_topic("sink_manifests must be a topic's name", sink_manifests) in topics:
        raise ConfigError(f"manifests are no records to land: leave the topic out of topics {sink_manifests=}")
    return {**told, "subscribe": f"{told['subscribe']},{sink_manifests}"}


def _check_names(target: str, checkpoint: str, quarantine: str | None, default: str = LOCAL) -> None:
    """Whether one is known by its name to stand where it cannot be; a table is not."""
    directory = target if "/" in target else None
    check_renaming({"target": directory, "quarantine": quarantine, "checkpoint": checkpoint}, default)


def held_in(spark: SparkSession, checkpoint: str) -> Waiting:
    """What waits for its manifest in a checkpoint, after the last batch that was landed with it."""
    return waiting_in(spark, _sinks_in(checkpoint.rstrip("/")))


def _sinks_in(checkpoint: str) -> str:
    return f"{checkpoint}/sinks"


def _sinks(spark: SparkSession, checkpoint: str, topic: str | None, *, is_locked: bool) -> Undecided | None:
    directory = _sinks_in(checkpoint)
    if topic is None:
        if Files(spark, directory).exists(directory):
            raise ConfigError(
                f"records may wait for their manifest in this checkpoint: name sink_manifests as before {checkpoint=}"
            )
        return None
    check_manifest_topic(spark, directory, topic)
    sinks = Undecided(spark, directory, topic)
    sinks.clear(is_locked=is_locked)
    return sinks


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
    """What is done with each batch."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        quarantine: Directory,
        log: QueryLog,
        ids: str,
        sinks: Undecided | None,
        files_per_batch: int,
        on_batch: Callable[[Landed], object] | None,
    ) -> None:
        self._spark = spark
        self._target = target
        self._quarantine = quarantine
        self._log = log
        self._ids = ids
        self._sinks = sinks
        self._files_per_batch = files_per_batch
        self._on_batch = on_batch

    def is_touched(self, batch_id: int) -> bool:
        """Whether anything of a batch was landed or stored."""
        if self._target.holds(batch_id) or self._quarantine.holds(batch_id):
            return True
        state = f"{self._ids}/after={batch_id}"
        held = self._sinks is not None and self._sinks.is_touched(batch_id)
        return held or Files(self._spark, self._ids).exists(state)

    def land_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Land it, unless that was done before the driver died; then the quarantine, then the state."""
        if self._sinks is None:
            self._land(batch, batch_id)
            return
        rows = self._sinks.judge(batch, batch_id, self._before(batch.sparkSession, batch_id))
        self._sinks.hold(rows, batch_id)
        self._land(rows.where(F.col("verdict") == COUNTS).drop("verdict"), batch_id)
        self._sinks.forget(self._spark, batch_id)

    def _land(self, batch: DataFrame, batch_id: int) -> None:
        counts = None if self._target.holds(batch_id) else self._add(batch, batch_id)
        # Who died before it could count looks again, as does who was not told.
        if (counts is None or counts["undecodable"]) and not self._quarantine.holds(batch_id):
            apart = batch.where(undecodable()).drop(*ID_COLUMNS)
            self._quarantine.add(apart, batch_id, self._log.fingerprint(batch_id))
        landed = self._target.ids(batch_id)
        states, state = Files(self._spark, self._ids), f"{self._ids}/after={batch_id}"
        if not states.exists(state):
            aside = f"{self._ids}/{STAGING}/{batch_id}-{uuid.uuid4().hex}"
            before = self._before(self._spark, batch_id)
            if self._sinks is not None:
                before = before.without(self._sinks.over(self._spark, batch_id))
            before.with_landed(landed).write(aside)
            states.move(aside, state)
        self._forget(states, batch_id)
        self._tell(landed, batch_id, counts)

    def _add(self, batch: DataFrame, batch_id: int) -> dict[str, int] | None:
        """Add to the target what has not been landed before; how many rows were undecodable, records, and new ones.

        None: that is not known, because Spark does not tell what it has counted.

        Of the undecodable ones that is no exact number where an executor dies: what it had read is read, and counted,
        again.
        """
        read, seen = Observation(), Observation()
        records = batch.observe(read, F.count_if(undecodable()).alias("undecodable")).where(~undecodable())
        marked = self._before(batch.sparkSession, batch_id).marked(records, _LANDED)
        self._target.add(_once(marked, self._files_per_batch, seen), batch_id, self._log.fingerprint(batch_id))
        found = counts_of(seen)
        if found is None:
            return None
        # Of no records at all Spark forgets what it has counted before it knew that.
        before = counts_of(read) if found["records"] else {"undecodable": batch.where(undecodable()).count()}
        return None if before is None else {**before, **found}

    def _before(self, spark: SparkSession, batch_id: int) -> landed_ids.LandedIds:
        if batch_id == 0:
            return landed_ids.empty(spark)
        return landed_ids.read(spark, f"{self._ids}/after={batch_id - 1}")

    def _forget(self, states: Files, batch_id: int) -> None:
        """States that no batch will ask for again: the one before this batch must stay until the next one is done.

        A later one is that of another landing, which got ahead where nothing is locked: without it none could go on.
        """
        for number in states.numbers(self._ids, "after="):
            if number < batch_id - 1:
                states.delete(f"{self._ids}/after={number}")

    def _tell(self, landed: DataFrame, batch_id: int, counts: dict[str, int] | None) -> None:
        count, identified = landed.agg(F.count(F.lit(1)), F.count("sequence")).collect()[0]
        apart = self._quarantine.ids(batch_id).count() if self._quarantine.holds(batch_id) else 0
        held = 0 if self._sinks is None else self._sinks.held(self._spark, batch_id)
        told = Landed(batch_id, count, count - identified, apart, _repeats(counts, count), held)
        _log.info(
            "batch landed batch_id=%d landed=%d without_id=%d undecodable=%d repeats=%s held=%d",
            *(told.batch_id, told.landed, told.without_id, told.undecodable, told.repeats, told.held),
        )
        if told.undecodable:
            _log.warning(
                "a header aiorecover-id holds no record id: look who else writes it; the records are in the quarantine "
                "undecodable=%d path=%s",
                *(told.undecodable, self._quarantine.place(batch_id)),
            )
        if self._on_batch is not None:
            self._on_batch(told)


def _repeats(counts: Mapping[str, int] | None, landed: int) -> int | None:
    """How many records were left out; None where that was not counted, or for some tasks twice."""
    return None if counts is None or counts["new"] != landed else counts["records"] - landed


def _once(records: DataFrame, partitions: int, seen: Observation) -> DataFrame:
    """Of the rows with the same id, unless it is landed, the first by topic, partition and offset; all without an id.

    Always the same one: a batch that is done again must come out the same, or readers of the first attempt's files
    would have seen another row.

    ``seen``: how many rows there are, and how many of them are new. It stands behind the shuffle, as only what the last
    tasks of a job count is counted once: what was shuffled is lost with an executor, and is made again. (A table of
    Iceberg with partitions shuffles once more.)
    """
    place = F.when(F.col("sequence").isNull(), F.struct("topic", "partition", "offset"))
    near = F.xxhash64("topic", "partition", F.shiftright("offset", _CHUNK_BITS))
    chunk = F.coalesce(F.shiftright("sequence", _CHUNK_BITS), near)
    spread = records.withColumns({_PLACE: place, _CHUNK: chunk})
    spread = spread.repartition(partitions, "producer_id", "epoch", _CHUNK)
    same = Window.partitionBy("producer_id", "epoch", _CHUNK, "sequence", _PLACE)
    first = F.row_number().over(same.orderBy("topic", "partition", "offset"))
    is_new = (F.col(_APPEARANCE) == 1) & ~F.col(_LANDED)
    counts = F.count(F.lit(1)).alias("records"), F.count_if(is_new).alias("new")
    counted = spread.withColumn(_APPEARANCE, first).observe(seen, *counts)
    return counted.where(is_new).drop(_PLACE, _CHUNK, _APPEARANCE, _LANDED)
