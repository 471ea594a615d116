"""``guarantee="exactly_once"``, with every public call cancelled at its waits, and in each step of a transaction."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.testing import MemoryDisk
from tests.delivery.committing import Broker, producer_on, serving, transactions_of
from tests.delivery.expiring import adds_up
from tests.delivery.publishing import Publisher, assert_once_in_order, committed, producer_of
from tests.support.broker import Cluster, TopicFactory
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.victim import HANG, Victim, each_time
from tests.test_cancelling import CALLS, Call, assert_nobody_waits, cancelled_at_each_wait, until_nothing_is_left
from tests.test_cancelling_letters import CALLS as CALLS_OF_LETTERS
from tests.test_cancelling_letters import Call as CallOfLetters
from tests.test_cancelling_letters import cancelled_and_repeated

pytestmark = pytest.mark.asyncio

LIMIT = HANG * 1000
PARTITIONS = 2


# -- on a real broker, where a reader sees what is committed -----------------------------------------------------------


@pytest.mark.parametrize(("call", "options", "waits"), CALLS)
async def test_a_call_cancelled_at_each_of_its_waits_commits_what_was_accepted_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, call: Call, options: dict[str, Any], waits: int
) -> None:
    name, before = topic(kafka, partitions=PARTITIONS), Census(tmp_path)
    producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, **options)
    await producer.start()
    await producer.partitions_for(name)
    accepted = await cancelled_at_each_wait(producer, call, waits, name)
    assert await producer.stop() == 0
    await until_nothing_is_left(before)
    assert Counter(record.value for record in await committed(kafka.bootstrap_servers, name)) == accepted


async def test_start_cancelled_at_each_of_its_waits_goes_on_where_the_last_life_ended(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=PARTITIONS))

    async def scenario(victim: Victim, _: int) -> None:
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, instance="mine")
        await victim.run(producer.start())
        await producer.start()
        await publisher.publish(producer, 10)
        await producer.flush(LIMIT)
        await publisher.publish(producer, 10)
        await producer.stop(timeout_ms=0)  # what is in the transaction that is open goes into one of the next life
        await until_nothing_is_left(before)

    await each_time(scenario)
    await deliver_what_is_left(tmp_path, kafka, instance="mine")
    await assert_once_in_order(kafka, publisher)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("who", ["its caller", "its task"])
async def test_stop_cancelled_at_any_time_leaves_the_rest_to_the_next_life(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, who: str, seed: int
) -> None:
    """It lasts as long as its last transactions: a few tenths of a second."""
    publisher, rng = Publisher(topic(kafka, partitions=PARTITIONS)), random.Random(seed)
    for _ in range(5):
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers)
        await producer.start()
        await publisher.publish(producer, 20)
        if rng.random() < 0.7:  # else not even the position is known
            await producer.flush(LIMIT)
        await publisher.publish(producer, 50)
        stopping = asyncio.create_task(producer.stop(LIMIT))
        await asyncio.sleep(rng.random() * 0.3)
        for task in [stopping] if who == "its caller" else of_the_stop():
            task.cancel()
        await asyncio.wait({stopping}, timeout=HANG)
        left = await producer.stop(LIMIT)
        assert producer.state == "stopped"
        assert left == 0 or who == "its task"
        await until_nothing_is_left(before)
    await deliver_what_is_left(tmp_path, kafka)
    await assert_once_in_order(kafka, publisher)


async def deliver_what_is_left(tmp_path: Path, kafka: Cluster, **options: Any) -> None:
    """In a life of its own."""
    async with producer_of(tmp_path / "wal", kafka.bootstrap_servers, **options) as producer:
        await producer.flush(LIMIT)


def of_the_stop() -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-stop"]


async def test_async_with_cancelled_at_each_of_its_waits_commits_what_was_accepted_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    publisher = Publisher(topic(kafka, partitions=PARTITIONS))

    async def scenario(victim: Victim, _: int) -> None:
        before = Census(tmp_path)
        producer = producer_of(tmp_path / "wal", kafka.bootstrap_servers, fsync="always", instance="mine")

        async def use() -> None:
            async with producer:
                for _ in range(3):
                    await publisher.publish(producer, 1)
                await producer.flush()

        await victim.run(use())
        await producer.stop()
        await until_nothing_is_left(before)

    await each_time(scenario)
    await deliver_what_is_left(tmp_path, kafka, instance="mine")
    found = await committed(kafka.bootstrap_servers, publisher.topic)
    ids = [record.record_id for record in found]
    assert len(set(ids)) == len(ids)
    assert {record.record_id for record in publisher.accepted} <= set(ids)  # one that was cancelled may be there


# -- in each step of a transaction -------------------------------------------------------------------------------------


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield from serving(monkeypatch, PARTITIONS)


STEPS = ["read", "begin", "send", "sent", "add", "commit", "committed"]


async def published(producer: RecoverableProducer) -> None:
    producer._turn_ends = 0
    producer._in_turn = True
    producer._turn_started = 0  # the millisecond is over: it gives a turn
    await producer.publish("t", b"never accepted", partition=0)


async def flushed(producer: RecoverableProducer) -> None:
    await producer.flush(LIMIT)


async def delivered(producer: RecoverableProducer) -> None:
    await (await producer.publish("t", b"2", partition=0)).delivered(LIMIT)


async def sent_and_waited_for(producer: RecoverableProducer) -> None:
    await producer.send_and_wait("t", b"2", partition=0)


async def asked_where_to_go_on(producer: RecoverableProducer) -> None:
    await producer.source_positions()


async def letters_purged(producer: RecoverableProducer) -> None:
    await producer.dead_letters.purge("all")


async def stopped(producer: RecoverableProducer) -> None:
    await producer.stop(LIMIT)


async def in_step(producer: RecoverableProducer, broker: Broker, step: str) -> None:
    """Two records are committed, and nobody gets beyond ``step`` with the next one."""
    for number in (0, 1):
        await producer.publish("t", b"%d" % number, partition=0)
        await producer.flush(LIMIT)
    reached = broker.reached[step]
    broker.hold(step)
    if step in {"read", "begin"}:
        broker.lose()
    await producer.publish("t", b"in flight", partition=1)
    await until(lambda: broker.reached[step] > reached)


async def cancel(call: Coroutine[Any, Any, Any], turns: int) -> None:
    """Where it stands after so many turns of the loop."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=HANG)
    assert task.done()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "call", [published, flushed, delivered, sent_and_waited_for, asked_where_to_go_on, letters_purged]
)
async def test_a_call_cancelled_while_a_transaction_stands_in_a_step_changes_nothing_of_it(
    broker: Broker, call: Callable[[RecoverableProducer], Coroutine[Any, Any, None]], step: str
) -> None:
    before = asyncio.all_tasks()
    async with producer_on(MemoryDisk()) as producer:
        await in_step(producer, broker, step)
        await cancel(call(producer), 1 if call is published else 5)
        adds_up(producer)
        assert_nobody_waits(producer)
        broker.let_go(step)
        for number in (3, 4):
            await producer.publish("t", b"%d" % number, partition=0)
        await producer.flush(LIMIT)
        adds_up(producer)
        assert producer.statistics().pending == 0
        assert transactions_of(producer).uncommitted == []
    accepted = [b"0", b"1", b"2", b"3", b"4"]
    assert broker.values() == (accepted if call in {delivered, sent_and_waited_for} else [*accepted[:2], b"3", b"4"])
    assert broker.values("t", 1) == [b"in flight"]
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", ["its caller", "its task", "its task twice", "all tasks"])
async def test_stop_cancelled_while_a_transaction_stands_in_a_step_leaves_it_to_the_next_life(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, step: str, who: str
) -> None:
    monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 60)
    before, disk = asyncio.all_tasks(), MemoryDisk()
    producer = producer_on(disk)
    await producer.start()
    await in_step(producer, broker, step)
    stopping = asyncio.create_task(stopped(producer))
    await asyncio.sleep(0.01)
    for _ in range(2 if who == "its task twice" else 1):
        for task in [stopping] if who == "its caller" else of_the_stop():
            task.cancel()
        if who == "all tasks":
            for task in asyncio.all_tasks() - before:
                task.cancel()
        await asyncio.sleep(0.001)
    broker.let_go(step)
    await asyncio.wait({stopping}, timeout=HANG)
    async with asyncio.timeout(HANG / 2):  # it closes in a hurry, or has nothing to wait for any more
        left = await producer.stop(LIMIT)
    assert producer.state == "stopped"
    assert left == 0 or who != "its caller"
    assert asyncio.all_tasks() == before
    async with producer_on(disk) as producer:
        await producer.publish("t", b"2", partition=0)
        await producer.flush(LIMIT)
        adds_up(producer)
        told = producer.statistics()
    assert broker.values() == [b"0", b"1", b"2"]
    assert broker.values("t", 1) == [b"in flight"], f"{left=} {told} {broker.commits=} {broker.transactions=}"


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS_OF_LETTERS)
async def test_a_call_of_dead_letters_cancelled_at_each_of_its_waits_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: CallOfLetters
) -> None:
    async def scenario(victim: Victim, at: int) -> None:
        broker = Broker(t=1)
        broker.serve(monkeypatch)
        files = tmp_path / f"{at}"
        files.mkdir()
        async with producer_on(MemoryDisk()) as producer:
            await cancelled_and_repeated(producer, broker, call, victim, files)
            assert transactions_of(producer).uncommitted == []
        assert broker.wrong == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    await each_time(scenario)
