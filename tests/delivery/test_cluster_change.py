"""Another cluster is named by the option, rightly or not: nothing is repeated in the old one, or lost in the new one.

Wherever a process dies meanwhile; and the new one knows batches of others under the same identities.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.background import Background
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.cluster import Cluster, WrongClusterError
from aiorecover.delivery.session import Session
from aiorecover.testing import MemoryDisk
from aiorecover.wal.lanes import Lanes
from tests.delivery.remembering import Broker
from tests.support.eventually import until

OLD, NEW = "old", "new"
PARTITIONS = 2
IN_FLIGHT = [b"0", b"1", b"2", b"3", b"4", b"5"]


class World:
    """Two clusters with the same producer ids, of which one answers; and one directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers = {OLD: Broker(PARTITIONS), NEW: Broker(PARTITIONS)}
        self.disk = MemoryDisk()
        self._patch = monkeypatch

    def image(self) -> "World":
        """As it is at this moment, for another course of things."""
        other = World(self._patch)
        other.brokers = {name: broker.snapshot() for name, broker in self.brokers.items()}
        other.disk = self.disk.after_process_death()
        return other

    def answers(self, name: str, at: Callable[[str, bytes], Awaitable[None]] | None = None) -> None:
        """Have one of the clusters be the one that is reached from now on."""
        self._patch.setattr(sessions_module, "Session", _asking(self.brokers[name].session(at), name))

    def producer(self, **options: Any) -> RecoverableProducer:
        chosen = {"slot_bytes": 1 << 14, "linger_ms": 1, "stop_timeout_ms": 300, "recovery_check": False, **options}
        return RecoverableProducer(self.disk, bootstrap_servers="nowhere:1", **chosen)

    def in_kafka(self, name: str) -> list[bytes]:
        return sorted(value for log in self.brokers[name].logs.values() for value in log)


def _asking(base: type[Session], name: str) -> type[Session]:
    """A stand-in that asks for the cluster before it connects, as the session does."""

    class Asking(base):  # type: ignore[misc, valid-type]
        def start(self) -> None:
            self._reached = asyncio.Event()
            self._asked = asyncio.create_task(self._ask())

        async def _ask(self) -> None:
            try:
                await self.cluster.admit(name)
            except WrongClusterError as error:
                self.state = "wrong_cluster"
                self.cluster.is_wrong(error.found)
                return
            super().start()
            self._reached.set()

        async def identity(self) -> Any:
            await self._reached.wait()
            return await super().identity()

        def partitions(self, topic: str) -> frozenset[int]:
            return super().partitions(topic) if self.state == "connected" else frozenset()

        async def close(self) -> None:
            self._asked.cancel()
            await super().close()

    return Asking


async def _in_flight(world: World, *, appended: bool) -> World:
    """What a process leaves that was killed with records in flight to the old cluster."""
    left: list[World] = []

    async def at(step: str, _: bytes) -> None:
        if in_flight and step == ("before it is acknowledged" if appended else "before it is appended"):
            waiting.append(step)
            await asyncio.Event().wait()

    in_flight, waiting = False, list[str]()
    world.answers(OLD, at)
    async with world.producer() as producer:
        for number in range(4):
            await producer.publish("t", b"before%d" % number, partition=number % PARTITIONS)
        await producer.flush(timeout_ms=10_000)
        in_flight = True
        for number, value in enumerate(IN_FLIGHT):
            await producer.publish("t", value, partition=number % PARTITIONS)
        await until(lambda: len(waiting) == PARTITIONS)
        left.append(world.image())
    return left[0]


async def _delivers(world: World, name: str, **options: Any) -> RecoverableProducer:
    world.answers(name)
    async with world.producer(**options) as producer:
        await producer.flush(timeout_ms=10_000)
    return producer


BEFORE = [b"before%d" % number for number in range(4)]


@pytest.mark.parametrize("appended", [True, False])
def test_a_name_that_nobody_has_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, appended: bool
) -> None:
    async def lives() -> None:
        world = await _in_flight(World(monkeypatch), appended=appended)
        for _ in range(2):
            world.answers(OLD)
            async with world.producer(cluster_id="typo") as producer:
                await until(lambda: producer.state == "wrong_cluster")
                counts = producer.statistics()
                assert (counts.cluster_id, counts.wrong_cluster_id) == ("typo", OLD)
                assert counts.identities_renewed == 0
        assert "fresh kafka identity" not in caplog.text
        assert "go to another cluster" not in caplog.text
        producer = await _delivers(world, OLD)
        assert producer.statistics().batches_resumed == PARTITIONS
        assert world.in_kafka(OLD) == sorted([*BEFORE, *IN_FLIGHT])
        assert world.brokers[OLD].repeats == (PARTITIONS if appended else 0)

    asyncio.run(lives())


@pytest.mark.parametrize("appended", [True, False])
def test_wherever_a_process_dies_while_it_takes_up_a_named_cluster_nothing_is_repeated_and_nothing_swallowed(
    monkeypatch: pytest.MonkeyPatch, appended: bool
) -> None:
    moments: list[tuple[str, World]] = []

    def watch(patch: pytest.MonkeyPatch, world: World) -> None:
        admit, checkpoint, clear, store = Cluster.admit, Background.checkpoint, Lanes.clear, Lanes.store

        async def watched_admit(self: Cluster, found: str | None) -> None:
            moments.append(("before it is admitted", world.image()))
            await admit(self, found)
            moments.append(("admitted", world.image()))

        async def watched_checkpoint(self: Background, *, closed: bool = False) -> int:
            moments.append(("before a checkpoint", world.image()))
            freed = await checkpoint(self, closed=closed)
            moments.append(("behind a checkpoint", world.image()))
            return freed

        def watched_clear(self: Lanes, block: int) -> None:
            moments.append(("before an entry is forgotten", world.image()))
            clear(self, block)
            moments.append(("an entry is forgotten", world.image()))

        def watched_store(self: Lanes, block: int, body: bytes) -> None:
            store(self, block, body)
            moments.append(("an entry of the new cluster", world.image()))

        patch.setattr(Cluster, "admit", watched_admit)
        patch.setattr(Background, "checkpoint", watched_checkpoint)
        patch.setattr(Lanes, "clear", watched_clear)
        patch.setattr(Lanes, "store", watched_store)

    async def lives() -> None:
        world = await _in_flight(World(monkeypatch), appended=appended)
        strangers = await _strangers_of(world)
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, world)
            await _delivers(world, NEW, cluster_id=NEW)
        assert world.in_kafka(NEW) == sorted([*strangers, *IN_FLIGHT])
        outcomes = {await _goes_on(step, moment, strangers) for step, moment in moments}
        assert outcomes == {OLD, NEW}

    asyncio.run(lives())
    assert {step for step, _ in moments} == {
        "before it is admitted",
        "before a checkpoint",
        "behind a checkpoint",
        "before an entry is forgotten",
        "an entry is forgotten",
        "an entry of the new cluster",
        "admitted",
    }


async def _strangers_of(world: World) -> list[bytes]:
    """The new cluster has given the same identities to somebody else, who has sent as many records under each."""
    strangers = World(world._patch)
    strangers.brokers = world.brokers
    strangers.answers(NEW)
    values = [b"stranger%d" % number for number in range(4 + len(IN_FLIGHT))]
    async with strangers.producer() as producer:
        for beginning, end in ((0, 4), (4, len(values))):
            for number in range(beginning, end):
                await producer.publish("t", values[number], partition=number % PARTITIONS)
            await producer.flush(timeout_ms=10_000)
    return values


async def _goes_on(step: str, moment: World, strangers: list[bytes]) -> str:
    """The next process, with the option and without it: to the cluster that the directory remembers. Which one that is.

    What is left of the same moment goes to the named one, too: there nothing may be missing, nor stand twice.
    """
    other = moment.image()
    await _delivers(other, NEW, cluster_id=NEW)
    assert other.in_kafka(NEW) == sorted([*strangers, *IN_FLIGHT]), step
    name = await _remembered(moment)
    await _delivers(moment, name)
    if name == OLD:
        assert moment.in_kafka(OLD) == sorted([*BEFORE, *IN_FLIGHT]), step
        assert moment.in_kafka(NEW) == sorted(strangers), step
    else:
        assert moment.in_kafka(NEW) == sorted([*strangers, *IN_FLIGHT]), step
    return name


async def _remembered(moment: World) -> str:
    image = moment.image()
    image.answers(OLD)
    async with image.producer() as producer:
        counts = producer.statistics()
        assert counts.cluster_id is not None
        return counts.cluster_id
