"""A topic that was deleted and made anew is no longer the one that was landed: it is refused, however much it holds."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import RecordsGoneError, topic_ids
from aiorecover.spark.topic_ids import check_topic_ids
from aiorecover.spark.topics import source_options
from tests.spark.feed import P, landing, published
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


def remake(kafka: Cluster, name: str, records: range) -> None:
    """Deleted and made anew, with these sequences."""
    admin.run(admin.remake_topic(kafka.bootstrap_servers, name, 1))
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in records]))


@pytest.mark.parametrize("more", [2, 20], ids=["fewer", "more"])
def test_a_topic_that_was_made_anew_is_refused_however_many_records_it_has(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, more: int
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(1, 6)]))
    landing(spark, kafka, name, tmp_path)
    remake(kafka, name, range(6, 6 + more))
    for _ in range(2):
        with pytest.raises(RecordsGoneError, match="deleted and made anew since it was landed last") as raised:
            landing(spark, kafka, name, tmp_path)
        assert str(raised.value).endswith(f"topics=['{name}']")
    # Who says so goes on behind the old offsets; the next start finds the topic that it knows.
    landing(spark, kafka, name, tmp_path, options={"failOnDataLoss": "false"})
    admin.run(published(kafka, name, [(0, f"{P}/1/100")]))
    landing(spark, kafka, name, tmp_path)
    new = range(11, 6 + more)  # offsets 5 and above of the new topic, where it has so many
    assert landed_ids(tmp_path / "table").keys() == {f"{P}/1/{sequence}" for sequence in (*range(1, 6), *new, 100)}


def test_a_checkpoint_without_ids_goes_on_and_keeps_them_from_then_on(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1")]))
    landing(spark, kafka, name, tmp_path)
    ids = tmp_path / "checkpoint" / "topic_ids"
    (kept,) = ids.glob("*.id")
    before = kept.read_bytes()
    shutil.rmtree(ids)
    landing(spark, kafka, name, tmp_path)
    assert kept.read_bytes() == before


def test_before_anything_was_landed_a_topic_may_be_made_anew(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, kept = topic(kafka, partitions=1), set()
    for _ in range(2):
        check_topic_ids(spark, str(tmp_path), source_options([name], kafka.bootstrap_servers))
        (stored,) = (tmp_path / "topic_ids").glob("*.id")
        kept.add(stored.read_bytes())
        admin.run(admin.remake_topic(kafka.bootstrap_servers, name, 1))
    assert len(kept) == 2, "the new one is kept"


def test_a_topic_that_was_left_may_be_made_anew_and_named_again(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    a, b = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(published(kafka, b, [(0, f"{P}/1/1"), (0, f"{P}/1/2")]))
    landing(spark, kafka, [a, b], tmp_path)
    admin.run(published(kafka, a, [(0, f"{P}/2/1")]))
    landing(spark, kafka, a, tmp_path, options={"failOnDataLoss": False})
    remake(kafka, b, range(3, 8))
    landing(spark, kafka, [a, b], tmp_path)
    ids = [f"{P}/1/{sequence}" for sequence in range(1, 8)]
    assert landed_ids(tmp_path / "table") == Counter([*ids, f"{P}/2/1"])


def test_without_kafkas_client_under_its_name_landing_goes_on_and_says_what_is_not_known(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_ids, "_CLIENTS", "shaded.org.apache.kafka.clients.admin.AdminClient")
    check_topic_ids(spark, str(tmp_path), source_options(["orders"], "127.0.0.1:9092"))
    assert "under another name, so the topics' ids are not known" in caplog.text
    assert "topics=['orders']" in caplog.text


def test_a_topic_that_is_not_there_is_said_after_some_tries(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="a topic does not exist"):
        check_topic_ids(spark, str(tmp_path), source_options(["not-there"], kafka.bootstrap_servers))
