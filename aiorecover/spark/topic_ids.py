"""Whether the topics are the ones that were landed before: Kafka gives each an id of its own, also one made anew.

A topic that is deleted and made anew begins with offset 0. What Spark's checkpoint says of the old one then counts for
the new one: records before that offset are passed over, and where there are more of them already, nothing tells. So
the ids stand in the checkpoint, beside what Spark keeps there.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError

from aiorecover.spark.files import Files
from aiorecover.spark.gone import RecordsGoneError, remade
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.session import clear_errors
from aiorecover.spark.topics import CLIENT_PREFIX, client_options, loss_is_accepted, topics_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["admin_client", "check_topic_ids", "described"]

_NONE = "AAAAAAAAAAAAAAAAAAAAAA"  # of a broker older than Kafka 2.8, which has no ids to give
_CLIENTS = "org.apache.kafka.clients.admin.AdminClient"
_UNKNOWN = "UnknownTopicOrPartitionException"
_TRIES = 3  # as often as Spark's source
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
    log = QueryLog(spark, f"{checkpoint}/query")
    started = {*(log.done() or {}), *(log.begun() or {})}  # of others no offsets are known, so none can count wrongly
    changed = [topic for topic, given in ids.items() if topic in started and known[topic] not in {None, given.encode()}]
    if changed:
        if not loss_is_accepted(told):
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
    """A topic's name may be as long as a file's, and a file that is written has a longer one at first."""
    return f"{directory}/{hashlib.sha256(topic.encode()).hexdigest()[:32]}.id"


def _ids(spark: SparkSession, told: Mapping[str, str]) -> dict[str, str]:
    """What Kafka calls the topics; nothing where it is too old for ids."""
    topics = topics_in(told)
    with admin_client(spark, told) as admin:
        if admin is None:
            _log.warning(
                "Spark has Kafka's client under another name, so the topics' ids are not known: where a topic is "
                "deleted and made anew, nothing may tell; land it with a target and a checkpoint of its own topics=%s",
                topics,
            )
            return {}
        found = {topic: str(one.topicId().toString()) for topic, one in described(admin, topics).items()}
    return {topic: given for topic, given in found.items() if given != _NONE}


@contextmanager
def admin_client(spark: SparkSession, told: Mapping[str, str]) -> Iterator[Any]:
    """Kafka's own client in Spark's Java; None: Spark has it under another name.

    Raises:
        ConfigError: in the place of an error of Kafka's that is known.

    """
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark offers no other way to Kafka's client
    clients = reduce(getattr, _CLIENTS.split("."), gateway.jvm)
    if isinstance(clients, JavaPackage):  # as py4j takes what is no class
        yield None
        return
    with clear_errors(topics=topics_in(told)):
        admin = clients.create(_client_options(gateway.jvm, told))
        try:
            yield admin
        finally:
            admin.close()


def described(admin: Any, topics: Sequence[str]) -> dict[str, Any]:
    """What Kafka says of each topic; one that was made just now is not known to every broker at once."""
    for _ in range(_TRIES - 1):
        try:
            return dict(admin.describeTopics(topics).allTopicNames().get())  # the client has a time limit of its own
        except Py4JJavaError as error:
            if _UNKNOWN not in str(error):
                raise
        time.sleep(_PAUSE_S)
    return dict(admin.describeTopics(topics).allTopicNames().get())


def _client_options(jvm: Any, told: Mapping[str, str]) -> Any:
    """As Spark's source makes them of its own, with whatever Spark has to show Kafka for itself."""
    given = {name[len(CLIENT_PREFIX) :]: value for name, value in client_options(told).items()}
    updater = jvm.org.apache.spark.kafka010.KafkaConfigUpdater("source", jvm.PythonUtils.toScalaMap(given))
    return updater.setAuthenticationConfigIfNeeded().build()
