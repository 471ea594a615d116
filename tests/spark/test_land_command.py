"""`aiorecover land` as a user runs it."""

import shutil
from pathlib import Path

import aiokafka
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from aiorecover.cli import land as command
from aiorecover.cli.app import app
from aiorecover.spark.sink_manifest import Write
from tests.spark import feed
from tests.spark.by_sink import Sink
from tests.spark.feed import P
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


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


async def published(cluster: Cluster, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for text in (b"abcdefghij234/1/1", b"abcdefghij234/1/1", b"nobody's", None):
            headers = [("aiorecover-id", text)] if text else []
            await producer.send_and_wait(topic, b"value", headers=headers)


def test_each_batch_is_told_and_the_end_is_status_0(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name))
    done = run(kafka, name, tmp_path)
    assert done.exit_code == 0, done.output
    told = "batch 0: 2 landed, 1 of them without an id, 1 repeats left out, 1 with an undecodable id in the quarantine"
    assert done.stdout.splitlines() == [told]
    again = run(kafka, name, tmp_path)
    assert (again.exit_code, again.stdout) == (0, "no batch: nothing new stands in the topics\n")


def test_how_much_is_left_is_told_behind_a_batch(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PROGRESS_LOOK", 0.02)
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name))
    done = run(kafka, name, tmp_path, "--max-offsets-per-trigger", "3")
    told = [line for line in done.stdout.splitlines() if "to go" in line]
    assert told == ["batch 0 is done: 1 offsets to go"], done.output


def test_a_batch_is_in_as_many_files_as_are_asked_for(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    identities = [f"{P}/{epoch}/1" for epoch in range(1, 100)]
    admin.run(feed.published(kafka, name, [(0, identity) for identity in identities]))
    done = run(kafka, name, tmp_path, "--files-per-batch", "5")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "table" / "batch_id=0").glob("*.parquet"))) == 5


def test_a_topic_that_is_not_there_is_status_2_and_one_sentence(kafka: Cluster, tmp_path: Path) -> None:
    done = run(kafka, "not-there", tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("a topic does not exist: check the names of the topics topics=['not-there']")


def test_other_topics_than_the_checkpoint_s_are_status_2_and_one_sentence(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, other = topic(kafka, partitions=1), topic(kafka, partitions=1)
    for each in (name, other):
        admin.run(published(kafka, each))
    run(kafka, name, tmp_path)
    done = run(kafka, other, tmp_path)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.output
    assert done.stderr.startswith("topics of this checkpoint are not named: name them, too")
    done = run(kafka, name, tmp_path, "--topic", other)
    assert (done.exit_code, done.stdout.partition(",")[0]) == (0, "batch 1: 1 landed"), done.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "name a checkpoint"),
        (["--checkpoint", ""], "name a checkpoint"),
        (["--checkpoint", "c", "--sink-manifests", "t"], "manifests are no records to land"),
        (["--checkpoint", "c", "--topic", ""], "name the topics"),
        (["--checkpoint", "c", "--bootstrap-servers", ""], "name Kafka's servers"),
        (["--checkpoint", "s3a://bucket/c"], "checkpoint='s3a://bucket/c'\n"),
        (["--checkpoint", "c", "--quarantine", "gs://bucket/q"], "quarantine='gs://bucket/q'\n"),
        (["--checkpoint", "c", "--target", "wasbs://c@a/t"], "target='wasbs://c@a/t'\n"),
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


def test_what_failed_attempts_of_a_sink_have_left_is_not_landed(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    sink = Sink(kafka, topic)
    sink.decide(sink.attempt(0, range(10)))
    sink.attempt(0, range(5))
    done = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    assert done.exit_code == 0, done.output
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["batch 0: 10 landed"]


def test_what_waits_for_a_manifest_is_told_until_it_is_given_up(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    sink = Sink(kafka, topic)
    write = sink.attempt(3, range(5)).write.name
    told = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    batch, end = told.stdout.splitlines()
    assert batch.endswith("0 repeats left out, 5 wait for their manifest")
    assert end.startswith("5 records are not landed, as there is no manifest of their writes yet")
    assert end.endswith(f"writes={write}")
    again = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    assert again.stdout.splitlines() == ["no batch: nothing new stands in the topics", end]
    reached = ["--bootstrap-servers", kafka.bootstrap_servers, "--sink-manifests", sink.manifests]
    given_up = CliRunner().invoke(app, ["give-up", *reached, "--write", write])
    assert (given_up.exit_code, given_up.output) == (0, f"given up: {write}\n")
    once_more = CliRunner().invoke(app, ["give-up", *reached, "--write", write])
    assert (once_more.exit_code, once_more.output) == (0, f"has its manifest, and stays as it is: {write}\n")
    last = run(kafka, sink.records, tmp_path, "--sink-manifests", sink.manifests)
    assert [line.split(",")[0] for line in last.stdout.splitlines()] == ["batch 1: 0 landed"]
    of_job = [CliRunner().invoke(app, ["give-up", *reached, "--job-id", "nightly"]) for _ in range(2)]
    name = Write("nightly", 0).name
    assert [one.output for one in of_job] == [f"given up: {name}\n", f"has its manifest, and stays as it is: {name}\n"]
    refused = CliRunner().invoke(app, ["give-up", *reached])
    assert (refused.exit_code, refused.stderr.startswith("name a write")) == (2, True)


@pytest.mark.parametrize("known", [True, False], ids=["by its id", "by its offsets"])
def test_a_topic_that_was_made_anew_is_status_3_and_one_sentence(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, known: bool
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name))
    assert run(kafka, name, tmp_path).exit_code == 0
    admin.run(admin.remake_topic(kafka.bootstrap_servers, name, 1))
    if not known:  # a checkpoint of before there were ids in it
        shutil.rmtree(tmp_path / "checkpoint" / "topic_ids")
    done = run(kafka, name, tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1), done.output
    assert "deleted and made anew" in done.stderr
    assert done.stderr.endswith(f"topics=['{name}']\n" if known else f"topic={name} partition=0 next=4 end=0\n")
