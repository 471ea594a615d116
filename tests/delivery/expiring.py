"""A stand-in for Kafka that may be away, and a clock that a test sets: for what expires."""

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import DeadLetter, RecoverableProducer
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.session import Session
from aiorecover.testing import MemoryDisk
from aiorecover.testing.memory_file_system import MemoryFileSystem
from tests.delivery.refusing import Broker, Sent
from tests.support.eventually import until

__all__ = ["LIMIT", "Clock", "Distant", "adds_up", "distant", "failing", "letters_of", "producer_on", "stored"]

LIMIT = 60_000  # ms; the clock is set, nobody waits for it


class Distant(Broker):
    """A broker that is away until `come`, and may take nothing of some topics."""

    def __init__(self, **topics: int) -> None:
        super().__init__(**topics)
        self.sessions: list[Any] = []
        self.away = False
        self._last: dict[tuple[str, int], tuple[tuple[int, int, int], int]] = {}

    def session(self) -> type[Session]:
        broker, base = self, super().session()

        class Far(base):  # type: ignore[misc, valid-type]
            def start(self) -> None:
                broker.sessions.append(self)
                if not broker.away:
                    self.connect()

            def connect(self) -> None:
                super().connect()
                self._connected.set()

            async def close(self) -> None:
                self._closing = True
                self._connected.set()

            async def identity(self) -> Any:
                await self._connected.wait()
                return Identity(1 + broker.sessions.index(self), 0)

            async def send(self, *batch: Any) -> Any:
                await self._connected.wait()
                return await super().send(*batch)

            def partitions(self, topic: str) -> frozenset[int]:
                return super().partitions(topic) if self._connected.is_set() else frozenset()

        return Far

    def take(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        """A repeat of the last batch is answered, as by Kafka, and not appended."""
        place = topic, partition
        if batch.identity is not None and self._last.get(place) == (batch.identity, batch.count):
            return RecordMetadata(topic, partition, TopicPartition(topic, partition), -1, 0, 0, 0)
        metadata = super().take(batch, topic, partition)
        if batch.identity is not None:
            self._last[place] = batch.identity, batch.count
        return metadata

    def come(self) -> None:
        self.away = False
        for session in self.sessions:
            if not session._closing:
                session.connect()


class Clock:
    """The time since boot, as a test sets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ms = 1_000_000
        patch.setattr(MemoryFileSystem, "since_boot_ms", lambda _: self.ms)

    async def age(self, producer: RecoverableProducer, ms: int = 2 * LIMIT) -> None:
        """Let what is there become so much older, however quickly the loops look."""
        directory = stored(producer)
        self.ms += 200
        await until(lambda: directory.ages._marks == [] or directory.ages._marks[-1][0] >= directory.ring.last_position)
        self.ms += ms

    async def known(self, producer: RecoverableProducer) -> None:
        """Wait until the next process would know how old everything is."""
        directory = stored(producer)
        await self.age(producer, 0)
        await until(lambda: directory.checkpoint.ages.marks[-1][0] >= directory.ring.last_position)


def distant(patch: pytest.MonkeyPatch, **topics: int) -> Distant:
    broker = Distant(**topics)
    patch.setattr(sessions_module, "Session", broker.session())
    return broker


def failing(topic: str, error: Callable[[], BaseException]) -> Callable[[list[Sent]], BaseException | None]:
    return lambda records: error() if records[0].topic == topic else None


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {
        "wal_min_free_bytes": 0,
        "slot_bytes": 64 * 1024,
        "retry_backoff_ms": 1,
        "checkpoint_interval_ms": 20,
        "delivery_timeout_ms": LIMIT,
        "stop_timeout_ms": 300,
        **options,
    }
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def stored(producer: RecoverableProducer) -> Any:
    assert producer._opened is not None
    return producer._opened.directory


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


def adds_up(producer: RecoverableProducer) -> None:
    """I9."""
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.pending, now
