"""A worker from topic to topic that is killed moves each record once; `make prove WHAT=etl` kills it 200 times."""

from pathlib import Path

import pytest

from tests.crash.etl import RATE, move_orders
from tests.support.broker import Cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

KILLS = 4


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_each_record_is_moved_once_in_the_order_of_its_key(
    kafka: Cluster, tmp_path: Path, guarantee: str
) -> None:
    outcome = await move_orders(kafka, tmp_path, seed=5, kills=KILLS, guarantee=guarantee)
    assert not outcome.wrong, outcome
    assert outcome.landed == outcome.orders > RATE
