"""The audit of many rows names the rows with a fault, and no others."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.planted_rows import audit_rows, differences, plant, write_table


def test_the_audit_finds_the_planted_faults_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    planted = plant(1, 200_000, 100)
    found = audit_rows(write_table(spark, planted, tmp_path / "table"), planted)
    assert differences(found, planted) == []
    assert len(differences(found, plant(2, 200_000, 100))) > 100, "the comparison misses faults at other places"
