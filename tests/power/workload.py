"""The process whose machine loses its power: `python -m tests.power.workload` with its `Task` as JSON.

It publishes through the public interface only, from many coroutines at once, and says what it knows, one line each:

    O <point> <epoch>                       the directory was opened
    A <point> <epoch> <sequence> <number>   publish returned
    D <point> <epoch> <sequence>            delivered; the record may be settled from now on, and not before

<point> is a number of entries of the disk's log, read after the event (for D: before it is settled): whatever the
disk holds at that point or later, the event had happened. Without a counter file it is 0.
"""

import asyncio
import json
import mmap
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiorecover import DeliveryReport, RecoverableProducer, WalFullError
from tests.power import planted
from tests.power.boot import boot_is
from tests.power.records import value_of
from tests.power.words import line

__all__ = ["NOWHERE", "Task", "main"]

NOWHERE = "127.0.0.1:1"  # nothing listens there
_TOPIC = "power"
_KEYS = 40
_PARTITIONS = 3
_PAUSES_S = (0.0, 0.0, 0.001, 0.01)  # a publisher's: with some, a sync covers one record


@dataclass(frozen=True)
class Task:
    """What one process does: open ``wal_dir``, publish so much or so long, stop or kill itself."""

    wal_dir: str
    life: int
    seed: int
    records: int
    seconds: float
    publishers: int
    said: str
    """A file, appended to, or a terminal."""
    counter: str | None = None
    boot_id: str | None = None
    """A file in which the machine's boot id stands; None: the kernel's own."""
    broker: bool = False
    """Deliver meanwhile, to a broker that comes and goes."""
    stuck: bool = False
    """The broker stays, and leads all partitions but one: what waits for that is moved out of the ring's way."""
    kill: bool = False
    fault: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Witness:
    """Says what is certain, each with the point of the log at which it was."""

    def __init__(self, said: str, counter: str | None) -> None:
        self._said = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o600)
        self._counter = memoryview(bytes(8)).cast("Q")
        if counter is not None:
            with Path(counter).open("rb") as file:
                self._counter = memoryview(mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)).cast("Q")

    def say(self, word: str, *numbers: int) -> None:
        os.write(self._said, line(word, self._counter[0], *numbers))


class Publishing:
    """One opening of the directory."""

    def __init__(self, task: Task, witness: Witness) -> None:
        self._task = task
        self._witness = witness
        self._rng = random.Random(f"workload {task.seed}")
        self._next = 0  # number of the next record
        self._over = asyncio.Event()

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            servers, toggle = NOWHERE, None
            if self._task.broker:
                servers, toggle = _mock_cluster(stack, stuck=self._task.stuck)
            producer = RecoverableProducer(
                self._task.wal_dir,
                bootstrap_servers=servers,
                on_delivery=self._delivered,
                on_full="wait" if self._task.broker else "raise",
                **self._task.options,
            )
            await producer.start()
            self._witness.say("O", producer.epoch)
            publishers = [
                asyncio.create_task(self._publish(producer, random.Random(f"{self._task.seed}/{number}")))
                for number in range(self._task.publishers)
            ]
            if self._task.stuck:
                toggle = None
            coming = asyncio.create_task(self._come_and_go(toggle)) if toggle is not None else None
            await asyncio.wait(publishers, timeout=self._task.seconds)
            if self._task.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self._over.set()
            if coming is not None:
                await coming
            await asyncio.gather(*publishers)
            await producer.stop(timeout_ms=1000)

    async def _publish(self, producer: RecoverableProducer, rng: random.Random) -> None:
        while not self._over.is_set() and self._next < self._task.records:
            number = self._next
            self._next = number + 1
            try:
                receipt = await producer.publish(
                    _TOPIC, value_of(self._task.life, number), key=f"key-{rng.randrange(_KEYS)}"
                )
            except WalFullError:
                return
            self._witness.say("A", receipt.epoch, receipt.sequence, number)
            await asyncio.sleep(rng.choice(_PAUSES_S))

    def _delivered(self, report: DeliveryReport) -> None:
        _, epoch, sequence = report.record_id.split("/")
        self._witness.say("D", int(epoch), int(sequence))

    async def _come_and_go(self, toggle: Callable[[bool], None]) -> None:
        """At the end the broker is there: who waits for space gets it."""
        there = True
        while not self._over.is_set():
            there = not there
            toggle(there)
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
        toggle(True)


def _mock_cluster(stack: AsyncExitStack, *, stuck: bool) -> tuple[str, Callable[[bool], None]]:
    from aiorecover.testing import MockCluster  # noqa: PLC0415 - its wheel is not in the guest

    cluster = stack.enter_context(MockCluster())
    cluster.create_topic(_TOPIC, _PARTITIONS)
    if stuck:
        cluster.set_leader(_TOPIC, 0, None)
    return cluster.bootstrap_servers, lambda there: cluster.broker_up() if there else cluster.broker_down()


def main() -> None:
    """Carry out the task."""
    task = Task(**json.loads(sys.argv[1]))
    if task.boot_id is not None:
        boot_is(Path(task.boot_id))
    if task.fault is not None:
        planted.plant(task.fault)
    asyncio.run(Publishing(task, Witness(task.said, task.counter)).run())


if __name__ == "__main__":
    main()
