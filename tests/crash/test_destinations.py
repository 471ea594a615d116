"""Of what is gone, as it is drawn; the long run is `make prove WHAT=destinations`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.destinations import KINDS, TOPICS_ARE_MADE, kind_of, play
from tests.support.broker import KafkaCluster

pytestmark = pytest.mark.timeout(300)

TOPIC, CLUSTER = 2, 3  # seeds


@pytest.fixture(scope="module")
def right() -> Iterator[KafkaCluster]:
    with KafkaCluster(1, TOPICS_ARE_MADE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other() -> Iterator[KafkaCluster]:
    with KafkaCluster(1) as cluster:
        yield cluster


def test_seeds_that_follow_each_other_take_turns() -> None:
    assert [kind_of(seed) for seed in range(4)] == [*KINDS, *KINDS]


@pytest.mark.parametrize("seed", [TOPIC, CLUSTER])
def test_lives_that_are_killed_where_their_destination_is_gone_leave_every_record_once_and_in_order(
    right: KafkaCluster, other: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    verdict = play(right, other, tmp_path, seed)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.kills > 1
