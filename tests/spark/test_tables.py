"""Landing in tables of Iceberg by their names, whenever the driver dies, and names and tables that are no targets."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land
from tests.spark.death import dying
from tests.spark.feed import P, landing, once, published, shuffled
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>, producer_id string, epoch int, sequence bigint, batch_id bigint"
)


def ids_in(spark: SparkSession, table: str) -> Counter[str | None]:
    rows = spark.table(table).selectExpr("producer_id || '/' || epoch || '/' || sequence").collect()
    return Counter(row[0] for row in rows)


def test_an_iceberg_table_gets_each_record_once_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows, table = topic(kafka, partitions=3), shuffled(2), "lake.db.records"
    admin.run(published(kafka, name, rows))
    dying(monkeypatch, "/after=1")  # with the batch in the table and its ids not stored yet
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, name, tmp_path, table)
    monkeypatch.undo()
    assert spark.table(table).selectExpr("max(batch_id)").collect()[0][0] == 1
    told = landing(spark, kafka, name, tmp_path, table)
    assert ids_in(spark, table) == once(rows)
    assert [one.batch_id for one in told] == [1, 2]
    with pytest.raises(ConfigError, match="landed with another checkpoint"):
        land(spark, [name], table, str(tmp_path / "new"), bootstrap_servers="x")


def test_a_table_made_before_keeps_its_partitions_and_one_with_rows_of_others_is_refused(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (0, None)]))
    spark.sql("CREATE TABLE lake.db.mine (x int) USING iceberg")
    spark.sql("INSERT INTO lake.db.mine VALUES (1)")
    with pytest.raises(ConfigError, match="something else is in the target"):
        landing(spark, kafka, name, tmp_path / "mine", "lake.db.mine")
    spark.sql("CREATE TABLE lake.db.narrow (x int) USING iceberg")
    with pytest.raises(ConfigError, match=r"the table lacks columns: add them, .*'sequence'"):
        landing(spark, kafka, name, tmp_path / "narrow", "lake.db.narrow")
    spark.sql(f"CREATE TABLE lake.db.daily ({COLUMNS}) USING iceberg PARTITIONED BY (days(timestamp), topic)")
    landing(spark, kafka, name, tmp_path, "lake.db.daily")
    assert ids_in(spark, "lake.db.daily") == Counter([f"{P}/1/1", None])
    assert "topic" in spark.table("lake.db.daily.partitions").select("partition.*").columns


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("lake.db.t; drop", "this is no name of a table: quote its parts"),
        ("nowhere.db.t", "the catalogue of the table is not known"),
        ("records", "catalogue forgets its tables: name a directory"),
        ("{file}/table", "a path leads through a file"),
    ],
)
def test_what_is_no_target_is_one_sentence(target: str, said: str, spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=said) as refused:
        land(spark, ["x"], target.format(file=file), str(tmp_path / "checkpoint"), bootstrap_servers="x")
    assert "\n" not in str(refused.value)
