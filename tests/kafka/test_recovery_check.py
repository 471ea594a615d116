"""After a power cut took the words that records were delivered, Kafka says which were (R11)."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.offset import OffsetRequest

from aiorecover.producer import RecoverableProducer
from aiorecover.ring.files import Files
from tests.support.broker import Cluster, TopicFactory
from tests.support.node import Node
from tests.support.published import NOWHERE, WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("check", [True, False], ids=["looked-for", "not-looked-for"])
async def test_records_that_kafka_has_are_not_sent_again_after_a_power_cut(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    name, published = topic(kafka, 3), Published()
    servers, ring = kafka.bootstrap_servers, tmp_path / "0" / "ring"
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50) as producer:
        for partition in range(3):
            await published.publish(producer, name, 3000, partition=partition)
    before = ring.read_bytes()
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers) as producer:
        await producer.flush(WITHIN_MS)
    ring.write_bytes(before)  # the same file: none of its pages came to the disk since
    monkeypatch.setattr(Files, "boot_id", lambda _: b"another boot".hex())
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers, recovery_check=check) as producer:
        await published.publish(producer, name, 100, partition=0)
        await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.recovered, found.pending, found.damaged) == (9000, 0, 0)
    verdict = await published.judged(kafka, name)
    assert not verdict.missing
    assert not verdict.wrong
    assert verdict.repeated == (0 if check else 9000), "without the look this test would see nothing"


async def test_a_request_that_waits_for_its_followers_is_not_sent_again(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader is not shown it yet, as after the loss of a machine with the producer and a follower on it."""
    name, published, ring = topic(kafka3, 1, replication=3), Published(), tmp_path / "0" / "ring"
    number = (await asyncio.to_thread(kafka3.leaders, name))[0]
    leader, follower, _ = sorted(kafka3.nodes, key=lambda one: one.node_id != number)
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=50) as producer:
        await published.publish(producer, name, 300, partition=0)
    before = ring.read_bytes()
    await asyncio.to_thread(follower.pause)
    try:
        async with (
            RecoverableProducer(tmp_path, bootstrap_servers=leader.address, stop_timeout_ms=50),
            asyncio.timeout(30),
        ):
            while await log_end(leader, name) < 300:  # noqa: ASYNC110 - a broker's
                await asyncio.sleep(0.05)
        ring.write_bytes(before)
        monkeypatch.setattr(Files, "boot_id", lambda _: b"another boot".hex())
        producer = RecoverableProducer(tmp_path, bootstrap_servers=leader.address)
        await producer.start()
        await asyncio.sleep(3)
        assert await log_end(leader, name) == 300
    finally:
        await asyncio.to_thread(follower.resume)
    await producer.flush(WITHIN_MS)
    await producer.stop()
    perfect(await published.judged(kafka3, name))


async def log_end(leader: Node, topic: str) -> int:
    """Where the leader's log ends, beyond what its followers have."""
    client = AIOKafkaClient(bootstrap_servers=leader.address)
    await client.bootstrap()
    try:
        answer = await client.send(leader.node_id, OffsetRequest(-2, 0, [(topic, [(0, -1)])]))
    finally:
        await client.close()
    ((_, ((_, code, _, offset),)),) = answer.topics
    assert code == 0
    return int(offset)
