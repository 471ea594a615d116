"""Landing from a real broker: each record once, in spite of repeats, disorder and drivers that die."""

import re
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, compare, land, read_topics, seen
from aiorecover.spark.stores import store_for
from tests.spark.death import die_in_batch
from tests.spark.feed import P, Q, Rows, each_id_once, land_all, publish, shuffled_rows
from tests.spark.lakes import KINDS, lake
from tests.spark.table import landed_ids, read_files
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

# (batch, suffix of the table, added): between a table's rows and its ids each format takes steps of its own.
DEATHS = {
    "parquet": [(0, "", False), (1, "__ids", True), (2, "__ids", False)],
    "delta": [(1, "", True)],
    "iceberg": [(1, "", True)],
}
COUNTS = "landed", "repeats", "conflicts", "undecodable"


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_landed_once_whenever_the_driver_dies_and_changes_by_hand_are_named(
    kind: str, spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "WHOLE_EACH", 2)  # so that the ids are compacted between these batches
    name, rows, target = topic(kafka, partitions=3), shuffled_rows(1), lake(spark, kind, tmp_path)

    def land_rest() -> Counter[str]:
        counts = Counter[str]()
        for batch in land_all(spark, kafka, name, tmp_path, target.target, format=kind):
            counts += Counter({field: getattr(batch, field) for field in COUNTS})
        return counts

    admin.run(publish(kafka, name, rows))
    for batch_id, suffix, added in DEATHS[kind]:
        with monkeypatch.context() as patch:
            die_in_batch(patch, target.store, suffix or target.target, batch_id, added=added)
            with pytest.raises(StreamingQueryException, match="DeathError"):
                land_rest()
    land_rest()
    assert target.ids() == each_id_once(rows)
    # Repeats under new offsets, new records, undecodable ids, and other records under known ids.
    repeats = [row for row in rows if row[1] is not None][:200]
    more: Rows = [*repeats, (0, f"{P}/1/801"), (1, f"{Q}/1/1"), (2, f"{Q}/1/1"), (0, "nonsense"), (1, f"{P}/1/x")]
    admin.run(publish(kafka, name, more))
    conflicts: Rows = [(1, f"{P}/1/5"), (2, f"{P}/1/801")]
    admin.run(publish(kafka, name, conflicts, b"forwarded"))
    if kind == "parquet":
        with monkeypatch.context() as patch:
            die_in_batch(patch, target.store, "__quarantine", 3, added=True)
            with pytest.raises(StreamingQueryException, match="DeathError"):
                land_rest()
    assert land_rest() == Counter(landed=2, repeats=201, conflicts=2, undecodable=2)
    assert target.ids() == each_id_once([*rows, *more[:-2]])
    quarantine = target.rows("__quarantine").select("reason", "value").collect()
    assert Counter((reason, bytes(value)) for reason, value in quarantine) == {
        ("conflict", b"forwarded"): 2,
        ("undecodable", b"value"): 2,
    }
    assert target.rows("__ids").select("batch_id").distinct().count() <= 2, "the state stays small"
    target.change(removed=700, repeated=701, forged=702)
    topics = read_topics(spark, [name], kafka.bootstrap_servers)
    with audit(target.rows()) as found, compare(topics, target.rows()) as compared:
        for fault, (first, last) in {"missing": (700, 700), "repeated": (701, 702), "conflicts": (702, 702)}.items():
            named = getattr(found, fault).where("epoch = 1").select("producer_id", "first", "last").collect()
            assert [tuple(row) for row in named] == [(P, first, last)], fault
        assert [tuple(row)[2:4] for row in compared.absent.collect()] == [(700, 700)]


@pytest.mark.parametrize("kind", KINDS)
def test_drivers_that_add_a_batch_at_once_add_it_once(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    target = lake(spark, kind, tmp_path)
    rows = spark.range(0, 2000, 1, 2).selectExpr("id sequence", "'p' producer_id")
    schema = rows.selectExpr("*", "0L batch_id").schema
    store_for(spark, target.target, kind).claim(schema, "ours")
    for batch_id in range(2):
        barrier = threading.Barrier(3)

        def add(batch_id: int = batch_id, barrier: threading.Barrier = barrier) -> None:
            store = store_for(spark, target.target, kind)
            barrier.wait()
            store.append(rows, batch_id, "ours")

        with ThreadPoolExecutor(3) as pool:
            errors = [adding.exception() for adding in [pool.submit(add) for _ in range(3)]]
        assert None in errors
        store_for(spark, target.target, kind).append(rows, batch_id, "ours")  # a driver that comes late
    if kind == "iceberg":
        expire_snapshots(spark, target.target)
        store_for(spark, target.target, kind).append(rows, 0, "ours")
    counts = target.rows().groupBy("batch_id").count().orderBy("batch_id").collect()
    assert [tuple(row) for row in counts] == [(0, 2000), (1, 2000)]


def expire_snapshots(spark: SparkSession, name: str) -> None:
    """Expire all snapshots but the last: then only the rows show which batches the table has."""
    java: Any = spark
    table = java._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java._jsparkSession, name)
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 60_000).retainLast(1).commit()


async def publish_in_transactions(cluster: Cluster, topic: str) -> None:
    """Publish sequences 1 to 4 and 3 again; abort the transactions of the even ones."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic) as producer:
        for sequence in (1, 2, 3, 4, 3):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"value", headers=[("aiorecover-id", f"{P}/1/{sequence}".encode())])
            await (producer.commit_transaction() if sequence % 2 else producer.abort_transaction())


def test_records_of_an_aborted_transaction_are_not_landed_and_the_audit_calls_them_missing(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(publish_in_transactions(kafka, name))
    assert [(batch.landed, batch.repeats) for batch in land_all(spark, kafka, name, tmp_path)] == [(2, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/3"])
    with audit(read_topics(spark, [name], kafka.bootstrap_servers), known_last={(P, 1): 4}) as found:
        assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2), (4, 4)]


def test_a_batch_has_as_many_files_as_it_is_given_whatever_the_session_has_for_its_shuffles(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, shuffles = topic(kafka, partitions=3), "spark.sql.shuffle.partitions"
    admin.run(publish(kafka, name, shuffled_rows(2)))
    before = str(spark.conf.get(shuffles))
    spark.conf.set(shuffles, "20")
    try:
        assert len(land_all(spark, kafka, name, tmp_path, files_per_batch=2)) == 3
        assert spark.conf.get(shuffles) == "20", "the caller's session stays as it is"
    finally:
        spark.conf.set(shuffles, before)
    for batch_id in range(3):
        assert len(list((tmp_path / "table" / f"batch_id={batch_id}").glob("*.parquet"))) <= 2


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_with_another_target_state_or_topics_is_refused_and_nothing_is_changed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    one, other, cut = topic(kafka, partitions=3), topic(kafka, partitions=1), topic(kafka, partitions=1)
    checkpoint, table = tmp_path / "checkpoint", str(tmp_path / "table")
    admin.run(publish(kafka, one, [(0, f"{P}/1/1")]))
    land_all(spark, kafka, one, tmp_path)
    shutil.copytree(checkpoint, tmp_path / "backup")
    admin.run(publish(kafka, one, [(0, f"{P}/1/1"), (1, f"{P}/1/2")]))
    land_all(spark, kafka, one, tmp_path)
    before = read_files(tmp_path)

    def refuses(message: str, topics: list[str], target: str, checkpoint: Path) -> None:
        with pytest.raises(ConfigError, match=message):
            land(spark, topics, target, checkpoint, bootstrap_servers=kafka.bootstrap_servers, available_now=True)

    refuses("landed with another checkpoint", [one], table, tmp_path / "new")
    refuses("the target of this checkpoint is gone, or is another one", [one], str(tmp_path / "elsewhere"), checkpoint)
    refuses("holds batches that this checkpoint knows nothing of", [one], table, tmp_path / "backup")
    refuses(re.escape(f"absent={[one]}"), [other], table, checkpoint)
    refuses("something else is in the target", [one], str(tmp_path / "backup"), tmp_path / "new")
    admin.run(publish(kafka, cut, [(0, f"{Q}/2/1")]))
    admin.run(admin.delete_records(kafka.bootstrap_servers, cut, 0, before=1))
    refuses(f"deleted the first records of an added topic.* begins={cut}-0:1", [one, cut], table, checkpoint)
    ids = tmp_path / "table__ids"
    ids.rename(tmp_path / "lost")
    refuses("which ids were landed is not known any more", [one], table, checkpoint)
    (tmp_path / "lost").rename(ids)
    after = read_files(tmp_path)
    assert {path: after[path] for path in before} == before
    # An added topic is landed from its first record.
    admin.run(publish(kafka, other, [(0, f"{Q}/1/1"), (0, f"{P}/1/2")]))
    land_all(spark, kafka, [one, other], tmp_path)
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2", f"{Q}/1/1"])


def test_a_table_that_has_lost_a_column_is_refused_before_the_batch(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, target = topic(kafka, partitions=1), lake(spark, "iceberg", tmp_path)
    admin.run(publish(kafka, name, [(0, f"{P}/1/1")]))
    land_all(spark, kafka, name, tmp_path, target.target)
    spark.sql(f"ALTER TABLE {target.target} DROP COLUMN value")
    spark.sql(f"ALTER TABLE {target.target} ADD COLUMN comment string")  # a column of the user
    admin.run(publish(kafka, name, [(0, f"{P}/1/2")]))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"lacks columns that are landed: add them again, .* absent=value$"):
            land_all(spark, kafka, name, tmp_path, target.target)
    spark.sql(f"ALTER TABLE {target.target} ADD COLUMN value binary")
    land_all(spark, kafka, name, tmp_path, target.target)
    assert target.ids() == Counter([f"{P}/1/1", f"{P}/1/2"])


def test_a_name_without_its_catalogue_is_refused_where_use_has_chosen_a_catalogue(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()  # what USE chooses holds for this one alone
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.tests")
    session.sql("USE lake.tests")
    for name in ("orders", "tests.orders"):
        with pytest.raises(ConfigError, match=f"name the target with its catalogue.* target={name} current=lake.tests"):
            land(session, ["x"], name, tmp_path, bootstrap_servers="x")
    with pytest.raises(ConfigError, match="Kafka cannot be reached"):
        land(session, ["x"], "lake.tests.orders", tmp_path, bootstrap_servers="x")


def test_a_name_without_its_catalogue_is_refused_where_spark_has_its_own_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.unset("spark.sql.catalog.spark_catalog")
    with pytest.raises(ConfigError, match=r"name a directory, .* or a table with its catalogue.* table=orders"):
        land(session, ["x"], "orders", tmp_path, bootstrap_servers="x")


def test_wrong_arguments_are_refused_before_anything_is_created(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")

    def refuses(
        message: str, topics: Any = ("x",), target: str = target, checkpoint: str = f"{target}.c", **more: Any
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            land(spark, topics, target, checkpoint, bootstrap_servers="x", **more)

    refuses("at least 1", max_offsets_per_trigger=0)
    refuses("name the topics", topics="x")
    refuses("name a checkpoint", checkpoint="/")
    refuses("name a target", target="")
    refuses("name a directory of its own for the checkpoint", checkpoint=f"{target}__ids")
    refuses("Hadoop knows no file system of this scheme", target="s3a://bucket/t")
    refuses("Parquet is landed on local disks and HDFS", target="ftp://127.0.0.1/t", format="parquet")
    refuses("name a table of Iceberg by its catalogue", format="iceberg")
    refuses("a format is one of iceberg, delta, parquet", format="orc")
    assert list(tmp_path.iterdir()) == []
