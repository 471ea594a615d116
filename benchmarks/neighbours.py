"""The cost of stuck partitions to their neighbours, on three brokers of our own.

Four topics of one partition each: two neighbours on the brokers 1 and 2, one led by broker 1 with its second replica
on broker 3, and one that is on broker 3 alone. Then broker 3 is frozen. First the cluster does not notice: requests to
it, and acknowledgements that need it, hang. When its session has run out the third topic is below
``min.insync.replicas`` and the fourth has no leader.

Two producers take turns, a few seconds each, with as much of both neighbours in flight as they can deliver. One of
them has the stuck partitions too, and the other one has not; brokers and machine are the same for both.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aiorecover import DeliveryPendingError, Receipt, RecoverableProducer
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table
from tests.support import admin
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster

ROUNDS = 3
TOPICS = {"neighbour 1": [1, 2], "neighbour 2": [2, 1], "below min ISR": [1, 3], "leaderless": [3]}
NEIGHBOURS = ("neighbour 1", "neighbour 2")
FROZEN = 3
NOTICED_AFTER = 30.0  # seconds until the cluster takes the frozen broker for dead: Kafka's own default is 9
BURST = 50  # records between two looks at what was delivered
PACE = 0.05  # seconds between two bursts of the stuck partitions
RECORD = b"x" * 160
RECOVERY = 4.0  # seconds after the thaw until the last turns begin

IN_FLIGHT = 200  # bursts of each neighbour: more than is under way, and not so many that turns are long
TURN = 2.0  # seconds that each of two producers is measured before the other one's turn
RAMP = 0.5  # seconds of it before that
TURNS = 4  # of each of them, in each phase

PHASES = ("before", "frozen", "below min ISR, leaderless", "after")


def run(setting: Setting) -> Result:
    """Round after round."""
    rounds = setting.rounds or ROUNDS
    measured: list[dict[str, Any]] = []
    with own_brokers() as cluster:
        for number in range(rounds):
            with setting.wal_dir() as beside, setting.wal_dir() as apart:
                measured.append(measure(cluster, beside, apart))
            shares = " ".join(f"{phase}={measured[-1][phase]:.2f}" for phase in PHASES)
            setting.say(f"neighbours: round {number + 1}/{rounds} share of the rate {shares}")
    return Result("neighbours", [_table(measured)], {"rounds": measured})


@contextmanager
def own_brokers() -> Iterator[Cluster]:
    """Three, which take a frozen one among them for dead after a while."""
    settings = {
        "broker.session.timeout.ms": str(int(NOTICED_AFTER * 1000)),
        "replica.lag.time.max.ms": "30000",
    }
    cluster = choose_cluster(3, settings)
    if not cluster.can_kill:
        message = "this benchmark freezes a broker of its own: it needs Java, and no cluster named in the environment"
        raise BrokerUnavailableError(message)
    with cluster:
        yield cluster


def measure(cluster: Cluster, beside: str, apart: str) -> dict[str, Any]:
    """One round: of each of `PHASES`, the rate beside stuck partitions as a share of the rate without.

    ``beside`` and ``apart``: directories of the two producers.
    """
    names = {topic: f"benchmark-{uuid.uuid4().hex[:8]}" for topic in TOPICS}
    cluster.heal()
    admin.run(_create(cluster.bootstrap_servers, names))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(cluster, beside, apart, names))
    finally:
        cluster.heal()


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


async def _measure(cluster: Cluster, beside: str, apart: str, names: dict[str, str]) -> dict[str, Any]:
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
        tasks = [asyncio.create_task(_publish(stuck, names[topic], topic, done)) for topic in held_up]
        for producer in (stuck, free):
            await _turn(producer, names)  # fresh partitions are slow at first
        await _through_the_fault(cluster, phase)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stuck.flush(timeout_ms=30_000)
    return figures


async def _through_the_fault(cluster: Cluster, measure_phase: Callable[[str], Awaitable[None]]) -> None:
    """From before the freeze until after the thaw."""
    await measure_phase("before")
    cluster.nodes[FROZEN - 1].pause()
    frozen = time.monotonic()
    await measure_phase("frozen")
    await asyncio.sleep(max(0.0, frozen + NOTICED_AFTER + 3 - time.monotonic()))
    await measure_phase("below min ISR, leaderless")
    cluster.nodes[FROZEN - 1].resume()
    await asyncio.sleep(RECOVERY)
    await measure_phase("after")


async def _publish(producer: RecoverableProducer, name: str, topic: str, done: dict[str, int]) -> None:
    """One burst after the other, each when the last record before it was delivered."""
    while True:
        next_at = time.monotonic() + PACE
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


def _table(measured: list[dict[str, Any]]) -> Table:
    rows = []
    for phase in PHASES:
        rates = [one[f"{phase}, records/s"] for one in measured]
        both = [fmean(rate for one in rates for rate in one[which]) for which in ("beside", "apart")]
        rows.append([phase, *(f"{rate:,.0f}" for rate in both), spread(measured, phase).text(".2f")])
    return Table(
        title="The slower of two neighbours flat out, in turns: beside stuck partitions, and of a producer without",
        columns=["", "beside, records/s", "without, records/s", "share"],
        rows=rows,
        notes=[f"turns of {TURN:.0f} s; the stuck partitions' own records come {1 / PACE:.0f} bursts a second at most"],
    )
