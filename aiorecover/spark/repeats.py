"""Which ids stand more than once among records: the ids themselves, for an audit counts them only.

Two bitmaps of the same records do not tell who is in them twice. So the ids of those buckets that have more records
than ids are read once more, and only theirs are counted one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.bitmaps import bucket_of, joined
from aiorecover.spark.record_id import ID_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["conflicts", "repeats"]

_EPOCH = ["producer_id", "epoch"]
_BUCKET = [*_EPOCH, "bucket"]
_CONTENT = ("topic", "key", "value", "headers")


def repeats(records: DataFrame, buckets: DataFrame) -> DataFrame:
    """The ranges of ids that stand more than once.

    ``producer_id``, ``epoch``, ``first``, ``last``, ``count`` (of the ids), ``repeated`` (appearances beyond the first
    one of each). ``records`` have the id columns; ``buckets`` are all of theirs: ``producer_id``, ``epoch``,
    ``bucket``, ``records`` and ``found``, how many different ids.
    """
    times = _of_suspects(records, buckets).groupBy(*_EPOCH, F.col("sequence").alias("first")).count().where("count > 1")
    again = times.select(*_EPOCH, "first", F.col("first").alias("last"), (F.col("count") - 1).alias("repeated"))
    return joined(again, _EPOCH, "repeated")


def conflicts(records: DataFrame, buckets: DataFrame) -> DataFrame:
    """The ranges of ids that stand more than once, and not always with the same topic, key, value and headers.

    Of columns that are not there nothing is compared. All else as for `repeats`, without ``repeated``.
    """
    there = [name for name in _CONTENT if name in records.columns]
    if not there:
        return repeats(records, buckets).drop("repeated").limit(0)
    content = F.xxhash64(*there, *(F.col(name).isNull() for name in there))  # nulls alone would change nothing
    suspects = _of_suspects(records, buckets, content.alias("content"))
    contents = suspects.groupBy(*_EPOCH, F.col("sequence").alias("first"))
    differ = contents.agg(F.count_distinct("content").alias("contents")).where("contents > 1")
    return joined(differ.select(*_EPOCH, "first", F.col("first").alias("last")), _EPOCH)


def _of_suspects(records: DataFrame, buckets: DataFrame, *more: Column) -> DataFrame:
    """The ids of the buckets that have more records than ids."""
    some = buckets.where("bucket is not null and records > found").select(*_BUCKET)
    ids = records.select(*ID_COLUMNS, bucket_of(F.col("sequence")).alias("bucket"), *more)
    return ids.join(some, _BUCKET, "left_semi")
