"""What tests of ``guarantee="exactly_once"`` on a real broker have in common: a publisher, and a plain reader."""

import logging
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Consumed, judge, read_topic

__all__ = ["FLUSH_MS", "Publisher", "assert_once_in_order", "committed", "producer_of", "warnings"]

FLUSH_MS = 40_000
QUICK: dict[str, Any] = {
    "guarantee": "exactly_once",
    "slot_bytes": 1 << 16,
    "checkpoint_interval_ms": 50,
    "retry_backoff_max_ms": 200,
    "stop_timeout_ms": 2_000,
    "max_request_size": 60_000,
}


def producer_of(wal: Path, servers: str, **options: Any) -> RecoverableProducer:
    return RecoverableProducer(wal, bootstrap_servers=servers, **{**QUICK, **options})


class Publisher:
    """Numbered records of some keys, and what was accepted of them."""

    def __init__(self, topic: str, keys: int = 7) -> None:
        self.topic = topic
        self.accepted: list[Accepted] = []
        self._keys = keys

    async def publish(self, producer: RecoverableProducer, count: int, topic: str = "", **more: Any) -> None:
        for _ in range(count):
            number = len(self.accepted)
            key, value = b"k%d" % (number % self._keys), b"%d" % number
            receipt = await producer.publish(topic or self.topic, value, key=key, **more)
            self.accepted.append(Accepted(receipt.record_id, key, value, more.get("partition")))


async def committed(servers: str, topic: str) -> list[Consumed]:
    return await read_topic(servers, topic, isolation_level="read_committed")


async def assert_once_in_order(cluster: Cluster, publisher: Publisher, topic: str = "") -> None:
    found = await committed(cluster.bootstrap_servers, topic or publisher.topic)
    verdict = judge(publisher.accepted, found)
    assert (verdict.ok, verdict.repeated, verdict.foreign) == (True, 0, []), str(verdict)


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
