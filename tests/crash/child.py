"""The publishing process of the kill cycles: it publishes, says what was accepted, and is killed.

Forked (`tests.crash.forking`), or `python -m tests.crash.child` with its `Task` as JSON as the only argument. At
SIGTERM, once it has opened, what it is about is cancelled, and it stops. What it says goes through two pipes:

    reports (the descriptor `report_fd`), one line for each thing that is certain
        A <topic> <partition> <key> <digest> <record id>      publish returned
        D <topic> <record id>                                 receipt.delivered() returned
    stdout, one line at once for each thing that happens
        starting | opened <epoch> <producer id> | <step> | recovered <records> | resumed <batches> | damage ...
        uneven ... | refused <cluster id> | full <error> | pace ... (`tests.crash.pace`)
        stopped <statistics as JSON>

Lines of accepted records are written some at a time, by one system call. What stands in the pipe whole was
accepted; a kill may tear the last line, and takes what was not written yet: those records were accepted and nobody
was told, which is always allowed. A line is never written before `publish` has returned.

`-` is None; a key follows `=`, so that an empty one is seen.
"""

import asyncio
import hashlib
import itertools
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import uvloop

from aiorecover import ClosedError, DeliveryPendingError, Receipt, RecoverableProducer, WalFullError
from aiorecover.testing.mock_cluster_process import die_with_parent
from tests.crash import boots, crash_points
from tests.crash.counts import uneven
from tests.crash.pace import LOOK_EVERY_S, Pace

__all__ = ["Task", "digest", "main"]

KEYS = 300
_SHAPES = 997  # a prime: records that follow each other have ever new neighbours
_NOISE_BYTES = 8192
_LOOK_EVERY_S = 0.05
_SHORTEST_SLEEP_S = 0.002
_CONFIRM_EVERY = 61  # so many records for each one whose delivery is awaited
_CONFIRM_LIMIT = 256  # deliveries awaited at the same time


@dataclass(frozen=True)
class Task:
    """What one life does: open `wal_dir`, go through `steps`, stop."""

    parent_pid: int
    report_fd: int
    bootstrap_servers: str
    wal_dir: str
    topics: list[str]
    partitions: int
    life: int
    seed: int
    steps: list[tuple[str, dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    uniform: bool = False
    """Equal records that take turns in the lanes of each topic, instead of mixed ones."""
    poison: int = 0
    """Of the equal records each so many-th has no key, which a topic that is compacted refuses; 0: none."""
    group: int = 16
    """So many accepted records are told by one system call."""
    uvloop: bool = False
    crash: tuple[str, int] | None = None
    """At which point, when it is reached for which time, the process kills itself, see `tests.crash.crash_points`."""
    still: tuple[str, int] | None = None
    """As ``crash``, but there it stands still, until it is told to go on."""
    paced: bool = False
    """Say how it is doing, several times a second."""
    boot_id: str | None = None
    """What the machine says about its boot, instead of the truth."""
    hours_later: int = 0
    """So much more time has passed since the boot than it says."""


class Record(NamedTuple):
    topic: int
    key: str | None
    value: bytes | None
    partition: int | None


def digest(value: bytes | None) -> bytes | None:
    """What the parent keeps of a value."""
    return None if value is None else hashlib.blake2b(value, digest_size=8).hexdigest().encode()


class Report:
    """The pipe to the parent; a write that does not fit waits until the parent has read."""

    def __init__(self, descriptor: int, group: int) -> None:
        self._descriptor = descriptor
        self._group = group
        self._lines: list[bytes] = []

    def accepted(self, record: Record, receipt: Receipt) -> None:
        partition = b"-" if record.partition is None else b"%d" % record.partition
        key = b"-" if record.key is None else b"=" + record.key.encode()
        parts = (partition, key, digest(record.value) or b"-", receipt.record_id.encode())
        self._lines.append(b"A %d %b %b %b %b\n" % (record.topic, *parts))
        if len(self._lines) >= self._group:
            self.write()

    def delivered(self, topic: int, receipt: Receipt) -> None:
        self._lines.append(b"D %d %b\n" % (topic, receipt.record_id.encode()))
        self.write()

    def write(self) -> None:
        data = b"".join(self._lines)
        self._lines.clear()
        while data:
            data = data[os.write(self._descriptor, data) :]


def records(task: Task) -> Iterator[Record]:
    """Records without end; no two values of a run are equal, but for empty ones and tombstones."""
    return _uniform(task) if task.uniform else _mixed(task)


def _uniform(task: Task) -> Iterator[Record]:
    for number in itertools.count():
        key = None if task.poison and number % task.poison == task.poison - 1 else "key"
        rounds, partition = divmod(number, task.partitions)
        value = b"%06d.%08d:%b" % (task.life, number, b"x" * 100)
        yield Record(rounds % len(task.topics), key, value, partition)


def _mixed(task: Task) -> Iterator[Record]:
    rng = random.Random(f"{task.seed}/{task.life}")
    noise = rng.randbytes(_NOISE_BYTES)
    shapes = [_shape(rng, task) for _ in range(_SHAPES)]
    for number, (topic, key, partition, size) in enumerate(itertools.cycle(shapes)):
        value: bytes | None = None
        if size is not None:
            start = number % (_NOISE_BYTES - size)
            value = b"%d.%d:%b" % (task.life, number, noise[start : start + size]) if size else b""
        yield Record(topic, key, value, partition)


def _shape(rng: random.Random, task: Task) -> tuple[int, str | None, int | None, int | None]:
    topic = rng.randrange(len(task.topics))
    kind = rng.choices(["keyed", "placed", "free"], [80, 12, 8])[0]
    key: str | None = None
    partition: int | None = None
    if kind == "keyed":
        key = f"key-{rng.randrange(KEYS)}" if rng.random() < 0.99 else ""
    elif kind == "placed":
        partition = rng.randrange(task.partitions)
        key = f"placed-{rng.randrange(KEYS)}" if rng.random() < 0.5 else None
    sizes = [rng.randrange(20, 200), rng.randrange(200, 1000), rng.randrange(1000, 4000), 0, None]
    size: int | None = rng.choices(sizes, [70, 18, 4, 4, 4])[0]
    return topic, key, partition, 50 if size is None and key is None else size


class Life:
    """One opening of the directory, from start to stop or to the kill."""

    def __init__(self, task: Task, producer: RecoverableProducer, report: Report) -> None:
        self._task = task
        self._producer = producer
        self._report = report
        self._records = records(task)
        self._published = 0
        self._age_ms: int | None = None
        self._may_fill = False
        self._full = False
        self._confirming: set[asyncio.Task[None]] = set()
        self._pace = Pace()

    async def run(self) -> None:
        say("starting")
        async with self._producer as producer:
            steps = asyncio.create_task(self._go_through())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, steps.cancel)
            say(f"opened {producer.epoch} {producer.producer_id}")
            looks = (self._look_for_faults(), self._look_for("recovered"), self._look_for("resumed", "batches_resumed"))
            looking = [asyncio.create_task(look) for look in looks]
            if self._task.paced:
                looking.append(asyncio.create_task(self._say_pace()))
            with suppress(asyncio.CancelledError):  # at SIGTERM
                await steps
            for task in looking:
                task.cancel()
            say("stopping")
            began = time.monotonic()
            left = await producer.stop()
            stop_s = time.monotonic() - began
            await asyncio.gather(*self._confirming)
        self._report.write()
        statistics = msgspec.to_builtins(producer.statistics())
        say(f"stopped {json.dumps({**statistics, 'left': left, 'stop_s': stop_s})}")

    async def _go_through(self) -> None:
        for step, arguments in self._task.steps:
            say(step)
            await getattr(self, f"_{step}")(**arguments)

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def _publish(
        self,
        count: int | None = None,
        seconds: float | None = None,
        rate: int = 0,
        publishers: int = 1,
        age_ms: int | None = None,
        may_fill: bool = False,
    ) -> None:
        """Publish so many records, or so long, or until the kill; `rate` records a second, 0: at full speed.

        `age_ms`: their timestamps are so old; None: the producer sets them. `may_fill`: where there is no room for
        one, it is refused, which is counted, and the next one is tried.
        """
        self._age_ms, self._may_fill = age_ms, may_fill
        began = time.monotonic()
        first = self._published
        until = None if seconds is None else began + seconds

        def goes_on() -> bool:
            done = self._published - first
            return (count is None or done < count) and (until is None or time.monotonic() < until)

        async def one() -> None:
            while goes_on():
                self._published += 1
                await self._publish_next()
                ahead = (self._published - first) / rate - (time.monotonic() - began) if rate else 0.0
                if ahead > 0:
                    self._report.write()
                    await asyncio.sleep(max(ahead, _SHORTEST_SLEEP_S))

        await asyncio.gather(*[one() for _ in range(publishers)])
        self._report.write()

    async def _publish_next(self) -> None:
        number = self._published
        record = next(self._records)
        topic = self._task.topics[record.topic]
        fields: dict[str, Any] = {"key": record.key, "partition": record.partition}
        if self._age_ms is not None:
            fields["timestamp_ms"] = time.time_ns() // 1_000_000 - self._age_ms
        began = time.perf_counter_ns()
        try:
            if number % 7 or self._task.options.get("fsync") == "always":
                receipt = await self._producer.publish(topic, record.value, **fields)
            else:
                receipt = self._producer.publish_nowait(topic, record.value, **fields)
        except WalFullError as error:
            self._refused(error)
            return
        if self._task.paced:
            self._pace.taken.append(time.perf_counter_ns() - began)
        self._full = False
        self._report.accepted(record, receipt)
        poison = self._task.poison and record.key is None
        if number % _CONFIRM_EVERY == 0 and not poison and len(self._confirming) < _CONFIRM_LIMIT:
            confirming = asyncio.create_task(self._confirm(record.topic, receipt))
            self._confirming.add(confirming)
            confirming.add_done_callback(self._confirming.discard)

    def _refused(self, error: WalFullError) -> None:
        """Count it, and say so if the one before it was accepted."""
        if not self._may_fill:
            raise error
        self._pace.refused += 1
        if not self._full:
            say(f"full {error}")
        self._full = True

    async def _confirm(self, topic: int, receipt: Receipt) -> None:
        with suppress(ClosedError, DeliveryPendingError):  # the latter where kafka is another cluster
            await receipt.delivered()
            self._report.delivered(topic, receipt)

    async def _flush(self, timeout_ms: int | None = None) -> None:
        await self._producer.flush(timeout_ms)

    async def _wait(self) -> None:
        """Until the parent writes a line."""
        await asyncio.to_thread(sys.stdin.readline)

    async def _wait_in_flight(self) -> None:
        """Until something was handed over and is not acknowledged."""
        while self._producer.statistics().in_flight == 0:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _wait_checkpointed(self) -> None:
        """Until a checkpoint knows that all was flushed: the first one may have been captured before."""
        before = self._producer.statistics().checkpoints
        while self._producer.statistics().checkpoints < before + 2:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _wait_refused(self) -> None:
        """Until another cluster has answered, and say which: at the end nobody may have answered for a while."""
        while (found := self._producer.statistics().wrong_cluster_id) is None:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(_LOOK_EVERY_S)
        say(f"refused {found}")

    async def _wait_stalled(self, lanes: int) -> None:
        """Until so many lanes are passed over."""
        while self._producer.statistics().lanes_stalled != lanes:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _wait_used_below(self, limit: int, seconds: float) -> None:
        """Until so much of the ring was recycled, or for so long."""
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            if self._producer.statistics().bytes_used < limit:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _look_for_faults(self) -> None:
        """A kill tears no frame: whatever the library says is missing or cannot be decoded is a fault.

        And its counts add up at any time, whoever does not live to tell his last ones.
        """
        while True:
            statistics = self._producer.statistics()
            if statistics.missing or statistics.undeliverable:
                say(f"damage missing={statistics.missing} undeliverable={statistics.undeliverable}")
                return
            if wrong := uneven(msgspec.structs.asdict(statistics)):
                say(f"uneven {wrong[0]}")
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _say_pace(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = self._producer.statistics()
            line = self._pace.line(now.delivered, now.pending, now.bytes_allocated, now.seconds_left)
            say(f"pace {line}")

    async def _look_for(self, word: str, count: str = "") -> None:
        """How much of the lives before was left in the ring, or in flight, when they ended."""
        while not (found := getattr(self._producer.statistics(), count or word)):  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(_LOOK_EVERY_S)
        say(f"{word} {found}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(task: Task) -> None:
    die_with_parent(task.parent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if task.crash is not None:
        crash_points.arm(*task.crash)
    if task.still is not None:
        crash_points.arm(*task.still, signal.SIGSTOP)
    if task.boot_id is not None:
        boots.boot(task.boot_id)
    if task.hours_later:
        boots.later(task.hours_later)
    producer = RecoverableProducer(task.wal_dir, bootstrap_servers=task.bootstrap_servers, **task.options)
    life = Life(task, producer, Report(task.report_fd, task.group))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if task.uvloop else None) as runner:
        runner.run(life.run())


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
