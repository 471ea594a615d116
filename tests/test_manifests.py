"""The manifests of a producer on `audit_topic`: with a real Kafka, across deaths, and in trouble."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiorecover import Receipt, RecoverableProducer
from aiorecover.manifests import Ranges
from aiorecover.testing import ApiKey, MockCluster
from tests.kafka.kills import Lives
from tests.support.broker import Cluster, TopicFactory
from tests.support.manifests import Told, told_in
from tests.support.oracle import read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

COMPACTED = {"cleanup.policy": "compact"}  # no record without a key
WITHIN_MS = 30_000
FORBIDDEN = 29  # Kafka's error code


def producer_on(wal_dir: Path, servers: str, audit: str, **options: Any) -> RecoverableProducer:
    given = {"audit_topic": audit, "checkpoint_interval_ms": 100, "adoption_grace_ms": None, **options}
    return RecoverableProducer(wal_dir, bootstrap_servers=servers, **given)


async def publish(producer: RecoverableProducer, topic: str, count: int, *, poison: int = 0) -> list[Receipt]:
    """Publish so many records; of each ``poison`` one that the topic refuses."""
    keys = [None if poison and number % poison == 0 else b"%d" % number for number in range(count)]
    return [await producer.publish(topic, b"v", key=key) for key in keys]


async def told_of(servers: str, audit: str, *epoch: Any) -> Told:
    return told_in(await read_topic(servers, audit)).get((epoch[0], epoch[1]), Told())


async def until_told(servers: str, audit: str, epoch: tuple[str, int], true: Callable[[Told], bool]) -> Told:
    async with asyncio.timeout(WITHIN_MS / 1000):
        while not true(told := await told_of(servers, audit, *epoch)):  # noqa: ASYNC110 - Kafka has no callback for it
            await asyncio.sleep(0.1)
        return told


def sequences(receipts: list[Receipt]) -> list[int]:
    return [int(receipt.record_id.rpartition("/")[2]) for receipt in receipts]


async def test_a_run_tells_how_far_it_is_and_seals_its_epoch_when_it_stops(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, audit, servers = topic(kafka, 3, config=COMPACTED), topic(kafka, 2, config=COMPACTED), kafka.bootstrap_servers
    async with producer_on(tmp_path, servers, audit) as producer:
        epoch = producer.producer_id, 1
        ids = sequences(await publish(producer, name, 200, poison=20))
        await producer.flush(WITHIN_MS)
        told = await until_told(servers, audit, epoch, lambda told: told.settled == ids[-1])
        assert (told.last, told.sealed_at, told.dead_lettered) == (ids[-1], None, set(ids[::20]))
        count = len(await read_topic(servers, audit))
        await asyncio.sleep(0.5)
        assert len(await read_topic(servers, audit)) == count, "nothing happened, and something was told"
        assert await producer.dead_letters.purge("all") == 10
        ids += sequences(await publish(producer, name, 7))
    told = await told_of(servers, audit, *epoch)
    assert (told.last, told.settled, told.sealed_at, told.dead_lettered) == (*3 * [ids[-1]], set(ids[:200:20]))
    async with producer_on(tmp_path, servers, audit):
        pass
    assert {number for _, number in told_in(await read_topic(servers, audit))} == {1}, "an empty epoch is not told of"


async def test_a_manifest_says_settled_neither_of_waiting_records_nor_of_later_epochs(tmp_path: Path) -> None:
    with MockCluster(brokers=1) as cluster:
        servers = cluster.bootstrap_servers
        for name in ("t", "audit", "stuck"):
            cluster.create_topic(name)
        cluster.set_leader("stuck", 0, None)
        async with producer_on(tmp_path, servers, "audit", stop_timeout_ms=300) as producer:
            first = sequences(await publish(producer, "t", 20))
            await producer.flush(WITHIN_MS)
            (waits,) = sequences(await publish(producer, "stuck", 1))
            await (await producer.publish("t", b"v")).delivered(WITHIN_MS)
            one, two = (producer.producer_id, 1), (producer.producer_id, 2)
        told = await told_of(servers, "audit", *one)
        assert (told.last, told.settled, told.sealed_at) == (waits + 1, first[-1], waits + 1)
        async with producer_on(tmp_path, servers, "audit") as producer:
            await (await producer.publish("t", b"v")).delivered(WITHIN_MS)
            assert (await until_told(servers, "audit", two, lambda told: told.last > 0)).settled == 0
            assert (await told_of(servers, "audit", *one)).settled == first[-1]
            cluster.set_leader("stuck", 0, 1)
            await producer.flush(WITHIN_MS)
        for epoch in (one, two):
            told = await told_of(servers, "audit", *epoch)
            assert told.settled == told.last == told.sealed_at


async def test_processes_that_are_killed_leave_no_id_unaccounted_for(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, audit, servers = topic(kafka, 3, config=COMPACTED), topic(kafka, 2), kafka.bootstrap_servers
    lives = Lives(kafka, name, tmp_path, keyless=500, audit_topic=audit, checkpoint_interval_ms=200)
    for seed in range(3):
        victim = await asyncio.to_thread(lives.start, seed)
        await asyncio.sleep(0.5)
        lives.kill(victim)
    await lives.verdict()  # every record without a key is a dead letter
    found: dict[tuple[str, int], set[int]] = {}
    for record in await read_topic(servers, name):
        producer_id, number, sequence = (record.record_id or "").split("/")
        found.setdefault((producer_id, int(number)), set()).add(int(sequence))
    told = told_in(await read_topic(servers, audit))
    assert sorted(number for _, number in told) == [1, 2, 3]
    for epoch, one in told.items():
        passed = any(later.settled for (_, number), later in told.items() if number > epoch[1])
        assert one.sealed_at == one.last
        assert passed or one.settled == one.last
        assert not one.damaged
        assert not one.dead_lettered & found[epoch]
        assert one.dead_lettered | found[epoch] == set(range(min(found[epoch] | one.dead_lettered), one.last + 1))
    accepted = [line.split()[0] for line in lives.log.read_text().splitlines() if not line.startswith("#")]
    for record_id in accepted:
        producer_id, number, sequence = record_id.split("/")
        assert int(sequence) <= told[producer_id, int(number)].last


@pytest.mark.parametrize("forbidden", [True, False], ids=["forbidden", "without a leader"])
async def test_trouble_with_the_audit_topic_is_one_warning_and_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, forbidden: bool
) -> None:
    with MockCluster(brokers=1) as cluster:
        cluster.create_topic("t", partitions=3)
        cluster.create_topic("audit")
        if forbidden:
            cluster.push_partition_errors("audit", 0, ApiKey.PRODUCE, *10 * [FORBIDDEN])
        else:
            cluster.set_leader("audit", 0, None)
        async with producer_on(tmp_path, cluster.bootstrap_servers, "audit") as producer:
            for _ in range(5):
                await publish(producer, "t", 10)
                await producer.flush(WITHIN_MS)
                await asyncio.sleep(0.2)
            cluster.set_leader("audit", 0, 1)
            epoch = producer.producer_id, 1
            await until_told(cluster.bootstrap_servers, "audit", epoch, lambda told: told.settled == told.last > 0)
    (told,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told.startswith("manifest_failed ")
    assert ("grant Write on the topic" if forbidden else "the partition has no leader") in told
    assert "records are delivered as ever" in told


async def test_ranges_are_the_union_of_what_was_added() -> None:
    ranges = Ranges()
    numbers: set[int] = set()
    for step in range(200):
        first = step * 7919 % 97
        ranges.add(first, first + step % 4)
        numbers.update(range(first, first + step % 4 + 1))
        assert {number for first, last in ranges.pairs for number in range(first, last + 1)} == numbers
        assert all(last + 1 < first for (_, last), (first, _) in zip(ranges.pairs, ranges.pairs[1:], strict=False))
