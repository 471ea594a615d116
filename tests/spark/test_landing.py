"""Landing from a real broker: each record once, with repeats, in any order, and when the driver dies in a batch.

What is landed is read back with pyarrow, not with Spark or aiorecover, and counted by id.
"""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, land, read_topics
from tests.spark.by_sink import Sink
from tests.spark.death import dying
from tests.spark.feed import P, Q, Rows, landing, once, published, shuffled
from tests.spark.table import files, landed_ids, landed_values
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


def test_each_record_is_landed_once_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(1)
    admin.run(published(kafka, name, rows))
    target = tmp_path / "table"
    # It dies with a batch landed and its ids not stored yet, and with both, before Spark knows.
    for place in ("/batch_id=1", "/after=2"):
        dying(monkeypatch, place)
        with pytest.raises(StreamingQueryException, match="DeathError"):
            landing(spark, kafka, name, tmp_path)
        monkeypatch.undo()
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(target) == once(rows)
    # What came before comes again, under new offsets, with records that are new.
    more: Rows = [*rows[:200], (0, f"{P}/1/801"), (1, f"{Q}/1/7"), (2, f"{Q}/9/1")]
    admin.run(published(kafka, name, more))
    (told,) = landing(spark, kafka, name, tmp_path)
    strangers = sum(1 for _, identity in more if identity is None)
    assert (told.landed, told.without_id, told.repeats) == (3 + strangers, strangers, 200 - strangers)
    assert landed_ids(target) == once([*rows, *more])


def test_what_has_an_undecodable_id_is_set_aside_once_and_counted(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, apart = topic(kafka, partitions=3), tmp_path / "apart"
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (1, "nobody's"), (2, None), (0, f"{P}/1/1"), (1, f"{P}/1/x")]))
    dying(monkeypatch, "table/batch_id=0")  # with the batch landed and the quarantine not yet
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, name, tmp_path, quarantine=str(apart))
    monkeypatch.undo()
    admin.run(published(kafka, name, [(0, f"{P}/1/2"), (2, f"{P}/3000000000/1"), (0, f"{P}/1/1")]))
    told = landing(spark, kafka, name, tmp_path, quarantine=str(apart))
    assert [(one.landed, one.without_id, one.undecodable) for one in told] == [(2, 1, 2), (1, 0, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2", None])
    found = [
        row["headers"][-1]["value"]
        for batch_id in (0, 1)
        for row in ds.dataset(apart / f"batch_id={batch_id}", format="parquet").to_table().to_pylist()
    ]
    assert sorted(found) == [b"abcdefghij234/1/x", b"abcdefghij234/3000000000/1", b"nobody's"]


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
    assert [(one.landed, one.repeats) for one in landing(spark, kafka, name, tmp_path)] == [(2, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/3"])
    with audit(read_topics(spark, [name], kafka.bootstrap_servers), known_last={(P, 1): 4}) as found:
        assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2), (4, 4)]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_refused_beside_another_target_another_state_or_other_topics_and_nothing_is_changed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    one, other = topic(kafka, partitions=3), topic(kafka, partitions=1)
    checkpoint, table = tmp_path / "checkpoint", str(tmp_path / "table")
    admin.run(published(kafka, one, [(0, f"{P}/1/1")]))
    landing(spark, kafka, one, tmp_path)
    shutil.copytree(checkpoint, tmp_path / "backup")
    admin.run(published(kafka, one, [(0, f"{P}/1/1"), (1, f"{P}/1/2")]))
    landing(spark, kafka, one, tmp_path)
    before = files(tmp_path)

    def refused(said: str, topics: list[str], target: str, checkpoint: Path) -> None:
        with pytest.raises(ConfigError, match=said):
            land(spark, topics, target, checkpoint, bootstrap_servers=kafka.bootstrap_servers, available_now=True)

    refused("landed with another checkpoint", [one], table, tmp_path / "new")
    refused("belongs to another target", [one], str(tmp_path / "elsewhere"), checkpoint)
    refused("holds batches that this checkpoint knows nothing of", [one], table, tmp_path / "backup")
    refused(re.escape(f"absent={[one]}"), [other], table, checkpoint)
    refused("something else is in the target", [one], str(tmp_path / "backup"), tmp_path / "new")
    left = files(tmp_path)
    assert {path: left[path] for path in before} == before
    # An added topic is landed from its first record.
    admin.run(published(kafka, other, [(0, f"{Q}/1/1"), (0, f"{P}/1/2")]))
    landing(spark, kafka, [one, other], tmp_path)
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2", f"{Q}/1/1"])


def test_of_two_landings_with_one_checkpoint_the_second_is_refused_until_the_first_has_ended(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(7)
    admin.run(published(kafka, name, rows[:300]))
    first = land(spark, [name], tmp_path / "table", tmp_path / "checkpoint", bootstrap_servers=kafka.bootstrap_servers)
    with pytest.raises(ConfigError, match="another landing works with this checkpoint: wait until it has ended"):
        landing(spark, kafka, name, tmp_path)
    first.processAllAvailable()
    first.stop()
    admin.run(published(kafka, name, rows[200:]))
    landing(spark, kafka, name, tmp_path)
    strangers = Counter({None: sum(1 for _, identity in rows[200:300] if identity is None)})
    assert landed_ids(tmp_path / "table") == once(rows) + strangers


def test_what_cannot_be_is_said_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")

    def refused(said: str, topics: Any = ("x",), target: str = target, checkpoint: str = target, **more: Any) -> None:
        with pytest.raises(ConfigError, match=said):
            land(spark, topics, target, checkpoint, bootstrap_servers="x", **more)

    refused("at least 1", max_offsets_per_trigger=0)
    refused("name the topics", topics="x")
    refused("name a checkpoint", checkpoint="/")
    refused("must be a path", target="")
    refused("leave the topic out of topics", checkpoint=f"{target}.c", sink_manifests="x")
    refused("checkpoint='s3a://bucket/c'", checkpoint="s3a://bucket/c")
    assert list(tmp_path.iterdir()) == []


# -- records of sinks --------------------------------------------------------------------------------------------------


def test_records_of_a_sink_wait_for_their_manifest_and_leftovers_never_come_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, table = Sink(kafka, topic), tmp_path / "table"
    first, _leftover = sink.attempt(0, range(50)), sink.attempt(0, range(30))
    admin.run(sink.publish_plainly(1000))
    (plain,) = sink.land(spark, tmp_path)
    assert (plain.landed, plain.held) == (1, 80), "what is no sink's does not wait"
    sink.decide(first)
    second = sink.attempt(1, range(50, 60)), sink.attempt(1, range(60, 70), task=1)
    sink.attempt(0, range(10))  # an attempt that does not know that it has failed
    dying(monkeypatch, "table/batch_id=1")
    with pytest.raises(StreamingQueryException, match="DeathError"):
        sink.land(spark, tmp_path)
    monkeypatch.undo()
    sink.decide(*second)
    sink.decide(sink.attempt(1, range(50, 70)))  # a second manifest of a write counts for nothing
    told = sink.land(spark, tmp_path)
    assert sum(one.landed for one in told) == 70
    assert {int(value): count for value, count in landed_values(table).items()} == dict.fromkeys([*range(70), 1000], 1)
    with pytest.raises(ConfigError, match="name sink_manifests as before"):
        landing(spark, kafka, sink.records, tmp_path)
