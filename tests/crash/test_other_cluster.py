"""The cluster is replaced while records are in flight: the other one gets nothing, or all of it where it is named."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover.delivery.journal import Entry, decode
from aiorecover.wal.directory import Options
from aiorecover.wal.opening import open_directory
from tests.crash.flights import die_before_a_paused_broker
from tests.crash.scenario import FLUSH, SLOT_BYTES, Scenario
from tests.support.broker import KafkaCluster
from tests.support.oracle import Consumed, read_topic
from tests.support.somebody import send_as_somebody_else

pytestmark = pytest.mark.timeout(300)

DELIVERED, WAITING = 100, 501  # before the broker is paused, and in flight or behind that


@pytest.fixture(scope="module")
def new() -> Iterator[KafkaCluster]:
    with KafkaCluster(1) as cluster:
        yield cluster


def replaced(scenario: Scenario, new: KafkaCluster, *, fault: str | None = None) -> tuple[dict[str, Any], str]:
    """A life that finds another cluster, publishes and ends; its last statistics, and which it has refused."""
    child = scenario.life(
        ("publish", {"count": 50}),
        FLUSH if fault is not None else ("wait_refused", {}),
        servers=new.bootstrap_servers,
        fault=fault,
        stop_timeout_ms=3_000,
    )
    refused = child.wait_for("refused") if fault is None else ""
    return scenario.finish(child), refused


def records_in(cluster: KafkaCluster, topic: str) -> list[Consumed]:
    return asyncio.run(read_topic(cluster.bootstrap_servers, topic))


@pytest.mark.parametrize("fault", [None, "send_to_any_cluster"])
def test_another_cluster_gets_nothing_and_the_right_one_everything_once(
    mortal: KafkaCluster, new: KafkaCluster, tmp_path: Path, fault: str | None
) -> None:
    scenario = Scenario(mortal, tmp_path)
    new.create_topic(scenario.topic, 1)
    # Of the slot that the kill leaves open it is only known how far the newest checkpoint had flushed it.
    die_before_a_paused_broker(scenario, ("wait_checkpointed", {}), checkpoint_interval_ms=50)
    statistics, refused = replaced(scenario, new, fault=fault)
    assert (records_in(new, scenario.topic) == []) is (fault is None)
    if fault is None:
        assert refused != statistics["cluster_id"]
        assert statistics["left"] >= WAITING + 50
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok is (fault is None), str(verdict)
    assert verdict.repeated == 0


def entry_of(directory: Path) -> Entry:
    """What the dead process had in flight in its only lane."""
    opened = open_directory(Options(directory, SLOT_BYTES, 64 * SLOT_BYTES, 0))
    try:
        (block,) = opened.lanes.found
        return decode(block.bodies[0])
    finally:
        opened.close()


@pytest.mark.parametrize("fault", [None, "use_identities_of_another_cluster"])
def test_the_named_one_gets_what_waits_and_takes_nothing_for_a_repeat_of_somebody_else(
    mortal: KafkaCluster, new: KafkaCluster, tmp_path: Path, fault: str | None
) -> None:
    scenario = Scenario(mortal, tmp_path)
    new.create_topic(scenario.topic, 1)
    die_before_a_paused_broker(scenario)
    entry = entry_of(scenario.copy())
    # as somebody there who was given the same identity: clusters give them from 0 on
    sending = send_as_somebody_else(
        new.bootstrap_servers, scenario.topic, entry.partition, entry.identity, entry.base_sequence, entry.count
    )
    asyncio.run(sending)
    _, named = replaced(scenario, new)
    scenario.finish(scenario.life(FLUSH, servers=new.bootstrap_servers, fault=fault, cluster_id=named))
    found = [one.record_id for one in records_in(new, scenario.topic) if one.record_id is not None]
    sequences = [int(one.rpartition("/")[2]) for one in found if one.split("/")[1] == "1"]
    taken_for_a_repeat = entry.count if fault is not None else 0
    expected = list(range(DELIVERED + 1 + taken_for_a_repeat, DELIVERED + WAITING + 1))
    assert sequences == expected, f"records={len(found)} {found[:3]} {entry=} {named=}"
    assert len(found) == len(set(found))
