"""Consumers whose effects happen exactly once: ``python consumer_sqlite.py``, as many as there are partitions.

Orders are JSON with an item, and a count where it is not 1, as all examples publish them.
The orders' effects, the offsets and the ids that were seen are stored in one transaction of one database. Each order is
booked once, whenever a process is killed, and whatever a producer sends again to a partition.

The state is kept for each partition, and read when the partition is assigned. A consumer that lost its partition to
another one finds that the offset has moved on, and stores nothing. A record that is sent again after a power cut may
come in another partition, if it has no key or the topic has more partitions by then: it is booked twice. So give orders
keys, and before you add partitions read all records that may come twice, or have them written in transactions.
"""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition

from aiorecover import Deduplicator, record_id_of

KAFKA = os.environ.get("KAFKA", "localhost:9092")
ORDERS = os.environ.get("ORDERS", "orders")
DATABASE = os.environ.get("DATABASE", "orders.db")

TABLES = """
    CREATE TABLE IF NOT EXISTS sold (item TEXT PRIMARY KEY, count INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS offsets (topic TEXT, partition INTEGER, next INTEGER, PRIMARY KEY (topic, partition));
    CREATE TABLE IF NOT EXISTS had (topic TEXT, partition INTEGER, page TEXT, bits BLOB,
                                    PRIMARY KEY (topic, partition, page));
"""
SELL = "INSERT INTO sold VALUES (?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"


class MovedError(Exception):
    """Another consumer has the partition now."""


class Store:
    """The database: ``BEGIN IMMEDIATE`` lets one consumer in at a time."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.executescript(TABLES)

    def next_offset(self, partition: TopicPartition) -> int:
        row = self._database.execute("SELECT next FROM offsets WHERE topic = ? AND partition = ?", partition).fetchone()
        return row[0] if row else 0

    def had(self, partition: TopicPartition) -> Deduplicator:
        rows = self._database.execute(
            "SELECT page, bits FROM had WHERE topic = ? AND partition = ? ORDER BY rowid", partition
        )
        return Deduplicator.from_pages(dict(rows))

    def book(self, partition: TopicPartition, records: list[ConsumerRecord[Any, Any]], had: Deduplicator) -> None:
        """Book all records, or none."""
        with self._database as database:  # commits, or rolls back
            database.execute("BEGIN IMMEDIATE")
            if self.next_offset(partition) > records[0].offset:
                raise MovedError(partition)
            for record in records:
                if had.add(record_id_of(record.headers)):
                    order = json.loads(record.value or b"{}")
                    database.execute(SELL, (order["item"], order.get("count", 1)))
            for page, bits in had.take_changes().items():
                database.execute("DELETE FROM had WHERE topic = ? AND partition = ? AND page = ?", (*partition, page))
                if bits is not None:
                    database.execute("INSERT INTO had VALUES (?, ?, ?, ?)", (*partition, page, bits))
            database.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", (*partition, records[-1].offset + 1))


class Assigned(ConsumerRebalanceListener):
    """The partitions that this consumer has, with the records that were seen in each."""

    def __init__(self, consumer: AIOKafkaConsumer, store: Store) -> None:
        self._consumer = consumer
        self._store = store
        self.had: dict[TopicPartition, Deduplicator] = {}

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:  # noqa: ARG002 - all of them
        self.had.clear()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for partition in assigned:
            self.read(partition)

    def read(self, partition: TopicPartition) -> None:
        self.had[partition] = self._store.had(partition)
        self._consumer.seek(partition, self._store.next_offset(partition))


async def consume(consumer: AIOKafkaConsumer, store: Store, assigned: Assigned, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        for partition, records in (await consumer.getmany(timeout_ms=200, max_records=500)).items():
            if partition in assigned.had:
                try:
                    store.book(partition, records, assigned.had[partition])
                except MovedError:
                    assigned.read(partition)


async def main() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    store = Store(DATABASE)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=KAFKA,
        group_id="booking",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # leave out what a transactional producer has aborted
    )
    assigned = Assigned(consumer, store)
    await consumer.start()
    try:
        consumer.subscribe([ORDERS], listener=assigned)
        await consume(consumer, store, assigned, stopping)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
