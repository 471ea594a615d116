"""Topics as data frames: how Spark's Kafka source has to be asked, so that nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic
from aiorecover.spark.handed_over import shown
from aiorecover.spark.session import clear_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "CLIENT_PREFIX",
    "checked_topic",
    "client_options",
    "loss_is_accepted",
    "read_topics",
    "source_options",
    "topics_in",
]

CLIENT_PREFIX = "kafka."
_NAMED_APART = ("subscribe", "subscribepattern", "assign")  # as Spark's options are: of any case


def read_topics(
    spark: SparkSession, topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """All records that stand in the topics when the data frame is used, in Kafka's columns with ``headers``.

    What an aborted transaction left is no record. ``options`` are Spark's own (``kafka.security.protocol``, ...) and
    win over the defaults. Kafka is asked for the topics at once, for where they begin and end, and again when the data
    frame is used.

    Raises:
        ConfigError: no topic is named, or no server; a topic is not there, Kafka is not reached, or Spark lacks its
            connector for it.

    """
    if isinstance(spark, type) or not hasattr(spark, "readStream"):  # Connect's is another class
        raise ConfigError(f"spark must be a Spark session: {shown('spark', spark)}")
    told = source_options(topics, bootstrap_servers, options)
    with clear_errors(topics=list(topics)):
        df = spark.read.format("kafka").options(**told).load()
        if not is_remote():  # over Spark Connect nothing looks without reading
            df.rdd.getNumPartitions()  # plans it: else whoever uses the data frame would get Java's stack trace
    return df


def source_options(
    topics: Sequence[str], bootstrap_servers: str, options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What Spark's Kafka source is told, for a batch and for a stream alike.

    Raises:
        ConfigError: no topic is named, or no server, or an option cannot be one.

    """
    if not _is_list(topics):
        raise ConfigError(f"name the topics, as a list of at least one: {topics=}")
    if not _is_text(bootstrap_servers):
        raise ConfigError(f"name Kafka's servers as host:port,host:port: {bootstrap_servers=}")
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": ",".join(checked_topic("name each topic by itself", name) for name in topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **_checked(options),
    }


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those that Spark hands on to Kafka's client; the others say where to begin, and how much to read."""
    return {name: value for name, value in options.items() if name.lower().startswith(CLIENT_PREFIX)}


def topics_in(told: Mapping[str, str]) -> list[str]:
    """Those that Spark is told to read, of `source_options`."""
    return told["subscribe"].split(",")


def loss_is_accepted(told: Mapping[str, str]) -> bool:
    """Whether Spark is told to go on where records are gone; its options are of any case."""
    return any(name.lower() == "failondataloss" and value.lower() == "false" for name, value in told.items())


def checked_topic(sentence: str, name: str) -> str:
    """The name; ``sentence`` is what to do about one that is none.

    Raises:
        ConfigError: no topic can be called so.

    """
    try:
        return check_topic(name)
    except EncodeError as error:
        raise ConfigError(f"{sentence}: {error}") from None


def _is_list(topics: object) -> bool:
    return isinstance(topics, Sequence) and not isinstance(topics, str | bytes) and bool(topics) and all(topics)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _checked(options: object) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(f"options map names of Spark's options to their values: {shown('options', options)}")
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"an option of Spark is a text, a number or True or False: option={name} {value=!r:.100}")
        if name.lower() in _NAMED_APART:
            raise ConfigError(f"the topics are named apart: leave this option out option={name}")
        if name.lower() == "includeheaders" and str(value).lower() != "true":
            raise ConfigError(f"the record ids are in the headers: leave this option out option={name}")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
