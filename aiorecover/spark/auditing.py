"""What is missing, repeated or out of order among records, told by their ids alone.

A producer numbers the records of an epoch 1, 2, 3, without gaps, over all its topics. So the ids that are there name
those that are not. How it is found, with nothing collected that grows with the data:

1. Each record says whether it is *ahead*: its epoch and sequence are above those of every record of its directory (its
   producer id) that stands before it in its Kafka partition, whichever start published that. That takes one sort by
   offset, a third of what an audit costs; with ``order=False`` there is none, and nothing is told of the order.
   (The order of rows in files proves nothing: Spark reads files by their size.)
2. The records of a producer, epoch and bucket of 32,768 sequences become one bitmap, and those that were ahead another
   one. So few bytes travel: 4 KiB for a bucket, not the records.
3. What is not set between the first and the last bit of a bucket is missing, and so is what lies between two buckets,
   before the first sequence found, and behind the last one found if it is known what the last one should be.
4. What is set in the first bitmap and not in the one of those that were ahead is out of order.
5. What is repeated is only counted by that: a bucket has more records than bits. Its ids are read again for their names
   (:mod:`aiorecover.spark.repeats`).

The bitmaps are forgotten at once; what stays is a row for each bucket (see `Audit`). A bucket costs its 4 KiB once for
each Kafka partition that has a part of it, while it travels (compressed, so mostly less).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark.bitmaps import bit_of, bucket_of, clear_bits, joined, ranges_in, runs, set_in_one
from aiorecover.spark.handed_over import TEXT, WHOLE, check_columns, check_frame
from aiorecover.spark.known_last import COLUMNS, KnownLast, known_frame
from aiorecover.spark.manifests import BEHIND, Manifests, judge, of_table, unknown
from aiorecover.spark.persisted import Persisted
from aiorecover.spark.record_id import ID_COLUMNS, with_record_id
from aiorecover.spark.repeats import conflicts, repeats
from aiorecover.spark.stores import read_target

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Audit", "audit"]

_EPOCH = ["producer_id", "epoch"]
_PLACE = ["topic", "partition", "offset"]
_BEHIND_ALL = (1 << 63) - 1  # the bucket of what is known to be the last: behind every real one
_PLACE_TYPES = {"topic": TEXT, "partition": WHOLE, "offset": WHOLE}


@dataclass(frozen=True)
class Audit(Persisted):
    """What an audit found, as data frames; nothing runs until one of them is used.

    The records are read once, by the first use of any of them, and once more by each use of `repeated`. What they have
    in common is persisted, a row of about a hundred bytes (more with many holes or much disorder) for each 32,768
    records. `close` gives that back, and so does the end of ``with``.
    """

    producers: DataFrame
    """One row for each ``producer_id`` and ``epoch``. ``first`` and ``last``: the lowest and the highest sequence
    found, null where there is none. ``expected``: how many there should be. ``found``: how many different ones there
    are. ``missing``: ``expected`` less ``found``. ``repeated``: appearances beyond the first. ``out_of_order``: records
    that have, at each of their places, a record of a later epoch, or of theirs and behind them, of the same directory
    before them in the same Kafka partition; null where the places are not known, or nobody has asked (``order``). So
    what two copies of a directory publish into one partition by turns is out of order."""
    missing: DataFrame
    """One row for each range of missing sequences, as long as it goes: ``producer_id``, ``epoch``, ``first``,
    ``last``, ``count``."""
    repeated: DataFrame
    """The same of those that stand more than once, with ``repeated``: appearances beyond the first of each. The records
    are read again for it, so topics that go on may have more of them by then."""
    conflicts: DataFrame
    """The same of those that stand more than once, and not always with the same topic, key, value and headers, without
    ``repeated``: ids that somebody has copied to other records. Read again, too."""
    out_of_order: DataFrame
    """The same of those that are out of order; nothing where the places are not known, or nobody has asked."""
    totals: DataFrame
    """One row: ``records`` (rows read), ``without_id``, ``epochs``, and the sums of `producers`: ``expected``,
    ``found``, ``missing``, ``repeated``, ``out_of_order``. With ``manifests`` what nobody has told, whether anything is
    missing or not: ``open_epochs`` (how many are ``open``, see `Manifests`: what they have accepted since their last
    manifest is not known here), ``open_oldest`` and ``open_told_ms`` (``producer id/epoch`` of the one whose newest
    manifest is the oldest, and when that was made; null: none is open), ``untold_epochs`` (of `producers`, those found
    that no manifest tells of: what they have accepted after the last one found is not known)."""
    _buckets: DataFrame
    verdicts: DataFrame | None = None
    """With ``manifests`` or ``held``: `missing`, cut where the verdict changes, with ``verdict`` and ``why``
    (`judge`). ``tail``: whether it stands behind all that was found of its epoch. Of a table by its name or path,
    ``not_in_table`` is what Kafka has acknowledged: it may still have to be landed. Of a table's data frame that is
    ``lost``, as of topics, with ``settled`` as its ``why``."""


def audit(
    df: DataFrame | str,
    *,
    known_last: KnownLast | DataFrame | None = None,
    manifests: Manifests | None = None,
    from_first: bool = False,
    order: bool = True,
    held: DataFrame | None = None,
) -> Audit:
    """Find what is missing, repeated or out of order.

    ``df`` has the columns of Spark's Kafka source (with ``includeHeaders``), or of a table that has the ids as columns
    already (`parse_record_id`, or a landed table); or it is a landed table's name, or its path with a ``/`` in it, read
    by the session that is active. It must hold all topics that its producers publish to: a record in a
    topic that is left out is missing here. A dead letter is missing, too; with ``manifests`` there are ``verdicts``,
    which tell it from what is lost.

    ``known_last`` is the last sequence that was published, for each (producer id, epoch), so that a missing tail and an
    epoch of which nothing arrived are found as well; as a data frame: ``producer_id``, ``epoch``, ``last``. Without it
    an epoch ends with the last sequence found. ``manifests`` know that of each epoch that they tell of
    (`read_manifests`). ``from_first`` begins each epoch with the first sequence found instead
    of with 1: for topics whose oldest records Kafka has deleted by now.

    ``held``: ranges of ids that an open transaction holds up (`held_ids`); with these there are ``verdicts``, too.

    With ``order=False`` records are not sorted by their offsets, so ``out_of_order`` is null. All else is the same, in
    two thirds of the time (`benchmarks/README.md`).

    Raises:
        ConfigError: columns are absent or of another type, or the table is not there; a name was given, and no session
            is active; ``known_last`` is none.

    """
    by_name = isinstance(df, str)
    df = _records(df)
    known = known_frame(df.sparkSession, known_last)
    told = [] if manifests is None else [(manifests.epochs, manifests.ranges)]
    records = with_record_id(df)
    buckets = _buckets(records, order=order).persist()
    if told:
        both = reduce(DataFrame.unionByName, [known, *(epochs.select(*COLUMNS) for epochs, _ in told)])
        known = both.groupBy(*_EPOCH).agg(F.max("last").alias("last"))
    producers = _producers(buckets, known, from_first=from_first)
    missing = _missing(buckets, known, from_first=from_first)
    if held is not None:
        kind = F.lit(BEHIND).alias("kind")
        columns = "producer_id string, epoch int, last bigint, settled bigint, sealed_at bigint"
        nothing = df.sparkSession.createDataFrame([], columns)
        told.append((nothing, held.select(*_EPOCH, kind, "first", "last")))
    verdicts = _verdicts(missing, told, producers) if told else None
    totals = _totals(buckets, producers, order=order)
    if manifests is not None:
        totals = totals.crossJoin(unknown(producers, manifests.epochs, [epochs for epochs, _ in told]))
    return Audit(
        producers=producers,
        missing=missing,
        repeated=repeats(records, buckets),
        conflicts=conflicts(records, buckets),
        out_of_order=_out_of_order(buckets),
        totals=totals,
        _buckets=buckets,
        verdicts=of_table(verdicts) if verdicts is not None and by_name else verdicts,
    )


def _records(named: object) -> DataFrame:
    if isinstance(named, str):
        spark = SparkSession.getActiveSession()
        if spark is None:
            raise ConfigError(
                f"a table is read by a Spark session: make one before, or hand over a data frame {named=}"
            )
        df = read_target(spark, named)
    else:
        df = check_frame("df", named, "hand over what read_topics(...) gives, or a table by its path or name")
    check_columns("the records", df, _PLACE_TYPES)
    return df


def _verdicts(missing: DataFrame, told: Sequence[tuple[DataFrame, DataFrame]], producers: DataFrame) -> DataFrame:
    columns = [*_EPOCH, "last", "settled", "sealed_at"]
    epochs = reduce(DataFrame.unionByName, [epochs.select(*columns) for epochs, _ in told])
    ranges = reduce(DataFrame.unionByName, [ranges for _, ranges in told])
    ends = producers.select(*_EPOCH, F.coalesce("last", F.lit(0)).alias("found_last"))
    tail = F.col("first") > F.col("found_last")
    return judge(missing, epochs, ranges).join(ends, _EPOCH).withColumn("tail", tail).drop("found_last")


def _buckets(records: DataFrame, *, order: bool) -> DataFrame:
    """A row for each producer, epoch and bucket: counts, first and last sequence, and the clear places between them.

    The records without an id are a row of their own, all null but for the count. Without ``order``, or places, what
    tells of the order is null.
    """
    ordered = order and set(_PLACE) <= set(records.columns)
    narrow = records.select(
        *ID_COLUMNS,
        *([_ahead().alias("ahead")] if ordered else []),
    )
    bit = bit_of(F.col("sequence"))
    counted = narrow.groupBy(*_EPOCH, bucket_of(F.col("sequence")).alias("bucket")).agg(
        F.count(F.lit(1)).alias("records"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.bitmap_construct_agg(bit).alias("bits"),
        *([F.bitmap_construct_agg(F.when(F.col("ahead"), bit)).alias("orderly")] if ordered else []),
    )
    edges = ["records", "first", "last", "found"]
    # Where the order is not known there is no telling: null, not 0.
    disorder = F.bitmap_count("bits") - F.bitmap_count("orderly") if ordered else _null("bigint")
    behind = F.when(F.col("out_of_order") > 0, set_in_one("bits", "orderly")) if ordered else _null("array<int>")
    measured = counted.withColumns(
        {
            "found": F.bitmap_count("bits"),
            "out_of_order": disorder,
            "low": bit_of(F.col("first")).cast("int"),
            "high": bit_of(F.col("last")).cast("int"),
        }
    )
    return measured.select(
        *_EPOCH,
        "bucket",
        *edges,
        "out_of_order",
        F.when(F.col("found") < F.col("last") - F.col("first") + 1, clear_bits("bits", "low", "high")).alias("clear"),
        behind.alias("behind"),
    )


def _null(kind: str) -> Column:
    return F.lit(None).cast(kind)


def _ahead() -> Column:
    """Whether a record's position is above those of all records of its directory before it in its Kafka partition."""
    position = F.struct("epoch", "sequence")
    before = Window.partitionBy("topic", "partition", "producer_id").orderBy("offset")
    highest = F.max(position).over(before.rowsBetween(Window.unboundedPreceding, -1))
    return F.coalesce(position > highest, F.lit(True))  # noqa: FBT003 - a literal


def _missing(buckets: DataFrame, known: DataFrame, *, from_first: bool) -> DataFrame:
    found = buckets.where(F.col("bucket").isNotNull())
    ranges = _inside(found).unionByName(_between(found, known, from_first=from_first))
    return ranges.select(*_EPOCH, "first", "last", (F.col("last") - F.col("first") + 1).alias("count"))


def _inside(found: DataFrame) -> DataFrame:
    """The ranges between the first and the last sequence of each bucket."""
    return ranges_in(found.where(F.col("clear").isNotNull()), _EPOCH, runs("clear"))


def _out_of_order(buckets: DataFrame) -> DataFrame:
    return joined(ranges_in(buckets.where(F.col("behind").isNotNull()), _EPOCH, runs("behind")), _EPOCH)


def _between(found: DataFrame, known: DataFrame, *, from_first: bool) -> DataFrame:
    """The ranges before an epoch's first bucket, between two of its buckets, and behind the last one."""
    edges = found.select(*_EPOCH, "bucket", "first", "last")
    behind = (F.col("last") + 1).alias("first")
    ends = known.select(*_EPOCH, F.lit(_BEHIND_ALL).alias("bucket"), behind, F.col("last"))
    before = F.lag("last").over(Window.partitionBy(*_EPOCH).orderBy("bucket"))
    # An epoch of which nothing was found has no first record: all of it is missing.
    before = F.coalesce(before, F.when(F.col("bucket") == _BEHIND_ALL, 0) if from_first else F.lit(0))
    gaps = edges.unionByName(ends).withColumn("before", before)
    return gaps.select(*_EPOCH, (F.col("before") + 1).alias("first"), (F.col("first") - 1).alias("last")).where(
        "first <= last"
    )


def _producers(buckets: DataFrame, known: DataFrame, *, from_first: bool) -> DataFrame:
    found = (
        buckets.where(F.col("bucket").isNotNull())
        .groupBy(*_EPOCH)
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.sum("found").alias("found"),
            (F.sum("records") - F.sum("found")).alias("repeated"),
            F.sum("out_of_order").alias("out_of_order"),
        )
    )
    both = found.join(known.withColumnRenamed("last", "known_last"), _EPOCH, "full_outer")
    # greatest passes over nulls.
    last = F.greatest("last", "known_last")
    start = F.coalesce("first", F.lit(1)) if from_first else F.lit(1)
    expected = last - start + 1
    return both.select(
        *_EPOCH,
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
    sums = producers.agg(
        F.count(F.lit(1)).alias("epochs"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("expected", "found", "missing", "repeated")),
        (_sum_of_out_of_order() if order else _null("bigint")).alias("out_of_order"),
    )
    return rows.crossJoin(sums)


def _sum_of_out_of_order() -> Column:
    """Without any epoch nothing is out of order; where it is not known of one there is no telling."""
    is_known = F.count(F.lit(1)) == F.count("out_of_order")
    return F.when(is_known, F.coalesce(F.sum("out_of_order"), F.lit(0)))
