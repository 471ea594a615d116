"""The publishing process of the demonstration, the one that is killed.

``python -m aiorecover.cli.demo_child`` with its task as JSON as the only argument. It writes one line for
each thing that happened to its stdout, at once and unbuffered, so that everything written before a SIGKILL is
in the pipe:

    opened {"epoch": 2}              the ring is open
    accepted 42 k5x.../2/43          publish returned for record number 42
    progress {"delivered": 40, "pending": 3, "recovered": 1}     some times a second
    finished {"delivered": 60, "pending": 0, "recovered": 1}     all is delivered, or the time is up
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorecover import RecoverableProducer
from aiorecover.errors import RecoverError
from aiorecover.testing.mock_cluster_process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Task", "main"]

_KEYS = 300
_PROGRESS_SECONDS = 0.05
# Publishing goes in small bursts: a sleep of less than this costs more than it spreads.
_SHORTEST_SLEEP_SECONDS = 0.005
_FLUSH_MS = 20_000


@dataclass(frozen=True, slots=True)
class Task:
    """What one child is to publish: the records ``first`` to ``records - 1``, ``rate`` of them a second."""

    parent_pid: int
    bootstrap_servers: str
    topic: str
    wal_dir: str
    run: int
    first: int
    records: int
    rate: int
    seed: int
    exactly_once: bool


def main() -> None:
    """Publish the task given as JSON in the first argument."""
    task = Task(**json.loads(sys.argv[1]))
    die_with_parent(task.parent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    report = _claim_stdout()
    asyncio.run(_publish(task, report))


async def _publish(task: Task, report: Callable[[str], None]) -> None:
    guarantee = "exactly_once" if task.exactly_once else "at_least_once"
    producer = RecoverableProducer(task.wal_dir, bootstrap_servers=task.bootstrap_servers, guarantee=guarantee)
    async with producer:
        report("opened " + json.dumps({"epoch": producer.statistics().epoch}))
        progress = asyncio.create_task(_report_progress(producer, report))
        try:
            await _publish_records(producer, task, report)
            await _flush(producer)
        finally:
            progress.cancel()
        report("finished " + _counts(producer))


async def _publish_records(producer: RecoverableProducer, task: Task, report: Callable[[str], None]) -> None:
    began = time.monotonic()
    for number in range(task.first, task.records):
        ahead = (number - task.first) / task.rate - (time.monotonic() - began)
        if ahead > 0:
            await asyncio.sleep(max(ahead, _SHORTEST_SLEEP_SECONDS))
        # A checksum is noise enough, and the same after a restart, which starts in the middle.
        noise = zlib.crc32(f"{task.seed}/{number}".encode())
        value = {"run": task.run, "number": number, "text": f"{noise:08x}" * 8}
        receipt = await producer.publish(task.topic, value, key=f"key-{noise % _KEYS}")
        report(f"accepted {number} {receipt.record_id}")


async def _flush(producer: RecoverableProducer) -> None:
    try:
        await producer.flush(timeout_ms=_FLUSH_MS)
    except (RecoverError, TimeoutError) as error:
        # What is still in the ring is reported as pending, and the judge will miss it.
        logging.getLogger(__name__).error("not everything was delivered: %s", error)  # noqa: TRY400


async def _report_progress(producer: RecoverableProducer, report: Callable[[str], None]) -> None:
    while True:
        report("progress " + _counts(producer))
        await asyncio.sleep(_PROGRESS_SECONDS)


def _counts(producer: RecoverableProducer) -> str:
    statistics = producer.statistics()
    names = ("delivered", "pending", "recovered")
    return json.dumps({name: getattr(statistics, name) for name in names})


def _claim_stdout() -> Callable[[str], None]:
    """Keep stdout for the reports; whatever else prints goes to stderr."""
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(line: str) -> None:
        # One write, shorter than PIPE_BUF: a line is in the pipe whole or not at all.
        os.write(pipe, line.encode() + b"\n")

    return report


if __name__ == "__main__":
    main()
