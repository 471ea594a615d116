"""The cluster is replaced while records are in flight: the other one gets nothing, or all of it where it is named."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.flights import die_before_a_paused_broker
from tests.crash.scenario import FLUSH, Scenario
from tests.support.broker import KafkaCluster
from tests.support.oracle import Consumed, read_topic

pytestmark = pytest.mark.timeout(300)

DELIVERED, WAITING = 100, 501  # before the broker is paused, and in flight or behind that


@pytest.fixture(scope="module")
def new() -> Iterator[KafkaCluster]:
    with KafkaCluster(1) as cluster:
        yield cluster


def replaced(scenario: Scenario, new: KafkaCluster) -> tuple[dict[str, Any], str]:
    """A life that finds another cluster, publishes and ends; its last statistics, and which it has refused."""
    child = scenario.life(
        ("publish", {"count": 50}),
        ("wait_refused", {}),
        servers=new.bootstrap_servers,
        stop_timeout_ms=3_000,
    )
    refused = child.wait_for("refused")
    return scenario.finish(child), refused


def records_in(cluster: KafkaCluster, topic: str) -> list[Consumed]:
    return asyncio.run(read_topic(cluster.bootstrap_servers, topic))


def test_another_cluster_gets_nothing_and_the_right_one_everything_once(
    mortal: KafkaCluster, new: KafkaCluster, tmp_path: Path
) -> None:
    scenario = Scenario(mortal, tmp_path)
    new.create_topic(scenario.topic, 1)
    # Of the slot that the kill leaves open it is only known how far the newest checkpoint had flushed it.
    die_before_a_paused_broker(scenario, ("wait_checkpointed", {}), checkpoint_interval_ms=50)
    statistics, refused = replaced(scenario, new)
    assert records_in(new, scenario.topic) == []
    assert refused != statistics["cluster_id"]
    assert statistics["left"] >= WAITING + 50
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.repeated == 0


def test_the_named_one_gets_what_waits_once(mortal: KafkaCluster, new: KafkaCluster, tmp_path: Path) -> None:
    scenario = Scenario(mortal, tmp_path)
    new.create_topic(scenario.topic, 1)
    die_before_a_paused_broker(scenario)
    _, named = replaced(scenario, new)
    scenario.finish(scenario.life(FLUSH, servers=new.bootstrap_servers, cluster_id=named))
    found = [one.record_id for one in records_in(new, scenario.topic) if one.record_id is not None]
    sequences = [int(one.rpartition("/")[2]) for one in found if one.split("/")[1] == "1"]
    assert sequences == [*range(DELIVERED + 1, DELIVERED + WAITING + 1)]
    assert len(found) == len(set(found))
