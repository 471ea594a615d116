"""Whether a checkpoint that was begun with some topics can go on with those that are named now.

Spark goes on where the last batch that is done has ended, in each partition. A topic that stands there and is not named
any more is lost data for its Kafka source, and so is one that is named for the first time and does not begin with
offset 0. By the time it says so it has written down the batch, which each later start does first and fails in, whatever
topics that names. So both are refused before the query starts. A topic that is added with all its records is landed
from its first one on, and belongs to the checkpoint from the first batch on that it is in.

With ``failOnDataLoss=false`` Spark goes on in both cases: a topic is left behind where it is (named once more, it
begins anew, and records of it without an id come again), or begun with the first record that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.ends import begins_of
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.topics import loss_is_accepted, topics_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["check_subscription"]


def check_subscription(spark: SparkSession, told: Mapping[str, str], checkpoint: str) -> None:
    """Let the query start, or refuse before anything is written; ``told``: the options of Spark's Kafka source.

    Raises:
        ConfigError: with these topics Spark would fail, or records would be left out; or a topic that is named for the
            first time is not there, or Kafka is not reached.

    """
    if loss_is_accepted(told):
        return
    log = QueryLog(spark, f"{checkpoint}/query")
    started = set(log.done() or {})
    known = started.union(log.begun() or {})
    if absent := sorted(known.difference(topics_in(told))):
        raise ConfigError(
            f"topics of this checkpoint are not named: name them, too, or a new checkpoint and a new target; to leave "
            f"them for good, land a batch with the option failOnDataLoss=false {absent=} {checkpoint=}"
        )
    added = [topic for topic in topics_in(told) if topic not in known]
    if not (started and added):
        return
    begins = begins_of(spark, {**told, "subscribe": ",".join(added)})
    if gone := [f"{topic}-{partition}:{offset}" for (topic, partition), offset in begins.items() if offset]:
        raise ConfigError(
            f"Kafka has deleted the first records of an added topic, and Spark begins none behind these: land it with "
            f"a checkpoint and a target of its own, or land a batch with the option failOnDataLoss=false "
            f"begins={','.join(gone)}"
        )
