"""`aiorecover inspect`, run as a user runs it: on a directory that is in use, on a damaged one, and on none."""

import contextlib
import importlib.metadata
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from aiorecover import record
from aiorecover.cli import inspection
from aiorecover.cli.app import app
from aiorecover.delivery import refusal
from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, Destination, Transactional
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.losses import Damage
from aiorecover.wal.moved import MOVED_BYTES, pack_moved
from aiorecover.wal.moving import Rewrite
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import ForeignFile
from tests.wal.rig import read

SLOT = 16 * 1024


def stored(wal_dir: Path, count: int = 100) -> Directory:
    directory = open_directory(Options(wal_dir, SLOT, 64 * SLOT, 0))
    for number in range(count):
        value = b"\x1b[31m" + b"[bold]v" * 50
        payload = record.encode(("orders", b"key %d" % number, value, 3, 1_700_000_000_000, [("h", b"\xff")], 1, None))
        directory.ring.append(payload, payload)
    return directory


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80"})


def cells_of(done: Result, ring: str = "ring") -> list[str]:
    """The line of a ring in the table."""
    _, *rows = (line.split() for line in done.stdout.splitlines() if line.startswith("  "))
    return next(cells for cells in rows if cells[0] == ring)


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_a_directory_that_is_in_use_is_shown_with_its_owner_and_counts(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    done = run(tmp_path)
    assert done.exit_code == 0
    heading, *_ = done.stdout.splitlines()
    assert heading == f"{tmp_path / '0'}: in use by pid {os.getpid()}, producer {directory.producer_id}"
    assert cells_of(done)[:4] == ["ring", "100", "0", "0"]
    directory.close()
    assert f"{tmp_path / '0'}: not in use" in run(tmp_path).stdout


def test_where_the_records_go_and_how_far_they_have_got_is_shown(tmp_path: Path) -> None:
    options = Options(tmp_path, SLOT, 64 * SLOT, 0, name="orders", servers=("kafka:9092", "other:9092"))
    directory = open_directory(options)
    places = [directory.ring.append(b"payload", b"payload")[0] for _ in range(3)]
    _, destination, oldest, *_ = run(tmp_path).stdout.splitlines()
    assert destination == "name orders, no kafka cluster reached yet, looked for one at kafka:9092, other:9092"
    assert oldest == f"the oldest record that waits: {directory.producer_id}/1/1"
    directory.ring.settle(directory.ring.live[0], places[:2])
    known = Destination(cluster_id="abc", name="orders")
    directory.write_checkpoint(directory.next_checkpoint(destination=known))
    _, destination, oldest, *_ = run(tmp_path).stdout.splitlines()
    assert destination == "name orders, kafka cluster abc"
    assert oldest == f"the oldest record that waits: {directory.producer_id}/1/3"
    (shown,) = as_json(tmp_path)
    where = {"cluster_id": "abc", "name": "orders", "servers": [], "cluster_number": 0, "expiration_ms": None}
    assert shown["destination"] == {**where, "guarantee": "at_least_once"}
    directory.ring.settle(directory.ring.live[0], places[2:])
    assert "oldest record" not in run(tmp_path).stdout
    directory.close()


def test_of_a_directory_whose_records_go_in_transactions_that_is_shown(tmp_path: Path) -> None:
    directory = open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0))
    known = Destination(cluster_id="abc", transactional=Transactional(line=(("abc/1", 7),), number=2))
    directory.write_checkpoint(directory.next_checkpoint(destination=known))
    directory.close()
    assert run(tmp_path).stdout.splitlines()[1] == "kafka cluster abc, exactly once"
    (shown,) = as_json(tmp_path)
    where: dict[str, object] = {
        "cluster_id": "abc",
        "name": None,
        "servers": [],
        "cluster_number": 0,
        "expiration_ms": None,
    }
    assert shown["destination"] == {**where, "guarantee": "exactly_once"}


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
    stored(tmp_path, 0).close()
    assert cells_of(run(tmp_path)) == ["ring", "0", "0", "0", "0", "0", "bytes", "0", "bytes"]


def test_one_instance_may_be_named_and_everything_comes_as_json(tmp_path: Path) -> None:
    stored(tmp_path).close()
    (one,) = as_json(tmp_path / "0", "--records", 2)
    assert one == as_json(tmp_path, "--records", 2)[0]
    (ring,) = one["rings"]
    assert (ring["ring"], ring["waiting"], ring["settled"], ring["missing"]) == ("ring", 100, 0, 0)
    assert ring["bytes_allocated"] == ring["slots"] * SLOT
    first, second = one["records"]
    assert second["id"] == f"{one['producer_id']}/1/2"
    assert (first["topic"], first["partition"], first["key"]) == ("orders", 3, "key 0")
    assert first["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert first["value"] == "\x1b[31m" + "[bold]v" * 50  # whole, and as it is


def test_records_are_printed_and_a_terminal_obeys_nothing_in_them(tmp_path: Path) -> None:
    stored(tmp_path).close()
    lines = run(tmp_path, "--records", 3).stdout.splitlines()
    records = [line for line in lines if line.startswith("ring: ")]
    values = [line for line in lines if line.startswith("    value=")]
    assert len(records) == len(values) == 3
    assert records[2].endswith("/1/3 topic=orders partition=3 key=key 2 timestamp_ms=1700000000000")
    assert values[0].startswith("    value=\\x1b[31m[bold]v[bold]v")
    assert values[0].endswith("…")


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
    directory.dead.append(pack_moved(1 << 40 | 7, 5, 2, refusal.encode(letter)), None)
    directory.close()
    (shown,) = as_json(tmp_path, "--records", 5)[0]["records"]
    assert (shown["ring"], shown["topic"], shown["partition"], shown["key"]) == ("dead", "orders", 2, "key")
    accepted = fmt.producer_text(fmt.with_nonce(directory.checkpoint.producer_id, 5))  # by another opening
    assert shown["id"] == f"{accepted}/1/7"
    assert (shown["error"], shown["attempts"], shown["refused_ms"]) == ("InvalidTimestampError: too old", 3, 5)
    lines = run(tmp_path, "--records", 5).stdout.splitlines()
    assert lines[-3].startswith(f"dead: {shown['id']} topic=orders ")
    assert lines[-2:] == ["    value=value", "    error=InvalidTimestampError: too old"]


def test_damage_is_named_and_the_exit_status_says_so(tmp_path: Path) -> None:
    stored(tmp_path).close()
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
    stored(tmp_path).close()
    with (tmp_path / "0" / "ring").open("r+b") as ring:
        for header in (SLOT, 2 * SLOT - 512):  # it stands at both ends of the second slot
            ring.seek(header)
            ring.write(b"x" * 512)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "ring: of some slots nothing can be read; they are left as they are" in done.stdout
    assert "damaged_slots=1\n" in done.stdout


def test_after_a_power_cut_it_says_that_settle_words_may_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path).files.close()
    assert "power cut" not in run(tmp_path).stdout
    monkeypatch.setattr("aiorecover.wal.storage.FileSystem.boot_id", lambda self: "the next boot")
    done = run(tmp_path)
    assert done.exit_code == 0
    assert "ring: after a power cut, a failed flush or damage to the checkpoint, settled records may" in done.stdout
    assert done.stdout.endswith("the next start finds out up_to_epoch=1\n")


def test_an_instance_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    stored(tmp_path).close()
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
    open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0, instance="orders")).close()
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


def flushed(wal_dir: Path) -> Path:
    """An instance with 100 records in its ring and 3 in the retry ring, left by a process that died."""
    directory = stored(wal_dir)
    for number in range(1, 4):
        directory.retry.append(pack_moved(number, 0, 0, b"copy"), None)
    directory.write_checkpoint(directory.next_checkpoint())
    directory.files.close()
    return directory.path


def test_a_ring_that_is_gone_is_told_though_no_checkpoint_knows_of_its_records(tmp_path: Path) -> None:
    stored(tmp_path).files.close()
    assert run(tmp_path).exit_code == 0
    (tmp_path / "0" / "ring").unlink()
    assert run(tmp_path).exit_code == 1
    assert as_json(tmp_path)[0]["error"].startswith("the file ring is gone, and nothing tells what was stored there")


@pytest.mark.parametrize("ring", ["ring", "retry"])
@pytest.mark.parametrize("harm", ["removed", "emptied", "cut in the middle"])
def test_what_is_lost_with_the_end_of_a_ring_or_all_of_it_is_named_as_the_next_start_names_it(
    tmp_path: Path, ring: str, harm: str
) -> None:
    path = flushed(tmp_path)
    if harm == "removed":
        (path / ring).unlink()
    else:
        os.truncate(path / ring, 0 if harm == "emptied" else 200)
    done = run(tmp_path)
    shown = {one["ring"]: one for one in as_json(tmp_path)[0]["rings"]}[ring]
    with contextlib.closing(open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0))) as directory:
        opened = {"ring": directory.ring, "retry": directory.retry}[ring]
        reader = Reader(opened, bytes)
        while reader.take(100) is not None or reader.moved:
            pass
        reader.close()
        assert opened.damage
        assert [one["slot"] for one in shown["damage"]] == [one.slot for one in opened.damage]
        if ring == "ring":
            assert [Damage(**damage) for damage in shown["damage"]] == opened.damage
    assert shown["missing"] == opened.losses.missing > 0
    assert done.exit_code == 1
    assert f"{ring}: damage took away records" in done.stdout


@pytest.mark.parametrize(
    ("ring", "told"),
    [
        ("retry", {"records_at_most": 2, "after": "1/10", "before": "1/40"}),
        ("dead", {"letters_at_most": 2}),
    ],
)
def test_of_what_is_missing_in_retry_and_dead_no_numbers_are_shown_that_are_none_of_records(
    tmp_path: Path, ring: str, told: dict[str, Any]
) -> None:
    directory = stored(tmp_path)
    there = {"retry": directory.retry, "dead": directory.dead}[ring]
    for number in (10, 20, 30, 40):
        there.append(pack_moved(fmt.position(1, number), 0, 0, b"copy"), None)
    directory.write_checkpoint(directory.next_checkpoint())
    directory.files.close()
    frame = fmt.frame_end(0, MOVED_BYTES + 4)
    with (directory.path / ring).open("r+b") as file:
        file.seek(fmt.FIRST_FRAME + frame)
        file.write(bytes(2 * frame))
    (about,) = (one for one in as_json(tmp_path)[0]["rings"] if one["ring"] == ring)
    assert about["damage"] == [{**told, "slot": 1, "file_offset": fmt.FIRST_FRAME + frame}]
    (line,) = (line for line in run(tmp_path).stdout.splitlines() if "took away" in line)
    shown = [*(f"{name}={value}" for name, value in told.items()), "slot=1", f"file_offset={fmt.FIRST_FRAME + frame}"]
    assert line.split()[-len(shown) :] == shown
    assert "sequences" not in line


def test_a_lost_checkpoint_is_said_to_be_lost(tmp_path: Path) -> None:
    path = flushed(tmp_path)
    (path / "checkpoint").unlink()
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "the checkpoint cannot be read, so nothing tells what was missing before and behind" in done.stdout
    assert "power cut" not in done.stdout


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("ring", ["ring", "retry"])
@pytest.mark.parametrize("harm", ["removed", "emptied", "zeroed"])
def test_one_damaged_copy_of_the_checkpoint_hides_no_ring_that_is_gone(
    tmp_path: Path, ring: str, harm: str, copy: int
) -> None:
    path = flushed(tmp_path)
    with (path / "checkpoint").open("r+b") as file:
        file.seek(copy * COPY_BYTES + 40)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    before = {one["ring"]: one for one in as_json(tmp_path)[0]["rings"]}[ring]["waiting"]
    size = (path / ring).stat().st_size
    (path / ring).unlink()
    if harm != "removed":
        (path / ring).write_bytes(bytes(size if harm == "zeroed" else 0))
    done = run(tmp_path)
    assert done.exit_code == 1
    shown = {one["ring"]: one for one in as_json(tmp_path)[0]["rings"]}[ring]
    assert (shown["waiting"], shown["missing"]) == (0, before)
    assert ("the file ring is gone" if (ring, harm) == ("ring", "removed") else f"rings={ring}") in done.stdout


@pytest.mark.parametrize("harm", ["removed", "emptied", "zeroed"])
def test_a_directory_without_checkpoint_and_ring_is_not_called_new(tmp_path: Path, harm: str) -> None:
    path = flushed(tmp_path)
    for name in ("checkpoint", "ring"):
        size = (path / name).stat().st_size
        (path / name).unlink()
        if harm != "removed":
            (path / name).write_bytes(bytes(size if harm == "zeroed" else 0))
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "put them back" in done.stdout or (harm == "removed" and "no instance directory" in done.stdout)
    with pytest.raises(WalCorruptError, match="put them back, or move the directory away and keep it"):
        open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0))


def test_a_start_that_would_be_refused_is_told_with_its_reason_beside_what_can_be_read(tmp_path: Path) -> None:
    path = flushed(tmp_path)
    for name in ("checkpoint", "retry"):
        (path / name).write_bytes(b"x" * (path / name).stat().st_size)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert cells_of(done)[:2] == ["ring", "100"]
    with pytest.raises(WalCorruptError) as refused:
        open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0))
    assert str(refused.value) in done.stdout.splitlines()
    assert str(refused.value).endswith(f"nothing was changed files=checkpoint,retry path={path}")
    for name in ("checkpoint", "retry"):  # as it says
        (path / name).rename(tmp_path.parent / f"{tmp_path.name}-{name}")
    with contextlib.closing(open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0))) as directory:
        reader = Reader(directory.ring, bytes)
        assert reader.take(1) is not None
        reader.close()


def rewriting_of(directory: Directory) -> Callable[[], None]:
    """Of 300 records in the retry ring each sixth waits; what is returned rewrites it, and uses its places again."""
    retry = directory.retry
    for number in range(1, 301):
        retry.append(pack_moved(number, 0, 0, b"copy" * 30), None)
    reader = Reader(retry, bytes)
    for slot, place, sequence, _ in read(reader):
        if sequence % 6:
            retry.settle(slot, [place])
    reader.close()
    directory.write_checkpoint(directory.next_checkpoint())
    directory.recycle(directory.checkpoint)

    def rewrite() -> None:
        rewriting = Rewrite(retry)
        directory.copies_from = rewriting.copies_from
        while not rewriting.step():
            pass
        directory.write_checkpoint(rewriting.captured(directory))
        rewriting.finish()
        directory.copies_from = None
        directory.recycle(directory.checkpoint)
        for _ in range(4):
            retry.go_on()

    return rewrite


@contextlib.contextmanager
def during_read_of_retry(moment: int, act: Callable[[], None]) -> Iterator[Iterator[int]]:
    """Just before others read the file for the so many-th time; gives the number of the next read."""
    numbers = itertools.count(1)
    read_into = ForeignFile.read_into

    def counted(file: ForeignFile, buffer: memoryview, offset: int) -> int:
        if file.path.name == "retry" and next(numbers) == moment:
            act()
        return read_into(file, buffer, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForeignFile, "read_into", counted)
        yield numbers


def while_rewritten(wal_dir: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What is shown of the retry ring, and the records, if it is rewritten at the first, the fourth, ... read of it."""
    for moment in itertools.count(1, 3):
        with contextlib.closing(stored(wal_dir / str(moment), 1)) as directory:
            with during_read_of_retry(moment, rewriting_of(directory)) as reads:
                (shown,) = inspection.inspect(directory.path, 100)
            if next(reads) <= moment:
                return
            (ring,) = (one for one in shown["rings"] if one["ring"] == "retry")
            yield ring, [one["id"].rpartition("/")[2] for one in shown["records"] if one["ring"] == "retry"]


def test_records_that_are_rewritten_at_any_moment_are_counted_and_shown(tmp_path: Path) -> None:
    looks = list(while_rewritten(tmp_path))
    assert {(ring["waiting"], ring["missing"], ring["recycled"]) for ring, _ in looks} == {(50, 0, 0)}
    assert all(ids == [str(number) for number in range(6, 301, 6)] for _, ids in looks)
    assert len(looks) > 20


def test_where_records_were_rewritten_at_each_look_it_says_that_some_may_not_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "WALKS", 1)
    looks = list(while_rewritten(tmp_path))
    assert any(ring["waiting"] < 50 for ring, _ in looks)
    for ring, _ in looks:
        told = [*inspection._wrong({"error": None, "checkpoint_lost": False, "rings": [ring]})]
        assert ["what was rewritten may not be counted: look again" in line for line in told] == [True] * len(told)
        assert ring["waiting"] == 50 or told


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"aiorecover {importlib.metadata.version('aiorecover')}\n")
