"""The audit beside plain Python: every producer below has faults of its own, and one audit finds them all."""

import random
from collections.abc import Callable
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

BUCKET = 32_768
WHOLE, HOLES, BORDERS, FAR, ALTERNATING, AGAIN, MIXED, HEADLESS, OLD_EPOCH, RANDOM, TWICE, GONE = (
    f"{letter:a<13}" for letter in "bcdefghijklm"
)
KNOWN = {(WHOLE, 1): 5, (HOLES, 1): 20, (GONE, 4): 3, (BORDERS, 1): 3 * BUCKET + 2, (FAR, 1): 7}

# Sequences in the order in which they stand in one partition.
SEQUENCES: dict[tuple[str, int], list[int]] = {
    (WHOLE, 1): [1, 2, 3, 4, 5],
    (WHOLE, 2): [1],
    (HOLES, 1): [2, 3, 5, 9, 10, 16],
    (BORDERS, 1): [1, BUCKET - 1, BUCKET + 2, 2 * BUCKET, 2 * BUCKET + 1, 3 * BUCKET],
    # Buckets in between of which nothing is there; and the greatest sequence that there can be.
    (FAR, 1): [1, 40 * BUCKET + 7],
    (FAR, EPOCH_MAX): [SEQUENCE_MAX],
    (ALTERNATING, 1): list(range(1, 2 * BUCKET, 2)),
    (AGAIN, 1): [1, 2, 3, 4, 2, 3, 4, 5, 5, 1],
    (MIXED, 1): [1, 3, 2, 5, 4, 2, 6, 10, 7, 8, 9, 8],
    (HEADLESS, 1): list(range(100, 120)),
    # What is repeated goes on in the next bucket.
    (TWICE, 1): [*range(1, BUCKET + 3), BUCKET, BUCKET + 1, BUCKET + 6, BUCKET + 5, *range(BUCKET - 1, BUCKET + 5), 7],
}


@cache
def stored() -> list[Stored]:
    chance = random.Random(8)
    log = [
        Stored("plain", 0, 0, (producer_id, epoch, sequence))
        for (producer_id, epoch), sequences in SEQUENCES.items()
        for sequence in sequences
    ]
    # A record of an earlier epoch that comes after a later one's is out of order, too.
    starts = [(1, 1), (2, 1), (1, 2), (2, 2)]
    log += [Stored("plain", 0, 0, (OLD_EPOCH, epoch, number)) for epoch, number in starts]
    # The same record in two partitions: ahead in one of them is enough.
    log += [Stored("plain", partition, 0, (OLD_EPOCH, 5, 1)) for partition in (1, 2)]
    log += [Stored("plain", 2, 0, (OLD_EPOCH, 5, 3)), Stored("plain", 2, 0, (OLD_EPOCH, 5, 2))]
    log += [Stored("plain", 1, 0, (OLD_EPOCH, 5, 2))]
    log += [Stored("plain", 1, 0, None)] * 7
    log += scattered(chance)
    return [one._replace(offset=offset) for offset, one in enumerate(log)]


def scattered(chance: random.Random) -> list[Stored]:
    """80,000 records over 12 partitions of two topics, some left out, some repeated, some swapped."""
    log: list[Stored] = []
    lost = {*chance.sample(range(1, 80_000), 300), *range(30_000, 36_000), *range(65_530, 65_540)}
    for sequence in range(1, 80_001):
        place = chance.choice(["one", "two"]), chance.randrange(6)
        if sequence not in lost:
            log.append(Stored(*place, 0, (RANDOM, 2, sequence)))
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
    """By producer and epoch, in order."""
    by_epoch: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in sorted(found.collect()):
        assert row["count"] == row["last"] - row["first"] + 1
        by_epoch.setdefault((row["producer_id"], row["epoch"]), []).append((row["first"], row["last"]))
    return by_epoch


def collected(records: DataFrame) -> Found:
    with audit(records, known_last=KNOWN) as found:
        repeated = {
            (row["producer_id"], row["epoch"]): row["repeated"]
            for row in found.repeated.groupBy("producer_id", "epoch").agg(F.sum("repeated").alias("repeated")).collect()
        }
        missing, again, behind = map(ranges, (found.missing, found.repeated, found.out_of_order))
        epochs = {}
        for row in found.producers.collect():
            key = row["producer_id"], row["epoch"]
            lacks = missing.pop(key, [])
            assert row["missing"] == sum(last - first + 1 for first, last in lacks)
            assert row["repeated"] == repeated.pop(key, 0)
            counts = row["expected"], row["found"], lacks, row["repeated"], row["out_of_order"]
            epochs[key] = Epoch(row["first"], row["last"], *counts, again.pop(key, []), behind.pop(key, []))
        assert missing == again == behind == repeated == {}
        return Found(epochs, found.totals.collect()[0].asDict())


@pytest.fixture(scope="module")
def records(spark: SparkSession, module_path: Path) -> DataFrame:
    write_files(module_path, stored(), [10, 40_000, 40_100, 130_000])
    return spark.read.parquet(str(module_path))


@pytest.fixture(scope="module")
def found(records: DataFrame) -> Found:
    return collected(records)


HUGE = {(FAR, EPOCH_MAX)}  # plain Python would count for hours


WANTED = examine([one for one in stored() if one.identity is None or one.identity[:2] not in HUGE], KNOWN)


def test_each_epoch_is_found_as_plain_python_finds_it(found: Found) -> None:
    end = SEQUENCE_MAX
    assert found.epochs == WANTED | {(FAR, EPOCH_MAX): Epoch(end, end, end, 1, [(1, end - 1)], 0, 0)}
    log = stored()
    assert found.totals["records"] == len(log)
    assert found.totals["without_id"] == 7
    assert found.totals["epochs"] == len(found.epochs)
    assert found.totals["found"] == len({one.identity for one in log if one.identity})
    for column in ("expected", "repeated", "out_of_order"):
        assert found.totals[column] == sum(getattr(epoch, column) for epoch in found.epochs.values())
    assert found.totals["missing"] == found.totals["expected"] - found.totals["found"]


def test_the_faults_are_really_in_the_records(found: Found) -> None:
    chaos = found.epochs[RANDOM, 2]
    assert len(chaos.missing) > 250
    assert (65_530, 65_539) in chaos.missing
    assert min(chaos.repeated, chaos.out_of_order or 0) > 300
    assert found.epochs[MIXED, 1].out_of_order_ranges == [(2, 2), (4, 4), (7, 9)]
    assert found.epochs[TWICE, 1].repeated_ranges == [(7, 7), (BUCKET - 1, BUCKET + 2)]
    assert [found.epochs[OLD_EPOCH, epoch].out_of_order for epoch in (1, 2, 5)] == [1, 0, 0]


def test_from_the_first_on_a_head_is_not_missing_a_last_may_be_a_data_frame_and_the_order_may_be_left_out(
    spark: SparkSession, records: DataFrame
) -> None:
    columns = {"producer_id": [GONE, GONE, HEADLESS], "epoch": [4, 4, 1], "last": [2, 3, 121]}
    known = frame(spark, pa.table(columns))
    few = records.where("partition = 0 and topic = 'plain'")
    with audit(few, known_last=known, from_first=True, order=False) as found:
        missing, (totals,) = ranges(found.missing), found.totals.collect()
        assert found.out_of_order.isEmpty()
        assert ranges(found.repeated)[TWICE, 1] == [(7, 7), (BUCKET - 1, BUCKET + 2)]
    assert (missing[HEADLESS, 1], missing[GONE, 4]) == ([(120, 121)], [(1, 3)])
    assert totals["out_of_order"] is None, "without the order it is not known"


def test_a_table_is_audited_by_its_path_and_by_its_name_and_without_places_its_order_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = id_rows(spark, [(WHOLE, 1, 1), (WHOLE, 1, 3), None])
    rows.write.parquet(str(tmp_path / "table"))
    rows.createOrReplaceTempView("by_name")
    for named in (str(tmp_path / "table"), "by_name"):
        with audit(named) as found:
            assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2)]
            (totals,) = found.totals.collect()
        assert (totals["out_of_order"], totals["without_id"]) == (None, 1)
    for absent in (str(tmp_path / "absent"), "no_such_table"):
        with pytest.raises(ConfigError, match=r"absent|no_such_table"):
            audit(absent)


def test_what_cannot_be_audited_is_one_sentence(records: DataFrame) -> None:
    refused: list[tuple[str, Callable[[], object]]] = [
        (r"absent=\['epoch', 'last'\]", lambda: audit(records, known_last=records.selectExpr("'x' as producer_id"))),
        ("includeHeaders", lambda: audit(records.drop("headers"))),
    ]
    for said, call in refused:
        with pytest.raises(ConfigError, match=said):
            call()
