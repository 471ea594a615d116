"""`aiorecover land` as a user runs it: output and exit status."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from aiorecover.cli import land as command
from aiorecover.cli.app import app
from aiorecover.spark.packages import SPARK
from tests.spark.feed import P, Rows, land_all, publish, rows_of
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

ROWS: Rows = [(0, f"{P}/1/1"), (0, f"{P}/1/1"), (0, "nonsense"), (0, None)]

pytestmark = pytest.mark.usefixtures("shared_session")


def run(cluster: Cluster, topic: str, directory: Path, *arguments: str) -> Result:
    options = {
        "--bootstrap-servers": cluster.bootstrap_servers,
        "--topic": topic,
        "--target": str(directory / "table"),
        "--checkpoint": str(directory / "checkpoint"),
    }
    words = [word for pair in options.items() for word in pair]
    return CliRunner().invoke(app, ["land", "--available-now", *words, *arguments], env={"COLUMNS": "80"})


def test_each_batch_is_reported_and_a_topic_that_was_made_anew_ends_with_status_3(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(publish(kafka, name, ROWS))
    done = run(kafka, name, tmp_path, "--files-per-batch", "1")
    assert done.exit_code == 0, done.output
    batch = "batch 0: 2 landed, 1 of them without an id, 1 repeats left out, 1 with an undecodable id in the quarantine"
    start = [
        "Spark starts; what it lacks is fetched, once",
        f"landing in {tmp_path}/table: each batch is reported when it is done",
    ]
    assert done.stdout.splitlines() == [*start, batch]
    assert len(list((tmp_path / "table" / "batch_id=0").glob("*.parquet"))) == 1
    again = run(kafka, name, tmp_path)
    assert (again.exit_code, again.stdout.splitlines()) == (0, [*start, "no batch: nothing new stands in the topics"])
    done = run(kafka, "not-there", tmp_path / "other")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("a topic does not exist: check the names of the topics topics=['not-there']")
    admin.run(admin.remake_topic(kafka.bootstrap_servers, name, 1))
    done = run(kafka, name, tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1), done.output
    assert "deleted and made anew" in done.stderr


def test_records_that_kafka_deleted_before_they_were_landed_end_with_status_3(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(publish(kafka, name, rows_of(range(1, 6))))
    assert run(kafka, name, tmp_path).exit_code == 0
    admin.run(publish(kafka, name, rows_of(range(6, 11))))
    admin.run(admin.delete_records(kafka.bootstrap_servers, name, 0, before=8))
    done = run(kafka, name, tmp_path)
    assert done.exit_code == 3, done.output
    line = done.stderr.splitlines()[-1]
    assert line.startswith("Kafka has deleted records that were to be read next")
    within = "from=5" if SPARK == "3.5" else "within=5-9"
    assert line.endswith(f" topic={name} partition=0 {within}")
    land_all(spark, kafka, name, tmp_path, options={"failOnDataLoss": "false"})
    assert landed_ids(tmp_path / "table").keys() == {f"{P}/1/{sequence}" for sequence in (1, 2, 3, 4, 5, 9, 10)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a checkpoint"),
        (["--checkpoint", "c", "--topic", ""], "name the topics"),
        (["--checkpoint", "c", "--bootstrap-servers", ""], "name Kafka's servers"),
        (["--checkpoint", "/t/"], "name a directory of its own for the checkpoint"),
    ],
)
def test_wrong_arguments_end_with_status_2_and_one_sentence_before_spark_starts(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "start_session", lambda *_, **__: pytest.fail("Spark is started"))
    options = ["--bootstrap-servers", "kafka:9092", "--topic", "t", "--target", "/t"]
    done = CliRunner().invoke(app, ["land", *options, *arguments], env={"COLUMNS": "80"})
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert message in done.stderr


def test_a_conflict_ends_with_status_4_and_offsets_after_an_open_transaction_are_counted(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(publish(kafka, name, ROWS))
    admin.run(publish(kafka, name, rows_of([1]), b"forwarded"))

    async def land_beside_an_open_transaction() -> Result:
        servers = kafka.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"foreign-{name}") as foreign:
            await foreign.begin_transaction()
            await foreign.send_and_wait(name, b"open", partition=0)
            await publish(kafka, name, rows_of(range(2, 32)))
            done = await asyncio.to_thread(run, kafka, name, tmp_path, "--json")
            await foreign.abort_transaction()
            return done

    done = admin.run(land_beside_an_open_transaction())
    assert done.exit_code == 4, done.output
    counts = {"batches": 1, "landed": 2, "without_id": 1, "repeats": 1, "conflicts": 1, "undecodable": 1}
    assert json.loads(done.stdout) == counts | {"held_offsets": 31}
    assert json.loads(run(kafka, name, tmp_path, "--json").stdout)["landed"] == 30


def test_a_record_that_spark_cannot_convert_is_named_and_the_remedy_lands_the_others(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    greatest, time_ms = (1 << 63) - 1, 1_764_000_000_000
    name = topic(kafka, partitions=1, config={"message.timestamp.after.max.ms": str(greatest)})
    admin.run(publish(kafka, name, rows_of([1, 2]), timestamp_ms=time_ms))
    assert run(kafka, name, tmp_path).exit_code == 0
    for sequence, timestamp_ms in [(3, time_ms), (4, greatest // 1000 + 1), (5, time_ms)]:
        admin.run(publish(kafka, name, rows_of([sequence]), timestamp_ms=timestamp_ms))
    done = run(kafka, name, tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("the timestamp of a record is beyond Spark's range: no landing gets past it")
    assert done.stderr.endswith(f"topic='{name}' partition=0 offset=3\n")
    audited = CliRunner().invoke(
        app, ["audit", "--engine", "spark", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", name]
    )
    assert audited.exit_code == 2, audited.output
    assert audited.stderr.endswith(f"topic='{name}' partition=0 offset=3\n")
    admin.run(publish(kafka, name, rows_of([3, 4]), timestamp_ms=time_ms))
    admin.run(admin.delete_records(kafka.bootstrap_servers, name, 0, before=4))
    done = run(kafka, name, tmp_path, "--kafka-option", "failOnDataLoss=false")
    assert done.exit_code == 0, done.output
    assert landed_ids(tmp_path / "table") == Counter(f"{P}/1/{sequence}" for sequence in range(1, 6))
