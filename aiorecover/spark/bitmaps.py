"""Sequences as bitmaps: one bit for each, in buckets of 32,768 sequences, the size of Spark's own bitmaps.

Spark's ``bitmap_bucket_number`` and ``bitmap_bit_position`` say where a sequence is: bucket 1 has the sequences 1 to
32,768, at the bits 0 to 32,767. A bitmap takes 4 KiB, however many of its bits are set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.record_id import EPOCH_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["BUCKET_COLUMNS", "BUCKET_SIZE", "clear_bits", "is_set", "joined", "ranges_in", "runs", "set_in_one"]

BUCKET_SIZE = 32_768
BUCKET_COLUMNS = [*EPOCH_COLUMNS, "bucket"]

# Bit b of a bitmap; the lowest bit of each byte comes first. conv(hex()) reads any byte; a cast does not.
_BYTE = "cast(conv(hex(substring({bits}, shiftright({bit}, 3) + 1, 1)), 16, 10) as int)"
_IS_SET = f"(shiftright({_BYTE}, {{bit}} & 7) & 1) = 1"


def is_set(bits: str, bit: str) -> Column:
    """Return whether a bit is set; both are names of columns, the bit an int."""
    return F.expr(_IS_SET.format(bits=bits, bit=bit))


def clear_bits(bits: str, first: str, last: str) -> Column:
    """Return the bits from ``first`` to ``last`` that are not set, as an ordered array; the names are of int columns.

    Full bytes are skipped: a bucket with few holes costs an eighth of one that is full of them.
    """
    clear = f"filter(sequence(greatest(i * 8, {first}), least(i * 8 + 7, {last})), b -> not {_IS_SET})"
    not_full = (
        f"filter(sequence(shiftright({first}, 3), shiftright({last}, 3)), i -> substring({bits}, i + 1, 1) != X'FF')"
    )
    return F.expr(f"flatten(transform({not_full}, i -> {clear.format(bits=bits, bit='b')}))")


def set_in_one(bits: str, other: str) -> Column:
    """Return the bits that are set in ``bits`` and not in ``other``, as an ordered array; both are names of columns.

    ``bits`` has all that ``other`` has. Equal bytes are skipped.
    """
    first, second = (_IS_SET.format(bits=one, bit="b") for one in (bits, other))
    places = f"filter(sequence(i * 8, i * 8 + 7), b -> {first} and not {second})"
    unequal = f"substring({bits}, i + 1, 1) != substring({other}, i + 1, 1)"
    differ = f"filter(sequence(0, {BUCKET_SIZE // 8 - 1}), i -> {unequal})"
    return F.expr(f"flatten(transform({differ}, i -> {places}))")


def runs(bits: str) -> Column:
    """Return neighbouring bits together, as ``low`` and ``high``; ``bits`` is a column with an ordered array."""
    low = f"filter({bits}, (b, i) -> i = 0 or {bits}[i - 1] < b - 1)"
    high = f"filter({bits}, (b, i) -> i = size({bits}) - 1 or {bits}[i + 1] > b + 1)"
    return F.expr(f"cast(arrays_zip({low}, {high}) as array<struct<low: int, high: int>>)")


def ranges_in(buckets: DataFrame, found: Column) -> DataFrame:
    """Return ``first`` and ``last`` of the sequences of `runs`, for each producer and epoch."""
    base = (F.col("bucket") - 1) * BUCKET_SIZE + 1
    inside = buckets.select(*EPOCH_COLUMNS, base.alias("base"), F.inline(found))
    first, last = (F.col("base") + F.col(edge) for edge in ("low", "high"))
    return inside.select(*EPOCH_COLUMNS, first.alias("first"), last.alias("last"))


def joined(ranges: DataFrame, keys: Sequence[str] = (), *, total: str | None = None) -> DataFrame:
    """Join ranges of an epoch that follow each other: ``first``, ``last``, ``count``, and the sum of one column.

    ``keys``: columns besides the epoch's in which only equal ranges are joined.
    """
    keys, sums = [*EPOCH_COLUMNS, *keys], [] if total is None else [total]
    in_order = Window.partitionBy(*keys).orderBy("first")
    begins = F.coalesce(F.col("first") > F.lag("last").over(in_order) + 1, F.lit(True))  # noqa: FBT003 - a literal
    numbered = ranges.withColumn("begins", begins.cast("int")).withColumn("range", F.sum("begins").over(in_order))
    edges = F.min("first").alias("first"), F.max("last").alias("last")
    whole = numbered.groupBy(*keys, "range").agg(*edges, *(F.sum(name).alias(name) for name in sums))
    return whole.select(*keys, "first", "last", (F.col("last") - F.col("first") + 1).alias("count"), *sums)
