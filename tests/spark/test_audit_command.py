"""`aiorecover audit` as a user runs it, on topics of a real broker and on tables: output and exit status."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner, Result

from aiorecover import RecoverableProducer
from aiorecover.cli.app import app
from tests.spark.feed import P, Q, manifest, publish, rows_of
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory
from tests.support.oracle import read_topic

pytestmark = pytest.mark.usefixtures("shared_session")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], env={"COLUMNS": "80"})


def write_table(directory: Path, sequences: list[int], **more: Any) -> Path:
    directory.mkdir(exist_ok=True)
    epochs = pa.array([1] * len(sequences), pa.int32())
    columns = {"producer_id": [P] * len(sequences), "epoch": epochs, "sequence": sequences}
    pq.write_table(pa.table(columns | more), directory / "part.parquet")
    return directory


# -- topics ------------------------------------------------------------------------------------------------------------


def test_missing_repeated_and_out_of_order_records_of_topics_are_named_with_status_1(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    one, two = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(publish(kafka, one, [*rows_of([1, 2, 7, 2]), (0, None)]))
    admin.run(publish(kafka, two, rows_of([4, 3])))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", one, "--topic", two
    done = run(*where, "--last", f"{P}/1/9", "--json")
    assert done.exit_code == 1, done.output
    found: Any = json.loads(done.stdout)
    expected = {"records": 7, "without_id": 1, "epochs": 1, "expected": 9, "found": 5, "missing": 4}
    assert found["totals"].items() >= (expected | {"repeated": 1, "out_of_order": 1, "conflicts": 0}).items()
    assert [(row["first"], row["last"]) for row in found["missing"]] == [(5, 6), (8, 9)]
    one_of_epoch = {"producer_id": P, "epoch": 1, "count": 1}
    assert found["repeated"] == [{**one_of_epoch, "first": 2, "last": 2, "repeated": 1}]
    assert found["out_of_order"] == [{**one_of_epoch, "first": 3, "last": 3}]
    page = tmp_path / "page.html"
    text = run(*where, "--html", page, "--limit", "1").stdout
    assert [line.split() for line in text.splitlines()[2:4]] == [[f"{P}/1", "7", "5", "2", "1", "1"], ["1-7"]]
    assert f"repeated: {P}/1 sequences=2-2 1\nout of order: {P}/1 sequences=3-3 1\n" in text
    assert max(map(len, text.splitlines()[:4])) <= 80
    html = page.read_text(encoding="utf-8")
    assert "<h2>Sequences repeated, the" in html
    assert f"<td>{P}</td><td>1</td><td>1-7</td>" in html


def test_records_that_the_table_lacks_are_named_with_status_1_and_a_whole_table_ends_with_status_0(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, page = topic(kafka, partitions=1), tmp_path / "page.html"
    admin.run(publish(kafka, name, [*rows_of(range(1, 11)), (0, None)]))
    landed = write_table(tmp_path / "landed", [1, 2, 4, 5, 6, 9, 11])
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--table", landed
    done = run(*where, "--html", page, "--json")
    assert done.exit_code == 1, done.output
    found: Any = json.loads(done.stdout)
    expected = {"in_topics": 10, "in_table": 7, "absent": 4, "only_in_table": 1, "without_id_absent": 1}
    assert found["compared"]["totals"].items() >= expected.items()
    absent = sorted((row["first"], row["last"]) for row in found["compared"]["absent"])
    assert absent == [(3, 3), (7, 8), (10, 10)]
    assert "4 of 10 absent from the table" in page.read_text(encoding="utf-8")
    write_table(landed, [*range(1, 11)])
    done = run(*where)
    assert done.exit_code == 0, done.output
    assert "table: 0 of 10 records absent, 0 only in the table" in done.stdout
    assert "without an id: the table has 1 fewer than the topics; " in done.stdout


# -- manifests ---------------------------------------------------------------------------------------------------------


async def run_producer(cluster: Cluster, topic: str, audit_topic: str, wal: Path) -> str:
    """Publish 40 records and one that is too large for the topic; return the producer's id."""
    servers = cluster.bootstrap_servers
    async with RecoverableProducer(wal, bootstrap_servers=servers, audit_topic=audit_topic) as producer:
        for number in range(41):
            await producer.publish(topic, b"x" * (5000 if number == 24 else 10), partition=0)
        await producer.flush(timeout_ms=30_000)
        return producer.producer_id


async def copy_topic(cluster: Cluster, source: str, target: str, *, without: set[int]) -> None:
    """Copy the records' ids but those of these sequences."""
    ids = [record.record_id for record in await read_topic(cluster.bootstrap_servers, source)]
    await publish(cluster, target, [(0, one) for one in ids if one and int(one.rsplit("/", 1)[1]) not in without])


def test_with_manifests_a_missing_tail_a_lost_record_and_a_dead_letter_are_distinguished(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source = topic(kafka, partitions=1, config={"max.message.bytes": "3000"})
    target, manifests = topic(kafka, partitions=1), topic(kafka, partitions=2, config={"cleanup.policy": "compact"})
    producer_id = admin.run(run_producer(kafka, source, manifests, tmp_path / "wal"))
    where = "--bootstrap-servers", kafka.bootstrap_servers, "--manifests", manifests
    done = run(*where, "--topic", source)
    assert done.exit_code == 0, done.output
    assert f"dead lettered: {producer_id}/1 sequences=25-25 1" in done.stdout
    assert "0 lost, 0 untold, 0 in ring, 1 dead lettered" in done.stdout
    admin.run(copy_topic(kafka, source, target, without={7, 39, 40, 41}))
    done = run(*where, "--topic", target, "--json")
    assert done.exit_code == 1, done.output
    found: Any = json.loads(done.stdout)["manifests"]
    totals = {"lost": 4, "untold": 0, "in_ring": 0, "dead_lettered": 1, "behind_open_transaction": 0}
    assert found["totals"] == totals
    assert [(one["first"], one["last"], one["verdict"], one["tail"]) for one in found["ranges"]] == [
        (39, 41, "lost", True),
        (7, 7, "lost", False),
        (25, 25, "dead_lettered", False),
    ]


async def publish_manifest(cluster: Cluster, topic: str, key: bytes, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, value, key=key)


def test_open_epochs_and_epochs_without_manifest_are_named_and_are_no_failure(
    kafka: Cluster, topic: TopicFactory
) -> None:
    """A machine died in an outage: Kafka has all records of its last manifest; nothing shows what it accepted later."""
    name, manifests = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(publish(kafka, name, [*rows_of([1, 2]), (0, f"{Q}/7/1")]))
    time_ms = int(datetime(2026, 11, 26, 5, 0, 7, tzinfo=UTC).timestamp() * 1000)
    admin.run(publish_manifest(kafka, manifests, *manifest(P, 1, last=2, settled=2, time_ms=time_ms)))
    done = run("--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--manifests", manifests)
    assert (done.exit_code, "3 of 3 found, 0 missing" in done.stdout) == (0, True), done.output
    line = f"1 epoch is open, {P}/1, reported at 2026-11-26 05:00:07 UTC: what it accepted since is not known here;"
    assert line in done.stdout, done.stdout
    assert "1 epoch was found that no manifest tells of: what it accepted behind" in done.stdout


# -- tables, and wrong arguments ---------------------------------------------------------------------------------------


def test_a_table_alone_needs_no_kafka_and_no_order_leaves_the_order_unknown(tmp_path: Path) -> None:
    offsets = {"topic": ["t"] * 3, "partition": pa.array([0] * 3, pa.int32()), "offset": [1, 2, 3]}
    table = write_table(tmp_path / "table", [1, 3, 2], **offsets)
    done = run("--table", table)
    assert (done.exit_code, "3 of 3 found, 0 missing, 0 repeated, 1 out of order" in done.stdout) == (0, True)
    done = run("--table", table, "--no-order")
    assert (done.exit_code, "0 repeated, order unknown" in done.stdout) == (0, True), done.output
    done = run("--table", table, "--html", tmp_path / "page.html")
    assert (done.exit_code, "needs Kafka's column timestamp" in done.stderr) == (2, True), done.output
    assert not (tmp_path / "page.html").exists(), "the check whether the page can be written leaves a file"
    for absent, message in [(tmp_path / "not", "check the path"), ("not_there", "name a table of the catalogue")]:
        done = run("--table", absent)
        assert (done.exit_code, message in done.stderr) == (2, True), done.output


def test_unsuitable_topics_end_with_status_2_and_one_sentence(kafka: Cluster, topic: TopicFactory) -> None:
    records, foreign = topic(kafka, partitions=1), topic(kafka, partitions=1)
    admin.run(publish(kafka, records, rows_of([1])))
    admin.run(publish(kafka, foreign, [(0, None)]))
    for arguments, message in [
        (["--topic", "not-there"], "a topic does not exist: check the names of the topics"),
        (["--topic", foreign], "no record has a record id: name topics that aiorecover publishes to"),
        (["--topic", records, "--manifests", records], "no record of this topic is a manifest of"),
    ]:
        done = run("--bootstrap-servers", kafka.bootstrap_servers, *arguments)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
        assert done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--bootstrap-servers and --topic, or --table"),
        (["--topic", "x"], "name Kafka's servers"),
        (["--bootstrap-servers", "x"], "name the topics"),
        (["--engine", "flink", "--topic", "x"], "--engine is local or spark"),
        (["--engine", "local", "--table", "x"], "only Spark does that: leave out --engine local options=--table"),
        (
            ["--bootstrap-servers", "x", "--topic", "x", "--kafka-option", "kafka.security.protocol=SSL"],
            "this is an option of Spark's Kafka source: give --engine spark, or name aiokafka's",
        ),
        (["--bootstrap-servers", "127.0.0.1:1", "--topic", "x"], "Kafka cannot be reached, or does not answer"),
        (["--table", "x", "--last", "x/1"], "--last takes a record id"),
        (["--table", "x", "--conf", "x"], "name=value"),
        (["--table", "x", "--manifests", "x"], "name Kafka's servers for --manifests"),
        (["--table", "x", "--html", "/not/there/page.html"], "the directory of --html is not there"),
        (["--table", "x", "--html", "/proc"], "the page cannot be written: name a file for --html"),
    ],
)
def test_wrong_arguments_end_with_status_2_and_say_what_to_do(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, message in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done.output
