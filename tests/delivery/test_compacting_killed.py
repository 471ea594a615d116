"""Killed at every step of moving, rewriting and draining: what is on the disk at that moment is enough."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.compactor import Compactor
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.moves import Moves
from aiorecover.errors import WalFullError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.checkpoint import CheckpointFile
from aiorecover.wal.directory import Directory
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.stream import Stream
from tests.delivery.test_compacting import SLOT, VALUE, producer_of
from tests.delivery.test_stalled_lives import PARTITIONS, Kafka, Place, short, stand_in_for
from tests.support.eventually import until

__all__ = ["short"]

pytestmark = pytest.mark.asyncio

STUCK = (3, 5)


class Death:
    """Comes when its `strike` is called for the n-th time: the disk is copied, and nothing more arrives in Kafka."""

    def __init__(self, kafka: Kafka, disk: MemoryDisk, times: int) -> None:
        self.kafka = kafka
        self.disk = disk
        self.times = times
        self.image: MemoryDisk | None = None
        self.struck = False  # before the image is made, while which other threads go on
        self.published_since: set[Place] = set()  # may be in the image or not

    def strike(self) -> None:
        self.times -= 1
        if self.times == 0:
            self.struck = True
            self.kafka.life += 1
            self.image = self.disk.after_process_death()


Plant = Callable[[pytest.MonkeyPatch, Death], None]


def before(owner: type, name: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch, death: Death) -> None:
        method = getattr(owner, name)

        def dying(*arguments: Any, **more: Any) -> Any:
            death.strike()
            return method(*arguments, **more)

        patch.setattr(owner, name, dying)

    return plant


def after(owner: type, name: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch, death: Death) -> None:
        method = getattr(owner, name)

        def dying(*arguments: Any, **more: Any) -> Any:
            result = method(*arguments, **more)
            death.strike()
            return result

        patch.setattr(owner, name, dying)

    return plant


def after_await(owner: type, name: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch, death: Death) -> None:
        method = getattr(owner, name)

        async def dying(*arguments: Any, **more: Any) -> Any:
            result = await method(*arguments, **more)
            death.strike()
            return result

        patch.setattr(owner, name, dying)

    return plant


def when_a_rewriting_is_copied(patch: pytest.MonkeyPatch, death: Death) -> None:
    """And nothing makes it."""
    make = Compactor._make

    def dying(self: Compactor, moving: Move | Rewrite, captured: Any) -> Any:
        if isinstance(moving, Rewrite):
            death.strike()
        return make(self, moving, captured)

    patch.setattr(Compactor, "_make", dying)


def when_the_copies_are_flushed(patch: pytest.MonkeyPatch, death: Death) -> None:
    """And the checkpoint is not written; an opening writes one, too."""
    write, write_both = Directory.write_checkpoint, CheckpointFile.write_both

    def dying(self: CheckpointFile, checkpoint: Any) -> None:
        if checkpoint.moved > moved[-1]:
            death.strike()
        write_both(self, checkpoint)

    def noting(self: Directory, checkpoint: Any) -> None:
        moved.append(self.checkpoint.moved)
        write(self, checkpoint)

    moved = [1 << 63]
    patch.setattr(CheckpointFile, "write_both", dying)
    patch.setattr(Directory, "write_checkpoint", noting)


POINTS: dict[str, tuple[Plant, int]] = {
    "before a record is copied": (before(Move, "_copy"), 30),
    "when a record is copied": (after(Move, "_copy"), 1),
    "when all is copied": (before(Moves, "repoint"), 2),
    "when the batches are pointed to the copies": (after_await(Moves, "repoint"), 2),
    "when the copies are flushed": (when_the_copies_are_flushed, 2),
    "when the move is made": (before(Move, "finish"), 2),
    "when the moved slot is recycled": (after(Moves, "made"), 2),
    "when the batches have gone along": (after_await(Moves, "go_along"), 2),
    "in the middle of a rewriting": (before(Rewrite, "_copy"), 10),
    "when a rewriting is copied": (when_a_rewriting_is_copied, 1),
    "when a rewriting is made": (before(Rewrite, "finish"), 1),
    "while draining": (after(Stream, "_originals"), 3),
    "while draining, later": (after(Stream, "_originals"), 4),
}


async def live(producer: RecoverableProducer, kafka: Kafka, death: Death, accepted: list[Place]) -> None:
    """Two lanes are stalled for long; the one with many records is healed, then the other, and they stall once more."""
    rng = kafka.rng
    healthy = [partition for partition in range(PARTITIONS) if partition not in STUCK]
    few, many = STUCK
    for stalled in [{few, many}, {few, many}, {few}, {few}, set(), {few, many}, {many}, set()]:
        kafka.stalled = stalled if death.image is None else set(range(PARTITIONS))
        for number in range(1500):
            if death.image is not None:
                return
            chance = rng.random()
            partition = few if chance < 0.02 else many if chance < 0.2 else rng.choice(healthy)
            receipt = await producer.publish("t", VALUE, partition=partition)
            place = (receipt.epoch, receipt.sequence)
            if death.struck:
                death.published_since.add(place)
            else:
                accepted.append(place)
            if number % 100 == 0:
                await asyncio.sleep(0.005)
        if death.image is None:
            await caught_up(producer, death, stalled)


def stuck(producer: RecoverableProducer) -> set[int]:
    """Partitions whose records are not caught up."""
    assert producer._opened is not None
    delivery = producer._opened.delivery
    lanes = delivery.router.lanes()
    return {lane.partition for lane in lanes if lane.passed_over or delivery.dispatcher.is_behind(lane)}


async def caught_up(producer: RecoverableProducer, death: Death, but: set[int]) -> None:
    """Until nothing is behind ``but`` for these, or all is over."""
    await until(lambda: death.image is not None or stuck(producer) <= but)


@pytest.mark.parametrize("point", POINTS)
async def test_killed_anywhere_everything_arrives_once_and_in_order(
    short: None, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    kafka = Kafka(random.Random(7))
    kafka.life = 1
    monkeypatch.setattr(sessions_module, "Session", stand_in_for(kafka))
    disk, accepted = MemoryDisk(), list[Place]()
    plant, times = POINTS[point]
    death = Death(kafka, disk, times)
    with monkeypatch.context() as patch:
        plant(patch, death)
        try:
            async with producer_of(disk, full_timeout_ms=2_000, wal_max_bytes=24 * SLOT) as producer:
                await live(producer, kafka, death, accepted)
        except WalFullError:
            assert death.image is not None
    assert death.image is not None, "never reached"
    kafka.life += 1
    kafka.stalled = set()
    async with producer_of(death.image) as producer:
        await producer.flush(timeout_ms=30_000)
        assert producer.statistics().pending == 0
    arrived = {place for log in kafka.logs.values() for place, _ in log}
    kafka.judge([*accepted, *(arrived & death.published_since)], once=True)
