"""Brokers that are killed, paused and reached by a detour, for all tests here that ask for them.

They serve all of these tests, those that ask for `kafka` and `kafka3`, too: a cluster of each test file's own costs
seconds to start, and each node that nobody asks anything a twenty-fifth of a core. Whatever a test does to the nodes,
the next one finds them whole, and without topics: with 900 partitions on it a node that was killed takes 6 s of a core
to start again, instead of 1.5 s.
"""

from collections.abc import Iterator

import pytest

from tests.support.broker import Cluster, KafkaCluster, choose_cluster
from tests.support.detour import Detour

SWEPT_EVERY_MS = 200


def mend(cluster: KafkaCluster) -> None:
    """Make it as the next test is to find it."""
    cluster.heal()
    cluster.clear()


@pytest.fixture(scope="package")
def lone() -> Iterator[KafkaCluster]:
    """One broker."""
    with KafkaCluster(1, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def mortal(lone: KafkaCluster) -> Iterator[KafkaCluster]:
    """One broker that a test may kill."""
    yield lone
    mend(lone)


@pytest.fixture(scope="package")
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
    mend(detoured)


@pytest.fixture
def detour(mortal3: KafkaCluster) -> Iterator[Detour]:
    """The way to them."""
    with Detour(mortal3.detour_routes) as detour:
        yield detour


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Cluster:
    """One broker: the one that is killed elsewhere, or the one that there is."""
    return _either(request, "mortal", "kafka")


@pytest.fixture
def kafka3(request: pytest.FixtureRequest) -> Cluster:
    """Three brokers, likewise."""
    return _either(request, "mortal3", "kafka3")


def _either(request: pytest.FixtureRequest, mortal: str, given: str) -> Cluster:
    """``given``: of that name, what all tests have."""
    cluster: Cluster = request.getfixturevalue(mortal if choose_cluster().can_kill else given)
    return cluster
