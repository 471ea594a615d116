"""Lives in which lanes stall for so long that the main ring goes round many times; Kafka knows repeats."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from aiorecover import RecoverableProducer, WalFullError
from aiorecover.delivery import sessions as sessions_module
from aiorecover.testing import MemoryDisk
from tests.delivery.test_stalled_lives import PARTITIONS, Kafka, Place, short, stand_in_for
from tests.support.eventually import until

__all__ = ["short"]

pytestmark = pytest.mark.asyncio

SLOT = 1 << 16
MAX_BYTES = 16 * SLOT
STUCK = 3
VALUE = b"v" * 400
LOOKS = 3  # in which checkpoints free what was delivered, and the retry ring is rewritten
FEW = 100  # records that wait as the others flow


def producer_of(disk: MemoryDisk, **more: Any) -> RecoverableProducer:
    options: dict[str, Any] = {"slot_bytes": SLOT, "max_batch_size": 1 << 14, "max_request_size": 1 << 15}
    options |= {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "checkpoint_interval_ms": 20, "stop_timeout_ms": 0}
    options |= {"recovery_check": False, "fsync": "never", "wal_max_bytes": MAX_BYTES, "on_full": "wait"}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **(options | more))


async def publish(producer: RecoverableProducer, count: int, *, every: int = 10) -> list[Place]:
    """One record in so many goes to the partition that is stuck, the others to all others."""
    accepted = []
    healthy = [partition for partition in range(PARTITIONS) if partition != STUCK]
    for number in range(count):
        partition = STUCK if number % every == 0 else healthy[number % len(healthy)]
        receipt = await producer.publish("t", VALUE, partition=partition)
        accepted.append((receipt.epoch, receipt.sequence))
        if number % 100 == 0:
            await asyncio.sleep(0.002)
    return accepted


@pytest.fixture
def kafka(short: None, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka(random.Random(1))
    kafka.life = 1
    monkeypatch.setattr(sessions_module, "Session", stand_in_for(kafka))
    return kafka


def stalled_bytes(producer: RecoverableProducer) -> int:
    return producer.statistics().pending * (len(VALUE) + 100)


async def test_the_ring_goes_round_while_a_lane_is_stalled_and_its_records_follow_in_order(kafka: Kafka) -> None:
    async with producer_of(MemoryDisk()) as producer:
        accepted = await publish(producer, 100)
        kafka.stalled = {STUCK}
        for _ in range(15):
            accepted += await publish(producer, 1000, every=30)
        await until(lambda: producer.statistics().bytes_used <= 2 * stalled_bytes(producer) + 5 * SLOT)
        figures = producer.statistics()
        assert len(accepted) * len(VALUE) > 5 * MAX_BYTES
        assert figures.slots_moved > 10
        assert figures.accepted == figures.delivered + figures.pending
        kafka.stalled = set()
        await producer.flush(timeout_ms=30_000)
        figures = producer.statistics()
        assert (figures.pending, figures.delivered) == (0, len(accepted))
        await until(lambda: producer.statistics().bytes_retry <= SLOT)
    kafka.judge(accepted, once=True)


async def publish_mostly_to_the_stuck(producer: RecoverableProducer, count: int) -> list[Place]:
    """Two of three records go to the partition that is stuck."""
    accepted = []
    for number in range(count):
        receipt = await producer.publish("t", VALUE, partition=STUCK if number % 3 else number % STUCK)
        accepted.append((receipt.epoch, receipt.sequence))
        if number % 100 == 0:
            await asyncio.sleep(0.002)
    return accepted


async def two_checkpoints(producer: RecoverableProducer) -> None:
    """What the second of them says was captured afterwards."""
    before = producer.statistics().checkpoints
    await until(lambda: producer.statistics().checkpoints >= before + 2)


async def caught_up(
    producer: RecoverableProducer, down_to: int, *, each: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Publish for the others until no more than so many wait: what was accepted, and bytes beyond twice what waits.

    ``each``: records between two looks, one in a hundred of them for the lane that catches up.
    """
    accepted, beyond, waited = list[tuple[int, int]](), list[int](), list[int]()
    while producer.statistics().pending > down_to:
        accepted += await publish(producer, each, every=100)
        waited.append(stalled_bytes(producer))
        await two_checkpoints(producer)
        beyond.append(producer.statistics().bytes_used - 2 * max(waited[-LOOKS:]))
    return accepted, beyond


async def test_the_rings_stay_small_while_a_lane_that_is_well_again_catches_up_slowly(kafka: Kafka) -> None:
    """The others publish many times as much meanwhile as waits for it."""
    async with producer_of(MemoryDisk(), wal_max_bytes=400 * SLOT) as producer:
        kafka.stalled = {STUCK}
        accepted = await publish(producer, 3_000, every=4)
        await until(lambda: producer.statistics().bytes_used <= 2 * stalled_bytes(producer) + 5 * SLOT)
        kafka.stalled, kafka.slow = set(), {STUCK: 0.25}
        more, beyond = await caught_up(producer, FEW, each=100)
        kafka.slow = {}
        await producer.flush(timeout_ms=30_000)
    kafka.judge(accepted + more, once=True)
    assert len(beyond) > 20  # each with a slot of records
    assert max(beyond) <= 8 * SLOT  # four, and what comes between two checkpoints


@pytest.mark.parametrize("batch", [SLOT // 8, SLOT // 2])
async def test_the_rings_stay_small_while_most_of_the_ring_is_caught_up_slowly(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Too much of it waits to be moved before. What the lane holds is a part of a slot, or more than one."""
    monkeypatch.setattr(kafka.rng, "random", lambda: 1.0)  # it is slow, and nothing fails: it would rest in between
    options = {"max_batch_size": batch, "wal_max_bytes": 400 * SLOT}
    async with producer_of(MemoryDisk(), **options) as producer:
        kafka.stalled = {STUCK}
        accepted = await publish_mostly_to_the_stuck(producer, 3_000)
        await until(lambda: producer.statistics().pending <= 2_000)
        assert producer.statistics().slots_moved == 0
        kafka.stalled, kafka.slow = set(), {STUCK: 8 * batch / (16 * SLOT)}
        held = 4 * batch // len(VALUE)  # what the lane holds as any slow one does
        more, beyond = await caught_up(producer, held, each=300)
        kafka.slow = {}
        await producer.flush(timeout_ms=30_000)
    kafka.judge(accepted + more, once=True)
    assert len(beyond) > 20  # each with two slots of records
    assert max(beyond) <= 8 * SLOT, beyond  # four, and what comes between two checkpoints


async def test_a_lane_that_was_catching_up_slowly_holds_up_no_other_behind_a_restart(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the retry ring was passed over before, and is read first."""
    disk = MemoryDisk()
    async with producer_of(disk, wal_max_bytes=400 * SLOT) as producer:
        kafka.stalled = {STUCK}
        accepted = await publish(producer, 3_000, every=2)
        await until(lambda: producer.statistics().bytes_retry >= 8 * SLOT)
        kafka.life += 1
        disk = disk.after_process_death()
    kafka.stalled, kafka.slow = set(), {STUCK: 0.5}
    monkeypatch.setattr(kafka.rng, "random", lambda: 1.0)  # it is slow, and nothing fails
    async with producer_of(disk, wal_max_bytes=400 * SLOT) as producer:
        others = await publish(producer, 1_000, every=1_000)
        await until(lambda: {place for log in kafka.logs.values() for place, _ in log}.issuperset(others[1:]))
        assert producer.statistics().pending > 500  # all of that before the lane had caught up
        kafka.slow = {}
        await producer.flush(timeout_ms=30_000)
    kafka.judge(accepted + others, once=True)


class Service:
    """Publishes as far as there is room, and knows what was accepted."""

    def __init__(self, producer: RecoverableProducer, accepted: list[Place]) -> None:
        self.producer = producer
        self.accepted = accepted

    async def publish(self, *, every: int) -> None:
        """A slot of records at most, of which one in so many is for the partition that is stuck."""
        with suppress(WalFullError):
            for number in range(SLOT // len(VALUE)):
                partition = STUCK if number % every == 0 else number % STUCK
                receipt = await self.producer.publish("t", VALUE, partition=partition)
                self.accepted.append((receipt.epoch, receipt.sequence))
        await two_checkpoints(self.producer)

    async def publish_more(self, slots: int) -> None:
        """Nobody waits for the partition that is stuck."""
        more, loop = len(self.accepted) + slots * SLOT // len(VALUE), asyncio.get_running_loop()
        until_then = loop.time() + 20
        while len(self.accepted) < more:
            await self.publish(every=50)
            assert loop.time() < until_then, self.producer.statistics()


@pytest.mark.parametrize("restarts", [False, True])
async def test_on_a_full_disk_publishing_goes_on_beside_a_lane_that_does_not_come_back(
    kafka: Kafka, *, restarts: bool
) -> None:
    """Most of what was moved is delivered by then: there is room to rewrite the retry ring."""
    disk, options = MemoryDisk(), {"wal_max_bytes": 400 * SLOT, "wal_min_free_bytes": 0, "on_full": "raise"}
    async with producer_of(disk, **options) as producer:
        service = Service(producer, await publish(producer, 100))
        kafka.stalled = {0, STUCK}
        disk.resize(disk.used + 20 * SLOT)
        refused = 0
        while refused < 20:
            before = len(service.accepted)
            await service.publish(every=10)
            refused += len(service.accepted) == before
        kafka.stalled = {STUCK}
        if not restarts:
            await service.publish_more(40)
        kafka.life += 1
        disk = disk.after_process_death()
    async with producer_of(disk, **options) as producer:
        service = Service(producer, service.accepted)
        await service.publish_more(40)
        kafka.stalled = set()
        await producer.flush(timeout_ms=30_000)
    kafka.judge(service.accepted, once=True)


async def live(producer: RecoverableProducer, kafka: Kafka, *, power: bool) -> list[Place]:
    """Lanes stall for long and are well again; more is published than the ring holds.

    After a power cut what stalled lanes have from before is not moved: where that fills the ring, they get well.
    """
    rng, accepted = kafka.rng, []
    for _ in range(rng.randrange(2, 7)):
        kafka.stalled = set(rng.sample(range(PARTITIONS), rng.choice((0, 1, 1, 2))))
        kafka.slow = dict.fromkeys(rng.sample(range(PARTITIONS), rng.choice((0, 1, 1, 2))), 0.03)
        for _ in range(rng.randrange(800)):
            value = b"v" * rng.randrange(10, 900)
            kind = rng.random()
            record: dict[str, Any] = {"value": b"free"}
            if kind >= 0.1:
                record = {"value": value, "partition": rng.randrange(PARTITIONS)}
            if kind >= 0.5:
                record = {"value": value, "key": b"%d" % rng.randrange(100)}
            try:
                receipt = await producer.publish("t", **record)
            except WalFullError:
                assert power, "moving makes room"
                kafka.stalled = set()
                receipt = await producer.publish("t", **record)
            accepted.append((receipt.epoch, receipt.sequence))
            if rng.random() < 0.01:
                await asyncio.sleep(0.005)
        await asyncio.sleep(rng.choice((0.0, 0.02, 0.1, 0.3)))
        figures = producer.statistics()
        assert figures.accepted + figures.recovered == figures.delivered + figures.pending
    return accepted


async def killed_again_and_again(
    kafka: Kafka, seed: int, *, power: bool, slot: int = SLOT, lives: int = 8
) -> tuple[list[Place], int]:
    """What was accepted, and how many slots were moved."""
    kafka.rng = random.Random(seed)
    disk, accepted, moved = MemoryDisk(), [], 0
    for life in range(lives):
        kafka.life += 1
        async with producer_of(disk, slot_bytes=slot, full_timeout_ms=10_000) as producer:
            accepted += await live(producer, kafka, power=power)
            moved += producer.statistics().slots_moved
            if power:
                producer._opened.directory.ring.sync()  # type: ignore[union-attr]
            kafka.life += 1
            disk = disk.after_power_cut(100 * seed + life) if power else disk.after_process_death()
    kafka.life += 1
    kafka.stalled, kafka.slow = set(), {}
    async with producer_of(disk) as producer:
        await producer.flush(timeout_ms=30_000)
        assert producer.statistics().pending == 0
    return accepted, moved


@pytest.mark.parametrize("seed", range(4))
async def test_killed_while_records_are_moved_nothing_is_lost_repeated_or_out_of_order(kafka: Kafka, seed: int) -> None:
    accepted, moved = await killed_again_and_again(kafka, seed, power=False)
    kafka.judge(accepted, once=True)
    assert moved > 0


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_power_cut_while_records_are_moved_nothing_is_lost_or_out_of_order(
    kafka: Kafka, seed: int
) -> None:
    accepted, moved = await killed_again_and_again(kafka, seed, power=True)
    kafka.judge(accepted, once=False)
    assert moved > 0


async def caught_up_slowly(producer: RecoverableProducer, kafka: Kafka) -> tuple[list[Place], int]:
    """What was accepted, and how many slots were moved under the reader that goes back; not to its end."""
    kafka.stalled, kafka.slow = {STUCK}, {STUCK: 0.02}
    accepted = await publish_mostly_to_the_stuck(producer, kafka.rng.randrange(500, 1500))
    await asyncio.sleep(0.1)
    kafka.stalled = set()
    before = producer.statistics().slots_moved
    for _ in range(kafka.rng.randrange(5, 25)):
        accepted += await publish(producer, kafka.rng.randrange(300), every=50)
    return accepted, producer.statistics().slots_moved - before


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_killed_while_slots_are_moved_under_who_goes_back_nothing_is_lost_or_out_of_order(
    kafka: Kafka, seed: int, *, power: bool
) -> None:
    kafka.rng = random.Random(seed)
    disk, accepted, moved = MemoryDisk(), list[Place](), 0
    for life in range(8):
        kafka.life += 1
        async with producer_of(disk, wal_max_bytes=400 * SLOT) as producer:
            more, count = await caught_up_slowly(producer, kafka)
            accepted, moved = accepted + more, moved + count
            if power:
                producer._opened.directory.ring.sync()  # type: ignore[union-attr]
            kafka.life += 1
            disk = disk.after_power_cut(100 * seed + life) if power else disk.after_process_death()
    kafka.life += 1
    kafka.slow = {}
    async with producer_of(disk, wal_max_bytes=400 * SLOT) as producer:
        await producer.flush(timeout_ms=30_000)
        assert producer.statistics().pending == 0
    kafka.judge(accepted, once=not power)
    assert power or moved > 8
