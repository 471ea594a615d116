"""After a power cut took the words that records were delivered, Kafka says which were (R11)."""

from pathlib import Path

import pytest

from aiorecover.producer import RecoverableProducer
from aiorecover.ring.files import Files
from tests.kafka.test_delivery import NOBODY, WITHIN_MS, Published
from tests.support.broker import Cluster, TopicFactory

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("check", [True, False], ids=["looked-for", "not-looked-for"])
async def test_what_kafka_has_is_not_sent_again_after_a_power_cut(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    name, published = topic(kafka, 3), Published()
    servers, ring = kafka.bootstrap_servers, tmp_path / "0" / "ring"
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOBODY, stop_timeout_ms=50) as producer:
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
