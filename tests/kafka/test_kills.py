"""Whatever dies, each accepted record arrives once, in order; a slice of `make prove WHAT=cycles`."""

from pathlib import Path

import pytest

from tests.kafka.kills import kill_cycles
from tests.support.broker import Cluster, TopicFactory

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

GUARANTEES = ["at_least_once", "exactly_once"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
async def test_killed_processes_lose_repeat_and_reorder_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    verdict = await kill_cycles(kafka, topic(kafka), tmp_path, cycles=4, seed=1, guarantee=guarantee)
    assert verdict.ok, verdict
    assert verdict.repeated == 0
    assert verdict.accepted > 1000


async def test_beside_dying_and_frozen_brokers_too(kafka3: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    verdict = await kill_cycles(kafka3, topic(kafka3), tmp_path, cycles=5, seed=2, harm=True)
    assert verdict.ok, verdict
    assert verdict.repeated == 0


@pytest.mark.parametrize("guarantee", GUARANTEES)
async def test_power_cuts_take_only_what_no_flush_covered_and_repeat_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    verdict = await kill_cycles(kafka, topic(kafka), tmp_path, cycles=5, seed=3, power=True, guarantee=guarantee)
    assert verdict.ok, verdict
    assert verdict.repeated == 0
    assert verdict.accepted > 1000


async def test_a_thousand_partitions_survive_kills(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    verdict = await kill_cycles(kafka, topic(kafka, 1000), tmp_path, cycles=2, seed=4, keys=5000)
    assert verdict.ok, verdict
    assert verdict.repeated == 0
    assert verdict.accepted > 1000
