"""A checkpoint and what is landed that are of different days: refused before anything is lost."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import Directory
from aiorecover.spark.progress import check_progress
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.tables import IcebergTable
from tests.spark.death import dying
from tests.spark.feed import P, Rows, landing, once, published
from tests.spark.table import files, landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

AHEAD = "holds batches that this checkpoint knows nothing of"
OTHERWISE = "a batch of the target has other offsets than in this checkpoint"


def rows(first: int, last: int) -> Rows:
    return [(sequence % 3, f"{P}/1/{sequence}") for sequence in range(first, last + 1)]


def begun(query: Path, batch_id: int, end: int) -> None:
    (query / "offsets").mkdir(parents=True, exist_ok=True)
    (query / "offsets" / str(batch_id)).write_text(f'v1\n{{}}\n{{"a":{{"0":{end}}}}}')


def test_a_checkpoint_put_back_from_a_backup_or_begun_anew_is_refused_and_nothing_is_changed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, checkpoint = topic(kafka, partitions=3), tmp_path / "checkpoint"
    admin.run(published(kafka, name, rows(1, 30)))
    landing(spark, kafka, name, tmp_path)
    shutil.copytree(checkpoint, tmp_path / "backup")
    admin.run(published(kafka, name, rows(31, 50)))
    landing(spark, kafka, name, tmp_path)
    admin.run(published(kafka, name, rows(51, 90)))
    checkpoint.rename(tmp_path / "right")

    def refused(last: int) -> None:
        before = files(tmp_path)
        with pytest.raises(ConfigError, match=f"the target {AHEAD}") as error:
            landing(spark, kafka, name, tmp_path)
        assert "put back the checkpoint that belongs to the target, or name a new checkpoint and a new target" in str(
            error.value
        )
        assert f"batch_id=1 last_in_checkpoint={last} " in str(error.value)
        assert files(tmp_path) == before

    (tmp_path / "backup").rename(checkpoint)
    refused(0)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "right", checkpoint)
    shutil.rmtree(checkpoint / "query")
    refused(-1)
    shutil.rmtree(checkpoint)
    (tmp_path / "right").rename(checkpoint)
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows(1, 90))


def test_a_batch_of_the_same_number_with_other_offsets_is_not_taken_for_landed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, checkpoint, batch = topic(kafka, partitions=3), tmp_path / "checkpoint", tmp_path / "table" / "batch_id=1"
    admin.run(published(kafka, name, rows(1, 30)))
    landing(spark, kafka, name, tmp_path)
    shutil.copytree(checkpoint, tmp_path / "backup")
    admin.run(published(kafka, name, rows(31, 50)))
    landing(spark, kafka, name, tmp_path)
    batch.rename(tmp_path / "of_before")
    shutil.rmtree(checkpoint)
    (tmp_path / "backup").rename(checkpoint)
    admin.run(published(kafka, name, rows(51, 90)))
    dying(monkeypatch, "table/batch_id=1")
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, name, tmp_path)
    monkeypatch.undo()
    batch.rename(tmp_path / "right")
    (tmp_path / "of_before").rename(batch)
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=f"{OTHERWISE}.* batch_id=1 "):
        landing(spark, kafka, name, tmp_path)
    assert files(tmp_path) == before
    shutil.rmtree(batch)
    (tmp_path / "right").rename(batch)
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows(1, 90))


@pytest.mark.parametrize(
    ("path", "holder"),
    [
        ("table/batch_id=4", "the target"),
        ("apart/batch_id=4", "the quarantine"),
        ("checkpoint/ids/after=4", "the checkpoint's ids"),
        ("checkpoint/sinks/held/after=4", "the checkpoint's sinks/held"),
    ],
)
def test_whatever_is_landed_or_stored_for_a_batch_that_was_never_begun_is_named(
    path: str, holder: str, spark: SparkSession, tmp_path: Path
) -> None:
    target, apart = Directory(spark, str(tmp_path / "table")), Directory(spark, str(tmp_path / "apart"))

    def check() -> None:
        check_progress(spark, target, apart, str(tmp_path / "checkpoint"))

    (tmp_path / path).mkdir(parents=True)
    begun(tmp_path / "checkpoint" / "query", 3, 7)
    with pytest.raises(ConfigError, match=rf"^{holder} {AHEAD}.* batch_id=4 last_in_checkpoint=3 "):
        check()
    # It may have been killed with that very batch landed, and the batch not done.
    begun(tmp_path / "checkpoint" / "query", 4, 9)
    check()


def of_directory(spark: SparkSession, tmp_path: Path) -> Directory:
    return Directory(spark, str(tmp_path / "table"))


def of_iceberg(spark: SparkSession, tmp_path: Path) -> IcebergTable:
    table = IcebergTable(spark, f"lake.{tmp_path.name.rstrip('0123456789')}.progress")
    table.claim("mark")
    return table


@pytest.mark.parametrize("make", [of_directory, of_iceberg])
def test_a_target_tells_its_newest_batch_and_which_offsets_a_batch_has(
    make: Callable[[SparkSession, Path], Directory | IcebergTable], spark: SparkSession, tmp_path: Path
) -> None:
    target, apart, query = make(spark, tmp_path), Directory(spark, str(tmp_path / "apart")), tmp_path / "c" / "query"
    of_kafka = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
        "headers array<struct<key: string, value: binary>>, producer_id string, epoch int, sequence bigint"
    )
    one = spark.createDataFrame([(None, b"v", "a", 0, 0, None, 0, None, P, 1, 1)], of_kafka)
    log = QueryLog(spark, str(query))
    for batch_id in (0, 1, 2):
        begun(query, batch_id, 10 * batch_id)
    assert target.beyond(-1) is None
    target.add(one, 0, log.fingerprint(0))
    target.add(one, 1, None)  # as an earlier version did
    target.add(one, 2, log.fingerprint(2))
    assert [target.beyond(batch_id) for batch_id in (-1, 1, 2)] == [2, 2, None]
    assert [target.fingerprint(batch_id) for batch_id in (0, 1, 2)] == [log.fingerprint(0), None, log.fingerprint(2)]
    check_progress(spark, target, apart, str(tmp_path / "c"))
    begun(query, 2, 21)
    with pytest.raises(ConfigError, match=f"{OTHERWISE}.* batch_id=2 "):
        check_progress(spark, target, apart, str(tmp_path / "c"))


def test_without_the_ids_of_what_was_landed_nothing_is_landed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, ids = topic(kafka, partitions=3), tmp_path / "checkpoint" / "ids"
    admin.run(published(kafka, name, rows(1, 30)))
    landing(spark, kafka, name, tmp_path)
    ids.rename(tmp_path / "away")
    admin.run(published(kafka, name, rows(21, 50)))
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"which records were landed stands no longer in .* batch_id=0 "):
        landing(spark, kafka, name, tmp_path)
    assert files(tmp_path) == before
    (tmp_path / "away").rename(ids)
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows(1, 50))
