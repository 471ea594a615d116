"""A life that is forked is one like any other: a process of its own, and a child of this one."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash.child import Task
from tests.crash.lives import Child, ChildFailedError

NOWHERE = "127.0.0.1:1"  # no broker listens there


def life(directory: Path, **more: object) -> Child:
    task = Task(
        parent_pid=0,
        report_fd=-1,
        bootstrap_servers=NOWHERE,
        wal_dir=str(directory / "wal"),
        topics=["nowhere"],
        partitions=1,
        life=1,
        seed=1,
        steps=[("publish", {"count": 10}), ("wait", {})],
        options={"stop_timeout_ms": 0},
        **more,  # type: ignore[arg-type]
    )
    return Child(task, directory / "children.log")


def test_it_is_a_child_of_this_process_that_says_what_it_does_and_ends_as_it_is_told(tmp_path: Path) -> None:
    child = life(tmp_path)
    child.wait_for("wait")
    pid = child._process.pid
    assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text()
    with pytest.raises(subprocess.TimeoutExpired):
        child._process.wait(0.01)
    assert child.running
    child.tell()
    assert child.finish()["left"] == 10
    assert [report[0] for report in child.reports] == [b"A"] * 10
    assert not child.running


def test_its_kill_and_its_failure_are_seen(tmp_path: Path) -> None:
    child = life(tmp_path)
    child.wait_for("wait")
    child.kill()
    assert child._process.returncode == -signal.SIGKILL
    with pytest.raises(ChildFailedError, match="KeyError: 'no such point'"):
        life(tmp_path, crash=("no such point", 1)).wait_for("opened")


def test_what_one_life_changes_in_itself_the_next_one_does_not_have(tmp_path: Path) -> None:
    other = life(tmp_path, crash=("after the send", 1), boot_id="another")
    other.wait_for("wait")
    other.kill()
    child = life(tmp_path)
    child.wait_for("wait")
    child.tell()
    child.finish()
