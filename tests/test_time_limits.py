"""Whatever becomes of the brokers and of our tasks: every call ends in its time, and a stop leaves nothing behind."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from aiorecover import ClosedError, DeliveryPendingError, DeliveryReport, RecoverableProducer
from aiorecover.testing import MockClusterProcess
from tests.support.census import Census
from tests.support.frozen import freeze
from tests.support.oracle import read_topic
from tests.support.silence import complaints

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOPIC = "limits"
QUICK: dict[str, Any] = {"request_timeout_ms": 300, "retry_backoff_ms": 20, "stop_timeout_ms": 500}
HANG = 20  # seconds: what takes longer hangs; every limit in here is below two


class Scene:
    """A producer, its cluster, and the trouble between the two."""

    def __init__(self, producer: RecoverableProducer, cluster: MockClusterProcess) -> None:
        self.producer = producer
        self.cluster = cluster

    async def connected(self) -> None:
        async with asyncio.timeout(HANG):
            await self.producer.publish(TOPIC, b"first")
            await self.producer.flush()

    def freeze(self) -> None:
        assert self.cluster.pid is not None
        freeze(self.cluster.pid)

    def thaw(self) -> None:
        assert self.cluster.pid is not None
        os.kill(self.cluster.pid, signal.SIGCONT)


async def nothing(_: Scene) -> None:
    """Nobody listens from the beginning."""


async def frozen(scene: Scene) -> None:
    scene.freeze()


async def gone(scene: Scene) -> None:
    await scene.cluster.broker_down()


async def suspected(scene: Scene) -> None:
    """One partition has no leader, the other one goes on: there is a second session."""
    await scene.cluster.set_leader(TOPIC, 0, None)
    async with asyncio.timeout(HANG):
        while not scene.producer.statistics().lanes_suspect:
            for partition in (0, 1):
                await scene.producer.publish(TOPIC, b"meets it", partition=partition)
            await asyncio.sleep(0.02)


async def every_task_cancelled(scene: Scene) -> None:
    """What a shutdown hook may do."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.fixture(autouse=True)
def _silent_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert complaints(caplog) == []


Trouble = Callable[[Scene], Awaitable[None]]
TROUBLES: list[Trouble] = [
    frozen,
    gone,
    suspected,
    every_task_cancelled,
]


@asynccontextmanager
async def scene_of(tmp_path: Path, brokers: int = 1, **options: Any) -> AsyncIterator[Scene]:
    """A producer that is not started yet; whatever was done to the cluster, it is thawed in the end."""
    async with MockClusterProcess(brokers) as cluster:
        await cluster.create_topic(TOPIC, partitions=2 * brokers)
        producer = RecoverableProducer(
            tmp_path / "wal",
            bootstrap_servers=cluster.bootstrap_servers,
            metadata_max_age_ms=500,
            **{**QUICK, **options},
        )
        scene = Scene(producer, cluster)
        try:
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
    """Whoever waits without a limit is told, nothing is left, and the counts add up."""
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
    assert counts.pending == left
    assert producer.state == "stopped"


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_every_call_ends_in_its_time_and_stop_leaves_nothing(tmp_path: Path, trouble: Trouble) -> None:
    async with scene_of(tmp_path) as scene:
        before = Census(tmp_path)
        await scene.producer.start()
        await scene.connected()
        await trouble(scene)
        await assert_calls_end(scene.producer)
        await assert_stops(scene.producer, before)


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_stop_in_the_middle_of_it_leaves_nothing(tmp_path: Path, trouble: Trouble) -> None:
    """Before anything has been noticed."""
    async with scene_of(tmp_path) as scene:
        before = Census(tmp_path)
        await scene.producer.start()
        await scene.connected()
        await trouble(scene)
        await assert_stops(scene.producer, before)


@pytest.mark.asyncio
@pytest.mark.parametrize("pause", [0.05, 0.5], ids=["in flight", "connecting anew"])
async def test_a_stop_leaves_nothing_of_requests_to_many_frozen_brokers(tmp_path: Path, pause: float) -> None:
    async with scene_of(tmp_path, brokers=6) as scene:
        before = Census(tmp_path)
        await scene.producer.start()
        partitions = await scene.producer.partitions_for(TOPIC)
        for number in partitions:
            await (await scene.producer.publish(TOPIC, b"first", partition=number)).delivered(HANG * 1000)
        await frozen(scene)
        for number in partitions:
            await scene.producer.publish(TOPIC, b"on its way", partition=number)
        await asyncio.sleep(pause)
        async with asyncio.timeout(HANG):
            assert await scene.producer.stop(timeout_ms=100) == len(partitions)
        assert before.left_since() == []


@pytest.mark.asyncio
async def test_an_on_delivery_that_ignores_its_cancellation_keeps_no_connection_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with MockClusterProcess() as cluster:
        before = Census(tmp_path)
        called = asyncio.Event()

        async def stubborn(_: DeliveryReport) -> None:
            called.set()
            end = asyncio.get_running_loop().time() + 1.5
            while asyncio.get_running_loop().time() < end:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)

        producer = RecoverableProducer(
            tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers, on_delivery=stubborn
        )
        await producer.start()
        await producer.publish(TOPIC, b"v")
        await called.wait()
        async with asyncio.timeout(HANG):
            await producer.stop(timeout_ms=200)
        assert [line for line in before.left_since() if not line.startswith("task")] == []
        async with asyncio.timeout(HANG):
            while before.left_since():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.05)
        assert "refused" not in caplog.text  # it is not Kafka's fault, and no lane's


@pytest.mark.asyncio
@pytest.mark.parametrize("answers", [False, True], ids=["nobody", "a black hole"])
async def test_without_a_broker_every_call_ends_in_its_time_and_stop_leaves_nothing(
    tmp_path: Path, answers: bool
) -> None:
    with socket.socket() as listener:  # the kernel accepts connections, nobody ever answers
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
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_once_the_trouble_is_over_everything_arrives(tmp_path: Path, trouble: Trouble) -> None:
    async with scene_of(tmp_path) as scene:
        producer = scene.producer
        await producer.start()
        await scene.connected()
        await trouble(scene)
        values = [b"%d" % number for number in range(20)]
        for value in values:
            await producer.publish(TOPIC, value, key=b"k")
            await producer.publish("later", value, key=b"k")
        await asyncio.sleep(0.5)
        if trouble is frozen:
            scene.thaw()
        if trouble is gone:
            await scene.cluster.broker_up()
        if trouble is suspected:
            await scene.cluster.set_leader(TOPIC, 0, 1)
        async with asyncio.timeout(HANG):
            await producer.flush()
        assert producer.state == "connected"
        for topic in (TOPIC, "later"):
            found = [record.value for record in await read_topic(scene.cluster.bootstrap_servers, topic)]
            assert [value for value in dict.fromkeys(found) if value in values] == values  # the mock knows no repeats


@pytest.mark.asyncio
async def test_a_flush_whose_time_ends_while_the_producer_stops_says_that_the_records_stay_in_the_ring(
    tmp_path: Path,
) -> None:
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=2_000)
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
async def test_a_stop_that_is_cancelled_and_called_again_ends_and_leaves_nothing(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        before = Census(tmp_path)
        await scene.producer.start()
        await scene.connected()
        await frozen(scene)
        await scene.producer.publish(TOPIC, b"on its way")
        for turns in range(12):
            stopping = asyncio.create_task(scene.producer.stop())
            for _ in range(turns):
                await asyncio.sleep(0)
            stopping.cancel()
            await asyncio.wait({stopping})
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(scene.producer.stop())
        await asyncio.sleep(0.1)
        stopping.cancel()
        async with asyncio.timeout(HANG):
            assert await scene.producer.stop() == 1
        assert before.left_since() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 13])
async def test_a_stop_whose_every_task_is_cancelled_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """The end of `asyncio.run`: all tasks are cancelled, the one that stops us too."""
    async with scene_of(tmp_path) as scene:
        before = Census(tmp_path)
        await scene.producer.start()
        await scene.connected()
        await frozen(scene)
        await scene.producer.publish(TOPIC, b"on its way")
        stopping = asyncio.create_task(scene.producer.stop())
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if task not in before.tasks}
        for task in cancelled:
            task.cancel()
        async with asyncio.timeout(HANG):
            await asyncio.wait(cancelled)
            if turns:  # else it was cancelled before it began, and whoever calls it again has it all done
                assert before.left_since() == []
            assert await scene.producer.stop() == 1
        assert stopping.cancelled()
        assert before.left_since() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("start", [2, 5])
async def test_a_stop_behind_one_that_was_cancelled_twice_tells_what_is_left(tmp_path: Path, start: int) -> None:
    """The second time it may be closing its files, which the next stop must not look at."""
    for turns in range(40):
        producer = RecoverableProducer(tmp_path / str(turns), bootstrap_servers=NOWHERE, **QUICK)
        await producer.start()
        await producer.publish(TOPIC, b"waits")
        first = asyncio.create_task(producer.stop(timeout_ms=0))
        await asyncio.sleep(0)
        stopping = {task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-stop"}
        for pause in (start, turns):
            for _ in range(pause):
                await asyncio.sleep(0)
            for task in stopping:
                task.cancel()
        async with asyncio.timeout(HANG):
            await asyncio.wait({first, *stopping})
            assert await producer.stop() == 1


def test_a_loop_that_ends_without_a_stop_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`asyncio.run` cancels all tasks: none may be begun again in a loop that is being closed, nor said to be."""

    async def main() -> None:
        producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, **QUICK)
        await producer.start()
        await producer.publish(TOPIC, b"v")
        await asyncio.sleep(0.05)

    asyncio.run(main())  # and the fixture looks at the log
    assert [line for line in caplog.messages if "cancelled" in line or "again" in line] == []
