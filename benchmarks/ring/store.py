"""A ring and its writer, with as much of a producer as it takes to fill, settle and reuse it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiorecover.ring.backlog import Recovered, fill_lanes, recover
from aiorecover.ring.directory import Directory
from aiorecover.ring.files import Files
from aiorecover.ring.format import BatchState
from aiorecover.ring.lane import Cursor
from aiorecover.ring.loading import read_ahead, take_ahead
from aiorecover.ring.opening import open_ring
from aiorecover.ring.records import VARINT
from aiorecover.ring.ring import Limits, Ring
from aiorecover.ring.writer import Writer
from benchmarks import load

TOPIC = "orders"
KEYS = [b"key-%d" % number for number in range(6)]
TURN = 256  # records between two turns of the loop, as publish gives them
TURN_KEYS = (KEYS * TURN)[:TURN]
MAX_BYTES = 1 << 40  # the disk is looked at before

Append = Callable[[str, bytes, bytes, int], Any]


class OtherBoot(Files):
    """The operating system after the machine was started again."""

    def boot_id(self) -> str:
        """Return an id that no machine has."""
        return "00000000-0000-4000-8000-000000000000"


class Store:
    """An open ring; `recover` and `fill_lanes` add what earlier lives left."""

    def __init__(self, directory: str, lanes: int = len(KEYS), *, files: Files | None = None) -> None:
        self.ring = Ring(Directory.take(directory, files=files), Limits(MAX_BYTES, min_free=0))
        self._left = open_ring(self.ring)
        self.writer = Writer(self.ring.producer_id, self.ring.epoch, self._find)
        self.ring.next_sequence = self.writer.next_sequence
        self._lanes = lanes

    def _find(self, topic: str, key: bytes, partition: int | None) -> tuple[Cursor, bytes]:
        assert partition is None
        cursor = self.ring.lane(topic, KEYS.index(key) % self._lanes).published
        self.writer.lanes.setdefault(topic, {})[key] = found = cursor, VARINT[len(key)] + key
        return found

    def recover(self) -> Recovered:
        """Read what earlier lives left, and store what follows from it."""
        return recover(self.ring, self._left)

    def fill_lanes(self, found: Recovered) -> None:
        """Put what `recover` found into the lanes."""
        fill_lanes(self.ring, found)

    def seal(self) -> None:
        """Seal the batches that are open."""
        for lane in self.ring.lanes.values():
            if lane.published.index:
                lane.published.seal()

    def settle(self) -> None:
        """Settle all sealed batches, as if Kafka had acknowledged them."""
        ring = self.ring
        for lane in ring.lanes.values():
            while True:
                if lane.short or (lane.later and lane.head is None):
                    take_ahead(ring, lane, read_ahead(ring, lane))
                batch = lane.head
                if batch is None:
                    break
                ring.finish(batch, BatchState.SETTLED)

    def flush(self) -> None:
        """Flush without a keeper."""
        flusher = self.ring.flusher
        job = flusher.begin()
        flusher.run(job)
        flusher.complete(job)

    def close(self) -> None:
        """Let go of the directory, and leave in it what is there."""
        self.ring.close()


async def store_turns(append: Append, turns: int) -> None:
    """Store `TURN` records a turn, then give the loop one, as a publisher that never pauses would."""
    keys = TURN_KEYS
    for _ in range(turns):
        timestamp = now_ms()
        for key in keys:
            append(TOPIC, key, load.VALUE, timestamp)
        await asyncio.sleep(0)


def now_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000
