"""The checkpoint of a landing: what Spark wrote into it, and whether the landing can go on from it.

In the directory of a query Spark keeps ``sources/0/0``, where its source begins, ``offsets/<batch>``, where a batch
ends, written before the batch runs, and ``commits/<batch>``, written when it is done. A batch that is begun and not
done runs at the next start.

Spark goes on where the last batch ended, in each partition. Two mistakes are refused before the query starts:

- Other topics. For Spark's Kafka source a topic that is not named any more is lost data, and so is an added topic
  that does not begin with offset 0. It says so only after it has written down the batch, which each later start runs
  first and fails in. A topic that is added with all its records is landed from its first one on.
- A topic that was deleted and made anew. It begins with offset 0 again, and the checkpoint's offsets are those of the
  old one: records before them would be skipped in silence. So each topic's id is kept in ``topic_ids`` beside the
  query, and compared.

With ``failOnDataLoss=false`` the landing goes on in all these cases: a topic is left where it is (named once more, it
begins anew, and its records without an id come again), or begun with the first record that is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any

from aiorecover.errors import ConfigError
from aiorecover.spark.admin import begins_of, topic_ids
from aiorecover.spark.failures import REMADE, RecordsGoneError
from aiorecover.spark.files import Files
from aiorecover.spark.topics import loss_is_accepted, topics_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["QueryLog", "check_topics", "offsets_to_go"]

_log = logging.getLogger("aiorecover.spark")


class QueryLog:
    """The directory of one query, which need not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._files, self._path = Files(spark, path), path

    def query_id(self) -> str | None:
        """Return the id that Spark gave the query; None: it was never started."""
        written = self._files.read(f"{self._path}/metadata")
        return None if written is None else str(json.loads(written)["id"])

    def last_begun(self) -> int:
        """Return the last batch that has offsets, done or not; -1: there is none."""
        return self._last("offsets")

    def last_done(self) -> int:
        """Return the last batch that is done; -1: there is none."""
        return self._last("commits")

    def topics_done(self) -> set[str]:
        """Return the topics of the last batch that is done, or those that the first batch begins with."""
        batch_id = self.last_done()
        return self._topics("sources/0/0" if batch_id < 0 else f"offsets/{batch_id}")

    def topics_begun(self) -> set[str]:
        """Return the topics of the batch that is begun and not done."""
        batch_id = self.last_begun()
        return self._topics(f"offsets/{batch_id}") if batch_id > self.last_done() else set()

    def _last(self, log: str) -> int:
        return max(self._files.numbers(f"{self._path}/{log}"), default=-1)

    def _topics(self, name: str) -> set[str]:
        written = self._files.read(f"{self._path}/{name}")
        return set() if written is None else set(json.loads(written.splitlines()[-1]))  # a version comes before it


def check_topics(spark: SparkSession, source: Mapping[str, str], checkpoint: str, log: QueryLog) -> None:
    """Check that the landing can go on with these topics, and remember their ids.

    ``source``: the options of Spark's Kafka source; with ``failOnDataLoss=false`` nothing is refused. ``log``: of the
    query.

    Raises:
        RecordsGoneError: a topic was made anew.
        ConfigError: with these topics Spark would fail, or records would be left out; or a topic does not exist, or
            Kafka cannot be reached.

    """
    done, begun = log.topics_done(), log.topics_begun()
    if not loss_is_accepted(source):
        _check_named(spark, source, checkpoint, done, done | begun)
    _check_ids(spark, source, checkpoint, done | begun)


def _check_named(
    spark: SparkSession, source: Mapping[str, str], checkpoint: str, done: set[str], known: set[str]
) -> None:
    named = topics_in(source)
    if absent := sorted(known.difference(named)):
        raise ConfigError(
            f"topics of this checkpoint are not named: name them, too, or a new checkpoint and a new target; to leave "
            f"them for good, land a batch with the option failOnDataLoss=false {absent=} {checkpoint=}"
        )
    added = [topic for topic in named if topic not in known]
    if not (done and added):
        return
    begins = begins_of(spark, {**source, "subscribe": ",".join(added)})
    if gone := [f"{topic}-{partition}:{offset}" for (topic, partition), offset in begins.items() if offset]:
        raise ConfigError(
            f"Kafka has deleted the first records of an added topic, and Spark cannot begin after these: land it with "
            f"a checkpoint and a target of its own, or land a batch with the option failOnDataLoss=false "
            f"begins={','.join(gone)}"
        )


def _check_ids(spark: SparkSession, source: Mapping[str, str], checkpoint: str, known: set[str]) -> None:
    files, directory = Files(spark, checkpoint), f"{checkpoint}/topic_ids"
    ids = topic_ids(spark, source)
    if ids is None:
        _log.warning(
            "Spark has Kafka's client under another name, so the topics' ids are not known, and a topic that is "
            "deleted and made anew may not be noticed: land such a one with a target and a checkpoint of its own "
            "topics=%s",
            topics_in(source),
        )
        return
    # A name may be as long as a file's name can be, so the file is named by its hash.
    paths = {topic: f"{directory}/{hashlib.sha256(topic.encode()).hexdigest()[:32]}.id" for topic in ids}
    kept = {topic: files.read(path) for topic, path in paths.items()}
    # Without offsets in the checkpoint nothing can be skipped.
    changed = [topic for topic in ids if topic in known and kept[topic] not in {None, ids[topic].encode()}]
    if changed:
        if not loss_is_accepted(source):
            raise RecordsGoneError(*REMADE, f"topics={changed}")
        _log.warning(
            "a topic was deleted and made anew since it was landed last, and failOnDataLoss=false: what it has before "
            "the offsets that were reached in the old one is left out topics=%s",
            changed,
        )
    files.make_directory(directory)
    for topic, path in paths.items():
        if kept[topic] != ids[topic].encode():
            files.delete(path)
            files.write_new(path, ids[topic].encode())


def offsets_to_go(progress: Any) -> int:
    """Return the offsets between the end of a batch and the end of its partitions when the batch was made.

    That is at least the number of records that are left: some offsets are markers of transactions, or empty.
    ``progress`` is ``StreamingQuery.lastProgress``; from Spark 4 on only its JSON has the offsets as numbers.
    """
    found = json.loads(progress.json) if hasattr(progress, "json") else progress
    ends = [(_offsets(one.get("endOffset")), _offsets(one.get("latestOffset"))) for one in found["sources"]]
    return sum(max(0, last - end.get(place, 0)) for end, latest in ends for place, last in latest.items())


def _offsets(topics: object) -> dict[tuple[str, str], int]:
    if not isinstance(topics, dict):
        return {}
    return {(topic, number): offset for topic, partitions in topics.items() for number, offset in partitions.items()}
