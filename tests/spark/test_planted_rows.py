"""The audit of many rows names those that are not as they should be, and no others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.prove.audit import too_dear
from tests.spark.planted_rows import Cost, Planted, Said, differences, measured, planted, said, write

ROWS = 200_000
FAULTS = 100


@pytest.fixture(scope="module")
def what() -> Planted:
    return planted(1, ROWS, FAULTS)


@pytest.fixture(scope="module")
def table(spark: SparkSession, what: Planted, module_path: Path) -> DataFrame:
    return write(spark, what, module_path / "table")


@pytest.fixture(scope="module")
def found(table: DataFrame, what: Planted) -> Said:
    return said(table, what)


def test_what_was_planted_is_found_and_nothing_else(found: Said, what: Planted) -> None:
    assert differences(found, what) == []


def test_what_an_audit_costs_is_measured_with_what_it_says(table: DataFrame, what: Planted) -> None:
    cost = measured(table, what)
    assert cost.wrong == []
    assert min(cost.us_per_row, cost.shuffled_per_row) > 0


def test_a_fault_that_nobody_planted_is_told_of_each_kind(found: Said, what: Planted) -> None:
    def with_kind(kind: str, numbers: frozenset[int]) -> Planted:
        changed: Any = {kind: numbers}
        return replace(what, **changed)

    for kind in ("missing", "repeated", "out_of_order"):
        there: frozenset[int] = getattr(what, kind)
        fewer, more = with_kind(kind, there - {min(there)}), with_kind(kind, there | {1})
        assert any(one.startswith(f"named and not {kind}: ") for one in differences(found, fewer))
        assert any(one.startswith(f"{kind} and not named: ") for one in differences(found, more))
        assert any(one.startswith(f"{kind} of ") for one in differences(found, more))


@pytest.mark.parametrize(
    ("seconds", "shuffled", "told"),
    [
        (13.0, 1300, []),
        (13.1, 1000, ["time"]),
        (10.0, 1301, ["bytes shuffled"]),
        (14.0, 1400, ["time", "bytes shuffled"]),
    ],
)
def test_a_row_of_many_that_costs_more_than_one_of_few_is_told(seconds: float, shuffled: int, told: list[str]) -> None:
    found = too_dear([(Cost(1000, 1.0, 100), Cost(10_000, seconds, shuffled))])
    assert [one.rpartition("the ")[2] for one in found] == told
