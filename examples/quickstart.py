"""The program of the README. Kafka at localhost:9092, or nowhere: then the record waits in the ring."""

import asyncio

from aiorecover import RecoverableProducer


async def main() -> None:
    async with RecoverableProducer("wal", bootstrap_servers="localhost:9092") as producer:
        receipt = await producer.publish("orders", {"id": 1, "item": "tea"}, key="1")  # survives kill -9
        print("accepted", receipt.record_id)
        report = await receipt.delivered(timeout_ms=10_000)  # in Kafka
        print("in Kafka", report.partition, report.offset)


asyncio.run(main())
