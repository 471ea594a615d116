"""A worker that reads one topic and writes another, each record exactly once: ``python etl_worker.py NUMBER OF``.

Orders are JSON with an id, and a price and a count where these are not 1, as all examples publish them.
``OF`` workers share the partitions; each has its own ones for good, and a directory with its number. A worker that is
killed at any moment and started again goes on where it was: the ring holds how far it has read, and the records that
it made. To change the number of workers, end all of them (SIGTERM) until none has records left, and let the new ones
begin at the old ones' ``source_positions``.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition

from aiorecover import RecoverableProducer

WAL_DIR = os.environ.get("WAL_DIR", "wal")
KAFKA = os.environ.get("KAFKA", "localhost:9092")
ORDERS = os.environ.get("ORDERS", "orders")
TOTALS = os.environ.get("TOTALS", "totals")
EXACTLY_ONCE = os.environ.get("GUARANTEE") == "exactly_once"  # for consumers that read what is committed


def transform(order: bytes) -> dict[str, object]:
    fields = json.loads(order)
    return {"id": fields["id"], "total": fields.get("price", 1) * fields.get("count", 1)}


async def go_on(consumer: AIOKafkaConsumer, producer: RecoverableProducer, share: Iterable[TopicPartition]) -> None:
    """Let the consumer begin after what was read already."""
    partitions = list(share)
    consumer.assign(partitions)
    positions = await producer.source_positions()
    for partition in partitions:
        if partition in positions:
            consumer.seek(partition, positions[partition])


async def work(consumer: AIOKafkaConsumer, producer: RecoverableProducer, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        read = await consumer.getmany(timeout_ms=200, max_records=500)
        for records in read.values():
            for record in records:
                if record.value is not None:
                    # Where several are made from one, the last has the source: then all of them are in the ring.
                    source = (record.topic, record.partition, record.offset)
                    await producer.publish(TOTALS, transform(record.value), key=record.key, source=source)


async def main(number: int, of: int) -> None:
    stopping = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopping.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=KAFKA,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # leave out what a transactional producer has aborted
    )
    producer = RecoverableProducer(
        WAL_DIR,
        bootstrap_servers=KAFKA,
        instance=f"worker-{number}",
        guarantee="exactly_once" if EXACTLY_ONCE else "at_least_once",
        adoption_grace_ms=None,
        on_full="wait",
    )
    async with producer:
        try:
            await consumer.start()
            partitions = await producer.partitions_for(ORDERS)
            await go_on(consumer, producer, (TopicPartition(ORDERS, one) for one in partitions if one % of == number))
            await work(consumer, producer, stopping)
        finally:
            await consumer.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python etl_worker.py NUMBER OF, as 0 4 for the first of four workers")
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
