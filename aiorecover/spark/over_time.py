"""Completeness over time: when records were published, and when the missing ones must have been."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.audit.moments import MOMENTS, width_for
from aiorecover.errors import ConfigError
from aiorecover.spark.bitmaps import BUCKET_COLUMNS
from aiorecover.spark.frames import TEXT, WHOLE, check_columns
from aiorecover.spark.record_id import EPOCH_COLUMNS, ID_COLUMNS, with_id_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Timeline", "check_timestamps", "timeline"]

_MISSING = {"producer_id": TEXT, "epoch": WHOLE, "first": WHOLE, "last": WHOLE, "count": WHOLE}


class Timeline(NamedTuple):
    """Completeness over time.

    ``width_s``: seconds of a moment. ``moments``: one row for each moment in which there is anything: ``start_s``
    (seconds since 1970), ``found`` (different records), ``missing``; ``start_s`` is null for missing records whose time
    is not known.
    """

    width_s: int
    moments: DataFrame


def timeline(df: DataFrame, missing: DataFrame, *, most: int = MOMENTS) -> Timeline:
    """Count what was found and what is missing in each of up to ``most`` (default 240) equal pieces of time.

    ``df`` as for `audit`, with Kafka's column ``timestamp``; ``missing`` as in `Audit`. A missing record has no
    timestamp: it counts in the moment of the last record before its range, or of the first one after it where the range
    begins the epoch. This reads the records twice, the first time at once, for the first and the last timestamp.

    Raises:
        ConfigError: columns are absent or of another type.

    """
    check_columns("missing", missing, _MISSING, needed=_MISSING)
    check_timestamps(df)
    seconds = F.unix_seconds(F.col("timestamp").cast("timestamp")).alias("second")
    records = with_id_columns(df).where("sequence is not null").select(*ID_COLUMNS, seconds)
    first, last = records.agg(F.min("second"), F.max("second")).collect()[0]
    width_s = width_for(0 if first is None else last - first + 1, most)
    start = F.floor(F.col("second") / width_s) * width_s
    placed = records.select(*ID_COLUMNS, start.cast("bigint").alias("start_s"))
    both = _found(placed).unionByName(_missing(placed, missing))
    sums = F.sum("found").alias("found"), F.sum("missing").alias("missing")
    return Timeline(width_s, both.groupBy("start_s").agg(*sums).orderBy("start_s"))


def check_timestamps(df: DataFrame) -> None:
    """Check that the records have what `timeline` needs.

    Raises:
        ConfigError: they have no column ``timestamp``, or it is of another type.

    """
    if "timestamp" not in df.columns:
        raise ConfigError(f"completeness over time needs Kafka's column timestamp: columns={df.columns}")
    check_columns("the records", df, {"timestamp": ("timestamp", "timestamp_ntz")})


def _found(placed: DataFrame) -> DataFrame:
    # As bitmaps, so that repeats count once: a repeat has the timestamp of its original.
    bucket, bit = F.bitmap_bucket_number("sequence"), F.bitmap_bit_position("sequence")
    bits = placed.withColumn("bucket", bucket).groupBy(*BUCKET_COLUMNS, "start_s")
    counts = bits.agg(F.bitmap_count(F.bitmap_construct_agg(bit)).alias("found"))
    return counts.selectExpr("start_s", "found", "0L as missing")


def _missing(placed: DataFrame, missing: DataFrame) -> DataFrame:
    beside = F.expr("if(first > 1, first - 1, last + 1)").alias("sequence")
    ranges = missing.select(*EPOCH_COLUMNS, beside, "first", "count")
    found = ranges.join(placed, ID_COLUMNS, "left")
    # The record beside a range may be there several times.
    once = found.groupBy(*EPOCH_COLUMNS, "first", "count").agg(F.min("start_s").alias("start_s"))
    return once.selectExpr("start_s", "0L as found", "count as missing")
