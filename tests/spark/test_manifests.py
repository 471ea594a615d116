"""Missing records and what is told of them, beside sets of plain Python."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from aiorecover.delivery.manifest import Manifest, encode, key_of
from aiorecover.errors import ConfigError
from aiorecover.spark import audit, read_manifests
from tests.spark.feed import P, Q
from tests.support.manifests import told_in

Rows = list[tuple[bytes, bytes | None]]
LATER, LATEST = "abcdefg765432", "abcdefg222222"  # openings of the directory of P


def told(producer_id: str, epoch: int, by: str | None = None, part: int = 0, **said: Any) -> tuple[bytes, bytes]:
    given = {"last": 0, "settled": 0, "sealed": False, "time_ms": 1, **said}
    one = Manifest(producer_id=producer_id, epoch=epoch, told_by=by or producer_id, part=part, **given)
    return key_of(one), encode(one)


def topic_of(spark: SparkSession, rows: Rows) -> DataFrame:
    table = {
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
        "partition": pa.array([sum(key) % 2 for key, _ in rows], pa.int32()),
        "offset": pa.array(range(len(rows)), pa.int64()),
    }
    return spark.createDataFrame(pa.table(table))


def records(spark: SparkSession, identities: set[tuple[str, int, int]]) -> DataFrame:
    types = {"producer_id": pa.string(), "epoch": pa.int32(), "sequence": pa.int64()}
    columns = zip(*identities, strict=True) if identities else [[], [], []]
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, types.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, list(types)))


def audited(spark: SparkSession, rows: Rows, identities: set[tuple[str, int, int]]) -> list[dict[str, Any]]:
    with read_manifests(topic_of(spark, rows)) as said, audit(records(spark, identities), manifests=said) as found:
        assert found.verdicts is not None
        return [row.asDict() for row in found.verdicts.orderBy("producer_id", "epoch", "first").collect()]


def some_of(last: int, chance: random.Random) -> tuple[tuple[int, int], ...]:
    """Up to five ranges, of which some touch and overlap."""
    firsts = sorted(chance.sample(range(1, last + 1), min(last, 5)))
    return tuple((first, min(last, first + chance.randrange(4))) for first in firsts)


def expected(rows: Rows, identities: set[tuple[str, int, int]]) -> dict[tuple[str, int, int], str]:
    known = told_in([(key, value) for key, value in rows if value is not None])
    verdicts = {}
    for producer_id, epoch in {*known, *(one[:2] for one in identities)}:
        there = {sequence for *owner, sequence in identities if owner == [producer_id, epoch]}
        of_epoch = known.get((producer_id, epoch))
        for sequence in set(range(1, max([*there, of_epoch.last if of_epoch else 0]) + 1)) - there:
            verdicts[producer_id, epoch, sequence] = of_epoch.verdict(sequence) if of_epoch else "untold"
    return verdicts


def test_a_missing_tail_a_dead_letter_and_a_lost_record_in_the_middle_are_told_apart(spark: SparkSession) -> None:
    rows = [told(P, 1, last=50, settled=40), told(P, 1, last=60, settled=60, sealed=True, dead_lettered=((17, 18),))]
    identities = {(P, 1, sequence) for sequence in range(1, 58)} - {(P, 1, 17), (P, 1, 18), (P, 1, 30)}
    assert [tuple(row.values()) for row in audited(spark, [*rows], identities)] == [
        (P, 1, 17, 18, 2, "dead_lettered", None, False),
        (P, 1, 30, 30, 1, "lost", "settled", False),
        (P, 1, 58, 60, 3, "lost", "settled", True),
    ]


def test_what_is_in_the_ring_is_not_lost_before_the_epoch_is_closed_without_it(spark: SparkSession) -> None:
    rows: Rows = [told(P, 1, last=100, settled=80)]
    identities = {(P, 1, sequence) for sequence in range(1, 91)}
    assert [(row["first"], row["last"], row["verdict"]) for row in audited(spark, rows, identities)] == [
        (91, 100, "in_ring")
    ]
    rows.append(told(P, 1, by=LATER, last=95, settled=95, sealed=True))
    found = audited(spark, rows, identities)
    assert [(row["first"], row["last"], row["verdict"], row["why"]) for row in found] == [
        (91, 95, "lost", "settled"),
        (96, 100, "lost", "gone"),
    ]


def test_an_epoch_of_which_nothing_arrived_is_missing_whole_and_one_that_nobody_tells_of_is_untold(
    spark: SparkSession,
) -> None:
    rows: Rows = [told(P, 1, last=5, settled=5, sealed=True)]
    found = audited(spark, rows, {(Q, 7, 1), (Q, 7, 4)})
    assert [(row["producer_id"], row["first"], row["last"], row["verdict"], row["tail"]) for row in found] == [
        (P, 1, 5, "lost", True),
        (Q, 2, 3, "untold", False),
    ]


def test_of_a_table_by_its_path_what_its_producer_has_settled_is_not_in_it_and_the_rest_is_judged_as_ever(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows: Rows = [told(P, 1, last=9, settled=7, sealed=True, dead_lettered=((2, 2),), damaged=((4, 4),))]
    records(spark, {(P, 1, 1), (P, 1, 6), (Q, 7, 2)}).write.parquet(str(tmp_path / "table"))
    with read_manifests(topic_of(spark, rows)) as said, audit(str(tmp_path / "table"), manifests=said) as found:
        assert found.verdicts is not None
        verdicts = found.verdicts.orderBy("producer_id", "epoch", "first").collect()
    assert [(row["first"], row["last"], row["verdict"], row["why"]) for row in verdicts] == [
        (2, 2, "dead_lettered", None),
        (3, 3, "not_in_table", "settled"),
        (4, 4, "lost", "damaged"),
        (5, 5, "not_in_table", "settled"),
        (7, 7, "not_in_table", "settled"),
        (8, 9, "in_ring", None),
        (1, 1, "untold", None),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_are_those_of_plain_sets_in_ranges_as_long_as_they_go(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    rows: Rows = []
    identities: set[tuple[str, int, int]] = set()
    for owner, epoch in [(P, 1), (P, 2), (Q, 7), (Q, 1 << 20)]:
        last = chance.randrange(1, 120)
        identities |= {(owner, epoch, one) for one in range(1, last + 5) if chance.random() < 0.6}
        for by in chance.sample([owner, LATER, LATEST], chance.randrange(4)):
            for part in range(chance.randrange(1, 3)):
                ranges = {kind: some_of(last, chance) for kind in ("dead_lettered", "skipped", "damaged")}
                end = chance.randrange(last + 1)
                settled, sealed = chance.randrange(end + 1), chance.random() < 0.4
                rows.append(told(owner, epoch, by, part, last=end, settled=settled, sealed=sealed, **ranges))
    found = audited(spark, rows, identities)
    named = {
        (row["producer_id"], row["epoch"], sequence): row["verdict"]
        for row in found
        for sequence in range(row["first"], row["last"] + 1)
    }
    assert named == expected(rows, identities)
    assert sum(row["count"] for row in found) == len(named)
    said = {(row["producer_id"], row["epoch"], row["first"]): (row["verdict"], row["why"]) for row in found}
    for row in found:
        assert said.get((row["producer_id"], row["epoch"], row["last"] + 1)) != (row["verdict"], row["why"])


def test_of_a_key_the_newest_counts_and_what_is_no_manifest_is_counted(spark: SparkSession) -> None:
    stranger = json.dumps({**json.loads(told(P, 3, last=9)[1]), "version": 2}).encode()
    rows: Rows = [
        (b"k1", b"nonsense"),
        (b"k2", stranger),
        (b"k3", b"nonsense"),
        (b"k3", None),
        told(P, 1, last=4),
        told(P, 1, last=6, settled=5),
    ]
    with read_manifests(topic_of(spark, rows)) as said:
        assert said.unreadable.collect()[0]["count"] == 2
        assert [tuple(row)[:5] for row in said.epochs.collect()] == [(P, 1, 6, 5, None)]
    with pytest.raises(ConfigError, match="absent"):
        read_manifests(topic_of(spark, rows).drop("offset"))


def test_what_is_told_joins_what_is_known_of_the_last_sequences(spark: SparkSession) -> None:
    rows: Rows = [told(P, 1, last=5, settled=5)]
    with (
        read_manifests(topic_of(spark, rows)) as said,
        audit(records(spark, {(P, 1, 1)}), known_last={(P, 1): 7, (Q, 2): 2}, manifests=said) as found,
    ):
        expected_of = {(row["producer_id"], row["epoch"]): row["expected"] for row in found.producers.collect()}
    assert expected_of == {(P, 1): 7, (Q, 2): 2}


def open_in(spark: SparkSession, rows: Rows) -> set[tuple[str, int]]:
    with read_manifests(topic_of(spark, rows)) as said:
        return {(row["producer_id"], row["epoch"]) for row in said.epochs.where("open").collect()}


def test_an_epoch_without_a_seal_is_open_until_something_of_a_later_one_of_its_directory_is_settled(
    spark: SparkSession,
) -> None:
    rows: Rows = [told(P, 1, last=9, settled=9), told(Q, 7, last=3), told(Q, 8, last=3, sealed=True)]
    assert open_in(spark, rows) == {(P, 1), (Q, 7)}
    # The next start has told how far it knew of the epoch, and still reads; what it settled of its own comes behind.
    rows += [told(P, 1, by=LATER, last=12, settled=9), told(LATER, 2, last=5)]
    assert open_in(spark, rows) == {(P, 1), (LATER, 2), (Q, 7)}
    assert open_in(spark, [*rows, told(LATER, 2, last=5, settled=1)]) == {(LATER, 2), (Q, 7)}
    assert open_in(spark, [*rows, told(P, 1, by=LATER, last=14, settled=9, sealed=True)]) == {(LATER, 2), (Q, 7)}


def test_how_many_epochs_are_open_or_untold_is_counted_where_nothing_is_missing(spark: SparkSession) -> None:
    rows: Rows = [
        told(P, 1, last=2, settled=2, time_ms=5_000),
        told(P, 1, part=1, last=1, settled=1, time_ms=4_000),
        told(LATER, 2, last=1, settled=0, time_ms=9_000),
        told(Q, 7, last=1, settled=1, sealed=True, time_ms=2_000),
    ]
    identities = {(P, 1, 1), (P, 1, 2), (LATER, 2, 1), (Q, 7, 1), (Q, 8, 1), (Q, 9, 1)}

    def totals(told_of: Rows) -> dict[str, Any]:
        with (
            read_manifests(topic_of(spark, told_of)) as said,
            audit(records(spark, identities), manifests=said) as found,
        ):
            one: dict[str, Any] = found.totals.collect()[0].asDict()
        assert one["missing"] == 0
        return {name: one[name] for name in ("open_epochs", "open_oldest", "open_told_ms", "untold_epochs")}

    unknown = {"open_epochs": 2, "open_oldest": f"{P}/1", "open_told_ms": 5_000, "untold_epochs": 2}
    assert totals(rows) == unknown
    unknown = {"open_epochs": 0, "open_oldest": None, "open_told_ms": None, "untold_epochs": 4}
    assert totals(rows[3:]) == unknown
    with audit(records(spark, identities)) as found:
        assert not {"open_epochs", "untold_epochs"} & set(found.totals.columns), "nobody was to tell"


def test_of_an_epoch_of_which_nothing_is_found_it_is_not_said_that_it_was_found_without_a_manifest(
    spark: SparkSession,
) -> None:
    known = {(Q, 3): 2, (Q, 4): 2}
    with (
        read_manifests(topic_of(spark, [told(P, 1, last=1, settled=1)])) as said,
        audit(records(spark, {(P, 1, 1), (Q, 3, 1)}), manifests=said, known_last=known) as found,
    ):
        assert found.verdicts is not None
        one = found.totals.collect()[0]
        untold = {(row["epoch"], row["count"]) for row in found.verdicts.where("verdict = 'untold'").collect()}
    assert (one["epochs"], one["untold_epochs"]) == (3, 1)
    assert untold == {(3, 1), (4, 2)}
