"""One broker of three that cannot be reached from here, while the cluster is well: its partitions wait for it alone.

Nobody takes its partitions over, as nobody but us misses it: an attempt fails, again and again, for as long as it
lasts. (A broker that dies loses them within seconds: `test_stalled_partition`.)
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover import DeliveryReport, RecoverableProducer
from tests.crash.counts import uneven
from tests.crash.test_outages import DELIVERED_WITHIN_MS, assert_exactly_once
from tests.support import admin
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour, Route
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

LANES = 6
NODES = 3
LOST = 2  # the node, by its place in the list; it leads every third partition
BURST = 20  # records of each partition, 20 times a second
PACE = 0.05
SPAN = 4.0  # seconds that a rate is measured
KEPT = 0.9  # of what is published meanwhile
LINES = 10  # at most, for a fault that lasts, and for the way back as many again: some for each of the two lanes
WELL = "lanes are well again"
INTERVAL = 60.0  # seconds between two lines of one kind
LINES_LATER = 2  # at most, while nothing changes


@pytest.fixture
def cluster(mortal3: KafkaCluster) -> KafkaCluster:
    """Reached by a way for each of its nodes."""
    return mortal3


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    name = f"unreachable-{os.urandom(4).hex()}"
    nodes = [node.node_id for node in cluster.nodes]
    replicas = {lane: [nodes[lane % NODES], nodes[(lane + 1) % NODES]] for lane in range(LANES)}
    admin.run(admin.create_placed_topic(cluster.bootstrap_servers, name, replicas, {"min.insync.replicas": "2"}))
    return name


class Ways:
    """To each of the nodes; the one to `LOST` can be cut, and mended."""

    def __init__(self, routes: list[Route]) -> None:
        self._undo, self._lost = ExitStack(), ExitStack()
        self._route = routes[LOST]
        others = [route for route in routes if route is not self._route]
        self._undo.enter_context(Detour(others))
        self.mend()

    def cut(self, how: str) -> None:
        self._lost.close()
        if how == "nobody answers":
            self._lost.enter_context(full(self._route[0]))

    def mend(self) -> None:
        self._lost.close()
        self._lost.enter_context(Detour([self._route]))

    def close(self) -> None:
        self._lost.close()
        self._undo.close()


@contextmanager
def full(address: str) -> Iterator[None]:
    """Somebody listens who has no room for one more connection: packets are dropped, as by a firewall."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=0), ExitStack() as kept:
        for _ in range(8):
            one = kept.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, int(port)))
        yield


@pytest.fixture
def ways(cluster: KafkaCluster) -> Iterator[Ways]:
    made = Ways(list(cluster.detour_routes))
    yield made
    made.close()


class Publisher:
    """Publishes to every partition at its pace, whatever is delivered, and counts what was."""

    def __init__(self, topic: str) -> None:
        self.accepted: list[Accepted] = []
        self.delivered: Counter[int | None] = Counter()
        self._topic = topic

    def on_delivery(self, report: DeliveryReport) -> None:
        self.delivered[report.partition] += 1

    @asynccontextmanager
    async def at_work(self, producer: RecoverableProducer) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish(producer))
            yield
            publishing.cancel()

    async def _publish(self, producer: RecoverableProducer) -> None:
        while True:
            for number in range(BURST * LANES):
                lane, value = number % LANES, b"%d" % len(self.accepted)
                receipt = await producer.publish(self._topic, value, partition=lane)
                self.accepted.append(Accepted(receipt.record_id, None, value, lane))
            await asyncio.sleep(PACE)

    async def shares(self, seconds: float) -> tuple[float, int]:
        """Of what is published: how much comes through to the slowest of the partitions that can be reached.

        And how many records to all others together.
        """
        before, accepted = self.delivered.copy(), len(self.accepted)
        await asyncio.sleep(seconds)
        published = (len(self.accepted) - accepted) / LANES
        got = {lane: self.delivered[lane] - before[lane] for lane in range(LANES)}
        return min(got[lane] for lane in got if not lost(lane)) / published, sum(
            got[lane] for lane in got if lost(lane)
        )


def lost(lane: int) -> bool:
    return lane % NODES == LOST


@asynccontextmanager
async def started(cluster: KafkaCluster, directory: Path, publisher: Publisher) -> AsyncIterator[RecoverableProducer]:
    """A producer whose counts have to add up at its end."""
    options: dict[str, Any] = {"on_delivery": publisher.on_delivery, "max_batch_size": 16 * 1024}
    async with RecoverableProducer(directory, bootstrap_servers=cluster.detour_servers, **options) as producer:
        yield producer
    assert uneven(msgspec.structs.asdict(producer.statistics())) == []


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What somebody sees who looks at warnings, and at what we say of our sessions; it is taken."""
    told = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
        or record.name.startswith("aiorecover.session")
        or record.getMessage().startswith(WELL)
    ]
    caplog.clear()
    return told


@pytest.mark.parametrize("how", ["refused", "nobody answers"])
async def test_the_partitions_of_the_others_keep_their_rate_and_its_own_follow_in_order_when_it_is_back(
    cluster: KafkaCluster, ways: Ways, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO)
    publisher = Publisher(topic)
    async with started(cluster, tmp_path, publisher) as producer:
        async with publisher.at_work(producer):
            await until(lambda: all(publisher.delivered[lane] > 0 for lane in range(LANES)))
            lines(caplog)
            await asyncio.to_thread(ways.cut, how)
            await until(lambda: producer.statistics().lanes_stalled == LANES // NODES)
            told = [lines(caplog)]
            for _ in range(3):
                reached, missed = await publisher.shares(SPAN)
                assert reached >= KEPT
                assert missed == 0
                told.append(lines(caplog))
                now = producer.statistics()
                assert (producer.state, now.rebuilds, now.dead_lettered) == ("connected", 0, 0)
                assert (now.lanes_suspect, now.lanes_stalled, now.lanes_halted) == (2, 2, 0)
            assert now.seconds_left is None  # since the fifth second in which the oldest did not get through
            assert 1 <= sum(map(len, told)) <= LINES, told
            assert len(told[-1]) <= LINES_LATER, told
            await asyncio.to_thread(ways.mend)
            await until(lambda: producer.statistics().lanes_suspect == producer.statistics().lanes_stalled == 0)
        await producer.flush(DELIVERED_WITHIN_MS)
        assert producer.statistics().rebuilds == 0
        # One a minute: on a busy machine there was one at the start.
        await until(lambda: any(told.startswith(WELL) for told in caplog.messages), INTERVAL + 5)
        back = lines(caplog)
        assert sum(told.startswith(WELL) for told in back) == 1
        assert len(back) <= LINES, back
    await assert_all_is_there(cluster, publisher, topic)


async def test_from_the_start_on_what_can_be_reached_is_delivered_and_the_rest_when_the_node_is_there(
    cluster: KafkaCluster, ways: Ways, topic: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(ways.cut, "refused")
    publisher = Publisher(topic)
    async with started(cluster, tmp_path, publisher) as producer:
        async with publisher.at_work(producer):
            await until(lambda: all(publisher.delivered[lane] > 0 for lane in range(LANES) if not lost(lane)))
            await until(lambda: producer.statistics().lanes_stalled == LANES // NODES)
            reached, missed = await publisher.shares(SPAN)
            assert reached >= KEPT
            assert missed == 0
            await asyncio.to_thread(ways.mend)
            await until(lambda: all(publisher.delivered[lane] > 0 for lane in range(LANES)))
        await producer.flush(DELIVERED_WITHIN_MS)
    await assert_all_is_there(cluster, publisher, topic)


async def assert_all_is_there(cluster: KafkaCluster, publisher: Publisher, topic: str) -> None:
    """Once, and in order."""
    verdict = judge(publisher.accepted, await read_topic(cluster.bootstrap_servers, topic), whole_lanes=True)
    assert_exactly_once(verdict, len(publisher.accepted))
