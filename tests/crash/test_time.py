"""Time goes on while the process, or Kafka, stands still: what comes of it on a real broker."""

import asyncio
import os
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeadLetter, RecoverableProducer
from tests.crash.scenario import FLUSH, Scenario
from tests.crash.test_outages import Publisher, started
from tests.support.broker import Cluster, KafkaCluster
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic
from tests.support.suffixes import torn_suffixes

pytestmark = pytest.mark.timeout(240)

LIMIT_MS = 2_500
QUICK: dict[str, Any] = {"request_timeout_ms": 1_000}
EXPIRING: dict[str, Any] = {**QUICK, "delivery_timeout_ms": LIMIT_MS, "stop_timeout_ms": 2_000}
FORGOTTEN_MS = 1_000  # so soon this broker forgets an identity that is not used; a day by default
TIMES = 2  # the second one under what the first one has made new
STANDS_STILL_S = 6.0  # above the time limit of a request, the patience with a session, and FORGOTTEN_MS


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """One node that soon forgets identities."""
    settings = {
        "producer.id.expiration.ms": str(FORGOTTEN_MS),
        "producer.id.expiration.check.interval.ms": "250",
    }
    with KafkaCluster(1, settings) as cluster:
        yield cluster


def suspended(cluster: Cluster, directory: Path) -> Scenario:
    """A life that stood still again and again, each time with batches on their way."""
    scenario = Scenario(cluster, directory, lanes=4)
    child = scenario.life(("publish", {"seconds": TIMES * (STANDS_STILL_S + 1) + 1, "rate": 3_000}), FLUSH, **QUICK)
    child.wait_for("publish")
    for _ in range(TIMES):
        time.sleep(1)
        child.suspend(STANDS_STILL_S)
    scenario.finish(child)
    return scenario


def test_a_process_that_stood_still_for_longer_than_every_time_limit_repeats_and_loses_nothing(
    mortal: KafkaCluster, tmp_path: Path
) -> None:
    verdict = suspended(mortal, tmp_path).verdict()
    print(verdict)
    assert verdict.ok, str(verdict)


def test_one_whose_identity_kafka_has_forgotten_meanwhile_loses_nothing_and_keeps_the_order(
    forgetful: KafkaCluster, tmp_path: Path
) -> None:
    scenario = suspended(forgetful, tmp_path)
    verdict = scenario.verdict(once=False)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert torn_suffixes(asyncio.run(read_topic(forgetful.bootstrap_servers, scenario.topic))) == []


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


def settle_accounts(producer: RecoverableProducer) -> None:
    now = producer.statistics()
    assert (now.accepted, now.pending) == (now.delivered + now.dead_lettered, 0), now
    assert now.expired == now.dead_lettered


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_an_outage_longer_than_the_delivery_timeout_makes_dead_letters_of_what_is_too_old_alone(
    mortal: KafkaCluster, tmp_path: Path, fault: str
) -> None:
    """Each record is in Kafka, or a dead letter; in both only if the letter says that it may be. Order is kept.

    Once, but for what is young in a batch that was in flight as the outage began, if it was appended and not answered.
    """
    topic = f"expiring-{fault}-{os.urandom(4).hex()}"
    mortal.create_topic(topic, 4)
    node = mortal.nodes[0]
    async with started(mortal, tmp_path, **EXPIRING) as producer:
        publisher = Publisher(producer, topic)
        await publisher.publish(2_000)
        await producer.flush(60_000)
        load = asyncio.create_task(publisher.publish(30_000, rate=5_000))
        await asyncio.sleep(1.0)
        (node.kill if fault == "kill" else node.pause)()
        await until(lambda: producer.statistics().expired > 8_000, 60)
        (node.start if fault == "kill" else node.resume)()
        await load
        await producer.flush(60_000)
        settle_accounts(producer)
        letters = {letter.record_id: letter for letter in await letters_of(producer)}
        renewed = producer.statistics().identities_renewed
    await asyncio.to_thread(mortal.wait_ready)
    records = await read_topic(mortal.bootstrap_servers, topic)
    there = {record.record_id for record in records}
    for one in publisher.accepted:
        assert one.record_id in letters or one.record_id in there
        assert (
            one.record_id not in there or one.record_id not in letters or letters[one.record_id].persisted == "possibly"
        )
    possibly = {record_id for record_id, letter in letters.items() if letter.persisted == "possibly"}
    assert sum(turns_back(log, possibly) for log in by_partition(records)) <= renewed


def by_partition(records: Sequence[Consumed]) -> list[list[Consumed]]:
    logs: dict[int, list[Consumed]] = {}
    for record in records:
        logs.setdefault(record.partition, []).append(record)
    return list(logs.values())


def turns_back(log: Sequence[Consumed], possibly: Container[str]) -> int:
    """How often a log in order goes back: only to what stood in a batch behind one that expired, and all of that."""
    ids = [str(record.record_id) for record in log]
    numbers = [int((record.value or b"").split(b":")[0]) for record in log]
    turns = [at for at in range(1, len(log)) if numbers[at] <= numbers[at - 1]]
    for at in turns:
        first = max(before for before in range(at) if ids[before] == ids[at])
        assert ids[first - 1] in possibly
        assert ids[first:at] == ids[at : 2 * at - first]
    return len(turns)


@pytest.mark.asyncio
async def test_a_restart_after_an_outage_expires_what_is_too_old_by_then(mortal: KafkaCluster, tmp_path: Path) -> None:
    topic = f"expiring-restart-{os.urandom(4).hex()}"
    mortal.create_topic(topic, 4)
    node = mortal.nodes[0]
    node.kill()
    async with started(mortal, tmp_path, **EXPIRING) as producer:
        old = Publisher(producer, topic)
        await old.publish(5_000)
        assert await producer.stop(timeout_ms=300) == 5_000
    await asyncio.sleep(1.3 * LIMIT_MS / 1000)
    async with started(mortal, tmp_path, **EXPIRING) as producer:
        young = Publisher(producer, topic)
        await young.publish(100)
        await until(lambda: producer.statistics().expired == 5_000, 30)
        node.start()
        await producer.flush(60_000)
        assert len(await letters_of(producer)) >= 5_000
    await asyncio.to_thread(mortal.wait_ready)
    there = {record.record_id for record in await read_topic(mortal.bootstrap_servers, topic)}
    assert not there & {one.record_id for one in old.accepted}
