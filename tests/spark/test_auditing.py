"""The audit beside plain Python: each producer below has faults of its own, and one audit finds them all."""

import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, SEQUENCE_MAX
from aiorecover.spark import audit
from tests.spark.by_hand import Epoch, Stored, examine, write_files
from tests.spark.frames import frame, id_rows
from tests.spark.lakes import lake

BUCKET = 32_768
WHOLE, HOLES, BORDERS, FAR, ALTERNATING, REPEATED, MIXED, HEADLESS, OLD_EPOCH, RANDOM, SPLIT, GONE = (
    f"{letter:a<13}" for letter in "bcdefghijklm"
)
KNOWN = {(WHOLE, 1): 5, (HOLES, 1): 20, (GONE, 4): 3, (BORDERS, 1): 3 * BUCKET + 2, (FAR, 1): 7}

# Sequences in the order of their offsets in one partition.
SEQUENCES: dict[tuple[str, int], list[int]] = {
    (WHOLE, 1): [1, 2, 3, 4, 5],
    (WHOLE, 2): [1],
    (HOLES, 1): [2, 3, 5, 9, 10, 16],
    (BORDERS, 1): [1, BUCKET - 1, BUCKET + 2, 2 * BUCKET, 2 * BUCKET + 1, 3 * BUCKET],
    # Whole buckets are missing; the greatest sequence.
    (FAR, 1): [1, 40 * BUCKET + 7],
    (FAR, EPOCH_MAX): [SEQUENCE_MAX],
    (ALTERNATING, 1): list(range(1, 2 * BUCKET, 2)),
    (REPEATED, 1): [1, 2, 3, 4, 2, 3, 4, 5, 5, 1],
    (MIXED, 1): [1, 3, 2, 5, 4, 2, 6, 10, 7, 8, 9, 8],
    (HEADLESS, 1): list(range(100, 120)),
    # A range of repeats goes on in the next bucket.
    (SPLIT, 1): [*range(1, BUCKET + 3), BUCKET, BUCKET + 1, BUCKET + 6, BUCKET + 5, *range(BUCKET - 1, BUCKET + 5), 7],
}


@cache
def stored() -> list[Stored]:
    """Return all records, in the order of their offsets."""
    chance = random.Random(8)
    log = [
        Stored("plain", 0, 0, (producer_id, epoch, sequence))
        for (producer_id, epoch), sequences in SEQUENCES.items()
        for sequence in sequences
    ]
    # A record of an earlier epoch after one of a later epoch is out of order, too.
    starts = [(1, 1), (2, 1), (1, 2), (2, 2)]
    log += [Stored("plain", 0, 0, (OLD_EPOCH, epoch, number)) for epoch, number in starts]
    # A record in two partitions is in order if it is so in one of them.
    log += [Stored("plain", partition, 0, (OLD_EPOCH, 5, 1)) for partition in (1, 2)]
    log += [Stored("plain", 2, 0, (OLD_EPOCH, 5, 3)), Stored("plain", 2, 0, (OLD_EPOCH, 5, 2))]
    log += [Stored("plain", 1, 0, (OLD_EPOCH, 5, 2))]
    log += [Stored("plain", 1, 0, None)] * 7
    log += scattered(chance)
    return [one._replace(offset=offset) for offset, one in enumerate(log)]


def scattered(chance: random.Random) -> list[Stored]:
    """Return 80,000 records in 12 partitions of two topics, some left out, some repeated, some out of order."""
    log: list[Stored] = []
    lost = {*chance.sample(range(1, 80_000), 300), *range(30_000, 36_000), *range(65_530, 65_540)}
    for sequence in range(1, 80_001):
        partition = chance.choice(["one", "two"]), chance.randrange(6)
        if sequence not in lost:
            log.append(Stored(*partition, 0, (RANDOM, 2, sequence)))
        if chance.random() < 0.01:
            log.append(chance.choice(log[-500:]))
        if chance.random() < 0.01:
            at = chance.randrange(max(0, len(log) - 100), len(log))
            log.append(log.pop(at))
    return log


class Found(NamedTuple):
    epochs: dict[tuple[str, int], Epoch]
    totals: dict[str, Any]


def ranges(found: DataFrame) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return the ranges of each producer and epoch, in order."""
    by_epoch: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in sorted(found.collect()):
        assert row["count"] == row["last"] - row["first"] + 1
        by_epoch.setdefault((row["producer_id"], row["epoch"]), []).append((row["first"], row["last"]))
    return by_epoch


def collect_audit(records: DataFrame) -> Found:
    """Audit the records; check that its data frames agree with one another."""
    with audit(records, known_last=KNOWN) as found:
        repeated = {
            (row["producer_id"], row["epoch"]): row["repeated"]
            for row in found.repeated.groupBy("producer_id", "epoch").agg(F.sum("repeated").alias("repeated")).collect()
        }
        missing, repeats, out_of_order = map(ranges, (found.missing, found.repeated, found.out_of_order))
        epochs = {}
        for row in found.producers.collect():
            key = row["producer_id"], row["epoch"]
            gaps = missing.pop(key, [])
            assert row["missing"] == sum(last - first + 1 for first, last in gaps)
            assert row["repeated"] == repeated.pop(key, 0)
            counts = row["expected"], row["found"], gaps, row["repeated"], row["out_of_order"]
            epochs[key] = Epoch(row["first"], row["last"], *counts, repeats.pop(key, []), out_of_order.pop(key, []))
        assert missing == repeats == out_of_order == repeated == {}
        return Found(epochs, found.totals.collect()[0].asDict())


@pytest.fixture(scope="module")
def records(spark: SparkSession, module_path: Path) -> DataFrame:
    write_files(module_path, stored(), [10, 40_000, 40_100, 130_000])
    return spark.read.parquet(str(module_path))


@pytest.fixture(scope="module")
def found(records: DataFrame) -> Found:
    return collect_audit(records)


HUGE = {(FAR, EPOCH_MAX)}  # plain Python would count for hours
EXPECTED = examine([one for one in stored() if one.identity is None or one.identity[:2] not in HUGE], KNOWN)


def test_the_audit_equals_plain_python_for_each_epoch(found: Found) -> None:
    end = SEQUENCE_MAX
    assert found.epochs == EXPECTED | {(FAR, EPOCH_MAX): Epoch(end, end, end, 1, [(1, end - 1)], 0, 0)}
    log = stored()
    assert found.totals["records"] == len(log)
    assert found.totals["without_id"] == 7
    assert found.totals["epochs"] == len(found.epochs)
    assert found.totals["found"] == len({one.identity for one in log if one.identity})
    for column in ("expected", "repeated", "out_of_order"):
        assert found.totals[column] == sum(getattr(epoch, column) for epoch in found.epochs.values())
    assert found.totals["missing"] == found.totals["expected"] - found.totals["found"]


def test_the_records_really_have_the_faults(found: Found) -> None:
    scattered_epoch = found.epochs[RANDOM, 2]
    assert len(scattered_epoch.missing) > 250
    assert (65_530, 65_539) in scattered_epoch.missing
    assert min(scattered_epoch.repeated, scattered_epoch.out_of_order or 0) > 300
    assert found.epochs[MIXED, 1].out_of_order_ranges == [(2, 2), (4, 4), (7, 9)]
    assert found.epochs[SPLIT, 1].repeated_ranges == [(7, 7), (BUCKET - 1, BUCKET + 2)]
    assert [found.epochs[OLD_EPOCH, epoch].out_of_order for epoch in (1, 2, 5)] == [1, 0, 0]


def test_from_first_ignores_a_missing_head_known_last_may_be_a_data_frame_and_order_may_be_left_out(
    spark: SparkSession, records: DataFrame
) -> None:
    known_last = {"producer_id": [GONE, GONE, HEADLESS], "epoch": [4, 4, 1], "last": [2, 3, 121]}
    known = frame(spark, pa.table(known_last))
    few = records.where("partition = 0 and topic = 'plain'")
    with audit(few, known_last=known, from_first=True, order=False) as found:
        missing, (totals,) = ranges(found.missing), found.totals.collect()
        assert found.out_of_order.isEmpty()
        assert ranges(found.repeated)[SPLIT, 1] == [(7, 7), (BUCKET - 1, BUCKET + 2)]
    assert (missing[HEADLESS, 1], missing[GONE, 4]) == ([(120, 121)], [(1, 3)])
    assert totals["out_of_order"] is None, "an audit without the order cannot know it"


def test_a_table_is_audited_by_its_path_or_its_name_and_without_offsets_its_order_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = id_rows(spark, [(WHOLE, 1, 1), (WHOLE, 1, 3), None])
    rows.write.parquet(str(tmp_path / "table"))
    rows.createOrReplaceTempView("by_name")
    for path_or_name in (str(tmp_path / "table"), "by_name"):
        with audit(path_or_name) as found:
            assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2)]
            (totals,) = found.totals.collect()
        assert (totals["out_of_order"], totals["without_id"]) == (None, 1)
    for absent in (str(tmp_path / "absent"), "no_such_table"):
        with pytest.raises(ConfigError, match=r"absent|no_such_table"):
            audit(absent)


def test_a_table_that_another_session_has_changed_is_audited_as_it_is_now(spark: SparkSession, tmp_path: Path) -> None:
    name = lake(spark, "iceberg", tmp_path).target
    id_rows(spark, [(WHOLE, 1, 1)]).writeTo(name).create()
    assert spark.table(name).count() == 1  # from now on the session remembers the table
    spark.newSession().sql(f"INSERT INTO {name} VALUES ('{WHOLE}', 1, 2)")  # noqa: S608 - a name
    with audit(name) as found:
        assert found.totals.collect()[0]["records"] == 2


def test_absent_columns_are_refused_with_one_sentence(records: DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"absent=\['epoch', 'last'\]"):
        audit(records, known_last=records.selectExpr("'x' as producer_id"))
    with pytest.raises(ConfigError, match="includeHeaders"):
        audit(records.drop("headers"))
