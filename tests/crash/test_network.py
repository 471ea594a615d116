"""A network that delays, loses and cuts: three brokers that are reached by a way of their own each (`Detour`)."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from aiorecover import DeliveryReport, RecoverableProducer
from tests.kafka.kills import Lives
from tests.support import admin
from tests.support.broker import KafkaCluster, TopicFactory
from tests.support.detour import Detour, Route
from tests.support.eventually import until
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

HELD_BYTES = 1000  # of batches that are in flight when the process dies: a request to each broker
TOLD_S = 1.0  # long enough for batches to be on their way
LANES = 6
SHARE = 0.9  # of what is published to the partitions that can be reached
MEASURED_S = 4.0


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def lives(three: KafkaCluster, topic: TopicFactory, tmp_path: Path) -> Lives:
    return Lives(three, topic(three), tmp_path, servers=three.detour_servers)


async def test_a_late_request_of_a_dead_process_is_not_stored_twice(three: KafkaCluster, lives: Lives) -> None:
    with Detour(three.detour_routes) as detour:
        await asyncio.to_thread(_die, lives, detour, detour.hold)
        successor = await asyncio.to_thread(lives.start, 2)
        await asyncio.sleep(TOLD_S)
        assert detour.release() > 0, "nothing was late"
        await asyncio.to_thread(lives.kill, successor)
        verdict = await lives.verdict()
    perfect(verdict)


async def test_a_request_that_was_never_answered_is_not_stored_twice(three: KafkaCluster, lives: Lives) -> None:
    with Detour(three.detour_routes) as detour:
        await asyncio.to_thread(_die, lives, detour, detour.deafen)
        verdict = await lives.verdict()
    perfect(verdict)


def _die(lives: Lives, detour: Detour, fault: Callable[[], None]) -> None:
    victim = lives.start(1)
    time.sleep(TOLD_S)
    fault()
    time.sleep(TOLD_S)
    if fault == detour.hold:
        detour.wait_held(HELD_BYTES)
    lives.kill(victim)
    if fault == detour.hold:
        detour.wait_late(HELD_BYTES)


async def test_connections_that_say_nothing_any_more_are_replaced(
    three: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(three), Published()
    options: dict[str, Any] = {"request_timeout_ms": 1500}
    with Detour(three.detour_routes) as detour:
        async with RecoverableProducer(tmp_path, bootstrap_servers=three.detour_servers, **options) as producer:
            await published.publish(producer, name, 500)
            await producer.flush(WITHIN_MS)
            for fault in (detour.deafen, detour.hold, detour.deafen):
                fault()
                await published.publish(producer, name, 500)
                await asyncio.sleep(0.5)
                await published.publish(producer, name, 500)
                await producer.flush(WITHIN_MS)
            detour.release()
        await asyncio.sleep(TOLD_S)
        perfect(await published.judged(three, name))


@pytest.mark.parametrize("how", ["refused", "dropped"])
async def test_partitions_of_a_node_that_cannot_be_reached_wait_and_the_others_keep_their_rate(
    three: KafkaCluster, tmp_path: Path, how: str
) -> None:
    """The cluster misses nothing, so no other node takes the partitions over."""
    name, lost = f"unreachable-{how}-{time.time_ns()}", three.nodes[2].node_id
    ids = [node.node_id for node in three.nodes]
    replicas = {lane: [ids[lane % 3], ids[(lane + 1) % 3]] for lane in range(LANES)}
    await admin.create_placed_topic(three.bootstrap_servers, name, replicas)
    near = [lane for lane in range(LANES) if replicas[lane][0] != lost]
    published, delivered = Published(), Counter[int | None]()

    def on_delivery(report: DeliveryReport) -> None:
        delivered[report.partition] += 1

    with _Ways(list(three.detour_routes)) as ways:
        options: dict[str, Any] = {"on_delivery": on_delivery, "request_timeout_ms": 10_000}
        async with RecoverableProducer(tmp_path, bootstrap_servers=three.detour_servers, **options) as producer:
            publishing = asyncio.create_task(_publish_steadily(producer, published, name))
            await until(lambda: all(delivered[lane] for lane in range(LANES)))
            await asyncio.to_thread(ways.cut, how)
            await asyncio.sleep(2)
            before, accepted = delivered.copy(), len(published.accepted)
            await asyncio.sleep(MEASURED_S)
            each = (len(published.accepted) - accepted) / LANES
            assert min(delivered[lane] - before[lane] for lane in near) >= SHARE * each
            assert producer.statistics().lanes_in_trouble == LANES // 3
            await asyncio.to_thread(ways.mend)
            await asyncio.sleep(1)
            publishing.cancel()
            await producer.flush(WITHIN_MS)
    perfect(await published.judged(three, name))


async def _publish_steadily(producer: RecoverableProducer, published: Published, name: str) -> None:
    while True:
        for lane in range(LANES):
            await published.publish(producer, name, 20, partition=lane)
        await asyncio.sleep(0.05)


class _Ways:
    """A way to each node, the last of which can be cut and mended."""

    def __init__(self, routes: list[Route]) -> None:
        self._undo, self._last = ExitStack(), ExitStack()
        *self._others, self._route = routes

    def __enter__(self) -> Self:
        self._undo.enter_context(Detour(self._others))
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self._last.close()
        self._undo.close()

    def cut(self, how: str) -> None:
        self._last.close()
        if how == "dropped":
            self._last.enter_context(_full(self._route[0]))

    def mend(self) -> None:
        self._last.close()
        self._last.enter_context(Detour([self._route]))


@contextmanager
def _full(address: str) -> Iterator[None]:
    """Listen without room for one more connection: the kernel drops their packets, as a firewall does."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=0), ExitStack() as kept:
        for _ in range(8):
            one = kept.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, int(port)))
        yield
