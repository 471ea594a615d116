"""Whether the topics are the ones that were landed before: Kafka gives each an id of its own, also one made anew.

A topic that is deleted and made anew begins with offset 0. What Spark's checkpoint says of the old one then counts for
the new one: records before that offset are passed over, and where there are more of them already, nothing tells. So
the ids stand in the checkpoint, beside what Spark keeps there.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from aiorecover.spark.files import Files
from aiorecover.spark.gone import RecordsGoneError, remade
from aiorecover.spark.session import clear_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["check_topic_ids"]

_NONE = "AAAAAAAAAAAAAAAAAAAAAA"  # of a broker older than Kafka 2.8, which has no ids to give
_UNKNOWN = "UnknownTopicOrPartitionException"
_TRIES = 3  # a topic that was made just now is not known to every broker at once; Spark's source tries as often
_PAUSE_S = 1.0

_log = logging.getLogger("aiorecover.spark")


def check_topic_ids(spark: SparkSession, checkpoint: str, told: Mapping[str, str]) -> None:
    """Refuse topics that were made anew since the checkpoint was used last, and remember the ids of new ones.

    ``told``: what Spark's Kafka source is told to read; with ``failOnDataLoss=false`` nothing is refused.

    Raises:
        RecordsGoneError: a topic was made anew.
        ConfigError: a topic is not there, or Kafka cannot be reached.

    """
    files, directory = Files(spark, checkpoint), f"{checkpoint}/topic_ids"
    ids = _ids(spark, told)
    known = {topic: files.read(_file(directory, topic)) for topic in ids}
    changed = [topic for topic, given in ids.items() if known[topic] not in {None, given.encode()}]
    if changed and files.names(f"{checkpoint}/query/offsets"):  # before there are offsets, none can count wrongly
        if not _may_leave_out(told):
            raise RecordsGoneError(remade(changed))
        _log.warning(
            "a topic was deleted and made anew since it was landed last, and failOnDataLoss=false: what it has before "
            "the offsets that were reached in the old one is left out topics=%s",
            changed,
        )
    files.make_directory(directory)
    for topic, given in ids.items():
        if known[topic] != given.encode():
            files.delete(_file(directory, topic))
            files.write_new(_file(directory, topic), given.encode())


def _file(directory: str, topic: str) -> str:
    return f"{directory}/{topic}.id"  # never the name that another topic's file has while it is written


def _may_leave_out(told: Mapping[str, str]) -> bool:
    """As Spark reads its options: whatever the case."""
    return any(name.lower() == "failondataloss" and value.lower() == "false" for name, value in told.items())


def _ids(spark: SparkSession, told: Mapping[str, str]) -> dict[str, str]:
    """What Kafka calls the topics; nothing where it is too old for ids."""
    topics = [topic.strip() for topic in told["subscribe"].split(",")]
    with clear_errors():
        found = _asked(spark, topics, told)
    return {topic: given for topic, given in found.items() if given != _NONE}


def _asked(spark: SparkSession, topics: list[str], told: Mapping[str, str]) -> dict[str, str]:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark offers no other way to Kafka's client
    admin = gateway.jvm.org.apache.kafka.clients.admin.AdminClient.create(_client_options(gateway.jvm, told))
    try:
        for _ in range(_TRIES - 1):
            try:
                return _described(admin, topics)
            except Py4JJavaError as error:
                if _UNKNOWN not in str(error):
                    raise
            time.sleep(_PAUSE_S)
        return _described(admin, topics)
    finally:
        admin.close()


def _described(admin: Any, topics: list[str]) -> dict[str, str]:
    found = admin.describeTopics(topics).allTopicNames().get()  # the client has a time limit of its own
    return {topic: str(found[topic].topicId().toString()) for topic in topics}


def _client_options(jvm: Any, told: Mapping[str, str]) -> Any:
    """As Spark's source makes them of its own, with whatever Spark has to show Kafka for itself."""
    given = {name.removeprefix("kafka."): value for name, value in told.items() if name.startswith("kafka.")}
    updater = jvm.org.apache.spark.kafka010.KafkaConfigUpdater("source", jvm.PythonUtils.toScalaMap(given))
    return updater.setAuthenticationConfigIfNeeded().build()
