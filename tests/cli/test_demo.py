"""The demonstration, run as a user runs it; and its judge, fed with what a broken library would leave."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from aiorecover.cli.app import app
from aiorecover.cli.demo import command as demo_command
from aiorecover.cli.demo import view
from aiorecover.cli.demo.verdict import Ordinal, Seen, Verdict, judge, read_back
from aiorecover.cli.demo.view import View, show_verdict
from aiorecover.cli.endings import Output
from aiorecover.testing.mock_cluster_process import child_environment

if TYPE_CHECKING:
    import pathlib

    from tests.support.broker import Cluster, TopicFactory

LIMIT_S = 60


def run_cli(
    *arguments: str, directory: pathlib.Path, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aiorecover", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
        # Its temporary files where we can look at them.
        env={**child_environment(), "TMPDIR": str(directory), "COLUMNS": "100"},
    )


def count_in_row(output: str, name: str) -> int:
    row = next(line for line in output.splitlines() if f"│ {name} " in line)
    return int(row.split("│")[2].strip().replace(",", ""))


def test_the_demo_loses_nothing_and_says_so(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--records", "2000", "--rate", "1000", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert count_in_row(done.stdout, "accepted") == count_in_row(done.stdout, "delivered") == 2000
    assert count_in_row(done.stdout, "missing") == count_in_row(done.stdout, "out of order") == 0
    for event in ("broker DOWN", "broker UP", "SIGKILL in mid-stream", "SIGKILL without a broker"):
        assert event in done.stdout
    assert list(tmp_path.iterdir()) == [], "a good run leaves nothing behind"


def test_a_demo_whose_reader_has_gone_ends_without_a_word_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    gone, pipe = os.pipe()
    os.close(gone)
    done = run_cli("demo", directory=tmp_path, stdout=pipe)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
def test_with_a_kafka_of_the_users_each_record_is_committed_once_and_the_verdict_comes_as_json(
    kafka: Cluster, topic: TopicFactory, tmp_path: pathlib.Path
) -> None:
    name, wal_dir = topic(kafka, 6), tmp_path / "wal"
    options = ["--exactly-once", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--json"]
    options += ["--records", "1500", "--rate", "1000", "--wal-dir", str(wal_dir)]
    done = run_cli("demo", *options, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    verdict = outcome["verdict"]
    assert verdict["good"] is verdict["recognises_repeats"] is True
    assert verdict["accepted"] == verdict["delivered"] == 1500
    assert (verdict["missing"], verdict["repeated"], verdict["out_of_order"]) == (0, 0, 0)
    assert (outcome["kills"], outcome["topic"], outcome["embedded"]) == (6, name, False)
    assert "killed with SIGKILL soon after its start" in done.stderr
    assert any(wal_dir.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--topic", "a b"], "Kafka refuses this topic name"),
        (["--bootstrap-servers", "http://localhost:9092"], "bootstrap_servers must be"),
        (["--records", "1000000"], "the embedded broker keeps no more than"),
        (["--exactly-once"], "--exactly-once needs a Kafka of yours, --bootstrap-servers"),
        (["--wal-dir", "."], "the embedded broker is a new cluster each time"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_is_started(options: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["demo", *options])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_without_confluent_kafka_the_demo_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    done = CliRunner().invoke(app, ["demo"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "confluent_kafka is not installed: pip install 'aiorecover[demo]'\n"


def test_a_kafka_that_is_not_there_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--bootstrap-servers", "127.0.0.1:1", directory=tmp_path)
    assert done.returncode == 1
    says = "Kafka cannot be reached, or does not answer: check the servers and the network bootstrap_servers="
    assert done.stderr == f"{says}'127.0.0.1:1'\n"


@pytest.mark.asyncio
async def test_a_demo_that_takes_too_long_says_how_long_and_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo_command, "SPARE_S", -1.0)
    with pytest.raises(demo_command.DemoError, match=r"after 1 s .* none is known to be missing: run it again"):
        await demo_command.run(demo_command.Options(2_000, 1_000, None, None, None, seed=1), View(Output()))


@pytest.mark.asyncio
async def test_a_demo_that_finds_a_record_missing_fails_and_keeps_the_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lossy(*arguments: Any) -> list[Seen]:
        return (await read_back(*arguments))[:-1]

    monkeypatch.setattr(demo_command, "read_back", lossy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(view, "FIGURES_S", 0.0)
    console = Output(file=io.StringIO(), record=True, width=100)
    outcome = await demo_command.run(demo_command.Options(2_000, 1_000, None, None, None, seed=1), View(console))
    assert (outcome.verdict.missing, outcome.verdict.good) == (1, False)
    assert str(tmp_path) in (outcome.kept or "")
    show_verdict(console, outcome)
    text = console.export_text()
    assert count_in_row(text, "missing") == 1
    assert "FAILED" in text
    dead = [stage.partition(" runs, ")[0] for stage in text.split("killed with SIGKILL")[1:]]
    waiting = [int(number) for stage in dead for number in re.findall(r"in the ring (\d+)", stage)]
    assert max(waiting, default=0) > 0, "looked for in the ring: no process could say it"


# -- the judge ---------------------------------------------------------------------------------------------------------


def record_id(ordinal: Ordinal) -> str:
    return f"someproducer/{ordinal.run}/{ordinal.number + 1}"


PUBLISHED = [*(Ordinal(1, number) for number in range(3)), *(Ordinal(2, number) for number in range(3, 6))]
ACCEPTED = {record_id(ordinal): ordinal for ordinal in PUBLISHED}


def in_kafka(*places: int, partition: int = 0, key: bytes = b"k") -> list[Seen]:
    """The published records, six of one key by two children, at these places in Kafka."""
    return [Seen(partition, key, record_id(PUBLISHED[place]), PUBLISHED[place]) for place in places]


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.missing, verdict.out_of_order, verdict.repeated, verdict.without_word


@pytest.mark.parametrize(
    ("seen", "wanted", "good"),
    [
        (in_kafka(0, 1, 2, 3, 4, 5), (0, 0, 0, 0), True),
        (in_kafka(0, 1, 2, 3, 4), (1, 0, 0, 0), False),
        (in_kafka(1, 0, 2, 3, 4, 5), (0, 1, 0, 0), False),
        (in_kafka(0, 1, 3, 2, 4, 5), (0, 1, 0, 0), False),  # a dead child's after its successor's
        (in_kafka(0, 1, 2) + in_kafka(3, 4, 5, partition=1), (0, 3, 0, 0), False),
        (in_kafka(1, key=b"other") + in_kafka(0, 2, 3, 4, 5), (0, 0, 0, 0), True),
        (in_kafka(0, 1, 2, 3, 2, 3, 4, 5), (0, 0, 2, 0), False),
    ],
)
def test_the_judge_finds_each_fault(seen: list[Seen], wanted: tuple[int, ...], good: bool) -> None:
    verdict = judge(ACCEPTED, seen, recognises_repeats=True)
    assert (counts(verdict), verdict.good) == (wanted, good)
    assert bool(verdict.examples) is not good


def test_the_judge_forgives_a_mock_its_repeats_and_a_killed_child_its_silence() -> None:
    known = {one: ordinal for one, ordinal in ACCEPTED.items() if ordinal != PUBLISHED[0]}
    verdict = judge(known, in_kafka(0, 1, 2, 2, 3, 4, 5))
    assert (counts(verdict), verdict.good) == ((0, 0, 1, 1), True)
