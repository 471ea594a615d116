"""A batch that a dead process had sent arrives late, or its answer never came: order is kept, and nothing stands twice.

The network, and the kernel of a dead process, deliver bytes after its successor has started and sent. A new Kafka
producer id would let the broker append them behind the successor's.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.flights import (
    BATCHES_BYTES,
    LANES,
    MORE_THAN_REMEMBERED,
    RECORDS,
    die_unanswered,
    ready,
    take_off,
)
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

pytestmark = pytest.mark.timeout(240)

AGE_MS = 5_000  # a successor that takes so long to deliver what it has published itself would bury that, too
AGES: dict[str, Any] = {"delivery_timeout_ms": AGE_MS, "request_timeout_ms": 2_000}
NEVER_MS = 600_000  # for who dies: on a busy machine it may live until its records are old, and would bury them itself
UNTIL_MARKED_S = 0.2  # then a checkpoint has a mark behind the last record
UNTIL_OLD_S = 1.125 * AGE_MS / 1000 + 1.5  # an eighth and a second later at most


@pytest.fixture
def scenario(detoured: KafkaCluster, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


def die_held(scenario: Scenario, detour: Detour, held: int = 0, *, aged: bool = False, **options: Any) -> None:
    """With batches in flight that the detour has, beside those that it ``held`` before.

    ``aged``: a successor knows how old each record is; ``options``: as of `Scenario.life`.
    """
    child = ready(scenario, then=[("wait_checkpointed", {}), ("wait", {})], **options)
    (detour.hold_all if aged else detour.hold)()
    take_off(child)
    detour.wait_held(held + BATCHES_BYTES)
    if aged:
        time.sleep(UNTIL_MARKED_S)
        child.tell()
        child.wait_for("wait", times=3)
    scenario.kill(child)
    detour.admit()
    detour.wait_late(held + BATCHES_BYTES)


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


def test_a_batch_that_arrives_after_its_age_was_up_and_others_followed_is_not_appended(
    scenario: Scenario, detour: Detour
) -> None:
    """Its records are dead letters by then, and nothing is sent again as it was: what follows fences it."""
    die_held(scenario, detour, aged=True, delivery_timeout_ms=NEVER_MS)
    held = {record.record_id for record in scenario.ledger.accepted[0]}
    time.sleep(UNTIL_OLD_S)
    last = scenario.finish(scenario.life(*MORE_THAN_REMEMBERED, **AGES))
    assert last["expired"] == last["dead_lettered"] >= RECORDS
    assert detour.release() >= BATCHES_BYTES
    verdict = scenario.verdict(**AGES)
    assert set(verdict.missing) <= held, "of the successor's own records none is too old"
    assert len(verdict.missing) == RECORDS, str(verdict)
    assert replace(verdict, missing=[]).ok, str(verdict)
