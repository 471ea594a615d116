"""The audit of many rows names those that are not as they should be, and no others."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.planted_rows import audit_rows, differences, plant, write_table


def test_what_was_planted_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    planted = plant(1, 200_000, 100)
    found = audit_rows(write_table(spark, planted, tmp_path / "table"), planted)
    assert differences(found, planted) == []
    assert len(differences(found, plant(2, 200_000, 100))) > 100, "other places are told apart"
