"""`aiorecover audit` as a user runs it, on topics of a real broker and on a table, and where it cannot run."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

import aiorecover.cli
from aiorecover import RecoverableProducer
from aiorecover.cli import audit as command
from aiorecover.cli.app import app
from aiorecover.errors import ConfigError
from aiorecover.spark.session import clear_errors
from tests.spark.by_sink import Sink
from tests.spark.test_manifests import told as manifest
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory
from tests.support.oracle import read_topic

P, Q = "abcdefghij234", "zyxwvutsrq765"


@pytest.fixture(autouse=True)
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes a session and stops it; here it gets the tests' own, which must live on."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], env={"COLUMNS": "80"})


async def published(cluster: Cluster, topic: str, identities: list[str | None]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for identity in identities:
            headers = [("aiorecover-id", identity.encode())] if identity else []
            await producer.send_and_wait(topic, b"value", partition=0, headers=headers)


def test_what_is_missing_repeated_or_out_of_order_in_topics_is_named_with_status_1(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    one, two = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(published(kafka, one, [f"{P}/1/1", f"{P}/1/2", f"{P}/1/7", f"{P}/1/2", None]))
    admin.run(published(kafka, two, [f"{P}/1/4", f"{P}/1/3"]))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", one
    done = run(*where, "--topic", two, "--last", f"{P}/1/9", "--json")
    assert done.exit_code == 1, done.output
    found: Any = json.loads(done.stdout)
    assert found["more"] == []
    wanted = {"records": 7, "without_id": 1, "epochs": 1, "expected": 9, "found": 5, "missing": 4}
    assert found["totals"] == wanted | {"repeated": 1, "out_of_order": 1}
    assert [(row["first"], row["last"]) for row in found["missing"]] == [(5, 6), (8, 9)]
    cut = json.loads(run(*where, "--topic", two, "--last", f"{P}/1/9", "--json", "--limit", "1").stdout)
    assert (len(cut["missing"]), cut["more"]) == (1, ["missing"]), "what is cut says so"
    assert found["epochs"][0]["producer_id"] == P
    at = {"producer_id": P, "epoch": 1, "count": 1}
    assert found["repeated"] == [{**at, "first": 2, "last": 2, "repeated": 1}]
    assert found["out_of_order"] == [{**at, "first": 3, "last": 3}]
    page = tmp_path / "page.html"
    said = run(*where, "--topic", two, "--html", page).stdout
    assert [line.split() for line in said.splitlines()[2:4]] == [[f"{P}/1", "7", "5", "2", "1", "1"], ["1-7"]]
    assert f"repeated: {P}/1 sequences=2-2 1\nout of order: {P}/1 sequences=3-3 1\n" in said
    assert "there is more" not in said
    drawn = page.read_text(encoding="utf-8")
    assert "<h2>Sequences repeated, the" in drawn
    assert "<h2>Sequences out of order, the" in drawn
    assert f"<td>{P}</td><td>1</td><td>1-7</td>" in drawn


def test_what_failed_attempts_of_a_sink_have_left_does_not_count(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    sink = Sink(kafka, topic)
    sink.decide(sink.attempt(0, range(10)))
    sink.attempt(0, range(5))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", sink.records
    page = tmp_path / "page.html"
    done = run(*where, "--sink-manifests", sink.manifests, "--json", "--html", page)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["totals"]["epochs"], found["totals"]["records"], found["totals"]["found"]) == (1, 10, 10)
    assert sum(one["found"] for one in found["timeline"]["moments"]) == 10
    assert json.loads(run(*where, "--json").stdout)["totals"]["found"] == 15
    assert (found["totals"]["leftovers"], found["totals"]["undecided"]) == (5, 0)
    sink.attempt(1, range(3))
    done = run(*where, "--sink-manifests", sink.manifests, "--html", page)
    said = (
        "not counted: 5 of attempts of sinks that do not count, 3 of sinks' writes that have no manifest in this topic"
    )
    assert (done.exit_code, said in done.stdout) == (0, True), done.output
    assert escape(said) in page.read_text(encoding="utf-8")


def test_a_sink_whose_topic_is_not_read_is_status_2_and_one_sentence(kafka: Cluster, topic: TopicFactory) -> None:
    sink, other = Sink(kafka, topic), Sink(kafka, topic)
    sink.decide(sink.attempt(0, range(10)))
    other.plan = replace(other.plan, manifest_topic=sink.manifests)
    elsewhere = other.attempt(1, range(7))
    other.decide(elsewhere)
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--sink-manifests", sink.manifests, "--topic", sink.records
    done = run(*where)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("the manifests name writes to topics of which nothing was read: read these, too, or")
    assert f"topics={other.records}" in done.stderr
    done = run(*where, "--topic", other.records)
    assert (done.exit_code, "17 of 17 found" in done.stdout) == (0, True), done.output


def test_dead_letters_of_a_sink_are_told_from_what_is_lost(kafka: Cluster, topic: TopicFactory) -> None:
    sink = Sink(kafka, topic, config={"max.message.bytes": "3000"}, dead_letters=2)
    attempt = sink.attempt(0, [1, "x" * 5000, "x" * 5000, 2])
    sink.decide(attempt)
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", sink.records
    assert run(*where).exit_code == 1
    done = run(*where, "--sink-manifests", sink.manifests)
    assert done.exit_code == 0, done.output
    assert f"dead lettered: {attempt.producer_id}/1 sequences=2-3 2" in done.stdout
    # One that the manifest tells of, and that is nowhere, is lost; of others nothing is told.
    shorter = topic(kafka, partitions=1)
    admin.run(published(kafka, shorter, [f"{attempt.producer_id}/1/1", f"{P}/1/2"]))
    done = run(*where[:3], shorter, "--sink-manifests", sink.manifests, "--json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)["manifests"]["totals"]
    assert told == {"lost": 1, "untold": 1, "in_ring": 0, "dead_lettered": 2, "skipped": 0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--topic", "t"], "name Kafka's servers"),
        (["--bootstrap-servers", "kafka:9092"], "name the topics"),
        (["--table", "/t", "--sink-manifests", "m"], "--sink-manifests is a topic: say where"),
    ],
)
def test_topics_without_servers_and_servers_without_topics_are_refused_before_spark_starts(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "start_session", lambda *_, **__: pytest.fail("Spark is started"))
    done = run(*given)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert said in done.stderr


def test_for_a_table_alone_no_kafka_connector_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(*_: object, kafka: bool = True) -> None:
        asked.append(kafka)
        raise ConfigError("it is enough")

    monkeypatch.setattr(command, "start_session", refuse)
    run("--table", tmp_path)
    run("--table", tmp_path, "--bootstrap-servers", "kafka:9092", "--topic", "t")
    assert asked == [False, True]


def test_a_whole_table_is_status_0_and_an_unknown_path_or_table_2(tmp_path: Path) -> None:
    identities = {"producer_id": [P] * 3, "epoch": pa.array([1] * 3, pa.int32()), "sequence": [1, 2, 3]}
    pq.write_table(pa.table(identities), tmp_path / "part.parquet")
    done = run("--table", tmp_path)
    assert done.exit_code == 0, done.output
    assert "3 of 3 found, 0 missing" in done.stdout
    for nowhere, said in [(tmp_path / "not", "check the path"), ("not_there", "name a table of the catalogue")]:
        done = run("--table", nowhere)
        assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_a_page_that_cannot_be_written_at_last_takes_nothing_of_the_result(tmp_path: Path) -> None:
    moments = [datetime(2026, 1, 2, tzinfo=UTC)] * 2
    columns = {"producer_id": [P] * 2, "epoch": pa.array([1] * 2, pa.int32()), "sequence": [1, 2], "timestamp": moments}
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    done = run("--table", tmp_path, "--html", "/dev/full")
    assert "2 of 2 found, 0 missing" in done.stdout, done.output
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("the page cannot be written: name a file for --html")


def test_a_table_without_timestamps_is_refused_for_a_page_before_it_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(
        pa.table({"producer_id": [P], "epoch": pa.array([1], pa.int32()), "sequence": [1]}), tmp_path / "part.parquet"
    )
    monkeypatch.setattr("aiorecover.spark.audit", lambda *_, **__: pytest.fail("it is audited"))
    done = run("--table", tmp_path, "--html", tmp_path / "page.html")
    assert (done.exit_code, "needs Kafka's column timestamp" in done.stderr) == (2, True), done.output
    assert not (tmp_path / "page.html").exists(), "that it may be written is tried and leaves nothing"


def test_of_several_last_ids_of_an_epoch_the_highest_counts() -> None:
    assert command._known_last([f"{P}/1/5", f"{P}/1/9", f"{P}/1/8", f"{P}/2/1"]) == {(P, 1): 9, (P, 2): 1}


def test_the_worst_of_what_is_repeated_is_what_came_most_often(tmp_path: Path) -> None:
    sequences = [1, 2, 3, 1, 2, 3, 4, *[5] * 6]
    columns = {"producer_id": [P] * 13, "epoch": pa.array([1] * 13, pa.int32()), "sequence": sequences}
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    done = run("--table", tmp_path, "--limit", "1")
    assert f"repeated: {P}/1 sequences=5-5 5\nthere is more" in done.stdout, done.output


def test_what_the_table_lacks_of_the_topics_is_named_with_status_1_and_drawn(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [*(f"{P}/1/{sequence}" for sequence in range(1, 11)), None]))
    landed, page = tmp_path / "landed", tmp_path / "page.html"
    landed.mkdir()
    identities = {"producer_id": [P] * 7, "epoch": pa.array([1] * 7, pa.int32()), "sequence": [1, 2, 4, 5, 6, 9, 11]}
    pq.write_table(pa.table(identities), landed / "part.parquet")
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", name
    done = run(*where, "--table", landed, "--html", page, "--json")
    assert done.exit_code == 1, done.output
    found: Any = json.loads(done.stdout)
    assert found["totals"]["missing"] == 0
    wanted = {"in_topics": 10, "in_table": 7, "absent": 4, "only_in_table": 1}
    strangers = {"without_id_in_topics": 1, "without_id_in_table": 0, "without_id_absent": 1}
    assert found["compared"]["totals"] == wanted | strangers
    absent = sorted((row["first"], row["last"]) for row in found["compared"]["absent"])
    assert absent == [(3, 3), (7, 8), (10, 10)]
    drawn = page.read_text(encoding="utf-8")
    assert "4 of 10 absent from the table" in drawn
    fewer = "without an id: the table has 1 fewer than the topics; "
    assert fewer in drawn
    assert sum(one["found"] for one in found["timeline"]["moments"]) == 10
    # What is whole is status 0, and the terminal says the same.
    identities = {"producer_id": [P] * 10, "epoch": pa.array([1] * 10, pa.int32()), "sequence": range(1, 11)}
    pq.write_table(pa.table(identities), landed / "part.parquet")
    done = run(*where, "--table", landed)
    assert done.exit_code == 0, done.output
    assert "table: 0 of 10 records absent, 0 only in the table" in done.stdout
    assert fewer in done.stdout, "nothing names the record, and a line says so"
    columns = {"producer_id": pa.array([P] * 10 + [None]), "epoch": pa.array([1] * 10 + [None], pa.int32())}
    pq.write_table(pa.table(columns | {"sequence": [*range(1, 11), None]}), landed / "part.parquet")
    done = run(*where, "--table", landed)
    assert (done.exit_code, "fewer than the topics" in done.stdout) == (0, False), done.output


def test_without_order_nothing_is_told_of_it(tmp_path: Path) -> None:
    ids = {"producer_id": [P] * 3, "epoch": pa.array([1] * 3, pa.int32()), "sequence": [1, 3, 2]}
    places = {"topic": ["t"] * 3, "partition": pa.array([0] * 3, pa.int32()), "offset": [1, 2, 3]}
    pq.write_table(pa.table(ids | places), tmp_path / "part.parquet")
    assert "0 repeated, 1 out of order" in run("--table", tmp_path).stdout
    done = run("--table", tmp_path, "--no-order")
    assert (done.exit_code, "0 repeated, order unknown" in done.stdout) == (0, True), done.output
    found: Any = json.loads(run("--table", tmp_path, "--no-order", "--json").stdout)
    assert (found["totals"]["out_of_order"], found["out_of_order"], found["more"]) == (None, [], [])


async def ran(cluster: Cluster, topic: str, audit_topic: str, wal: Path) -> str:
    """40 records and one that is too large for the topic, and what the producer of them is called."""
    options = {"audit_topic": audit_topic, "wal_min_free_bytes": 0}
    async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
        for number in range(41):
            await producer.publish(topic, b"x" * (5000 if number == 24 else 10), partition=0)
        await producer.flush(timeout_ms=30_000)
        return producer.producer_id


async def copied(cluster: Cluster, source: str, target: str, *, without: set[int]) -> None:
    kept = [one.record_id for one in await read_topic(cluster.bootstrap_servers, source)]
    wanted = [one for one in kept if one is not None and int(one.rsplit("/", 1)[1]) not in without]
    await published(cluster, target, [*wanted])


def test_with_manifests_a_missing_tail_a_lost_record_and_a_dead_letter_are_told_apart(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source = topic(kafka, partitions=1, config={"max.message.bytes": "3000"})
    target, told = topic(kafka, partitions=1), topic(kafka, partitions=2, config={"cleanup.policy": "compact"})
    producer_id = admin.run(ran(kafka, source, told, tmp_path / "wal"))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--manifests", told
    done = run(*where, "--topic", source)
    assert done.exit_code == 0, done.output
    assert f"dead lettered: {producer_id}/1 sequences=25-25 1" in done.stdout
    assert "0 lost, 0 untold, 0 in ring, 1 dead lettered, 0 skipped" in done.stdout
    admin.run(copied(kafka, source, target, without={7, 39, 40, 41}))
    done = run(*where, "--topic", target, "--json", "--html", tmp_path / "page.html")
    assert done.exit_code == 1, done.output
    drawn = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "4 lost, 0 untold, 0 in ring, 1 dead lettered, 0 skipped" in drawn
    found: Any = json.loads(done.stdout)["manifests"]
    assert found["totals"] == {"lost": 4, "untold": 0, "in_ring": 0, "dead_lettered": 1, "skipped": 0}
    assert [(one["first"], one["last"], one["verdict"], one["tail"]) for one in found["ranges"]] == [
        (39, 41, "lost", True),
        (7, 7, "lost", False),
        (25, 25, "dead_lettered", False),
    ]
    assert found["unreadable"] == 0


async def written(cluster: Cluster, topic: str, rows: list[tuple[bytes, bytes]]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for key, value in rows:
            await producer.send_and_wait(topic, value, key=key)


def test_what_nobody_has_told_is_said_to_be_unknown_and_is_no_failure(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """A machine that died in an outage: all that was told is there, and what it accepted since is not known here."""
    read, told = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(published(kafka, read, [f"{P}/1/1", f"{P}/1/2", f"{Q}/7/1"]))
    moment = int(datetime(2026, 11, 26, 5, 0, 7, tzinfo=UTC).timestamp() * 1000)
    admin.run(written(kafka, told, [manifest(P, 1, last=2, settled=2, time_ms=moment)]))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", read, "--manifests", told
    page = tmp_path / "page.html"
    done = run(*where, "--html", page)
    assert (done.exit_code, "3 of 3 found, 0 missing" in done.stdout) == (0, True), done.output
    opened = f"1 epoch is open, {P}/1, told last at 2026-11-26 05:00:07 UTC: what it accepted since is not known here;"
    untold = "1 epoch was found that no manifest tells of: what it accepted behind"
    drawn = page.read_text(encoding="utf-8")
    for line in (opened, untold):
        assert line in done.stdout, done.stdout
        assert line in drawn
    admin.run(written(kafka, told, [manifest(P, 1, last=2, settled=2, sealed=True), manifest(Q, 7, last=1)]))
    found = json.loads(run(*where, "--json").stdout)["totals"]
    unknown = {"open_epochs": 1, "open_oldest": f"{Q}/7", "open_told_ms": 1, "untold_epochs": 0}
    assert found.items() >= unknown.items()


def test_a_table_alone_is_judged_by_manifests_that_are_read_from_kafka(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    told = topic(kafka, partitions=1)
    identities = {"producer_id": [P] * 2, "epoch": pa.array([1] * 2, pa.int32()), "sequence": [1, 3]}
    pq.write_table(pa.table(identities), tmp_path / "part.parquet")
    where = "--table", tmp_path, "--manifests", told, "--bootstrap-servers", kafka.bootstrap_servers
    done = run(*where)
    assert (done.exit_code, "untold: " in done.stdout) == (1, True), done.output


def test_of_a_table_alone_what_kafka_has_acknowledged_is_called_absent_and_not_lost(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source, told = topic(kafka, partitions=1, config={"max.message.bytes": "3000"}), topic(kafka, partitions=1)
    producer_id = admin.run(ran(kafka, source, told, tmp_path / "wal"))
    landed = [sequence for sequence in range(1, 39) if sequence not in {7, 25}]
    columns = {"producer_id": [producer_id] * len(landed), "epoch": pa.array([1] * len(landed), pa.int32())}
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table(columns | {"sequence": landed}), tmp_path / "table" / "part.parquet")
    where = "--table", tmp_path / "table", "--manifests", told, "--bootstrap-servers", kafka.bootstrap_servers
    done = run(*where)
    assert done.exit_code == 1, done.output
    assert f"not in table settled tail: {producer_id}/1 sequences=39-41 3\n" in done.stdout
    assert "of the missing: 4 not in table, 0 lost, 0 untold, 0 in ring, 1 dead lettered, 0 skipped\n" in done.stdout
    assert "not in the table: these were in Kafka; name their topics, too (--topic)" in done.stdout
    # With the topics there are verdicts of these, and the table is compared with them.
    done = run(*where, "--topic", source, "--json")
    found: Any = json.loads(done.stdout)
    assert done.exit_code == 1
    assert found["manifests"]["totals"] == {"lost": 0, "untold": 0, "in_ring": 0, "dead_lettered": 1, "skipped": 0}
    assert found["compared"]["totals"]["absent"] == 4


def test_records_of_others_alone_are_no_audit(tmp_path: Path) -> None:
    nobody = {"producer_id": pa.array([None], pa.string()), "epoch": pa.array([None], pa.int32())}
    pq.write_table(pa.table({**nobody, "sequence": pa.array([None], pa.int64())}), tmp_path / "part.parquet")
    done = run("--table", tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("no record has a record id: name topics that aiorecover publishes to")


@pytest.mark.parametrize("option", ["--manifests", "--sink-manifests"])
def test_a_topic_of_records_in_the_place_of_one_of_manifests_is_status_2_and_one_sentence(
    kafka: Cluster, topic: TopicFactory, option: str
) -> None:
    records, empty = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(published(kafka, records, [f"{P}/1/1"]))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", records
    done = run(*where, option, records)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert done.stderr.startswith("no record of this topic is a manifest of")
    assert run(*where, option, empty).exit_code == 0, "no manifest has come yet"


def test_a_topic_that_is_not_there_is_status_2_and_one_sentence(kafka: Cluster) -> None:
    done = run("--bootstrap-servers", kafka.bootstrap_servers, "--topic", "not-there")
    assert done.exit_code == 2
    assert done.stderr.startswith("a topic does not exist: check the names of the topics")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--bootstrap-servers and --topic, or --table"),
        (["--table", "x", "--topic", "x"], "name Kafka's servers"),
        (["--topic", "x"], "name Kafka's servers"),
        (["--bootstrap-servers", "x"], "name the topics"),
        (["--table", "x", "--last", "x/1"], "--last takes a record id"),
        (["--table", "x", "--conf", "x"], "name=value"),
        (["--table", "x", "--manifests", "x"], "name Kafka's servers for --manifests"),
        (["--table", "x", "--html", "/not/there/page.html"], "the directory of --html is not there"),
        (["--table", "x", "--html", "/proc"], "the page cannot be written: name a file for --html"),
        (["--table", "x", "--html", "/proc/page.html"], "the page cannot be written: name a file for --html"),
    ],
)
def test_what_cannot_be_is_status_2_and_says_what_to_do(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, said in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done.output


def test_without_java_the_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("--table", "x")
    assert (done.exit_code, "install openjdk-17-jre-headless" in done.stderr) == (2, True)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    assert "version='11'" in run("--table", "x").stderr


def test_without_pyspark_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("aiorecover.spark", "aiorecover.cli.audit"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(aiorecover, "spark")
    monkeypatch.delattr(aiorecover.cli, "audit")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run("--table", "x")
    assert (done.exit_code, "pip install 'aiorecover[spark]'" in done.stderr) == (2, True), done.output


def test_a_missing_connector_is_named_with_its_coordinates() -> None:
    with pytest.raises(ConfigError, match=r"spark-sql-kafka-0-10_2\.13:4"), clear_errors():
        raise PySparkException("Failed to find data source: kafka. Please deploy ...")


def test_an_error_that_is_not_known_is_not_hidden() -> None:
    with pytest.raises(PySparkException), clear_errors():
        raise PySparkException("something new")


def test_a_terminal_of_80_columns_holds_every_count() -> None:
    epoch = {"producer_id": P, "epoch": 8_388_607, "out_of_order": None, "repeated": 12_345, "missing": 1_234_567}
    epoch |= {"expected": 234_567_890, "found": 233_333_323, "first": 8_234_567_890, "last": 8_469_135_779}
    totals = {"records": 1, "without_id": 0, "epochs": 2, **epoch}
    console = Console(record=True, width=80)
    lists: dict[str, list[Any]] = {"epochs": [epoch], "missing": [], "repeated": [], "out_of_order": []}
    command.show(console, {"totals": totals, **lists, "more": ["epochs"]})
    titles, sequences, row, found, more, verdict = console.export_text().splitlines()
    assert titles.split() == ["producer/epoch"]
    assert sequences.split() == ["sequences", "expected", "found", "missing", "repeated", "disorder"]
    assert row.split() == [f"{P}/8388607", "234,567,890", "233,333,323", "1,234,567", "12,345", "?"]
    assert found.split() == ["8234567890-8469135779"]
    assert "--limit" in more
    assert "order unknown" in verdict
    assert max(map(len, (titles, sequences, row, found))) <= 80


def test_that_there_is_more_is_said_of_what_is_printed_alone() -> None:
    counts = {"out_of_order": 0, "repeated": 0, "missing": 9, "expected": 10, "found": 1}
    lists: dict[str, list[Any]] = {"epochs": [], "missing": [], "repeated": [], "out_of_order": []}
    verdicts = dict.fromkeys(("lost", "untold", "in_ring", "dead_lettered", "skipped"), 0)
    judged = {"totals": verdicts, "ranges": [], "unreadable": 0}

    def said(*more: str, **told: Any) -> bool:
        console = Console(record=True, width=80)
        totals = {"records": 1, "without_id": 0, "epochs": 0, **counts}
        command.show(console, {"totals": totals, **lists, **told, "more": [*more]})
        return "there is more" in console.export_text()

    assert said("missing")
    assert not said("missing", manifests=judged)
    assert said("missing", "manifests", manifests=judged)
    assert said("repeated", manifests=judged)


def test_records_without_an_id_are_said_to_be_others_and_where_to_look() -> None:
    counts = {"out_of_order": 0, "repeated": 0, "missing": 0, "expected": 1, "found": 1}
    lists: dict[str, list[Any]] = {"epochs": [], "missing": [], "repeated": [], "out_of_order": [], "more": []}

    def said(without_id: int) -> bool:
        console = Console(record=True, width=80)
        command.show(console, {"totals": {"records": 9, "without_id": without_id, "epochs": 1, **counts}, **lists})
        return "without an id: somebody else writes to these topics, or" in console.export_text()

    assert said(1)
    assert not said(0)
