"""A broker with credentials and rights, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.secured import SecuredKafka


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster
