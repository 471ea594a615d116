"""The audit of many rows names the missing ones, and counts the others that are not as they should be."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.planted_rows import Planted, Said, differences, measured, planted, said, write

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
    def but_one(numbers: frozenset[int]) -> frozenset[int]:
        return numbers - {min(numbers)}

    for known, kind in (
        (replace(what, missing=but_one(what.missing)), "named and not missing: "),
        (replace(what, missing=what.missing | {1}), "missing and not named: "),
        (replace(what, repeated=but_one(what.repeated)), "repeated of "),
        (replace(what, out_of_order=but_one(what.out_of_order)), "out_of_order of "),
    ):
        assert any(one.startswith(kind) for one in differences(found, known)), kind
