"""Somebody else, who sends under an identity that is not theirs."""

from aiokafka import AIOKafkaProducer

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity

__all__ = ["send_as_somebody_else"]


async def send_as_somebody_else(
    servers: str, topic: str, partition: int, identity: Identity, sequence: int, count: int
) -> None:
    """One batch of so many records; returns when Kafka has taken it."""
    batch = LaneBatch(1 << 16, 0)
    for number in range(count):
        batch.add(number, 1_700_000_000_000, b"somebody", b"else", [])
        batch.count += 1
    batch.identify(identity.producer_id, identity.epoch, sequence)
    batch.finish()
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all", linger_ms=0)
    await producer.start()
    try:
        await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()
