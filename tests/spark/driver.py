"""A driver of Spark as a user has one: `aiorecover land`, killed with -9, Java and all, in the middle of a batch.

Or its executors are, which then are processes of their own (`tests.spark.machines`), and it has to go on.

What it is at is told by Spark's checkpoint: of a batch that is begun there is a file in `offsets`, of one that is done
there is one in `commits`, too.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from tests.spark.machines import MASTER, Machines, executors_of
from tests.spark.settings import command_words

__all__ = ["Driver", "Lander", "LandingFailedError", "Work"]

_LOOK_S = 0.02
_BATCH_S = 5.0  # that the first one is thought to take
_REPEATS = re.compile(r"([\d,]+) repeats left out")
_BEGUN_WITHIN_S = 300.0  # Java starts and finishes what was left: some 20 seconds on a quiet machine


class LandingFailedError(AssertionError):
    """A driver ended by itself and not well, or did nothing; its log is attached."""


@dataclass(frozen=True)
class Lander:
    """What drivers are told, one after the other: land these topics, here, so many records a batch."""

    bootstrap_servers: str
    topics: Sequence[str]
    directory: Path
    batch_records: int
    log: Path
    machines: Machines | None = None
    """Whose executors it has; None: threads of its own."""
    table: str | None = None
    """Where it lands, by name; None: in `target`."""
    sink_manifests: str | None = None
    """The topic with the manifests of Spark's sink; None: nothing of the topics is from there."""

    @property
    def target(self) -> Path:
        """The table, where it has no name."""
        return self.directory / "table"

    @property
    def ids(self) -> Path:
        """What the landing knows of what was landed."""
        return self.directory / "checkpoint" / "ids"

    def start(self, *, available_now: bool) -> "Driver":
        """Start one; with ``available_now`` it ends when all is landed."""
        told = {
            "--bootstrap-servers": self.bootstrap_servers,
            "--target": self.table or str(self.target),
            "--checkpoint": str(self.directory / "checkpoint"),
            "--max-offsets-per-trigger": str(self.batch_records),
        }
        words = [word for pair in told.items() for word in pair]
        for topic in self.topics:
            words += ["--topic", topic]
        words += command_words(self.directory, *([] if self.machines is None else [MASTER]))
        if self.sink_manifests is not None:
            words += ["--sink-manifests", self.sink_manifests]
        if available_now:
            words.append("--available-now")
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return Driver(
                self,
                subprocess.Popen(
                    [sys.executable, "-m", "aiorecover", "land", *words],
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | self._home(),
                    start_new_session=True,  # so that Java dies with it
                    stdout=log,
                    stderr=log,
                ),
            )

    def begun(self) -> int:
        """The last batch that was begun; -1: none."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch that was done; -1: none."""
        return self._last("commits")

    def batch_s(self) -> float:
        """How long the last batch took that is done."""
        done, query = str(self.done()), self.directory / "checkpoint" / "query"
        if done == "-1":
            return _BATCH_S
        return max(0.0, (query / "commits" / done).stat().st_mtime - (query / "offsets" / done).stat().st_mtime)

    def state_bytes(self) -> int:
        """What the newest whole state of ids takes on the disk; 0: there is none."""
        states = {path: int(path.name.partition("=")[2]) for path in self.ids.glob("after=*")}
        if not states:
            return 0
        newest = max(states, key=states.__getitem__)
        return sum(file.stat().st_size for file in newest.rglob("*.parquet"))

    def writes(self) -> bool:
        """Whether a task writes files of a batch: by then all its records have been shuffled, and wait in executors."""
        return any(self.target.glob("_staging/*/_temporary/0/_temporary/*"))

    def repeats(self) -> int:
        """How many repeats the drivers say they have left out; one that died may not have got to say it."""
        return sum(int(told.replace(",", "")) for told in _REPEATS.findall(self.log.read_text(errors="replace")))

    def _home(self) -> dict[str, str]:
        return {} if self.machines is None else self.machines.environment

    def _last(self, name: str) -> int:
        files = (self.directory / "checkpoint" / "query" / name).glob("[0-9]*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)


class Work(Protocol):
    """What a driver does, piece by piece."""

    @property
    def log(self) -> Path:
        """What it says."""
        ...

    def begun(self) -> int:
        """The last piece that was begun; -1: none."""
        ...

    def done(self) -> int:
        """The last piece that was done; -1: none."""
        ...


class Driver:
    """One life; whatever happens in its ``with``, nothing of it is left behind that."""

    def __init__(self, work: Work, process: "subprocess.Popen[bytes]") -> None:
        self._work = work
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def until(self, reached: Callable[[], bool], look: Callable[[], object] = lambda: None) -> None:
        """Let it work until then, looking meanwhile.

        Raises:
            LandingFailedError: it ended before, or it takes too long.

        """
        until = time.monotonic() + _BEGUN_WITHIN_S
        while not reached():
            look()
            if self._process.poll() is not None or time.monotonic() > until:
                raise self._failure("was to go on working")
            time.sleep(_LOOK_S)

    def rest(self, seconds: float) -> None:
        """Let it work for so long, or until it ends by itself."""
        until = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def kill_executors(self, rng: random.Random, count: int) -> bool:
        """`kill -9` so many of its executors, all there are at most; whether a piece was begun and not done."""
        self.until(lambda: bool(executors_of(self._process.pid)))
        there = sorted(executors_of(self._process.pid))
        for pid in rng.sample(there, min(count, len(there))):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        return self._work.begun() > self._work.done()

    def kill(self) -> bool:
        """`kill -9`; whether a piece was begun and not done."""
        alive = self._process.poll() is None
        with contextlib.suppress(ProcessLookupError):  # it was killed before
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return alive and self._work.begun() > self._work.done()

    def finish(self, within_s: float, look: Callable[[], object] = lambda: None) -> None:
        """Wait for its end, looking meanwhile.

        Raises:
            LandingFailedError: it did not end well, or not in time.

        """
        until = time.monotonic() + within_s
        while self._process.poll() is None and time.monotonic() < until:
            look()
            time.sleep(_LOOK_S)
        if self._process.poll() != 0:
            raise self._failure("was to end well")

    def _failure(self, what: str) -> LandingFailedError:
        tail = self._work.log.read_text(errors="replace")[-4000:]
        return LandingFailedError(f"the driver {what}, and did not: status={self._process.returncode}\n{tail}")
