"""Every public call cancelled at its first, second, third … wait, until it ends by itself: the producer stays whole."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aiorecover import ClosedError, RecoverableProducer, WalFullError
from aiorecover.testing import MockClusterProcess
from tests.support.census import Census
from tests.support.oracle import read_topic
from tests.support.victim import HANG, MOST, Victim, each_time

pytestmark = pytest.mark.asyncio

TOPIC = "cancelled"
SLOT = 1 << 14
ROUND_TRIP_MS = 15  # so that every call that asks Kafka has to wait


@asynccontextmanager
async def cluster_of(topic: str = TOPIC) -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(topic, partitions=2)
        await cluster.round_trip_ms(ROUND_TRIP_MS)
        yield cluster


def made(path: Path, cluster: MockClusterProcess, **options: Any) -> RecoverableProducer:
    options = {"retry_backoff_ms": 20, "slot_bytes": SLOT, "linger_ms": 0, **options}
    return RecoverableProducer(path, bootstrap_servers=cluster.bootstrap_servers, **options)


async def values_in(cluster: MockClusterProcess) -> Counter[bytes | None]:
    return Counter(record.value for record in await read_topic(cluster.bootstrap_servers, TOPIC))


async def until_nothing_is_left(before: Census) -> None:
    """Right away, but for what a thread of ours has begun before the cancellation."""
    async with asyncio.timeout(HANG):
        while any(thread in before.left_since() for thread in ["thread aiorecover-keeper"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert before.left_since() == []


def assert_counts(producer: RecoverableProducer) -> None:
    """I9."""
    counts = producer.statistics()
    assert counts.accepted + counts.recovered == counts.delivered + counts.dead_lettered + counts.pending


# -- calls of a started producer --------------------------------------------------------------------------------------

Call = Callable[[RecoverableProducer, str, bytes], Coroutine[Any, Any, Any]]
"""Of one value, to a topic."""


async def delivered(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    receipt = producer.publish_nowait(topic, value, key=value)
    await receipt.delivered()


async def flush(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    producer.publish_nowait(topic, value, key=value)
    await producer.flush(timeout_ms=HANG * 1000)


async def send_and_wait(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.send_and_wait(topic, value, value)


async def send(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await (await producer.send(topic, value, value))


async def publish(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.publish(topic, value, key=value)


async def publish_and_give_a_turn(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    producer._turn_ends = 0
    producer._in_turn = True
    producer._turn_started = 0  # the millisecond is over
    await producer.publish(topic, value, key=value)


async def partitions_for(producer: RecoverableProducer, topic: str, value: bytes) -> None:
    await producer.partitions_for(f"{topic}-{value.decode()}")  # which is not known yet


CALLS: list[tuple[Call, dict[str, Any], int]] = [  # and how many waits each has at least
    (delivered, {}, 1),
    (flush, {}, 1),
    (send, {}, 1),
    (send_and_wait, {}, 1),
    (publish, {}, 0),
    (publish_and_give_a_turn, {}, 1),
    (publish, {"fsync": "always"}, 1),
    (send_and_wait, {"fsync": "always"}, 2),
    (partitions_for, {}, 1),
]
STORES_LAST = {publish_and_give_a_turn}  # cancelled anywhere, it has stored nothing


async def cancelled_at_each_wait(
    producer: RecoverableProducer, call: Call, waits: int, topic: str = TOPIC
) -> Counter[bytes | None]:
    """The values that were accepted; all of them are delivered, and nobody waits any more."""
    accepted: Counter[bytes | None] = Counter()
    for at in range(1, MOST):
        counted = producer.statistics().accepted
        victim, value = Victim(at), b"%d" % at
        await victim.run(call(producer, topic, value))
        assert_counts(producer)
        accepted[value] += producer.statistics().accepted - counted
        if victim.reached and call in STORES_LAST:
            assert accepted[value] == 0
        if not victim.reached:
            break
    else:
        pytest.fail("it never ends by itself")
    assert at - 1 >= waits
    await producer.flush(timeout_ms=HANG * 1000)
    assert_counts(producer)
    assert producer.statistics().pending == 0
    return +accepted


@pytest.mark.parametrize(("call", "options", "waits"), CALLS)
async def test_a_call_cancelled_at_each_of_its_waits(
    tmp_path: Path, call: Call, options: dict[str, Any], waits: int
) -> None:
    async with cluster_of() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster, **options)
        await producer.start()
        await producer.partitions_for(TOPIC)
        accepted = await cancelled_at_each_wait(producer, call, waits)
        assert await values_in(cluster) == accepted
        assert await producer.stop() == 0
        await until_nothing_is_left(before)


@pytest.mark.parametrize("call", [delivered, flush, send, send_and_wait, partitions_for])
async def test_a_call_cancelled_while_kafka_is_away_leaves_nobody_waiting(tmp_path: Path, call: Call) -> None:
    async with cluster_of() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster)
        await producer.start()
        await producer.partitions_for(TOPIC)
        await cluster.broker_down()
        calls = [asyncio.create_task(call(producer, TOPIC, b"%d" % number)) for number in range(20)]
        for one in calls:
            await asyncio.sleep(0.01)  # at another moment each
            one.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True)
        )
        assert_counts(producer)
        accepted = producer.statistics().accepted
        assert accepted == (0 if call is partitions_for else 20)
        await cluster.broker_up()
        await producer.flush(timeout_ms=HANG * 1000)
        assert await values_in(cluster) == Counter(b"%d" % number for number in range(accepted))
        assert await producer.stop() == 0
        await until_nothing_is_left(before)


async def test_publish_cancelled_at_each_wait_for_room(tmp_path: Path) -> None:
    """Twenty wait at a time; each round another one of them is cancelled at another wait."""
    async with cluster_of() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster, on_full="wait", full_timeout_ms=HANG * 1000, wal_max_bytes=6 * SLOT)
        await cluster.broker_down()
        await producer.start()
        values: Counter[bytes | None] = Counter()
        with suppress(WalFullError):
            for number in itertools.count():
                producer.publish_nowait(TOPIC, b"before %d" % number)
                values[b"before %d" % number] = 1
        full = producer.statistics().accepted

        async def publish(value: bytes, at: int) -> None:
            if await Victim(at).run(producer.publish(TOPIC, value)) is not None:
                values[value] += 1

        waiting = [asyncio.create_task(publish(b"waits %d" % number, number % 4)) for number in range(20)]
        await asyncio.sleep(0.1)
        assert producer.statistics().accepted == full
        assert_counts(producer)
        await cluster.broker_up()
        async with asyncio.timeout(HANG):
            await asyncio.gather(*waiting)
        assert producer.statistics().accepted >= full + 5  # those that were not cancelled
        await producer.flush(timeout_ms=HANG * 1000)
        assert_counts(producer)
        assert producer.statistics().accepted == values.total()
        assert await values_in(cluster) == values
        assert await producer.stop() == 0
        await until_nothing_is_left(before)


# -- the life of a producer -------------------------------------------------------------------------------------------


async def test_start_cancelled_at_each_of_its_waits_lets_go_of_the_directory(tmp_path: Path) -> None:
    async with cluster_of() as cluster:

        async def scenario(victim: Victim, at: int) -> None:
            before = Census(tmp_path)
            producer = made(tmp_path / "wal", cluster)
            await victim.run(producer.start())
            assert producer.state == ("created" if victim.reached else producer.state)
            await producer.stop()
            await until_nothing_is_left(before)
            async with made(tmp_path / "wal", cluster) as another:
                assert another.wal_path == tmp_path / "wal" / "0"

        await each_time(scenario)


async def test_a_stop_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    async with cluster_of() as cluster:
        before = Census(tmp_path)
        producer = made(tmp_path / "wal", cluster)
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0)
        assert producer.state == "starting"
        assert await producer.stop() == 0
        with pytest.raises(ClosedError, match="stopped"):
            await starting
        assert (producer.state, producer.wal_path) == ("stopped", None)
        await until_nothing_is_left(before)


async def test_start_cancelled_can_be_called_again(tmp_path: Path) -> None:
    async with cluster_of() as cluster:

        async def scenario(victim: Victim, at: int) -> None:
            producer = made(tmp_path / "wal", cluster, instance="mine")  # of one name: waits for its predecessor
            await victim.run(producer.start())
            await producer.start()
            await (await producer.publish(TOPIC, b"%d" % at)).delivered(HANG * 1000)
            assert await producer.stop() == 0

        await each_time(scenario)


async def test_stop_cancelled_at_each_of_its_waits_goes_on(tmp_path: Path) -> None:
    async with cluster_of() as cluster:
        values: Counter[bytes | None] = Counter()

        async def scenario(victim: Victim, at: int) -> None:
            before = Census(tmp_path)
            producer = made(tmp_path / "wal", cluster)
            await producer.start()
            values[b"%d" % at] += 1
            await producer.publish(TOPIC, b"%d" % at)
            await victim.run(producer.stop())
            assert await producer.stop() == 0
            assert producer.state == "stopped"
            assert_counts(producer)
            await until_nothing_is_left(before)

        await each_time(scenario)
        assert await values_in(cluster) == values


async def test_async_with_cancelled_at_each_of_its_waits(tmp_path: Path) -> None:
    """Entering, publishing, leaving: whoever cancels waits for nothing, and the next producer delivers the rest."""
    async with cluster_of() as cluster:
        values: Counter[bytes | None] = Counter()

        async def scenario(victim: Victim, at: int) -> None:
            before = Census(tmp_path)
            producer = made(tmp_path / "wal", cluster, fsync="always", instance="mine")

            async def use() -> None:
                async with producer:
                    for number in range(3):
                        value = b"%d %d" % (at, number)
                        await producer.publish(TOPIC, value)
                    await producer.flush()

            await victim.run(use())
            await producer.stop()
            if producer.wal_path is not None:
                counts = producer.statistics()
                assert_counts(producer)
                assert counts.pending == 0
                for number in range(counts.accepted):
                    values[b"%d %d" % (at, number)] += 1
            await until_nothing_is_left(before)

        await each_time(scenario)
        assert await values_in(cluster) == values
