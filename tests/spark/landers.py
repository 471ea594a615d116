"""Drivers of Spark as a user has them: `aiorecover land`, killed with -9, Java and all, or their executors are.

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

from tests.spark.buckets import numbered, stored
from tests.spark.machines import MASTER, executors_of
from tests.spark.settings import command_words

__all__ = ["Driver", "Lander", "LandingFailedError"]

_LOOK_S = 0.02
_BATCH_S = 5.0  # that the first one is thought to take
_BEGUN_WITHIN_S = 300.0  # Java starts and finishes what was left: some 20 seconds on a quiet machine


class LandingFailedError(AssertionError):
    """A driver ended by itself and not well, or did nothing; its log is attached."""


@dataclass(frozen=True)
class Lander:
    """The arguments of drivers, one after the other: these topics, this target, so many records a batch."""

    bootstrap_servers: str
    topics: Sequence[str]
    directory: Path
    batch_records: int
    cluster: Mapping[str, str] | None = None
    """The environment of `make_spark_home`, for executors; None: the driver has threads of its own."""
    format: str = "parquet"

    @property
    def target(self) -> str:
        """The table."""
        return "lake.proof.records" if self.format == "iceberg" else stored(self.directory / "table")

    @property
    def log(self) -> Path:
        """Return the drivers' output."""
        return self.directory / "drivers.log"

    def start(self, *, available_now: bool) -> "Driver":
        """Start one; with ``available_now`` it ends when all is landed."""
        words = ["--bootstrap-servers", self.bootstrap_servers, "--target", self.target]
        words += ["--checkpoint", stored(self.directory / "checkpoint"), "--format", self.format]
        words += ["--max-offsets-per-trigger", str(self.batch_records)]
        words += [word for topic in self.topics for word in ("--topic", topic)]
        words += command_words(self.directory, *([] if self.cluster is None else [MASTER]))
        words += ["--available-now"] if available_now else []
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "aiorecover", "land", *words],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(self.cluster or {})},
                start_new_session=True,  # so that Java dies with it
                stdout=log,
                stderr=log,
            )
        return Driver(self, process)

    def begun(self) -> int:
        """The last batch that was begun; -1: none."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch that was done; -1: none."""
        return self._last("commits")

    def batch_s(self) -> float:
        """How long a batch takes: the quickest that is done, for others waited for the next driver."""
        return max(0.0, min(self.batches_s(), default=_BATCH_S))

    def batches_s(self) -> list[float]:
        """How long each batch took, oldest first: the last hundred, whose files Spark keeps."""
        begun, done = self._written("offsets"), self._written("commits")
        return [done[batch] - begun[batch] for batch in sorted(done)]

    def _last(self, name: str) -> int:
        return max(self._written(name), default=-1)

    def _written(self, name: str) -> dict[int, float]:
        return numbered(self.directory / "checkpoint" / "query" / name)


class Driver:
    """One life; whatever happens in its ``with``, nothing of it is left after that."""

    def __init__(self, lander: Lander, process: "subprocess.Popen[bytes]") -> None:
        self._lander, self._process = lander, process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def until(self, reached: Callable[[], bool]) -> None:
        """Let it work until then.

        Raises:
            LandingFailedError: it ended before, or it takes too long.

        """
        until = time.monotonic() + _BEGUN_WITHIN_S
        while not reached():
            if self._process.poll() is not None or time.monotonic() > until:
                raise self._failure("was to go on working")
            time.sleep(_LOOK_S)

    def until_begun(self, batch: int, *, at_most_s: float = math.inf) -> None:
        """Let it work until this batch, or a later one, is begun, or for so long."""
        over = time.monotonic() + at_most_s
        self.until(lambda: self._lander.begun() >= batch or time.monotonic() >= over)

    def rest(self, seconds: float) -> None:
        """Let it work for so long, or until it ends by itself."""
        until = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def kill_executors(self, chance: random.Random, count: int) -> bool:
        """`kill -9` so many of its executors; return whether a batch was begun and not done."""
        self.until(lambda: bool(executors_of(self._process.pid)))
        there = sorted(executors_of(self._process.pid))
        for pid in chance.sample(there, min(count, len(there))):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        return self._lander.begun() > self._lander.done()

    def kill(self) -> bool:
        """`kill -9`; return whether a batch was begun and not done."""
        alive = self.is_alive
        with contextlib.suppress(ProcessLookupError):  # it was killed before
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return alive and self._lander.begun() > self._lander.done()

    def finish(self, within_s: float) -> None:
        """Wait for its end.

        Raises:
            LandingFailedError: it did not end well, or not in time.

        """
        self.rest(within_s)
        if self._process.poll() != 0:
            raise self._failure("was to end well")

    def _failure(self, what: str) -> LandingFailedError:
        tail = self._lander.log.read_text(errors="replace")[-4000:]
        return LandingFailedError(f"the driver {what}, and did not: status={self._process.returncode}\n{tail}")
