"""Landing from a real broker: each record once, with repeats, in any order, and whenever the driver dies."""

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

# Batch, where, and with or without it. What stands between a table's rows and its ids is the format's own.
DEATHS = {
    "parquet": [(0, "", False), (1, "__ids", True), (2, "__ids", False)],
    "delta": [(1, "", True)],
    "iceberg": [(1, "", True)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_landed_once_whenever_the_driver_dies_and_what_is_changed_by_hand_is_named(
    kind: str, spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "WHOLE_EACH", 2)  # the ids are compacted between these batches
    name, rows, target = topic(kafka, partitions=3), shuffled_rows(1), lake(spark, kind, tmp_path)

    def land_rest() -> Counter[str]:
        told = land_all(spark, kafka, name, tmp_path, target.target, format=kind)
        counts = Counter[str]()
        for one in told:
            counts += Counter(
                landed=one.landed, repeats=one.repeats, conflicts=one.conflicts, undecodable=one.undecodable
            )
        return counts

    admin.run(publish(kafka, name, rows))
    for batch_id, suffix, added in DEATHS[kind]:
        with monkeypatch.context() as patch:
            die_in_batch(patch, target.store, suffix or target.target, batch_id, added=added)
            with pytest.raises(StreamingQueryException, match="DeathError"):
                land_rest()
    land_rest()
    assert target.ids() == each_id_once(rows)
    # What came before comes again under new offsets, with records that are new, and with others under their ids.
    again = [row for row in rows if row[1] is not None][:200]
    more: Rows = [*again, (0, f"{P}/1/801"), (1, f"{Q}/1/1"), (2, f"{Q}/1/1"), (0, "nobody's"), (1, f"{P}/1/x")]
    admin.run(publish(kafka, name, more))
    copied: Rows = [(1, f"{P}/1/5"), (2, f"{P}/1/801")]
    admin.run(publish(kafka, name, copied, b"forwarded"))
    if kind == "parquet":
        with monkeypatch.context() as patch:
            die_in_batch(patch, target.store, "__quarantine", 3, added=True)
            with pytest.raises(StreamingQueryException, match="DeathError"):
                land_rest()
    assert land_rest() == Counter(landed=2, repeats=201, conflicts=2, undecodable=2)
    assert target.ids() == each_id_once([*rows, *more[:-2]])
    apart = target.rows("__quarantine").select("reason", "value").collect()
    assert Counter((reason, bytes(value)) for reason, value in apart) == {
        ("conflict", b"forwarded"): 2,
        ("undecodable", b"value"): 2,
    }
    assert target.rows("__ids").select("batch_id").distinct().count() <= 2, "the state stays small"
    target.change(removed=700, repeated=701, forged=702)
    topics = read_topics(spark, [name], kafka.bootstrap_servers)
    with audit(target.rows()) as found, compare(topics, target.rows()) as compared:
        for what, ranges in {"missing": [(700, 700)], "repeated": [(701, 702)], "conflicts": [(702, 702)]}.items():
            named = getattr(found, what).where("epoch = 1").select("producer_id", "first", "last").collect()
            assert [tuple(one) for one in named] == [(P, *one) for one in ranges], what
        assert [tuple(one)[2:4] for one in compared.absent.collect()] == [(700, 700)]


@pytest.mark.parametrize("kind", KINDS)
def test_of_drivers_that_add_a_batch_at_once_one_does_and_the_others_change_nothing(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    target = lake(spark, kind, tmp_path)
    rows = spark.range(0, 2000, 1, 2).selectExpr("id sequence", "'p' producer_id")
    schema = rows.selectExpr("*", "0L batch_id").schema
    store_for(spark, target.target, kind).claim(schema, "ours")
    for batch_id in range(2):
        both = threading.Barrier(3)

        def add(batch_id: int = batch_id, both: threading.Barrier = both) -> None:
            store = store_for(spark, target.target, kind)
            both.wait()
            store.append(rows, batch_id, "ours")

        with ThreadPoolExecutor(3) as pool:
            errors = [one.exception() for one in [pool.submit(add) for _ in range(3)]]
        assert None in errors
        store_for(spark, target.target, kind).append(rows, batch_id, "ours")  # repeats that come late
    if kind == "iceberg":
        expire_snapshots(spark, target.target)
        store_for(spark, target.target, kind).append(rows, 0, "ours")
    found = target.rows().groupBy("batch_id").count().orderBy("batch_id").collect()
    assert [tuple(one) for one in found] == [(0, 2000), (1, 2000)]


def expire_snapshots(spark: SparkSession, name: str) -> None:
    """Expire all snapshots but the last: then only rows show which batches are there."""
    java: Any = spark
    table = java._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java._jsparkSession, name)
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 60_000).retainLast(1).commit()


async def published_in_transactions(cluster: Cluster, topic: str) -> None:
    """Sequences 1 to 4, the even ones in transactions that are aborted; 3 comes again."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic) as producer:
        for sequence in (1, 2, 3, 4, 3):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"value", headers=[("aiorecover-id", f"{P}/1/{sequence}".encode())])
            await (producer.commit_transaction() if sequence % 2 else producer.abort_transaction())


def test_what_an_aborted_transaction_left_is_neither_landed_nor_found(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published_in_transactions(kafka, name))
    assert [(one.landed, one.repeats) for one in land_all(spark, kafka, name, tmp_path)] == [(2, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/3"])
    with audit(read_topics(spark, [name], kafka.bootstrap_servers), known_last={(P, 1): 4}) as found:
        assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2), (4, 4)]


def test_a_batch_has_as_many_files_as_it_is_given_whatever_the_session_has_for_its_shuffles(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, shuffles = topic(kafka, partitions=3), "spark.sql.shuffle.partitions"
    admin.run(published(kafka, name, shuffled(2)))
    before = spark.conf.get(shuffles)
    spark.conf.set(shuffles, "20")
    try:
        assert len(landing(spark, kafka, name, tmp_path, files_per_batch=2)) == 3
        assert spark.conf.get(shuffles) == "20", "the caller's session stays as it is"
    finally:
        spark.conf.set(shuffles, before)
    for batch_id in range(3):
        assert len(list((tmp_path / "table" / f"batch_id={batch_id}").glob("*.parquet"))) <= 2


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_refused_beside_another_target_another_state_or_other_topics_and_nothing_is_changed(
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

    def refused(said: str, topics: list[str], target: str, checkpoint: Path) -> None:
        with pytest.raises(ConfigError, match=said):
            land(spark, topics, target, checkpoint, bootstrap_servers=kafka.bootstrap_servers, available_now=True)

    refused("landed with another checkpoint", [one], table, tmp_path / "new")
    refused("the target of this checkpoint is gone, or is another one", [one], str(tmp_path / "elsewhere"), checkpoint)
    refused("holds batches that this checkpoint knows nothing of", [one], table, tmp_path / "backup")
    refused(re.escape(f"absent={[one]}"), [other], table, checkpoint)
    refused("something else is in the target", [one], str(tmp_path / "backup"), tmp_path / "new")
    admin.run(publish(kafka, cut, [(0, f"{Q}/2/1")]))
    admin.run(admin.delete_records(kafka.bootstrap_servers, cut, 0, before=1))
    refused(f"deleted the first records of an added topic.* begins={cut}-0:1", [one, cut], table, checkpoint)
    ids = tmp_path / "table__ids"
    ids.rename(tmp_path / "lost")
    refused("which ids were landed is not known any more", [one], table, checkpoint)
    (tmp_path / "lost").rename(ids)
    left = read_files(tmp_path)
    assert {path: left[path] for path in before} == before
    # An added topic is landed from its first record.
    admin.run(publish(kafka, other, [(0, f"{Q}/1/1"), (0, f"{P}/1/2")]))
    land_all(spark, kafka, [one, other], tmp_path)
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2", f"{Q}/1/1"])


def test_a_table_that_has_lost_a_column_is_refused_before_the_batch_and_nothing_is_changed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, target = topic(kafka, partitions=1), lake(spark, "iceberg", tmp_path)
    admin.run(publish(kafka, name, [(0, f"{P}/1/1")]))
    land_all(spark, kafka, name, tmp_path, target.target)
    spark.sql(f"ALTER TABLE {target.target} DROP COLUMN value")
    spark.sql(f"ALTER TABLE {target.target} ADD COLUMN comment string")  # of the user's own: none of ours
    admin.run(publish(kafka, name, [(0, f"{P}/1/2")]))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"lacks columns that are landed: add them again, .* absent=value$"):
            land_all(spark, kafka, name, tmp_path, target.target)
    spark.sql(f"ALTER TABLE {target.target} ADD COLUMN value binary")
    land_all(spark, kafka, name, tmp_path, target.target)
    assert target.ids() == Counter([f"{P}/1/1", f"{P}/1/2"])


def test_what_cannot_be_is_said_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")

    def refused(
        said: str, topics: Any = ("x",), target: str = target, checkpoint: str = f"{target}.c", **more: Any
    ) -> None:
        with pytest.raises(ConfigError, match=said):
            land(spark, topics, target, checkpoint, bootstrap_servers="x", **more)

    refused("at least 1", max_offsets_per_trigger=0)
    refused("name the topics", topics="x")
    refused("name a checkpoint", checkpoint="/")
    refused("name a target", target="")
    refused("name a directory of its own for the checkpoint", checkpoint=f"{target}__ids")
    refused("Hadoop knows no file system of this scheme", target="s3a://bucket/t")
    away = "ftp://127.0.0.1/t"
    refused("Parquet is landed on local disks and HDFS", target=away, format="parquet")
    refused("name a table of Iceberg by its catalogue", format="iceberg")
    refused("a format is one of iceberg, delta, parquet", format="orc")
    assert list(tmp_path.iterdir()) == []
