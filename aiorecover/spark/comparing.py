"""Find what is in the topics and not in the table that they are landed in, by record id.

Both sides become bitmaps, as in an audit: one for each producer, epoch and bucket of 32,768 sequences. Bitmaps are
compared, not records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.bitmaps import BUCKET_COLUMNS, BUCKET_SIZE, joined, ranges_in, runs, set_in_one
from aiorecover.spark.frames import Persisted
from aiorecover.spark.record_id import EPOCH_COLUMNS, with_id_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Comparison", "compare"]

_EMPTY = bytes(BUCKET_SIZE // 8)


@dataclass(frozen=True)
class Comparison(Persisted):
    """The result of a comparison, as data frames; nothing runs until one of them is used.

    The first use of any of them reads both sides. About a hundred bytes (more with many ranges) are persisted for each
    32,768 records until `close`, or the end of ``with``.
    """

    absent: DataFrame
    """One row for each longest range of ids that are in the topics and not in the table: ``producer_id``, ``epoch``,
    ``first``, ``last``, ``count``."""
    totals: DataFrame
    """One row, of different ids: ``in_topics``, ``in_table``, ``absent`` (in the topics, not in the table) and
    ``only_in_table`` (Kafka has deleted them, or they are from other topics). Rows without an id can only be counted:
    ``without_id_in_topics``, ``without_id_in_table`` and ``without_id_absent``, by how many the table has fewer. These
    may be in the quarantine of a landing; and where it is 0, rows that Kafka has deleted may make up for rows that are
    absent."""
    _buckets: DataFrame


def compare(topics: DataFrame, table: DataFrame) -> Comparison:
    """Find what is in the topics and not in the table; records that came after the last landing are among them.

    Both have columns as for :func:`aiorecover.spark.audit`.

    Raises:
        ConfigError: columns are absent or of another type.

    """
    both = _bitmaps(topics, "topics").unionByName(_bitmaps(table, "table"), allowMissingColumns=True)
    # Each side has at most one row for a bucket; the rows without an id are one whose bucket is null.
    met = both.groupBy(*BUCKET_COLUMNS).agg(
        F.sum("topics_rows").alias("topics_rows"),
        F.sum("table_rows").alias("table_rows"),
        F.bitmap_or_agg(F.coalesce("topics", "table")).alias("either"),
        F.coalesce(F.max("table"), F.lit(_EMPTY)).alias("table"),
        F.bitmap_count(F.coalesce(F.max("topics"), F.lit(_EMPTY))).alias("in_topics"),
    )
    in_table = F.bitmap_count("table")
    counted = met.withColumns({"in_table": in_table, "absent": F.bitmap_count("either") - in_table})
    places = F.when(F.col("absent") > 0, set_in_one("either", "table")).alias("places")
    counts = ["topics_rows", "table_rows", "in_topics", "in_table", "absent"]
    found = counted.select(*BUCKET_COLUMNS, *counts, places)
    buckets = found.select(*BUCKET_COLUMNS, *counts, runs("places").alias("runs")).persist()
    absent = buckets.where("bucket is not null and absent > 0")
    return Comparison(joined(ranges_in(absent, F.col("runs"))), _totals(buckets), buckets)


def _bitmaps(records: DataFrame, side: str) -> DataFrame:
    bucket = F.bitmap_bucket_number("sequence").alias("bucket")
    bits = F.bitmap_construct_agg(F.bitmap_bit_position("sequence"))
    rows = F.count(F.lit(1)).alias(f"{side}_rows")
    return with_id_columns(records).groupBy(*EPOCH_COLUMNS, bucket).agg(rows, bits.alias(side))


def _totals(buckets: DataFrame) -> DataFrame:
    sums = {
        **{name: f"if(bucket is null, 0, {name})" for name in ("in_topics", "in_table", "absent")},
        "only_in_table": "if(bucket is null, 0, in_table + absent - in_topics)",
        "without_id_in_topics": "if(bucket is null, topics_rows, 0)",
        "without_id_in_table": "if(bucket is null, table_rows, 0)",
    }
    totals = buckets.selectExpr(*(f"coalesce(sum({what}), 0) as {name}" for name, what in sums.items()))
    return totals.selectExpr("*", "greatest(without_id_in_topics - without_id_in_table, 0) as without_id_absent")
