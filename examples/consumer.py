"""A consumer that takes each record once: ``python consumer.py``, one of them for the topic.

Its offsets and the ids that it has seen are one small file, replaced as a whole. It passes over a record that the
producer had to send again. A record that was handled before the file was written, when this consumer is killed, is
handled again: to rule that out, too, handle it in the same transaction (consumer_sqlite.py).
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from aiorecover import Deduplicator, record_id_of

KAFKA = os.environ.get("KAFKA", "localhost:9092")
ORDERS = os.environ.get("ORDERS", "orders")
STATE = Path(os.environ.get("STATE", "consumer.state"))


class State(msgspec.Struct):
    offsets: dict[int, int]  # the next one to read, by partition
    had: bytes


def handle(order: ConsumerRecord[Any, Any]) -> None:
    print("order", (order.value or b"").decode(), flush=True)


def stored() -> State:
    if STATE.exists():
        return msgspec.msgpack.decode(STATE.read_bytes(), type=State)
    return State({}, Deduplicator().to_bytes())


def store(state: State) -> None:
    new = STATE.with_suffix(".new")
    with new.open("wb") as file:
        file.write(msgspec.msgpack.encode(state))
        file.flush()
        os.fsync(file.fileno())
    new.replace(STATE)


async def consume(consumer: AIOKafkaConsumer, stopping: asyncio.Event) -> None:
    state = stored()
    had = Deduplicator.from_bytes(state.had)
    for partition in consumer.assignment():
        if partition.partition in state.offsets:
            consumer.seek(partition, state.offsets[partition.partition])
    while not stopping.is_set():
        for partition, records in (await consumer.getmany(timeout_ms=200, max_records=500)).items():
            for record in records:
                if had.add(record_id_of(record.headers), record.topic):
                    handle(record)
            state.offsets[partition.partition] = records[-1].offset + 1
            state.had = had.to_bytes()
            store(state)


async def main() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    consumer = AIOKafkaConsumer(
        ORDERS,
        bootstrap_servers=KAFKA,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # leave out what a transactional producer has aborted
    )
    await consumer.start()
    try:
        await consume(consumer, stopping)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
