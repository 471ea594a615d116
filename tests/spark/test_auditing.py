"""The audit beside plain Python: every producer below has faults of its own, and one audit finds them all."""

import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, parse_record_id
from tests.spark.by_hand import Epoch, Stored, examine, write_files
from tests.spark.test_leftovers import FIRST as WRITE
from tests.spark.test_leftovers import records as sink_records

BUCKET = 32_768


def name(number: int) -> str:
    """A producer id."""
    return (
        f"{number}producer".ljust(13, "a")[:13].replace("0", "z").replace("1", "y").replace("8", "x").replace("9", "w")
    )


WHOLE, HOLES, BORDERS, FAR, ALTERNATING, AGAIN, MIXED, HEADLESS, OLD_EPOCH, RANDOM, TWICE = map(name, range(11))
OLD_EPOCH_AGAIN = f"{OLD_EPOCH[:7]}restrt"  # the same directory, started anew
GONE = name(77)
KNOWN = {(WHOLE, 1): 5, (HOLES, 1): 20, (GONE, 4): 3, (BORDERS, 1): 3 * BUCKET + 2, (FAR, 1): 7}

# Sequences in the order in which they stand in one partition.
SEQUENCES: dict[tuple[str, int], list[int]] = {
    (WHOLE, 1): [1, 2, 3, 4, 5],
    (WHOLE, 2): [1],
    (HOLES, 1): [2, 3, 5, 9, 10, 16],
    (BORDERS, 1): [1, BUCKET - 1, BUCKET + 2, 2 * BUCKET, 2 * BUCKET + 1, 3 * BUCKET],
    # Buckets in between of which nothing is there; and the greatest sequence that there can be.
    (FAR, 1): [1, 40 * BUCKET + 7],
    (FAR, 3): [(1 << 40) - 1],
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
    starts = {1: OLD_EPOCH, 2: OLD_EPOCH_AGAIN}
    log += [Stored("plain", 0, 0, (starts[epoch], epoch, number)) for epoch, number in [(1, 1), (2, 1), (1, 2), (2, 2)]]
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


def collected(
    records: DataFrame,
    known_last: DataFrame | dict[tuple[str, int], int] | None,
    *,
    from_first: bool,
    order: bool = True,
) -> Found:
    with audit(records, known_last=known_last, from_first=from_first, order=order) as found:
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
    return collected(records, KNOWN, from_first=False)


HUGE = {(FAR, 3)}  # plain Python would count for hours


def expected(known_last: dict[tuple[str, int], int], start: int | None = 1) -> dict[tuple[str, int], Epoch]:
    few = [one for one in stored() if one.identity is None or one.identity[:2] not in HUGE]
    return examine(few, known_last, start)


WANTED = expected(KNOWN)


@pytest.mark.parametrize("key", sorted(WANTED), ids=lambda key: f"{key[0]}-{key[1]}")
def test_each_epoch_is_found_as_plain_python_finds_it(found: Found, key: tuple[str, int]) -> None:
    assert found.epochs[key] == WANTED[key]


def test_the_faults_are_really_in_the_records(found: Found) -> None:
    chaos = found.epochs[RANDOM, 2]
    assert len(chaos.missing) > 250
    assert (65_530, 65_539) in chaos.missing
    assert min(chaos.repeated, chaos.out_of_order or 0) > 300
    assert found.epochs[MIXED, 1].out_of_order == 5
    assert found.epochs[MIXED, 1].behind == [(2, 2), (4, 4), (7, 9)]
    assert found.epochs[AGAIN, 1].again == [(1, 5)]
    assert found.epochs[TWICE, 1].again == [(7, 7), (BUCKET - 1, BUCKET + 2)]
    assert found.epochs[OLD_EPOCH, 1].out_of_order == 1
    assert found.epochs[OLD_EPOCH_AGAIN, 2].out_of_order == 0
    assert found.epochs[OLD_EPOCH, 5].out_of_order == 0


def test_no_other_epochs_are_found(found: Found) -> None:
    assert set(found.epochs) == set(WANTED) | HUGE


def test_the_greatest_sequence_alone_is_one_missing_range(found: Found) -> None:
    end = (1 << 40) - 1
    assert found.epochs[FAR, 3] == Epoch(end, end, end, 1, [(1, end - 1)], 0, 0)


def test_the_totals_are_the_sums_and_the_records_without_an_id_are_counted(found: Found) -> None:
    log = stored()
    assert found.totals["records"] == len(log)
    assert found.totals["without_id"] == 7
    assert found.totals["epochs"] == len(found.epochs)
    assert found.totals["found"] == len({one.identity for one in log if one.identity})
    for column in ("expected", "repeated", "out_of_order"):
        assert found.totals[column] == sum(getattr(epoch, column) for epoch in found.epochs.values())
    assert found.totals["missing"] == found.totals["expected"] - found.totals["found"]


def test_from_the_first_on_a_head_is_not_missing_and_a_known_last_may_be_a_data_frame(
    spark: SparkSession, records: DataFrame
) -> None:
    columns = {"producer_id": [GONE, GONE, HEADLESS], "epoch": [4, 4, 1], "last": [2, 3, 121]}
    known = spark.createDataFrame(pa.table(columns))
    few = records.where("partition = 0 and topic = 'plain'")
    found = collected(few, known, from_first=True).epochs
    wanted = expected({(GONE, 4): 3, (HEADLESS, 1): 121}, None)
    assert found[HEADLESS, 1] == wanted[HEADLESS, 1]
    assert found[HEADLESS, 1].missing == [(120, 121)]
    assert found[GONE, 4].missing == [(1, 3)]


def test_ids_without_places_are_audited_but_their_order_is_unknown(spark: SparkSession) -> None:
    columns = {"producer_id": [WHOLE, WHOLE, None], "epoch": [1, 1, None], "sequence": [1, 3, None]}
    found = collected(spark.createDataFrame(pa.table(columns)), None, from_first=False)
    assert found.epochs[WHOLE, 1].missing == [(2, 2)]
    assert found.epochs[WHOLE, 1].out_of_order is None
    assert found.totals["out_of_order"] is None
    assert found.totals["without_id"] == 1


def test_where_nobody_asks_for_the_order_nothing_is_sorted_and_all_else_is_found_the_same(
    records: DataFrame, found: Found
) -> None:
    unsorted = collected(records, KNOWN, from_first=False, order=False)
    assert unsorted.epochs == {
        key: one._replace(out_of_order=None if one.found else 0, behind=[]) for key, one in found.epochs.items()
    }
    assert unsorted.totals == found.totals | {"out_of_order": None}

    def is_sorted(*, order: bool) -> bool:
        with audit(records, order=order) as one:
            return "Window" in one._buckets._jdf.queryExecution().analyzed().toString()

    assert is_sorted(order=True)
    assert not is_sorted(order=False)


def test_where_nobody_asks_for_the_order_it_is_unknown_of_all_together_also_where_nothing_is_found(
    records: DataFrame,
) -> None:
    for known in ({(GONE, 4): 3}, None):
        found = collected(records.where("false"), known, from_first=False, order=False)
        assert (found.totals["found"], found.totals["out_of_order"]) == (0, None)


def test_a_table_is_audited_by_its_path_and_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"producer_id": [WHOLE, WHOLE], "epoch": [1, 1], "sequence": [1, 3]}
    rows = spark.createDataFrame(pa.table(columns))
    rows.write.parquet(str(tmp_path / "table"))
    rows.createOrReplaceTempView("by_name")
    for named in (str(tmp_path / "table"), "by_name"):
        with audit(named) as found:
            assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2)]
    for absent in (str(tmp_path / "absent"), "no_such_table"):
        with pytest.raises(ConfigError, match=r"absent|no_such_table"):
            audit(absent)


def test_a_table_without_a_session_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(ConfigError, match="make one before"):
        audit("lake.orders")


def test_attempts_of_sinks_are_directories_of_their_own_however_their_ids_begin(spark: SparkSession) -> None:
    one, other = f"{OLD_EPOCH[:7]}firsta", f"{OLD_EPOCH[:7]}second"
    told = [(one, 1), (other, 1), (one, 3), (other, 2), (other, 3), (one, 2)]
    identities = [f"{producer_id}/1/{sequence}" for producer_id, sequence in told]
    of_sinks = sink_records(spark, *((identity, WRITE.name) for identity in identities))
    with audit(of_sinks) as found:
        assert ranges(found.out_of_order) == {(one, 1): [(2, 2)]}
    # Without the headers, as some tables are, nothing tells them from two copies of a directory.
    of_others = sink_records(spark, *((identity, None) for identity in identities))
    unknown = parse_record_id(of_sinks).drop("headers"), parse_record_id(of_sinks).withColumn("headers", F.lit("text"))
    for records in (of_others, *unknown):
        with audit(records) as found:
            assert ranges(found.out_of_order) == {(one, 1): [(2, 2)], (other, 1): [(1, 3)]}


def test_nothing_at_all_is_no_fault(records: DataFrame) -> None:
    nothing = collected(records.where("false"), None, from_first=False)
    assert nothing.epochs == {}
    assert nothing.totals["records"] == nothing.totals["missing"] == nothing.totals["out_of_order"] == 0


def test_known_last_sequences_need_their_columns(records: DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"absent=\['epoch', 'last'\]"):
        audit(records, known_last=records.selectExpr("'x' as producer_id"))


def test_records_without_headers_are_refused_with_the_remedy(records: DataFrame) -> None:
    with pytest.raises(ConfigError, match="includeHeaders"):
        audit(records.drop("headers"))
