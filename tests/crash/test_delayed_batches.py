"""A batch that a dead process had sent arrives late, or its answer never came: order is kept, and nothing stands twice.

The network, and the kernel of a dead process, deliver bytes after its successor has started and sent. A new Kafka
producer id would let the broker append them behind the successor's.
"""

from pathlib import Path

import pytest

from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

pytestmark = pytest.mark.timeout(240)

LANES = 6
BATCHES_BYTES = 3_000  # what is in flight in six lanes is more
SUCCESSOR = [("publish", {"count": 1_500, "rate": 3_000}), FLUSH]  # more than the five batches that a broker remembers


@pytest.fixture
def scenario(detoured: KafkaCluster, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


def ready(scenario: Scenario) -> Child:
    """A life that has delivered something in each lane, and waits to be told to publish more."""
    steps = [("publish", {"count": 60}), FLUSH, ("wait", {}), ("publish", {"count": 600}), ("wait_in_flight", {})]
    child = scenario.life(*steps, ("wait", {}))
    child.wait_for("wait")
    return child


def publish_and_die(scenario: Scenario, child: Child, detour: Detour, *, held: bool = True) -> None:
    """With batches in flight that the detour has, or has carried on."""
    carried = detour.count()
    child.tell()
    child.wait_for("wait", times=2)
    if held:
        detour.wait_held(BATCHES_BYTES)
    else:
        detour.wait_carried(carried + BATCHES_BYTES)
    scenario.kill(child)


def test_a_batch_that_arrives_after_its_successors_is_not_appended(scenario: Scenario, detour: Detour) -> None:
    child = ready(scenario)
    detour.hold()
    publish_and_die(scenario, child, detour)
    scenario.finish(scenario.life(*SUCCESSOR))
    assert detour.release() >= BATCHES_BYTES
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_that_arrives_in_the_middle_of_its_successors_is_not_appended(
    scenario: Scenario, detour: Detour
) -> None:
    child = ready(scenario)
    detour.hold()
    publish_and_die(scenario, child, detour)
    successor = scenario.life(*SUCCESSOR)
    successor.wait_for("publish")
    assert detour.release() >= BATCHES_BYTES
    scenario.finish(successor)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_that_arrives_after_the_death_and_before_the_successor_stands_there_once(
    scenario: Scenario, detour: Detour
) -> None:
    child = ready(scenario)
    detour.hold()
    publish_and_die(scenario, child, detour)
    assert detour.release() >= BATCHES_BYTES
    scenario.finish(scenario.life(*SUCCESSOR))
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_whose_answer_is_lost_stands_there_once(scenario: Scenario, detour: Detour) -> None:
    child = ready(scenario)
    detour.deafen()
    publish_and_die(scenario, child, detour, held=False)
    scenario.finish(scenario.life(*SUCCESSOR))
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_what_two_dead_processes_had_sent_arrives_after_the_third(scenario: Scenario, detour: Detour) -> None:
    for held in (0, BATCHES_BYTES):
        child = ready(scenario)
        detour.hold()
        child.tell()
        child.wait_for("wait", times=2)
        detour.wait_held(held + BATCHES_BYTES)
        scenario.kill(child)
    scenario.finish(scenario.life(*SUCCESSOR))
    assert detour.release() >= 2 * BATCHES_BYTES
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
