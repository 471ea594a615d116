"""What producers say of their own records (``audit_topic``), and what that makes of those that are missing.

`aiorecover.manifests` says what a manifest claims. Of each key the newest counts, and of an epoch all together:
the highest numbers and the union of the ranges. Missing ranges and told ranges meet by their edges, in order, epoch by
epoch: so what travels are ranges, and neither records nor sequences.

What nobody has told is not known here, above all what an epoch accepted since its last manifest: a machine that dies
in an outage, which holds up manifests as well, leaves no trace of it but in its ring. So it is counted of how many
epochs that may be said (`unknown`), next to what is found. An epoch is open until it is sealed; or until something of a
later epoch of its directory is settled, since what is settled goes over epochs in their order: nothing of the earlier
one waits by then, told or not. (So ends an epoch whose seal never came. Copies of a directory are one here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.manifests import VERSION
from aiorecover.spark.bitmaps import joined
from aiorecover.spark.handed_over import WHOLE, check_columns, check_frame
from aiorecover.spark.persisted import Persisted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

__all__ = ["BEHIND", "NOT_IN_TABLE", "VERDICTS", "Manifests", "judge", "of_table", "read_manifests", "unknown"]

BEHIND = "behind_open_transaction"
VERDICTS = ("lost", "untold", "in_ring", "dead_lettered", BEHIND)
NOT_IN_TABLE = "not_in_table"
"""Of a table alone, beside the others: see `of_table`."""

_EPOCH = ["producer_id", "epoch"]
_NEEDED = ["key", "value", "partition", "offset"]
_KINDS = ("dead_lettered", "damaged")
_PAIRS = "array<array<bigint>>"
_SCHEMA = (
    "version int, producer_id string, epoch int, time_ms bigint, last bigint, settled bigint, sealed boolean, "
    + ", ".join(f"{kind} {_PAIRS}" for kind in _KINDS)
)


@dataclass(frozen=True)
class Manifests(Persisted):
    """What an audit topic says, as data frames; nothing runs until one of them is used, and then it is read once."""

    epochs: DataFrame
    """One row for each ``producer_id`` and ``epoch``: ``last`` sequence given out, ``settled`` up to where,
    ``sealed_at`` (the last one that was left when the epoch was closed; null: nobody has told that), ``time_ms`` of the
    newest manifest, ``open``: whether it may have accepted more than was told, since then (it is not sealed, and
    nothing of a later epoch of its directory is settled). Each one whose producer lives is. What one that died has
    accepted since stands in its directory alone, until that is opened again."""
    ranges: DataFrame
    """One row for each range of sequences that was told of: ``producer_id``, ``epoch``, ``kind`` (``dead_lettered``,
    ``damaged``), ``first``, ``last``; some more than once."""
    unreadable: DataFrame
    """One row: ``count``, of keys whose newest record is no manifest of a version that is known here."""
    _buckets: DataFrame


def read_manifests(df: DataFrame) -> Manifests:
    """Read an audit topic; ``df`` has the columns of Spark's Kafka source.

    It is read when it is first used. So that a record which is delivered in between is not called lost, that should be
    before the topics are read which it tells of.

    Raises:
        ConfigError: columns are absent or of another type, or it is no data frame.

    """
    check_frame("df", df, "read the audit topic with read_topics(...)")
    absent = [name for name in _NEEDED if name not in df.columns]
    if absent:
        raise ConfigError(f"manifests are read from Kafka's columns: absent={absent}")
    check_columns("the manifests", df, {"partition": WHOLE, "offset": WHOLE})
    newest = df.groupBy("key", "partition").agg(F.max_by("value", "offset").alias("value")).where("value is not null")
    rows = newest.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("told")).select("told.*").persist()
    known = F.coalesce(F.col("version") == VERSION, F.lit(False)) & F.col("last").isNotNull()  # noqa: FBT003 - a literal
    told = rows.where(known)
    epochs = told.groupBy(*_EPOCH).agg(
        F.max("last").alias("last"),
        F.max("settled").alias("settled"),
        F.max(F.when(F.col("sealed"), F.col("last"))).alias("sealed_at"),
        F.max("time_ms").alias("time_ms"),
    )
    return Manifests(
        epochs=epochs.withColumn("open", _is_open()),
        ranges=reduce(DataFrame.unionByName, [_ranges(told, kind) for kind in _KINDS]),
        unreadable=rows.where(~known).agg(F.count(F.lit(1)).alias("count")),
        _buckets=rows,
    )


def _is_open() -> Column:
    directory = Window.partitionBy("producer_id")
    newest_settled = F.max(F.when(F.col("settled") > 0, F.col("epoch"))).over(directory)
    is_passed = F.coalesce(F.col("epoch") < newest_settled, F.lit(False))  # noqa: FBT003 - a literal
    return F.col("sealed_at").isNull() & ~is_passed


def _ranges(told: DataFrame, kind: str) -> DataFrame:
    pair = F.col("pair")
    return told.select(*_EPOCH, F.lit(kind).alias("kind"), F.explode(kind).alias("pair")).select(
        *_EPOCH, "kind", pair[0].alias("first"), pair[1].alias("last")
    )


def judge(missing: DataFrame, epochs: DataFrame, ranges: DataFrame) -> DataFrame:
    """What became of missing records: ``missing`` with the columns ``verdict`` and ``why``, cut where these change.

    ``missing`` as in `Audit`, the others as in `Manifests`; an epoch may be told of more than once. ``verdict``:
    ``dead_lettered``; ``in_ring``: not settled, as far as its producer has told;
    ``lost``, and ``why`` (``damaged`` in the rings; ``settled``: its producer has had the acknowledgement; ``gone``: it
    was accepted, and not found when the epoch was closed); ``untold``: there is no manifest of its epoch. Before all
    of these, ``behind_open_transaction``: in ``ranges`` of that kind, it is in Kafka and not decided yet.

    So it is of topics. Where ``missing`` is what a table lacks, ``settled`` does not mean lost: `audit` says
    ``not_in_table`` then, if it was given the table's name or path.
    """
    settled = epochs.select(
        *_EPOCH, F.lit("settled").alias("kind"), F.lit(1).alias("first"), F.col("settled").alias("last")
    )
    edges = [
        *_edges(missing.withColumn("kind", F.lit("missing"))),
        *_edges(ranges),
        *_edges(settled.where("last > 0")),
        _edge(epochs.withColumn("kind", F.lit("told")), F.lit(0), 1),
        _edge(epochs.where("sealed_at is not null").withColumn("kind", F.lit("gone")), F.col("sealed_at") + 1, 1),
    ]
    told_alike = ["verdict", "why"]
    pieces = joined(_cut(reduce(DataFrame.unionByName, edges)), [*_EPOCH, *told_alike])
    return pieces.select(*_EPOCH, "first", "last", "count", *told_alike)


def unknown(producers: DataFrame, epochs: DataFrame, told: Sequence[DataFrame]) -> DataFrame:
    """One row of what nobody has told, as in the ``totals`` of an audit with ``manifests``.

    ``producers`` as in `Audit`, ``epochs`` as in `Manifests`; ``told``: the epochs that anybody tells of, these among
    them.
    """
    name = F.concat_ws("/", *_EPOCH)
    open_ones = epochs.where("open").agg(
        F.count(F.lit(1)).alias("open_epochs"),
        F.min_by(name, F.struct("time_ms", name)).alias("open_oldest"),
        F.min("time_ms").alias("open_told_ms"),
    )
    all_told = reduce(DataFrame.unionByName, [one.select(*_EPOCH) for one in told])
    found = producers.where("found > 0")  # of others somebody says which is the last one, and nothing else is known
    untold = found.join(all_told, _EPOCH, "left_anti").agg(F.count(F.lit(1)).alias("untold_epochs"))
    return open_ones.crossJoin(untold)


def of_table(verdicts: DataFrame) -> DataFrame:
    """`judge`'s verdicts, where the records are those of a table that topics are landed in: ``not_in_table`` instead.

    That its producer has had the acknowledgement says of a record which the table lacks that it was in Kafka. It may
    wait there to be landed, and only an audit of the topics tells whether it is lost.
    """
    settled = (F.col("verdict") == "lost") & F.col("why").eqNullSafe("settled")
    return verdicts.withColumn("verdict", F.when(settled, NOT_IN_TABLE).otherwise(F.col("verdict")))


def _edges(ranges: DataFrame) -> list[DataFrame]:
    return [_edge(ranges, F.col("first"), 1), _edge(ranges, F.col("last") + 1, -1)]


def _edge(ranges: DataFrame, at: Column, step: int) -> DataFrame:
    return ranges.select(*_EPOCH, "kind", at.cast("bigint").alias("at"), F.lit(step).alias("step"))


def _cut(edges: DataFrame) -> DataFrame:
    """The pieces of what is missing, between two edges of anything."""
    kinds = ("missing", *_KINDS, BEHIND, "settled", "gone", "told")
    steps = {kind: F.sum(F.when(F.col("kind") == kind, F.col("step")).otherwise(0)).alias(kind) for kind in kinds}
    places = edges.groupBy(*_EPOCH, "at").agg(*steps.values())
    in_order = Window.partitionBy(*_EPOCH).orderBy("at")
    within = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    over = {kind: F.sum(kind).over(within) > 0 for kind in kinds}
    pieces = places.select(
        *_EPOCH,
        F.col("at").alias("first"),
        (F.lead("at").over(in_order) - 1).alias("last"),
        *(column.alias(kind) for kind, column in over.items()),
    ).where("missing")
    return pieces.select(*_EPOCH, "first", "last", _verdict().alias("verdict"), _why().alias("why"))


def _verdict() -> Column:
    return (
        F.when(F.col(BEHIND), BEHIND)
        .when(~F.col("told"), "untold")
        .when(F.col("dead_lettered"), "dead_lettered")
        .when(F.col("damaged") | F.col("settled") | F.col("gone"), "lost")
        .otherwise("in_ring")
    )


def _why() -> Column:
    lost = ~F.col(BEHIND) & F.col("told") & ~F.col("dead_lettered")
    why = F.when(F.col("damaged"), "damaged").when(F.col("settled"), "settled").when(F.col("gone"), "gone")
    return F.when(lost, why)
