"""Target, quarantine and checkpoint that stand in one another's way."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land, places
from aiorecover.spark.claiming import claim
from aiorecover.spark.places import OBJECT_STORES, check_places, check_renaming, in_the_way
from aiorecover.spark.tables import IcebergTable, ParquetTable
from aiorecover.spark.targets import find_target


@pytest.mark.parametrize(
    ("target", "quarantine", "checkpoint", "told"),
    [
        ("/t", "/c/quarantine", "/c", None),
        ("/lake/t", "/lake/q", "/lake/c", None),
        ("/lake/t", "/lake/t2", "/lake/t3", None),
        (None, "/c/quarantine", "/c", None),
        ("/t", "/t/_apart", "/t/_checkpoint", None),  # nobody takes these for data
        ("/c/table", "/c/apart", "/c", None),
        ("/t", "/t", "/c", ("quarantine", "target")),
        ("/t", "/c/quarantine", "/t", ("checkpoint", "target")),
        ("/t", "/c", "/c", ("quarantine", "checkpoint")),
        ("/t", "/t/apart", "/c", ("quarantine", "target")),
        ("/t", "/t/batch_id=7", "/c", ("quarantine", "target")),
        ("/t", "/t/_staging", "/c", ("quarantine", "target")),
        ("/t", "/t/_delta_log", "/c", ("quarantine", "target")),
        ("/q/deep/t", "/q", "/c", ("target", "quarantine")),
        ("/t", "/q", "/t/checkpoint", ("checkpoint", "target")),
        ("/t", "/q", "/q/_staging/c", ("checkpoint", "quarantine")),
        ("/c/ids", "/q", "/c", ("target", "checkpoint")),
        ("/c/query/sources", "/q", "/c", ("target", "checkpoint")),
        ("/c/quarantine", "/c/quarantine", "/c", ("quarantine", "target")),
        ("/t", "/c/sinks/held", "/c", ("quarantine", "checkpoint")),
    ],
)
def test_one_is_in_the_way_where_another_one_would_read_or_delete_it(
    target: str | None, quarantine: str, checkpoint: str, told: tuple[str, str] | None
) -> None:
    given = {"quarantine": quarantine, "checkpoint": checkpoint, "target": target}
    assert in_the_way({name: path for name, path in given.items() if path is not None}) == told


@pytest.mark.parametrize("spelling", ["{0}/table", "{0}/table/", "file:{0}/./table", "{0}/x/../table", "{0}/link"])
def test_a_quarantine_that_is_the_target_is_refused_before_anything_is_made(
    spelling: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    with pytest.raises(ConfigError, match=r"^the quarantine is, or is in, the target: name a directory beside it "):
        land(
            spark,
            ["x"],
            tmp_path / "table",
            tmp_path / "checkpoint",
            bootstrap_servers="x",
            quarantine=spelling.format(tmp_path),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_quarantine_in_the_files_of_a_table_is_refused(is_there: bool, spark: SparkSession, tmp_path: Path) -> None:
    table = IcebergTable(spark, f"lake.places.is_there_{is_there}")
    if is_there:
        table.claim("mark")
        spark.sql(f"ALTER TABLE {table.name} UNSET TBLPROPERTIES ('aiorecover.landing')")
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    apart = f"{warehouse}/places/is_there_{is_there}/apart"
    with pytest.raises(ConfigError, match=r"^the quarantine is, or is in, the target"):
        land(spark, ["x"], table.name, tmp_path / "checkpoint", bootstrap_servers="x", quarantine=apart)
    assert not Path(apart).exists()


@pytest.mark.parametrize("kind", [ParquetTable, IcebergTable])
def test_a_table_that_was_made_where_it_cannot_be_landed_in_is_taken_back_and_the_checkpoint_is_free(
    kind: type[ParquetTable | IcebergTable], spark: SparkSession, tmp_path: Path
) -> None:
    above, prefix = (
        (f"{spark.conf.get('spark.sql.catalog.lake.warehouse')}/taken", "lake.taken.")
        if kind is IcebergTable
        else (str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"), "taken_")
    )
    refused, instead = kind(spark, f"{prefix}back"), kind(spark, f"{prefix}instead")
    name = refused.name.rpartition(".")[2]
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=r"^the quarantine is, or is in, the target"):
        claim(spark, refused, checkpoint, f"{above}/{name}/apart")
    assert not spark.catalog.tableExists(refused.name)
    assert list(tmp_path.rglob("landing.json")) == []
    claim(spark, instead, checkpoint, str(tmp_path / "apart"))
    assert instead.mark() is not None


def test_what_was_made_before_or_holds_anything_is_not_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    table, again = IcebergTable(spark, "lake.taken.never"), IcebergTable(spark, "lake.taken.never")
    table.claim("mark")
    again.claim("mark")
    assert not again.take_back("mark"), "it is another one's"
    assert not table.take_back("other")
    spark.range(1).selectExpr(*(f"null as {name}" for name in spark.table(table.name).columns)).writeTo(
        table.name
    ).append()
    assert not table.take_back("mark")
    assert spark.table(table.name).count() == 1
    assert not find_target(spark, str(tmp_path)).take_back("mark")


def test_a_table_tells_where_it_stands_once_it_is_there(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(spark, "stands_somewhere")
    assert table.location() is None
    spark.sql(
        f"CREATE TABLE stands_somewhere (x int, batch_id bigint) USING parquet PARTITIONED BY (batch_id) "
        f"LOCATION '{tmp_path}/there'"
    )
    assert table.location() == f"file:{tmp_path}/there"


STORE = "an object store renames a directory object by object, and after a kill half a batch would pass for all of it: "


@pytest.mark.parametrize("scheme", [*sorted(OBJECT_STORES), "S3A"])
@pytest.mark.parametrize("place", ["target", "quarantine", "checkpoint"])
def test_a_place_in_an_object_store_is_refused_before_anything_is_made_or_asked_for(
    place: str, scheme: str, spark: SparkSession, tmp_path: Path
) -> None:
    named = {name: f"{tmp_path}/{name}" for name in ("target", "quarantine", "checkpoint")}
    named[place] = f"{scheme}://bucket/{place}"
    with pytest.raises(ConfigError) as refused:
        land(
            spark,
            ["x"],
            named["target"],
            named["checkpoint"],
            bootstrap_servers="x",
            quarantine=named["quarantine"],
        )
    said = str(refused.value)
    assert (said.startswith(STORE), said.endswith(f" {place}='{named[place]}'"), "\n" in said) == (True, True, False)
    assert list(tmp_path.iterdir()) == []


def test_other_makers_stores_and_what_stands_before_such_stores_are_known_by_their_schemes() -> None:
    for scheme in ("dbfs", "oci", "cos", "ks3", "tos", "bos", "alluxio", "lakefs"):
        with pytest.raises(ConfigError, match=f"^{STORE}.* checkpoint='{scheme}:/bucket/x'$"):
            check_renaming({"checkpoint": f"{scheme}:/bucket/x"})


@pytest.fixture
def view(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A view's directory, which is one of this machine's."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    name = "fs.viewfs.mounttable.lake.link./here"
    configuration.set(name, f"file:{tmp_path}")
    yield "viewfs://lake/here"
    configuration.unset(name)


def test_in_a_view_on_other_file_systems_these_count(
    view: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = find_target(spark, f"{view}/table")
    check_places(spark, target, f"{view}/apart", f"{view}/checkpoint")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(places, "OBJECT_STORES", OBJECT_STORES | {"file"})  # what is behind it is an object store
    told = f"{STORE}.* target='file:{tmp_path}' quarantine='file:{tmp_path}' checkpoint='file:{tmp_path}'$"
    with pytest.raises(ConfigError, match=f"^{told}"):
        check_places(spark, target, f"{view}/apart", f"{view}/checkpoint/deep")


@pytest.mark.parametrize("path", ["/lake", "lake/a:b", "file:/s3a", "hdfs://n/s3a:/x", "abfs://c@a/x", "abfss://c@a/x"])
def test_no_other_place_is_taken_for_one_in_an_object_store(path: str) -> None:
    check_renaming({"checkpoint": path})


def test_a_place_without_a_scheme_is_where_hadoop_has_it_by_default(spark: SparkSession, tmp_path: Path) -> None:
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    before = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "s3a://bucket")
    try:
        with pytest.raises(ConfigError) as refused:
            land(spark, ["x"], f"file:{tmp_path}/table", "/lake/checkpoint", bootstrap_servers="x")
    finally:
        configuration.set("fs.defaultFS", before)
    assert str(refused.value).endswith(" share checkpoint='/lake/checkpoint'")


@pytest.mark.parametrize("is_renamed", [True, False], ids=["Parquet", "Iceberg"])
def test_a_table_in_an_object_store_is_refused_unless_it_is_of_iceberg(
    is_renamed: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: type[IcebergTable | ParquetTable] = ParquetTable if is_renamed else IcebergTable
    table = kind(spark, "stored")
    monkeypatch.setattr(kind, "where", lambda _: "s3a://bucket/stored")
    monkeypatch.setattr(kind, "location", lambda _: None)  # its jar is not there
    with (
        pytest.raises(ConfigError, match=rf"^{STORE}.* target='s3a://bucket/stored'$") if is_renamed else nullcontext()
    ):
        check_places(spark, table, f"{tmp_path}/apart", f"{tmp_path}/checkpoint")
