"""The publishing process as the demonstration sees it: start it, listen to it, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from aiorecover.cli.demo.child import Task
from aiorecover.cli.demo.verdict import Ordinal
from aiorecover.cli.endings import FAILED, EndedError
from aiorecover.cli.inspection import inspect
from aiorecover.errors import ConfigError
from aiorecover.testing.mock_cluster_process import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorecover.cli.demo.view import View

__all__ = ["DemoError", "Publisher", "Stage", "log_tail"]

POLL_S = 0.02
READ_BLOCK = 1 << 16
LOG_LINES_SHOWN = 15


class DemoError(EndedError):
    """The demonstration itself broke; it says nothing about the records."""

    def __init__(self, message: str) -> None:
        super().__init__(message, FAILED)


@dataclass(slots=True)
class Stage:
    """The state that the lives of the publisher share; ``task`` is the next one's."""

    view: View
    task: Task
    log: pathlib.Path
    accepted: dict[str, Ordinal] = field(default_factory=dict)
    kills: int = 0
    recovered: int = 0


class Publisher:
    """One life of the publishing process, and what it reports."""

    def __init__(self, stage: Stage, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self.pending = 0
        self.opened = self.finished = False
        self._stage, self._process = stage, process
        self._recovered = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, stage: Stage) -> Publisher:
        """Start it where the last one's reports end."""
        stage.task.run += 1
        stage.task.first = max((ordinal.number for ordinal in stage.accepted.values()), default=-1) + 1
        stage.task.parent_pid = os.getpid()
        with stage.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aiorecover.cli.demo.child", msgspec.json.encode(stage.task).decode()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=child_environment(),
            )
        return cls(stage, process)

    async def run_until(self, reached: Callable[[], bool]) -> None:
        """Let it publish until something is so.

        Raises:
            DemoError: it has ended by itself.

        """
        while not reached():
            if self._reading.done():
                status = await self._process.wait()
                raise DemoError(f"the publisher ended by itself; exit status {status}; {log_tail(self._stage.log)}")
            self._stage.view.tick(len(self._stage.accepted), self._waiting)
            await asyncio.sleep(POLL_S)

    async def run_for(self, seconds: float) -> None:
        """Let it publish for a while."""
        end = time.monotonic() + seconds
        await self.run_until(lambda: time.monotonic() >= end)

    async def finish(self) -> None:
        """Let it publish and deliver the rest."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self.run_until(lambda: self.finished)
        status = await self._process.wait()
        self._stage.view.event(f"publisher finished, {self.pending:,} left in its ring; exit status {status}")

    async def kill(self) -> None:
        """Send SIGKILL, then read what the process had still written."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    def _waiting(self) -> int:
        """Look into the ring from outside: the publisher may be dead, or not know yet what it has."""
        try:
            return sum(one.get("waiting", 0) for one in inspect(pathlib.Path(self._stage.task.wal_dir)))
        except ConfigError:  # it was never started
            return 0

    async def _read(self) -> None:
        stdout = self._process.stdout
        rest = b""
        while stdout is not None and (block := await stdout.read(READ_BLOCK)):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._take(line.decode())

    def _take(self, line: str) -> None:
        stage = self._stage
        word, _, text = line.partition(" ")
        if word == "accepted":
            number, _, record_id = text.partition(" ")
            stage.accepted[record_id] = Ordinal(stage.task.run, int(number))
            return
        report = json.loads(text)
        if word == "opened":
            self.opened = True
            stage.view.event(f"publisher pid {self.pid} runs, epoch {report['epoch']} of the write-ahead log")
            return
        self.pending = report["pending"]
        stage.recovered += report["recovered"] - self._recovered  # it is known some time after the opening
        self._recovered = report["recovered"]
        self.finished = word == "finished"


def log_tail(log: pathlib.Path) -> str:
    """Return the path of the log, and its last lines."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:] if log.exists() else []
    return "\n".join([f"log={log}", *lines])
