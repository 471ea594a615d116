"""Landing what sinks have written: records wait for their manifest, leftovers never come, whenever the driver dies.

The attempts are made without Spark; what is landed is read back with pyarrow.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from aiorecover.errors import ConfigError
from aiorecover.spark import land, parse_record_id
from aiorecover.spark.landed_ids import empty
from aiorecover.spark.sink_manifest import Write, manifest_of
from aiorecover.spark.undecided import Undecided
from tests.spark.by_sink import Sink
from tests.spark.death import dying
from tests.spark.feed import landing
from tests.spark.settings import shuffling
from tests.spark.test_leftovers import records, topic_of
from tests.support.cluster import Cluster, TopicFactory


def landed(directory: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for batch in (directory / "table").glob("batch_id=*"):
        values: list[Any] = ds.dataset(batch, format="parquet").to_table(["value"])["value"].to_pylist()
        found.update(map(int, values))
    return found


def stored(checkpoint: Path, kind: str) -> int:
    """Rows of the last state of this kind."""
    above, _, below = kind.partition("/*/")
    last = max((checkpoint / above).glob("after=*"), key=lambda path: int(path.name.partition("=")[2]))
    return int(ds.dataset(last / below, format="parquet").count_rows())


@pytest.fixture
def sink(kafka: Cluster, topic: TopicFactory) -> Sink:
    return Sink(kafka, topic)


def test_records_wait_for_their_manifest_and_leftovers_never_come(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    first, _leftover = sink.attempt(0, range(50)), sink.attempt(0, range(30))
    asyncio.run(sink.publish_plainly(1000))
    assert [one.landed for one in sink.land(spark, tmp_path)] == [1], "what is no sink's does not wait"
    sink.decide(first)
    assert [one.landed for one in sink.land(spark, tmp_path)] == [50], "the manifest alone makes a batch"
    sink.attempt(0, range(10))  # somebody who does not know that he has failed
    second = sink.attempt(1, range(50, 60)), sink.attempt(1, range(60, 70), task=1)
    sink.decide(*second)
    sink.decide(sink.attempt(1, range(50, 70)))  # the driver did not know that it had, and ran the batch again
    told = sink.land(spark, tmp_path)
    assert (sum(one.landed for one in told), {one.repeats for one in told}) == (20, {0})
    assert landed(tmp_path) == Counter([*range(70), 1000])
    # By now both are over, and what comes of them is neither landed nor remembered.
    sink.decide(sink.attempt(0, range(5)))
    assert [one.landed for one in sink.land(spark, tmp_path)] == [0]
    sink.attempt(1, range(5))
    assert [one.landed for one in sink.land(spark, tmp_path)] == [0]
    state = tmp_path / "checkpoint"
    rows = {kind: stored(state, kind) for kind in ("ids/*/rest", "ids/*/complete", "sinks/manifests", "sinks/held")}
    assert rows == {"ids/*/rest": 0, "ids/*/complete": 0, "sinks/manifests": 0, "sinks/held": 0}
    assert stored(state, "sinks/jobs") == 1
    with pytest.raises(ConfigError, match="name sink_manifests as before"):
        landing(spark, sink.kafka, sink.records, tmp_path)


def test_each_row_is_landed_once_whenever_the_driver_dies(
    spark: SparkSession, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = 0
    for place in ("jobs/after={}", "batch_id={}", "ids/after={}", "held/after={}"):
        # One that is decided in the batch in which the driver dies, and one that is decided while it is dead.
        at = batches * 10
        early, late = sink.attempt(batches, range(at, at + 10)), sink.attempt(batches + 1, range(at + 10, at + 20))
        sink.attempt(batches, range(at, at + 5))
        sink.decide(early)
        dying(monkeypatch, place.format(batches))
        with pytest.raises(StreamingQueryException, match="DeathError"):
            sink.land(spark, tmp_path)
        monkeypatch.undo()
        sink.decide(late)
        sink.land(spark, tmp_path)
        batches += 2
        assert landed(tmp_path) == Counter(range(at + 20)), place


def test_manifests_are_not_landed_as_records(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")
    with pytest.raises(ConfigError, match="leave the topic out of topics"):
        land(spark, ["x"], target, f"{target}.c", bootstrap_servers="127.0.0.1:1", sink_manifests="x")


def test_no_machine_has_all_writes_or_all_jobs_that_a_landing_knows_of(spark: SparkSession, tmp_path: Path) -> None:
    """A row for each of a topic's years of jobs: what is small Spark finds out by itself."""
    write = Write("job", 1)
    manifests = topic_of(spark, *manifest_of(write, [])).withColumn("topic", lit("manifests"))
    rows = records(spark, ("aaaaaaaaaaaaa/1/1", write.name), ("bbbbbbbbbbbbb/1/1", None))
    batch = parse_record_id(rows).unionByName(manifests, allowMissingColumns=True)
    with shuffling(spark):
        judged = Undecided(spark, str(tmp_path / "sinks"), "manifests").judge(batch, 0, empty(spark))
        plan = judged._jdf.queryExecution().toString()
        found = {row["producer_id"]: row["verdict"] for row in judged.collect()}
    assert found == {"aaaaaaaaaaaaa": "leftover", "bbbbbbbbbbbbb": "counts"}
    assert "Join" in plan
    assert "Broadcast" not in plan, plan
