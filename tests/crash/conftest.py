"""Three brokers that can be reached by a detour, for all tests here that ask for them."""

from collections.abc import Iterator

import pytest

from tests.support.broker import KafkaCluster
from tests.support.detour import Detour


@pytest.fixture(scope="session")
def detoured() -> Iterator[KafkaCluster]:
    """The cluster; it leads clients that connect to `detour_servers` through the detour."""
    with KafkaCluster(3, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def detour(detoured: KafkaCluster) -> Iterator[Detour]:
    """The way to it; whatever a test does to the nodes, the next one finds them whole."""
    with Detour(detoured.detour_routes) as detour:
        yield detour
    detoured.heal()
