"""A short run of the proof of landing."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.killed_landing import run_landing
from tests.support.cluster import Cluster


def test_each_record_is_landed_once_although_a_driver_is_killed_and_the_audit_agrees(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    outcome = run_landing(kafka, tmp_path, seed=3, records=4_000, kills=1, batches=3, spark=spark)
    assert outcome.ok, str(outcome)
    assert outcome.published > outcome.records
