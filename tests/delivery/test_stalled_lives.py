"""Lives that end by `kill -9` or a power cut while lanes are stalled; Kafka knows repeats."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest
from aiokafka.errors import NotEnoughReplicasAfterAppendError, NotEnoughReplicasError
from aiokafka.record import MemoryRecords
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import stalled as stalled_module
from aiorecover.delivery import stalls as stalls_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity
from aiorecover.record import RECORD_ID_HEADER
from aiorecover.testing import MemoryDisk
from tests.delivery.stand_in import StandIn

pytestmark = pytest.mark.asyncio

PARTITIONS = 8
LIVES = 8
Place = tuple[int, int]
"""Epoch and sequence."""


class Kafka:
    """Logs of one topic's partitions; some take nothing, and some what they say that they have not taken."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.life = 0
        self.identities = 0
        self.stalled: set[int] = set()
        self.slow: dict[int, float] = {}  # seconds more that a batch of a partition takes
        self.logs: dict[int, list[tuple[Place, bool]]] = defaultdict(list)
        self.known: dict[tuple[int, tuple[int, int, int] | None], int] = {}

    def append(self, batch: LaneBatch, partition: int) -> int:
        """The offset; that of the first time for a batch that is repeated."""
        name = partition, batch.identity
        if name not in self.known:
            log = self.logs[partition]
            records = records_of(batch)
            self.known[name] = len(log)
            log += records
        return self.known[name]

    def judge(self, accepted: list[Place], *, once: bool) -> None:
        """Nothing is missing; in each lane, first appearances are in order; with ``once`` there are no others."""
        every = [place for log in self.logs.values() for place, _ in log]
        assert set(every) == set(accepted)
        if once:
            assert len(every) == len(accepted)
        for partition, log in self.logs.items():
            first = list(dict.fromkeys(place for place, has_order in log if has_order))
            assert first == sorted(first), f"partition {partition}"


def records_of(batch: LaneBatch) -> list[tuple[Place, bool]]:
    """Where each record was accepted, and whether its order counts."""
    records = MemoryRecords(bytes(batch._build()))
    found = []
    while (part := records.next_batch()) is not None:
        for record in part:
            _, epoch, sequence = (dict(record.headers)[RECORD_ID_HEADER] or b"").decode().split("/")
            found.append(((int(epoch), int(sequence)), record.value != b"free"))
    return found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STALLED_AFTER", 0.05), ("OTHERS_AFTER", 0.02), ("FIRST_REST", 0.02), ("FIRST_TRIAL", 0.1)):
        monkeypatch.setattr(stalls_module, name, value)
    monkeypatch.setattr(stalled_module, "GATHER", 0.01)


def stand_in_for(kafka: Kafka) -> type[StandIn]:
    class Noting(StandIn):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._life = kafka.life

        async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
            await asyncio.sleep(0.0005 + kafka.slow.get(partition, 0.0))
            if self._life != kafka.life:  # its process is dead
                await asyncio.sleep(3600)
            if partition in kafka.stalled:
                if kafka.rng.random() < 0.3:
                    kafka.append(batch, partition)
                    raise NotEnoughReplicasAfterAppendError
                raise NotEnoughReplicasError
            offset = kafka.append(batch, partition)
            if kafka.rng.random() < 0.05:
                raise NotEnoughReplicasAfterAppendError
            return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, 0, 0, 0)

        async def identity(self) -> Identity:
            kafka.identities += 1
            return Identity(kafka.identities, 0)

        def partitions(self, topic: str) -> frozenset[int]:
            return frozenset(range(PARTITIONS))

    return Noting


def producer_of(disk: MemoryDisk) -> RecoverableProducer:
    options: dict[str, Any] = {"slot_bytes": 1 << 16, "max_batch_size": 1 << 14, "max_request_size": 1 << 15}
    options |= {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "checkpoint_interval_ms": 50, "stop_timeout_ms": 0}
    options |= {"recovery_check": False, "fsync": "never"}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **options)


async def live(producer: RecoverableProducer, kafka: Kafka) -> list[Place]:
    """Publish a while; lanes stall and are well again."""
    rng, accepted = kafka.rng, []
    for _ in range(rng.randrange(1, 8)):
        kafka.stalled = set(rng.sample(range(PARTITIONS), rng.choice((0, 1, 2, 5))))
        for _ in range(rng.randrange(600)):
            value = b"v" * rng.randrange(10, 400)
            kind = rng.random()
            if kind < 0.1:
                receipt = await producer.publish("t", b"free")
            elif kind < 0.5:
                receipt = await producer.publish("t", value, partition=rng.randrange(PARTITIONS))
            else:
                receipt = await producer.publish("t", value, key=b"%d" % rng.randrange(100))
            accepted.append((receipt.epoch, receipt.sequence))
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.1, 0.2)))
    return accepted


@pytest.mark.parametrize("seed", range(4))
async def test_killed_while_lanes_are_stalled_nothing_is_lost_repeated_or_out_of_order(
    short: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    kafka = Kafka(random.Random(seed))
    monkeypatch.setattr(sessions_module, "Session", stand_in_for(kafka))
    disk, accepted = MemoryDisk(), []
    for _ in range(LIVES):
        kafka.life += 1
        async with producer_of(disk) as producer:
            accepted += await live(producer, kafka)
            kafka.life += 1
            disk = disk.after_process_death()
    await deliver_the_rest(disk, kafka)
    kafka.judge(accepted, once=True)


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_power_cut_while_lanes_are_stalled_nothing_is_lost_or_out_of_order(
    short: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    kafka = Kafka(random.Random(seed))
    monkeypatch.setattr(sessions_module, "Session", stand_in_for(kafka))
    disk, accepted = MemoryDisk(), []
    for life in range(LIVES):
        kafka.life += 1
        async with producer_of(disk) as producer:
            accepted += await live(producer, kafka)
            producer._opened.directory.ring.sync()  # type: ignore[union-attr]
            kafka.life += 1
            disk = disk.after_power_cut(100 * seed + life)
    await deliver_the_rest(disk, kafka)
    kafka.judge(accepted, once=False)


async def deliver_the_rest(disk: MemoryDisk, kafka: Kafka) -> None:
    kafka.life += 1
    kafka.stalled = set()
    async with producer_of(disk) as producer:
        await producer.flush(timeout_ms=30_000)
        assert producer.statistics().pending == 0
