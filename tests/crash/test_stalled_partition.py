"""One partition of twelve without a leader: the others flow, and once it is healed nothing is missing or out of order.

Each partition stands on one node alone, and only one on the node that is killed.
"""

import asyncio
import itertools
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aiorecover import DeliveryReport
from tests.crash.scenario import Scenario
from tests.crash.stalling import (
    PARTITIONS,
    SMALL_SLOTS,
    STUCK,
    heal,
    placed_topic,
    stalled,
    stuck,
)
from tests.crash.test_outages import BLOCKED_S, DELIVERED_WITHIN_MS, Publisher, assert_exactly_once, judged, started
from tests.support import admin
from tests.support.broker import KafkaCluster
from tests.support.eventually import until
from tests.support.oracle import judge, read_topic
from tests.support.partitioner import partition_for

pytestmark = pytest.mark.timeout(240)

GROWN = 18  # partitions
MOVED_AT_LEAST = 20  # slots of some 90, with one record in twelve for the partition that is stuck
MOVED_SOON = 5
RECORD_BYTES = 200  # in the ring, about


@pytest.fixture
def placed(mortal3: KafkaCluster) -> str:
    """The topic."""
    return placed_topic(mortal3)


@pytest.mark.asyncio
async def test_the_others_go_on_and_the_stalled_one_follows_in_order(
    mortal3: KafkaCluster, placed: str, tmp_path: Path
) -> None:
    async with started(mortal3, tmp_path, **SMALL_SLOTS) as producer:
        publisher = Publisher(producer, placed)
        await publisher.publish(5_000, rate=5_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        stuck(mortal3).kill()
        await publisher.publish(30_000, rate=5_000)
        waiting = sum(
            partition_for(accepted.key or b"", PARTITIONS) == STUCK for accepted in publisher.accepted[5_000:]
        )
        assert waiting > 1_000
        await until(lambda: producer.statistics().pending == waiting, 60)
        assert producer.statistics().lanes_stalled == 1
        await until(lambda: producer.statistics().slots_moved > MOVED_AT_LEAST)
        most = 2 * waiting * RECORD_BYTES + 4 * SMALL_SLOTS["slot_bytes"]
        await until(lambda: producer.statistics().bytes_used <= most, 60)
        await asyncio.to_thread(heal, mortal3)
        await publisher.publish(10_000, rate=5_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().lanes_stalled == 0
    assert publisher.slowest_s < BLOCKED_S
    assert_exactly_once(await judged(mortal3, placed, publisher), 45_000)


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["below min.insync.replicas", "a frozen leader"])
async def test_what_waits_for_a_partition_that_answers_nothing_or_refuses_is_moved_and_follows_in_order(
    mortal3: KafkaCluster, tmp_path: Path, fault: str
) -> None:
    name, one, two = f"placed-{os.urandom(4).hex()}", *(node.node_id for node in mortal3.nodes[:2])
    if fault == "a frozen leader":
        replicas = {number: [one] for number in range(PARTITIONS)} | {STUCK: [stuck(mortal3).node_id]}
        await admin.create_placed_topic(mortal3.bootstrap_servers, name, replicas)
    else:  # its leader lives, and the other one of its two replicas does not
        replicas = {number: [one, two] for number in range(PARTITIONS)} | {STUCK: [one, stuck(mortal3).node_id]}
        await admin.create_placed_topic(mortal3.bootstrap_servers, name, replicas, {"min.insync.replicas": "2"})
    async with started(mortal3, tmp_path, **SMALL_SLOTS) as producer:
        publisher = Publisher(producer, name)
        await publisher.publish(2_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        harm = stuck(mortal3).pause if fault == "a frozen leader" else stuck(mortal3).kill
        harm()
        await publisher.publish(20_000, rate=5_000)
        await until(lambda: producer.statistics().slots_moved > MOVED_SOON, 60)
        assert producer.statistics().lanes_stalled == 1
        await asyncio.to_thread(mortal3.heal)
        await publisher.publish(2_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().dead_lettered == 0
    assert_exactly_once(await judged(mortal3, name, publisher), 24_000)


@pytest.mark.asyncio
async def test_a_topic_that_grows_while_a_lane_is_stalled_spreads_anew_only_what_comes_behind_that(
    mortal3: KafkaCluster, placed: str, tmp_path: Path
) -> None:
    """A key changes its partition once, and each partition keeps its order: of what waited, too."""
    old, new = (partial(partition_for, count=number) for number in (PARTITIONS, GROWN))
    reached: set[int | None] = set()

    def on_delivery(report: DeliveryReport) -> None:
        reached.add(report.partition)

    options = {**SMALL_SLOTS, "metadata_max_age_ms": 500}
    async with started(mortal3, tmp_path, **options, on_delivery=on_delivery) as producer:
        publisher = Publisher(producer, placed)
        await publisher.publish(2_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        stuck(mortal3).kill()
        await publisher.publish(15_000, rate=5_000)
        await until(lambda: producer.statistics().lanes_stalled == 1, 60)
        others = itertools.cycle(node.node_id for node in mortal3.nodes[:2])
        where = list(itertools.islice(others, GROWN - PARTITIONS))
        await admin.grow_topic(mortal3.bootstrap_servers, placed, GROWN, where)
        async with asyncio.timeout(60):
            while not reached >= set(range(PARTITIONS, GROWN)):
                await publisher.publish(100, rate=1_000)
        await publisher.publish(5_000, rate=5_000)
        keys = [accepted.key or b"" for accepted in publisher.accepted[2_000:]]
        least = sum(old(key) == STUCK for key in keys)
        most = sum(STUCK in (old(key), new(key)) for key in keys)
        await until(lambda: least <= producer.statistics().pending <= most, 60)
        await asyncio.to_thread(heal, mortal3)
        await publisher.publish(2_000, rate=5_000)
        await producer.flush(DELIVERED_WITHIN_MS)
        now = producer.statistics()
        assert (now.pending, now.dead_lettered, now.lanes_stalled) == (0, 0, 0)

    there = await read_topic(mortal3.bootstrap_servers, placed)
    verdict = judge(publisher.accepted, there, whole_lanes=True)
    assert_exactly_once(replace(verdict, scattered=[]), len(publisher.accepted))
    went = dict[bytes, list[int]]()
    partitions = {record.record_id: record.partition for record in there}
    for accepted in publisher.accepted:
        went.setdefault(accepted.key or b"", []).append(partitions[accepted.record_id])
    for key, each in went.items():
        homes = [place for place, _ in itertools.groupby(each)]
        assert homes in ([old(key), new(key)], [old(key)]), f"{key!r} {homes}"
    moved = {old(key) for key, each in went.items() if each[0] != each[-1]}
    assert moved >= set(range(PARTITIONS)) - {STUCK}


def test_killed_twice_while_a_lane_is_stalled(mortal3: KafkaCluster, placed: str, tmp_path: Path) -> None:
    scenario = Scenario(mortal3, tmp_path, lanes=PARTITIONS, topic=placed)
    for life in range(2):
        child = stalled(scenario, die=life == 0)
        scenario.kill(child)
    heal(mortal3)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
    assert (verdict.kills, verdict.resumed) == (2, 2)
