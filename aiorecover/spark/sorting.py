"""The rows of a batch, sorted: new ones, repeats, conflicts, and those with an undecodable id.

A repeat has the same id, topic, key, value and headers as the record that was landed, or that comes first in the
batch by topic, partition and offset. A row with the same id that differs is a conflict: a program has copied the
headers to another record.

Nearly all rows of a batch are new, and these are neither moved nor sorted. Only the ids are counted, each bucket of
them in one task, beside the bits of those that were landed before. Rows are looked at one by one where their id was
landed, or stands on several of them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.spark.bitmaps import BUCKET_COLUMNS, is_set
from aiorecover.spark.record_id import ID_COLUMNS, undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column

__all__ = ["Sorted", "sorted_batch"]

_REPEAT, _CONFLICT, _UNDECODABLE = "repeat", "conflict", "undecodable"
_PLACE = ["topic", "partition", "offset"]
_EPOCHS_MOST = 100  # named in a filter on the table, so that it opens few files
_SEEN, _CONTENT, _ORIGINAL, _VERDICT = (f"_aiorecover_{name}" for name in ("seen", "content", "original", "verdict"))


@dataclass(frozen=True)
class Sorted:
    """It holds the new rows of a batch, the rows for the quarantine, and the counts."""

    new: DataFrame
    """Rows for the target, in the partitions of the batch."""
    apart: DataFrame | None
    """Rows for the quarantine, with their ``reason``; None: there are none."""
    counts: dict[str, int]
    """The counts of `aiorecover.spark.landing.Landed`, by their names."""


@contextmanager
def sorted_batch(
    batch: DataFrame, before: DataFrame | None, landed: Callable[[], DataFrame], tasks: int
) -> Iterator[Sorted]:
    """Sort the rows of a batch, which stay in Spark's memory until the end of ``with``.

    ``before``: the buckets of ids that were landed; None: there are none. ``landed`` returns the rows of earlier
    batches. ``tasks``: to count the ids.
    """
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> DataFrame:
            kept.callback(rows.persist().unpersist)
            return rows

        batch = keep(batch)
        again = keep(_ids_again(batch, before, tasks))
        rows, without_id = batch.agg(F.count(F.lit(1)), F.count_if(F.col("sequence").isNull())).collect()[0]
        unread = batch.where(undecodable())
        counts = {_REPEAT: 0, _CONFLICT: 0, _UNDECODABLE: unread.count() if without_id else 0}
        new, apart = batch, [unread.withColumn("reason", F.lit(_UNDECODABLE))]
        if counts[_UNDECODABLE]:
            new = new.where(~undecodable())
        if not again.isEmpty():
            places = keep(_places(batch, again, landed))
            counts.update(map(tuple, places.groupBy(_VERDICT).count().collect()))
            new = new.join(places, _PLACE, "left_anti").select(*batch.columns)  # a join puts what it joins by first
            conflicts = places.where(F.col(_VERDICT) == _CONFLICT).withColumnRenamed(_VERDICT, "reason")
            apart.append(batch.join(conflicts, _PLACE).select(*apart[0].columns))
        yield Sorted(
            new,
            reduce(DataFrame.union, apart) if counts[_CONFLICT] or counts[_UNDECODABLE] else None,
            {
                "landed": rows - sum(counts.values()),
                "without_id": without_id - counts[_UNDECODABLE],
                "repeats": counts[_REPEAT],
                "conflicts": counts[_CONFLICT],
                "undecodable": counts[_UNDECODABLE],
            },
        )


def _ids_again(batch: DataFrame, before: DataFrame | None, tasks: int) -> DataFrame:
    """Return the ids of which the batch has several rows, or that were landed (``_SEEN``)."""
    ids = batch.where("sequence is not null").withColumn("bucket", F.bitmap_bucket_number("sequence"))
    ids = ids.select(*BUCKET_COLUMNS, "sequence").repartition(tasks, *BUCKET_COLUMNS)
    counted = ids.groupBy(*BUCKET_COLUMNS, "sequence").agg(F.count(F.lit(1)).alias("rows"))
    if before is None:
        marked = counted.withColumn(_SEEN, F.lit(False))  # noqa: FBT003 - a literal
    else:
        bits = before.hint("shuffle_hash")  # small on disk, so Spark would collect it otherwise
        bit = F.bitmap_bit_position("sequence").cast("int")
        marked = counted.withColumn("bit", bit).join(bits, BUCKET_COLUMNS, "left")
        marked = marked.withColumn(_SEEN, F.coalesce(is_set("bits", "bit"), F.lit(False)))  # noqa: FBT003 - a literal
    return marked.where(F.col(_SEEN) | (F.col("rows") > 1)).select(*ID_COLUMNS, _SEEN)


def _places(batch: DataFrame, again: DataFrame, landed: Callable[[], DataFrame]) -> DataFrame:
    """Return where the repeats and conflicts of the batch are, with their verdict."""
    rows = batch.join(again, ID_COLUMNS).select(*_PLACE, *ID_COLUMNS, _SEEN, _content())
    in_order = Window.partitionBy(*ID_COLUMNS).orderBy(*_PLACE)
    rows = rows.withColumns({"number": F.row_number().over(in_order), "first": F.first(_CONTENT).over(in_order)})
    original = F.col("first")
    if (originals := _originals(again, landed)) is not None:
        rows = rows.join(originals, ID_COLUMNS, "left")
        original = F.when(F.col(_SEEN), F.col(_ORIGINAL)).otherwise(original)
    differs = F.col(_CONTENT) != original  # null where the original is gone from the table: a repeat
    verdict = F.when(differs, _CONFLICT).otherwise(_REPEAT).alias(_VERDICT)
    return rows.where(F.col(_SEEN) | (F.col("number") > 1)).select(*_PLACE, verdict)


def _originals(again: DataFrame, landed: Callable[[], DataFrame]) -> DataFrame | None:
    """Return the contents of the records that were landed before with ids of the batch; None: there are none."""
    seen = again.where(_SEEN)
    epochs = seen.groupBy("producer_id", "epoch").agg(F.min("sequence"), F.max("sequence")).take(_EPOCHS_MOST + 1)
    if not epochs:
        return None
    earlier = landed()
    if len(epochs) <= _EPOCHS_MOST:
        earlier = earlier.where(reduce(lambda one, other: one | other, map(_within, epochs)))
    contents = earlier.join(seen.select(*ID_COLUMNS), ID_COLUMNS, "left_semi").select(*ID_COLUMNS, _content())
    return contents.groupBy(*ID_COLUMNS).agg(F.min(_CONTENT).alias(_ORIGINAL))


def _within(epoch: tuple[str, int, int, int]) -> Column:
    producer_id, number, first, last = epoch
    return (F.col("producer_id") == producer_id) & (F.col("epoch") == number) & F.col("sequence").between(first, last)


def _content() -> Column:
    """A hash of what a repeat has in common with its original."""
    nulls = (F.col(name).isNull() for name in ("key", "value"))  # a null by itself would not change the hash
    return F.xxhash64("topic", "key", "value", "headers", *nulls).alias(_CONTENT)
