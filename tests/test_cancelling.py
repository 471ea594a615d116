"""Every public call cancelled at its first, second, third … wait, until it ends by itself: the producer stays whole."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorecover import ClosedError, RecoverableProducer, WalFullError
from aiorecover.testing import MockClusterProcess
from tests.support.broker import Cluster, TopicFactory
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE
from tests.support.victim import HANG, MOST, Victim, each_time

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

TOPIC = "cancelled"
LIMIT_MS = HANG * 1000
NEVER = 1 << 30
ROUND_TRIP_MS = 15  # so that every call that asks Kafka has to wait


@asynccontextmanager
async def mock_cluster() -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(TOPIC, partitions=2)
        await cluster.round_trip_ms(ROUND_TRIP_MS)
        yield cluster


def made(path: Path, servers: str, **options: Any) -> RecoverableProducer:
    return RecoverableProducer(path, bootstrap_servers=servers, retry_backoff_ms=20, linger_ms=0, **options)


async def values_in(servers: str, topic: str = TOPIC) -> Counter[bytes | None]:
    found = await read_topic(servers, topic, isolation_level="read_committed")
    return Counter(record.value for record in found)


async def nothing_is_left(before: Census) -> None:
    """Right away, but for what a thread of ours has begun before the cancellation."""
    await until(lambda: before.left_since() == [])


def assert_counts(producer: RecoverableProducer) -> None:
    counts = producer.statistics()
    assert counts.accepted + counts.recovered == counts.delivered + counts.dead_lettered + counts.pending


# -- calls of a started producer ---------------------------------------------------------------------------------------

Call = Callable[[RecoverableProducer, str, bytes], Coroutine[Any, Any, Any]]  # of one value, to a topic


async def delivered(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.publish_nowait(topic, value, key=value).delivered()


async def flush(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    producer.publish_nowait(topic, value, key=value)
    await producer.flush(timeout_ms=LIMIT_MS)


async def send(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await (await producer.send(topic, value, value))


async def send_and_wait(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.send_and_wait(topic, value, value)


async def publish(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.publish(topic, value, key=value)


async def partitions_for(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.partitions_for(f"{topic}-{value.decode()}")  # which is not known yet


CALLS: list[tuple[Call, dict[str, Any], int]] = [  # and how many waits each has at least
    (delivered, {}, 1),
    (flush, {}, 1),
    (send, {}, 1),
    (send_and_wait, {}, 1),
    (publish, {"fsync": "always"}, 1),
    (send_and_wait, {"fsync": "always"}, 2),
]


async def cancelled_at_each_wait(
    producer: RecoverableProducer, call: Call, waits: int, topic: str = TOPIC
) -> Counter[bytes | None]:
    """The values that were accepted; all of them are delivered then, and nothing waits any more."""
    accepted: Counter[bytes | None] = Counter()
    for at in range(1, MOST):
        counted = producer.statistics().accepted
        victim, value = Victim(at), b"%d" % at
        await victim.run(call(producer, topic, value))
        assert_counts(producer)
        accepted[value] += producer.statistics().accepted - counted
        if not victim.reached:
            break
    else:
        pytest.fail("it never ends by itself")
    assert at - 1 >= waits
    await producer.flush(timeout_ms=LIMIT_MS)
    assert producer.statistics().pending == 0
    return +accepted


@pytest.mark.parametrize(("call", "options", "waits"), CALLS)
async def test_a_call_cancelled_at_each_of_its_waits(
    tmp_path: Path, call: Call, options: dict[str, Any], waits: int
) -> None:
    async with mock_cluster() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster.bootstrap_servers, **options)
        await producer.start()
        await producer.partitions_for(TOPIC)
        accepted = await cancelled_at_each_wait(producer, call, waits)
        assert await values_in(cluster.bootstrap_servers) == accepted
        assert await producer.stop() == 0
        await nothing_is_left(before)


@pytest.mark.parametrize(("call", "options", "waits"), CALLS)
async def test_a_call_cancelled_at_each_of_its_waits_commits_what_was_accepted_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, call: Call, options: dict[str, Any], waits: int
) -> None:
    name, before = topic(kafka, partitions=2), Census(tmp_path)
    producer = made(tmp_path / "wal", kafka.bootstrap_servers, guarantee="exactly_once", **options)
    await producer.start()
    await producer.partitions_for(name)
    accepted = await cancelled_at_each_wait(producer, call, waits, name)
    assert await producer.stop() == 0
    await nothing_is_left(before)
    assert await values_in(kafka.bootstrap_servers, name) == accepted


@pytest.mark.parametrize("call", [delivered, flush, send, send_and_wait, partitions_for])
async def test_a_time_out_while_kafka_is_away_changes_nothing(tmp_path: Path, call: Call) -> None:
    async with mock_cluster() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster.bootstrap_servers)
        await producer.start()
        await producer.partitions_for(TOPIC)
        await cluster.broker_down()

        async def in_time(number: int) -> None:
            async with asyncio.timeout(number / 100):
                await call(producer, TOPIC, b"%d" % number)

        ends = await asyncio.gather(*(in_time(number) for number in range(20)), return_exceptions=True)
        assert all(isinstance(end, TimeoutError) for end in ends)
        accepted = producer.statistics().accepted
        assert accepted == (0 if call is partitions_for else 20)
        await cluster.broker_up()
        await producer.flush(timeout_ms=LIMIT_MS)
        assert await values_in(cluster.bootstrap_servers) == Counter(b"%d" % number for number in range(accepted))
        assert await producer.stop() == 0
        await nothing_is_left(before)


async def test_publish_cancelled_while_it_waits_for_room_has_stored_nothing(tmp_path: Path) -> None:
    """Twenty stand in line; half of them are cancelled there."""
    options = {"on_full": "wait", "full_timeout_ms": LIMIT_MS, "wal_max_bytes": 8 << 20, "stop_timeout_ms": 0}
    async with made(tmp_path, NOWHERE, **options) as producer:
        with pytest.raises(WalFullError):
            await fill(producer)
        full = producer.statistics().accepted
        victims = [Victim(1 if number % 2 else NEVER) for number in range(20)]
        waiting = [asyncio.create_task(one.run(producer.publish(TOPIC, b"x" * 60_000))) for one in victims]
        await until(lambda: sum(task.done() for task in waiting) == 10)
        assert [victim.reached for victim in victims] == [False, True] * 10
        assert producer.statistics().accepted == full
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def fill(producer: RecoverableProducer) -> None:
    while True:
        producer.publish_nowait(TOPIC, b"x" * 60_000)


# -- the life of a producer --------------------------------------------------------------------------------------------


async def test_start_cancelled_at_each_of_its_waits_lets_go_and_can_be_called_again(tmp_path: Path) -> None:
    async def scenario(victim: Victim, _: int) -> None:
        before = Census(tmp_path)
        producer = made(tmp_path, NOWHERE, stop_timeout_ms=0)
        await victim.run(producer.start())
        if victim.reached:
            assert producer.state == "created"
            await nothing_is_left(before)
        await producer.start()
        assert producer.wal_path == tmp_path / "0"
        await producer.stop()
        await nothing_is_left(before)

    await each_time(scenario)


async def test_start_cancelled_as_its_last_wait_ends_lets_go_of_the_directory(tmp_path: Path) -> None:
    before = Census(tmp_path)
    producer = made(tmp_path, NOWHERE, stop_timeout_ms=0)
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    (opening,) = (task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-open")
    while not opening.done():  # noqa: ASYNC110 - the very turn counts
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await nothing_is_left(before)
    async with producer:
        assert producer.wal_path == tmp_path / "0"


async def test_a_stop_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    before = Census(tmp_path)
    producer = made(tmp_path / "wal", NOWHERE)
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    assert producer.state == "starting"
    assert await producer.stop() == 0
    with pytest.raises(ClosedError, match="stopped"):
        await starting
    assert producer.state == "stopped"
    await nothing_is_left(before)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_entering_publishing_and_leaving_cancelled_at_each_wait(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    """A stop that is cancelled goes on; what was accepted arrives once, in this life or the next."""
    name, accepted = topic(kafka, partitions=2), 0

    async def scenario(victim: Victim, at: int) -> None:
        nonlocal accepted
        before = Census(tmp_path)
        producer = made(tmp_path, kafka.bootstrap_servers, guarantee=guarantee, fsync="always")

        async def use() -> None:
            async with producer:
                for number in range(3):
                    await producer.publish(name, b"%d %d" % (at, number))
                await producer.flush()

        await victim.run(use())
        assert await producer.stop() == 0
        assert producer.state in ("stopped", "created")
        if producer.wal_path is not None:
            assert_counts(producer)
            accepted += producer.statistics().accepted
        await nothing_is_left(before)

    await each_time(scenario)
    found = await values_in(kafka.bootstrap_servers, name)
    assert (found.total(), max(found.values())) == (accepted, 1)


async def test_stop_cancelled_twice_ends_once_for_all_waiters(tmp_path: Path) -> None:
    producer = made(tmp_path, NOWHERE, stop_timeout_ms=300)
    await producer.start()
    await producer.publish(TOPIC, b"one")
    stops = [asyncio.create_task(producer.stop()) for _ in range(4)]
    for stop in stops[:2]:
        await asyncio.sleep(0.01)
        stop.cancel()
    async with asyncio.timeout(HANG):
        assert await asyncio.gather(*stops[2:]) == [1, 1]
    assert all(stop.cancelled() for stop in stops[:2])
    assert producer.state == "stopped"


async def test_cancelled_tasks_of_the_library_show_in_state_and_a_restart_delivers(tmp_path: Path) -> None:
    async with mock_cluster() as cluster:
        producer = made(tmp_path, cluster.bootstrap_servers, stop_timeout_ms=100)
        await producer.start()
        await producer.partitions_for(TOPIC)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until(lambda: producer.state == "interrupted")
        await producer.publish(TOPIC, b"later")
        assert await producer.stop() == 1
        async with made(tmp_path, cluster.bootstrap_servers) as following:
            await following.flush(LIMIT_MS)
        assert await values_in(cluster.bootstrap_servers) == Counter([b"later"])
