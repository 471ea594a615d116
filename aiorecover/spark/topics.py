"""Topics as data frames: how Spark's Kafka source has to be asked, so that nothing is left out in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.session import clear_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_topics", "source_options"]


def read_topics(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """All records that stand in the topics when the data frame is used, in Kafka's columns with ``headers``.

    What an aborted transaction left is no record. ``options`` are Spark's own (``kafka.security.protocol``, ...) and
    win over the defaults. Whether the topics are there shows when the data frame is used.

    Raises:
        ConfigError: no topic is named, or no server, or Spark lacks its Kafka connector.

    """
    told = source_options(topics, bootstrap_servers, options)
    with clear_errors():
        return spark.read.format("kafka").options(**told).load()


def source_options(
    topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What Spark's Kafka source is told, for a batch and for a stream alike."""
    if not topics or isinstance(topics, str) or not all(topics):
        raise ConfigError(f"name the topics, as a list of at least one: {topics=}")
    if not bootstrap_servers:
        raise ConfigError(f"name Kafka's servers as host:port,host:port: {bootstrap_servers=}")
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **(options or {}),
    }
