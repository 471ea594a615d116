"""The consumer that stores effects, offsets and what it had in one transaction books each order once, by its id."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import LeaveGroupRequest

from tests.examples.consumers import Consumer, environment, sell, until_true
from tests.examples.killed_in_book import POINTS
from tests.support.broker import Cluster, TopicFactory

pytestmark = pytest.mark.timeout(120)

ORDERS = 600  # of one life: some books for each of two partitions


class Booking:
    """A topic, a database, and consumers that book the one into the other."""

    def __init__(self, kafka: Cluster, orders: str, directory: Path) -> None:
        self.published = 0
        self._kafka, self._orders, self._directory = kafka, orders, directory
        self._database = directory / "orders.db"
        self._sold = 0

    def sell(self) -> None:
        """Some more orders, of which many come twice."""
        first, self._sold = self._sold + 1, self._sold + ORDERS
        self.published += asyncio.run(sell(self._kafka, self._orders, first, self._sold + 1))

    def consumer(self, *program: str) -> Consumer:
        """One more, which is not there yet."""
        more = {"ORDERS": self._orders, "DATABASE": str(self._database)}
        environ = environment(self._directory, self._kafka.bootstrap_servers) | more
        return Consumer("consumer_sqlite", environ, self._directory / "out", program)

    def die_in_book(self, point: str, how: str = "WHOLE") -> None:
        """A consumer that is killed in its second transaction."""
        with self.consumer("-m", "tests.examples.killed_in_book", point, how) as consumer:
            consumer.wait_killed()
        asyncio.run(leave(self._kafka))

    def finish(self) -> None:
        """Two consumers have the rest, and end well."""
        with self.consumer() as one, self.consumer() as other:
            until_true(lambda: self.rows("SELECT coalesce(sum(next), 0) FROM offsets") == [(self.published,)])
            one.end_well()
            other.end_well()

    def faults(self) -> list[str]:
        """Name the orders that were not booked exactly once."""
        wanted = {f"tea {number}": number for number in range(1, self._sold + 1)}
        found: dict[str, int] = dict(self.rows("SELECT item, count FROM sold"))
        return [
            f"{item}: {found.get(item, 0)}, not {wanted.get(item, 0)}"
            for item in sorted(wanted.keys() | found.keys())
            if found.get(item, 0) != wanted.get(item, 0)
        ]

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """Return rows of the database; none while its tables are not there yet."""
        not_there_yet = contextlib.suppress(sqlite3.OperationalError)
        with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as connection, not_there_yet:
            return connection.execute(question).fetchall()
        return []


async def leave(kafka: Cluster) -> None:
    """A killed consumer is still in the group: the next one would wait for ten seconds."""
    client = AIOKafkaClient(bootstrap_servers=kafka.bootstrap_servers)
    await client.bootstrap()
    try:
        node = await client.coordinator_lookup(CoordinationType.GROUP, "booking")
        ((_, _, _, _, _, members, *_),) = (await client.send(node, DescribeGroupsRequest(["booking"]))).groups
        for member_id, *_ in members:
            await client.send(node, LeaveGroupRequest("booking", member_id))
    finally:
        await client.close()


@pytest.fixture
def booking(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> Booking:
    return Booking(kafka, topic(kafka, partitions=2), tmp_path)


def test_killed_in_each_step_of_a_transaction_it_books_each_order_once(booking: Booking, kafka: Cluster) -> None:
    for point in POINTS:
        booking.sell()
        booking.die_in_book(point)
    booking.sell()
    before = booking.rows("SELECT sum(next) FROM offsets")
    with booking.consumer():  # and from outside, at any moment
        until_true(lambda: booking.rows("SELECT sum(next) FROM offsets") != before)
    asyncio.run(leave(kafka))
    booking.finish()
    assert booking.faults() == []


def test_a_state_that_is_stored_apart_from_the_effects_is_seen(booking: Booking) -> None:
    booking.sell()
    booking.die_in_book("before the commit", "SPLIT")
    booking.finish()
    assert booking.faults()
