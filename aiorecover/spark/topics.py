"""Topics as data frames: the options with which Spark's Kafka source leaves nothing out in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic
from aiorecover.spark.session import clear_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["client_options", "loss_is_accepted", "read_topics", "source_options", "topics_in"]


def read_topics(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return all records that are in the topics when the data frame is used, in Kafka's columns with ``headers``.

    Records of aborted transactions are left out. ``options`` are those of Spark's Kafka source
    (``kafka.security.protocol``, ...) and win over the defaults. Kafka is asked at once where the topics begin and end,
    and again when the data frame is used.

    Raises:
        ConfigError: no topic or server is named, a topic does not exist, Kafka cannot be reached, or Spark lacks its
            Kafka connector.

    """
    source = source_options(topics, bootstrap_servers, options)
    with clear_errors(topics=list(topics)):
        df = spark.read.format("kafka").options(**source).load()
        if not is_remote():  # Spark Connect has no way to plan without reading
            df.rdd.getNumPartitions()  # plans it, so that an error shows here, and not as a Java stack at its first use
    return df


def source_options(
    topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options of Spark's Kafka source, for a batch and for a stream alike.

    Raises:
        ConfigError: no topic or server is named, or an option cannot be used here.

    """
    if isinstance(topics, str) or not topics or not all(topics):
        raise ConfigError(f"name the topics, as a list of at least one: {topics=}")
    if not bootstrap_servers:
        raise ConfigError(f"name Kafka's servers as host:port,host:port: {bootstrap_servers=}")
    try:
        for name in topics:
            check_topic(name)
    except EncodeError as error:
        raise ConfigError(f"name each topic by itself: {error}") from None
    for name in options or {}:
        if name.lower() in ("subscribe", "subscribepattern", "assign", "includeheaders"):
            raise ConfigError(f"the topics are named apart, and the headers are always read: leave out option={name}")
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **(options or {}),
    }


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that Spark passes to Kafka's client; the others say where to begin, and how much to read."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def topics_in(source: Mapping[str, str]) -> list[str]:
    """Return the topics in what `source_options` gave."""
    return source["subscribe"].split(",")


def loss_is_accepted(source: Mapping[str, str]) -> bool:
    """Whether Spark goes on where records are gone; case does not matter in its options."""
    return any(name.lower() == "failondataloss" and str(value).lower() == "false" for name, value in source.items())
