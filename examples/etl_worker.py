"""A worker that reads one topic and writes another: ``python etl_worker.py``, as many of them as there are partitions.

What was read is committed once what came of it is in the ring: nothing is lost when a worker is killed at any moment.
What was read and not committed yet is read again, and published again.
"""

import asyncio
import json
import os
import signal

from aiokafka import AIOKafkaConsumer

from aiorecover import RecoverableProducer

WAL_DIR = os.environ.get("WAL_DIR", "wal")
KAFKA = os.environ.get("KAFKA", "localhost:9092")
ORDERS = os.environ.get("ORDERS", "orders")
TOTALS = os.environ.get("TOTALS", "totals")


def transform(order: bytes) -> dict[str, object]:
    fields = json.loads(order)
    return {"id": fields["id"], "total": fields["price"] * fields["count"]}


async def work(consumer: AIOKafkaConsumer, producer: RecoverableProducer, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        read = await consumer.getmany(timeout_ms=200, max_records=500)
        for records in read.values():
            for record in records:
                if record.value is not None:
                    await producer.publish(TOTALS, transform(record.value), key=record.key)
        if read:
            await consumer.commit()  # the ring has it; for power cuts, too, with fsync="always"


async def main() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    consumer = AIOKafkaConsumer(
        ORDERS,
        bootstrap_servers=KAFKA,
        group_id=TOTALS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with RecoverableProducer(WAL_DIR, bootstrap_servers=KAFKA, on_full="wait") as producer:
        await consumer.start()
        try:
            await work(consumer, producer, stopping)
        finally:
            await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
