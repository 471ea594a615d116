"""A checkpoint keeps to the manifest topic that it was begun with: with another one rows would wait for ever."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land
from aiorecover.spark.manifest_topic import check_manifest_topic, keep_manifest_topic
from tests.spark.by_sink import Sink
from tests.spark.test_undecided import landed
from tests.support.cluster import Cluster, TopicFactory


def test_another_manifest_topic_is_refused_also_where_the_first_one_is_named_among_the_topics(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    sink, other = Sink(kafka, topic), topic(kafka, partitions=1)
    sink.decide(sink.attempt(0, range(10)))
    sink.land(spark, tmp_path)
    for topics in ([sink.records], [sink.records, sink.manifests]):
        with pytest.raises(ConfigError, match=f"name that one.*sink_manifests='{other}' begun_with='{sink.manifests}'"):
            land(
                spark,
                topics,
                tmp_path / "table",
                tmp_path / "checkpoint",
                bootstrap_servers=kafka.bootstrap_servers,
                sink_manifests=other,
                available_now=True,
            )
    sink.decide(sink.attempt(1, range(10, 20)))
    sink.land(spark, tmp_path)
    assert sorted(landed(tmp_path).elements()) == list(range(20))


def test_a_checkpoint_of_an_earlier_version_keeps_to_the_first_one_that_it_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = str(tmp_path / "sinks")
    check_manifest_topic(spark, directory, "first")
    assert not (tmp_path / "sinks").exists(), "a start that is refused later binds nothing"
    for name in ("first", "first", "second"):
        keep_manifest_topic(spark, directory, name)
    check_manifest_topic(spark, directory, "first")
    with pytest.raises(ConfigError, match="begun_with='first'"):
        check_manifest_topic(spark, directory, "second")
