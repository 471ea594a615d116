"""`aiorecover inspect`, run as a user runs it: on a directory that is in use, on a damaged one, and on none."""

import asyncio
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aiorecover import RecoverableProducer
from aiorecover.cli import inspection
from aiorecover.cli.app import app
from aiorecover.ring.writer import LANGUAGE
from aiorecover.testing import ApiKey, MockCluster

NOWHERE = "127.0.0.1:1"
VALUE = b"\x1b[31m" + b"[bold]v" * 50
INVALID_RECORD = 87  # Kafka's error code: refused for good
SEGMENT_AT = 4096  # of the first segment in a ring


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80"})


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


async def leave(wal_dir: Path, count: int, **options: Any) -> None:
    async with RecoverableProducer(wal_dir, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        for number in range(count):
            value = b"%d/" % number + VALUE
            headers = [("h", b"\xff")]
            await producer.publish(
                "orders", value, key=f"key {number}", timestamp_ms=1_700_000_000_000, headers=headers
            )


def test_what_waits_is_shown_by_lane_and_a_terminal_obeys_nothing_in_it(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 100, name="orders"))
    done = run(tmp_path, "--records", 3)
    assert done.exit_code == 0
    heading, producer, destination, total, titles, lane, *records = done.stdout.splitlines()
    assert heading == f"{tmp_path / '0'}: not in use"
    assert producer.endswith(", epoch 1, at_least_once")
    assert destination == "to no cluster reached yet, name orders"
    assert total.startswith("100 records wait, ")
    assert titles.split() == ["topic", "partition", "batches", "records", "size", "oldest"]
    assert lane.split()[:2] == ["orders", "unassigned"]
    assert lane.split()[3] == "100"
    assert [line.split()[-2:] for line in records[::3]] == [["key=key", f"{number}"] for number in range(3)]
    assert records[1].startswith("    value=0/\\x1b[31m[bold]v[bold]v")
    assert records[1].endswith("…")
    assert records[2] == "    h=\\xff"
    assert len(records) == 3 * 3


def test_one_instance_may_be_named_and_everything_comes_as_json(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 20, instance="here"))
    (one,) = as_json(tmp_path / "here", "--records", 2)
    assert one["records"] == as_json(tmp_path, "--records", 2)[0]["records"]
    assert (one["locked"], one["pid"], one["error"], one["unreadable"], one["waiting"]) == (False, None, None, 0, 20)
    (lane,) = one["lanes"]
    assert (lane["topic"], lane["partition"], lane["records"]) == ("orders", "unassigned", 20)
    assert 0 <= lane["oldest_age_seconds"] < 60
    assert one["bytes_allocated"] < 1 << 20
    first, second = one["records"]
    assert second["id"] == f"{one['producer_id']}/1/{int(first['id'].rpartition('/')[2]) + 1}"
    assert (first["key"], first["timestamp_ms"]) == ("key 0", 1_700_000_000_000)
    assert first["value"] == "0/" + VALUE.decode()  # whole, and as it is
    assert first["headers"] == [{"name": "h", "value_base64": "/w=="}]


@pytest.mark.asyncio
async def test_a_directory_in_use_is_read_without_harm_and_shows_owner_cluster_and_dead_letters(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.partitions_for("orders")
            cluster.push_errors(ApiKey.PRODUCE, INVALID_RECORD)
            await producer.publish("orders", b"refused", partition=1)
            await producer.flush(timeout_ms=20_000)
            looking = asyncio.create_task(asyncio.to_thread(_look_often, tmp_path))
            published = 0
            while not looking.done():
                await producer.publish("orders", b"%d" % published, partition=published % 2)
                published += 1
            found = await looking
            await producer.flush(timeout_ms=20_000)
            assert producer.statistics().delivered == published > 500
            shown = await asyncio.to_thread(as_json, tmp_path, "--records", 5)
    assert not any(inspection.unreadable(one) for one in found)
    assert (shown[0]["locked"], shown[0]["pid"]) == (True, os.getpid())
    assert shown[0]["destination"]["cluster_id"]
    assert (shown[0]["waiting"], shown[0]["dead_letters"]) == (0, 1)
    (letter,) = shown[0]["records"]
    assert (letter["topic"], letter["partition"], letter["value"]) == ("orders", 1, "refused")
    assert "refuses the record" in letter["dead_letter"]


def _look_often(path: Path) -> list[Any]:
    return [inspection.inspect(path, 5) for _ in range(10)]


def test_damage_is_told_and_hides_no_other_instance(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 100, instance="a"))
    asyncio.run(leave(tmp_path, 100, instance="b"))
    asyncio.run(leave(tmp_path, 100, instance="c"))
    with (tmp_path / "a" / "ring").open("r+b") as ring:
        ring.seek(SEGMENT_AT + 200)
        ring.write(b"\xee" * 8)
    (tmp_path / "b" / "checkpoint").write_bytes(b"\xee" * 100)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "unreadable=1" in done.stdout
    assert "the checkpoint is damaged" in done.stdout
    assert [one.get("waiting") for one in as_json(tmp_path)] == [0, None, 100]


def test_a_directory_of_the_first_version_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    head = b"\x89AIOCHK\n" + (1).to_bytes(2, "little")
    for name, content in (("lock", b""), ("ring", bytes(4096)), ("checkpoint", head.ljust(8192, b"\0"))):
        (tmp_path / "0" / name).write_bytes(content)
    done = run(tmp_path)
    assert done.exit_code == 1
    _, line = done.stdout.splitlines()
    assert line.startswith("aiorecover 0.1 wrote this directory: drain it with aiorecover 0.1")


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "nothing of aiorecover is here"), ("absent", "there is no such"), ("file", "this is a file")],
)
def test_a_path_with_nothing_of_ours_is_one_clear_line(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "another").mkdir()
    done = run(tmp_path / name)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(says)


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    said = f"aiorecover {importlib.metadata.version('aiorecover')} (writer in {LANGUAGE})\n"
    assert (done.exit_code, done.stdout) == (0, said)
