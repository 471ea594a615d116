"""Where partitions end: what is decided, and what stands behind the first record of an open transaction.

A reader with ``read_committed`` gets nothing behind the first record of a transaction that is neither committed nor
aborted. So the ends of both kinds of readers are compared; where they differ, offsets are held up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from aiorecover.errors import ConfigError
from aiorecover.spark.bitmaps import joined
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.topic_ids import admin_client, described
from aiorecover.spark.topics import read_topics, topics_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["End", "begins_of", "convertible", "ends_of", "held_ids", "held_offsets"]

_OVERFLOW = "long overflow"
_TIMESTAMP_MOST_MS = ((1 << 63) - 1) // 1000  # Spark counts microseconds in 64 bits


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
    with admin_client(spark, told) as admin:
        if admin is None:
            return {}
        places = _places(admin, topics_in(told))
        stable = _offsets(spark, admin, places, "latest", level="READ_COMMITTED")
        every = _offsets(spark, admin, places, "latest")
    return {place: End(stable[place], max(every[place], stable[place])) for place in places}


def begins_of(spark: SparkSession, told: Mapping[str, str]) -> dict[tuple[str, int], int]:
    """Return the first offset of each partition, asked for likewise."""
    with admin_client(spark, told) as admin:
        return {} if admin is None else _offsets(spark, admin, _places(admin, topics_in(told)), "earliest")


def _offsets(
    spark: SparkSession,
    admin: Any,
    places: Sequence[tuple[str, int]],
    which: str,
    *arguments: int,
    level: str = "READ_UNCOMMITTED",
) -> dict[tuple[str, int], int]:
    jvm: Any = spark.sparkContext._gateway.jvm  # type: ignore[union-attr] # noqa: SLF001 - no other way to Kafka's client
    partitions = {place: jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
    isolation = getattr(jvm.org.apache.kafka.common.IsolationLevel, level)
    question = jvm.java.util.HashMap()
    for partition in partitions.values():
        question.put(partition, getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, which)(*arguments))
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


@contextmanager
def convertible(spark: SparkSession, told: Mapping[str, str], remedy: str) -> Iterator[None]:
    """Name the record, where Spark fails because a timestamp is beyond its range; ``remedy`` says what to do.

    ``told``: the options of Spark's source, which name the topics that are read.

    Raises:
        ConfigError: there is such a record.

    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = _unconvertible(spark, told) if _OVERFLOW in str(error) else None
        if found is None:
            raise
        topic, partition, offset = found
        raise ConfigError(
            f"the timestamp of a record is beyond Spark's range: {remedy} {topic=} {partition=} {offset=}"
        ) from error


def _unconvertible(spark: SparkSession, told: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Find the first record whose timestamp Spark cannot convert: topic, partition and offset; None: there is none."""
    with admin_client(spark, told) as admin:
        if admin is None:
            return None
        places = _places(admin, topics_in(told))
        offsets = _offsets(spark, admin, places, "forTimestamp", _TIMESTAMP_MOST_MS + 1)
    return next(((*place, offset) for place, offset in sorted(offsets.items()) if offset >= 0), None)


def _places(admin: Any, topics: Sequence[str]) -> list[tuple[str, int]]:
    found = described(admin, topics)
    return [(name, one.partition()) for name in topics for one in found[name].partitions()]
