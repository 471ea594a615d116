"""Find what is missing, repeated, in conflict or out of order among records, from their ids alone.

A producer numbers the records of an epoch 1, 2, 3, without gaps, over all its topics. So the ids that are there name
those that are missing. Nothing that grows with the data is collected:

1. A record is *ahead* if its epoch and sequence are above those of every earlier record of its producer id in its Kafka
   partition. That takes one sort by offset, a third of what an audit costs; ``order=False`` leaves it out. (The order
   of rows in files proves nothing: Spark reads files by size.)
2. The records of a producer, epoch and bucket of 32,768 sequences become one bitmap, and those that were ahead another
   one. So 4 KiB travel for a bucket (compressed, so mostly less), and not the records.
3. Missing is what is clear between the first and the last bit of a bucket, and what lies between two buckets, before
   the first sequence found, and after the last one found if a last one is known.
4. Out of order is what is set in the first bitmap and not in the one of those that were ahead.
5. Bitmaps only count what is repeated: a bucket has more records than bits. The ids of such buckets are read again to
   name them, and to compare their contents.

The bitmaps are not kept; a row for each bucket is (see `Audit`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, SEQUENCE_MAX
from aiorecover.spark.bitmaps import BUCKET_COLUMNS, clear_bits, joined, ranges_in, runs, set_in_one
from aiorecover.spark.frames import TEXT, WHOLE, Persisted, check_columns
from aiorecover.spark.manifests import BEHIND, Manifests, judge, of_table, unknown
from aiorecover.spark.record_id import EPOCH_COLUMNS, ID_COLUMNS, with_id_columns
from aiorecover.spark.stores import read_target

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Audit", "audit"]

_PLACE = {"topic": TEXT, "partition": WHOLE, "offset": WHOLE}
_LAST = {"producer_id": TEXT, "epoch": WHOLE, "last": WHOLE}
_CONTENT = ("topic", "key", "value", "headers")
_AFTER_ALL = (1 << 63) - 1  # the bucket of a last sequence that is known: after every real one
_KNOWN_ROWS = "array<struct<producer_id: string, epoch: int, last: bigint>>"
_TOLD = "producer_id string, epoch int, last bigint, settled bigint, sealed_at bigint"


@dataclass(frozen=True)
class Audit(Persisted):
    """The result of an audit, as data frames; nothing runs until one of them is used.

    The first use of any of them reads the records, and each use of `repeated` or `conflicts` reads them once more.
    About a hundred bytes (more with many holes or much disorder) are persisted for each 32,768 records until `close`,
    or the end of ``with``.
    """

    producers: DataFrame
    """One row for each ``producer_id`` and ``epoch``. ``first`` and ``last``: the lowest and the highest sequence
    found, null where there is none. ``expected``: how many there should be. ``found``: how many different ones there
    are. ``missing``: ``expected`` less ``found``. ``repeated``: appearances after the first. ``out_of_order``: records
    that at each of their places come after one of the same producer id with a later epoch or sequence; null where the
    places are not known, or without ``order``. So what two copies of a directory publish into one partition by turns is
    out of order."""
    missing: DataFrame
    """One row for each longest range of missing sequences: ``producer_id``, ``epoch``, ``first``, ``last``,
    ``count``."""
    repeated: DataFrame
    """Likewise of ids that were found more than once, with ``repeated``: their appearances after the first. The records
    are read again for it, so a topic that goes on may have more of them by then."""
    conflicts: DataFrame
    """Likewise of ids whose records differ in topic, key, value or headers: a program copied an id to another record.
    The records are read again."""
    out_of_order: DataFrame
    """Likewise of ids that are out of order; empty where the places are not known, or without ``order``."""
    totals: DataFrame
    """One row: ``records`` (rows read), ``without_id``, ``epochs``, and the sums of `producers`: ``expected``,
    ``found``, ``missing``, ``repeated``, ``out_of_order``. With ``manifests`` also what is not known, whether anything
    is missing or not: ``open_epochs`` (see `Manifests`: what they accepted after their newest manifest is not known),
    ``open_oldest`` and ``open_told_ms`` (``producer id/epoch`` of the open one whose newest manifest is the oldest, and
    when that was made; null: none is open), ``untold_epochs`` (epochs that were found and have no manifest)."""
    _buckets: DataFrame
    verdicts: DataFrame | None = None
    """With ``manifests`` or ``held``: `missing`, cut where the verdict changes, with ``verdict`` and ``why`` (`judge`),
    and ``tail``: whether it comes after all that was found of its epoch. For a table given by name or path,
    ``not_in_table`` is what Kafka has acknowledged: it may still have to be landed. For a data frame that is ``lost``,
    with ``settled`` as its ``why``, as for topics."""


def audit(
    df: DataFrame | str,
    *,
    known_last: Mapping[tuple[str, int], int] | DataFrame | None = None,
    manifests: Manifests | None = None,
    from_first: bool = False,
    order: bool = True,
    held: DataFrame | None = None,
) -> Audit:
    """Find what is missing, repeated, in conflict or out of order.

    ``df`` has the columns of Spark's Kafka source (with ``includeHeaders``), or of a table that has the ids as columns
    (`parse_record_id`, or a landed table); or it is the name of a landed table, or its path with a ``/`` in it, read by
    the active session. It must hold all topics that its producers publish to: a record in another topic counts as
    missing. So does a dead letter; ``manifests`` give ``verdicts``, which tell it from what is lost.

    ``known_last`` maps (producer id, epoch) to the last sequence that was published, so that a missing tail is found,
    and an epoch of which nothing arrived; as a data frame: ``producer_id``, ``epoch``, ``last``. Without it an epoch
    ends with the last sequence found. ``manifests`` (`read_manifests`) know the last sequence of their epochs.
    ``from_first`` begins each epoch with the first sequence found instead of with 1: for topics whose oldest records
    Kafka has deleted. ``held``: ranges of ids that an open transaction holds up (`held_ids`), for ``verdicts``.

    With ``order=False`` records are not sorted by offset, so ``out_of_order`` is null; the rest is the same, in two
    thirds of the time (`benchmarks/README.md`).

    Raises:
        ConfigError: columns are absent or of another type, a number of ``known_last`` cannot be, or the table is not
            there, or a name was given and no session is active.

    """
    if isinstance(known_last, Mapping):
        _check_numbers(known_last)
    by_name = isinstance(df, str)
    records = with_id_columns(_records(df))
    known = _known_last(records.sparkSession, known_last)
    if manifests is not None:
        both = known.unionByName(manifests.epochs.select(*_LAST))
        known = both.groupBy(*EPOCH_COLUMNS).agg(F.max("last").alias("last"))
    buckets = _buckets(records, order=order).persist()
    producers = _producers(buckets, known, from_first=from_first)
    missing = _missing(buckets, known, from_first=from_first)
    totals, verdicts = _totals(buckets, producers, order=order), None
    if manifests is not None:
        totals = totals.crossJoin(unknown(producers, manifests.epochs))
    if manifests is not None or held is not None:
        verdicts = _verdicts(missing, producers, manifests, held)
        verdicts = of_table(verdicts) if by_name else verdicts
    return Audit(
        producers=producers,
        missing=missing,
        repeated=_repeated(records, buckets),
        conflicts=_conflicts(records, buckets),
        out_of_order=joined(ranges_in(buckets.where("behind is not null"), runs("behind"))),
        totals=totals,
        _buckets=buckets,
        verdicts=verdicts,
    )


def _records(df: DataFrame | str) -> DataFrame:
    if isinstance(df, str):
        spark = SparkSession.getActiveSession()
        if spark is None:
            raise ConfigError(f"a Spark session reads a table: make one before, or pass a data frame table={df}")
        df = read_target(spark, df)
    check_columns("the records", df, _PLACE)
    return df


def _check_numbers(known_last: Mapping[tuple[str, int], int]) -> None:
    for (producer_id, epoch), last in known_last.items():
        if not (0 < epoch <= EPOCH_MAX and 0 <= last <= SEQUENCE_MAX):
            raise ConfigError(
                "known_last has an epoch or a sequence that no record has: take them from a receipt, or pass what "
                f"last_ids returns {producer_id=} {epoch=} {last=}"
            )


def _known_last(spark: SparkSession, known: Mapping[tuple[str, int], int] | DataFrame | None) -> DataFrame:
    """``producer_id``, ``epoch`` and ``last``, once for each epoch; rows with a null in them are left out."""
    if not isinstance(known, DataFrame):
        rows = [{"producer_id": key[0], "epoch": key[1], "last": last} for key, last in (known or {}).items()]
        # Rows of Python would need Python on the executors.
        known = spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), _KNOWN_ROWS)))
    check_columns("known_last", known, _LAST, needed=_LAST)
    return known.select(*_LAST).dropna().groupBy(*EPOCH_COLUMNS).agg(F.max("last").alias("last"))


def _buckets(records: DataFrame, *, order: bool) -> DataFrame:
    """A row for each producer, epoch and bucket: counts, first and last sequence, and the clear bits between them.

    The records without an id are a row of their own, all null but for the count. Without ``order``, or places, the
    columns about the order are null.
    """
    ordered = order and set(_PLACE) <= set(records.columns)
    narrow = records.select(*ID_COLUMNS, *([_ahead().alias("ahead")] if ordered else []))
    bit = F.bitmap_bit_position("sequence")
    counted = narrow.groupBy(*EPOCH_COLUMNS, F.bitmap_bucket_number("sequence").alias("bucket")).agg(
        F.count(F.lit(1)).alias("records"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.bitmap_construct_agg(bit).alias("bits"),
        *([F.bitmap_construct_agg(F.when(F.col("ahead"), bit)).alias("orderly")] if ordered else []),
    )
    disorder = F.bitmap_count("bits") - F.bitmap_count("orderly") if ordered else F.lit(None).cast("bigint")
    behind = set_in_one("bits", "orderly") if ordered else F.lit(None).cast("array<int>")
    measured = counted.withColumns(
        {
            "found": F.bitmap_count("bits"),
            "out_of_order": disorder,
            "low": F.bitmap_bit_position("first").cast("int"),
            "high": F.bitmap_bit_position("last").cast("int"),
        }
    )
    has_holes = F.col("found") < F.col("last") - F.col("first") + 1
    return measured.select(
        *BUCKET_COLUMNS,
        *("records", "first", "last", "found", "out_of_order"),
        F.when(has_holes, clear_bits("bits", "low", "high")).alias("clear"),
        F.when(F.col("out_of_order") > 0, behind).alias("behind"),
    )


def _ahead() -> Column:
    """Whether a record is above all earlier records of its producer id in its Kafka partition."""
    position = F.struct("epoch", "sequence")
    before = Window.partitionBy("topic", "partition", "producer_id").orderBy("offset")
    highest = F.max(position).over(before.rowsBetween(Window.unboundedPreceding, -1))
    return F.coalesce(position > highest, F.lit(True))  # noqa: FBT003 - a literal


def _missing(buckets: DataFrame, known: DataFrame, *, from_first: bool) -> DataFrame:
    """The ranges inside buckets, before an epoch's first bucket, between two of its buckets, and after its last one."""
    inside = ranges_in(buckets.where("clear is not null"), runs("clear"))
    edges = buckets.where("bucket is not null").select(*BUCKET_COLUMNS, "first", "last")
    after = (F.col("last") + 1).alias("first")
    ends = known.select(*EPOCH_COLUMNS, F.lit(_AFTER_ALL).alias("bucket"), after, "last")
    before = F.lag("last").over(Window.partitionBy(*EPOCH_COLUMNS).orderBy("bucket"))
    # An epoch of which nothing was found has no first record: all of it is missing.
    before = F.coalesce(before, F.when(F.col("bucket") == _AFTER_ALL, 0) if from_first else F.lit(0))
    between = edges.unionByName(ends).withColumn("before", before)
    between = between.select(*EPOCH_COLUMNS, (F.col("before") + 1).alias("first"), (F.col("first") - 1).alias("last"))
    ranges = inside.unionByName(between.where("first <= last"))
    return ranges.select(*EPOCH_COLUMNS, "first", "last", (F.col("last") - F.col("first") + 1).alias("count"))


def _producers(buckets: DataFrame, known: DataFrame, *, from_first: bool) -> DataFrame:
    epochs = buckets.where("bucket is not null").groupBy(*EPOCH_COLUMNS)
    found = epochs.agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("found").alias("found"),
        (F.sum("records") - F.sum("found")).alias("repeated"),
        F.sum("out_of_order").alias("out_of_order"),
    )
    both = found.join(known.withColumnRenamed("last", "known_last"), EPOCH_COLUMNS, "full_outer")
    start = F.coalesce("first", F.lit(1)) if from_first else F.lit(1)
    expected = F.greatest("last", "known_last") - start + 1  # greatest ignores nulls
    return both.select(
        *EPOCH_COLUMNS,
        "first",
        "last",
        expected.alias("expected"),
        F.coalesce("found", F.lit(0)).alias("found"),
        (expected - F.coalesce("found", F.lit(0))).alias("missing"),
        F.coalesce("repeated", F.lit(0)).alias("repeated"),
        F.when(F.col("found").isNull(), 0).otherwise(F.col("out_of_order")).alias("out_of_order"),
    )


def _totals(buckets: DataFrame, producers: DataFrame, *, order: bool) -> DataFrame:
    rows = buckets.agg(
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
        F.coalesce(F.sum(F.when(F.col("bucket").isNull(), F.col("records"))), F.lit(0)).alias("without_id"),
    )
    # Without any epoch nothing is out of order; where one epoch's number is not known, the sum is not.
    is_known = F.lit(order) & (F.count(F.lit(1)) == F.count("out_of_order"))
    sums = producers.agg(
        F.count(F.lit(1)).alias("epochs"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("expected", "found", "missing", "repeated")),
        F.when(is_known, F.coalesce(F.sum("out_of_order"), F.lit(0))).alias("out_of_order"),
    )
    return rows.crossJoin(sums)


def _verdicts(
    missing: DataFrame, producers: DataFrame, manifests: Manifests | None, held: DataFrame | None
) -> DataFrame:
    epochs = missing.sparkSession.createDataFrame([], _TOLD) if manifests is None else manifests.epochs
    ranges = [] if manifests is None else [manifests.ranges]
    if held is not None:
        ranges.append(held.select(*EPOCH_COLUMNS, F.lit(BEHIND).alias("kind"), "first", "last"))
    verdicts = judge(missing, epochs, reduce(DataFrame.unionByName, ranges))
    ends = producers.select(*EPOCH_COLUMNS, F.coalesce("last", F.lit(0)).alias("found_last"))
    tail = F.col("first") > F.col("found_last")
    return verdicts.join(ends, EPOCH_COLUMNS).withColumn("tail", tail).drop("found_last")


def _repeated(records: DataFrame, buckets: DataFrame) -> DataFrame:
    """The ranges of ids that were found more than once, with ``repeated``."""
    times = _in_full_buckets(records, buckets).groupBy(*EPOCH_COLUMNS, F.col("sequence").alias("first")).count()
    again = times.where("count > 1").selectExpr(*EPOCH_COLUMNS, "first", "first as last", "count - 1 as repeated")
    return joined(again, total="repeated")


def _conflicts(records: DataFrame, buckets: DataFrame) -> DataFrame:
    """The ranges of ids whose records differ; columns that are not there are not compared."""
    there = [name for name in _CONTENT if name in records.columns]
    nulls = (F.col(name).isNull() for name in there)  # a null by itself would not change the hash
    content = F.xxhash64(*there, *nulls) if there else F.lit(0)
    ids = _in_full_buckets(records, buckets, content.alias("content"))
    contents = ids.groupBy(*EPOCH_COLUMNS, F.col("sequence").alias("first")).agg(F.count_distinct("content").alias("n"))
    return joined(contents.where("n > 1").selectExpr(*EPOCH_COLUMNS, "first", "first as last"))


def _in_full_buckets(records: DataFrame, buckets: DataFrame, *more: Column) -> DataFrame:
    """The ids of the buckets that have more records than ids."""
    full = buckets.where("bucket is not null and records > found").select(*BUCKET_COLUMNS)
    ids = records.select(*ID_COLUMNS, F.bitmap_bucket_number("sequence").alias("bucket"), *more)
    return ids.join(full, BUCKET_COLUMNS, "left_semi")
