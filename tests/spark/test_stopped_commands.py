"""Ctrl-C and SIGTERM to `aiorecover land` and `audit`, at any time: status, one line, no Java left, and all goes on."""

import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.commands import Command, audit_words, land_words, started_command
from tests.spark.feed import landing, once, published, shuffled
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

INT, TERM = signal.SIGINT, signal.SIGTERM
BOUND_S = 20.0  # eight by its own clocks, of which it takes two or three; the rest is for a busy machine
GOES_ON = "; the next start with the same target and checkpoint goes on behind them"


def stopped(command: Command, number: signal.Signals, *, group: bool) -> str:
    """What it says to it, in a line; it says and leaves nothing else."""
    before, began = len(command.complained()), time.monotonic()
    command.send(number, group=group)
    status = command.end()
    took = time.monotonic() - began
    lines = command.complained()[before:]
    assert (status, len(lines)) == (128 + number, 1), "\n".join(lines)
    assert command.members() == {}
    assert took < BOUND_S
    return lines[0]


def in_a_batch(directory: Path) -> bool:
    return (directory / "checkpoint" / "query" / "offsets" / "0").exists()


def test_between_two_batches_ctrl_c_of_a_terminal_says_what_was_landed(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(1)
    admin.run(published(kafka, name, rows))
    with started_command(tmp_path, land_words(kafka, name, tmp_path)) as command:
        command.until(lambda: len(command.said()) == 1)
        assert command.said()[0].startswith("batch 0: 1,240 landed")
        said = stopped(command, INT, group=True)
    assert said == f"stopped: 1 batches with 1,240 records were landed since the start{GOES_ON}"
    admin.run(published(kafka, name, [(0, rows[0][1]), (1, "abcdefghij234/9/1")]))
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once([*rows, (1, "abcdefghij234/9/1")])


@pytest.mark.parametrize(("number", "group"), [(INT, False), (TERM, True)], ids=["SIGINT alone", "SIGTERM to all"])
def test_in_the_middle_of_a_batch_it_stops_and_the_next_start_lands_each_record_once(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(2)
    admin.run(published(kafka, name, rows))
    with started_command(tmp_path, land_words(kafka, name, tmp_path, "--available-now")) as command:
        command.until(lambda: in_a_batch(tmp_path))
        said = stopped(command, number, group=group)
    assert said == f"stopped: 0 batches with 0 records were landed since the start{GOES_ON}"
    assert not (tmp_path / "checkpoint" / "query" / "commits" / "0").exists(), "it was to be in a batch"
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows)


@pytest.mark.parametrize("behind_s", [0.0, 0.5, 3.0])
def test_while_java_starts_it_ends_with_it(kafka: Cluster, tmp_path: Path, behind_s: float) -> None:
    with started_command(tmp_path, land_words(kafka, "never-read", tmp_path)) as command:
        command.until(lambda: len(command.members()) > 1)
        time.sleep(behind_s)
        command.send(TERM, group=False)
        began = time.monotonic()
        assert (command.end(), command.members()) == (143, {}), "\n".join(command.complained())
        assert time.monotonic() - began < BOUND_S
        assert command.complained()[-1].startswith("stopped: 0 batches with 0 records")
        assert not any(line.startswith(("Traceback", "\tat ")) for line in command.complained())


def test_a_second_ctrl_c_ends_it_at_once(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=3)
    admin.run(published(kafka, name, shuffled(3)))
    with started_command(tmp_path, land_words(kafka, name, tmp_path)) as command:
        command.until(lambda: in_a_batch(tmp_path))
        command.send(INT, group=True)
        time.sleep(0.1)
        began = time.monotonic()
        command.send(INT, group=True)
        assert (command.end(), command.members()) == (130, {}), "\n".join(command.complained())
        assert time.monotonic() - began < 3.0
        assert not any(line.startswith("Traceback") for line in command.complained())


@pytest.mark.parametrize(("number", "group"), [(INT, True), (TERM, False)], ids=["ctrl-c", "SIGTERM"])
def test_an_audit_that_reads_is_stopped_likewise(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    name = topic(kafka, partitions=3)
    admin.run(published(kafka, name, shuffled(4)))
    with started_command(tmp_path, audit_words(kafka, name, tmp_path)) as command:
        command.until(lambda: any((tmp_path / "local").rglob("shuffle_*.data")))  # what was read is sorted
        said = stopped(command, number, group=group)
        assert command.said() == []
    assert said == "stopped: nothing is said of the records, and nothing was changed; start the audit again"
