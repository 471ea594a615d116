"""A short run of the proof of landing, and what reads the table: faults that are planted there are told."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prove.landing import too_little
from tests.spark.killed_landing import EXECUTORS, Found, Outcome, found_in, run_landing
from tests.spark.mixed import PARTITIONS, mixed, record_id
from tests.support.cluster import Cluster


@pytest.mark.timeout(600)
def test_each_record_is_in_the_table_once_though_drivers_die_and_the_audit_agrees(
    kafka: Cluster, tmp_path: Path
) -> None:
    outcome = run_landing(kafka, tmp_path, seed=3, records=20_000, kills=2, batches=4)
    print(outcome)
    assert outcome.ok, str(outcome)
    assert outcome.published > outcome.records
    assert outcome.kills == 2
    assert outcome.hits >= 1


@pytest.mark.timeout(600)
def test_each_record_is_in_the_table_once_though_executors_die_and_their_driver_counts_what_it_leaves_out(
    kafka: Cluster, tmp_path: Path
) -> None:
    outcome = run_landing(kafka, tmp_path, seed=5, records=10_000, kills=2, batches=5, who=EXECUTORS)
    print(outcome)
    assert outcome.ok, str(outcome)
    assert outcome.repeats == outcome.published - outcome.records > 0
    assert outcome.hits >= 1


def table(target: Path, *batches: list[tuple[str, int]]) -> Path:
    """Batches of (id, number in the value)."""
    for batch_id, rows in enumerate(batches):
        parts = [name.split("/") for name, _ in rows]
        columns = {
            "producer_id": pa.array([part[0] for part in parts], pa.string()),
            "epoch": pa.array([int(part[1]) for part in parts], pa.int32()),
            "sequence": pa.array([int(part[2]) for part in parts], pa.int64()),
            "value": pa.array([b"%d..." % number for _, number in rows], pa.binary()),
        }
        directory = target / f"batch_id={batch_id}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table(columns), directory / "part.parquet")
    return target


def right(*numbers: int) -> list[tuple[str, int]]:
    return [(record_id(number), number) for number in numbers]


def test_a_table_that_has_each_record_once_is_as_it_should_be(tmp_path: Path) -> None:
    found = found_in(table(tmp_path, right(0, 2, 4), right(3, 1)), 5)
    assert (found, found.ok) == (Found(5, [], 0, 0), True)


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([right(0, 1), right(3)], Found(3, [2], 0, 0)),
        ([right(0, 1, 2), right(3, 1, 1)], Found(6, [], 2, 0)),
        ([right(0, 1, 2), [(record_id(3), 2)]], Found(4, [3], 0, 1)),
        ([right(0, 1, 2, 3), [("somebodyelse2/1/1", 0)]], Found(5, [], 0, 1)),
        ([right(0, 1, 2, 3, 4)], Found(5, [], 0, 1)),
    ],
    ids=["missing", "repeated", "another one's value", "nobody's", "more than there were"],
)
def test_what_is_not_as_it_should_be_is_told(
    tmp_path: Path, batches: list[list[tuple[str, int]]], found: Found
) -> None:
    said = found_in(table(tmp_path, *batches), 4)
    assert (said, said.ok) == (found, False)


def test_each_number_is_published_and_one_in_twenty_again() -> None:
    rows = list(mixed(1, 60_000, 0.05))
    assert len(rows) == 63_000
    assert {number for _, number in rows} == set(range(60_000))
    assert {partition for partition, _ in rows} == set(range(PARTITIONS))


def test_a_run_with_few_hits_or_a_growing_state_proves_nothing() -> None:
    enough = Outcome(1, 1, kills=10, hits=8, states=dict.fromkeys(range(9), 100))
    assert too_little(enough) == []
    enough.hits = 7
    assert len(too_little(enough)) == 1
    enough.states[8] = 151
    assert len(too_little(enough)) == 2


def test_an_outcome_is_well_only_when_the_audit_says_the_same() -> None:
    totals = {"records": 4, "without_id": 0, "expected": 4, "found": 4, "missing": 0, "repeated": 0}
    outcome = Outcome(4, 5, found=Found(4, [], 0, 0), totals=totals)
    assert outcome.ok
    assert [replace(outcome, repeats=told).ok for told in (0, 1, 2)] == [False, True, False]
    for name, count in totals.items():
        outcome.totals = totals | {name: count + 1}
        assert not outcome.ok, name
