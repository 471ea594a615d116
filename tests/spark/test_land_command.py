"""`aiorecover land` and `give-up` as a user runs them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from aiorecover.cli import land as command
from aiorecover.cli.app import app
from aiorecover.spark.sink_manifest import Write
from tests.spark.by_sink import Sink
from tests.spark.feed import P, Rows, landing, published
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

ROWS: Rows = [(0, f"{P}/1/1"), (0, f"{P}/1/1"), (0, "nobody's"), (0, None)]


@pytest.fixture(autouse=True)
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes a session and stops it; here it gets the tests' own, which must live on."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


def run(cluster: Cluster, topic: str, directory: Path, *arguments: str) -> Result:
    told = {
        "--bootstrap-servers": cluster.bootstrap_servers,
        "--topic": topic,
        "--target": str(directory / "table"),
        "--checkpoint": str(directory / "checkpoint"),
    }
    words = [word for pair in told.items() for word in pair]
    return CliRunner().invoke(app, ["land", "--available-now", *words, *arguments], env={"COLUMNS": "80"})


def give_up(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["give-up", *arguments])


def test_each_batch_is_told_and_the_end_is_status_0_and_a_topic_that_was_made_anew_is_status_3(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, ROWS))
    done = run(kafka, name, tmp_path, "--files-per-batch", "1")
    assert done.exit_code == 0, done.output
    told = "batch 0: 2 landed, 1 of them without an id, 1 repeats left out, 1 with an undecodable id in the quarantine"
    assert done.stdout.splitlines() == [told]
    assert len(list((tmp_path / "table" / "batch_id=0").glob("*.parquet"))) == 1
    again = run(kafka, name, tmp_path)
    assert (again.exit_code, again.stdout) == (0, "no batch: nothing new stands in the topics\n")
    done = run(kafka, "not-there", tmp_path / "other")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("a topic does not exist: check the names of the topics topics=['not-there']")
    admin.run(admin.remake_topic(kafka.bootstrap_servers, name, 1))
    done = run(kafka, name, tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1), done.output
    assert "deleted and made anew" in done.stderr


def test_records_that_kafka_deleted_before_they_were_landed_are_status_3_and_a_sentence(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(1, 6)]))
    assert run(kafka, name, tmp_path).exit_code == 0
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(6, 11)]))
    admin.run(admin.delete_records(kafka.bootstrap_servers, name, 0, before=8))
    done = run(kafka, name, tmp_path)
    assert done.exit_code == 3, done.output
    said = done.stderr.splitlines()[-1]
    assert said.startswith("Kafka has deleted records that were to be read next")
    assert said.endswith(f" topic={name} partition=0 within=5-9")
    landing(spark, kafka, name, tmp_path, options={"failOnDataLoss": "false"})
    assert landed_ids(tmp_path / "table").keys() == {f"{P}/1/{sequence}" for sequence in (1, 2, 3, 4, 5, 9, 10)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "name a checkpoint"),
        (["--checkpoint", "c", "--sink-manifests", "t"], "manifests are no records to land"),
        (["--checkpoint", "c", "--topic", ""], "name the topics"),
        (["--checkpoint", "c", "--bootstrap-servers", ""], "name Kafka's servers"),
        (["--checkpoint", "c", "--quarantine", "gs://bucket/q"], "quarantine='gs://bucket/q'\n"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_status_2_before_spark_starts(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "start_session", lambda *_, **__: pytest.fail("Spark is started"))
    told = ["--bootstrap-servers", "kafka:9092", "--topic", "t", "--target", "/t"]
    done = CliRunner().invoke(app, ["land", *told, *given], env={"COLUMNS": "80"})
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert said in done.stderr


def test_what_waits_for_a_manifest_is_told_until_it_is_given_up(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    sink = Sink(kafka, topic)
    sink.decide(sink.attempt(0, range(10)))
    sink.attempt(0, range(7))
    write = sink.attempt(3, range(5)).write.name
    told = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    batch, end = told.stdout.splitlines()
    assert batch.startswith("batch 0: 10 landed, ")
    assert batch.endswith("0 repeats left out, 5 wait for their manifest")
    assert end.startswith("5 records are not landed, as there is no manifest of their writes yet")
    assert end.endswith(f"writes={write}")
    reached = ["--bootstrap-servers", kafka.bootstrap_servers, "--sink-manifests", sink.manifests]
    said = [give_up(*reached, "--write", write).output for _ in range(2)]
    assert said == [f"given up: {write}\n", f"has its manifest, and stays as it is: {write}\n"]
    last = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    assert [line.split(",")[0] for line in last.stdout.splitlines()] == ["batch 1: 0 landed"]
    assert give_up(*reached, "--job-id", "nightly").output == f"given up: {Write('nightly', 0).name}\n"
    refused = give_up(*reached)
    assert (refused.exit_code, refused.stderr.startswith("name a write")) == (2, True)
