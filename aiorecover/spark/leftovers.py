"""Which records of sinks count: what the manifests say, applied to records by native expressions.

:mod:`aiorecover.spark.sink` tells what a write, an attempt and a leftover are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import UNREAD_TOPICS
from aiorecover.spark.handed_over import HEADERS, WHOLE, check_columns, check_frame
from aiorecover.spark.record_id import ID_COLUMNS, with_record_id
from aiorecover.spark.sink_manifest import KIND, PARTITION, WRITE_HEADER, WRITE_NAME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "COUNTS",
    "LEFTOVER",
    "PARTS_SCHEMA",
    "UNDECIDED",
    "audited_whole",
    "batch_of",
    "counted_attempts",
    "job_of",
    "judged",
    "needed",
    "parse_manifests",
    "told_by_sinks",
    "undecided_writes",
    "winners",
    "with_verdict",
    "without_leftovers",
    "write_of",
]

COUNTS, LEFTOVER, UNDECIDED = "counts", "leftover", "undecided"

_ATTEMPT = (
    "struct<partition: int, attempt: int, producer_id: string, epoch: int, first: bigint, last: bigint, rows: bigint, "
    "dead_letters: array<array<bigint>>, refused: bigint, topics: array<string>, kept: string>"
)
_MANIFEST = (
    "kind string, write string, run string, part int, parts int, job_id string, batch_id bigint, "
    f"attempts array<{_ATTEMPT}>"
)
PARTS_SCHEMA = (
    "offset bigint, write string, run string, part int, parts int, job_id string, batch_id bigint, "
    f"attempts array<{_ATTEMPT}>"
)
"""Of what `parse_manifests` gives."""
_NEEDED = ("value", "partition", "offset")
_EPOCH = ["producer_id", "epoch"]
_WRITE = "_aiorecover_write"
_NAMED = "_aiorecover_named"
_DECIDED = "_aiorecover_decided"
_KEY = "_aiorecover_key"
_JOB = "_aiorecover_job"
_OVER = "_aiorecover_over"
_SPREAD = 4096  # pieces that the records of no sink are in, where they are shuffled: more than a cluster has cores


def parse_manifests(manifests: DataFrame) -> DataFrame:
    """The parts of manifests: of records of the manifest topic, in the columns of Spark's Kafka source.

    Streams are welcome. Other records in the topic are passed over.
    """
    check_frame("manifests", manifests, "read the topic with read_topics(...)")
    absent = sorted(set(_NEEDED) - set(manifests.columns))
    if absent:
        raise ConfigError(f"manifests are read with read_topics: these columns are missing {absent=}")
    check_columns("the manifests", manifests, {"partition": WHOLE, "offset": WHOLE})
    parsed = manifests.where(F.col("partition") == PARTITION).select(
        "offset", F.from_json(F.col("value").cast("string"), _MANIFEST).alias("told")
    )
    told = parsed.where((F.col("told.kind") == KIND) & F.col("told.run").isNotNull())
    return told.select("offset", *(f"told.{name}" for name in _NAMES))


_NAMES = ("write", "run", "part", "parts", "job_id", "batch_id", "attempts")


def winners(parts: DataFrame) -> DataFrame:
    """One row for each write that is decided: ``write``, ``job_id``, ``batch_id``, and the ``attempts`` that count.

    ``parts`` as `parse_manifests` gives them, each perhaps several times.
    """
    whole = _whole_runs(parts).groupBy("write").agg(F.min_by("told", "offset").alias("told"))
    return whole.select("write", "told.*")


def _whole_runs(parts: DataFrame) -> DataFrame:
    once = parts.groupBy("write", "run", "part").agg(
        F.min("offset").alias("offset"),
        *(F.first(name).alias(name) for name in ("parts", "job_id", "batch_id", "attempts")),
    )
    runs = once.groupBy("write", "run").agg(
        F.count(F.lit(1)).alias("found"),
        F.first("parts").alias("parts"),
        F.max("offset").alias("offset"),  # of the part that made it whole
        F.struct(
            F.first("job_id").alias("job_id"),
            F.first("batch_id").alias("batch_id"),
            F.flatten(F.collect_list("attempts")).alias("attempts"),
        ).alias("told"),
    )
    return runs.where("found = parts")


def needed(parts: DataFrame) -> DataFrame:
    """The parts without those of manifests that came too late."""
    decided = _whole_runs(parts).groupBy("write").agg(F.min_by("run", "offset").alias("first"))
    return parts.join(decided, "write", "left").where("first is null or first = run").select(*parts.columns)


def counted_attempts(manifests: DataFrame) -> DataFrame:
    """What sinks have published, by their manifests: one row for each attempt that counts.

    ``manifests``: the records of the manifest topic, as `read_topics` gives them. Columns: ``write`` (as in the header
    ``aiorecover-write``), ``job_id``, ``batch_id``, ``partition`` (of the data frame), ``attempt``, ``producer_id``,
    ``epoch``, ``first``, ``last``, ``rows``, ``dead_letters`` (ranges of sequences that Kafka refused for good),
    ``refused`` (rows without a record), ``topics`` (where its records went; null: to very many) and ``kept`` (where
    dead letters and refused rows are, ``host:directory``).

    Raises:
        ConfigError: columns are absent.

    """
    return winners(parse_manifests(manifests)).select("write", "job_id", "batch_id", F.inline("attempts"))


def told_by_sinks(manifests: DataFrame) -> tuple[DataFrame, DataFrame]:
    """``epochs`` and ``ranges``, as in `Manifests`, of the attempts that count: all was delivered, or a dead letter.

    ``epochs`` has ``topics``, too, and ``delivered``: how many records these have.
    """
    attempts = counted_attempts(manifests).where("producer_id is not null and last >= first")
    last = F.col("last")
    letters_in = "aggregate(dead_letters, 0L, (count, pair) -> count + pair[1] - pair[0] + 1)"
    delivered = (last - F.coalesce(F.expr(letters_in), F.lit(0))).alias("delivered")
    epochs = attempts.select(*_EPOCH, last, last.alias("settled"), last.alias("sealed_at"), "topics", delivered)
    letters = attempts.select(*_EPOCH, F.lit("dead_lettered").alias("kind"), F.explode("dead_letters").alias("pair"))
    pair = F.col("pair")
    return epochs, letters.select(*_EPOCH, "kind", pair[0].alias("first"), pair[1].alias("last"))


def audited_whole(epochs: DataFrame, buckets: DataFrame) -> DataFrame:
    """``epochs`` of `told_by_sinks`; using them fails where records are missing because their topics were not read.

    ``buckets``: of an audit, with the ``verdict`` and the ``topics`` of each. An attempt that lacks some names a topic
    of which nothing was read: then these records are no loss, but another topic's. (Unless nothing of its topics was
    read, and yet some of it: then the topics have other names here, as copies have them.)
    """
    counting = buckets.where(F.col("bucket").isNotNull() & (F.col("verdict") == COUNTS))
    found = counting.groupBy(*_EPOCH).agg(F.sum("found").alias("_found"))
    read = buckets.select(F.explode("topics").alias("_topic")).agg(F.collect_set("_topic").alias("_read"))
    both = epochs.join(found, _EPOCH, "left").crossJoin(F.broadcast(read))
    count, unread = F.coalesce("_found", F.lit(0)), F.array_except("topics", "_read")
    same_names = F.arrays_overlap("topics", "_read") | (count == 0)
    is_wrong = (count < F.col("delivered")) & (F.size(unread) > 0) & same_names
    told = F.concat(F.lit(f"{UNREAD_TOPICS} topics="), F.array_join(unread, ","))
    last = F.when(is_wrong, F.raise_error(told).cast("bigint")).otherwise(F.col("last")).alias("last")
    return both.select(*_EPOCH, last, "settled", "sealed_at")


def judged(records: DataFrame, decided: DataFrame, jobs: DataFrame | None = None) -> DataFrame:
    """The rows with a column ``verdict``; ``records`` have headers and ids, ``decided`` is of `winners`.

    What is no sink's, and what has no id, counts. ``jobs`` (``job``, ``over``): what comes of a write of a job up to
    this one, and is not decided, is a leftover.

    There is a row for each write in ``decided``, for each of its attempts, and for each job in ``jobs``. Spark finds
    out how many these are; where they are many, a topic's years of writes, both sides are shuffled and no machine has
    them all. What a record costs does not depend on how many attempts its write has.
    """
    true = F.lit(True)  # noqa: FBT003 - a literal
    attempts = F.explode(F.array_distinct("attempts.producer_id")).alias("producer_id")
    named = decided.select(F.col("write").alias(_KEY), attempts, true.alias(_NAMED))
    joined = records.withColumn(_WRITE, write_of()).withColumn(_KEY, _key_of_join(records, F.col(_WRITE)))
    joined = joined.join(named, [_KEY, "producer_id"], "left")
    # Only who is not named has to know whether others are.
    asking = F.when(F.col(_NAMED).isNull(), F.col(_WRITE))
    joined = joined.withColumn(_KEY, _key_of_join(records, asking))
    joined = joined.join(decided.select(F.col("write").alias(_KEY), true.alias(_DECIDED)), _KEY, "left")
    over = F.lit(False)  # noqa: FBT003 - a literal
    if jobs is not None:
        known = jobs.select(F.col("job").alias(_JOB), F.col("over").alias(_OVER))
        joined = joined.join(known, job_of(_KEY) == F.col(_JOB), "left")
        over = batch_of(_WRITE) <= F.col(_OVER)
    verdict = (
        F.when(F.col(_WRITE).isNull() | F.col("producer_id").isNull() | F.col(_NAMED).isNotNull(), COUNTS)
        .when(F.col(_DECIDED) | over, LEFTOVER)
        .otherwise(UNDECIDED)
    )
    return joined.select(*records.columns, verdict.alias("verdict"))


def job_of(write: str) -> Column:
    """The job in the name of a write, which is the name of a column."""
    return F.substring_index(write, "/", 1)


def batch_of(write: str) -> Column:
    """The batch in the name of a write, likewise; null: it is no name of ours."""
    return F.substring_index(write, "/", -1).try_cast("bigint")


def undecided_writes(df: DataFrame, manifests: DataFrame) -> DataFrame:
    """The writes of sinks of which there are records, and no manifest yet: they go on, or will never have one.

    Both as in `without_leftovers`. One row for each ``write``, as in the header ``aiorecover-write``: ``records``, and
    where ``df`` has Kafka's column ``timestamp`` the ``last_timestamp`` of these. What never gets a manifest is for
    `give_up_writes`.

    Raises:
        ConfigError: columns are absent or of another type, or what was handed over is no data frame.

    """
    found = with_verdict(df, manifests).where(F.col("verdict") == UNDECIDED)
    last = [F.max("timestamp").alias("last_timestamp")] if "timestamp" in df.columns else []
    return found.groupBy(write_of().alias("write")).agg(F.count(F.lit(1)).alias("records"), *last)


def without_leftovers(df: DataFrame, manifests: DataFrame) -> DataFrame:
    """The records that count: without those of sinks' attempts that no manifest names, or not yet.

    ``df`` has Kafka's columns with ``headers``, and the ids as columns perhaps; ``manifests`` are the records of the
    manifest topic: both as `read_topics` gives them. What no sink has written stays.

    Raises:
        ConfigError: columns are absent or of another type, or what was handed over is no data frame.

    """
    return with_verdict(df, manifests).where(F.col("verdict") == COUNTS).select(*df.columns)


def with_verdict(df: DataFrame, manifests: DataFrame) -> DataFrame:
    """The records with the ids as columns, and ``verdict``, as in `judged`; all else as in `without_leftovers`."""
    check_frame("df", df)
    if "headers" not in df.columns:
        raise ConfigError(f"what is of a sink is told by the column headers: read it, too columns={df.columns}")
    check_columns("the records", df, {"headers": HEADERS})
    return judged(with_record_id(df), winners(parse_manifests(manifests)))


def write_of() -> Column:
    """The name of a record's write, by its headers; null: no sink has published it.

    What is no write's name is somebody else's header: no manifest would ever name it.
    """
    ours = F.filter("headers", lambda header: header["key"] == WRITE_HEADER)
    name = F.try_element_at(ours, F.lit(-1))["value"].cast("string")
    return F.when(name.rlike(rf"\A{WRITE_NAME}\z"), name)


def _key_of_join(records: DataFrame, write: Column) -> Column:
    """The write; where there is none, one of many names that no write has, or a single task would get all of these."""
    told = [name for name in (*ID_COLUMNS, "partition", "offset") if name in records.columns]
    nobody = F.concat(F.lit("\0"), F.pmod(F.xxhash64(*told), F.lit(_SPREAD)))
    return F.coalesce(write, nobody)
