"""The verdict on each row of a batch: new, repeat, conflict, or undecodable.

A repeat has the same id, topic, key, value and headers as the record that was landed, or that comes first in the
batch by topic, partition and offset. A row with the same id that differs is a conflict: a program has copied the
headers to another record.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.bitmaps import BUCKET_COLUMNS, bit_of, bucket_of, is_set
from aiorecover.spark.record_id import ID_COLUMNS, undecodable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

__all__ = ["CONFLICT", "NEW", "REPEAT", "UNDECODABLE", "VERDICT", "judged", "mark_seen", "originals"]

NEW, REPEAT, CONFLICT, UNDECODABLE = "new", "repeat", "conflict", "undecodable"
VERDICT = "_aiorecover_verdict"

_CHUNK_BITS = 10  # 1,024 offsets without an id stay together
_EPOCHS_MOST = 100  # named in a filter on the table, so that it opens few files
_SEEN, _PLACE, _CONTENT, _FIRST = (f"_aiorecover_{name}" for name in ("seen", "place", "content", "first"))
_APPEARANCE, _ORIGINAL = "_aiorecover_appearance", "_aiorecover_original"


def _content() -> Column:
    """A hash of what a repeat has in common with its original."""
    nulls = (F.col(name).isNull() for name in ("key", "value"))  # a null by itself would not change the hash
    return F.xxhash64("topic", "key", "value", "headers", *nulls)


def mark_seen(batch: DataFrame, before: DataFrame | None, partitions: int) -> DataFrame:
    """Return the rows, partitioned by id, with whether their id was landed, and its appearances in the batch so far."""
    has_id = F.col("sequence").isNotNull()
    near = F.xxhash64("topic", "partition", F.shiftright("offset", _CHUNK_BITS))
    bucket = F.coalesce(bucket_of(F.col("sequence")), -1 - F.abs(near % (1 << 40)))  # many rows may have no id
    rows = batch.withColumns({"bucket": bucket, _CONTENT: _content()}).repartition(partitions, *BUCKET_COLUMNS)
    if before is None:
        rows = rows.withColumn(_SEEN, F.lit(False))  # noqa: FBT003 - a literal
    else:
        bits = before.hint("shuffle_hash")  # small on disk, so Spark would collect it otherwise
        bit = bit_of(F.col("sequence")).cast("int")
        rows = rows.withColumn("_aiorecover_bit", bit).join(bits, BUCKET_COLUMNS, "left")
        seen = F.coalesce(has_id & is_set("bits", "_aiorecover_bit"), F.lit(False))  # noqa: FBT003 - a literal
        rows = rows.withColumn(_SEEN, seen).drop("bits", "_aiorecover_bit")
    place = F.when(~has_id, F.struct("topic", "partition", "offset"))
    same = Window.partitionBy(*BUCKET_COLUMNS, "sequence", _PLACE).orderBy("topic", "partition", "offset")
    numbered = rows.withColumn(_PLACE, place).withColumns(
        {_APPEARANCE: F.row_number().over(same), _FIRST: F.first(_CONTENT).over(same)}
    )
    return numbered.drop(_PLACE, "bucket")


def originals(marked: DataFrame, landed: Callable[[], DataFrame]) -> DataFrame | None:
    """Return the content hashes of records that were landed before with ids of the batch; None: there are none.

    ``marked``: persisted by the caller. ``landed`` returns the rows of earlier batches.
    """
    seen = marked.where(_SEEN)
    epochs = seen.groupBy("producer_id", "epoch").agg(F.min("sequence"), F.max("sequence")).take(_EPOCHS_MOST + 1)
    if not epochs:
        return None
    earlier = landed()
    if len(epochs) <= _EPOCHS_MOST:
        earlier = earlier.where(reduce(lambda one, other: one | other, map(_within, epochs)))
    ids = seen.select(*ID_COLUMNS).distinct()
    contents = earlier.join(ids, list(ID_COLUMNS), "left_semi").select(*ID_COLUMNS, _content().alias(_ORIGINAL))
    return contents.groupBy(*ID_COLUMNS).agg(F.min(_ORIGINAL).alias(_ORIGINAL))


def _within(epoch: tuple[str, int, int, int]) -> Column:
    producer_id, number, first, last = epoch
    return (F.col("producer_id") == producer_id) & (F.col("epoch") == number) & F.col("sequence").between(first, last)


def judged(marked: DataFrame, landed_before: DataFrame | None) -> DataFrame:
    """Return the rows with their verdict; ``landed_before``: from `originals`."""
    if landed_before is None:
        rows = marked.withColumn(_ORIGINAL, F.lit(None).cast("bigint"))
    else:
        rows = marked.join(landed_before, list(ID_COLUMNS), "left")
    original = F.when(F.col(_SEEN), F.col(_ORIGINAL)).otherwise(F.col(_FIRST))
    differs = F.coalesce(F.col(_CONTENT) != original, F.lit(False))  # noqa: FBT003 - an original that is gone from the table: a repeat
    again = F.col(_SEEN) | (F.col(_APPEARANCE) > 1)
    verdict = (
        F.when(undecodable(), UNDECODABLE)
        .when(F.col("sequence").isNull() | ~again, NEW)
        .when(differs, CONFLICT)
        .otherwise(REPEAT)
    )
    return rows.withColumn(VERDICT, verdict).drop(_SEEN, _CONTENT, _FIRST, _APPEARANCE, _ORIGINAL)
