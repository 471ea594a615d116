"""Two landings with one checkpoint: the second is refused, and the first goes on unharmed."""

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land
from aiorecover.spark.files import Files
from aiorecover.spark.lock import Lock
from aiorecover.spark.session import clear_errors
from tests.spark.feed import P, Q, landing, once, published, shuffled
from tests.spark.settings import command_words
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory
from tests.support.eventually import until

REFUSED = "another landing works with this checkpoint: wait until it has ended, or stop it"
LOCKS = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
# As a file system does that knows no locks of directories, or of nothing.
LOCK_NO_DIRECTORY, LOCK_NOTHING = "no directory", "nothing"
HOLDS = f"{LOCKS}; print(flush=True); sys.stdin.read()"


def is_free(directory: Path) -> bool:
    """As another process sees it."""
    tried = subprocess.run([sys.executable, "-c", LOCKS, str(directory)], capture_output=True, text=True, check=False)
    assert tried.returncode == 0 or "BlockingIOError" in tried.stderr, tried.stderr
    return tried.returncode == 0


@pytest.fixture
def somebody_s(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint that another process works with."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(checkpoint)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield checkpoint
        process.kill()


def test_a_checkpoint_that_another_process_works_with_is_refused_and_stays_as_it_is(
    spark: SparkSession, somebody_s: Path, tmp_path: Path
) -> None:
    staging = tmp_path / "table" / "_staging" / "0-x"
    staging.mkdir(parents=True)
    with pytest.raises(ConfigError, match=REFUSED):
        land(spark, ["x"], str(tmp_path / "table"), str(somebody_s), bootstrap_servers="x")
    assert list(somebody_s.iterdir()) == []
    assert staging.exists()


@pytest.fixture
def flock(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What this machine's file system locks from now on."""
    real = fcntl.flock

    def locks(which: str) -> None:
        def refusing(descriptor: int, operation: int) -> None:
            if which == LOCK_NOTHING or stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOLCK, "No locks available")
            real(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", refusing)

    return locks


@pytest.mark.parametrize("which", ["all", LOCK_NO_DIRECTORY])
def test_a_file_in_the_checkpoint_is_locked_as_well_which_other_machines_are_told_of(
    which: str, flock: Callable[[str], None], spark: SparkSession, tmp_path: Path
) -> None:
    if which != "all":
        flock(which)
    lock = Lock(spark, str(tmp_path))
    assert lock.is_held
    assert (is_free(tmp_path / "_lock"), is_free(tmp_path)) == (False, which != "all")
    with pytest.raises(ConfigError, match=REFUSED):
        Lock(spark, str(tmp_path))
    assert not is_free(tmp_path / "_lock")
    lock.release()
    assert (lock.is_held, is_free(tmp_path / "_lock"), is_free(tmp_path)) == (False, True, True)


def test_who_has_the_file_alone_as_one_on_another_machine_has_it_is_not_disturbed(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "_lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "_lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConfigError, match=REFUSED):
            Lock(spark, str(tmp_path))
        assert is_free(tmp_path), "who is refused holds nothing"
        process.kill()
    Lock(spark, str(tmp_path)).release()


def test_where_nothing_can_be_locked_nobody_is_refused_and_nothing_is_held(
    flock: Callable[[str], None], spark: SparkSession, tmp_path: Path
) -> None:
    flock(LOCK_NOTHING)
    locks = Lock(spark, str(tmp_path)), Lock(spark, str(tmp_path))
    assert [lock.is_held for lock in locks] == [False, False]
    for lock in locks:
        lock.release()


def test_where_the_file_cannot_be_made_the_lock_is_this_machine_s_and_counts_as_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "_lock").mkdir()
    lock = Lock(spark, str(tmp_path))
    assert (lock.is_held, is_free(tmp_path)) == (False, False)
    lock.release()
    assert is_free(tmp_path)


def test_a_query_holds_its_checkpoint_until_it_has_ended(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, checkpoint, more = topic(kafka, partitions=3), tmp_path / "checkpoint", shuffled(7)
    admin.run(published(kafka, name, more))
    first = land(spark, [name], str(tmp_path / "table"), str(checkpoint), bootstrap_servers=kafka.bootstrap_servers)
    assert not is_free(checkpoint)
    with pytest.raises(ConfigError, match=REFUSED):
        landing(spark, kafka, name, tmp_path)
    first.processAllAvailable()
    first.stop()
    asyncio.run(until(lambda: is_free(checkpoint)))
    # Whoever knows that it has ended goes on at once.
    again = [(0, f"{P}/1/900"), (1, f"{Q}/2/900"), *more[:50]]
    admin.run(published(kafka, name, again))
    for _ in range(2):
        landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once([*more, *again])


def test_the_command_beside_a_landing_is_one_sentence_and_status_2_and_each_record_is_landed_once(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(8)
    target, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    words = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--target", target]
    words += ["--checkpoint", checkpoint, "--available-now", *command_words(tmp_path)]
    admin.run(published(kafka, name, rows[:700]))
    first = land(
        spark, [name], target, checkpoint, bootstrap_servers=kafka.bootstrap_servers, max_offsets_per_trigger=50
    )
    second = subprocess.run(
        [sys.executable, "-m", "aiorecover", "land", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr.splitlines()[-1] == f"{REFUSED} {checkpoint=}"
    admin.run(published(kafka, name, rows[700:]))
    first.processAllAvailable()
    first.stop()
    assert landed_ids(tmp_path / "table") == once(rows)


@pytest.mark.parametrize("written", ["query/offsets/1", "query/commits/0", "../table/batch_id=0/part-0.parquet"])
def test_where_nothing_is_locked_the_one_that_comes_late_ends_with_one_sentence(
    written: str,
    spark: SparkSession,
    kafka: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one has written by then what it is about to write."""
    name, move = topic(kafka, partitions=3), Files.move
    admin.run(published(kafka, name, shuffled(9)[:120]))

    def move_late(self: Files, source: str, destination: str) -> None:
        if destination.endswith("/batch_id=0"):
            path = tmp_path / "checkpoint" / written
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        move(self, source, destination)

    monkeypatch.setattr(Files, "move", move_late)
    with pytest.raises(ConfigError, match="another landing works with this checkpoint: see that"), clear_errors():
        landing(spark, kafka, name, tmp_path, max_offsets_per_trigger=100)


def test_a_start_that_is_refused_or_fails_holds_nothing(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "something").touch()
    with pytest.raises(ConfigError, match="something else is in the checkpoint"):
        landing(spark, kafka, "x", tmp_path)
    assert is_free(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "something").unlink()
    with pytest.raises(ConfigError, match="a topic does not exist"):
        landing(spark, kafka, "not-there", tmp_path)
    assert is_free(tmp_path / "checkpoint")
    Lock(spark, str(tmp_path / "checkpoint")).release()
