"""`aiorecover inspect`, run as a user runs it: on a directory that is in use, on a damaged one, and on none."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aiorecover import record
from aiorecover.cli.app import app
from aiorecover.delivery import refusal
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.moved import pack_moved
from aiorecover.wal.opening import open_directory

SLOT = 16 * 1024


def stored(wal_dir: Path, count: int = 100) -> Directory:
    directory = open_directory(Options(wal_dir, SLOT, 64 * SLOT, 0))
    for number in range(count):
        value = b"\x1b[31m" + b"[bold]v" * 50
        payload = record.encode(("orders", b"key %d" % number, value, 3, 1_700_000_000_000, [("h", b"\xff")], 1, None))
        directory.ring.append(payload, payload)
    return directory


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_a_directory_that_is_in_use_is_shown_with_its_owner_and_counts(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    done = run(tmp_path)
    assert done.exit_code == 0
    row = next(line for line in done.stdout.splitlines() if f"pid {os.getpid()}" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[3:6] == ["ring", "100", "0"]
    directory.close()
    assert " free " in run(tmp_path).stdout


def test_one_instance_may_be_named_and_everything_comes_as_json(tmp_path: Path) -> None:
    stored(tmp_path).close()
    (one,) = as_json(tmp_path / "0", "--records", 2)
    assert one == as_json(tmp_path, "--records", 2)[0]
    (ring,) = one["rings"]
    assert (ring["ring"], ring["waiting"], ring["settled"], ring["damaged"]) == ("ring", 100, 0, 0)
    assert ring["bytes_allocated"] == ring["slots"] * SLOT
    first, second = one["records"]
    assert second["id"] == f"{one['producer_id']}/1/2"
    assert (first["topic"], first["partition"], first["key"]) == ("orders", 3, "key 0")
    assert first["headers"] == [["h", "\\xff"]]


def test_records_are_printed_and_a_terminal_obeys_nothing_in_them(tmp_path: Path) -> None:
    stored(tmp_path).close()
    lines = [line for line in run(tmp_path, "--records", 3).stdout.splitlines() if "topic=orders" in line]
    assert len(lines) == 3
    assert "key=key 2" in lines[2]
    assert "value=\\x1b[31m[bold]v[bold]v" in lines[0]
    assert lines[0].endswith("…")


def test_a_payload_that_is_no_record_is_said_to_be_none(tmp_path: Path) -> None:
    directory = stored(tmp_path, 0)
    directory.ring.append(b"nonsense", None)
    directory.close()
    assert "undecodable" in as_json(tmp_path, "--records", 1)[0]["records"][0]
    assert "/1/1 undecodable: " in run(tmp_path, "--records", 1).stdout


def test_a_dead_letter_is_shown_with_why_it_is_one(tmp_path: Path) -> None:
    directory = stored(tmp_path, 0)
    payload = record.encode(("orders", b"key", b"value", None, 1_700_000_000_000, None, None, None))
    why = refusal.Refusal(error="InvalidTimestampError", message="too old", attempts=3, last_ms=5)
    letter = refusal.letter_of(payload, why, owed=False)
    directory.dead.append(pack_moved(1 << 40 | 7, 2, refusal.encode(letter)), None)
    directory.close()
    (shown,) = as_json(tmp_path, "--records", 5)[0]["records"]
    assert (shown["ring"], shown["topic"], shown["partition"], shown["key"]) == ("dead", "orders", 2, "key")
    assert shown["id"].endswith("/1/7")
    assert (shown["error"], shown["attempts"], shown["refused_ms"]) == ("InvalidTimestampError: too old", 3, 5)
    assert "error=InvalidTimestampError: too old" in run(tmp_path, "--records", 5).stdout


def test_damage_is_named_and_the_exit_status_says_so(tmp_path: Path) -> None:
    stored(tmp_path).close()
    with (tmp_path / "0" / "ring").open("r+b") as ring:
        ring.seek(3000)
        ring.write(bytes(64))
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "damaged ring=ring damaged_slots=0 epoch=1 sequences=" in done.stdout


def test_after_a_power_cut_it_says_that_settle_words_may_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path).files.close()
    assert "may be wrong" not in run(tmp_path).stdout
    monkeypatch.setattr("aiorecover.wal.storage.FileSystem.boot_id", lambda self: "the next boot")
    done = run(tmp_path)
    assert done.exit_code == 0
    assert "settle words up to epoch=1 sequence=" in done.stdout
    assert "may be wrong after a power cut ring=ring" in done.stdout


def test_an_instance_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    stored(tmp_path).close()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "ring").write_bytes(b"x" * 500)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "restore the files" in done.stdout
    assert [one["error"] is None for one in as_json(tmp_path)] == [True, False]


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_path_with_nothing_of_ours_is_refused(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / name)
    assert done.exit_code == 2
    assert f"path={tmp_path / name}" in done.stderr or str(tmp_path / name) in done.stderr
