"""Drivers of Spark as users run them: `aiorecover land` in processes that tests kill, or whose executors they kill.

Spark's checkpoint shows the state of a driver: a batch that has begun has a file in `offsets`, and one that is done
also has one in `commits`.
"""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.spark.buckets import numbered_files, storage_path
from tests.spark.machines import MASTER, executors_of
from tests.spark.settings import command_words

__all__ = ["Driver", "Lander", "LandingFailedError"]

_LOOK_S = 0.02
_BATCH_S = 5.0  # an estimate for the first batch
_BEGUN_WITHIN_S = 300.0  # Java starts and finishes the last batch: some 20 seconds on an idle machine


class LandingFailedError(AssertionError):
    """A driver failed or did nothing; the message ends with its log."""


@dataclass(frozen=True)
class Lander:
    """A landing: its topics, its target and its checkpoint, for one driver after another."""

    bootstrap_servers: str
    topics: Sequence[str]
    directory: Path
    batch_records: int
    executors: Mapping[str, str] | None = None
    """The environment of `make_spark_home`; None: the driver works in threads of its own, without executors."""
    format: str = "parquet"

    @property
    def target(self) -> str:
        """Return the path or the name of the table."""
        return "lake.proof.records" if self.format == "iceberg" else storage_path(self.directory / "table")

    @property
    def log(self) -> Path:
        """Return the file of the drivers' output."""
        return self.directory / "drivers.log"

    def start(self, *, available_now: bool) -> "Driver":
        """Start a driver; with ``available_now`` it ends when it has landed all records."""
        words = ["--bootstrap-servers", self.bootstrap_servers, "--target", self.target]
        words += ["--checkpoint", storage_path(self.directory / "checkpoint"), "--format", self.format]
        words += ["--max-offsets-per-trigger", str(self.batch_records)]
        words += [word for topic in self.topics for word in ("--topic", topic)]
        words += command_words(self.directory, *([] if self.executors is None else [MASTER]))
        words += ["--available-now"] if available_now else []
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "aiorecover", "land", *words],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(self.executors or {})},
                start_new_session=True,  # so that a kill reaches Java, too
                stdout=log,
                stderr=log,
            )
        return Driver(self, process)

    def last_begun(self) -> int:
        """Return the number of the last batch that has begun; -1: none has."""
        return max(self._written("offsets"), default=-1)

    def last_done(self) -> int:
        """Return the number of the last batch that is done; -1: none is."""
        return max(self._written("commits"), default=-1)

    def batch_s(self) -> float:
        """Return the seconds of the quickest batch that is done: slower ones may have waited for the next driver."""
        return max(0.0, min(self.batches_s(), default=_BATCH_S))

    def batches_s(self) -> list[float]:
        """Return the seconds of each batch, oldest first: the last hundred, whose files Spark keeps."""
        begun, done = self._written("offsets"), self._written("commits")
        return [done[batch] - begun[batch] for batch in sorted(done)]

    def _written(self, name: str) -> dict[int, float]:
        return numbered_files(self.directory / "checkpoint" / "query" / name)


class Driver:
    """A running driver; the end of its ``with`` kills it and its children."""

    def __init__(self, lander: Lander, process: "subprocess.Popen[bytes]") -> None:
        self._lander, self._process = lander, process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        """Return whether the driver has not ended."""
        return self._process.poll() is None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds.

        Raises:
            LandingFailedError: the driver ended before, or the wait takes too long.

        """
        until = time.monotonic() + _BEGUN_WITHIN_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > until:
                raise self._failure("work until a condition held")
            time.sleep(_LOOK_S)

    def wait_for_batch(self, batch: int, *, at_most_s: float = math.inf) -> None:
        """Wait until this batch, or a later one, has begun, or until the time is over."""
        over = time.monotonic() + at_most_s
        self.wait_until(lambda: self._lander.last_begun() >= batch or time.monotonic() >= over)

    def run_for(self, seconds: float) -> None:
        """Let the driver work for this time, or until it ends."""
        until = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def kill_executors(self, chance: random.Random, count: int) -> bool:
        """`kill -9` this many executors; return whether that hit a batch: it had begun and was not done."""
        self.wait_until(lambda: bool(executors_of(self._process.pid)))
        executors = sorted(executors_of(self._process.pid))
        for pid in chance.sample(executors, min(count, len(executors))):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        return self._lander.last_begun() > self._lander.last_done()

    def kill(self) -> bool:
        """`kill -9` the driver and its Java; return whether that hit a batch: it had begun and was not done."""
        was_alive = self.is_alive
        with contextlib.suppress(ProcessLookupError):  # it was killed before
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return was_alive and self._lander.last_begun() > self._lander.last_done()

    def finish(self, within_s: float) -> None:
        """Wait for the driver's end.

        Raises:
            LandingFailedError: its status is not 0, or it takes longer.

        """
        self.run_for(within_s)
        if self._process.poll() != 0:
            raise self._failure("end with status 0 in time")

    def _failure(self, duty: str) -> LandingFailedError:
        tail = self._lander.log.read_text(errors="replace")[-4000:]
        return LandingFailedError(f"the driver did not {duty}: status={self._process.returncode}\n{tail}")
