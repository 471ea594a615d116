"""Read what is in Kafka, for a test to compare."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

__all__ = ["read_topic"]

POLL_MS = 500

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]


def read_topic(bootstrap_servers: str, topic: str) -> list[Record]:
    """Return the records that a topic holds now, each partition in its order; of transactions the committed ones.

    Blocks; in a coroutine: ``await asyncio.to_thread(read_topic, ...)``.

    Raises:
        KafkaError: Kafka is not reached, or refuses.

    """
    with ThreadPoolExecutor(1) as thread:  # whose event loop is no matter of the test's own
        return thread.submit(asyncio.run, _read(bootstrap_servers, topic)).result()


async def _read(bootstrap_servers: str, topic: str) -> list[Record]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    try:
        await consumer.start()
        ends = await consumer.end_offsets(consumer.assignment())
        found: list[Record] = []
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                found += records
    finally:
        await consumer.stop()
    return sorted(found, key=lambda record: (record.partition, record.offset))
