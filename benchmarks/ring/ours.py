"""aiorecover's part: the ring without a producer, the producer without Kafka, and reading back what they stored."""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiorecover import RecoverableProducer
from aiorecover import record as rec
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from benchmarks import load

SLOT_BYTES = 16 * 1024 * 1024  # the producer's default
MAX_BYTES = 1 << 40  # the disk is looked at before
STEP = 512  # records that are read at once: the dispatcher's
TOPIC = "nobody-reads-this"


def opened(directory: str) -> Directory:
    """The instance directory behind ``directory``, locked."""
    return open_directory(Options(Path(directory), SLOT_BYTES, MAX_BYTES, min_free_bytes=0))


def read_back(directory: str, decode: Callable[[memoryview], Any]) -> Iterator[Any]:
    """Every record that waits in a directory, oldest first, through the reader that delivery uses."""
    found = opened(directory)
    reader = Reader(found.ring, decode)
    while taken := reader.take(STEP):
        yield from taken.records
    assert not found.ring.damage, f"the ring was damaged: damage={found.ring.damage[0]}"
    found.close()


def payloads_back(directory: str) -> Iterator[bytes]:
    """What `RingStore` stored."""
    return read_back(directory, bytes)


def values_back(directory: str) -> Iterator[bytes]:
    """What `PublishStore` published."""
    return (record[rec.VALUE] for record in read_back(directory, rec.decode))


class RingStore:
    """`Ring.append`, with the keeper's thread beside it as in the producer: the next slot is made ahead of need."""

    def __init__(self, directory: str, sync_every_s: float | None = None) -> None:
        """``sync_every_s``: an fdatasync beside the appends so often; None never flushes."""
        self._directory = opened(directory)
        self.ring = self._directory.ring
        self._keeper = Keeper("benchmark-keeper")
        self._sync_every_s = sync_every_s
        self._busy: asyncio.Future[Any] | None = None
        self._synced = time.perf_counter()
        self.settled = 0

    async def store(self, chunk: list[bytes]) -> None:
        append = self.ring.append
        for payload in chunk:
            append(payload, payload)
        await self._look_after()

    async def store_timed(self, chunk: list[bytes], times: "array[int]") -> None:
        append, clock = self.ring.append, time.perf_counter_ns
        for payload in chunk:
            began = clock()
            append(payload, payload)
            times.append(clock() - began)
        await self._look_after()

    async def _look_after(self) -> None:
        """What the producer's loops do; never waits for the disk."""
        if self._busy is not None and not self._busy.done():
            await asyncio.sleep(0)
            return
        if self._busy is not None:
            self._busy.result()
            self._busy = None
        if self.ring.wants_spare:
            self._busy = self._keeper.submit(self.ring.prepare_spare)
        elif self._sync_every_s is not None and time.perf_counter() - self._synced >= self._sync_every_s:
            self._synced = time.perf_counter()
            self._busy = self._keeper.submit(self.flush)

    def flush(self) -> None:
        """In the keeper's thread."""
        self.ring.sync()

    async def checkpoint(self) -> None:
        """Wait for one: an opening behind it knows what was flushed."""
        await self._keeper.submit(self._directory.write_checkpoint, self._directory.next_checkpoint())


class SettlingStore(RingStore):
    """The same while everything is read and settled in turn, checkpoints are written and slots recycled."""

    def __init__(self, directory: str, sync_every_s: float) -> None:
        super().__init__(directory, sync_every_s)
        self._reader = Reader(self.ring, bytes)
        self._captured = self._checkpoint()

    async def _look_after(self) -> None:
        while taken := self._reader.look(STEP):
            self.ring.settle(taken.slot, taken.places)
            self.settled += len(taken)
        if self._busy is None or self._busy.done():
            self._directory.recycle(self._directory.checkpoint)
            self._captured = self._checkpoint()
        await super()._look_after()

    def _checkpoint(self) -> Any:
        return self._directory.next_checkpoint()

    def flush(self) -> None:
        self._directory.write_checkpoint(self._captured)


class SyncedRingStore(RingStore):
    """`Ring.append`, and the record is on the disk before the next one; or a chunk, before the next chunk."""

    def __init__(self, directory: str, *, together: bool) -> None:
        super().__init__(directory)
        self._together = together

    async def store(self, chunk: list[bytes]) -> None:
        await self.store_timed(chunk, array("q"))

    async def store_timed(self, chunk: list[bytes], times: "array[int]") -> None:
        parts = [chunk] if self._together else [[payload] for payload in chunk]
        for part in parts:
            began = time.perf_counter_ns()
            for payload in part:
                self.ring.append(payload, payload)
            await self._keeper.submit(self.ring.sync)
            times.append(time.perf_counter_ns() - began)
        await self._look_after()


class PublishStore:
    """`await publish` of a producer with its defaults, without Kafka; ``together``: a chunk by 100 tasks at once."""

    def __init__(self, directory: str, fsync: str, *, together: bool = False) -> None:
        self._producer: RecoverableProducer = load.producer(directory, load.NOBODY, fsync=fsync)
        self._together = together
        self._started = False
        self.settled = 0

    async def store(self, chunk: list[bytes]) -> None:
        if not self._started:
            await self._producer.start()
            self._started = True
        publish = self._producer.publish
        if self._together:
            await asyncio.gather(*[publish(TOPIC, payload) for payload in chunk])
            return
        for payload in chunk:
            await publish(TOPIC, payload)

    async def store_timed(self, chunk: list[bytes], times: "array[int]") -> None:
        publish, clock = self._producer.publish, time.perf_counter_ns
        if self._together:
            began = clock()
            await self.store(chunk)
            times.append(clock() - began)
            return
        for payload in chunk:
            began = clock()
            await publish(TOPIC, payload)
            times.append(clock() - began)
