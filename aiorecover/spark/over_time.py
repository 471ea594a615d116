"""When records were published, and when those that are missing must have been."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import TimestampNTZType, TimestampType

from aiorecover.audit.moments import MOMENTS, width_for
from aiorecover.errors import ConfigError
from aiorecover.spark.bitmaps import bit_of, bucket_of
from aiorecover.spark.handed_over import TEXT, WHOLE, check_columns, check_frame
from aiorecover.spark.record_id import ID_COLUMNS, with_record_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MOMENTS", "Timeline", "check_timestamps", "timeline"]

_EPOCH = ["producer_id", "epoch"]
_MISSING_TYPES = {"producer_id": TEXT, "epoch": WHOLE, "first": WHOLE, "last": WHOLE, "count": WHOLE}


class Timeline(NamedTuple):
    """Completeness over time.

    ``width_s``: seconds of a moment. ``moments``: one row for each moment of which there is anything: ``start_s``
    (seconds since 1970), ``found`` (different records), ``missing``; ``start_s`` is null for what nothing tells the
    time of.
    """

    width_s: int
    moments: DataFrame


def timeline(df: DataFrame, missing: DataFrame, *, most: int = MOMENTS) -> Timeline:
    """What was found and what is missing in each of up to ``most`` equal pieces of time.

    ``df`` as for `audit`, with Kafka's column ``timestamp``; ``missing`` as in `Audit`. A missing record has no
    timestamp: it counts in the moment of the last record before its range, of the first one behind it where the range
    begins the epoch. Reads the records twice, the first time at once, for the first and the last timestamp.

    Raises:
        ConfigError: columns are absent or of another type, or what was handed over is no data frame.

    """
    check_frame("df", df)
    check_frame("missing", missing, "hand over the missing ones of an audit(...)")
    check_columns("missing", missing, _MISSING_TYPES, needed=_MISSING_TYPES)
    check_timestamps(df)
    seconds = F.unix_seconds(F.col("timestamp").cast("timestamp")).alias("second")
    records = with_record_id(df).where("sequence is not null").select(*ID_COLUMNS, seconds)
    first, last = records.agg(F.min("second"), F.max("second")).collect()[0]
    width_s = width_for(0 if first is None else last - first + 1, most)
    start = F.floor(F.col("second") / width_s) * width_s
    placed = records.select(*ID_COLUMNS, start.cast("bigint").alias("start_s"))
    both = _found(placed).unionByName(_missing(placed, missing))
    return Timeline(width_s, both.groupBy("start_s").agg(_sum("found"), _sum("missing")).orderBy("start_s"))


def check_timestamps(df: DataFrame) -> None:
    """What `timeline` needs of the records.

    Raises:
        ConfigError: they have no column ``timestamp``, or it is of another type.

    """
    if "timestamp" not in df.columns:
        raise ConfigError(f"completeness over time needs Kafka's column timestamp: columns={df.columns}")
    if not isinstance(df.schema["timestamp"].dataType, TimestampType | TimestampNTZType):
        raise ConfigError(
            "the column timestamp of the records must be timestamp: cast it "
            f"type={df.schema['timestamp'].dataType.simpleString()}"
        )


def _found(placed: DataFrame) -> DataFrame:
    # As bitmaps, so that repeats count once. A repeat keeps the timestamp that its record was published with.
    bucket = bucket_of(F.col("sequence")).alias("bucket")
    bits = placed.groupBy(*_EPOCH, bucket, "start_s").agg(
        F.bitmap_construct_agg(bit_of(F.col("sequence"))).alias("bits")
    )
    return bits.select("start_s", F.bitmap_count("bits").alias("found"), F.lit(0).cast("bigint").alias("missing"))


def _missing(placed: DataFrame, missing: DataFrame) -> DataFrame:
    beside = F.when(F.col("first") > 1, F.col("first") - 1).otherwise(F.col("last") + 1)
    ranges = missing.select(*_EPOCH, beside.alias("sequence"), "first", "count")
    joined = ranges.join(placed, [*_EPOCH, "sequence"], "left")
    # The record beside a range may be there several times.
    once = joined.groupBy(*_EPOCH, "first", "count").agg(F.min("start_s").alias("start_s"))
    return once.select("start_s", F.lit(0).cast("bigint").alias("found"), F.col("count").alias("missing"))


def _sum(name: str) -> Column:
    return F.sum(name).alias(name)
