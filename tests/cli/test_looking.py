"""The commands that only look, run as a user runs them: on a directory in use, on a damaged one, and on none."""

import asyncio
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aiorecover import RecoverableProducer
from aiorecover.cli import directory_commands, inspection
from aiorecover.cli.app import app
from aiorecover.cli.inspection import verified
from aiorecover.cli.top import Watch
from aiorecover.ring.writer import LANGUAGE
from aiorecover.testing import ApiKey, MockCluster
from tests.support.eventually import until
from tests.support.published import NOWHERE

VALUE = b"\x1b[31m" + b"[bold]v" * 50
INVALID_RECORD = 87  # Kafka's error code: refused for good
SEGMENT_AT = 4096  # of the first segment in a ring


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def as_json(*arguments: object) -> Any:
    """Return the lines of JSON that a command prints; one of them alone as it is."""
    found = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
    return found[0] if len(found) == 1 else found


async def leave(wal_dir: Path, count: int, **options: Any) -> None:
    async with RecoverableProducer(wal_dir, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        for number in range(count):
            value = b"%d/" % number + VALUE
            headers = [("h", b"\xff")]
            await producer.publish(
                "orders", value, key=f"key {number}", timestamp_ms=1_700_000_000_000, headers=headers
            )


def test_waiting_records_are_shown_by_lane(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 100, name="orders"))
    done = run("status", tmp_path)
    assert done.exit_code == 0
    heading, producer, destination, total, titles, lane = done.stdout.splitlines()
    assert heading == f"{tmp_path / '0'}: not in use"
    assert producer.endswith(", epoch 1, at_least_once")
    assert destination == "to no cluster reached yet, name orders"
    assert total.startswith("waiting records: 100, on disk: ")
    assert titles.split() == ["topic", "partition", "batches", "records", "size", "oldest"]
    assert lane.split()[:2] == ["orders", "unassigned"]
    assert lane.split()[3] == "100"


def test_a_long_topic_loses_its_middle_where_80_columns_are_and_no_number_a_digit(tmp_path: Path) -> None:
    topic = "shop.orders." + "x" * 100 + ".v17"

    async def leave_long() -> None:
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            for _ in range(12_345):
                await producer.publish(topic, b"some")

    asyncio.run(leave_long())
    for command in (["status"], ["top", "--looks", "1"]):
        shown = run(*command, tmp_path).stdout.splitlines()
        (line,) = [line for line in shown if "unassigned" in line]
        assert re.match(r" *shop\.orders\.x+…x+\.v17  unassigned ", line)
        assert " 12,345 " in line
        assert len(line) <= 80  # a path stays whole
        assert topic in CliRunner().invoke(app, [*command, str(tmp_path)], env={"COLUMNS": None}).stdout


def test_records_are_shown_and_a_terminal_obeys_nothing_in_them(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 100))
    done = run("cat", tmp_path, "--limit", 3)
    assert done.exit_code == 0
    records = done.stdout.splitlines()
    assert [line.split()[-2:] for line in records[::3]] == [["key=key", f"{number}"] for number in range(3)]
    assert records[1].startswith("    value=0/\\x1b[31m[bold]v[bold]v")
    assert records[1].endswith("…")
    assert records[2] == "    h=\\xff"
    assert len(records) == 3 * 3
    assert len(run("cat", tmp_path, "--topic", "orders").stdout.splitlines()) == 3 * 100
    nothing = run("cat", tmp_path, "--topic", "nope")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no record waits for topic=nope\n")


def test_a_null_is_not_a_text_that_looks_like_it_and_a_header_s_name_is_not_obeyed(tmp_path: Path) -> None:
    async def leave_nulls() -> None:
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            await producer.publish("orders", None, key="None")
            await producer.publish("orders", b"None", headers=[("\x1b[31m", None)])

    asyncio.run(leave_nulls())
    first, second = (run("cat", tmp_path).stdout.splitlines()[at : at + 3] for at in (0, 2))
    assert (first[0].split()[-1], first[1]) == ("key=None", "    no value")
    assert (" ".join(second[0].split()[-2:]), *second[1:]) == ("no key", "    value=None", "    no \\x1b[31m")
    assert [(one["key"], one["value"]) for one in as_json("cat", tmp_path)] == [("None", None), (None, "None")]


def test_one_instance_may_be_named_and_everything_comes_as_json(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 20, instance="here"))
    (one,) = as_json("status", tmp_path / "here")
    assert as_json("cat", tmp_path / "here") == as_json("cat", tmp_path)
    assert (one["locked"], one["pid"], one["error"], one["unreadable"], one["waiting"]) == (False, None, None, 0, 20)
    (lane,) = one["lanes"]
    assert (lane["topic"], lane["partition"], lane["records"]) == ("orders", "unassigned", 20)
    assert 0 <= lane["oldest_age_seconds"] < 60
    assert one["bytes_allocated"] < 1 << 20
    first, second = as_json("cat", tmp_path, "--limit", 2)
    assert second["id"] == f"{one['producer_id']}/1/{int(first['id'].rpartition('/')[2]) + 1}"
    assert (first["key"], first["timestamp_ms"]) == ("key 0", 1_700_000_000_000)
    assert first["value"] == "0/" + VALUE.decode()  # whole, and as it is
    assert first["headers"] == [{"name": "h", "value_base64": "/w=="}]


@pytest.mark.parametrize("words", ["status", "cat"])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(words: str, tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 10))
    gone, pipe = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "aiorecover", words, str(tmp_path)]
    done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_output_leaves_the_exit_status(more: list[str], tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 10))
    command = [sys.executable, "-m", "aiorecover", "status", str(tmp_path), *more]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_export_has_each_record_and_leaves_it_where_it_is(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path / "wal", 50))
    assert run("export", tmp_path / "wal", "--output", tmp_path / "records.jsonl").exit_code == 0
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == as_json("cat", tmp_path / "wal")
    assert len(lines) == 50
    assert run("export", tmp_path / "wal").stdout.splitlines() == lines
    again = run("export", tmp_path / "wal", "-o", tmp_path / "records.jsonl")
    assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
    assert again.stderr == f"the file is there already: name a new one path={tmp_path / 'records.jsonl'}\n"
    nowhere = run("export", tmp_path / "wal", "-o", tmp_path / "no" / "records.jsonl")
    assert nowhere.stderr == f"there is no such directory: make it path={tmp_path / 'no'}\n"


async def move_to_partitions(wal_dir: Path) -> None:
    """Let the topic be known, but not take anything."""
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        cluster.set_leader("orders", 0, None)
        options: Any = {"bootstrap_servers": cluster.bootstrap_servers, "stop_timeout_ms": 0}
        async with RecoverableProducer(wal_dir, **options) as producer:
            await producer.publish("orders", b"newest")
            await until(lambda: [lane["partition"] for lane in inspection.inspect(wal_dir)[0]["lanes"]] == [0])


def test_records_are_followed_into_the_next_process_and_into_their_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens = iter([leave(tmp_path, 2), leave(tmp_path, 3), move_to_partitions(tmp_path)])

    def sleep(_: float) -> None:
        life = next(happens, None)
        if life is None:
            raise KeyboardInterrupt
        asyncio.run(life)

    asyncio.run(leave(tmp_path, 1))
    monkeypatch.setattr(directory_commands, "sleep", sleep)
    done = run("cat", tmp_path, "--follow", "--json")
    assert done.exit_code == 130
    ids = [json.loads(line)["id"].partition("/")[2] for line in done.stdout.splitlines()]
    assert ids == ["1/1", "2/1", "2/2", "3/1", "3/2", "3/3", "4/1"]


def test_all_that_waits_is_verified_and_each_damaged_batch_is_named(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 1000))
    (whole,) = as_json("verify", tmp_path)
    assert (whole["records"], whole["damaged"], whole["error"]) == (1000, [], None)
    assert run("verify", tmp_path).exit_code == 0
    with (tmp_path / "0" / "ring").open("r+b") as ring:
        ring.seek(SEGMENT_AT + 512 + 300)  # in the records of the first batch
        ring.write(b"\xee")
    done = run("verify", tmp_path)
    assert done.exit_code == 1
    name = as_json("status", tmp_path)[0]["producer_id"]
    assert re.search(rf"damaged: first={name}/1/1 last={name}/1/\d+ topic=orders partition=unassigned", done.stdout)
    (found,) = as_json("verify", tmp_path)
    assert len(found["damaged"]) == 1
    assert found["records"] < 1000
    for command in (["cat"], ["cat", "--limit", 1], ["export"], ["export", "-o", tmp_path / "records.jsonl"]):
        shown = run(command[0], tmp_path, *command[1:])
        assert (shown.exit_code, shown.stderr.count("name it count=1\n")) == (1, 1)


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
            shown = await asyncio.to_thread(as_json, "status", tmp_path)
            letter = await asyncio.to_thread(_exported, tmp_path)
    assert not any(inspection.unreadable(one) for one, _ in found)
    assert all(whole["damaged"] == [] for _, whole in found)
    assert (shown[0]["locked"], shown[0]["pid"]) == (True, os.getpid())
    assert shown[0]["destination"]["cluster_id"]
    assert (shown[0]["waiting"], shown[0]["dead_letters"]) == (0, 1)
    assert (letter["topic"], letter["partition"], letter["value"]) == ("orders", 1, "refused")
    assert "refuses the record" in letter["dead_letter"]


def _exported(path: Path) -> Any:
    return json.loads(run("export", path).stdout)


def _look_often(path: Path) -> list[Any]:
    return [(inspection.inspect(path), verified(path / "0")) for _ in range(10)]


def test_damage_is_told_and_hides_no_other_instance(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 100, instance="a"))
    asyncio.run(leave(tmp_path, 100, instance="b"))
    asyncio.run(leave(tmp_path, 100, instance="c"))
    with (tmp_path / "a" / "ring").open("r+b") as ring:
        ring.seek(SEGMENT_AT + 200)
        ring.write(b"\xee" * 8)
    (tmp_path / "b" / "checkpoint").write_bytes(b"\xee" * 100)
    done = run("status", tmp_path)
    assert done.exit_code == 1
    assert "unreadable=1" in done.stdout
    assert "the checkpoint is damaged" in done.stdout
    shown = run("cat", tmp_path)
    assert (shown.exit_code, len(shown.stdout.splitlines()), shown.stderr.count("name it count=1\n")) == (1, 600, 2)
    for command in (["cat"], ["export"], ["dead-letters", "list"]):
        shown = run(*command, tmp_path / "b")
        assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert [one.get("waiting") for one in as_json("status", tmp_path)] == [0, None, 100]


def test_a_directory_of_the_first_version_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    head = b"\x89AIOCHK\n" + (1).to_bytes(2, "little")
    for name, content in (("lock", b""), ("ring", bytes(4096)), ("checkpoint", head.ljust(8192, b"\0"))):
        (tmp_path / "0" / name).write_bytes(content)
    done = run("status", tmp_path)
    assert done.exit_code == 1
    _, line = done.stdout.splitlines()
    assert line.startswith("aiorecover 0.1 wrote this directory: drain it with aiorecover 0.1")
    shown = run("cat", tmp_path)
    assert (shown.exit_code, shown.stderr) == (1, f"{line}\n")


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    said = f"aiorecover {importlib.metadata.version('aiorecover')} (writer in {LANGUAGE})\n"
    assert (done.exit_code, done.stdout) == (0, said)


@pytest.mark.asyncio
async def test_the_live_screen_has_rates_what_waits_and_the_newest_dead_letter(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.partitions_for("orders")
            cluster.push_errors(ApiKey.PRODUCE, INVALID_RECORD)
            await producer.publish("orders", b"refused", partition=1)
            await producer.flush(timeout_ms=20_000)
            watch = Watch(tmp_path)
            looks = [watch.look()]

            def rate(what: str) -> float:
                looks.append(watch.look())
                return looks[-1][f"{what}_per_second"] or 0

            async def publish_until(true: Callable[[], bool]) -> None:
                while not true():
                    await producer.publish("orders", b"some", partition=0)
                    await asyncio.sleep(0.02)

            await publish_until(lambda: rate("delivered") > 0)
            assert rate("accepted") > 0
            await producer.flush(timeout_ms=20_000)
            cluster.broker_down()
            await publish_until(lambda: rate("delivered") == 0)
            looks.clear()
            await publish_until(lambda: rate("accepted") > 0 and len(looks) > 20)
            assert all(look["delivered_per_second"] == 0 for look in looks)
            waits = looks[-1]
            shown = await asyncio.to_thread(run, "top", tmp_path, "--looks", 2, "--every", 0.1)
            cluster.broker_up()
            await producer.flush(timeout_ms=20_000)
    assert waits["waiting"] == waits["history"][-1] > 20
    assert "refuses the record" in waits["newest_dead_letters"][0]
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.match(r"\d+ wait +accepted …", line) for line in lines)
    assert any(line.split()[:2] == ["orders", "0"] for line in lines)
    assert any(line.startswith(f"{producer.producer_id}/1/1 orders: ") for line in lines)


@pytest.mark.asyncio
async def test_the_cause_that_holds_a_partition_up_is_shown_until_it_gets_through(tmp_path: Path) -> None:
    def troubles() -> list[str]:
        return [line for one in inspection.inspect(tmp_path) for line in inspection.troubles(one)]

    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.partitions_for("orders")
            cluster.set_leader("orders", 1, None)
            await producer.publish("orders", b"waits", partition=1)
            await until(lambda: any(line.endswith("lane=orders/1") for line in troubles()))
            (said,) = troubles()
            for command in ("status", "top"):
                shown = await asyncio.to_thread(run, command, tmp_path, *(["--looks", 1] if command == "top" else []))
                assert said in shown.stdout.replace("\n", "")
            cluster.broker_down()
            await until(lambda: any(line.startswith("kafka is not reached") for line in troubles()))
            cluster.broker_up()
            cluster.set_leader("orders", 1, 1)
            await producer.flush(timeout_ms=20_000)
            await until(lambda: troubles() == [])
    assert troubles() == []  # a directory without an owner has no trouble that is known


def test_looks_come_as_lines_of_json(tmp_path: Path) -> None:
    asyncio.run(leave(tmp_path, 7))
    assert [seen["waiting"] for seen in as_json("top", tmp_path, "--looks", 2, "--every", 0.1)] == [7, 7]
