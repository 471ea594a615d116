"""Landing from a real broker: each record once, with repeats, in any order, and when the driver dies in a batch.

What is landed is read back with pyarrow, not with Spark or aiorecover, and counted by id.
"""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow.dataset as ds
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, land, read_topics
from aiorecover.spark.claiming import claim
from aiorecover.spark.files import Files
from aiorecover.spark.landing import _repeats
from aiorecover.spark.targets import find_target
from tests.spark.death import dying
from tests.spark.feed import ROWS, P, Q, Rows, land_in_child, landing, once, published, shuffled
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


def test_each_record_is_landed_once_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(1)
    admin.run(published(kafka, name, rows))
    target = tmp_path / "table"
    land_in_child(kafka, name, tmp_path, death="rename")
    after_kill = landed_ids(target)
    assert 0 < after_kill.total() <= ROWS
    assert (target / "_staging").exists(), "it was to be killed with a batch written and not landed"
    # Then it dies with a batch landed and the state not yet, and with both, before Spark knows.
    for place in ("/batch_id=1", "/after=2"):
        dying(monkeypatch, place)
        with pytest.raises(StreamingQueryException, match="DeathError"):
            landing(spark, kafka, name, tmp_path)
        monkeypatch.undo()
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(target) == once(rows)
    # What came before comes again, under new offsets, with records that nobody has seen yet.
    more: Rows = [*rows[:200], (0, f"{P}/1/801"), (1, f"{Q}/1/7"), (2, f"{Q}/9/1")]
    admin.run(published(kafka, name, more))
    told = landing(spark, kafka, name, tmp_path)
    strangers = sum(1 for _, identity in more if identity is None)
    assert [(one.landed, one.without_id, one.repeats) for one in told] == [(3 + strangers, strangers, 200 - strangers)]
    assert landed_ids(target) == once([*rows, *more])
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "ids").glob("after=*")) == ["after=2", "after=3"]


def test_a_landing_that_does_a_batch_again_leaves_alone_what_another_one_that_is_ahead_has_stored(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is locked, without it neither could go on, for good."""
    name, ids, move = topic(kafka, partitions=1), tmp_path / "checkpoint" / "ids", Files.move
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(1, 9)]))

    def move_behind_another(self: Files, source: str, destination: str) -> None:
        move(self, source, destination)
        if destination.endswith("ids/after=2"):
            (ids / "after=3").mkdir()

    monkeypatch.setattr(Files, "move", move_behind_another)
    query = land(
        *(spark, [name], tmp_path / "table", tmp_path / "checkpoint"),
        bootstrap_servers=kafka.bootstrap_servers,
        available_now=True,
        max_offsets_per_trigger=3,
    )
    query.awaitTermination()
    assert sorted(path.name for path in ids.glob("after=*")) == ["after=1", "after=2", "after=3"]


def test_directories_that_do_not_belong_together_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def start(target: str, checkpoint: str) -> None:
        there = find_target(spark, str(tmp_path / target))
        claim(spark, there, str(tmp_path / checkpoint), str(tmp_path / f"{checkpoint}.apart"))

    for number in (1, 2):
        start(f"table{number}", f"checkpoint{number}")
    with pytest.raises(ConfigError, match="name the two that were used together"):
        start("table1", "checkpoint2")
    with pytest.raises(ConfigError, match="landed with another checkpoint"):
        start("table1", "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="something else is in the target"):
        start("full", "fresh")
    with pytest.raises(ConfigError, match="something else is in the checkpoint"):
        start("fresh", "full")
    (tmp_path / "checkpoint1" / "query" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint1" / "query" / "commits" / "0").touch()
    for made in ("ids/after=0", "query/offsets"):
        (tmp_path / "checkpoint1" / made).mkdir(parents=True)
    (tmp_path / "checkpoint1" / "query" / "offsets" / "0").write_text("v1\n{}\n{}")
    with pytest.raises(ConfigError, match=rf"belongs to another target: .* belongs_to=file:{tmp_path}/table1$"):
        start("elsewhere", "checkpoint1")
    (tmp_path / "table1").rename(tmp_path / "moved")
    start("moved", "checkpoint1")
    with pytest.raises(ConfigError, match="target of this checkpoint is gone: restore it"):
        start("table1", "checkpoint1")
    # One that was begun before checkpoints named their targets.
    begun = tmp_path / "checkpoint1" / "landing.json"
    begun.unlink()
    begun.write_text((tmp_path / "moved" / "_aiorecover.json").read_text())
    start("moved", "checkpoint1")
    with pytest.raises(ConfigError, match="belongs to another target, or the target of this checkpoint is gone"):
        start("table1", "checkpoint1")
    there = find_target(spark, str(tmp_path / "table2"))
    with pytest.raises(ConfigError, match="quarantine is used by something else"):
        claim(spark, there, str(tmp_path / "checkpoint2"), str(tmp_path / "checkpoint1.apart"))


def test_of_two_that_claim_a_target_at_once_one_gets_it_and_the_other_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = find_target(spark, str(tmp_path / "table"))
    checkpoints = [str(tmp_path / name) for name in ("slow", "quick")]
    write_new = Files.write_new

    def write_second(self: Files, path: str, content: bytes) -> None:
        if path.endswith("_aiorecover.json"):
            monkeypatch.undo()
            claim(spark, target, checkpoints[1], str(tmp_path / "quick.apart"))
        write_new(self, path, content)

    monkeypatch.setattr(Files, "write_new", write_second)
    with pytest.raises(ConfigError, match="the target was landed with another checkpoint"):
        claim(spark, target, checkpoints[0], str(tmp_path / "slow.apart"))
    claim(spark, target, checkpoints[1], str(tmp_path / "quick.apart"))
    assert [path.name for path in (tmp_path / "table").iterdir() if not path.name.endswith(".crc")] == [
        "_aiorecover.json"
    ]


def test_a_table_whose_files_stand_in_a_list_of_its_own_is_no_target(spark: SparkSession, tmp_path: Path) -> None:
    for listed in ("_delta_log", "_spark_metadata"):
        (tmp_path / listed / listed).mkdir(parents=True)
        with pytest.raises(ConfigError, match="something else is in the target"):
            land(spark, ["x"], str(tmp_path / listed), str(tmp_path / "checkpoint"), bootstrap_servers="x")


def test_what_has_an_undecodable_id_is_set_aside_once_and_counted(
    spark: SparkSession,
    kafka: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, apart = topic(kafka, partitions=3), tmp_path / "apart"
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (1, "nobody's"), (2, None), (0, f"{P}/1/1"), (1, f"{P}/1/x")]))
    # It dies with the batch landed and the quarantine not yet, so that nobody knows any more what was counted.
    dying(monkeypatch, "table/batch_id=0")
    with pytest.raises(StreamingQueryException, match="DeathError"):
        landing(spark, kafka, name, tmp_path, quarantine=str(apart))
    monkeypatch.undo()
    assert list(apart.glob("batch_id=*")) == []
    # The one batch that was left is finished before the next ones are begun.
    admin.run(published(kafka, name, [(0, f"{P}/1/2"), (2, "nobody's"), (0, f"{P}/1/1")]))
    told = landing(spark, kafka, name, tmp_path, quarantine=str(apart))
    counts = [(one.landed, one.without_id, one.undecodable, one.repeats) for one in told]
    assert counts == [(2, 1, 2, None), (1, 0, 1, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2", None])
    found = [
        (row["partition"], row["headers"][-1]["value"])
        for batch_id in (0, 1)
        for row in ds.dataset(apart / f"batch_id={batch_id}", format="parquet").to_table().to_pylist()
    ]
    assert sorted(found) == [(1, b"abcdefghij234/1/x"), (1, b"nobody's"), (2, b"nobody's")]
    warned = [line for line in caplog.messages if "holds no record id: look who else writes it" in line]
    assert [line.partition("undecodable=")[2] for line in warned] == [
        f"{count} path={apart / f'batch_id={batch_id}'}" for batch_id, count in enumerate((2, 1))
    ]
    # Where nothing is undecodable, nothing is written, and nothing is said.
    caplog.clear()
    admin.run(published(kafka, name, [(0, f"{P}/1/3")]))
    landing(spark, kafka, name, tmp_path, quarantine=str(apart))
    assert not (apart / "batch_id=2").exists()
    assert not any("holds no record id" in line for line in caplog.messages)


def test_batches_of_which_nothing_is_landed_are_counted_like_others(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    told = []
    batches: list[Rows] = [[(0, "nobody's")] * 2, [(0, f"{P}/1/1")], [(0, f"{P}/1/1")] * 3]
    for rows in batches:
        admin.run(published(kafka, name, rows))
        told += landing(spark, kafka, name, tmp_path)
    assert [(one.landed, one.undecodable, one.repeats) for one in told] == [(0, 2, 0), (1, 0, 0), (0, 0, 3)]


@pytest.mark.parametrize(
    ("counts", "repeats"),
    [({"records": 5, "new": 3}, 2), ({"records": 7, "new": 4}, None), (None, None)],
    ids=["once", "a task twice", "by nobody"],
)
def test_how_many_were_left_out_is_told_only_where_each_task_was_counted_once(
    counts: dict[str, int] | None, repeats: int | None
) -> None:
    assert _repeats(counts, 3) == repeats


async def published_in_transactions(cluster: Cluster, topic: str) -> None:
    """Sequences 1 to 4, the even ones in transactions that are aborted; 3 comes again."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic) as producer:
        for sequence in (1, 2, 3, 4, 3):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"value", headers=[("aiorecover-id", f"{P}/1/{sequence}".encode())])
            await (producer.commit_transaction() if sequence % 2 else producer.abort_transaction())


def test_what_an_aborted_transaction_left_is_neither_landed_nor_found(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published_in_transactions(kafka, name))
    told = landing(spark, kafka, name, tmp_path)
    assert [(one.landed, one.repeats) for one in told] == [(2, 1)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/3"])
    with audit(read_topics(spark, [name], kafka.bootstrap_servers), known_last={(P, 1): 4}) as found:
        assert [(row["first"], row["last"]) for row in found.missing.collect()] == [(2, 2), (4, 4)]


def test_numbers_and_names_are_checked_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")
    with pytest.raises(ConfigError, match="at least 1"):
        land(spark, ["x"], target, target, bootstrap_servers="x", max_offsets_per_trigger=0)
    with pytest.raises(ConfigError, match="name the topics"):
        land(spark, "x", target, target, bootstrap_servers="x")
    with pytest.raises(ConfigError, match="name a checkpoint"):
        land(spark, ["x"], target, "/", bootstrap_servers="x")
    for manifests in ("a,b", "", 5, b"manifests"):
        with pytest.raises(ConfigError, match="sink_manifests must be a topic's name: "):
            land(spark, ["x"], target, target, bootstrap_servers="x", sink_manifests=cast("str", manifests))
    for path in ("", " ", None, 5, b"/lake/orders"):
        for target_and_checkpoint in [(path, target), (target, path)]:
            with pytest.raises(ConfigError, match=r"(target|checkpoint) must be a path, as a text or as a Path: type="):
                land(spark, ["x"], *cast("Any", target_and_checkpoint), bootstrap_servers="x")
    assert list(tmp_path.iterdir()) == []
