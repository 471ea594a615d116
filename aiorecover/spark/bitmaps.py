"""Sequences as bitmaps: one bit for each, in buckets of 32,768 sequences, which is what Spark's own bitmaps hold.

Bucket 1 has the sequences 1 to 32,768. A bitmap is 4 KiB, whatever is set in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "BUCKET_SIZE",
    "bit_of",
    "bucket_of",
    "clear_bits",
    "is_set",
    "joined",
    "ranges_in",
    "runs",
    "set_in_one",
]

BUCKET_SIZE = 32_768

# Bit b of a bitmap, lowest first in each byte. Of the ways from a byte to a number this is the one that takes any byte.
_BYTE = "cast(conv(hex(substring({bits}, shiftright({bit}, 3) + 1, 1)), 16, 10) as int)"
_IS_SET = f"(shiftright({_BYTE}, {{bit}} & 7) & 1) = 1"


def bucket_of(sequence: Column) -> Column:
    """The number of the bucket that has the sequence: from 1 on."""
    return F.bitmap_bucket_number(sequence)


def bit_of(sequence: Column) -> Column:
    """The place of the sequence in its bucket: 0 to 32,767."""
    return F.bitmap_bit_position(sequence)


def is_set(bits: str, bit: str) -> Column:
    """Whether a bit is set; both are names of columns, the bit an int."""
    return F.expr(_IS_SET.format(bits=bits, bit=bit))


def clear_bits(bits: str, first: str, last: str) -> Column:
    """The places from ``first`` to ``last`` whose bit is not set, as an array in order; the names are of int columns.

    Full bytes are passed over: a bucket with few holes costs an eighth of one that is full of them.
    """
    clear = f"filter(sequence(greatest(i * 8, {first}), least(i * 8 + 7, {last})), b -> not {_IS_SET})"
    not_full = (
        f"filter(sequence(shiftright({first}, 3), shiftright({last}, 3)), i -> substring({bits}, i + 1, 1) != X'FF')"
    )
    return F.expr(f"flatten(transform({not_full}, i -> {clear.format(bits=bits, bit='b')}))")


def set_in_one(bits: str, other: str) -> Column:
    """The places that are set in ``bits`` and not in ``other``, as an array in order; both are columns of bitmaps.

    ``bits`` has all that ``other`` has. Equal bytes are passed over.
    """
    first, second = (_IS_SET.format(bits=one, bit="b") for one in (bits, other))
    places = f"filter(sequence(i * 8, i * 8 + 7), b -> {first} and not {second})"
    unequal = f"substring({bits}, i + 1, 1) != substring({other}, i + 1, 1)"
    differ = f"filter(sequence(0, {BUCKET_SIZE // 8 - 1}), i -> {unequal})"
    return F.expr(f"flatten(transform({differ}, i -> {places}))")


def runs(places: str) -> Column:
    """Places in order, an array by the name of its column, as ``low`` and ``high`` of those that follow each other."""
    low = f"filter({places}, (b, i) -> i = 0 or {places}[i - 1] < b - 1)"
    high = f"filter({places}, (b, i) -> i = size({places}) - 1 or {places}[i + 1] > b + 1)"
    return F.expr(f"cast(arrays_zip({low}, {high}) as array<struct<low: int, high: int>>)")


def ranges_in(buckets: DataFrame, keys: Sequence[str], found: Column) -> DataFrame:
    """Columns ``first`` and ``last``, and the keys: the sequences of what `runs` found in each row's ``bucket``."""
    base = (F.col("bucket") - 1) * BUCKET_SIZE + 1
    inside = buckets.select(*keys, base.alias("base"), F.inline(found))
    first, last = (F.col("base") + F.col(edge) for edge in ("low", "high"))
    return inside.select(*keys, first.alias("first"), last.alias("last"))


def joined(ranges: DataFrame, keys: Sequence[str], *sums: str) -> DataFrame:
    """Ranges that follow each other as one: the keys, ``first``, ``last``, ``count``, and what columns come to."""
    in_order = Window.partitionBy(*keys).orderBy("first")
    begins = F.coalesce(F.col("first") > F.lag("last").over(in_order) + 1, F.lit(True))  # noqa: FBT003 - a literal
    numbered = ranges.withColumn("begins", begins.cast("int")).withColumn("range", F.sum("begins").over(in_order))
    edges = F.min("first").alias("first"), F.max("last").alias("last")
    whole = numbered.groupBy(*keys, "range").agg(*edges, *(F.sum(name).alias(name) for name in sums))
    return whole.select(*keys, "first", "last", (F.col("last") - F.col("first") + 1).alias("count"), *sums)
