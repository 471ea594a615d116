"""Records that a test publishes, and the verdict over what has arrived of them."""

import asyncio
from typing import Any

import pytest

from aiorecover import DeliveryPendingError, Receipt, RecoverableProducer
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Verdict, judge, read_topic

__all__ = ["NOWHERE", "WITHIN_MS", "Published", "named", "perfect"]

NOWHERE = "127.0.0.1:1"  # no broker listens there
WITHIN_MS = 30_000


class Published:
    """Records, as they were accepted."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []
        self.receipts: list[Receipt] = []

    async def publish(self, producer: RecoverableProducer, topic: str, count: int, **options: Any) -> None:
        for _ in range(count):
            number = len(self.accepted)
            key = b"key-%d" % (number % 17)
            value = b"%d:" % number + b"x" * (number % 200)
            receipt = await producer.publish(topic, value, key=key, **options)
            self.receipts.append(receipt)
            self.accepted.append(Accepted(receipt.record_id, key, value, options.get("partition")))

    async def judged(self, cluster: Cluster, topic: str, isolation_level: str = "read_uncommitted") -> Verdict:
        return judge(self.accepted, await read_topic(cluster.bootstrap_servers, topic, isolation_level=isolation_level))


def perfect(verdict: Verdict) -> None:
    assert verdict.ok, verdict
    assert verdict.repeated == 0, verdict


async def named(producer: RecoverableProducer, cause: str) -> None:
    """Wait until `flush` names that cause."""
    async with asyncio.timeout(WITHIN_MS / 1000):
        while True:
            with pytest.raises(DeliveryPendingError) as raised:
                await producer.flush(100)
            if cause in str(raised.value):
                return
