"""`aiorecover land` and `audit` in processes of their own, with Java; signals reach them as from a terminal."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.spark.settings import command_words
from tests.support.cluster import Cluster

__all__ = ["Command", "audit_report", "audit_words", "land_words", "running_command"]

_LOOK_S = 0.02
_WITHIN_S = 300.0  # Java starts and lands: some 20 seconds on an idle machine
_AUDIT_WITHIN_S = 1800.0  # a proof audits some million records
# A shell starts background processes, perhaps the tests too, with SIGINT ignored.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "aiorecover"
from aiorecover.cli import main
main()
"""


def land_words(cluster: Cluster, topic: str, directory: Path, *more: str) -> list[str]:
    """Return the arguments that land the topic as `tests.spark.feed.land_all` does."""
    kafka = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", topic]
    where = ["--target", str(directory / "table"), "--checkpoint", str(directory / "checkpoint")]
    return ["land", *kafka, *where, *command_words(directory), *more]


def audit_words(cluster: Cluster, topic: str, directory: Path, *more: str) -> list[str]:
    """Return the arguments that audit the topic."""
    kafka = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", topic]
    return ["audit", *kafka, *command_words(directory), *more]


class Command:
    """A running command; it leads a process group, as a command of a shell does."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: Path) -> None:
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    def error_lines(self) -> list[str]:
        """Return the lines that the command and its Java have written to stderr."""
        return self._errors.read_text().splitlines()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, while the command runs."""
        until = time.monotonic() + _WITHIN_S
        while not condition():
            assert self._process.poll() is None, "\n".join(self.error_lines())
            assert time.monotonic() < until, "the command runs, and does not get there"
            time.sleep(_LOOK_S)

    def send(self, number: signal.Signals, *, group: bool) -> None:
        """Send a signal to the process, as `kill` does, or with ``group`` to its Java, too, as a terminal does."""
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def wait(self, within_s: float = _WITHIN_S) -> int:
        """Wait for the command's end; return its status, or fail after ``within_s`` seconds."""
        return self._process.wait(within_s)

    def processes(self) -> dict[str, int]:
        """Return the process ids of the group by program name; the command itself is `python`."""
        return {
            name: pid
            for name, pid, group in filter(None, map(_alive, Path("/proc").glob("[0-9]*/stat")))
            if group == self.pid
        }


def _alive(stat: Path) -> tuple[str, int, int] | None:
    """Return the name, process id and group of a process; None: it has ended."""
    try:
        before, _, after = stat.read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    state, _, group = after.split()[:3]
    return None if state in "ZX" else (before.partition("(")[2], int(stat.parent.name), int(group))


@contextmanager
def running_command(directory: Path, words: list[str]) -> Iterator[Command]:
    """Start a command; kill it and its children at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    errors = directory / "stderr"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    with process:
        try:
            yield Command(process, errors)
        finally:
            with suppress(ProcessLookupError):  # the group has ended
                os.killpg(process.pid, signal.SIGKILL)


def audit_report(
    directory: Path,
    *,
    table: Path | str | None = None,
    bootstrap_servers: str | None = None,
    topics: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the report of `aiorecover audit --json`; ``directory`` takes Spark's own files."""
    options = {"--table": table, "--bootstrap-servers": bootstrap_servers}
    words = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    words += [word for topic in topics for word in ("--topic", topic)]
    done = subprocess.run(
        [sys.executable, "-m", "aiorecover", "audit", "--json", *words, *command_words(directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=_AUDIT_WITHIN_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report
