"""The publishing process of the demonstration, the one that is killed.

``python -m aiorecover.cli.demo.child`` with its task as JSON as the only argument. It publishes, goes on delivering,
and ends once its stdin does. It writes a line for each thing that happens to its stdout, at once and unbuffered, so
that everything written before a SIGKILL is in the pipe:

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
from typing import TYPE_CHECKING

import msgspec
import uvloop

from aiorecover import RecoverableProducer
from aiorecover.errors import RecoverError
from aiorecover.testing.mock_cluster_process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Task", "main"]

KEYS = 300
PROGRESS_S = 0.05
SHORTEST_SLEEP_S = 0.005  # records are published in small bursts: a shorter sleep costs more than it spreads
FLUSH_MS = 20_000


class Task(msgspec.Struct):
    """The share of one child: it publishes the records ``first`` to ``records - 1``, ``rate`` of them a second."""

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
    task = msgspec.json.decode(sys.argv[1], type=Task)
    die_with_parent(task.parent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    report = _claim_stdout()
    uvloop.run(_run(task, report))


async def _run(task: Task, report: Callable[[str], None]) -> None:
    producer = RecoverableProducer(
        task.wal_dir,
        bootstrap_servers=task.bootstrap_servers,
        guarantee="exactly_once" if task.exactly_once else "at_least_once",
    )
    async with producer:
        report("opened " + json.dumps({"epoch": producer.statistics().epoch}))
        progress = asyncio.create_task(_report_progress(producer, report))
        try:
            await _publish(producer, task, report)
            await asyncio.to_thread(sys.stdin.read)
            await producer.flush(timeout_ms=FLUSH_MS)
        except RecoverError as error:  # what is still in the ring is reported as pending, and the judge misses it
            logging.getLogger(__name__).error("not everything was delivered: %s", error)  # noqa: TRY400
        finally:
            progress.cancel()
        report("finished " + _counts(producer))


async def _publish(producer: RecoverableProducer, task: Task, report: Callable[[str], None]) -> None:
    began = time.monotonic()
    for number in range(task.first, task.records):
        ahead = (number - task.first) / task.rate - (time.monotonic() - began)
        if ahead > 0:
            await asyncio.sleep(max(ahead, SHORTEST_SLEEP_S))
        # A checksum is noise enough, and the same after a restart, which starts in the middle.
        noise = zlib.crc32(f"{task.seed}/{number}".encode())
        value = {"run": task.run, "number": number, "text": f"{noise:08x}" * 8}
        receipt = await producer.publish(task.topic, value, key=f"key-{noise % KEYS}")
        report(f"accepted {number} {receipt.record_id}")


async def _report_progress(producer: RecoverableProducer, report: Callable[[str], None]) -> None:
    while True:
        report("progress " + _counts(producer))
        await asyncio.sleep(PROGRESS_S)


def _counts(producer: RecoverableProducer) -> str:
    found = producer.statistics()
    return json.dumps({"delivered": found.delivered, "pending": found.pending, "recovered": found.recovered})


def _claim_stdout() -> Callable[[str], None]:
    """Keep stdout for the reports; whatever else prints goes to stderr."""
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(line: str) -> None:
        os.write(pipe, line.encode() + b"\n")  # shorter than PIPE_BUF: it is in the pipe whole or not at all

    return report


if __name__ == "__main__":
    main()
