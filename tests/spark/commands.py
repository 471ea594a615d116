"""`aiorecover land` and `audit` as processes of their own, with Java, to which signals are sent as terminals do it."""

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

__all__ = ["Command", "audit_words", "audited", "land_words", "started_command"]

_LOOK_S = 0.02
_WITHIN_S = 300.0  # Java starts and lands: some 20 seconds on a quiet machine
_AUDITED_WITHIN_S = 1800.0  # a proof audits some million records
# Whoever runs the tests may ignore SIGINT, as shells have what they run in the background do.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "aiorecover"
from aiorecover.cli import main
main()
"""


def land_words(cluster: Cluster, topic: str, directory: Path, *more: str) -> list[str]:
    """Into `table` in the directory, as `tests.spark.feed.landing` does it."""
    kafka = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", topic]
    where = ["--target", str(directory / "table"), "--checkpoint", str(directory / "checkpoint")]
    return ["land", *kafka, *where, *command_words(directory), *more]


def audit_words(cluster: Cluster, topic: str, directory: Path, *more: str) -> list[str]:
    kafka = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", topic]
    return ["audit", *kafka, *command_words(directory), *more]


class Command:
    """One life of a command, in a group of processes of its own, as a shell has it."""

    def __init__(self, process: "subprocess.Popen[bytes]", directory: Path) -> None:
        self._process = process
        self._directory = directory

    @property
    def pid(self) -> int:
        return self._process.pid

    def complained(self) -> list[str]:
        """The lines of its stderr, and of Java's, up to now."""
        return (self._directory / "stderr").read_text().splitlines()

    def until(self, reached: Callable[[], bool]) -> None:
        """Let it work until then."""
        until = time.monotonic() + _WITHIN_S
        while not reached():
            assert self._process.poll() is None, "\n".join(self.complained())
            assert time.monotonic() < until, "it does not get there"
            time.sleep(_LOOK_S)

    def send(self, number: signal.Signals, *, group: bool) -> None:
        """To the process alone, as `kill` does it, or to Java, too, as a terminal does it."""
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def end(self) -> int:
        """Wait for it, and give its status."""
        return self._process.wait(_WITHIN_S)

    def members(self) -> dict[str, int]:
        """The processes of its group that are alive, by what they are called; it itself is `python`."""
        return {
            name: pid
            for name, pid, group in filter(None, map(_alive, Path("/proc").glob("[0-9]*/stat")))
            if group == self.pid
        }


def _alive(stat: Path) -> tuple[str, int, int] | None:
    try:
        before, _, behind = stat.read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    state, _, group = behind.split()[:3]
    return None if state in "ZX" else (before.partition("(")[2], int(stat.parent.name), int(group))


@contextmanager
def started_command(directory: Path, words: list[str]) -> Iterator[Command]:
    """Start a command; whatever happens, end it and its children afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "stderr").open("w") as complained:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=complained,
        )
    with process:
        try:
            yield Command(process, directory)
        finally:
            with suppress(ProcessLookupError):  # as it should be
                os.killpg(process.pid, signal.SIGKILL)


def audited(
    directory: Path,
    *,
    table: Path | str | None = None,
    bootstrap_servers: str | None = None,
    topics: Sequence[str] = (),
    manifests: str | None = None,
) -> dict[str, Any]:
    """Return the report of `aiorecover audit --json`; ``directory`` takes Spark's own files."""
    told = {"--table": table, "--bootstrap-servers": bootstrap_servers, "--manifests": manifests}
    words = [str(word) for name, value in told.items() if value is not None for word in (name, value)]
    for topic in topics:
        words += ["--topic", topic]
    words += command_words(directory)
    done = subprocess.run(
        [sys.executable, "-m", "aiorecover", "audit", "--json", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=_AUDITED_WITHIN_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
