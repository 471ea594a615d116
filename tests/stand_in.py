"""A stand-in for Kafka that refuses what a test says, and keeps the log of what it took: put in the session's place."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import LeaderNotAvailableError, OutOfOrderSequenceNumber
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.delivery import sessions
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.frames import frames_of, record_at
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.session import Session

__all__ = ["Broker", "Recording", "Sent", "put_in_place", "rows_in"]


class StandIn(Session):
    """Connected at once, without a broker."""

    def start(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.state = "connected"
        self._connected.set()
        self.rebuilds += 1
        asyncio.get_running_loop().call_soon(self._on_metadata)

    async def close(self) -> None:
        self._closing = True

    async def identity(self) -> Identity:
        return Identity(1, 0)

    def available(self, topic: str) -> frozenset[int]:
        return self.partitions(topic)

    async def discover(self) -> None:
        self._on_metadata()


class Sent(NamedTuple):
    """One record as it was sent."""

    topic: str
    value: bytes
    timestamp_ms: int


def sent_in(batch: LaneBatch, topic: str) -> list[Sent]:
    """What stands in its bytes, whatever has become of its frames."""
    found = MemoryRecords(bytes(batch._build())).next_batch() or ()
    return [Sent(topic, record.value or b"", record.timestamp or 0) for record in found]


Verdict = Callable[[list[Sent]], BaseException | None]


class Broker:
    """What the stand-in knows, refuses and took. It checks sequences as Kafka does."""

    def __init__(self, **topics: int) -> None:
        self.topics = topics or {"t": 1}
        self.refuses: Verdict = lambda _: None
        self.answers = asyncio.Event()  # cleared: takes nothing and answers nothing
        self.answers.set()
        self.sends: list[tuple[str, int, tuple[int, int, int], int]] = []  # topic, partition, identity, records
        self.held = 0  # batches that wait for an answer
        self.log: dict[tuple[str, int], list[bytes]] = {}
        self._next: dict[tuple[str, int], tuple[int, int, int]] = {}

    def take(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        """As a broker would: the records first, then the identity."""
        assert batch.identity is not None
        place, identity = (topic, partition), batch.identity
        self.sends.append((topic, partition, identity, batch.count))
        records = sent_in(batch, topic)
        refusal = self.refuses(records)
        if refusal is not None:
            raise refusal
        producer, epoch, base = identity
        known = self._next.get(place)
        expected = 0 if known is None or known[:2] != (producer, epoch) else known[2]
        if base != expected:
            raise OutOfOrderSequenceNumber
        self._next[place] = (producer, epoch, base + batch.count)
        log = self.log.setdefault(place, [])
        log += [record.value for record in records]
        return RecordMetadata(topic, partition, TopicPartition(topic, partition), len(log) - batch.count, 0, 0, 0)

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        """What stands in a partition's log."""
        return self.log.get((topic, partition), [])

    def make_anew(self, topic: str, partitions: int) -> None:
        """The topic is deleted, and made anew: all that it held is gone, and what was known of its producers."""
        self.topics[topic] = partitions
        self.log = {place: log for place, log in self.log.items() if place[0] != topic}
        self._next = {place: known for place, known in self._next.items() if place[0] != topic}

    def forget(self) -> None:
        """What it knows of every identity."""
        self._next.clear()

    def session(self) -> type[Session]:
        """The class to put in the place of `Session`."""
        broker = self

        class Refusing(StandIn):
            async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
                await asyncio.sleep(0)
                broker.held += 1
                await broker.answers.wait()
                broker.held -= 1
                if partition not in self.partitions(topic):  # as `requests`: who meets that asks for metadata
                    asyncio.get_running_loop().call_soon(self._on_metadata)
                    raise LeaderNotAvailableError
                return broker.take(batch, topic, partition)

            def partitions(self, topic: str) -> frozenset[int]:
                return frozenset(range(broker.topics.get(topic, 0)))

        return Refusing


class Recording(Broker):
    """Keeps whole records, too."""

    def __init__(self, **topics: int) -> None:
        super().__init__(**topics)
        self.records: dict[str, list[Any]] = {}

    def take(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        metadata = super().take(batch, topic, partition)
        self.records.setdefault(topic, []).extend(record_at(*frame) for frame in frames_of(batch))
        return metadata


def rows_in(batch: Any) -> list[tuple[bytes, bytes]]:
    """Key and value of each record of a batch."""
    found = MemoryRecords(bytes(batch._build())).next_batch() or ()
    return [(record.key or b"", record.value or b"") for record in found]


def put_in_place(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Producers that start from here on find it in Kafka's place."""
    monkeypatch.setattr(sessions, "Session", broker.session())
    return broker
