"""Random walks over lives that deliver with the real `aiorecover.kafka.delivery`: lanes, rewrites, read-back and all.

`walk` of this module is that of `tests.model.walk` with the coroutines of the package in place of the model's own
delivery. A life publishes, flushes and waits on virtual time; it is killed at a store or a message, or the power goes.
"""

import asyncio
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from aiorecover.errors import ClosedError, DeliveryError, WalIOError
from aiorecover.kafka import broker_task, recovery_check, rewrite, transactions
from aiorecover.kafka.delivery import Delivery, DeliveryOptions
from aiorecover.ring.format import OWN_HEAD_SIZE, BatchState
from aiorecover.ring.lane import DEAD
from aiorecover.ring.records import murmur2
from aiorecover.testing.memory_disk import UNITS
from tests.model.cluster import Cluster, ModelClient, ModelConsumer
from tests.model.disk import BadError, Crash, MemoryFiles
from tests.model.kafka import PARTITIONS, TOPIC, Id, read_head
from tests.model.life import Life
from tests.model.loop import VirtualLoop
from tests.model.process import ALWAYS, BLIND, READBACK, World
from tests.model.walk import FAR, KILL, POWER, SIZES, Outcome, small

KEYS = [number for number in range(60) if murmur2(b"k%d" % number) % PARTITIONS == number % PARTITIONS][:4]
MODES = (ALWAYS, READBACK, READBACK, BLIND)
TRANSACTIONS = "transactions"
DRAIN_S = 3600.0  # of virtual time: what is not delivered by then never is


class Plan(NamedTuple):
    """How to walk. ``kinds``: ends of lives, k kill -9, p power cut; ``mode``: one of `MODES`, or `TRANSACTIONS`."""

    kinds: str = "kp"
    mode: str = ""
    lives: int = 4
    operations: int = 14
    bad: float = 0.04  # how often a record is one that the topic refuses
    known: float = 0.6  # how often the topic is there at first
    age: float = 0.05  # how often a day passes after kill -9
    far: tuple[int, ...] = (20, 60, 150, 400, 900)  # steps that a life lasts, at most


class DeliveringLife(Life):
    """A process with the package's own delivery."""

    looks = True
    heeds_always = True  # `plants` takes it away

    def __init__(self, world: World, *, known: bool, transactional: bool) -> None:
        super().__init__(world)
        self.cluster: Cluster = world.kafka  # type: ignore[assignment]
        options = DeliveryOptions(
            client={},
            linger_s=0.005,
            request_timeout_s=5.0,
            always=world.mode == ALWAYS and self.heeds_always,
            check=world.mode != BLIND,
            transactional_id="t" if transactional else None,
        )
        self.delivery = Delivery(self.ring, self.writer, options, self.flushed)
        self.client = ModelClient(self, known=known)
        self.delivery.client = self.client  # type: ignore[assignment]
        ModelConsumer.client = self.client
        self.transactional = transactional
        self.waiters: list[asyncio.Future[None]] = []
        self.wake = asyncio.Event()

    def _find(self, topic: str, key: Any, partition: int | None) -> Any:
        return self.delivery.router.find(topic, key, partition)

    # -- flushes, as the keeper makes them -----------------------------------------------------------------------------

    def _want(self) -> None:
        self.wanted = True
        self.wake.set()

    async def flushed(self) -> None:
        if self.ring.flusher.failed is not None:
            raise self.ring.flusher.failed
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        self.wake.set()
        await waiter

    async def keep(self) -> None:
        """The keeper: one flush at a time, and a look each second for what can be given back."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.wake.wait()
            self.wake.clear()
            waiters, self.waiters = self.waiters, []
            await self._flush_beside()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            if self.waiters:
                self.wake.set()
            if self.rng.random() < 0.3:
                self.ring.tidy()
                self.dig()

    async def _flush_beside(self) -> None:
        pause = (0.0, 0.001, 0.01)
        await asyncio.sleep(self.rng.choice(pause))
        covers = self.promises.undurable[self.first if self.ring.recovering else 0 :]
        self.world.covering = self.files.flushes, covers
        self.wanted = False
        job = self.ring.flusher.begin()
        await asyncio.sleep(self.rng.choice(pause))
        self.ring.flusher.run(job)
        await asyncio.sleep(self.rng.choice(pause))
        self.ring.flusher.complete(job)
        self.promises.covered(covers)

    # -- a life --------------------------------------------------------------------------------------------------------

    async def live(self, plan: Plan) -> None:
        """Open, and do what comes, until the process dies."""
        tasks = [asyncio.ensure_future(self.keep())]
        self.delivery.start()
        rng = self.rng
        early = rng.random() < 0.3
        for number in range(plan.operations):
            if number == (3 if early else 0):
                await asyncio.sleep(0)
                self.recover()
                self.delivery.begin()
            await self._operate(plan)
            self._check_alive()
        del tasks

    async def _operate(self, plan: Plan) -> None:
        rng = self.rng
        which = rng.random()
        if which < 0.55:
            for _ in range(rng.choice((1, 1, 3, 8))):
                size = rng.choice(SIZES) if rng.random() < 0.05 else 0
                note = rng.choice((1, 2)) if rng.random() < 0.1 else 0
                self.publish(rng.choice(KEYS), bad=rng.random() < plan.bad, note=note, size=size)
        elif which < 0.6:
            self.wake.set()
        elif which < 0.65:
            self.client.known = True
        elif which < 0.7:
            self.cluster.arrive()
        elif which < 0.72:
            self.purge()
        else:
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.006, 0.03, 0.2, 2.0)))

    def _check_alive(self) -> None:
        if self.delivery.failure is not None:
            raise BadError(f"STOPPED {self.delivery.failure!r}") from self.delivery.failure

    async def drain(self) -> None:
        """All that is left is delivered: a good cluster, and time."""
        keeper = asyncio.ensure_future(self.keep())
        self.client.calm = self.client.known = True
        while self.cluster.late:
            self.cluster.arrive()
        self.delivery.start()
        self.recover()
        self.delivery.begin()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.delivery.waiters.drained()
        except (TimeoutError, ClosedError, DeliveryError) as error:
            self._check_alive()
            busy = [lane for lane in self.ring.lanes.values() if lane.partition != DEAD and not lane.idle]
            raise BadError(f"STUCK {busy} {list(self.delivery.troubles())} {error!r}") from error
        await self.flushed()
        await asyncio.sleep(5.0)
        for _ in range(3):
            self.ring.tidy()
            self.dig()
            await self.flushed()
            await asyncio.sleep(5.0)
        self._check_alive()
        await self.delivery.stop()
        keeper.cancel()

    def check_counts(self) -> None:
        self.delivered = self.delivery.delivered if hasattr(self, "delivery") else 0
        super().check_counts()

    def check_sent(self, partition: int, identity: tuple[int, int, int], records: Any) -> None:
        """Check that a request holds what was published, and that the ring knows that it is sent (R7)."""
        ids: list[Id] = []
        for place, (one, index, key, value) in enumerate(records):
            truth = self.promises.records.get(one)
            if truth is None or index != place or key != b"k%d" % truth.key or value != truth.value:
                raise BadError(f"GARBAGE: record {one} {index} {key!r} {value!r}")
            ids.append(one)
        head = self.ring.lane(TOPIC, partition).head
        if head is None or head.state is not BatchState.SENT or head.identity != identity:
            raise BadError(f"UNSENT: the ring does not know that this is sent {ids} {identity} {head}")
        if self.world.mode == ALWAYS and not head.safe:
            raise BadError(f"UNDURABLE records are sent with fsync=always: {ids}")
        stored, _ = read_head(bytes(head.segment.read(head.at + OWN_HEAD_SIZE, head.end)))
        if stored != identity:
            raise BadError(f"UNSENT: the ring holds {stored}, and {identity} is sent")
        if self.world.trace is not None:
            self.world.log(f"sends {partition} {identity} {ids}")

    def verify(self) -> None:
        super().verify()
        if self.transactional:
            for partition, log in self.cluster.log.items():
                ids = [one for _, one in log]
                if len(ids) != len(set(ids)):
                    raise BadError(f"TWICE in transactions, in partition {partition}: {ids}")


@contextmanager
def modelled() -> Iterator[None]:
    """`small`, and delivery talks to the model."""
    with (
        small(),
        patch.object(recovery_check, "AIOKafkaConsumer", ModelConsumer),
        patch.object(transactions, "answered", lambda answer: answer),
        patch.object(broker_task, "ENOUGH", 512),
        patch.object(broker_task, "CUT_LEAST", 64),
        patch.object(rewrite, "time", SimpleNamespace(monotonic=lambda: random.random() / 100)),  # turns at random
    ):
        yield


def walk(seed: int, plan: Plan = Plan(), *, tracing: bool = False) -> Outcome:  # noqa: B008 - it is immutable
    """Walk once; within `modelled`."""
    rng = random.Random(seed)
    random.seed(seed)  # delivery's own jitter
    files = MemoryFiles(rng, rng.choice(UNITS))
    trace: list[str] = []
    mode = plan.mode or rng.choice((*MODES, TRANSACTIONS))
    world = World(files, READBACK if mode == TRANSACTIONS else mode, trace if tracing else None)
    world.kafka = Cluster()
    error = ""
    try:
        _walk(world, plan, transactional=mode == TRANSACTIONS)
    except BadError as bad:
        error = str(bad)
        trace += traceback.format_exc().splitlines()
    except Exception as raised:  # noqa: BLE001 - whatever the package raises is a finding
        error = f"RAISED {raised!r}"
        trace += traceback.format_exc().splitlines()
    return Outcome(seed, plan, error, files.disk.steps, trace)  # type: ignore[arg-type]


def _walk(world: World, plan: Plan, *, transactional: bool) -> None:
    rng, disk = world.rng, world.files.disk
    known = rng.random() < plan.known
    for _ in range(rng.randint(1, plan.lives)):
        disk.crash_at = disk.steps + rng.randint(1, rng.choice(plan.far))
        loop = VirtualLoop(world.files)
        try:
            loop.run_until_complete(_life(world, plan, known=known, transactional=transactional))
        except (Crash, WalIOError):
            pass
        finally:
            disk.crash_at = min(disk.crash_at, disk.steps)
            loop.die()
            disk.crash_at = FAR
        known = known or rng.random() < 0.5
        _end(world, rng.choice(plan.kinds), plan)
    loop = VirtualLoop(world.files)
    try:
        loop.run_until_complete(_last(world, transactional=transactional))
    finally:
        disk.crash_at = disk.steps
        loop.die()
        disk.crash_at = FAR


async def _life(world: World, plan: Plan, *, known: bool, transactional: bool) -> None:
    await DeliveringLife(world, known=known, transactional=transactional).live(plan)


async def _last(world: World, *, transactional: bool) -> None:
    life = DeliveringLife(world, known=True, transactional=transactional)
    await life.drain()
    life.check_counts()
    life.verify()


def _end(world: World, kind: str, plan: Plan) -> None:
    cluster: Cluster = world.kafka  # type: ignore[assignment]
    if kind == POWER:
        world.log("POWER CUT")
        world.files.power_cut()
        world.promises.power_cut()
        cluster.section += 1
        cluster.late.clear()
        world.cut, world.aged = True, False
        return
    world.log("KILL -9")
    assert kind == KILL
    if world.rng.random() < plan.age:
        world.log("a day later")
        world.files.clock_ms += 25 * 3600 * 1000
        cluster.forget()
        world.aged = True
