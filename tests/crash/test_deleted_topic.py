"""The topic of half of the backlog is deleted, and one never was: the others go on, and all arrives once both exist.

The broker makes no topic by being asked for it.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.statistics import Statistics
from tests.crash.child import Task, digest
from tests.crash.counts import uneven
from tests.crash.judgement import Ledger, examine
from tests.crash.lives import Child
from tests.crash.test_outages import DELIVERED_WITHIN_MS, Publisher, assert_exactly_once, judged
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

LANES = 6
WELL, DELETED, NEVER = range(3)
BACKLOG = 20_000  # records, half of them for the topic that is deleted, and a quarter for each of the others
NEARLY = 0.05
MORE = 30_000  # records that go where it is well, so that the ring has to go on
FEW = 2_000  # records to each of the others while they are made
SLOT_BYTES = 1 << 16
OPTIONS: dict[str, Any] = {"slot_bytes": SLOT_BYTES, "checkpoint_interval_ms": 100}
RATE = 1_000  # records a second, to each topic
LIVING = 10.0  # seconds of it
BACK = 12.0  # seconds of it from the moment when all topics are made: the longest pause between two looks for one is 10
MOVING = 2.5  # seconds from the deletion on in which its lanes become suspects
SPAN = 4.0  # seconds that a rate is measured
KEPT = 0.9  # of what is published meanwhile


@pytest.fixture(scope="module")
def strict() -> Iterator[KafkaCluster]:
    """Asking for a topic makes none."""
    with KafkaCluster(1, {"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def only_made(strict: KafkaCluster) -> Iterator[KafkaCluster]:
    """A test may kill it."""
    yield strict
    strict.heal()


@pytest.fixture
def topics(only_made: KafkaCluster) -> list[str]:
    """One that stays, one that a test deletes, and one that is not there."""
    names = [f"{kind}-{os.urandom(4).hex()}" for kind in ("well", "deleted", "never")]
    for name in names[:NEVER]:
        only_made.create_topic(name, LANES)
    return names


def killed_with_a_backlog(cluster: Cluster, topics: list[str], directory: Path) -> Ledger:
    """What a process accepted that reached no broker before it was killed."""
    task = Task(
        parent_pid=0,
        report_fd=-1,
        bootstrap_servers=cluster.bootstrap_servers,
        wal_dir=str(directory / "wal"),
        topics=[*topics, topics[DELETED]],  # equally often
        partitions=LANES,
        life=1,
        seed=1,
        steps=[("publish", {"count": BACKLOG}), ("wait", {})],
        options=OPTIONS,
    )
    child, ledger = Child(task, directory / "children.log"), Ledger()
    child.wait_for("wait")
    child.kill()
    ledger.take(child)
    ledger.accepted[DELETED] += ledger.accepted.pop(len(topics))
    assert sum(map(len, ledger.accepted.values())) == BACKLOG
    assert not ledger.delivered
    return ledger


def started(cluster: Cluster, directory: Path, **options: Any) -> RecoverableProducer:
    return RecoverableProducer(directory / "wal", bootstrap_servers=cluster.bootstrap_servers, **{**OPTIONS, **options})


def assert_nothing_was_given_up(now: Statistics) -> None:
    """And what there was adds up (I9)."""
    assert uneven(msgspec.structs.asdict(now)) == []
    assert (now.dead_lettered, now.lost) == (0, 0)


async def make(cluster: Cluster, topics: Sequence[str]) -> None:
    async def made(topic: str) -> bool:
        await admin.create_topic(cluster.bootstrap_servers, topic, LANES, 1, {})
        return True

    for topic in topics:
        await admin.until(partial(made, topic), timeout_s=30, what="the topic is not made")


async def publish_more(
    producer: RecoverableProducer, topics: Sequence[str], ledger: Ledger, kind: int, count: int, pause: float = 0.0
) -> None:
    """``pause``: seconds between two."""
    for number in range(count):
        key, value = b"key-%d" % (number % 300), b"more %d:%b" % (number, b"x" * 100)
        receipt = await producer.publish(topics[kind], value, key=key)
        ledger.accepted[kind].append(Accepted(receipt.record_id, key, digest(value)))
        if pause:
            await asyncio.sleep(pause)


async def test_the_half_of_a_backlog_whose_topic_was_deleted_waits_beside_others_and_arrives_once_it_is_made_anew(
    only_made: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    only_made.nodes[0].kill()
    ledger = killed_with_a_backlog(only_made, topics, tmp_path)
    only_made.heal()
    await admin.delete_topic_everywhere(only_made.bootstrap_servers, topics[DELETED])
    half = len(ledger.accepted[DELETED])
    assert abs(half / BACKLOG - 0.5) < NEARLY
    waiting = half + len(ledger.accepted[NEVER])
    async with started(only_made, tmp_path) as producer:
        before = producer.statistics().bytes_ring
        await until(lambda: producer.statistics().records_left == waiting, 60)
        now = producer.statistics()
        assert_nothing_was_given_up(now)
        assert (now.pending, now.recovered, now.delivered) == (waiting, BACKLOG, len(ledger.accepted[WELL]))
        verdict = examine(only_made, topics[:DELETED], ledger)
        assert verdict.ok, str(verdict)

        await publish_more(producer, topics, ledger, WELL, MORE)
        await until(lambda: producer.statistics().pending == waiting, 60)
        most = 2 * before * waiting // BACKLOG + 4 * SLOT_BYTES  # as the rings of a partition that is stuck
        await until(lambda: producer.statistics().bytes_ring + producer.statistics().bytes_retry <= most, 60)
        now = producer.statistics()
        assert now.slots_moved > 0
        assert_nothing_was_given_up(now)

        async with (
            asyncio.TaskGroup() as tasks
        ):  # some come before what waits is sent, some while it is, some behind it
            for kind in (DELETED, NEVER):
                tasks.create_task(publish_more(producer, topics, ledger, kind, FEW, BACK / FEW))
            await make(only_made, topics[DELETED:])
        await producer.flush(DELIVERED_WITHIN_MS)
        now = producer.statistics()
        assert_nothing_was_given_up(now)
        assert (now.pending, now.delivered) == (0, BACKLOG + MORE + 2 * FEW)
    verdict = examine(only_made, topics, ledger)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.accepted == verdict.delivered == BACKLOG + MORE + 2 * FEW


async def test_a_topic_deleted_under_a_living_producer_holds_up_no_other_and_gets_what_it_had_not_once_it_is_made(
    only_made: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    """What was in it is gone with it, and nothing else."""
    delivered: set[str] = set()

    def on_delivery(report: DeliveryReport) -> None:
        delivered.add(report.record_id)

    async with started(only_made, tmp_path, on_delivery=on_delivery) as producer:
        publishers = [Publisher(producer, topic) for topic in topics]

        def ids(kind: int) -> set[str]:
            return {one.record_id for one in publishers[kind].accepted}

        async with asyncio.TaskGroup() as tasks:
            for publisher in publishers:
                tasks.create_task(publisher.publish(int(LIVING * RATE), RATE))
            await until(lambda: len(ids(DELETED) & delivered) > RATE)
            await admin.delete_topic_everywhere(only_made.bootstrap_servers, topics[DELETED])
            await asyncio.sleep(MOVING)
            before, began = len(ids(WELL) & delivered), time.monotonic()
            await asyncio.sleep(SPAN)
            reached = (len(ids(WELL) & delivered) - before) / (time.monotonic() - began) / RATE
        assert reached >= KEPT
        await until(lambda: ids(WELL) <= delivered)
        there = delivered & ids(DELETED)
        waiting = len(ids(DELETED)) - len(there) + len(ids(NEVER))
        assert len(there) > RATE
        assert waiting > LIVING * RATE
        assert not delivered & ids(NEVER)
        await until(lambda: producer.statistics().pending == waiting)
        assert_nothing_was_given_up(producer.statistics())

        async with (
            asyncio.TaskGroup() as tasks
        ):  # some come before what waits is sent, some while it is, some behind it
            for publisher in publishers:
                tasks.create_task(publisher.publish(int(BACK * RATE), RATE))
            await make(only_made, topics[DELETED:])
        await producer.flush(DELIVERED_WITHIN_MS)
        now = producer.statistics()
        assert_nothing_was_given_up(now)
        assert now.pending == 0
    for kind in (WELL, NEVER):
        assert_exactly_once(await judged(only_made, topics[kind], publishers[kind]), int((LIVING + BACK) * RATE))
    rest = [one for one in publishers[DELETED].accepted if one.record_id not in there]
    found = judge(rest, await read_topic(only_made.bootstrap_servers, topics[DELETED]), whole_lanes=True)
    assert_exactly_once(found, len(rest))
