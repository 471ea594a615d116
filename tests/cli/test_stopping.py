"""Work that a signal ends: result, status, time, and the processes that are left, of small programs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiorecover.cli.endings import StoppedError
from aiorecover.cli.stopping import descendants, stoppable
from tests.support.signals import ignores

# A program that works with a process of its own, which says by a file that it is there, as Java stands beside Spark.
PROGRAM = """
import signal, subprocess, sys, threading, time
from aiorecover.cli.endings import StoppedError
from aiorecover.cli.stopping import stoppable

ended = threading.Event()
{before}

def work():
    shell = {child!r} + "; echo $$ > there; while :; do sleep 0.05; done"
    # It has words of its own for a sleep that was ended before it was itself.
    child = subprocess.Popen(["sh", "-c", shell], stderr=subprocess.DEVNULL)
    ended.wait()
    child.wait()
    return "whole"

def stop():
    {stop}

try:
    print(stoppable(work, stop))
except StoppedError as stopped:
    print("stopped", flush=True)
    sys.exit(stopped.status)
"""
DEFAULT = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # whatever the caller of the tests has set
OBEYS, DEAF = ":", "trap '' TERM"
HANGS = "time.sleep(1000)"
RETURNS = "ended.set()"
FAILS = "raise OSError"
PATIENT = "import aiorecover.cli.stopping as module; module._STOPS_WITHIN_S = 1000"  # at the first signal
WITHIN_S = 60.0  # eight by its own clocks; a program that waits without a bound fails its test here


@contextmanager
def running(
    directory: Path, *, child: str = OBEYS, stop: str = RETURNS, before: str = DEFAULT
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The program, and the number of its child."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(child=child, stop=stop, before=before)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with program:
        try:
            there = directory / "there"
            while not (there.exists() and there.read_text()):
                assert program.poll() is None, program.communicate()
                time.sleep(0.01)
            yield program, int(there.read_text())
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize(
    ("number", "child", "stop"),
    [(signal.SIGINT, OBEYS, RETURNS), (signal.SIGTERM, OBEYS, FAILS), (signal.SIGTERM, DEAF, HANGS)],
)
def test_a_signal_ends_the_work_and_its_processes_in_a_bounded_time(
    number: signal.Signals, child: str, stop: str, tmp_path: Path
) -> None:
    with running(tmp_path, child=child, stop=stop) as (program, pid):
        program.send_signal(number)
        said = program.communicate(timeout=WITHIN_S)
        assert (said, program.returncode) == (("stopped\n", ""), 128 + number)
        assert not is_alive(pid)


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with running(tmp_path, child=DEAF, stop=HANGS, before=f"{DEFAULT}; {PATIENT}") as (program, pid):
        program.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=WITHIN_S) == 130
        assert not is_alive(pid)


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    with running(tmp_path, before="signal.signal(signal.SIGINT, signal.SIG_IGN)") as (program, _):
        assert ignores(program.pid, signal.SIGINT)
        program.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=WITHIN_S) == 143


def test_without_a_signal_the_work_gives_or_raises_what_it_does_and_handlers_are_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert stoppable(lambda: threading.current_thread() is threading.main_thread(), list) is False
    with pytest.raises(ValueError, match="'no'"):
        stoppable(lambda: int("no"), list)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    # Python hands signals to the main thread alone.
    there: list[bool] = []
    thread = threading.Thread(target=lambda: there.append(stoppable(threading.current_thread, list) is thread))
    thread.start()
    thread.join()
    assert there == [True]


def test_descendants_are_those_that_live_and_theirs() -> None:
    before = descendants()
    with subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        inner = int(shell.stdout.readline())
        assert descendants() - before == {shell.pid, inner}
        os.kill(inner, signal.SIGKILL)
        shell.wait()
        assert descendants() == before


def test_the_status_is_that_of_a_shell() -> None:
    assert (StoppedError(signal.SIGINT).status, StoppedError(signal.SIGTERM).status) == (130, 143)
