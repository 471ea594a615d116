"""Landing from a real broker: each record once, with repeats, in any order, and when the driver dies in a batch.

What is landed is read back with pyarrow, not with Spark or aiorecover, and counted by id.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import Landed, land
from aiorecover.spark.files import Files
from aiorecover.spark.landing import _claim
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

P, Q = "abcdefghij234", "zyxwvutsrq765"
ROWS = 500  # of a batch
Rows = list[tuple[int, str | None]]


def shuffled(seed: int) -> Rows:
    """1,200 records of two producers over three partitions, 60 of them repeated anywhere, and 40 of other people."""
    chance = random.Random(seed)
    identities: list[str | None] = [f"{P}/1/{sequence}" for sequence in range(1, 801)]
    identities += [f"{Q}/{2 + sequence // 300}/{sequence % 300 + 1}" for sequence in range(400)]
    rows: Rows = [(chance.randrange(3), identity) for identity in identities]
    rows += [(chance.randrange(3), identity) for _, identity in chance.sample(rows, 60)]
    rows += [(chance.randrange(3), None) for _ in range(40)]
    chance.shuffle(rows)
    return rows


async def published(cluster: Cluster, topic: str, rows: Rows) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, identity in rows:
            headers = [("aiorecover-id", identity.encode())] if identity else []
            await producer.send(topic, b"value", partition=partition, headers=headers)
        await producer.flush()


def landed_ids(target: Path) -> Counter[str | None]:
    """How often each id stands in the files that a reader is to see."""
    found: Counter[str | None] = Counter()
    for directory in target.glob("batch_id=*"):
        columns = ds.dataset(directory, format="parquet").to_table(["producer_id", "epoch", "sequence"]).to_pylist()
        found.update("{producer_id}/{epoch}/{sequence}".format(**row) if row["sequence"] else None for row in columns)
    return found


def once(rows: Iterable[tuple[int, str | None]]) -> Counter[str | None]:
    wanted = Counter(identity for _, identity in rows)
    return Counter({identity: count if identity is None else 1 for identity, count in wanted.items()})


def landing(spark: SparkSession, kafka: Cluster, topic: str, directory: Path) -> list[Landed]:
    told: list[Landed] = []
    query = land(
        spark,
        [topic],
        str(directory / "table"),
        str(directory / "checkpoint"),
        bootstrap_servers=kafka.bootstrap_servers,
        available_now=True,
        max_offsets_per_trigger=ROWS,
        on_batch=told.append,
    )
    query.awaitTermination()
    return told


class _DeathError(Exception):
    """Stands for the death of the driver where a second Spark would take too long."""


def test_each_record_is_landed_once_whenever_the_driver_dies(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(1)
    admin.run(published(kafka, name, rows))
    target = tmp_path / "table"
    kill_in_batch(1, kafka, name, tmp_path)
    after_kill = landed_ids(target)
    assert 0 < after_kill.total() <= ROWS
    assert (target / "_staging").exists(), "it was to be killed with a batch written and not landed"
    # Then it dies with a batch landed and the state not yet, and with both, before Spark knows.
    for place in ("/batch_id=1", "/after=2"):
        dying(monkeypatch, place)
        with pytest.raises(StreamingQueryException, match="_DeathError"):
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


def kill_in_batch(batch: int, kafka: Cluster, topic: str, directory: Path) -> None:
    told = {"servers": kafka.bootstrap_servers, "topic": topic, "batch": str(batch), "rows": str(ROWS)}
    told |= {name: str(directory / file) for name, file in (("target", "table"), ("checkpoint", "checkpoint"))}
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.lander", json.dumps(told)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr[-2000:]


def dying(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The next move to such a name is the last thing that is done."""
    move = Files.move

    def move_and_die(self: Files, source: str, destination: str) -> None:
        move(self, source, destination)
        if destination.endswith(place):
            raise _DeathError(place)

    monkeypatch.setattr(Files, "move", move_and_die)


def test_directories_that_do_not_belong_together_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def start(target: str, checkpoint: str) -> None:
        _claim(spark, str(tmp_path / target), str(tmp_path / checkpoint))

    for number in (1, 2):
        start(f"table{number}", f"checkpoint{number}")
    with pytest.raises(ConfigError, match="name the two that were used together"):
        start("table1", "checkpoint2")
    with pytest.raises(ConfigError, match="landed with another checkpoint"):
        start("table1", "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="these are not empty"):
        start("full", "fresh")
    (tmp_path / "checkpoint1" / "query" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint1" / "query" / "commits" / "0").touch()
    with pytest.raises(ConfigError, match="target of this checkpoint is gone"):
        start("elsewhere", "checkpoint1")


def test_numbers_and_names_are_checked_before_anything_is_made(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "table")
    with pytest.raises(ConfigError, match="at least 1"):
        land(spark, ["x"], target, target, bootstrap_servers="x", max_offsets_per_trigger=0)
    with pytest.raises(ConfigError, match="name the topics"):
        land(spark, "x", target, target, bootstrap_servers="x")
    assert list(tmp_path.iterdir()) == []
