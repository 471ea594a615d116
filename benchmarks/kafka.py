"""The brokers: where they come from, topics for one measurement, and how many records really stand in them."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.admin import AIOKafkaAdminClient

from benchmarks.load import PARTITIONS
from tests.support import admin
from tests.support.broker import Cluster, ExternalKafka, choose_cluster
from tests.support.oracle import read_topic


@contextmanager
def started(bootstrap_servers: str | None, brokers: int) -> Iterator[Cluster]:
    """The cluster that was named, or one of our own."""
    cluster = ExternalKafka(bootstrap_servers, brokers) if bootstrap_servers else choose_cluster(brokers)
    with cluster:
        yield cluster


@contextmanager
def topic(cluster: Cluster, purpose: str, partitions: int = PARTITIONS) -> Iterator[str]:
    """A topic of this run alone, removed afterwards."""
    name = f"benchmark-{purpose}-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions)
    yield name
    admin.run(_delete(cluster.bootstrap_servers, name))


def verify(cluster: Cluster, name: str, expected: int, partitions: int = PARTITIONS) -> None:
    """Exactly ``expected`` records stand in the topic, by its end offsets."""
    found = admin.run(admin.count_records(cluster.bootstrap_servers, name, partitions))
    assert found == expected, f"a contender did not deliver what it said: {name=} {found=} {expected=}"


def verify_committed(cluster: Cluster, name: str, expected: int) -> None:
    """As `verify`, by reading what is committed: transactions leave marks that count as offsets."""
    found = len(admin.run(read_topic(cluster.bootstrap_servers, name, isolation_level="read_committed")))
    assert found == expected, f"a contender did not deliver what it said: {name=} {found=} {expected=}"


async def _delete(bootstrap_servers: str, name: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await client.start()
    try:
        await client.delete_topics([name])
    finally:
        await client.close()
