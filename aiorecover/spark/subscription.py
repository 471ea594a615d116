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

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files
from aiorecover.spark.query_log import QueryLog
from aiorecover.spark.session import clear_errors
from aiorecover.spark.topics import client_options, loss_is_accepted, topics_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Subscription", "check_subscription"]

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Subscription:
    """Topics that are named, and those that Spark has written down."""

    named: frozenset[str]
    started: frozenset[str]
    """Those of the last batch that is done, or that the query began with; none where nothing says so."""
    unfinished: frozenset[str]
    """Those of the batch that is begun and not done; where there is none, those of `started`."""

    @property
    def absent(self) -> list[str]:
        """Not named, though Spark goes on with them."""
        known = self.started if self.is_stuck else self.started | self.unfinished
        return sorted(known - self.named)

    @property
    def added(self) -> list[str]:
        """Named for the first time."""
        return sorted(self.named - self.started - self.unfinished) if self.started else []

    @property
    def is_stuck(self) -> bool:
        """Whether the unfinished batch was begun by a start that left topics out."""
        return not self.started <= self.unfinished

    @property
    def is_whole(self) -> bool:
        """Whether no topic is left out of those that were landed."""
        return self.started <= self.named


def check_subscription(
    spark: SparkSession, told: Mapping[str, str], checkpoint: str, is_touched: Callable[[int], bool]
) -> None:
    """Let the query start, or refuse before anything is written; ``told``: the options of Spark's Kafka source.

    A batch that a start with other topics has begun and cannot have run is taken back. ``is_touched``: whether anything
    of a batch was landed.

    Raises:
        ConfigError: with these topics Spark would fail, or records would be left out; or a topic that is named for the
            first time is not there, or Kafka is not reached.

    """
    log = QueryLog(spark, f"{checkpoint}/query")
    found = _subscription(log, told)
    batch_id = log.unfinished()
    if batch_id is not None and found.is_stuck and found.is_whole and not is_touched(batch_id):
        log.take_back(batch_id)
        _log.warning(
            "a batch that was begun with other topics is taken back, nothing of it was landed batch_id=%d topics=%s",
            *(batch_id, sorted(found.unfinished)),
        )
        found = _subscription(log, told)
    if loss_is_accepted(told):
        return
    if found.absent:
        raise ConfigError(
            f"topics of this checkpoint are not named: name them, too, or a new checkpoint and a new target; to leave "
            f"them for good, land a batch with the option failOnDataLoss=false absent={found.absent} {checkpoint=}"
        )
    if found.is_stuck:
        raise ConfigError(
            f"the last batch of this checkpoint was begun without some of its topics, and something of it is landed: "
            f"finish it with the option failOnDataLoss=false, and with the topics that it was begun with {batch_id=} "
            f"topics={sorted(found.unfinished)} {checkpoint=}"
        )
    if found.added:
        _check_begin(spark, told, found.added, checkpoint)


def _subscription(log: QueryLog, told: Mapping[str, str]) -> Subscription:
    named = frozenset(topics_in(told))
    started = frozenset(log.done() or {})
    begun = log.begun()
    return Subscription(named, started, started if begun is None else frozenset(begun))


def _check_begin(spark: SparkSession, told: Mapping[str, str], topics: list[str], checkpoint: str) -> None:
    """Refuse topics of which records are gone: Spark begins none of them in the middle of a query.

    Where they begin is written down by a query of its own, which reads no record.
    """
    aside = f"{checkpoint}/_added"
    files = Files(spark, aside)
    files.delete(aside)
    stream = spark.readStream.format("kafka").options(
        **client_options(told), subscribe=",".join(topics), startingOffsets="earliest"
    )
    try:
        with clear_errors(topics=topics):
            writer = stream.load().writeStream.foreachBatch(_pass_over).option("checkpointLocation", aside)
            writer.trigger(once=True).start().awaitTermination()
        begins = QueryLog(spark, aside).first() or {}
    finally:
        files.delete(aside)
    gone = {topic: partitions for topic, partitions in begins.items() if any(partitions.values())}
    if gone:
        raise ConfigError(
            f"Kafka has deleted the first records of an added topic, and Spark begins none behind these: land it with "
            f"a checkpoint and a target of its own, or land a batch with the option failOnDataLoss=false begins={gone}"
        )


def _pass_over(_batch: DataFrame, _batch_id: int) -> None:
    """Read nothing."""
