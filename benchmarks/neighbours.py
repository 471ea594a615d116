"""What a partition that is stuck costs its neighbours: two sessions against one, on three brokers of our own.

Four topics of one partition each: two neighbours on the brokers 1 and 2, one led by broker 1 with its second replica
on broker 3, and one that is on broker 3 alone. Then broker 3 is frozen. At first nobody knows it: requests to it, and
acknowledgements that need it, hang. When its session has run out the third topic is below ``min.insync.replicas`` and
the fourth has no leader. Of every topic a burst of records is published 20 times a second, but only when the last one
was delivered; then, with two sessions, as often as that goes.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aiorecover import DeliveryPendingError, RecoverableProducer
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
BURST = 50  # records between two looks at what was delivered
PACE = 0.05  # seconds between two bursts: what is measured is who is held up, not how fast the machine is
RECORD = b"x" * 160
SPAN = 4.0  # seconds that each rate is measured
MOVING = 2.5  # seconds from the freeze on that have a figure of their own: the lanes move in them
RECOVERY = 4.0  # seconds after the thaw until the last span begins

UNPACED = "two sessions, as fast as it goes"

PHASES = ("before", "moving", "frozen", "below min ISR, leaderless", "after")


def run(setting: Setting) -> Result:
    """Take turns, round after round."""
    rounds = setting.rounds or ROUNDS
    contenders: dict[str, list[dict[str, Any]]] = {"two sessions": [], "one session": [], UNPACED: []}
    with own_brokers() as cluster:
        for number in range(rounds):
            for name, figures in contenders.items():
                with setting.wal_dir() as wal_dir:
                    pace = 0.0 if name == UNPACED else PACE
                    figures.append(measure(cluster, wal_dir, alone=name == "one session", pace=pace))
                rates = " ".join(f"{phase}={figures[-1][phase]:.0f}" for phase in PHASES)
                setting.say(f"neighbours: round {number + 1}/{rounds} {name} bursts/s {rates}")
    return Result("neighbours", [_table(contenders)], {"rounds": contenders})


@contextmanager
def own_brokers() -> Iterator[Cluster]:
    """Three, which take a frozen one among them for dead after `NOTICED_AFTER`."""
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


def measure(cluster: Cluster, wal_dir: str, *, alone: bool, pace: float = PACE) -> dict[str, Any]:
    """One round: bursts a second of the slower neighbour in each of `PHASES`.

    ``alone``: with one session. ``pace``: seconds between the beginnings of two bursts, at least.
    """
    names = {topic: f"benchmark-{uuid.uuid4().hex[:8]}" for topic in TOPICS}
    cluster.heal()
    admin.run(_create(cluster.bootstrap_servers, names))
    undo = _with_one_session() if alone else lambda: None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(cluster, wal_dir, names, pace))
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
        await span("before", SPAN)
        cluster.nodes[FROZEN - 1].pause()
        frozen = time.monotonic()
        await span("moving", MOVING)
        await span("frozen", SPAN)
        figures["lanes_suspect"] = producer.statistics().lanes_suspect
        await asyncio.sleep(max(0.0, frozen + NOTICED_AFTER + 3 - time.monotonic()))
        await span("below min ISR, leaderless", SPAN)
        cluster.nodes[FROZEN - 1].resume()
        await asyncio.sleep(RECOVERY)
        await span("after", SPAN)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush(timeout_ms=30_000)
    return figures


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
