"""Every call ends in its time, whatever the brokers do, and a stop leaves no task, thread or descriptor."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from aiorecover import ClosedError, DeliveryPendingError, RecoverableProducer
from aiorecover.manifests import Manifests
from aiorecover.testing import MockClusterProcess
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.frozen import freeze
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE
from tests.support.silence import complaints

TOPIC = "limits"
QUICK: dict[str, Any] = {"request_timeout_ms": 300, "retry_backoff_ms": 20, "stop_timeout_ms": 500}
HANG = 20  # seconds: what takes longer hangs; every limit in here is below two


@pytest.fixture(autouse=True)
def _silent_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert complaints(caplog) == []


class Scene:
    """A producer, its cluster, and the trouble between the two."""

    def __init__(self, producer: RecoverableProducer, cluster: MockClusterProcess, before: Census) -> None:
        self.producer = producer
        self.cluster = cluster
        self.before = before

    def thaw(self) -> None:
        assert self.cluster.pid is not None
        os.kill(self.cluster.pid, signal.SIGCONT)


async def frozen(scene: Scene) -> None:
    assert scene.cluster.pid is not None
    freeze(scene.cluster.pid)


async def gone(scene: Scene) -> None:
    await scene.cluster.broker_down()


async def without_a_leader(scene: Scene) -> None:
    """One of two partitions."""
    await scene.cluster.set_leader(TOPIC, 0, None)


async def over(scene: Scene, trouble: "Trouble") -> None:
    scene.thaw()
    if trouble is gone:
        await scene.cluster.broker_up()
    if trouble is without_a_leader:
        await scene.cluster.set_leader(TOPIC, 0, 1)


Trouble = Callable[[Scene], Awaitable[None]]
TROUBLES: list[Trouble] = [frozen, gone, without_a_leader]


@asynccontextmanager
async def scene_of(tmp_path: Path, brokers: int = 1, **options: Any) -> AsyncIterator[Scene]:
    """A started producer that has delivered a record to each partition; the cluster is thawed in the end."""
    async with MockClusterProcess(brokers) as cluster:
        await cluster.create_topic(TOPIC, partitions=2 * brokers)
        options = {"metadata_max_age_ms": 500, **QUICK, **options}
        producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers, **options)
        scene = Scene(producer, cluster, Census(tmp_path))
        try:
            await producer.start()
            for number in range(2 * brokers):
                await producer.publish(TOPIC, b"first", partition=number)
            await producer.flush(HANG * 1000)
            yield scene
        finally:
            scene.thaw()
            await producer.stop()


async def outcome(call: Awaitable[Any]) -> str:
    """How a call ended: "well", or the name of its error."""
    try:
        async with asyncio.timeout(HANG):
            await call
    except (DeliveryPendingError, KafkaTimeoutError, ClosedError) as error:
        return type(error).__name__
    return "well"


async def assert_calls_end(producer: RecoverableProducer) -> None:
    """Each of them, at the same time, within its own limit."""
    receipt = await producer.publish(TOPIC, b"asked for", key=b"k")
    found = await asyncio.gather(
        outcome(receipt.delivered(timeout_ms=200)),
        outcome(producer.flush(timeout_ms=200)),
        outcome(producer.send_and_wait(TOPIC, b"sent", b"k")),
        outcome(producer.partitions_for(TOPIC)),
        outcome(producer.partitions_for("another")),
    )
    assert set(found[:3]) <= {"well", "DeliveryPendingError"}
    assert set(found[3:]) <= {"well", "KafkaTimeoutError"}


async def assert_stops(producer: RecoverableProducer, before: Census) -> None:
    """Callers that wait without a limit hear of it, nothing is left, and the counts add up."""
    receipt = await producer.publish(TOPIC, b"last", key=b"k")
    waiting = [asyncio.create_task(outcome(call)) for call in (receipt.delivered(), producer.flush())]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(HANG):
        left = await producer.stop()
        told = await asyncio.gather(*waiting)
    assert before.left_since() == []
    assert set(told) <= {"well", "ClosedError"}
    counts = producer.statistics()
    assert counts.accepted == counts.delivered + counts.pending
    assert (counts.pending, counts.state) == (left, "stopped")


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("noticed", [True, False])
async def test_every_call_ends_in_its_time_and_stop_leaves_nothing(
    tmp_path: Path, trouble: Trouble, noticed: bool
) -> None:
    async with scene_of(tmp_path) as scene:
        await trouble(scene)
        if noticed:
            await assert_calls_end(scene.producer)
        await assert_stops(scene.producer, scene.before)


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_once_the_trouble_is_over_everything_arrives_within_a_second_or_two(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with scene_of(tmp_path) as scene:
        producer = scene.producer
        await trouble(scene)
        values = [b"%d" % number for number in range(20)]
        for value in values:
            for name in (TOPIC, "later"):
                await producer.publish(name, value, key=b"k")
        await asyncio.sleep(0.8)  # some requests end meanwhile, and the metadata is asked for again
        await over(scene, trouble)
        await producer.flush(timeout_ms=5_000)
        assert producer.state == "connected"
        for topic in (TOPIC, "later"):
            found = [record.value for record in await read_topic(scene.cluster.bootstrap_servers, topic)]
            assert [value for value in dict.fromkeys(found) if value in values] == values  # the mock knows no repeats


@pytest.mark.asyncio
@pytest.mark.parametrize("pause", [0.05, 0.5], ids=["in flight", "connecting anew"])
async def test_a_stop_leaves_nothing_of_requests_to_many_frozen_brokers(tmp_path: Path, pause: float) -> None:
    async with scene_of(tmp_path, brokers=6) as scene:
        await frozen(scene)
        for number in range(12):
            await scene.producer.publish(TOPIC, b"on its way", partition=number)
        await asyncio.sleep(pause)
        async with asyncio.timeout(HANG):
            assert await scene.producer.stop(timeout_ms=100) == 12
        assert scene.before.left_since() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("answers", [False, True], ids=["nobody", "a black hole"])
async def test_without_a_broker_every_call_ends_in_its_time_and_stop_leaves_nothing(
    tmp_path: Path, answers: bool
) -> None:
    with socket.socket() as listener:  # the kernel accepts connections, and no process answers
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        servers = f"127.0.0.1:{listener.getsockname()[1]}" if answers else NOWHERE
        before = Census(tmp_path)
        producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=servers, **QUICK)
        await producer.start()
        await assert_calls_end(producer)
        assert producer.state == "connecting"
        await assert_stops(producer, before)


@pytest.mark.asyncio
async def test_a_flush_whose_time_ends_while_the_producer_stops_says_that_the_records_stay_in_the_ring(
    tmp_path: Path,
) -> None:
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=1_500)
    await producer.start()
    await producer.publish(TOPIC, b"1")
    flushing = asyncio.create_task(producer.flush(timeout_ms=300))
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(producer.stop())
    with pytest.raises(DeliveryPendingError, match="do not publish it again"):
        await flushing
    assert producer.state == "stopping"
    assert await stopping == 1


@pytest.mark.asyncio
async def test_a_caller_of_stop_that_is_cancelled_leaves_the_stop_going_on(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await frozen(scene)
        await scene.producer.publish(TOPIC, b"on its way")
        for turns in range(12):
            stopping = asyncio.create_task(scene.producer.stop())
            for _ in range(turns):
                await asyncio.sleep(0)
            stopping.cancel()
            await asyncio.wait({stopping})
        async with asyncio.timeout(HANG):
            assert await scene.producer.stop() == 1
        assert scene.before.left_since() == []


@pytest.mark.asyncio
async def test_a_stop_one_step_of_which_fails_raises_that_and_lets_go_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Manifests) -> None:
        raise RuntimeError("a fault of ours")

    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, audit_topic="audit", **QUICK)
    await producer.start()
    await producer.publish(TOPIC, b"v")
    monkeypatch.setattr(Manifests, "finish", fails)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await producer.stop(timeout_ms=0)
    assert before.left_since() == []
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, **QUICK) as following:
        assert following.wal_path == producer.wal_path
        await until(lambda: following.statistics().recovered == 1)


def test_a_loop_that_ends_without_a_stop_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`asyncio.run` cancels all tasks: the next start delivers what is left."""

    async def main(servers: str) -> int:
        producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=servers, **QUICK)
        await producer.start()
        await producer.publish(TOPIC, b"v")
        await asyncio.sleep(0.05)
        return producer.epoch

    assert asyncio.run(main(NOWHERE)) == 1  # and the fixture looks at the log
