"""The commands that deal with what waits: drain, discard, and those for dead letters."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aiorecover import RecoverableProducer
from aiorecover.cli import drainage
from aiorecover.cli.app import app
from aiorecover.cli.options import producer_of
from aiorecover.testing import ApiKey, MockCluster, read_topic
from tests.support.eventually import until
from tests.support.published import NOWHERE

RECORD_LIST_TOO_LARGE = 18


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def values(cluster: MockCluster, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in read_topic(cluster.bootstrap_servers, topic)]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        yield cluster


async def leave(wal_dir: Path, *records: bytes, **options: Any) -> None:
    async with RecoverableProducer(wal_dir, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        for record in records:
            await producer.publish("orders", record)


def test_all_directories_are_drained_whatever_they_were_started_with(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(leave(tmp_path, b"one", b"two", instance="a"))
    asyncio.run(leave(tmp_path, b"three", instance="b", name="billing"))
    asyncio.run(leave(tmp_path, instance="c"))
    away = run("drain", tmp_path, "--bootstrap-servers", NOWHERE, "--timeout", 0.1)
    assert away.exit_code == 1
    assert "0 delivered, 2 left: not everything is in kafka yet" in away.stdout
    away = run("drain", tmp_path, "--bootstrap-servers", NOWHERE, "--timeout", 0, "--json")
    assert [one["left"] for one in json.loads(away.stdout)] == [2, 1, 0]
    assert "pending=0" not in away.stdout  # how many they are is not read yet
    monkeypatch.setenv("AIORECOVER_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    done = run("drain", tmp_path, "--option", "linger_ms=1", "--json")
    assert done.exit_code == 0
    found = [(Path(one["path"]).name, one["delivered"], one["left"], one["error"]) for one in json.loads(done.stdout)]
    assert found == [("a", 2, 0, None), ("b", 1, 0, None), ("c", 0, 0, None)]
    assert values(cluster) == [b"one", b"two", b"three"]
    assert run("drain", tmp_path).exit_code == 0  # there is nothing to do


@pytest.mark.asyncio
async def test_a_drain_without_a_limit_says_what_it_waits_for_until_that_is_mended(
    cluster: MockCluster, tmp_path: Path
) -> None:
    await leave(tmp_path, b"one", b"two")
    reports: list[tuple[int, int, str]] = []
    cluster.broker_down()
    servers = cluster.bootstrap_servers
    draining = asyncio.create_task(
        drainage.drain(tmp_path, lambda path: producer_of(path, servers, ()), None, lambda *now: reports.append(now))
    )
    await until(lambda: bool(reports) and reports[-1][2].startswith("kafka is not reached: "))
    cluster.broker_up()
    assert drainage.drained(await draining)
    assert reports[-1] == (2, 2, "")


def test_no_directory_is_called_empty_or_whole_while_it_keeps_damaged_batches(
    cluster: MockCluster, tmp_path: Path
) -> None:
    asyncio.run(leave(tmp_path, b"first", b"second"))
    ring = tmp_path / "0" / "ring"
    ring.write_bytes(ring.read_bytes().replace(b"second", b"s3cond"))
    for _ in range(2):  # a job that is started again says the same
        drained = run("drain", tmp_path, "--bootstrap-servers", cluster.bootstrap_servers, "--json")
        (found,) = json.loads(drained.stdout)
        assert (drained.exit_code, found["left"], found["kept_aside"]) == (1, 0, 1)
    assert values(cluster) == []
    looked = run("status", tmp_path)
    assert looked.exit_code == 1
    assert "damaged batches in damaged/, whose records the log has named: 1" in looked.stdout.replace("\n", " ")
    verified = run("verify", tmp_path)
    assert (verified.exit_code, verified.stdout.count("in damaged/")) == (1, 1)
    for command in ("cat", "export"):
        shown = run(command, tmp_path)
        assert (shown.exit_code, shown.stdout, shown.stderr.count("\n")) == (1, "", 1)
    assert "damaged batches that were kept aside: 1" in run("discard", tmp_path, "--yes").stdout


@pytest.mark.asyncio
async def test_a_directory_with_an_owner_is_left_to_it(cluster: MockCluster, tmp_path: Path) -> None:
    cluster.broker_down()
    async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.publish("orders", b"waits")
        servers = ("--bootstrap-servers", cluster.bootstrap_servers)
        drained = await asyncio.to_thread(run, "drain", tmp_path, *servers)
        discarded = await asyncio.to_thread(run, "discard", tmp_path, "--yes")
        assert (drained.exit_code, discarded.exit_code) == (1, 1)
        assert "1 left: a process has the directory: stop it, or leave it to it" in drained.stdout
        assert discarded.stderr.startswith("a process has the directory")
        cluster.broker_up()
    assert values(cluster) == [b"waits"]


def test_nothing_is_discarded_without_yes_and_all_with_it(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, b"one", b"two"))
    asked = run("discard", tmp_path)
    assert (asked.exit_code, asked.stderr) == (2, "all of this is thrown away with --yes, and nothing is without\n")
    assert "waiting records: 2, " in asked.stdout
    assert [one["waiting"] for one in json.loads(run("discard", tmp_path, "--json").stdout)] == [2]
    done = run("discard", tmp_path, "--yes", "--json")
    (gone,) = json.loads(done.stdout)
    assert (done.exit_code, gone) == (0, {"path": str(tmp_path / "0"), "records": 2, "kept_aside": 0})
    assert list(tmp_path.iterdir()) == []


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(cluster: MockCluster, tmp_path: Path) -> list[str]:
    """Return the ids of two letters that a service has left; a record waits after them."""

    async def refuse() -> list[str]:
        options: Any = {"bootstrap_servers": cluster.bootstrap_servers, "stop_timeout_ms": 0}
        async with RecoverableProducer(tmp_path / "wal", **options) as producer:
            ids = []
            for value in (b"one", b"\xff"):
                cluster.push_partition_errors("orders", 0, ApiKey.PRODUCE, RECORD_LIST_TOO_LARGE)
                ids.append((await producer.publish("orders", value, key="k", context={"n": 1})).record_id)
                await producer.flush(timeout_ms=20_000)
            await producer.dead_letters.export(tmp_path / "by_producer.jsonl")
            cluster.broker_down()
            await producer.publish("orders", b"waits")
        cluster.broker_up()
        return ids

    return asyncio.run(refuse())


def listed(wal: Path) -> list[str]:
    return [one["id"] for one in json.loads(run("dead-letters", "list", wal, "--json").stdout)]


def test_letters_are_listed_shown_and_exported_as_the_producer_does_it(letters: list[str], tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    table = run("dead-letters", "list", wal)
    assert table.exit_code == 0
    assert [line.split()[:3] for line in table.stdout.splitlines() if "/" in line] == [
        [one, "orders", "0"] for one in letters
    ]
    assert max(map(len, table.stdout.splitlines())) <= 80
    assert listed(wal) == letters
    shown = json.loads(run("dead-letters", "show", wal, letters[1]).stdout)
    assert (shown["value_base64"], shown["key"], shown["partition"], shown["context"]) == ("/w==", "k", 0, {"n": 1})
    assert "too large" in shown["dead_letter"]
    assert run("dead-letters", "export", wal, "-o", tmp_path / "here.jsonl").exit_code == 0
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "by_producer.jsonl").read_bytes()


def test_a_letter_is_requeued_and_what_waits_is_delivered_with_it(
    letters: list[str], cluster: MockCluster, tmp_path: Path
) -> None:
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    one = run("dead-letters", "requeue", tmp_path / "wal", letters[0], *servers)
    assert (one.exit_code, one.stdout) == (0, f"{tmp_path / 'wal' / '0'}: dead letters published again: 1\n")
    assert sorted(value or b"" for value in values(cluster)) == [b"one", b"waits"]
    cluster.push_partition_errors("orders", 0, ApiKey.PRODUCE, RECORD_LIST_TOO_LARGE)
    again = run("dead-letters", "requeue", tmp_path / "wal", "--all", *servers)
    assert again.exit_code == 1
    assert "says why records=1" in again.stderr
    assert len(listed(tmp_path / "wal")) == 1


def test_letters_are_purged_without_kafka_but_not_without_yes(
    letters: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    purge = ("dead-letters", "purge", tmp_path / "wal")
    asked = run(*purge, "--all")
    assert (asked.exit_code, asked.stderr.count("\n")) == (2, 1)
    assert [one["purged"] for one in json.loads(run(*purge, letters[0], "--yes", "--json").stdout)] == [1]
    assert [one["id"] for one in json.loads(run("dead-letters", "list", tmp_path / "wal", "--json").stdout)] == letters[
        1:
    ]
    assert run(*purge, "--all", "--yes").exit_code == 0
    assert run("dead-letters", "list", tmp_path / "wal").stdout == "dead letters: 0\n"
    assert run(*purge, "--all", "--yes").stdout == "dead letters: 0\n"
    assert json.loads(run(*purge, "--all", "--yes", "--json").stdout) == []
    assert run("status", tmp_path / "wal", "--json").stdout.count('"waiting": 1') == 1
    assert caplog.messages == []  # no warning of a Kafka that was not asked for


def test_damage_that_a_purge_meets_is_named(
    letters: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = tmp_path / "wal" / "0" / "ring"
    ring.write_bytes(ring.read_bytes().replace(b"k\x06one", b"k\x06\xee\xee\xee"))
    shown = run("dead-letters", "list", tmp_path / "wal")
    assert (shown.exit_code, shown.stderr.count("something is damaged")) == (1, 1)
    for asked in (letters[0], "x/1/1"):
        shown = run("dead-letters", "show", tmp_path / "wal", asked)
        assert (shown.exit_code, shown.stderr.count("something is damaged")) == (1, 1)
    assert shown.stderr.endswith("there is no such letter among those that can be read record_id='x/1/1'\n")
    caplog.clear()
    assert run("dead-letters", "purge", tmp_path / "wal", letters[1], "--yes").exit_code == 0
    assert [message.split()[0] for message in caplog.messages] == ["batch_damaged"]


def test_a_damaged_context_leaves_the_rest_of_its_letter(letters: list[str], tmp_path: Path) -> None:
    ring = tmp_path / "wal" / "0" / "ring"
    ring.write_bytes(ring.read_bytes().replace(b"\x81\xa1n\x01", b"\xc1\xa1n\x01"))
    looked = run("dead-letters", "list", tmp_path / "wal", "--json")
    written = run("dead-letters", "export", tmp_path / "wal", "-o", tmp_path / "out.jsonl")
    assert (looked.exit_code, written.exit_code) == (1, 1)
    exported = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [(one["record_id"], one["context"]) for one in exported] == [(one, None) for one in letters]
    assert [one["context"] for one in json.loads(looked.stdout)] == [None] * len(letters)


@pytest.mark.parametrize("words", [("requeue",), ("requeue", "x/1/1", "--all"), ("purge", "x/1/1", "--yes")])
def test_a_letter_that_is_not_there_or_not_named_is_one_line(
    words: tuple[str, ...], letters: list[str], tmp_path: Path
) -> None:
    done = run("dead-letters", words[0], tmp_path / "wal", *words[1:])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert len(letters) == 2
