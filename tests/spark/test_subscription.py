"""A checkpoint that is started with other topics than before: refused with nothing written, or each record once."""

import re
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import landing as landing_module
from aiorecover.spark.subscription import Subscription
from tests.spark.death import dying
from tests.spark.feed import P, Q, Rows, landing, once, published
from tests.spark.table import files, landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

LOSSY = {"failOnDataLoss": "false"}


def rows(producer: str, first: int, last: int) -> Rows:
    """Records of a producer over three partitions, and one of other people behind each tenth."""
    told: Rows = []
    for sequence in range(first, last + 1):
        told.append((sequence % 3, f"{producer}/1/{sequence}"))
        if sequence % 10 == 0:
            told.append((sequence % 3, None))
    return told


async def delete_records(cluster: Cluster, topic: str, before: int) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    await client.start()
    try:
        await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})
    finally:
        await client.close()


def subscription(named: str, started: str, unfinished: str | None = None) -> Subscription:
    return Subscription(frozenset(named), frozenset(started), frozenset(started if unfinished is None else unfinished))


@pytest.mark.parametrize(
    ("found", "absent", "added", "stuck"),
    [
        (subscription("ba", "ab"), "", "", False),
        (subscription("a", ""), "", "", False),
        (subscription("b", "", "a"), "a", "", False),
        (subscription("abc", "ab"), "", "c", False),
        (subscription("ac", "ab"), "b", "c", False),
        (subscription("ab", "a", "ab"), "", "", False),
        (subscription("a", "a", "ab"), "b", "", False),
        (subscription("ab", "ab", "a"), "", "", True),
        (subscription("ab", "ab", "c"), "", "", True),
        (subscription("a", "ab", "c"), "b", "", True),
    ],
)
def test_what_is_absent_added_or_stuck_is_told_by_the_topics(
    found: Subscription, absent: str, added: str, stuck: bool
) -> None:
    assert (found.absent, found.added, found.is_stuck) == (list(absent), list(added), stuck)


def test_a_topic_left_out_or_exchanged_is_refused_and_the_checkpoint_goes_on_with_the_right_ones(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    a, b, c = (topic(kafka, partitions=3) for _ in range(3))
    for name, producer in ((a, P), (b, Q), (c, "mmmmmmmmmmmmm")):
        admin.run(published(kafka, name, rows(producer, 1, 40)))
    landing(spark, kafka, [a, b], tmp_path)
    before = files(tmp_path)
    for names, absent in (([a], [b]), ([c], sorted([a, b])), ([b, c], [a])):
        with pytest.raises(ConfigError, match=re.escape(f"absent={absent}")) as refused:
            landing(spark, kafka, names, tmp_path)
        assert str(refused.value).startswith("topics of this checkpoint are not named: name them, too")
        assert files(tmp_path) == before
    admin.run(published(kafka, b, rows(Q, 31, 60)))
    landing(spark, kafka, [b, a], tmp_path)
    assert landed_ids(tmp_path / "table") == once([*rows(P, 1, 40), *rows(Q, 1, 40), *rows(Q, 31, 60)])


def test_an_added_topic_is_landed_once_from_its_first_record_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = topic(kafka, partitions=3), topic(kafka, partitions=3)
    admin.run(published(kafka, a, rows(P, 1, 90)))
    told = [*rows(Q, 1, 200), *rows(P, 80, 90)]
    admin.run(published(kafka, b, told))
    landing(spark, kafka, a, tmp_path)
    admin.run(published(kafka, a, rows(P, 91, 120)))
    # It dies with the first batch that has records of the added one, and goes on in small batches.
    dying(monkeypatch, "table/batch_id=1")
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, [a, b], tmp_path, max_offsets_per_trigger=60)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=re.escape(f"absent={[b]}")):
        landing(spark, kafka, a, tmp_path)
    landing(spark, kafka, [a, b], tmp_path, max_offsets_per_trigger=60)
    assert not (tmp_path / "checkpoint" / "_added").exists()
    admin.run(published(kafka, b, rows(Q, 201, 210)))
    with pytest.raises(ConfigError, match=re.escape(f"absent={[b]}")):
        landing(spark, kafka, a, tmp_path)
    landing(spark, kafka, [a, b], tmp_path)
    assert landed_ids(tmp_path / "table") == once([*rows(P, 1, 120), *told, *rows(Q, 201, 210)])


def test_an_added_topic_whose_first_records_are_deleted_is_refused_unless_that_is_accepted(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    a, b = topic(kafka, partitions=3), topic(kafka, partitions=3)
    admin.run(published(kafka, a, rows(P, 1, 40)))
    admin.run(published(kafka, b, [(0, f"{Q}/1/{sequence}") for sequence in range(1, 31)]))
    admin.run(delete_records(kafka, b, 10))
    landing(spark, kafka, a, tmp_path)
    admin.run(published(kafka, a, rows(P, 41, 50)))
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"deleted the first records of an added topic.*'0': 10"):
        landing(spark, kafka, [a, b], tmp_path)
    assert files(tmp_path) == before
    landing(spark, kafka, a, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows(P, 1, 50))
    landing(spark, kafka, [a, b], tmp_path, options=LOSSY)
    rest: Rows = [(0, f"{Q}/1/{sequence}") for sequence in range(11, 31)]
    assert landed_ids(tmp_path / "table") == once([*rows(P, 1, 50), *rest])
    landing(spark, kafka, [a, b], tmp_path)


def test_a_batch_that_was_begun_with_other_topics_is_taken_back(
    spark: SparkSession,
    kafka: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As earlier versions left it, and starts with failOnDataLoss=false that were killed."""
    a, b, c = (topic(kafka, partitions=3) for _ in range(3))
    for name, producer in ((a, P), (b, Q), (c, "mmmmmmmmmmmmm")):
        admin.run(published(kafka, name, rows(producer, 1, 40)))
    landing(spark, kafka, [a, b], tmp_path)
    for number, names in enumerate(([c], [a]), start=1):
        admin.run(published(kafka, a, rows(P, 40 * number + 1, 40 * number + 40)))
        monkeypatch.setattr(landing_module, "check_subscription", lambda *_: None)
        with pytest.raises(StreamingQueryException):
            landing(spark, kafka, names, tmp_path)
        monkeypatch.undo()
        assert (tmp_path / "checkpoint" / "query" / "offsets" / str(number)).exists()
        with pytest.raises(ConfigError, match="topics of this checkpoint are not named"):
            landing(spark, kafka, names, tmp_path)
        caplog.clear()
        told = landing(spark, kafka, [a, b], tmp_path)
        assert [one.batch_id for one in told] == [number]
        (said,) = [line for line in caplog.messages if "is taken back" in line]
        assert said.endswith(f"batch_id={number} topics={names}")
    assert landed_ids(tmp_path / "table") == once([*rows(P, 1, 120), *rows(Q, 1, 40)])


def test_a_topic_may_be_left_for_good_and_a_batch_begun_like_that_is_finished_like_that(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = topic(kafka, partitions=3), topic(kafka, partitions=3)
    admin.run(published(kafka, a, rows(P, 1, 40)))
    admin.run(published(kafka, b, rows(Q, 1, 40)))
    landing(spark, kafka, [a, b], tmp_path)
    admin.run(published(kafka, a, rows(P, 41, 60)))
    dying(monkeypatch, "table/batch_id=1")
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, a, tmp_path, options=LOSSY)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="finish it with the option failOnDataLoss=false"):
        landing(spark, kafka, [a, b], tmp_path)
    landing(spark, kafka, a, tmp_path, options=LOSSY)
    landing(spark, kafka, a, tmp_path)
    told = [*rows(P, 1, 60), *rows(Q, 1, 40)]
    assert landed_ids(tmp_path / "table") == once(told)
    # Named again, it begins anew: nothing but the ids tells what was landed.
    landing(spark, kafka, [a, b], tmp_path)
    others = sum(1 for _, identity in rows(Q, 1, 40) if identity is None)
    assert landed_ids(tmp_path / "table") == once(told) + Counter({None: others})


def test_a_checkpoint_whose_topics_had_no_record_yet_is_theirs_and_takes_others(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    a, b = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(published(kafka, b, [(0, f"{Q}/1/1"), (0, None)]))
    landing(spark, kafka, a, tmp_path)
    with pytest.raises(ConfigError, match=re.escape(f"absent={[a]}")):
        landing(spark, kafka, b, tmp_path)
    landing(spark, kafka, [a, b], tmp_path)
    assert landed_ids(tmp_path / "table") == Counter([f"{Q}/1/1", None])


def test_a_topic_that_is_not_there_binds_no_checkpoint(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    a = topic(kafka, partitions=1)
    admin.run(published(kafka, a, [(0, f"{P}/1/1")]))
    with pytest.raises(ConfigError, match="a topic does not exist"):
        landing(spark, kafka, "not-there", tmp_path)
    landing(spark, kafka, a, tmp_path)
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="a topic does not exist"):
        landing(spark, kafka, [a, "not-there"], tmp_path)
    assert files(tmp_path) == before
    landing(spark, kafka, a, tmp_path)
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1"])
