"""Which records have been landed: the state behind "each record once", in bounded room and by ids alone.

Of each producer and epoch it says up to which bucket of 32,768 sequences all have been landed, and of the buckets
behind that one which sequences: as a number where they are the first ones of the bucket, all of them perhaps, and else
as a bitmap. So it is as small as the front at which records come in, however many have been landed: an epoch that has
ended is two rows of about 30 bytes, as most last buckets are never full. A record that never comes costs 4 KiB, and
such a row for each full bucket behind it; in the worst case, with holes everywhere, because other topics have the rest,
an eighth of a byte for each sequence. No record is ever too late to be recognised, or to be landed.

The state after a batch is made of the state before it and of the ids in the files that the batch has landed. It stands
in a directory of its own:

    after=<batch>/complete    producer_id, epoch, complete              the last bucket of the full ones from 1 on
    after=<batch>/rest        producer_id, epoch, bucket, filled, bits  the others; one of the last two is null

In an earlier form the rest was ``buckets``, without ``filled``, and a bucket without bits was full. It is read on.
Whoever knows that form alone finds no ``buckets`` here and stops, and does not take a bucket of 99 for a full one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark.bitmaps import BUCKET_SIZE, bit_of, bucket_of, first_bits, is_set
from aiorecover.spark.files import Files
from aiorecover.spark.written import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LandedIds", "empty", "read"]

_EPOCH = ["producer_id", "epoch"]
_BUCKET = [*_EPOCH, "bucket"]
_REST, _EARLIER_REST = "rest", "buckets"
_COMPLETE_SCHEMA = "producer_id string, epoch int, complete bigint"
_BUCKETS_SCHEMA = "producer_id string, epoch int, bucket bigint, filled int, bits binary"


@dataclass(frozen=True)
class LandedIds:
    """The state after a batch, as two data frames."""

    complete: DataFrame
    buckets: DataFrame

    def marked(self, records: DataFrame, name: str) -> DataFrame:
        """The rows with a column of this name: whether their ids are among these, which of rows without one is not."""
        placed = records.withColumn("bucket", bucket_of(F.col("sequence")))
        placed = placed.withColumn("bit", bit_of(F.col("sequence")).cast("int"))
        joined = placed.join(self.complete, _EPOCH, "left").join(self.buckets, _BUCKET, "left")
        landed = (F.col("bucket") <= F.col("complete")) | (F.col("bit") < F.col("filled")) | is_set("bits", "bit")
        return joined.select(*records.columns, F.coalesce(landed, F.lit(False)).alias(name))  # noqa: FBT003 - a literal

    def with_landed(self, records: DataFrame) -> LandedIds:
        """The state when the ids of these rows have been landed, too; none of them was landed before."""
        ids = records.select(*_EPOCH, "sequence").where("sequence is not null")
        added = ids.groupBy(*_EPOCH, bucket_of(F.col("sequence")).alias("bucket")).agg(
            F.bitmap_construct_agg(bit_of(F.col("sequence"))).alias("bits")
        )
        is_full = F.col("filled").eqNullSafe(BUCKET_SIZE)
        partial = self.buckets.where(~is_full).select(*_BUCKET, F.coalesce("bits", first_bits("filled")).alias("bits"))
        merged = partial.unionByName(added).groupBy(*_BUCKET)
        counted = merged.agg(F.bitmap_or_agg("bits").alias("bits")).withColumn("count", F.bitmap_count("bits"))
        first = F.col("bits") == first_bits("count")
        parts = counted.select(
            *_BUCKET,
            F.when(first, F.col("count").cast("int")).alias("filled"),
            F.when(~first, F.col("bits")).alias("bits"),
        )
        return self._advanced(parts.unionByName(self.buckets.where(is_full)))

    def without(self, epochs: DataFrame) -> LandedIds:
        """The state without these epochs, of which nothing new can come any more."""
        return LandedIds(*(state.join(epochs, _EPOCH, "left_anti") for state in (self.complete, self.buckets)))

    def counts(self) -> DataFrame:
        """How many records of each producer and epoch have been landed: ``landed``."""
        complete = self.complete.select(*_EPOCH, (F.col("complete") * BUCKET_SIZE).alias("landed"))
        of_bucket = F.coalesce(F.col("filled").cast("bigint"), F.bitmap_count("bits"))
        both = complete.unionByName(self.buckets.select(*_EPOCH, of_bucket.alias("landed")))
        return both.groupBy(*_EPOCH).agg(F.sum("landed").alias("landed"))

    def _advanced(self, buckets: DataFrame) -> LandedIds:
        """The full buckets that follow the last complete one without a gap become complete, too."""
        base = F.coalesce("complete", F.lit(0).cast("bigint"))
        number = F.row_number().over(Window.partitionBy(*_EPOCH, "is_full").orderBy("bucket"))
        placed = (
            buckets.withColumn("is_full", F.col("filled").eqNullSafe(BUCKET_SIZE))
            .join(self.complete, _EPOCH, "left")
            .select(
                *_BUCKET, "filled", "bits", (F.col("is_full") & (F.col("bucket") == base + number)).alias("follows")
            )
        )
        followed = placed.where("follows").groupBy(*_EPOCH).agg(F.max("bucket").alias("complete"))
        complete = self.complete.unionByName(followed).groupBy(*_EPOCH).agg(F.max("complete").alias("complete"))
        return LandedIds(complete, placed.where("not follows").select(*_BUCKET, "filled", "bits"))

    def write(self, directory: str) -> None:
        """Store it as files; not all at once, so in a directory that nobody reads yet.

        Raises:
            ConfigError: fewer rows stand there than Spark has written.

        """
        write_whole(self.complete.coalesce(1), f"{directory}/complete")
        # Uncompressed, because Spark takes the size of files for the room that they need when it chooses a join.
        write_whole(self.buckets, f"{directory}/{_REST}", compression="uncompressed")


def empty(spark: SparkSession) -> LandedIds:
    """Nothing has been landed yet."""
    nothing = spark.range(0)
    return LandedIds(*(nothing.selectExpr(*_nulls(schema)) for schema in (_COMPLETE_SCHEMA, _BUCKETS_SCHEMA)))


def _nulls(schema: str) -> list[str]:
    return [f"cast(null as {kind}) as {name}" for name, kind in (field.split() for field in schema.split(", "))]


def read(spark: SparkSession, directory: str) -> LandedIds:
    """What `LandedIds.write` has stored, or an earlier version."""
    complete = spark.read.schema(_COMPLETE_SCHEMA).parquet(f"{directory}/complete")
    rest, earlier = f"{directory}/{_REST}", f"{directory}/{_EARLIER_REST}"
    if Files(spark, directory).exists(rest):
        return LandedIds(complete, spark.read.schema(_BUCKETS_SCHEMA).parquet(rest))
    full = F.when(F.col("bits").isNull(), BUCKET_SIZE)
    buckets = spark.read.schema(_BUCKETS_SCHEMA).parquet(earlier)
    return LandedIds(complete, buckets.withColumn("filled", F.coalesce("filled", full)))
