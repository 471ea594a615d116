"""What becomes of each row of a batch: new, a repeat, in conflict with a record of the same id, or undecodable.

A repeat has the same id, topic, key, value and headers as the record that was landed, or that comes first in the
batch by topic, partition and offset. What has the id and differs is a conflict: somebody has copied the headers to
another record.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.bitmaps import bit_of, bucket_of, is_set
from aiorecover.spark.record_id import ID_COLUMNS, undecodable
from aiorecover.spark.seen import BUCKET

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

__all__ = ["CONFLICT", "NEW", "REPEAT", "UNDECODABLE", "VERDICT", "judged", "mark_seen", "originals"]

NEW, REPEAT, CONFLICT, UNDECODABLE = "new", "repeat", "conflict", "undecodable"
VERDICT = "_aiorecover_verdict"

_CHUNK_BITS = 10  # so many offsets (1,024) without an id stay together
_EPOCHS_MOST = 100  # that are named to the table, so that it opens few files
_SEEN, _PLACE, _CONTENT, _FIRST = (f"_aiorecover_{name}" for name in ("seen", "place", "content", "first"))
_APPEARANCE, _ORIGINAL = "_aiorecover_appearance", "_aiorecover_original"


def content() -> Column:
    """What a repeat has in common with its original."""
    nulls = (F.col(name).isNull() for name in ("key", "value"))  # a null alone would change nothing
    return F.xxhash64("topic", "key", "value", "headers", *nulls)


def mark_seen(batch: DataFrame, before: DataFrame | None, partitions: int) -> DataFrame:
    """The rows, spread by id, with whether their id was landed before, and how often it came before in the batch."""
    has_id = F.col("sequence").isNotNull()
    near = F.xxhash64("topic", "partition", F.shiftright("offset", _CHUNK_BITS))
    bucket = F.coalesce(bucket_of(F.col("sequence")), -1 - F.abs(near % (1 << 40)))  # many rows may have no id
    rows = batch.withColumns({"bucket": bucket, _CONTENT: content()}).repartition(partitions, *BUCKET)
    if before is None:
        rows = rows.withColumn(_SEEN, F.lit(False))  # noqa: FBT003 - a literal
    else:
        bits = before.hint("shuffle_hash")  # on disk it is small, and what is small there Spark would collect
        rows = rows.withColumn("_aiorecover_bit", bit_of(F.col("sequence")).cast("int")).join(bits, BUCKET, "left")
        seen = F.coalesce(has_id & is_set("bits", "_aiorecover_bit"), F.lit(False))  # noqa: FBT003 - a literal
        rows = rows.withColumn(_SEEN, seen).drop("bits", "_aiorecover_bit")
    place = F.when(~has_id, F.struct("topic", "partition", "offset"))
    same = Window.partitionBy(*BUCKET, "sequence", _PLACE).orderBy("topic", "partition", "offset")
    numbered = rows.withColumn(_PLACE, place).withColumns(
        {_APPEARANCE: F.row_number().over(same), _FIRST: F.first(_CONTENT).over(same)}
    )
    return numbered.drop(_PLACE, "bucket")


def originals(marked: DataFrame, landed: Callable[[], DataFrame]) -> DataFrame | None:
    """What the records contain that were landed before under ids of the batch; None: there are none.

    ``marked`` is kept by the caller, ``landed`` gives what earlier batches have landed.
    """
    seen = marked.where(_SEEN)
    epochs = seen.groupBy("producer_id", "epoch").agg(F.min("sequence"), F.max("sequence")).take(_EPOCHS_MOST + 1)
    if not epochs:
        return None
    earlier = landed()
    if len(epochs) <= _EPOCHS_MOST:
        earlier = earlier.where(reduce(lambda one, other: one | other, map(_within, epochs)))
    ids = seen.select(*ID_COLUMNS).distinct()
    contents = earlier.join(ids, list(ID_COLUMNS), "left_semi").select(*ID_COLUMNS, content().alias(_ORIGINAL))
    return contents.groupBy(*ID_COLUMNS).agg(F.min(_ORIGINAL).alias(_ORIGINAL))


def _within(epoch: tuple[str, int, int, int]) -> Column:
    producer_id, number, first, last = epoch
    return (F.col("producer_id") == producer_id) & (F.col("epoch") == number) & F.col("sequence").between(first, last)


def judged(marked: DataFrame, landed_before: DataFrame | None) -> DataFrame:
    """The rows with their verdict; ``landed_before``: of `originals`."""
    if landed_before is None:
        rows = marked.withColumn(_ORIGINAL, F.lit(None).cast("bigint"))
    else:
        rows = marked.join(landed_before, list(ID_COLUMNS), "left")
    original = F.when(F.col(_SEEN), F.col(_ORIGINAL)).otherwise(F.col(_FIRST))
    differs = F.coalesce(F.col(_CONTENT) != original, F.lit(False))  # noqa: FBT003 - whose rows are gone: a repeat
    again = F.col(_SEEN) | (F.col(_APPEARANCE) > 1)
    verdict = (
        F.when(undecodable(), UNDECODABLE)
        .when(F.col("sequence").isNull() | ~again, NEW)
        .when(differs, CONFLICT)
        .otherwise(REPEAT)
    )
    return rows.withColumn(VERDICT, verdict).select(*_landed_columns(marked), VERDICT)


def _landed_columns(marked: DataFrame) -> list[str]:
    return [name for name in marked.columns if name not in {_SEEN, _CONTENT, _FIRST, _APPEARANCE}]
