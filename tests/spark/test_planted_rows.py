"""The audit of many rows names those that are not as they should be, and no others."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.planted_rows import differences, planted, said, write


def test_what_was_planted_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    what = planted(1, 200_000, 100)
    found = said(write(spark, what, tmp_path / "table"), what)
    assert differences(found, what) == []
    assert len(differences(found, planted(2, 200_000, 100))) > 100, "other places are told apart"
