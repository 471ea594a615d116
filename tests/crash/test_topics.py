"""Topics that are deleted, or were never made, and lanes that the broker forgets."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeliveryPendingError, RecoverableProducer
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

FORGOTTEN_MS = 1000  # so soon this broker forgets a lane that sends nothing; a day by default


@pytest.fixture(scope="module")
def strict() -> Iterator[KafkaCluster]:
    """A broker that makes no topic by itself, and soon forgets idle producers."""
    settings = {
        "auto.create.topics.enable": "false",
        "producer.id.expiration.ms": str(FORGOTTEN_MS),
        "producer.id.expiration.check.interval.ms": "200",
    }
    with KafkaCluster(1, settings) as cluster:
        yield cluster


async def test_records_of_topics_that_are_gone_wait_and_the_others_go_on(strict: KafkaCluster, tmp_path: Path) -> None:
    well, gone, never = (f"{name}-{time.time_ns()}" for name in ("well", "gone", "never"))
    for name in (well, gone):
        strict.create_topic(name, 6)
    records = {name: Published() for name in (well, gone, never)}
    servers = strict.bootstrap_servers
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers, stop_timeout_ms=500) as producer:
        for name, published in records.items():
            await published.publish(producer, name, 500)
        for name in (well, gone):
            await _all_delivered(records[name])
        await admin.delete_topic_everywhere(servers, gone)
        records[gone] = Published()  # what was in it is gone with it
        for _ in range(5):
            for name, published in records.items():
                await published.publish(producer, name, 100)
            await _all_delivered(records[well])
        for name in (gone, never):
            with pytest.raises(DeliveryPendingError, match=r"the topic is not there.* topic=(gone|never)-"):
                await records[name].receipts[-1].delivered(1000)
        assert producer.statistics().pending == 1500
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers) as producer:
        await records[well].publish(producer, well, 100)
        await _all_delivered(records[well])
        for name in (gone, never):
            strict.create_topic(name, 6)
            await records[name].publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.recovered, found.pending, found.dead_lettered) == (1500, 0, 0)
    for name, published in records.items():
        perfect(await published.judged(strict, name))


async def _all_delivered(published: Published) -> None:
    for receipt in published.receipts[-17:]:
        await receipt.delivered(WITHIN_MS)


async def test_a_deleted_topic_without_waiting_records_is_not_made_again(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """The broker makes each topic that it is asked for."""
    name, other, published = topic(kafka), topic(kafka), Published()
    options: dict[str, Any] = {"metadata_max_age_ms": 300}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await producer.publish(other, b"x")
        await published.publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
        await admin.delete_topic_everywhere(kafka.bootstrap_servers, name)
        for _ in range(8):
            await producer.publish(other, b"x")
            await producer.flush(WITHIN_MS)
            await asyncio.sleep(0.3)
        views = await admin.ask_every_node(kafka.bootstrap_servers, name)
        assert not any(view.leaders for view in views.values())


async def test_a_lane_that_was_idle_until_the_broker_forgot_it_goes_on(strict: KafkaCluster, tmp_path: Path) -> None:
    name, published = f"idle-{time.time_ns()}", Published()
    strict.create_topic(name, 6)
    async with RecoverableProducer(tmp_path, bootstrap_servers=strict.bootstrap_servers) as producer:
        for _ in range(3):
            for _ in range(7):
                await published.publish(producer, name, 100)
                await producer.flush(WITHIN_MS)
            await asyncio.sleep(2 * FORGOTTEN_MS / 1000)
    perfect(await published.judged(strict, name))
