"""What is in the topics and not in the table that they are landed in: by record id, exactly, and in little room.

Both sides become bitmaps, as in an audit, one for each producer, epoch and bucket of 32,768 sequences; these meet, and
not the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.bitmaps import BUCKET_SIZE, bit_of, bucket_of, joined, ranges_in, runs, set_in_one
from aiorecover.spark.handed_over import check_frame
from aiorecover.spark.persisted import Persisted
from aiorecover.spark.record_id import ID_COLUMNS, with_record_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Comparison", "compare"]

_EPOCH = ["producer_id", "epoch"]
_BUCKET = [*_EPOCH, "bucket"]
_EMPTY = bytes(BUCKET_SIZE // 8)


@dataclass(frozen=True)
class Comparison(Persisted):
    """What a comparison found, as data frames; nothing runs until one of them is used.

    Both sides are read once, by the first use of any of them: a row of about a hundred bytes (more with many ranges)
    for each 32,768 records is persisted until `close`, or the end of ``with``.
    """

    absent: DataFrame
    """One row for each range of ids that are in the topics and not in the table, as long as it goes: ``producer_id``,
    ``epoch``, ``first``, ``last``, ``count``."""
    totals: DataFrame
    """One row, of different ids: ``in_topics``, ``in_table``, ``absent`` (in the topics, not in the table) and
    ``only_in_table`` (Kafka has deleted them by now, or they are from other topics); of rows without an id, which
    cannot be compared one by one: ``without_id_in_topics``, ``without_id_in_table`` and ``without_id_absent``, by how
    many the table has fewer. These may be in the quarantine of a landing; and where it is 0, what Kafka has deleted by
    now may make up for others that are absent."""
    _buckets: DataFrame


def compare(topics: DataFrame, table: DataFrame) -> Comparison:
    """Find what is in the topics and not in the table; records that came after the last landing are among them.

    All as for :func:`aiorecover.spark.audit`.

    Raises:
        ConfigError: columns are absent or of another type, or what was handed over is no data frame.

    """
    check_frame("topics", topics, "hand over what read_topics(...) gives")
    check_frame("table", table, "hand over spark.table(name), or spark.read.parquet(path)")
    buckets = _buckets(with_record_id(topics), with_record_id(table)).persist()
    return Comparison(absent=_absent(buckets), totals=_totals(buckets), _buckets=buckets)


def _buckets(topics: DataFrame, table: DataFrame) -> DataFrame:
    """A row for each bucket that either side has; the rows without an id are one whose bucket is null."""
    both = _bitmaps(topics, "topics", "table").unionByName(_bitmaps(table, "table", "topics"))
    met = both.groupBy(*_BUCKET).agg(
        F.sum("topics_rows").alias("topics_rows"),
        F.sum("table_rows").alias("table_rows"),
        F.bitmap_or_agg(F.coalesce("topics", "table")).alias("either"),
        # One row of each side at most.
        F.coalesce(F.max("table"), F.lit(_EMPTY)).alias("table"),
        F.bitmap_count(F.coalesce(F.max("topics"), F.lit(_EMPTY))).alias("in_topics"),
    )
    in_table = F.bitmap_count("table")
    counted = met.withColumns({"in_table": in_table, "absent": F.bitmap_count("either") - in_table})
    places = F.when(F.col("absent") > 0, set_in_one("either", "table")).alias("places")
    counts = ["topics_rows", "table_rows", "in_topics", "in_table", "absent"]
    return counted.select(*_BUCKET, *counts, places).select(*_BUCKET, *counts, runs("places").alias("runs"))


def _bitmaps(records: DataFrame, side: str, other: str) -> DataFrame:
    of_bucket = records.select(*ID_COLUMNS).groupBy(*_EPOCH, bucket_of(F.col("sequence")).alias("bucket"))
    return of_bucket.agg(
        F.count(F.lit(1)).alias(f"{side}_rows"),
        F.bitmap_construct_agg(bit_of(F.col("sequence"))).alias(side),
    ).withColumns({f"{other}_rows": F.lit(0).cast("bigint"), other: F.lit(None).cast("binary")})


def _absent(buckets: DataFrame) -> DataFrame:
    found = buckets.where(F.col("bucket").isNotNull() & (F.col("absent") > 0))
    return joined(ranges_in(found, _EPOCH, F.col("runs")), _EPOCH)


def _totals(buckets: DataFrame) -> DataFrame:
    with_id = F.col("bucket").isNotNull()
    only_in_table = F.col("in_table") + F.col("absent") - F.col("in_topics")
    totals = buckets.agg(
        _sum(F.when(with_id, F.col("in_topics"))).alias("in_topics"),
        _sum(F.when(with_id, F.col("in_table"))).alias("in_table"),
        _sum(F.when(with_id, F.col("absent"))).alias("absent"),
        _sum(F.when(with_id, only_in_table)).alias("only_in_table"),
        _sum(F.when(~with_id, F.col("topics_rows"))).alias("without_id_in_topics"),
        _sum(F.when(~with_id, F.col("table_rows"))).alias("without_id_in_table"),
    )
    fewer = F.greatest(F.col("without_id_in_topics") - F.col("without_id_in_table"), F.lit(0))
    return totals.withColumn("without_id_absent", fewer)


def _sum(counts: Column) -> Column:
    return F.coalesce(F.sum(counts), F.lit(0))
