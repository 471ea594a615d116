"""The reports of producers on their own records (``audit_topic``), and the verdicts on missing records that follow.

`aiorecover.manifests` says what a manifest claims. The newest manifest of each key counts, and those of an epoch are
read together: the highest numbers and the union of the ranges. Missing and reported ranges meet by their edges, in
order, epoch by epoch, so ranges travel, and neither records nor sequences.

What an epoch accepted after its newest manifest is not known: where a machine dies in an outage, which holds up
manifests, too, only the ring has it. So `unknown` counts the epochs of which that may be so. An epoch is open until it
is sealed, or until something of a later epoch of its directory is settled: settling goes through epochs in order, so
nothing of the earlier one waits by then. (Copies of a directory are one directory here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.manifests import VERSION
from aiorecover.spark.bitmaps import joined
from aiorecover.spark.frames import WHOLE, Persisted, check_columns
from aiorecover.spark.record_id import EPOCH_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["BEHIND", "NOT_IN_TABLE", "Manifests", "judge", "of_table", "read_manifests", "unknown"]

BEHIND = "behind_open_transaction"
NOT_IN_TABLE = "not_in_table"
"""Only in audits of a table, besides the others: see `of_table`."""

_KINDS = ("dead_lettered", "damaged")
_SCHEMA = (
    "version int, producer_id string, epoch int, time_ms bigint, last bigint, settled bigint, sealed boolean, "
    + ", ".join(f"{kind} array<array<bigint>>" for kind in _KINDS)
)


@dataclass(frozen=True)
class Manifests(Persisted):
    """The manifests of an audit topic, as data frames; the first use of one of them reads it, once."""

    epochs: DataFrame
    """One row for each ``producer_id`` and ``epoch``: ``last`` sequence given out, ``settled`` up to where,
    ``sealed_at`` (the last sequence when the epoch was closed; null: no manifest says so), ``time_ms`` of the newest
    manifest, ``open``: whether it may have accepted more after that manifest. Each epoch whose producer lives is open.
    What a producer that died accepted after it is in its directory alone, until that is opened again."""
    ranges: DataFrame
    """One row for each reported range of sequences: ``producer_id``, ``epoch``, ``kind`` (``dead_lettered``,
    ``damaged``), ``first``, ``last``; some more than once."""
    unreadable: DataFrame
    """One row: ``count``, of keys whose newest record is no manifest of a known version."""
    _buckets: DataFrame


def read_manifests(df: DataFrame) -> Manifests:
    """Read an audit topic; ``df`` has the columns of Spark's Kafka source.

    Use it before the topics are read that it reports on: else a record that is delivered in between is called lost.

    Raises:
        ConfigError: columns are absent or of another type.

    """
    needed = ("key", "value", "partition", "offset")
    check_columns("the manifests", df, {"partition": WHOLE, "offset": WHOLE}, needed=needed)
    newest = df.groupBy("key", "partition").agg(F.max_by("value", "offset").alias("value")).where("value is not null")
    rows = newest.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("one")).select("one.*").persist()
    known = F.coalesce(F.col("version") == VERSION, F.lit(False)) & F.col("last").isNotNull()  # noqa: FBT003 - a literal
    manifests = rows.where(known)
    epochs = manifests.groupBy(*EPOCH_COLUMNS).agg(
        F.max("last").alias("last"),
        F.max("settled").alias("settled"),
        F.max(F.when(F.col("sealed"), F.col("last"))).alias("sealed_at"),
        F.max("time_ms").alias("time_ms"),
    )
    newest_settled = F.max(F.when(F.col("settled") > 0, F.col("epoch"))).over(Window.partitionBy("producer_id"))
    is_passed = F.coalesce(F.col("epoch") < newest_settled, F.lit(False))  # noqa: FBT003 - a literal
    return Manifests(
        epochs=epochs.withColumn("open", F.col("sealed_at").isNull() & ~is_passed),
        ranges=reduce(DataFrame.unionByName, [_ranges(manifests, kind) for kind in _KINDS]),
        unreadable=rows.where(~known).agg(F.count(F.lit(1)).alias("count")),
        _buckets=rows,
    )


def _ranges(manifests: DataFrame, kind: str) -> DataFrame:
    pairs = manifests.select(*EPOCH_COLUMNS, F.explode(kind).alias("pair"))
    return pairs.selectExpr(*EPOCH_COLUMNS, f"'{kind}' as kind", "pair[0] as first", "pair[1] as last")


def judge(missing: DataFrame, epochs: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return ``missing`` with the columns ``verdict`` and ``why``, cut where these change.

    ``missing`` as in `Audit`, the others as in `Manifests`; an epoch may have several rows. ``verdict``:
    ``dead_lettered``; ``in_ring``: not settled, as far as its producer has reported; ``lost``, and ``why``
    (``damaged`` in the ring; ``settled``: its producer got the acknowledgement; ``gone``: it was accepted, and not
    found when the epoch was closed); ``untold``: its epoch has no manifest. ``behind_open_transaction`` comes before
    all of these: the record is in ``ranges`` of that kind, so it is in Kafka, and not decided yet.

    That is for topics. Where ``missing`` is what a table lacks, ``settled`` does not mean lost: `audit` says
    ``not_in_table`` then, if it was given the table's name or path.
    """
    settled = epochs.where("settled > 0").withColumns({"first": F.lit(1), "last": F.col("settled")})
    sealed = epochs.where("sealed_at is not null")
    edges = [
        *_edges(_of_kind(missing, "missing")),
        *_edges(ranges),
        *_edges(_of_kind(settled, "settled")),
        _edge(_of_kind(epochs, "reported"), F.lit(0), 1),
        _edge(_of_kind(sealed, "gone"), F.col("sealed_at") + 1, 1),
    ]
    pieces = joined(_cut(reduce(DataFrame.unionByName, edges)), ["verdict", "why"])
    return pieces.select(*EPOCH_COLUMNS, "first", "last", "count", "verdict", "why")


def unknown(producers: DataFrame, epochs: DataFrame) -> DataFrame:
    """Return one row of what no manifest reports, as in the ``totals`` of an audit with ``manifests``.

    ``producers`` as in `Audit`, ``epochs`` as in `Manifests`.
    """
    name = F.concat_ws("/", *EPOCH_COLUMNS)
    open_ones = epochs.where("open").agg(
        F.count(F.lit(1)).alias("open_epochs"),
        F.min_by(name, F.struct("time_ms", name)).alias("open_oldest"),
        F.min("time_ms").alias("open_told_ms"),
    )
    found = producers.where("found > 0")  # of the others at least the last sequence is known
    untold = found.join(epochs, EPOCH_COLUMNS, "left_anti").agg(F.count(F.lit(1)).alias("untold_epochs"))
    return open_ones.crossJoin(untold)


def of_table(verdicts: DataFrame) -> DataFrame:
    """Return verdicts for a table that topics are landed in: ``not_in_table`` instead of ``lost`` and ``settled``.

    The acknowledgement says that the record was in Kafka. It may wait there to be landed, and only an audit of the
    topics shows whether it is lost.
    """
    settled = (F.col("verdict") == "lost") & F.col("why").eqNullSafe("settled")
    return verdicts.withColumn("verdict", F.when(settled, NOT_IN_TABLE).otherwise(F.col("verdict")))


def _of_kind(df: DataFrame, kind: str) -> DataFrame:
    return df.withColumn("kind", F.lit(kind))


def _edges(ranges: DataFrame) -> list[DataFrame]:
    return [_edge(ranges, F.col("first"), 1), _edge(ranges, F.col("last") + 1, -1)]


def _edge(ranges: DataFrame, at: Column, step: int) -> DataFrame:
    return ranges.select(*EPOCH_COLUMNS, "kind", at.cast("bigint").alias("at"), F.lit(step).alias("step"))


def _cut(edges: DataFrame) -> DataFrame:
    """The pieces of missing ranges, from one edge of any kind to the next."""
    kinds = ("missing", *_KINDS, BEHIND, "settled", "gone", "reported")
    steps = {kind: F.sum(F.when(F.col("kind") == kind, F.col("step")).otherwise(0)).alias(kind) for kind in kinds}
    places = edges.groupBy(*EPOCH_COLUMNS, "at").agg(*steps.values())
    in_order = Window.partitionBy(*EPOCH_COLUMNS).orderBy("at")
    within = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    pieces = places.select(
        *EPOCH_COLUMNS,
        F.col("at").alias("first"),
        (F.lead("at").over(in_order) - 1).alias("last"),
        *((F.sum(kind).over(within) > 0).alias(kind) for kind in kinds),
    ).where("missing")
    why = F.when(F.col("damaged"), "damaged").when(F.col("settled"), "settled").when(F.col("gone"), "gone")
    verdict = (
        F.when(F.col(BEHIND), BEHIND)
        .when(~F.col("reported"), "untold")
        .when(F.col("dead_lettered"), "dead_lettered")
        .when(why.isNotNull(), "lost")
        .otherwise("in_ring")
    )
    judged = pieces.select(*EPOCH_COLUMNS, "first", "last", verdict.alias("verdict"), why.alias("why"))
    return judged.withColumn("why", F.when(F.col("verdict") == "lost", F.col("why")))
