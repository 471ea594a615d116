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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from aiorecover.errors import ConfigError
from aiorecover.spark import land, parse_record_id
from aiorecover.spark.landed_ids import empty
from aiorecover.spark.sink_manifest import Write, empty_manifest_of, manifest_of
from aiorecover.spark.undecided import Undecided, waiting_in
from tests.spark.by_sink import Sink
from tests.spark.death import dying
from tests.spark.feed import landing
from tests.spark.settings import shuffling
from tests.spark.test_leftovers import A, B, C, D, attempt, records, topic_of
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
    (plain,) = sink.land(spark, tmp_path)
    assert (plain.landed, plain.held) == (1, 80), "what is no sink's does not wait"
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
    rows = {kind: stored(state, kind) for kind in ("ids/*/rest", "ids/*/complete", "sinks/manifests", "sinks/waiting")}
    assert rows == {"ids/*/rest": 0, "ids/*/complete": 0, "sinks/manifests": 0, "sinks/waiting": 0}
    assert list((state / "sinks" / "held").iterdir()) == []
    assert stored(state, "sinks/jobs") == 1
    with pytest.raises(ConfigError, match="name sink_manifests as before"):
        landing(spark, sink.kafka, sink.records, tmp_path)


def test_each_row_is_landed_once_whenever_the_driver_dies(
    spark: SparkSession, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = 0
    for place in ("jobs/after={}", "held/batch={}", "waiting/after={}", "batch_id={}", "ids/after={}"):
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


class State:
    """What landing knows of sinks, and batches of records made by hand."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.directory = directory
        self.batch = 0

    def land(self, rows: DataFrame, *manifests: tuple[bytes, bytes]) -> tuple[dict[str, str], int]:
        """The verdicts that a batch comes to, by the first letter of each producer, and how many rows wait then."""
        told = topic_of(self._spark, *manifests).withColumn("topic", lit("manifests"))
        batch = parse_record_id(rows).unionByName(told, allowMissingColumns=True).select(*parse_record_id(rows).columns)
        undecided = Undecided(self._spark, str(self.directory), "manifests")
        judged = undecided.judge(batch, self.batch, empty(self._spark))
        found = {row["producer_id"][0]: row["verdict"] for row in judged.collect()}
        undecided.hold(judged, self.batch)
        held = undecided.held(self._spark, self.batch)
        undecided.forget(self._spark, self.batch)
        self.batch += 1
        return found, held

    def land_twice(self, rows: DataFrame, *manifests: tuple[bytes, bytes]) -> tuple[dict[str, str], int]:
        """The driver died before Spark knew that the batch is done."""
        first = self.land(rows, *manifests)
        self.batch -= 1
        assert self.land(rows, *manifests) == first
        return first

    def held(self) -> dict[str, set[str]]:
        """The files of each batch's rows."""
        return {path.name: {file.name for file in path.glob("*.parquet")} for path in self.directory.glob("held/*")}


def test_what_waits_is_put_aside_once_and_read_when_it_is_decided(spark: SparkSession, tmp_path: Path) -> None:
    state, nothing = State(spark, tmp_path), records(spark)
    one, other = Write("one", 0), Write("other", 0)
    both = records(spark, (f"{A}/1/1", one.name), (f"{B}/1/1", other.name), (f"{B}/1/2", other.name))
    assert state.land_twice(both) == ({"a": "undecided", "b": "undecided"}, 3)
    first = state.held()
    assert set(first) == {"batch=0"}
    assert state.land_twice(records(spark, (f"{C}/1/1", one.name))) == ({"c": "undecided"}, 4)
    second = state.held()
    assert (set(second), second["batch=0"]) == ({"batch=0", "batch=1"}, first["batch=0"])
    assert state.land(nothing) == ({}, 4), "what is undecided is not read"
    counting = [attempt(other, B)]
    assert state.land_twice(nothing, *manifest_of(other, counting)) == ({"b": "counts"}, 2)
    assert waiting_in(spark, str(tmp_path)) == (2, [one.name])
    assert state.land(records(spark, (f"{D}/1/1", other.name))) == ({"d": "leftover"}, 2)
    assert state.land_twice(nothing, *empty_manifest_of(one.name)) == ({"a": "leftover", "c": "leftover"}, 0)
    assert state.held() == second, "the driver may die, and then the batch is done again"
    assert state.land(nothing) == ({}, 0)
    assert state.held() == {}
    assert waiting_in(spark, str(tmp_path)) == (0, [])


def test_who_does_a_batch_again_leaves_alone_what_another_one_that_is_ahead_has_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    state, one = State(spark, tmp_path), Write("one", 0)
    for number in range(1, 4):
        state.land(records(spark, (f"{A}/1/{number}", one.name)))
    kinds = ("over", "jobs", "manifests", "waiting")
    ahead = [*(tmp_path / kind / "after=3" for kind in kinds), tmp_path / "held" / "batch=3"]
    for path in ahead:
        path.mkdir()
    state.batch = 2
    state.land(records(spark, (f"{A}/1/3", one.name)))
    assert [path.exists() for path in ahead] == [True] * len(ahead)
    left = {kind: sorted(path.name for path in (tmp_path / kind).iterdir()) for kind in (*kinds, "held")}
    assert left == {
        **{kind: ["after=1", "after=2", "after=3"] for kind in kinds},
        "held": ["batch=0", "batch=1", "batch=2", "batch=3"],
    }


def test_what_waits_since_an_earlier_version_is_read_on(spark: SparkSession, tmp_path: Path) -> None:
    state, nothing = State(spark, tmp_path), records(spark)
    one, other = Write("one", 0), Write("other", 0)
    rows = parse_record_id(records(spark, (f"{A}/1/1", one.name), (f"{B}/1/1", other.name)))
    rows.write.parquet(str(tmp_path / "held" / "after=0"))
    state.batch = 1
    assert state.land_twice(nothing, *manifest_of(one, [attempt(one, A)])) == ({"a": "counts", "b": "undecided"}, 1)
    assert state.land(nothing, *manifest_of(other, [attempt(other, B)])) == ({"b": "counts"}, 0)


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
