"""Ask Kafka's own client in Spark's Java for topic ids, for the ends of partitions, and for what is held up.

A reader with ``read_committed`` gets nothing after the first record of a transaction that is neither committed nor
aborted. So the ends for both kinds of readers are compared; where they differ, offsets are held up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from aiorecover.errors import ConfigError
from aiorecover.spark.bitmaps import joined
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.session import clear_errors
from aiorecover.spark.topics import client_options, read_topics, topics_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["End", "begins_of", "convertible", "ends_of", "held_ids", "held_offsets", "topic_ids"]

_CLIENT = "org.apache.kafka.clients.admin.AdminClient"
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # from a broker before Kafka 2.8, which gives no ids
_TRIES, _PAUSE_S = 3, 1.0  # a new topic is not known to every broker at once; Spark's source tries as often
_OVERFLOW = "long overflow"
_TIMESTAMP_MOST_MS = ((1 << 63) - 1) // 1000  # Spark counts microseconds in 64 bits


class End(NamedTuple):
    """The end of a partition: the first offset that is not decided, and the one after the last record."""

    stable: int
    end: int


Place = tuple[str, int]
Ends = Mapping[Place, End]


class _Admin:
    """Kafka's client, and the topics that it is asked about."""

    def __init__(self, jvm: Any, client: Any, topics: list[str]) -> None:
        self._kafka, self._jvm, self._client, self._topics = jvm.org.apache.kafka, jvm, client, topics

    @cached_property
    def topics(self) -> dict[str, Any]:
        """Kafka's description of each topic."""
        for _ in range(_TRIES - 1):
            try:
                return self._describe()
            except Py4JJavaError as error:
                if "UnknownTopicOrPartitionException" not in str(error):
                    raise
            time.sleep(_PAUSE_S)
        return self._describe()

    def _describe(self) -> dict[str, Any]:
        return dict(self._client.describeTopics(self._topics).allTopicNames().get())

    def offsets(self, which: str, *arguments: int, level: str = "READ_UNCOMMITTED") -> dict[Place, int]:
        """The ``earliest`` or ``latest`` offset of each partition, or the first one ``forTimestamp``; -1: none."""
        names = [(name, one.partition()) for name in self._topics for one in self.topics[name].partitions()]
        partitions = {place: self._kafka.common.TopicPartition(*place) for place in names}
        question = self._jvm.java.util.HashMap()
        for partition in partitions.values():
            question.put(partition, getattr(self._kafka.clients.admin.OffsetSpec, which)(*arguments))
        isolation = getattr(self._kafka.common.IsolationLevel, level)
        answer = self._client.listOffsets(question, self._kafka.clients.admin.ListOffsetsOptions(isolation))
        return {place: answer.partitionResult(partition).get().offset() for place, partition in partitions.items()}


@contextmanager
def _admin(spark: SparkSession, source: Mapping[str, str]) -> Iterator[_Admin | None]:
    """Kafka's client, with the login that Spark uses; None: Spark has it under another name, as Databricks does."""
    jvm: Any = spark.sparkContext._gateway.jvm  # type: ignore[union-attr] # noqa: SLF001 - no other way to Kafka's client
    clients = reduce(getattr, _CLIENT.split("."), jvm)
    if isinstance(clients, JavaPackage):  # py4j's answer where there is no such class
        yield None
        return
    given = {name.partition(".")[2]: value for name, value in client_options(source).items()}
    with clear_errors(topics=topics_in(source)):
        updater = jvm.org.apache.spark.kafka010.KafkaConfigUpdater("source", jvm.PythonUtils.toScalaMap(given))
        client = clients.create(updater.setAuthenticationConfigIfNeeded().build())
        try:
            yield _Admin(jvm, client, topics_in(source))
        finally:
            client.close()


def topic_ids(spark: SparkSession, source: Mapping[str, str]) -> dict[str, str] | None:
    """Return Kafka's id of each topic that has one; None: Kafka cannot be asked.

    ``source``: the options of Spark's Kafka source, here and below.

    Raises:
        ConfigError: a topic does not exist, or Kafka cannot be reached.

    """
    with _admin(spark, source) as admin:
        if admin is None:
            return None
        found = {topic: str(one.topicId().toString()) for topic, one in admin.topics.items()}
    return {topic: given for topic, given in found.items() if given != _NO_ID}


def ends_of(spark: SparkSession, source: Mapping[str, str]) -> dict[Place, End]:
    """Return where the partitions end now; nothing where Kafka cannot be asked.

    Raises:
        ConfigError: as `topic_ids`.

    """
    with _admin(spark, source) as admin:
        if admin is None:
            return {}
        stable, every = admin.offsets("latest", level="READ_COMMITTED"), admin.offsets("latest")
    return {place: End(stable[place], max(every[place], stable[place])) for place in stable}


def begins_of(spark: SparkSession, source: Mapping[str, str]) -> dict[Place, int]:
    """Return the first offset of each partition; nothing where Kafka cannot be asked.

    Raises:
        ConfigError: as `topic_ids`.

    """
    with _admin(spark, source) as admin:
        return {} if admin is None else admin.offsets("earliest")


def held_offsets(ends: Ends) -> int:
    """Return how many offsets of all partitions are held up."""
    return sum(one.end - one.stable for one in ends.values())


def held_ids(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str], ends: Ends
) -> DataFrame | None:
    """Return the ranges of ids that are held up: ``producer_id``, ``epoch``, ``first``, ``last``; None: none are.

    Raises:
        ConfigError: as `read_topics`.

    """
    if not held_offsets(ends):
        return None
    bounds: tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]] = ({}, {})
    for (topic, partition), end in ends.items():
        for bound, offset in zip(bounds, end, strict=True):
            bound.setdefault(topic, {})[partition] = offset
    where = {"kafka.isolation.level": "read_uncommitted"}
    where |= dict(zip(("startingOffsets", "endingOffsets"), map(json.dumps, bounds), strict=True))
    ours = {name.lower() for name in where}
    more = {name: value for name, value in options.items() if name.lower() not in ours}
    records = parse_record_id(read_topics(spark, topics, bootstrap_servers, {**more, **where}))
    ids = records.where("sequence is not null")
    return joined(ids.selectExpr("producer_id", "epoch", "sequence as first", "sequence as last").distinct())


@contextmanager
def convertible(spark: SparkSession, source: Mapping[str, str], remedy: str) -> Iterator[None]:
    """Name the record, where Spark fails because a timestamp is beyond its range; ``remedy`` says what to do.

    Raises:
        ConfigError: there is such a record.

    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found: dict[Place, int] = {}
        if _OVERFLOW in str(error):
            with _admin(spark, source) as admin:
                found = {} if admin is None else admin.offsets("forTimestamp", _TIMESTAMP_MOST_MS + 1)
        for (topic, partition), offset in sorted(found.items()):
            if offset >= 0:
                raise ConfigError(
                    f"the timestamp of a record is beyond Spark's range: {remedy} {topic=} {partition=} {offset=}"
                ) from error
        raise
