"""Landing in tables by their names: of Iceberg, and of Parquet in a Hive catalogue, whenever the driver dies."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land
from aiorecover.spark.claiming import claim
from aiorecover.spark.files import Files
from aiorecover.spark.session import clear_errors
from aiorecover.spark.tables import IcebergTable, ParquetTable
from tests.spark.feed import ROWS, P, land_in_child, landing, once, published, shuffled
from tests.spark.settings import hive_settings
from tests.spark.table import files
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


class _DeathError(Exception):
    """Stands for the death of the driver where a second Spark would take too long."""


def ids_in(spark: SparkSession, table: str) -> Counter[str | None]:
    rows = spark.table(table).selectExpr("producer_id || '/' || epoch || '/' || sequence").collect()
    return Counter(row[0] for row in rows)


def test_an_iceberg_table_gets_each_record_once_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(2)
    admin.run(published(kafka, name, rows))
    land_in_child(kafka, name, tmp_path, "lake.db.records", death="file")
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
        spark.conf.set(f"spark.sql.catalog.killed{key}", value)
    spark.conf.set("spark.sql.catalog.killed.warehouse", str(tmp_path / "lake"))
    table = "killed.db.records"
    (written,) = spark.table(table).selectExpr("count(*)", "max(batch_id)").collect()
    assert (0 < written[0] <= ROWS, written[1]) == (True, 0), "it was to be killed with a file written and no snapshot"
    named = {row[0].removeprefix("file:") for row in spark.table(f"{table}.files").select("file_path").collect()}
    assert {str(path) for path in (tmp_path / "lake").rglob("*.parquet")} > named
    # Then it dies with the batch in the table and the state not yet made.
    move = Files.move

    def move_or_die(self: Files, source: str, destination: str) -> None:
        if destination.endswith("/after=1"):
            raise _DeathError
        move(self, source, destination)

    monkeypatch.setattr(Files, "move", move_or_die)
    with pytest.raises(StreamingQueryException, match="_DeathError"):
        landing(spark, kafka, name, tmp_path, table)
    monkeypatch.undo()
    assert spark.table(table).selectExpr("max(batch_id)").collect()[0][0] == 1
    told = landing(spark, kafka, name, tmp_path, table)
    assert ids_in(spark, table) == once(rows)
    assert [one.batch_id for one in told] == [1, 2]
    with pytest.raises(ConfigError, match="landed with another checkpoint"):
        land(spark, [name], table, str(tmp_path / "new"), bootstrap_servers="x")


def test_a_table_of_the_hive_catalogue_gets_each_record_once_and_knows_all_batches(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(3)
    admin.run(published(kafka, name, rows))
    hive = hive_settings(tmp_path)
    land_in_child(kafka, name, tmp_path, "records", death="partition", settings=hive)
    assert (tmp_path / "warehouse" / "records" / "batch_id=1").exists()
    assert Counter(land_in_child(kafka, name, tmp_path, "records", death=None, settings=hive)) == once(rows)


def test_a_table_made_before_keeps_its_partitions_and_one_with_rows_of_others_is_refused(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (1, f"{P}/1/2"), (2, None)]))
    spark.sql("CREATE TABLE lake.db.mine (x int) USING iceberg")
    spark.sql("INSERT INTO lake.db.mine VALUES (1)")
    with pytest.raises(ConfigError, match="something else is in the target"):
        landing(spark, kafka, name, tmp_path / "mine", "lake.db.mine")
    spark.sql("CREATE TABLE lake.db.narrow (x int) USING iceberg")
    with pytest.raises(ConfigError, match=r"the table lacks columns: add them, .*'sequence'"):
        landing(spark, kafka, name, tmp_path / "narrow", "lake.db.narrow")
    spark.sql(
        "CREATE TABLE lake.db.daily (key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int, headers array<struct<key: string, value: binary>>, producer_id "
        "string, epoch int, sequence bigint, batch_id bigint) USING iceberg PARTITIONED BY (days(timestamp), topic)"
    )
    landing(spark, kafka, name, tmp_path / "daily", "lake.db.daily")
    assert ids_in(spark, "lake.db.daily") == Counter([f"{P}/1/1", f"{P}/1/2", None])
    assert [row["partition"]["topic"] for row in spark.table("lake.db.daily.partitions").collect()] == [name]


def test_a_table_that_does_not_take_the_records_is_one_sentence_and_is_landed_in_once_it_does(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (0, None)]))
    spark.sql(
        "CREATE TABLE lake.db.strict (key binary, value binary, topic string, partition int, offset bigint, timestamp "
        "timestamp, timestampType int, headers array<struct<key: string, value: binary>>, producer_id string, epoch "
        "int, sequence bigint, batch_id bigint, note string not null) USING iceberg"
    )
    with pytest.raises(ConfigError, match="columns do not take what is landed"), clear_errors():
        landing(spark, kafka, name, tmp_path, "lake.db.strict")
    spark.sql("ALTER TABLE lake.db.strict ALTER COLUMN note DROP NOT NULL")
    landing(spark, kafka, name, tmp_path, "lake.db.strict")
    assert ids_in(spark, "lake.db.strict") == Counter([f"{P}/1/1", None])


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("lake.db.my-table", "this is no name of a table: quote its parts"),
        ("lake.db.t; drop", "this is no name of a table: quote its parts"),
        ("nowhere.db.t", "the catalogue of the table is not known"),
        ("{file}", "something else is in the target"),
        ("{file}/table", "a path leads through a file"),
    ],
)
def test_what_is_no_target_is_one_sentence(target: str, said: str, spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=said) as refused:
        land(spark, ["x"], target.format(file=file), str(tmp_path / "checkpoint"), bootstrap_servers="x")
    assert "\n" not in str(refused.value)


def test_a_table_that_cannot_be_landed_in_is_refused_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    def start(table: str) -> None:
        land(spark, ["x"], table, str(tmp_path / "checkpoint"), bootstrap_servers="x")

    with pytest.raises(ConfigError, match="catalogue forgets its tables: name a directory"):
        start("records")
    assert list(tmp_path.iterdir()) == []


MADE = (
    "CREATE TABLE {0} (key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>, producer_id string, epoch int, sequence "
    "bigint, batch_id bigint) {1}"
)


def external(name: str, directory: Path) -> str:
    return MADE.format(name, f"USING parquet PARTITIONED BY (batch_id) LOCATION '{directory}'")


def test_a_table_made_anew_over_the_files_of_a_dropped_one_is_used(spark: SparkSession, tmp_path: Path) -> None:
    made = external("anew", tmp_path / "files")
    spark.sql(made)
    target = ParquetTable(spark, "anew")
    claim(spark, target, str(tmp_path / "first"), str(tmp_path / "first" / "apart"))
    (tmp_path / "files" / "batch_id=0").mkdir(parents=True, exist_ok=True)
    spark.sql("DROP TABLE anew")
    spark.sql(made)
    assert spark.table("anew").isEmpty()
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="something else is in the target"):
        claim(spark, target, str(tmp_path / "second"), str(tmp_path / "second" / "apart"))
    assert files(tmp_path) == before
    assert target.mark() is None


@pytest.mark.parametrize("kind", [ParquetTable, IcebergTable])
def test_of_two_that_claim_a_table_made_before_at_once_one_gets_it(
    kind: type[ParquetTable | IcebergTable], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "claimed_twice" if kind is ParquetTable else "lake.db.claimed_twice"
    spark.sql(external(name, tmp_path / "files") if kind is ParquetTable else MADE.format(name, "USING iceberg"))
    target = kind(spark, name)
    is_used: Callable[[Any], bool] = kind.is_used

    def start(checkpoint: str) -> None:
        claim(spark, target, str(tmp_path / checkpoint), str(tmp_path / checkpoint / "apart"))

    def used_by_then(self: ParquetTable | IcebergTable) -> bool:
        """The quick one comes when the slow one has seen that the table is nobody's."""
        found = is_used(self)
        monkeypatch.undo()
        start("quick")
        return found

    monkeypatch.setattr(kind, "is_used", used_by_then)
    with pytest.raises(ConfigError, match="the target was landed with another checkpoint"):
        start("slow")
    start("quick")


@pytest.mark.parametrize("kind", [ParquetTable, IcebergTable])
def test_who_is_killed_while_it_claims_a_table_made_before_gets_it_by_the_next_start(
    kind: type[ParquetTable | IcebergTable], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "half_claimed" if kind is ParquetTable else "lake.db.half_claimed"
    spark.sql(external(name, tmp_path / "files") if kind is ParquetTable else MADE.format(name, "USING iceberg"))
    target = kind(spark, name)

    def start(checkpoint: str) -> None:
        claim(spark, target, str(tmp_path / checkpoint), str(tmp_path / checkpoint / "apart"))

    def die(_: object, mark: str) -> None:
        raise _DeathError(mark)

    monkeypatch.setattr(kind, "_set_mark", die)
    with pytest.raises(_DeathError):
        start("killed")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"another landing claims the target: .*or name a new target"):
        start("other")
    start("killed")
    assert [row["key"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect() if "aiorecover" in row["key"]] == [
        "aiorecover.landing"
    ]
