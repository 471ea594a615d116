"""A stand-in for the session with a broker behind it that knows batches as Kafka does, and outlives its publishers."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.session import Session
from tests.delivery.stand_in import StandIn

REMEMBERED = 5  # batches of a producer id that Kafka answers as repeats


@dataclass
class Known:
    """What a partition remembers of a producer id."""

    epoch: int
    following: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # base sequence, count, offset


class Broker:
    """Partitions with their logs; `snapshot` is the same broker at this moment, for another course of things."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.logs: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
        self.repeats = 0
        self.refuses: Callable[[list[bytes]], BaseException | None] = lambda _: None
        self._known: dict[tuple[int, int], Known] = {}
        self._producers = 0

    def snapshot(self) -> "Broker":
        return copy.deepcopy(self)

    def new_producer(self) -> int:
        self._producers += 1
        return self._producers

    def take(self, partition: int, data: bytes) -> int:
        """Append the batch or recognise it; its offset. The records are looked at first, as by Kafka."""
        found: Any = MemoryRecords(data).next_batch()
        assert found is not None
        values = [record.value for record in found]
        refusal = self.refuses(values)
        if refusal is not None:
            raise refusal
        log = self.logs[partition]
        known = self._known.setdefault((partition, found.producer_id), Known(found.producer_epoch, found.base_sequence))
        if found.producer_epoch < known.epoch:
            raise ProducerFenced
        if found.producer_epoch > known.epoch:
            known = self._known[partition, found.producer_id] = Known(found.producer_epoch, 0)
        for base, count, offset in known.batches:
            if (base, count) == (found.base_sequence, len(values)):
                self.repeats += 1
                return offset
        if found.base_sequence != known.following:
            raise OutOfOrderSequenceNumber
        known.following += len(values)
        known.batches = [*known.batches, (found.base_sequence, len(values), len(log))][-REMEMBERED:]
        log += values
        return len(log) - len(values)

    def session(self, at: Callable[[str, bytes], Awaitable[None]] | None = None) -> type[Session]:
        """The class to put in the place of `Session`; ``at`` is told of each step, with the batch's bytes."""
        broker = self

        async def nowhere(_: str, __: bytes) -> None:
            pass

        told = at or nowhere

        class Remembering(StandIn):
            def start(self) -> None:
                self.producer = Identity(broker.new_producer(), 0)
                self.connect()

            async def identity(self) -> Identity:
                return self.producer

            async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
                data = bytes(batch._build())
                await asyncio.sleep(0)
                await told("before it is appended", data)
                offset = broker.take(partition, data)
                await told("before it is acknowledged", data)
                return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, 0, 0, 0)

            def partitions(self, topic: str) -> frozenset[int]:
                return frozenset(range(broker.partitions))

        return Remembering
