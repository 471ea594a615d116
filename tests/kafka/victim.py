"""A process that publishes until it is killed, and writes down each record that was accepted.

``python -m tests.kafka.victim TASK``, a `Task` as JSON. It ends with its stdin, so with the process that started it.

Its log has a line for each record: id, key, value. ``# life`` begins a life, ``# covered N`` says that a completed
flush covers the first N records of it, ``# all covered N`` that it covers what earlier lives left, too. For a power cut
the file ``durable`` beside the log is the ring as the last completed flush found it: of each sector the disk has what
stands there, or something newer.
"""

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiorecover.producer import RecoverableProducer
from aiorecover.ring.files import Files

DELIVERED_WITHIN_MS = 120_000


@dataclass(frozen=True)
class Task:
    """The work of one life: publish until it is killed, or deliver what is left.

    keys: so many keys; keyless: one record in so many has none.
    pause_s: between two bursts of 100 records or so.
    boot: the machine's boot id; None: the true one, and no power cut follows.
    """

    wal_dir: str
    servers: str
    topic: str
    log: str
    seed: int
    keys: int = 40
    keyless: int = 11
    boot: str | None = None
    drain: bool = False
    pause_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


class Log:
    """The records that were accepted in this life."""

    def __init__(self, path: str) -> None:
        self.count = 0
        self.recovered = False  # what earlier lives left is in the lanes
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, b"# life\n")

    def accepted(self, record_id: str, key: bytes | None, value: bytes) -> None:
        name = "" if key is None else key.decode()
        os.write(self._file, f"{record_id} {name} {value.decode()}\n".encode())
        self.count += 1

    def covered(self, count: int, *, recovered: bool) -> None:
        os.write(self._file, b"# %bcovered %d\n" % (b"all " if recovered else b"", count))


class DiskFiles(Files):
    """The operating system, on a machine whose power can be cut."""

    def __init__(self, boot: str, log: Log, durable: Path) -> None:
        super().__init__()
        self._boot, self._log, self._durable = boot, log, durable
        self._before = 0, False  # what there was when the keeper's last flush had ended: its next one covers it
        self._lock = threading.Lock()  # the opening flushes beside the keeper

    def boot_id(self) -> str:
        return self._boot

    def flush(self, fd: int) -> None:
        with self._lock:
            copy = self._durable.with_suffix(".new")
            copy_file(fd, copy)
            super().flush(fd)
            copy.rename(self._durable)
        if threading.current_thread().name == "aiorecover-keeper":
            count, recovered = self._before
            self._log.covered(count, recovered=recovered)
            self._before = self._log.count, self._log.recovered


class Disk(os.PathLike[str]):
    """A directory that brings its own files."""

    def __init__(self, path: str, files: Files) -> None:
        self._path, self.files = path, files

    def __fspath__(self) -> str:
        return self._path


def copy_file(fd: int, path: Path) -> None:
    """Copy a file, holes as holes."""
    size = os.fstat(fd).st_size
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(target, size)
    place = 0
    while place < size:
        try:
            start = os.lseek(fd, place, os.SEEK_DATA)
        except OSError:  # nothing but a hole follows
            break
        place = os.lseek(fd, start, os.SEEK_HOLE)
        while start < place:
            start += os.pwrite(target, os.pread(fd, min(1 << 20, place - start), start), start)
    os.close(target)


async def publish(producer: RecoverableProducer, task: Task, log: Log, chance: random.Random) -> None:
    number = task.seed * 1_000_000
    while True:
        log.recovered = log.recovered or not producer.statistics().recovering
        for _ in range(chance.choice((1, 10, 300))):
            number += 1
            key = b"key-%d" % (number % task.keys) if number % task.keyless else None
            value = b"%d:" % number + b"x" * chance.randrange(300)
            receipt = await producer.publish(task.topic, value, key=key)
            log.accepted(receipt.record_id, key, value)
        await asyncio.sleep(task.pause_s + chance.choice((0.0, 0.0, 0.001, 0.02)))


async def main(task: Task) -> None:
    chance = random.Random(task.seed)
    log = Log(task.log)
    wal_dir: str | Disk = task.wal_dir
    if task.boot is not None:
        wal_dir = Disk(task.wal_dir, DiskFiles(task.boot, log, Path(task.log).with_name("durable")))
    always = task.options.get("guarantee") != "exactly_once" and chance.random() < 0.2
    options: dict[str, Any] = {"fsync": "always" if always else "interval", **task.options}
    async with RecoverableProducer(wal_dir, bootstrap_servers=task.servers, **options) as producer:
        if task.drain:
            await producer.flush(DELIVERED_WITHIN_MS)
        else:
            await publish(producer, task, log, chance)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def as_json(task: Task) -> str:
    return json.dumps(dataclasses.asdict(task))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background leaves it ignored
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(main(Task(**json.loads(sys.argv[1]))))
