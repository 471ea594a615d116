"""The demonstration, run as a user runs it; and its judge, fed with what a broken library would leave."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from aiorecover.cli import demo as demo_command
from aiorecover.cli.demo_verdict import Ordinal, Seen, Verdict, judge, read_back
from aiorecover.testing.mock_cluster_process import child_environment

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

from aiorecover.cli.demo_view import choose_view, show_verdict

RECORDS = 3_000
RATE = 1_000
LIMIT_SECONDS = 40


def run_cli(*arguments: str, directory: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aiorecover", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        # Its temporary files where we can look at them.
        env={**child_environment(), "TMPDIR": str(directory), "COLUMNS": "100"},
    )


def count_in_row(output: str, name: str) -> int:
    row = next(line for line in output.splitlines() if f"│ {name} " in line)
    return int(row.split("│")[2].strip().replace(",", ""))


def test_the_demo_loses_nothing_and_says_so(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--records", str(RECORDS), "--rate", str(RATE), directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert count_in_row(done.stdout, "accepted") == RECORDS
    assert count_in_row(done.stdout, "delivered") == RECORDS
    for bad in ("missing", "out of order", "altered"):
        assert count_in_row(done.stdout, bad) == 0
    for event in (
        "broker DOWN",
        "broker UP",
        "killed with SIGKILL in mid-stream",
        "SIGKILL without a broker",
    ):
        assert event in done.stdout
    assert list(tmp_path.iterdir()) == [], "a good run leaves nothing behind"


def test_the_demo_as_json_has_stdout_to_itself_and_keeps_a_given_directory(tmp_path: pathlib.Path) -> None:
    wal_dir = tmp_path / "wal"
    arguments = ["demo", "--records", "1500", "--rate", "1500", "--json", "--wal-dir", str(wal_dir)]
    done = run_cli(*arguments, "--topic", "orders", "--seed", "7", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["verdict"]["good"] is True
    assert outcome["verdict"]["accepted"] == outcome["verdict"]["delivered"] == 1_500
    assert (outcome["kills"], outcome["topic"], outcome["embedded"]) == (2, "orders", True)
    assert outcome["recovered"] > 0
    assert "broker DOWN" in done.stderr
    assert any(wal_dir.iterdir())


def test_a_used_directory_is_refused_for_the_embedded_broker(tmp_path: pathlib.Path) -> None:
    (tmp_path / "used").write_bytes(b"")
    done = run_cli("demo", "--wal-dir", str(tmp_path), directory=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("the embedded broker is a new cluster each time")


def test_more_than_the_embedded_broker_keeps_is_refused(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--records", "1000000", directory=tmp_path)
    assert done.returncode == 2
    assert "--bootstrap-servers" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--topic", "a b", "Kafka refuses this topic name"),
        ("--bootstrap-servers", "http://localhost:9092", "bootstrap_servers must be"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_is_started(
    option: str, value: str, says: str, tmp_path: pathlib.Path
) -> None:
    done = run_cli("demo", option, value, directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_a_kafka_that_is_not_there_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--bootstrap-servers", "127.0.0.1:1", directory=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("the demonstration broke down: KafkaConnectionError: Unable to bootstrap")
    assert "Traceback" not in done.stderr


def test_without_typer_the_command_names_the_remedy() -> None:
    code = "import sys; sys.modules['typer'] = None; from aiorecover.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "the aiorecover command needs typer and rich: pip install 'aiorecover[cli]', for the demo 'aiorecover[demo]'"
    )


def record_id(ordinal: Ordinal) -> str:
    return f"someproducer/{ordinal.run}/{ordinal.number + 1}"


def published() -> list[Ordinal]:
    """Six records of one key, by a child that was killed after three and its successor."""
    return [*(Ordinal(1, number) for number in range(3)), *(Ordinal(2, number) for number in range(3, 6))]


def in_kafka(ordinals: list[Ordinal], *, partition: int = 0, key: bytes = b"k") -> list[Seen]:
    return [Seen(partition, key, record_id(ordinal), ordinal) for ordinal in ordinals]


def verdict_on(seen: list[Seen], *, cut_off: int = 0) -> Verdict:
    return judge({record_id(ordinal): ordinal for ordinal in published()}, seen, cut_off)


def test_the_judge_is_content_when_everything_is_there_in_order() -> None:
    verdict = verdict_on(in_kafka(published()))
    assert verdict.good
    assert (verdict.accepted, verdict.delivered, verdict.examples) == (6, 6, [])


def test_the_judge_misses_a_record_that_was_accepted() -> None:
    verdict = verdict_on(in_kafka(published()[:-1]))
    assert not verdict.good
    assert (verdict.missing, verdict.delivered) == (1, 5)
    assert verdict.examples == ["missing someproducer/2/6"]


def test_the_judge_sees_a_record_behind_a_later_one_of_its_key() -> None:
    first, second, *rest = published()
    verdict = verdict_on(in_kafka([second, first, *rest]))
    assert not verdict.good
    assert (verdict.out_of_order, verdict.missing) == (1, 0)


def test_the_judge_sees_a_dead_childs_record_behind_its_successors() -> None:
    ordinals = published()
    verdict = verdict_on(in_kafka([*ordinals[:2], ordinals[3], ordinals[2], *ordinals[4:]]))
    assert verdict.out_of_order == 1


def test_the_judge_sees_a_key_that_changed_its_partition() -> None:
    ordinals = published()
    verdict = verdict_on([*in_kafka(ordinals[:3]), *in_kafka(ordinals[3:], partition=1)])
    assert verdict.out_of_order == 3


def test_the_judge_does_not_compare_different_keys() -> None:
    first, second, *rest = published()
    seen = [*in_kafka([second], key=b"other"), *in_kafka([first, *rest])]
    assert verdict_on(seen).good


def test_the_judge_sees_an_id_on_another_records_contents() -> None:
    first, *rest = published()
    seen = [Seen(0, b"k", record_id(first), Ordinal(1, -1)), *in_kafka(rest)]
    verdict = verdict_on(seen)
    assert not verdict.good
    assert verdict.altered == 1


def test_the_judge_counts_repeats_apart_and_forgives_them() -> None:
    ordinals = published()
    verdict = verdict_on(in_kafka([*ordinals[:4], *ordinals[2:]]))
    assert verdict.good
    assert verdict.repeated == 2


def test_the_judge_finds_fault_with_a_repeat_where_the_broker_recognises_them() -> None:
    ordinals = published()
    accepted = {record_id(ordinal): ordinal for ordinal in ordinals}
    assert judge(accepted, in_kafka(ordinals), recognises_repeats=True).good
    verdict = judge(accepted, in_kafka([*ordinals, ordinals[-1]]), recognises_repeats=True)
    assert not verdict.good
    assert verdict.examples == ["repeated someproducer/2/6"]


@pytest.mark.parametrize("embedded", [True, False])
def test_repeats_in_the_embedded_broker_are_explained(*, embedded: bool) -> None:
    verdict = judge({}, in_kafka([published()[0]] * 2), recognises_repeats=not embedded)
    outcome = demo_command.Outcome(verdict, embedded, "orders", seconds=1, kills=2, recovered=0)
    console = Console(file=io.StringIO(), record=True, width=80)
    show_verdict(console, outcome)
    text = console.export_text()
    assert count_in_row(text, "repeated") == 1
    assert ("Kafka recognises it and appends it once" in text) is embedded
    assert ("FAILED" in text) is not embedded


def test_the_judge_counts_apart_what_was_accepted_without_word_of_it() -> None:
    first, *rest = published()
    accepted = {record_id(ordinal): ordinal for ordinal in rest}
    verdict = judge(accepted, in_kafka(published()))
    assert verdict.good
    assert (verdict.without_word, verdict.accepted, verdict.delivered) == (1, 5, 5)
    assert record_id(first) not in accepted


def test_the_judge_says_nothing_good_of_a_log_that_was_cut_off() -> None:
    assert not verdict_on(in_kafka(published()), cut_off=1).good


@pytest.mark.asyncio
async def test_a_demo_that_finds_a_record_missing_fails_and_keeps_the_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lossy(servers: str, topic: str, begin: Mapping[int, int], isolation: str) -> tuple[list[Seen], int]:
        seen, cut_off = await read_back(servers, topic, begin, isolation)
        return seen[:-1], cut_off

    monkeypatch.setattr(demo_command, "read_back", lossy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = demo_command.Options(600, 1_000, None, None, None, seed=1)
    console = Console(file=io.StringIO(), record=True, width=100)
    with choose_view(console, 600) as view:
        outcome = await demo_command.run(options, view)
    assert outcome.verdict.missing == 1
    assert not outcome.verdict.good
    assert outcome.kept is not None
    assert str(tmp_path) in outcome.kept
    show_verdict(console, outcome)
    text = console.export_text()
    assert count_in_row(text, "missing") == 1
    assert "FAILED" in text
