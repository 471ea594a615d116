"""Publishing from everywhere in an event loop: asyncio's, uvloop's, one in debug mode, one that has ended."""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aiorecover import ClosedError, RecoverableProducer, RecoverError
from aiorecover.testing import MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE

pytestmark = pytest.mark.timeout(120)

TOPIC = "loop"
COUNT = 500  # records from each
WITHIN_MS = 60_000

Run = Callable[[Coroutine[Any, Any, None]], None]
Started = Callable[..., Any]


@pytest.fixture(params=["asyncio", "uvloop", "debug"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine in the main thread."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def in_a_new_loop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory, debug=request.param == "debug") as runner:
            runner.run(main)

    return in_a_new_loop


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create_topic(TOPIC, 4)
        yield mock


@pytest.fixture
def started(cluster: MockCluster, tmp_path: Path) -> Started:
    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[RecoverableProducer]:
        options = {"bootstrap_servers": cluster.bootstrap_servers, **options}
        async with RecoverableProducer(tmp_path / "wal", **options) as producer:
            yield producer

    return start


# -- from everywhere ---------------------------------------------------------------------------------------------------


async def from_a_task(producer: RecoverableProducer) -> None:
    for number in range(COUNT):
        await producer.publish(TOPIC, b"%d" % number, key="from_a_task")
        if not number % 50:
            await asyncio.sleep(0)


async def from_callbacks(producer: RecoverableProducer) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def call(number: int) -> None:
        if number == COUNT:
            done.set()
            return
        producer.publish_nowait(TOPIC, b"%d" % number, key="from_callbacks")
        if number % 100:
            loop.call_soon(call, number + 1)
        else:
            loop.call_later(0.02, call, number + 1)  # delivery is at rest by then

    loop.call_soon(call, 0)
    await done.wait()


async def from_signals(producer: RecoverableProducer) -> None:
    """By `loop.add_signal_handler`."""
    loop, handled = asyncio.get_running_loop(), asyncio.Semaphore(0)
    numbers = itertools.count()

    def handle() -> None:
        producer.publish_nowait(TOPIC, b"%d" % next(numbers), key="from_signals")
        handled.release()

    loop.add_signal_handler(signal.SIGUSR1, handle)
    for _ in range(COUNT):
        os.kill(os.getpid(), signal.SIGUSR1)
        await handled.acquire()
    loop.remove_signal_handler(signal.SIGUSR1)


def from_a_thread(producer: RecoverableProducer, name: str) -> None:
    for accepted in [producer.publish_threadsafe(TOPIC, b"%d" % number, key=name) for number in range(COUNT)]:
        accepted.result(60)


def test_tasks_callbacks_signals_and_threads_publish_at_once_each_in_its_order(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    loads, threads = (from_a_task, from_callbacks, from_signals), ("one", "two", "three")

    async def main() -> None:
        async with started() as producer:
            await asyncio.gather(
                *(load(producer) for load in loads),
                *(asyncio.to_thread(from_a_thread, producer, name) for name in threads),
            )
            await producer.flush(WITHIN_MS)
            assert producer.statistics().delivered == 6 * COUNT
        found = await read_topic(cluster.bootstrap_servers, TOPIC)
        for name in (*(load.__name__ for load in loads), *threads):
            values = [record.value for record in found if record.key == name.encode()]
            assert values == [b"%d" % number for number in range(COUNT)], name

    run(main())


def test_a_signal_behind_a_burst_from_a_thread_has_its_handler_called(run: Run, started: Started) -> None:
    async def main() -> None:
        loop, handled = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, handled.set)
        async with started() as producer:
            burst = threading.Thread(target=lambda: [producer.publish_threadsafe(TOPIC, b"") for _ in range(COUNT)])
            burst.start()
            burst.join()  # the loop has come to none of them
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(10):
                await handled.wait()
            await producer.flush(WITHIN_MS)
            assert producer.statistics().accepted == COUNT
        loop.remove_signal_handler(signal.SIGTERM)

    run(main())


@pytest.mark.parametrize("options", [{}, {"on_full": "wait"}, {"fsync": "always"}])
def test_a_publish_that_a_thread_cancels_in_time_is_not_stored(
    run: Run, started: Started, options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with started(**options) as producer:
            kept, taken_back = producer.publish_threadsafe(TOPIC, b"kept"), producer.publish_threadsafe(TOPIC, b"back")
            assert taken_back.cancel()
            await asyncio.wrap_future(kept)
            await producer.flush(WITHIN_MS)
            assert producer.statistics().accepted == 1
        with pytest.raises(ClosedError):
            await asyncio.to_thread(producer.publish_threadsafe, TOPIC, b"late")

    run(main())


# -- elsewhere ---------------------------------------------------------------------------------------------------------


def test_another_thread_and_another_loop_are_refused_and_the_producer_goes_on(run: Run, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            receipt = await producer.publish(TOPIC, b"before")
            calls: list[tuple[Callable[[], Any], str]] = [
                (lambda: producer.publish_nowait(TOPIC, b"thread"), "publish_threadsafe"),
                (lambda: asyncio.run(producer.publish(TOPIC, b"loop")), "publish_threadsafe"),
                (lambda: asyncio.run(producer.flush()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.stop()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.start()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(receipt.delivered()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.source_positions()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.partitions_for(TOPIC)), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.dead_letters.requeue()), "run_coroutine_threadsafe"),
                (lambda: asyncio.run(producer.dead_letters.purge("all")), "run_coroutine_threadsafe"),
            ]
            for call, way in calls:
                producer.publish_nowait(TOPIC, b"between")
                with pytest.raises(RecoverError, match=way):
                    await asyncio.to_thread(call)
            await producer.publish(TOPIC, b"after")
            await producer.flush(WITHIN_MS)
            assert producer.statistics().delivered == 2 + len(calls)

    run(main())


@pytest.mark.parametrize("options", [{}, {"on_full": "wait"}])
def test_once_its_loop_has_ended_a_producer_refuses_and_can_be_stopped_in_another_one(
    run: Run, tmp_path: Path, options: dict[str, Any]
) -> None:
    """As in a test that forgets to stop it: what it has is delivered by the next one, once it lets go."""
    left = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="orders", **options)

    async def leave() -> None:
        await left.start()
        await left.publish(TOPIC, b"accepted")

    async def elsewhere() -> None:
        ended = pytest.raises(ClosedError, match=r"loop of the producer has ended: await its stop\(\)")
        with ended:
            left.publish_threadsafe(TOPIC, b"late")
        await asyncio.sleep(0.002)
        with ended:
            await left.publish(TOPIC, b"late")
        with ended:
            await left.flush()
        async with asyncio.timeout(20):
            assert await left.stop(0) == 1
        assert left.state == "stopped"
        async with RecoverableProducer(
            tmp_path, bootstrap_servers=NOWHERE, instance="orders", stop_timeout_ms=0
        ) as following:
            assert following.epoch == 2

    run(leave())
    run(elsewhere())


# -- turns -------------------------------------------------------------------------------------------------------------


def test_a_loop_that_only_publishes_starves_neither_timeouts_nor_delivery_nor_other_tasks(
    run: Run, kafka: Cluster, topic: TopicFactory, started: Started
) -> None:
    """On a real broker: the mock does not keep so many records."""
    name, turns = topic(kafka), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def publish_only(producer: RecoverableProducer) -> None:
        async with asyncio.timeout(0.5):
            for _ in range(3_000_000):  # an end, so that a time-out that never fires is seen
                await producer.publish(name, b"only")

    async def main() -> None:
        async with started(bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.publish(name, b"first")
            await producer.flush(WITHIN_MS)
            counting = asyncio.create_task(count_turns())
            with pytest.raises(TimeoutError):
                await publish_only(producer)
            counting.cancel()
            found = producer.statistics()
            assert found.delivered > 1, "while nothing was awaited but publish"
            assert turns >= found.accepted // 512 - 2
            await producer.flush(WITHIN_MS)
            assert producer.statistics().delivered == found.accepted

    run(main())


def test_publish_takes_no_turn_of_its_own_while_the_loop_has_turns_anyway(run: Run, started: Started) -> None:
    def waits(publishing: Coroutine[Any, Any, Any]) -> bool:
        try:
            publishing.send(None)
        except StopIteration:
            return False
        publishing.close()
        return True

    async def main() -> None:
        async with started() as producer:
            for _ in range(30):
                await asyncio.sleep(0.002)
                begun = time.perf_counter()
                waited = sum(waits(producer.publish(TOPIC, b"v")) for _ in range(100))
                assert not waited or time.perf_counter() - begun > 0.001, "a millisecond without a turn"

    run(main())
