"""What a partition that is stuck costs its neighbours: two sessions against one, on three brokers of our own.

Four topics of one partition each: two neighbours on the brokers 1 and 2, one led by broker 1 with its second replica
on broker 3, and one that is on broker 3 alone. Then broker 3 is frozen. At first nobody knows it: requests to it, and
acknowledgements that need it, hang. When its session has run out the third topic is below ``min.insync.replicas`` and
the fourth has no leader. Of every topic a burst of records is published 20 times a second, but only when the last one
was delivered; then, with two sessions, as often as that goes.

What is left of the neighbours' rate where nothing paces them is measured flat out: two producers take turns, a few
seconds each, with as much of both neighbours in flight as they can deliver. One of them has the stuck partitions, too,
and the other one has not; the brokers and the machine are the same for both.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import pytest
import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aiorecover import DeliveryPendingError, Receipt, RecoverableProducer
from aiorecover.delivery import session as session_module
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table
from tests.support import admin
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster

ROUNDS = 3
TOPICS = {"neighbour 1": [1, 2], "neighbour 2": [2, 1], "below min ISR": [1, 3], "leaderless": [3]}
NEIGHBOURS = ("neighbour 1", "neighbour 2")
FROZEN = 3
NOTICED_AFTER = 12.0  # seconds until the cluster takes the frozen broker for dead: Kafka's own default is 9
NOTICED_LATE = 30.0  # flat out: there is time for as many turns as in every other phase
BURST = 50  # records between two looks at what was delivered
PACE = 0.05  # seconds between two bursts: what is measured is who is held up, not how fast the machine is
RECORD = b"x" * 160
SPAN = 4.0  # seconds that each rate is measured
MOVING = 2.5  # seconds from the freeze on that have a figure of their own: the lanes move in them
RECOVERY = 4.0  # seconds after the thaw until the last span begins

IN_FLIGHT = 200  # bursts of each neighbour, flat out: more than is under way, and not so many that turns are long
TURN = 2.0  # seconds that each of two producers is measured before the other one's turn
RAMP = 0.5  # seconds of it before that
TURNS = 4  # of each of them, in each phase

UNPACED = "two sessions, as fast as it goes"

PHASES = ("before", "moving", "frozen", "below min ISR, leaderless", "after")
FLAT_OUT = ("before", "frozen", "below min ISR, leaderless", "after")


def run(setting: Setting) -> Result:
    """Take turns, round after round."""
    rounds = setting.rounds or ROUNDS
    contenders: dict[str, list[dict[str, Any]]] = {"two sessions": [], "one session": [], UNPACED: []}
    flat_out: dict[str, list[dict[str, Any]]] = {"two sessions": [], "one session": []}
    with own_brokers() as cluster:
        for number in range(rounds):
            for name, figures in contenders.items():
                with setting.wal_dir() as wal_dir:
                    pace = 0.0 if name == UNPACED else PACE
                    figures.append(measure(cluster, wal_dir, alone=name == "one session", pace=pace))
                rates = " ".join(f"{phase}={figures[-1][phase]:.0f}" for phase in PHASES)
                setting.say(f"neighbours: round {number + 1}/{rounds} {name} bursts/s {rates}")
    with own_brokers(NOTICED_LATE) as cluster:
        for number in range(rounds):
            for name, figures in flat_out.items():
                with setting.wal_dir() as beside, setting.wal_dir() as apart:
                    figures.append(measure_flat_out(cluster, beside, apart, alone=name == "one session"))
                shares = " ".join(f"{phase}={figures[-1][phase]:.2f}" for phase in FLAT_OUT)
                setting.say(f"neighbours: round {number + 1}/{rounds} {name} flat out, share of the rate {shares}")
    data = {"rounds": contenders, "flat out": flat_out}
    return Result("neighbours", [_table(contenders), _table_flat_out(flat_out)], data)


@contextmanager
def own_brokers(noticed_after: float = NOTICED_AFTER) -> Iterator[Cluster]:
    """Three, which take a frozen one among them for dead after so many seconds."""
    settings = {
        "broker.session.timeout.ms": str(int(noticed_after * 1000)),
        "replica.lag.time.max.ms": "30000",
    }
    cluster = choose_cluster(3, settings)
    if not cluster.can_kill:
        message = "this benchmark freezes a broker of its own: it needs Java, and no cluster named in the environment"
        raise BrokerUnavailableError(message)
    with cluster:
        yield cluster


def measure(cluster: Cluster, wal_dir: str, *, alone: bool, pace: float = PACE) -> dict[str, Any]:
    """One round: bursts a second of the slower neighbour in each of `PHASES`.

    ``alone``: with one session. ``pace``: seconds between the beginnings of two bursts, at least.
    """
    return _run(cluster, lambda names: _measure(cluster, wal_dir, names, pace), alone=alone)


def measure_flat_out(cluster: Cluster, beside: str, apart: str, *, alone: bool) -> dict[str, Any]:
    """One round: of each of `FLAT_OUT`, the rate beside stuck partitions as a share of the rate without.

    ``cluster`` takes the frozen broker for dead after `NOTICED_LATE`; ``beside`` and ``apart``: directories of the two
    producers.
    """
    return _run(cluster, lambda names: _measure_flat_out(cluster, beside, apart, names), alone=alone)


def _run(
    cluster: Cluster, measuring: Callable[[dict[str, str]], Coroutine[Any, Any, dict[str, Any]]], *, alone: bool
) -> dict[str, Any]:
    names = {topic: f"benchmark-{uuid.uuid4().hex[:8]}" for topic in TOPICS}
    cluster.heal()
    admin.run(_create(cluster.bootstrap_servers, names))
    undo = _with_one_session() if alone else lambda: None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measuring(names))
    finally:
        undo()
        cluster.heal()


def _with_one_session() -> Callable[[], None]:
    """Leave aiokafka's requests as they are: it repeats by itself, so no lane ever becomes a suspect."""
    changes = pytest.MonkeyPatch()
    changes.setattr(session_module, "Requests", lambda *_, **__: None)
    return changes.undo


async def _create(bootstrap_servers: str, names: dict[str, str]) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await client.start()
    try:
        for topic, replicas in TOPICS.items():
            in_sync = {"min.insync.replicas": str(len(replicas))}
            new = NewTopic(names[topic], -1, -1, replica_assignments={0: replicas}, topic_configs=in_sync)
            await client.create_topics([new])
    finally:
        await client.close()


async def _measure(cluster: Cluster, wal_dir: str, names: dict[str, str], pace: float) -> dict[str, Any]:
    done = dict.fromkeys(TOPICS, 0)
    figures: dict[str, Any] = {}

    async def span(phase: str, seconds: float) -> None:
        before, began = dict(done), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        each = {topic: (done[topic] - before[topic]) / took for topic in TOPICS}
        figures[phase] = min(each[topic] for topic in NEIGHBOURS)  # the worse one
        figures[f"{phase}, each"] = each

    async with RecoverableProducer(wal_dir, bootstrap_servers=cluster.bootstrap_servers, linger_ms=1) as producer:
        tasks = [asyncio.create_task(_publish(producer, name, topic, done, pace)) for topic, name in names.items()]
        await asyncio.sleep(3)  # fresh partitions are slow at first
        await _through_the_fault(
            cluster, producer, figures, lambda phase: span(phase, SPAN), lambda: span("moving", MOVING)
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush(timeout_ms=30_000)
    return figures


async def _through_the_fault(
    cluster: Cluster,
    producer: RecoverableProducer,
    figures: dict[str, Any],
    measure_phase: Callable[[str], Awaitable[None]],
    while_moving: Callable[[], Awaitable[object]],
    noticed_after: float = NOTICED_AFTER,
) -> None:
    """From before the freeze until after the thaw; ``producer`` has the stuck partitions."""
    await measure_phase("before")
    cluster.nodes[FROZEN - 1].pause()
    frozen = time.monotonic()
    await while_moving()
    await measure_phase("frozen")
    figures["frozen, seconds"] = time.monotonic() - frozen
    figures["lanes_suspect"] = producer.statistics().lanes_suspect
    await asyncio.sleep(max(0.0, frozen + noticed_after + 3 - time.monotonic()))
    await measure_phase("below min ISR, leaderless")
    cluster.nodes[FROZEN - 1].resume()
    await asyncio.sleep(RECOVERY)
    await measure_phase("after")


async def _publish(producer: RecoverableProducer, name: str, topic: str, done: dict[str, int], pace: float) -> None:
    """One burst after the other, each when the last record before it was delivered."""
    while True:
        next_at = time.monotonic() + pace
        for _ in range(BURST - 1):
            await producer.publish(name, RECORD)
        receipt = await producer.publish(name, RECORD)
        while True:
            try:
                await receipt.delivered(timeout_ms=60_000)
            except DeliveryPendingError:
                continue
            break
        done[topic] += 1
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def _measure_flat_out(cluster: Cluster, beside: str, apart: str, names: dict[str, str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}

    async def phase(name: str) -> None:
        rates: dict[str, list[float]] = {"beside": [], "apart": []}
        for turn in range(TURNS):
            both = [("beside", stuck), ("apart", free)]
            for which, producer in both if turn % 2 == 0 else reversed(both):
                rates[which].append(await _turn(producer, names))
        figures[name] = fmean(rates["beside"]) / max(1.0, fmean(rates["apart"]))
        figures[f"{name}, records/s"] = rates

    options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "linger_ms": 1}
    async with RecoverableProducer(beside, **options) as stuck, RecoverableProducer(apart, **options) as free:
        done = dict.fromkeys(TOPICS, 0)
        held_up = [topic for topic in TOPICS if topic not in NEIGHBOURS]
        tasks = [asyncio.create_task(_publish(stuck, names[topic], topic, done, PACE)) for topic in held_up]
        for producer in (stuck, free):
            await _turn(producer, names)  # fresh partitions are slow at first
        await _through_the_fault(cluster, stuck, figures, phase, lambda: _turn(stuck, names), NOTICED_LATE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stuck.flush(timeout_ms=30_000)
    return figures


async def _turn(producer: RecoverableProducer, names: dict[str, str]) -> float:
    """Records a second of the slower neighbour; when it returns nothing of them is in flight."""
    over = asyncio.Event()
    done = dict.fromkeys(NEIGHBOURS, 0)
    tasks = [asyncio.create_task(_flood(producer, names[topic], topic, done, over)) for topic in NEIGHBOURS]
    await asyncio.sleep(RAMP)
    before, began = dict(done), time.monotonic()
    await asyncio.sleep(TURN)
    took = time.monotonic() - began
    rates = [(done[topic] - before[topic]) / took for topic in NEIGHBOURS]
    over.set()
    await asyncio.gather(*tasks)
    return min(rates)


async def _flood(
    producer: RecoverableProducer, name: str, topic: str, done: dict[str, int], over: asyncio.Event
) -> None:
    """Burst after burst, with `IN_FLIGHT` of them not delivered yet."""
    room = asyncio.Semaphore(IN_FLIGHT)
    waiting = asyncio.Queue[Receipt | None]()

    async def count() -> None:
        while (receipt := await waiting.get()) is not None:
            await receipt.delivered()
            done[topic] += BURST
            room.release()

    counting = asyncio.create_task(count())
    while not over.is_set():
        await room.acquire()
        for _ in range(BURST - 1):
            await producer.publish(name, RECORD)
        waiting.put_nowait(await producer.publish(name, RECORD))
    waiting.put_nowait(None)
    await counting


def _table_flat_out(contenders: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for name, rounds in contenders.items():
        for phase in FLAT_OUT:
            rates = [one[f"{phase}, records/s"] for one in rounds]
            both = [fmean(rate for one in rates for rate in one[which]) for which in ("beside", "apart")]
            rows.append([name, phase, *(f"{rate:,.0f}" for rate in both), spread(rounds, phase).text(".2f")])
    return Table(
        title="The slower of two neighbours flat out, in turns: beside stuck partitions, and of a producer without",
        columns=["", "phase", "beside, records/s", "without, records/s", "share"],
        rows=rows,
        notes=[f"turns of {TURN:.0f} s; the stuck partitions' own records come {1 / PACE:.0f} bursts a second at most"],
    )


def _table(contenders: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for name, rounds in contenders.items():
        before = spread(rounds, "before").median
        rows += [
            [name, phase, spread(rounds, phase).text(".1f"), f"{spread(rounds, phase).median / before:.2f}"]
            for phase in PHASES
        ]
    return Table(
        title=f"The slower of two neighbours of a frozen broker: bursts of {BURST}, {1 / PACE:.0f} a second at most",
        columns=["", "phase", "bursts/s", "against before"],
        rows=rows,
        notes=[f"moving: the first {MOVING} s; the cluster takes the broker for dead after {NOTICED_AFTER:.0f} s"],
    )
