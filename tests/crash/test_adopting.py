"""What a killed worker has left is adopted: once and in order, whenever the adopter itself is killed."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.adopting import NOWHERE, adopter, dies_adopting, left_alone, let_go, until_adopted
from tests.crash.crash_points import POINTS, TRANSACTION_POINTS
from tests.crash.flights import die_before_a_paused_broker
from tests.crash.letters import examine_letters
from tests.crash.refusing import COMPACTED, POISON
from tests.crash.scenario import Scenario
from tests.crash.workers import too_late
from tests.support.broker import Cluster, KafkaCluster, TopicFactory

LANES = 6
LEFT = 1_500  # records: some 16 slots, and several batches of each lane
SOME = 3  # how often a point is reached: in the middle of what is adopted
FIRST = {"when a partition is added": 1}  # a transaction has one such request for all, and there may be one transaction
STOP_MS = 3_000

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("point", POINTS)
def test_an_adopter_killed_at_a_point_is_followed_by_another_one(kafka: Cluster, tmp_path: Path, point: str) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES)
    left_alone(scenario, LEFT)
    assert dies_adopting(scenario, point, SOME), f"never reached: {point}"
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= LEFT


def test_adopters_killed_in_each_step_of_a_transaction_commit_everything_once_and_in_order(
    kafka3: Cluster, tmp_path: Path
) -> None:
    """One after the other in one directory, to which its owner comes back in between, with more that it cannot send."""
    scenario = Scenario(kafka3, tmp_path, lanes=LANES, exactly_once=True)
    for point in TRANSACTION_POINTS:
        left_alone(scenario, LEFT)
        assert dies_adopting(scenario, point, FIRST.get(point, SOME)), f"never reached: {point}"
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= LEFT * len(TRANSACTION_POINTS)


def test_adopters_that_are_killed_bury_every_poison_record_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """And the copies that are owed for them are published, though who buried them is dead."""
    refusing, dead = topic(kafka, LANES, config=COMPACTED), topic(kafka, 1)
    scenario = Scenario(kafka, tmp_path, lanes=LANES, topic=refusing)
    letters: dict[str, Any] = {"poison": POISON, "dead_letter_topic": dead}
    left_alone(scenario, LEFT, **letters)
    for point in POINTS:
        assert dies_adopting(scenario, point, SOME, **letters), f"never reached: {point}"
    let_go(scenario, adopter(scenario, **letters))
    fates = examine_letters(scenario, dead)
    print(fates)
    assert fates.wrong() == []
    assert (fates.came_through, fates.letters) == (0, LEFT // POISON)
    assert fates.letters <= fates.copies <= fates.letters + len(POINTS)


@pytest.mark.parametrize("servers", [NOWHERE, ""], ids=["without a broker", "with one"])
def test_what_a_worker_leaves_at_sigterm_is_handed_over(kafka: Cluster, tmp_path: Path, servers: str) -> None:
    """In the middle of publishing: it stops in its time, and a neighbour delivers what it could not."""
    scenario = Scenario(kafka, tmp_path, lanes=LANES)
    owner = scenario.life(("publish", {"rate": 2_000}), servers=servers, instance="a", stop_timeout_ms=STOP_MS)
    owner.wait_for("publish")
    time.sleep(1.0)
    owner.terminate()
    statistics = scenario.finish(owner)
    assert not too_late(statistics, STOP_MS)
    assert statistics["accepted"] > LANES
    assert statistics["left"] == statistics["pending"]
    assert not servers or statistics["left"] == statistics["accepted"]
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.kills == 0
    assert verdict.delivered == statistics["accepted"]


def test_what_was_in_flight_is_sent_by_the_adopter_under_the_identity_that_it_had(
    mortal: KafkaCluster, tmp_path: Path
) -> None:
    scenario = Scenario(mortal, tmp_path)
    die_before_a_paused_broker(scenario, instance="a")
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
