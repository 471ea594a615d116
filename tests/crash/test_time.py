"""Time that goes on while the process, or Kafka, stands still."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeadLetter, RecoverableProducer
from tests.kafka.kills import Lives
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.frozen import freeze
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE, WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

STANDS_STILL_S = 4.0  # above every time limit of the process
LIMIT_MS = 2500  # of a record's age


async def test_a_process_that_stood_still_for_longer_than_its_time_limits_repeats_and_loses_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    lives = Lives(kafka, topic(kafka), tmp_path, request_timeout_ms=1000)
    victim = await asyncio.to_thread(lives.start, 1)
    for _ in range(2):
        await asyncio.sleep(1)
        freeze(victim.pid)
        await asyncio.sleep(STANDS_STILL_S)
        os.kill(victim.pid, signal.SIGCONT)
    await asyncio.sleep(1)
    lives.kill(victim)
    perfect(await lives.verdict())


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_an_outage_longer_than_the_delivery_timeout_makes_dead_letters_of_what_is_too_old_alone(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, fault: str
) -> None:
    name, published, node = topic(kafka), Published(), kafka.nodes[0]
    options: dict[str, Any] = {"delivery_timeout_ms": LIMIT_MS, "request_timeout_ms": 1000}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        publishing = asyncio.create_task(_publish_steadily(producer, published, name))
        await asyncio.sleep(1)
        await asyncio.to_thread(node.kill if fault == "kill" else node.pause)
        await asyncio.sleep(2 * LIMIT_MS / 1000)
        await asyncio.to_thread(node.start if fault == "kill" else node.resume)
        await asyncio.to_thread(kafka.wait_ready)
        await asyncio.sleep(1)
        publishing.cancel()
        await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.delivered + found.dead_lettered, found.pending) == (found.accepted, 0)
        letters = {letter.record_id async for letter in producer.dead_letters.list()}
        assert len(letters) == found.dead_lettered > 10
    there = await read_topic(kafka.bootstrap_servers, name)
    ids = [record.record_id for record in there]
    assert {one.record_id for one in published.accepted} == {*ids, *letters}
    assert len(ids) == len(set(ids))
    in_kafka = Published()
    in_kafka.accepted = [one for one in published.accepted if one.record_id not in letters]
    perfect(await in_kafka.judged(kafka, name))


async def _publish_steadily(producer: RecoverableProducer, published: Published, name: str) -> None:
    while True:
        await published.publish(producer, name, 50)
        await asyncio.sleep(0.02)


async def test_a_restart_makes_dead_letters_of_what_is_too_old_by_then(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, old, young = topic(kafka), Published(), Published()
    small: dict[str, Any] = {"max_batch_size": 2000}  # many batches, and in time all of them
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50, **small) as producer:
        await old.publish(producer, name, 1000)
    time.sleep(LIMIT_MS / 1000 + 1.0)  # noqa: ASYNC251 - nothing else runs here; ages count in whole seconds
    options: dict[str, Any] = {"delivery_timeout_ms": LIMIT_MS, "request_timeout_ms": 1000}
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50, **options) as producer:
        await until(lambda: producer.statistics().dead_lettered == 1000)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await young.publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
        letters: list[DeadLetter] = [letter async for letter in producer.dead_letters.list()]
        assert [letter.record_id for letter in letters] == [one.record_id for one in old.accepted]
    perfect(await young.judged(kafka, name))
