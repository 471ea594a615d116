"""The publishing process as the demonstration's director sees it: start it, listen to it, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from aiorecover.cli.demo_child import Task
from aiorecover.cli.demo_verdict import Ordinal
from aiorecover.testing.mock_cluster_process import child_environment

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from aiorecover.cli.demo import Options
    from aiorecover.cli.demo_view import View
    from aiorecover.testing.mock_cluster_process import MockClusterProcess

__all__ = ["DemoError", "Publisher", "Stage", "log_tail"]

_POLL_SECONDS = 0.02
_READ_BLOCK = 1 << 16
_LOG_LINES_SHOWN = 15


class DemoError(Exception):
    """The demonstration itself broke; it says nothing about the records."""


@dataclass(slots=True)
class Stage:
    """What the acts of the demonstration share."""

    options: Options
    view: View
    broker: MockClusterProcess | None
    bootstrap_servers: str
    topic: str
    wal_dir: pathlib.Path
    log: pathlib.Path
    accepted: dict[str, Ordinal] = field(default_factory=dict)
    runs: int = 0
    kills: int = 0
    recovered: int = 0
    # Delivered by the publishers that are gone, as far as they could say.
    delivered_before: int = 0


class Publisher:
    """One life of the publishing process, and what it reports."""

    def __init__(self, stage: Stage, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self.pending = 0
        self.opened = False
        self.finished = False
        self._stage = stage
        self._process = process
        self._delivered = 0
        self._recovered = 0
        self._killed = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, stage: Stage) -> Publisher:
        """Start it where the last one's reports end."""
        stage.runs += 1
        last = max((ordinal.number for ordinal in stage.accepted.values()), default=-1)
        task = Task(
            parent_pid=os.getpid(),
            bootstrap_servers=stage.bootstrap_servers,
            topic=stage.topic,
            wal_dir=str(stage.wal_dir),
            run=stage.runs,
            first=last + 1,
            records=stage.options.records,
            rate=stage.options.rate,
            seed=stage.options.seed,
            exactly_once=stage.options.exactly_once,
        )
        with stage.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aiorecover.cli.demo_child", json.dumps(asdict(task))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=child_environment(),
            )
        stage.view.progress.child_pid = process.pid
        return cls(stage, process)

    async def run_until(self, reached: Callable[[], bool]) -> None:
        """Let it publish until something is so; ``DemoError`` if it ends by itself instead."""
        while not (reached() or self.finished):
            if self._reading.done():
                status = await self._process.wait()
                tail = log_tail(self._stage.log)
                raise DemoError(f"the publisher ended by itself; exit status {status}; {tail}")
            self._stage.view.tick()
            await asyncio.sleep(_POLL_SECONDS)

    async def run_for(self, seconds: float) -> None:
        """Let it publish for a while."""
        end = time.monotonic() + seconds
        await self.run_until(lambda: time.monotonic() >= end)

    async def finish(self) -> None:
        """Let it publish and deliver the rest."""
        await self.run_until(lambda: self.finished)
        await self._reading
        status = await self._process.wait()
        self._stage.view.event(f"publisher finished, {self.pending:,} left in its ring; exit status {status}")

    async def kill(self) -> None:
        """SIGKILL, then read what it had still written; nothing happens if it has ended already."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading
        self._stage.delivered_before += self._delivered

    async def _read(self) -> None:
        stdout = self._process.stdout
        rest = b""
        while stdout is not None and (block := await stdout.read(_READ_BLOCK)):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._take(line.decode())

    def _take(self, line: str) -> None:
        stage = self._stage
        word, _, text = line.partition(" ")
        if word == "accepted":
            number, _, record_id = text.partition(" ")
            stage.accepted[record_id] = Ordinal(stage.runs, int(number))
            stage.view.progress.accepted = len(stage.accepted)
            return
        report = json.loads(text)
        if word == "opened":
            self.opened = True
            stage.view.event(f"publisher pid {self.pid} runs, epoch {report['epoch']} of the write-ahead log")
            return
        self._delivered, self.pending = report["delivered"], report["pending"]
        # It is found bit by bit: opening does not read what an earlier life left behind.
        stage.recovered += report["recovered"] - self._recovered
        self._recovered = report["recovered"]
        stage.view.progress.delivered = stage.delivered_before + self._delivered
        stage.view.progress.pending = self.pending
        self.finished = word == "finished"


def log_tail(log: pathlib.Path) -> str:
    """Where the log is, and how it ends."""
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:] if log.exists() else []
    return "\n".join([f"log={log}", *lines])
