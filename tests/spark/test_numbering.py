"""Rows with record ids, published several times by Spark's own sink, and landed once."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, last_ids, read_topics, with_record_ids
from tests.spark.feed import land_all
from tests.spark.frames import frame
from tests.support.cluster import Cluster, TopicFactory

ROWS = 2_000


def orders(spark: SparkSession, seed: int) -> DataFrame:
    """Return the same rows for each seed, in another order and with another number of tasks."""
    numbers = list(range(ROWS))
    random.Random(seed).shuffle(numbers)
    table = {
        "shop": [None if number % 7 == 3 else f"shop {number % 7}" for number in numbers],
        "number": [number // 7 for number in numbers],
        "value": [b"%d" % number for number in numbers],
    }
    headers = F.array(F.struct(F.lit("source").alias("key"), F.lit(b"till").alias("value")))
    return frame(spark, pa.table(table)).withColumn("headers", headers).repartition(seed)


def test_rows_that_several_jobs_publish_are_landed_once_and_the_audit_finds_none_missing(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    first, second = (
        with_record_ids(orders(spark, seed), job_id="orders-2026-11-26", order_by=["shop", "number"]) for seed in (2, 5)
    )
    for rows in (first.limit(700), first, second):  # a job that died, and two whole ones
        rows.write.format("kafka").options(
            **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": name, "includeHeaders": "true"}
        ).save()
    (batch,) = land_all(spark, kafka, name, tmp_path, max_offsets_per_trigger=10_000)
    assert (batch.landed, batch.repeats, batch.conflicts, batch.without_id) == (ROWS, ROWS + 700, 0, 0)
    records = read_topics(spark, [name], kafka.bootstrap_servers)
    with audit(records, known_last=last_ids(second)) as found:
        totals = found.totals.collect()[0]
        assert (totals["expected"], totals["found"], totals["missing"]) == (ROWS, ROWS, 0)
    landed = spark.read.parquet(str(tmp_path / "table"))
    headers = [row["headers"] for row in landed.select("headers").collect()]
    assert {(one[0]["key"], len(one)) for one in headers} == {("source", 2)}


def test_rows_that_are_equal_in_order_by_end_the_job_and_wrong_arguments_are_refused(spark: SparkSession) -> None:
    rows = orders(spark, 3)
    with pytest.raises(
        (PySparkException, Py4JJavaError), match="rows of the job are equal in order_by, add columns order_by=shop"
    ):
        with_record_ids(rows, job_id="j", order_by=["shop"]).collect()
    for message, wrong, job_id, order_by in [
        ("name the job", rows, "", ["number"]),
        ("order_by names columns", rows, "j", "number"),
        ("absent=", rows, "j", ["nothing"]),
        ("taken by the ids, rename them", rows.withColumn("epoch", F.lit(1)), "j", ["number"]),
        ("in foreachBatch", spark.readStream.format("rate").load(), "j", ["value"]),
    ]:
        with pytest.raises(ConfigError, match=message):
            with_record_ids(wrong, job_id=job_id, order_by=order_by)
