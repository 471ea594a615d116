"""The ids that were landed, as bitmaps in a table beside the data: ``<target>__ids``.

Each batch adds the buckets that it touched, whole: 32,768 sequences of an epoch in 4 KiB, which compress well. The
newest row of each bucket counts. A batch reads what was there *before* it, so it can be repeated. Every
`WHOLE_EACH`-th batch adds all buckets, and the batches before it are removed, so the table stays small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from aiorecover.spark.bitmaps import BUCKET_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from aiorecover.spark.stores import Store

__all__ = ["WHOLE_EACH", "Seen"]

WHOLE_EACH = 50

SCHEMA = StructType(
    [
        StructField("producer_id", StringType()),
        StructField("epoch", IntegerType()),
        StructField("bucket", LongType()),
        StructField("filled", LongType()),
        StructField("bits", BinaryType()),
        StructField("batch_id", LongType()),
    ]
)


class Seen:
    """The ids that were landed in a store."""

    def __init__(self, store: Store) -> None:
        self._store, self.name = store, store.name

    def mark(self) -> str | None:
        """Return which checkpoint they belong to; None: there is no table."""
        return self._store.mark()

    def claim(self, mark: str) -> None:
        """Make the table."""
        self._store.claim(SCHEMA, mark)

    def before(self, batch_id: int) -> DataFrame | None:
        """Return the buckets, with ``bits``, as they were before a batch; None: nothing was landed."""
        if batch_id == 0:
            return None
        stored = self._store.read().where(F.col("batch_id").between(_last_whole(batch_id), batch_id - 1))
        return stored.groupBy(*BUCKET_COLUMNS).agg(F.max_by("bits", "batch_id").alias("bits"))

    def add(self, landed: DataFrame, batch_id: int, mark: str) -> None:
        """Add a batch's ids; ``landed``: its rows, read back from the table."""
        ids = landed.where("sequence is not null").groupBy(
            "producer_id", "epoch", F.bitmap_bucket_number("sequence").alias("bucket")
        )
        new = ids.agg(F.bitmap_construct_agg(F.bitmap_bit_position("sequence")).alias("bits"))
        before = self.before(batch_id)
        if before is not None:
            if batch_id % WHOLE_EACH:
                before = before.join(new.select(*BUCKET_COLUMNS), BUCKET_COLUMNS, "left_semi")
            new = before.unionByName(new).groupBy(*BUCKET_COLUMNS).agg(F.bitmap_or_agg("bits").alias("bits"))
        rows = new.select(*BUCKET_COLUMNS, F.bitmap_count("bits").alias("filled"), "bits")
        self._store.append(rows.coalesce(1), batch_id, mark)
        if batch_id % WHOLE_EACH == 1 and batch_id > 1:
            self._store.forget(batch_id - 1)


def _last_whole(batch_id: int) -> int:
    """Return the last batch before this one that added all buckets."""
    return (batch_id - 1) // WHOLE_EACH * WHOLE_EACH
