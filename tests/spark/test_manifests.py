"""Verdicts over missing records by the manifests of their producers, beside sets of plain Python."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import audit, read_manifests
from tests.spark.feed import P, Q, manifest
from tests.spark.frames import Identity, frame, id_rows

Rows = list[tuple[bytes, bytes | None]]
Identities = set[Identity]
KINDS = ("dead_lettered", "damaged")


def topic_of(spark: SparkSession, rows: Rows) -> DataFrame:
    table = {
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
        "partition": pa.array([sum(key) % 2 for key, _ in rows], pa.int32()),
        "offset": pa.array(range(len(rows)), pa.int64()),
    }
    return frame(spark, pa.table(table))


def verdicts(spark: SparkSession, rows: Rows, records: DataFrame | str) -> list[tuple[Any, ...]]:
    """Return (producer id, epoch, first, last, count, verdict, why, tail) of each missing range."""
    with read_manifests(topic_of(spark, rows)) as manifests, audit(records, manifests=manifests) as found:
        assert found.verdicts is not None
        return [tuple(row) for row in found.verdicts.orderBy("producer_id", "epoch", "first").collect()]


def test_a_missing_tail_a_dead_letter_and_a_lost_record_get_different_verdicts(spark: SparkSession) -> None:
    rows: Rows = [
        manifest(P, 1, last=50, settled=40),
        manifest(P, 1, last=60, settled=60, sealed=True, dead_lettered=((17, 18),)),
        manifest(P, 2, last=100, settled=80),
        manifest(P, 3, last=100, settled=80),
        manifest(P, 3, 1, last=95, settled=95, sealed=True),
        manifest(P, 4, last=5, settled=5, sealed=True),
    ]
    identities = {(P, 1, sequence) for sequence in range(1, 58)} - {(P, 1, 17), (P, 1, 18), (P, 1, 30)}
    identities |= {(P, epoch, sequence) for epoch in (2, 3) for sequence in range(1, 91)} | {(Q, 7, 1), (Q, 7, 4)}
    assert verdicts(spark, rows, id_rows(spark, identities)) == [
        (P, 1, 17, 18, 2, "dead_lettered", None, False),
        (P, 1, 30, 30, 1, "lost", "settled", False),
        (P, 1, 58, 60, 3, "lost", "settled", True),
        (P, 2, 91, 100, 10, "in_ring", None, True),
        (P, 3, 91, 95, 5, "lost", "settled", True),
        (P, 3, 96, 100, 5, "lost", "gone", True),
        (P, 4, 1, 5, 5, "lost", "settled", True),
        (Q, 7, 2, 3, 2, "untold", None, False),
    ]


def test_a_settled_record_that_a_table_lacks_gets_the_verdict_not_in_table(spark: SparkSession, tmp_path: Path) -> None:
    rows: Rows = [manifest(P, 1, last=9, settled=7, sealed=True, dead_lettered=((2, 2),), damaged=((4, 4),))]
    id_rows(spark, {(P, 1, 1), (P, 1, 6)}).write.parquet(str(tmp_path / "table"))
    assert [row[2:4] + row[5:7] for row in verdicts(spark, rows, str(tmp_path / "table"))] == [
        (2, 2, "dead_lettered", None),
        (3, 3, "not_in_table", "settled"),
        (4, 4, "lost", "damaged"),
        (5, 5, "not_in_table", "settled"),
        (7, 7, "not_in_table", "settled"),
        (8, 9, "in_ring", None),
    ]


def draw_ranges(last: int, chance: random.Random) -> list[tuple[int, int]]:
    """Return up to five ranges, some of which touch or overlap."""
    firsts = sorted(chance.sample(range(1, last + 1), min(last, 5)))
    return [(first, min(last, first + chance.randrange(4))) for first in firsts]


def expected_verdicts(rows: Rows, identities: Identities) -> dict[tuple[str, int, int], str]:
    """Return the verdicts by the highest numbers and the union of the ranges, sequence by sequence."""
    verdicts = {}
    manifests = [json.loads(value) for _, value in rows if value is not None]
    owners = {(one["producer_id"], one["epoch"]) for one in manifests} | {one[:2] for one in identities}
    for owner in owners:
        of_epoch = [one for one in manifests if (one["producer_id"], one["epoch"]) == owner]
        there = {sequence for *epoch, sequence in identities if tuple(epoch) == owner}
        last = max([*there, *(one["last"] for one in of_epoch)])
        settled = max((one["settled"] for one in of_epoch), default=0)
        sealed = max((one["last"] for one in of_epoch if one["sealed"]), default=last)
        for sequence in set(range(1, last + 1)) - there:
            named = [
                kind
                for kind in KINDS
                if any(low <= sequence <= high for one in of_epoch for low, high in one.get(kind, ()))
            ]
            verdict = "lost" if "damaged" in named or sequence <= settled or sequence > sealed else "in_ring"
            verdict = "dead_lettered" if "dead_lettered" in named else verdict
            verdicts[*owner, sequence] = verdict if of_epoch else "untold"
    return verdicts


def test_verdicts_equal_those_of_plain_sets_and_are_named_in_the_longest_ranges(spark: SparkSession) -> None:
    chance = random.Random(1)
    rows: Rows = []
    identities: Identities = set()
    for owner, epoch in [(P, 1), (P, 2), (P, 3), (Q, 1), (Q, 7), (Q, 8), (Q, 1 << 20)]:
        last = chance.randrange(1, 120)
        identities |= {(owner, epoch, one) for one in range(1, last + 5) if chance.random() < 0.6}
        for part in range(chance.randrange(5)):
            ranges = {kind: draw_ranges(last, chance) for kind in KINDS}
            end = chance.randrange(last + 1)
            settled, sealed = chance.randrange(end + 1), chance.random() < 0.4
            rows.append(manifest(owner, epoch, part, last=end, settled=settled, sealed=sealed, **ranges))
    found = verdicts(spark, rows, id_rows(spark, identities))
    named = {
        (producer, epoch, sequence): verdict
        for producer, epoch, first, last, _, verdict, *_ in found
        for sequence in range(first, last + 1)
    }
    assert named == expected_verdicts(rows, identities)
    assert sum(row[4] for row in found) == len(named)
    by_first = {row[:3]: row[5:7] for row in found}
    assert not [row for row in found if by_first.get((*row[:2], row[3] + 1)) == row[5:7]], "ranges touch and are two"


def test_the_newest_manifest_of_a_key_is_used_and_unreadable_ones_are_counted(spark: SparkSession) -> None:
    rows: Rows = [manifest(P, 1, last=4), manifest(P, 1, last=6, settled=5)]
    rows += [(b"k1", b"nonsense"), (b"k2", manifest(P, 3, last=9, version=2)[1]), (b"k3", b"nonsense"), (b"k3", None)]
    with read_manifests(topic_of(spark, rows)) as manifests:
        assert manifests.unreadable.collect()[0]["count"] == 2
        assert [tuple(row)[:5] for row in manifests.epochs.collect()] == [(P, 1, 6, 5, None)]


def test_open_epochs_and_epochs_without_manifest_are_counted_where_nothing_is_missing(spark: SparkSession) -> None:
    rows: Rows = [
        manifest(P, 1, last=2, settled=2, time_ms=5_000),  # not open: a record of a later epoch is settled
        manifest(P, 2, last=1, settled=1, time_ms=9_000),
        manifest(P, 3, last=1, settled=0, time_ms=9_500),
        manifest(Q, 7, last=1, settled=1, sealed=True, time_ms=2_000),
    ]
    identities = {(P, 1, 1), (P, 1, 2), (P, 2, 1), (P, 3, 1), (Q, 7, 1), (Q, 8, 1)}
    records = id_rows(spark, identities)
    with read_manifests(topic_of(spark, rows)) as manifests, audit(records, manifests=manifests) as found:
        totals = found.totals.collect()[0].asDict()
    expected = {"missing": 0, "open_epochs": 2, "open_oldest": f"{P}/2", "open_told_ms": 9_000, "untold_epochs": 1}
    assert totals.items() >= expected.items()
