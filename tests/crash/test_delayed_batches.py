"""A batch that a dead process had sent arrives late, or its answer never came: order is kept, and nothing stands twice.

The network, and the kernel of a dead process, deliver bytes after its successor has started and sent. A new Kafka
producer id would let the broker append them behind the successor's.
"""

from pathlib import Path

import pytest

from tests.crash.flights import BATCHES_BYTES, LANES, MORE_THAN_REMEMBERED, die_unanswered, ready, take_off
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def scenario(detoured: KafkaCluster, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


def die_held(scenario: Scenario, detour: Detour, held: int = 0) -> None:
    """With batches in flight that the detour has, beside those that it ``held`` before."""
    child = ready(scenario)
    detour.hold()
    take_off(child)
    detour.wait_held(held + BATCHES_BYTES)
    scenario.kill(child)


def test_a_batch_that_arrives_after_its_successors_is_not_appended(scenario: Scenario, detour: Detour) -> None:
    die_held(scenario, detour)
    scenario.finish(scenario.life(*MORE_THAN_REMEMBERED))
    assert detour.release() >= BATCHES_BYTES
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_that_arrives_in_the_middle_of_its_successors_is_not_appended(
    scenario: Scenario, detour: Detour
) -> None:
    die_held(scenario, detour)
    successor = scenario.life(*MORE_THAN_REMEMBERED)
    successor.wait_for("publish")
    assert detour.release() >= BATCHES_BYTES
    scenario.finish(successor)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_that_arrives_after_the_death_and_before_the_successor_stands_there_once(
    scenario: Scenario, detour: Detour
) -> None:
    die_held(scenario, detour)
    assert detour.release() >= BATCHES_BYTES
    scenario.finish(scenario.life(*MORE_THAN_REMEMBERED))
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_a_batch_whose_answer_is_lost_stands_there_once(scenario: Scenario, detour: Detour) -> None:
    die_unanswered(scenario, detour)
    scenario.finish(scenario.life(*MORE_THAN_REMEMBERED))
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)


def test_what_two_dead_processes_had_sent_arrives_after_the_third(scenario: Scenario, detour: Detour) -> None:
    for held in (0, BATCHES_BYTES):
        die_held(scenario, detour, held)
    scenario.finish(scenario.life(*MORE_THAN_REMEMBERED))
    assert detour.release() >= 2 * BATCHES_BYTES
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
