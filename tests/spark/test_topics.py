"""How Spark's Kafka source is asked: what cannot be is refused with a sentence, and so is a topic that is not there."""

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import read_topics
from aiorecover.spark.topics import client_options, source_options
from tests.support.cluster import Cluster, TopicFactory

SERVERS = "127.0.0.1:9092"


def test_all_committed_records_of_all_topics_are_asked_for_and_options_of_the_users_win() -> None:
    told = source_options(
        ("a", "b.c"), SERVERS, {"startingOffsets": '{"a": {"0": 7}}', "minPartitions": cast("str", 4)}
    )
    assert told == {
        "kafka.bootstrap.servers": SERVERS,
        "subscribe": "a,b.c",
        "startingOffsets": '{"a": {"0": 7}}',
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "minPartitions": "4",
    }


def test_options_of_kafkas_client_are_told_from_sparks_own_in_any_case() -> None:
    of_client = {"kafka.security.protocol": "SSL", "Kafka.ssl.truststore.location": "/a"}
    assert client_options({**of_client, "startingOffsets": "latest", "kafkaConsumer.pollTimeoutMs": "5"}) == of_client


@pytest.mark.parametrize("topics", ["orders", b"bytes", [], (), None, 5, {"orders"}, [""], [None], iter(["orders"])])
def test_what_is_no_list_of_topics_is_one_sentence(topics: Any) -> None:
    with pytest.raises(ConfigError, match="name the topics, as a list of at least one"):
        source_options(topics, SERVERS)


@pytest.mark.parametrize("topic", [5, b"bytes", "a,b", "a b", "orders\n", "x" * 250, ".."])
def test_what_is_no_name_of_a_topic_is_one_sentence(topic: Any) -> None:
    with pytest.raises(ConfigError, match="name each topic by itself: ") as refused:
        source_options(["orders", topic], SERVERS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("servers", ["", None, 9092, ["127.0.0.1:9092"], b"127.0.0.1:9092"])
def test_what_are_no_servers_is_one_sentence(servers: Any) -> None:
    with pytest.raises(ConfigError, match="name Kafka's servers as host:port"):
        source_options(["orders"], servers)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("kafka.security.protocol=SSL", "options map names of Spark's options to their values: type=str"),
        (["x"], "options map names"),
        ({1: "x"}, "options map names"),
        ({"kafka.security.protocol": None}, "an option of Spark is a text, a number or True or False"),
        ({"startingOffsets": {"a": {"0": 7}}}, "an option of Spark is a text"),
        ({"subscribe": "other"}, "the topics are named apart: leave this option out option=subscribe"),
        ({"subscribePattern": ".*"}, "the topics are named apart"),
        ({"Assign": "{}"}, "the topics are named apart"),
        ({"includeHeaders": "false"}, "the record ids are in the headers"),
        ({"INCLUDEHEADERS": False}, "the record ids are in the headers"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        source_options(["orders"], SERVERS, options)


@pytest.mark.parametrize("session", [None, "local[2]", SparkSession])
def test_what_is_no_session_is_one_sentence(session: Any) -> None:
    with pytest.raises(ConfigError, match="spark must be a Spark session: type="):
        read_topics(session, ["orders"], SERVERS)


def test_a_topic_that_is_not_there_is_one_sentence_that_names_those_asked_for(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory
) -> None:
    there = topic(kafka, partitions=1)
    assert read_topics(spark, [there], kafka.bootstrap_servers).count() == 0
    with pytest.raises(ConfigError, match=rf"a topic does not exist: .* topics=\['{there}', 'absent'\]") as refused:
        read_topics(spark, [there, "absent"], kafka.bootstrap_servers)
    assert "\n" not in str(refused.value)
