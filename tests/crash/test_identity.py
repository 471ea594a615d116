"""Nothing twice, nothing out of order: twenty kills, while brokers and network fail (`make prove WHAT=identity`)."""

import pytest

from tests.prove.identity import prove
from tests.support.broker import KafkaCluster


@pytest.mark.timeout(600)
def test_nothing_is_missing_repeated_or_out_of_order_after_twenty_kills(detoured: KafkaCluster) -> None:
    assert prove(detoured, seed=3, cycles=20) == 0
