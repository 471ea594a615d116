"""Brokers that are killed, paused and reached by a detour, for all tests here that ask for them.

They serve the whole session: a cluster of each test file's own costs seconds to start. Whatever a test does to the
nodes, the next one finds them whole.
"""

from collections.abc import Iterator

import pytest

from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

SWEPT_EVERY_MS = 200


@pytest.fixture(scope="session")
def lone() -> Iterator[KafkaCluster]:
    """One broker."""
    with KafkaCluster(1, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def mortal(lone: KafkaCluster) -> Iterator[KafkaCluster]:
    """One broker that a test may kill."""
    yield lone
    lone.heal()


@pytest.fixture(scope="session")
def detoured() -> Iterator[KafkaCluster]:
    """Three brokers; they lead clients that connect to `detour_servers` through the detour.

    They remember a Kafka producer for a day, as brokers do, and look often for whom to forget.
    """
    settings = {"producer.id.expiration.check.interval.ms": str(SWEPT_EVERY_MS)}
    with KafkaCluster(3, settings, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def mortal3(detoured: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers that a test may kill."""
    yield detoured
    detoured.heal()


@pytest.fixture
def detour(mortal3: KafkaCluster) -> Iterator[Detour]:
    """The way to them."""
    with Detour(mortal3.detour_routes) as detour:
        yield detour
