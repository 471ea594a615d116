"""Which topic of a checkpoint has the manifests of sinks: it keeps to that.

What waits in the checkpoint waits for its manifest there. With another topic it would wait for ever, and whoever then
gives it up, as one does with what waits for ever, would lose rows that count. So the topic's name stands in the
checkpoint, in a file that is written before the first query starts with it. (A checkpoint of an earlier version has
none, and takes the one that it is first told.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_manifest_topic", "keep_manifest_topic"]

_FILE = "manifest_topic"


def check_manifest_topic(spark: SparkSession, directory: str, topic: str) -> None:
    """``directory``: where landing keeps what it knows of sinks.

    Raises:
        ConfigError: it was begun with another one.

    """
    found = Files(spark, directory).read(f"{directory}/{_FILE}")
    kept = topic if found is None else found.decode()
    if kept != topic:
        raise ConfigError(
            "this checkpoint takes manifests from another topic, and what waits in it waits for those: name that one, "
            f"or a new checkpoint and a new target sink_manifests={topic!r} begun_with={kept!r} {directory=}"
        )


def keep_manifest_topic(spark: SparkSession, directory: str, topic: str) -> None:
    """From now on it keeps to this one, unless it does to one already."""
    files = Files(spark, directory)
    files.make_directory(directory)
    if not files.exists(f"{directory}/{_FILE}"):
        files.write_new(f"{directory}/{_FILE}", topic.encode())
