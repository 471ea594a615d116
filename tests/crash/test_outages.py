"""A broker that is not there, goes away under load, or hangs: publishing goes on, and all of it arrives, in order."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover import Receipt, RecoverableProducer
from tests.crash.counts import uneven
from tests.crash.outages import MEMORY, run_outages
from tests.crash.pace import resident_bytes
from tests.support.broker import Cluster, KafkaCluster
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

KEYS = 500
DELIVERED_WITHIN_MS = 90_000  # it takes seconds; what is proved is that it happens
BLOCKED_S = 2.0  # a publish that waited for a broker would take as long as it is gone, GONE_S and more
GONE_S = 4.0
REQUEST_S = 1.0  # after which a request without an answer is given up
LIMIT_S = 10.0  # after which a connection is given up, and a look at the topics
FROZEN_S = LIMIT_S + 4 * REQUEST_S + 1.0  # longer than any of them
RATE = 3_000  # records a second, while it is frozen


class Publisher:
    """Publishes numbered records, and remembers what was accepted and how long the slowest call took."""

    def __init__(self, producer: RecoverableProducer, topic: str) -> None:
        self.accepted: list[Accepted] = []
        self.slowest_s = 0.0
        self._producer = producer
        self._topic = topic
        self._numbers = itertools.count()

    async def publish(self, count: int, rate: int | None = None) -> None:
        began = time.monotonic()
        for done in range(count):
            await self.publish_one()
            ahead = done / rate - (time.monotonic() - began) if rate is not None else 0.0
            if ahead > 0.001:
                await asyncio.sleep(ahead)

    async def publish_one(self) -> Receipt:
        number = next(self._numbers)
        key, value = b"key-%d" % (number % KEYS), b"%d:%b" % (number, b"x" * 100)
        began = time.perf_counter()
        receipt = await self._producer.publish(self._topic, value, key=key)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        self.accepted.append(Accepted(receipt.record_id, key, value))
        return receipt


async def judged(cluster: Cluster, topic: str, publisher: Publisher) -> Verdict:
    return judge(publisher.accepted, await read_topic(cluster.bootstrap_servers, topic), whole_lanes=True)


def assert_exactly_once(verdict: Verdict, count: int) -> None:
    assert verdict.ok, str(verdict)
    assert verdict.accepted == verdict.delivered == count, str(verdict)
    assert verdict.repeated == 0, str(verdict)  # one process: the broker recognises every batch that is sent again
    assert not verdict.foreign, str(verdict)


@asynccontextmanager
async def started(cluster: Cluster, directory: Path, **options: Any) -> AsyncIterator[RecoverableProducer]:
    """A producer whose counts have to add up at its end."""
    async with RecoverableProducer(
        directory / "wal", bootstrap_servers=cluster.bootstrap_servers, **options
    ) as producer:
        yield producer
    assert uneven(msgspec.structs.asdict(producer.statistics())) == []


async def test_what_is_published_before_the_broker_is_up_is_delivered_once_it_is(
    mortal: KafkaCluster, tmp_path: Path
) -> None:
    mortal.create_topic("down-at-start", 6)
    node = mortal.nodes[0]
    node.kill()
    async with started(mortal, tmp_path) as producer:
        publisher = Publisher(producer, "down-at-start")
        await publisher.publish(40_000)
        assert producer.statistics().delivered == 0
        assert producer.statistics().pending == 40_000
        node.start()
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().pending == 0
    assert publisher.slowest_s < BLOCKED_S
    await asyncio.to_thread(mortal.wait_ready)
    assert_exactly_once(await judged(mortal, "down-at-start", publisher), 40_000)


async def test_a_long_outage_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    """What waits is page cache, and does not count as the process's own."""
    async with RecoverableProducer(tmp_path, bootstrap_servers="localhost:1", stop_timeout_ms=100) as producer:
        await publish_without_broker(producer, 20_000)
        before = resident_bytes()
        await publish_without_broker(producer, 400_000)
        assert producer.statistics().bytes_used > 5 * MEMORY
        await asyncio.sleep(0.5)  # what the last turns stored counts until the next look, a tenth of a second later
        assert resident_bytes() - before < MEMORY


async def publish_without_broker(producer: RecoverableProducer, count: int) -> None:
    for number in range(count):
        await producer.publish("outage", b"x" * 160, key=b"%d" % (number % KEYS))


async def test_all_brokers_gone_under_steady_load_cost_no_memory_and_no_record(
    mortal: KafkaCluster, tmp_path: Path
) -> None:
    """A short one; ten minutes are `make prove WHAT=outages`, which also asks when delivery is resumed."""
    outcome = await asyncio.to_thread(run_outages, mortal, tmp_path, count=1, seconds=3.0, rate=5_000)
    assert outcome.ok, str(outcome.verdict)
    (outage,) = outcome.outages
    assert outage.waiting > 10_000
    assert not {"memory", "fewer records wait than came"} & set(outage.wrong()), str(outage)


async def test_an_outage_that_outlasts_the_process_costs_nothing(mortal: KafkaCluster, tmp_path: Path) -> None:
    mortal.create_topic("outlasts", 6)
    node = mortal.nodes[0]
    node.kill()
    async with started(mortal, tmp_path, stop_timeout_ms=500) as producer:
        publisher = Publisher(producer, "outlasts")
        await publisher.publish(20_000)
        assert await producer.stop() == 20_000
    node.start()
    async with started(mortal, tmp_path) as producer:
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().recovered == 20_000
    await asyncio.to_thread(mortal.wait_ready)
    assert_exactly_once(await judged(mortal, "outlasts", publisher), 20_000)


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_a_broker_that_goes_away_under_load_costs_publishers_nothing(
    mortal: KafkaCluster, tmp_path: Path, fault: str
) -> None:
    """20,000 records a second for seconds; the broker is gone in the middle of it."""
    topic = f"under-load-{fault}"
    mortal.create_topic(topic, 6)
    node = mortal.nodes[0]
    async with started(mortal, tmp_path) as producer:
        publisher = Publisher(producer, topic)
        load = asyncio.create_task(publisher.publish(120_000, rate=20_000))
        await until(lambda: producer.statistics().delivered > 10_000, 60)
        if fault == "kill":
            node.kill()
            await asyncio.sleep(GONE_S)
            node.start()
        else:
            node.pause()
            await asyncio.sleep(GONE_S)
            node.resume()
        await load
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().pending == 0
    assert publisher.slowest_s < BLOCKED_S
    await asyncio.to_thread(mortal.wait_ready)
    assert_exactly_once(await judged(mortal, topic, publisher), 120_000)


async def test_a_broker_frozen_for_longer_than_every_time_out_costs_nothing(
    mortal3: KafkaCluster, tmp_path: Path
) -> None:
    """Those of requests, of silence, of connecting and of metadata; the leader of some lanes."""
    cluster, topic = mortal3, "frozen-for-long"
    cluster.create_topic(topic, 6)
    leader = cluster.leaders(topic)[0]
    node = next(node for node in cluster.nodes if node.node_id == leader)
    async with started(cluster, tmp_path, request_timeout_ms=int(1000 * REQUEST_S)) as producer:
        publisher = Publisher(producer, topic)
        load = asyncio.create_task(publisher.publish(int(RATE * (FROZEN_S + 3)), RATE))
        await until(lambda: producer.statistics().delivered > RATE, 60)
        node.pause()
        await asyncio.sleep(FROZEN_S)
        node.resume()
        await load
        await producer.flush(DELIVERED_WITHIN_MS)
        now = producer.statistics()
        assert (now.pending, now.dead_lettered, now.lost) == (0, 0, 0)
        assert now.rebuilds >= 1  # of three, too: where it follows, the others wait for it before they answer
    assert publisher.slowest_s < BLOCKED_S
    await asyncio.to_thread(cluster.wait_ready)
    assert_exactly_once(await judged(cluster, topic, publisher), int(RATE * (FROZEN_S + 3)))


async def test_a_leader_that_is_killed_under_load_is_replaced_and_nothing_is_lost_or_repeated(
    mortal3: KafkaCluster, tmp_path: Path
) -> None:
    mortal3.create_topic("moved", 6)
    leader = mortal3.leaders("moved")[0]
    node = next(node for node in mortal3.nodes if node.node_id == leader)
    async with started(mortal3, tmp_path) as producer:
        publisher = Publisher(producer, "moved")
        load = asyncio.create_task(publisher.publish(40_000, rate=8_000))
        await until(lambda: producer.statistics().delivered > 4_000, 60)
        node.kill()
        await load
        await producer.flush(DELIVERED_WITHIN_MS)
    assert publisher.slowest_s < BLOCKED_S
    assert mortal3.leaders("moved")[0] != leader
    assert_exactly_once(await judged(mortal3, "moved", publisher), 40_000)
