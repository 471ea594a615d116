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
    from pyspark.sql import DataFrame

__all__ = ["repeats"]

_EPOCH = ["producer_id", "epoch"]
_BUCKET = [*_EPOCH, "bucket"]


def repeats(records: DataFrame, buckets: DataFrame) -> DataFrame:
    """The ranges of ids that stand more than once.

    ``producer_id``, ``epoch``, ``first``, ``last``, ``count`` (of the ids), ``repeated`` (appearances beyond the first
    one of each). ``records`` have the id columns; ``buckets`` are all of theirs: ``producer_id``, ``epoch``,
    ``bucket``, ``records`` and ``found``, how many different ids.
    """
    some = buckets.where("bucket is not null and records > found").select(*_BUCKET)
    ids = records.select(*ID_COLUMNS, bucket_of(F.col("sequence")).alias("bucket")).join(some, _BUCKET, "left_semi")
    times = ids.groupBy(*_EPOCH, F.col("sequence").alias("first")).count().where("count > 1")
    again = times.select(*_EPOCH, "first", F.col("first").alias("last"), (F.col("count") - 1).alias("repeated"))
    return joined(again, _EPOCH, "repeated")
