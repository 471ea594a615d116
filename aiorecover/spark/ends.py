"""Where partitions end: what is decided, and what stands behind the first record of an open transaction.

A reader with ``read_committed`` gets nothing behind the first record of a transaction that is neither committed nor
aborted. So the ends of both kinds of readers are compared; where they differ, offsets are held up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from aiorecover.spark.bitmaps import joined
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.session import clear_errors
from aiorecover.spark.topic_ids import admin_client
from aiorecover.spark.topics import read_topics, topics_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["End", "ends_of", "held_ids", "held_offsets"]


class End(NamedTuple):
    """Of one partition: the first offset that is not decided, and the one behind the last record."""

    stable: int
    end: int


Ends = Mapping[tuple[str, int], End]


def ends_of(spark: SparkSession, told: Mapping[str, str]) -> dict[tuple[str, int], End]:
    """Ask Kafka; ``told`` is what Spark's source is told by `read_topics`.

    Raises:
        ConfigError: a topic is not there, or Kafka cannot be reached.

    """
    topics = topics_in(told)
    jvm: Any = spark.sparkContext._gateway.jvm  # type: ignore[union-attr] # noqa: SLF001 - no other way to Kafka's client
    with clear_errors(topics=topics):
        admin = admin_client(spark, told)
        if admin is None:
            return {}
        try:
            found = admin.describeTopics(topics).allTopicNames().get()
            places = [(name, one.partition()) for name in topics for one in found[name].partitions()]
            stable = _asked(jvm, admin, places, "READ_COMMITTED")
            every = _asked(jvm, admin, places, "READ_UNCOMMITTED")
        finally:
            admin.close()
    return {place: End(stable[place], max(every[place], stable[place])) for place in places}


def _asked(jvm: Any, admin: Any, places: Sequence[tuple[str, int]], level: str) -> dict[tuple[str, int], int]:
    latest = jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
    partitions = {place: jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
    isolation = getattr(jvm.org.apache.kafka.common.IsolationLevel, level)
    question = jvm.java.util.HashMap()
    for partition in partitions.values():
        question.put(partition, latest)
    answer = admin.listOffsets(question, jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(isolation))
    return {place: answer.partitionResult(partition).get().offset() for place, partition in partitions.items()}


def held_offsets(ends: Ends) -> int:
    """How many offsets are held up, of all partitions."""
    return sum(one.end - one.stable for one in ends.values())


def held_ids(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None, ends: Ends
) -> DataFrame | None:
    """The ranges of ids that are held up: ``producer_id``, ``epoch``, ``first``, ``last``, ``count``; None: none are.

    Raises:
        ConfigError: as `read_topics`.

    """
    if not held_offsets(ends):
        return None
    where = {"kafka.isolation.level": "read_uncommitted"}
    where |= {"startingOffsets": _json(ends, "stable"), "endingOffsets": _json(ends, "end")}
    ours = {name.lower() for name in where}
    more = {name: value for name, value in (options or {}).items() if name.lower() not in ours}
    records = parse_record_id(read_topics(spark, topics, bootstrap_servers, {**more, **where}))
    ids = records.where("sequence is not null").select("producer_id", "epoch", "sequence").distinct()
    return joined(ids.selectExpr("producer_id", "epoch", "sequence first", "sequence last"), ["producer_id", "epoch"])


def _json(ends: Ends, which: str) -> str:
    told: dict[str, dict[str, int]] = {}
    for (topic, partition), end in ends.items():
        told.setdefault(topic, {})[str(partition)] = getattr(end, which)
    return json.dumps(told)
