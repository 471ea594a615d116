"""`aiorecover inspect`, run as a user runs it: on a directory that is in use, on a damaged one, and on none."""

import asyncio
import importlib.metadata
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from aiorecover import RecoverableProducer
from aiorecover.cli import inspection
from aiorecover.cli.app import app
from tests.left import NOWHERE, SLOT, leave

VALUE = b"\x1b[31m" + b"[bold]v" * 50


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80"})


def cells_of(done: Result, ring: str = "ring") -> list[str]:
    """The line of a ring in the table."""
    _, *rows = (line.split() for line in done.stdout.splitlines() if line.startswith("  "))
    return next(cells for cells in rows if cells[0] == ring)


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_a_directory_that_is_in_use_is_shown_with_its_owner_and_counts(tmp_path: Path) -> None:

    async def in_use() -> tuple[Result, str]:
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            for number in range(100):
                await producer.publish("orders", b"%d" % number)
            return await asyncio.to_thread(run, tmp_path), producer.producer_id

    done, producer_id = asyncio.run(in_use())
    assert done.exit_code == 0
    heading, *_ = done.stdout.splitlines()
    assert heading == f"{tmp_path / '0'}: in use by pid {os.getpid()}, producer {producer_id}"
    assert cells_of(done)[:4] == ["ring", "100", "0", "0"]
    assert f"{tmp_path / '0'}: not in use" in run(tmp_path).stdout


def test_where_the_records_go_and_which_is_the_oldest_is_shown(tmp_path: Path) -> None:
    producer_id = leave(tmp_path, 3, name="orders")
    _, destination, oldest, *_ = run(tmp_path).stdout.splitlines()
    assert destination == f"name orders, no kafka cluster reached yet, looked for one at {NOWHERE}"
    assert oldest == f"the oldest record that waits: {producer_id}/1/1"
    (shown,) = as_json(tmp_path)
    assert (shown["destination"]["name"], shown["destination"]["cluster_id"]) == ("orders", None)


def test_a_terminal_of_80_columns_holds_every_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    counts = {
        "waiting": 123_456_789,
        "settled": 234_567_890,
        "missing": 345_678,
        "slots": 1280,
        "damaged_slots": 10,
        "recycled": 0,
    }
    sizes = {"bytes_used": 20 << 30, "bytes_allocated": 1023 << 20}
    ring = {"ring": "retry", **counts, **sizes, "suspect_up_to": 0, "damage": []}
    who = {"path": "wal/0", "state": "free", "pid": None}
    one = {**who, "error": None, "begun": True, "checkpoint_lost": False, "rings": [ring], "records": []}
    console = Console(record=True, file=io.StringIO())
    inspection.show(console, [one])
    heading, titles, row, wrong = console.export_text().splitlines()
    assert heading == "wal/0: not in use"
    assert titles.split() == ["ring", "waiting", "settled", "missing", "slots", "used", "on", "disk"]
    shown = "retry 123,456,789 234,567,890 345,678 1,280 20.0 GiB 1023.0 MiB"
    assert " ".join(row.split()) == shown
    assert max(len(titles), len(row)) <= 80
    assert "damaged_slots=10" in wrong


def test_an_instance_without_a_record_yet_has_its_line(tmp_path: Path) -> None:
    leave(tmp_path, 0)
    assert cells_of(run(tmp_path))[:4] == ["ring", "0", "0", "0"]


def test_one_instance_may_be_named_and_everything_comes_as_json(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE, partition=3)
    (one,) = as_json(tmp_path / "0", "--records", 2)
    assert one == as_json(tmp_path, "--records", 2)[0]
    (ring,) = one["rings"]
    assert (ring["ring"], ring["waiting"], ring["settled"], ring["missing"]) == ("ring", 100, 0, 0)
    assert ring["bytes_allocated"] == ring["slots"] * SLOT
    first, second = one["records"]
    assert second["id"] == f"{one['producer_id']}/1/2"
    assert (first["topic"], first["partition"], first["key"]) == ("orders", 3, "key 1")
    assert first["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert first["value"] == "1/\x1b[31m" + "[bold]v" * 50  # whole, and as it is


def test_records_are_printed_and_a_terminal_obeys_nothing_in_them(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE, partition=3)
    lines = run(tmp_path, "--records", 3).stdout.splitlines()
    records = [line for line in lines if line.startswith("ring: ")]
    values = [line for line in lines if line.startswith("    value=")]
    assert len(records) == len(values) == 3
    assert records[2].endswith("/1/3 topic=orders partition=3 key=key 3 timestamp_ms=1700000000000")
    assert values[0].startswith("    value=1/\\x1b[31m[bold]v[bold]v")
    assert values[0].endswith("…")


def test_damage_is_named_and_the_exit_status_says_so(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE, partition=3)
    with (tmp_path / "0" / "ring").open("r+b") as ring:
        ring.seek(3000)
        ring.write(bytes(64))
    done = run(tmp_path)
    assert done.exit_code == 1
    line = next(line for line in done.stdout.splitlines() if "took away" in line)
    assert line.startswith("ring: damage took away records; the others are delivered epoch=1 sequences=")
    assert cells_of(done)[3] == "2"
    assert "damaged_slots" not in done.stdout


def test_a_slot_in_which_nothing_can_be_read_is_told_apart_from_records_that_are_missing(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE, partition=3)
    with (tmp_path / "0" / "ring").open("r+b") as ring:
        for header in (SLOT, 2 * SLOT - 512):  # it stands at both ends of the second slot
            ring.seek(header)
            ring.write(b"x" * 512)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "ring: of some slots nothing can be read; they are left as they are" in done.stdout
    assert "damaged_slots=1\n" in done.stdout


def test_an_instance_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE, partition=3)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "ring").write_bytes(b"x" * 500)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "restore the files" in done.stdout
    assert done.stdout.count("waiting") == 1  # no table without rings
    assert [one["error"] is None for one in as_json(tmp_path)] == [True, False]


@pytest.mark.parametrize(
    "names", [["lock"], ["lock", "checkpoint"], ["lock", "checkpoint", "ring", "retry"], ["lock", "retry", ".hidden"]]
)
@pytest.mark.parametrize("pid", ["", f"{1 << 22:<20}\n"])
def test_what_a_first_start_leaves_that_dies_while_it_makes_its_files_is_shown_as_not_begun(
    tmp_path: Path, names: list[str], pid: str
) -> None:
    (tmp_path / "orders").mkdir()
    for name in names:
        (tmp_path / "orders" / name).touch()
    (tmp_path / "orders" / "lock").write_text(pid)
    for path in (tmp_path, tmp_path / "orders"):
        done = run(path)
        heading, told, *_ = done.stdout.splitlines()
        assert (done.exit_code, heading) == (0, f"{tmp_path / 'orders'}: not in use")
        assert told == "not begun: nothing is in it, no start has got as far as a checkpoint"
        assert cells_of(done)[1:4] == ["0", "0", "0"]
        (one,) = as_json(path)
        assert (one["begun"], one["error"], one["producer_id"]) == (False, None, None)
    leave(tmp_path, 0, instance="orders")
    assert "not begun" not in run(tmp_path).stdout
    assert as_json(tmp_path)[0]["begun"] is True


@pytest.mark.parametrize("other", ["somebody's", "retry", "damaged"])
def test_a_lock_beside_something_else_is_not_taken_for_one_that_has_hardly_begun(tmp_path: Path, other: str) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "lock").touch()
    if other == "damaged":
        (tmp_path / "0" / other).mkdir()
    else:
        (tmp_path / "0" / other).write_bytes(b"x")
    assert run(tmp_path).exit_code == 1
    assert "no instance directory: " in as_json(tmp_path)[0]["error"]
    assert run(tmp_path / "0").exit_code == 2


def test_a_lock_of_another_program_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("held by somebody\n")
    assert run(tmp_path).exit_code == 2
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()  # an instance of that name
    assert run(tmp_path).exit_code == 2


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_path_with_nothing_of_ours_is_refused(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / name)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f": name a wal_dir or an instance in it path={tmp_path / name}\n" in done.stderr


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path / "file")
    assert done.exit_code == 2
    assert "this is a file: " in done.stderr
    assert "there is no such directory: " in run(tmp_path / "absent").stderr


def test_what_a_terminal_shows_tells_a_backslash_from_an_escape() -> None:
    shown = inspection._text(b"\x1b \\x1b \xff \xc3\xbf \xc2\x85 \n")
    assert shown == "\\x1b \\\\x1b \\xff \xff \\u0085 \\n"


def test_a_ring_that_is_gone_is_told_though_no_checkpoint_knows_of_its_records(tmp_path: Path) -> None:
    leave(tmp_path, 100, value=VALUE)
    assert run(tmp_path).exit_code == 0
    (tmp_path / "0" / "ring").unlink()
    assert run(tmp_path).exit_code == 1
    assert as_json(tmp_path)[0]["error"].startswith("the file ring is gone, and nothing tells what was stored there")


def test_a_lost_checkpoint_is_said_to_be_lost(tmp_path: Path) -> None:
    leave(tmp_path, 100)
    (tmp_path / "0" / "checkpoint").unlink()
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "the checkpoint cannot be read, so nothing tells what was missing before and behind" in done.stdout
    assert "power cut" not in done.stdout


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"aiorecover {importlib.metadata.version('aiorecover')}\n")
