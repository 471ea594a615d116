"""What a killed worker has left is adopted: once and in order, whenever the adopter itself is killed."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from aiorecover.wal.instances import instances
from tests.crash.crash_points import (
    DRAINING_POINTS,
    LETTER_POINTS,
    MOVING_POINTS,
    OPENINGS,
    POINTS,
    TRANSACTION_OPENINGS,
    TRANSACTION_POINTS,
)
from tests.crash.flights import die_before_a_paused_broker
from tests.crash.judgement import Verdict
from tests.crash.letters import examine_letters
from tests.crash.lives import Child
from tests.crash.scenario import Scenario
from tests.crash.workers import too_late
from tests.support.admin import create_placed_topic, run, until
from tests.support.broker import Cluster, KafkaCluster, TopicFactory

LANES = 6
LEFT = 1_500  # records: some 16 slots, and several batches of each lane
TIMES = {"before an opening is durable": 2, "after an opening is durable": 2, "before a directory is closed": 1}
STUCK = 3
POISON = 40  # one record in so many
TRANSACTIONS = TIMES | {
    "when a partition is added": 1,
    "when all is answered": 1,
    "when those who wait for a flush are known": 1,
    "before those who waited for a flush are told": 1,
    "after the ring is flushed": 1,
    "before the position is read": 2,
    "after the position is read": 2,
}
"""The first transaction in which records are; the two before, one of each directory, have none."""
SOME = 3  # how often any other point is reached: in the middle of what is adopted
NOWHERE = "127.0.0.1:1"  # no broker listens there
STOP_MS = 3_000
_WITHIN_S = 60.0  # it takes a second

pytestmark = pytest.mark.timeout(240)


def adopter(scenario: Scenario, **task: Any) -> Child:
    """A worker that publishes nothing: whatever it sends, flushes and settles belongs to another one's directory.

    ``task``: more of `Scenario.life`.
    """
    return scenario.life(
        ("wait", {}),
        servers=f"{scenario.cluster.bootstrap_servers},{NOWHERE}",  # where the owner looked for a broker, too
        instance="b",
        adoption_grace_ms=0,
        max_batch_size=2048,
        **task,
    )


def left_alone(scenario: Scenario, count: int = LEFT, **task: Any) -> None:
    """A worker has accepted so many records, reached no broker, and is gone; ``task``: as of `adopter`."""
    owner = scenario.life(("publish", {"count": count}), ("wait", {}), servers=NOWHERE, instance="a", **task)
    owner.wait_for("wait")
    scenario.kill(owner)


def dies_adopting(scenario: Scenario, point: str, times: int, **task: Any) -> None:
    """Another adopter is killed when it reaches the point for that time; ``task``: as of `adopter`."""
    child = adopter(scenario, crash=(point, times), **task)
    assert child.wait_dead(_WITHIN_S), f"never reached: {point} {times} times"
    scenario.ledger.take(child)


def until_adopted(scenario: Scenario, child: Child) -> Verdict:
    """The verdict over everything, once nothing waits in the directory that was left."""
    let_go(scenario, child)
    return scenario.verdict()


def let_go(scenario: Scenario, child: Child) -> None:
    """Until nothing waits in the directory that was left; the adopter stops then."""

    async def nothing_waits() -> bool | None:
        (left,) = (one for one in instances(scenario.wal_dir) if one.path.name == "a")
        return (left.state == "free" and left.waiting is False) or None

    run(until(nothing_waits, timeout_s=_WITHIN_S, what="the directory was not adopted"))
    child.tell()
    scenario.finish(child)


@pytest.mark.parametrize("point", [*POINTS, *OPENINGS])
def test_an_adopter_killed_at_a_point_is_followed_by_another_one(kafka: Cluster, tmp_path: Path, point: str) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES)
    left_alone(scenario)
    dies_adopting(scenario, point, TIMES.get(point, SOME))
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= LEFT


def test_adopters_killed_in_each_step_of_a_transaction_commit_everything_once_and_in_order(
    kafka3: Cluster, tmp_path: Path
) -> None:
    """One after the other in one directory, to which its owner comes back in between, with more that it cannot send."""
    scenario = Scenario(kafka3, tmp_path, lanes=LANES, exactly_once=True)
    for point in TRANSACTION_POINTS | TRANSACTION_OPENINGS | OPENINGS:
        left_alone(scenario)
        dies_adopting(scenario, point, TRANSACTIONS.get(point, SOME))
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= LEFT * len(TRANSACTION_POINTS | TRANSACTION_OPENINGS | OPENINGS)


def test_adopters_killed_in_each_step_of_a_stall_lose_and_repeat_nothing(mortal3: KafkaCluster, tmp_path: Path) -> None:
    """Around what waits for a partition without a leader: while it is moved, and caught up once its node is back."""
    one, two, dies = mortal3.nodes
    replicas = {lane: [one.node_id if lane % 2 else two.node_id] for lane in range(LANES)} | {STUCK: [dies.node_id]}
    topic = f"placed-{os.urandom(4).hex()}"
    run(create_placed_topic(mortal3.bootstrap_servers, topic, replicas))
    scenario = Scenario(mortal3, tmp_path, lanes=LANES, topic=topic)
    left_alone(scenario, 10 * LEFT)
    dies.kill()
    dies_adopting(scenario, "when a lane is passed over", 1)
    for point in MOVING_POINTS:
        dies_adopting(scenario, point, SOME)
    mortal3.heal()
    for point in DRAINING_POINTS:
        dies_adopting(scenario, point, 1)
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= 10 * LEFT


def test_adopters_killed_at_each_step_of_a_letter_bury_every_poison_record_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """And the copies that are owed for them are published, though who buried them is dead."""
    refusing, dead = topic(kafka, LANES, config={"cleanup.policy": "compact"}), topic(kafka, 1)
    scenario = Scenario(kafka, tmp_path, lanes=LANES, topic=refusing)
    letters: dict[str, Any] = {"poison": POISON, "dead_letter_topic": dead}
    left_alone(scenario, **letters)
    for point in LETTER_POINTS:
        dies_adopting(scenario, point, SOME, **letters)
    let_go(scenario, adopter(scenario, **letters))
    fates = examine_letters(scenario, dead)
    print(fates)
    assert fates.wrong() == []
    assert (fates.came_through, fates.letters) == (0, LEFT // POISON)
    assert fates.letters <= fates.copies <= fates.letters + len(LETTER_POINTS)


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


@pytest.mark.parametrize("fault", [None, "forget_what_was_in_flight"])
def test_what_was_in_flight_is_sent_by_the_adopter_under_the_identity_that_it_had(
    mortal: KafkaCluster, tmp_path: Path, fault: str | None
) -> None:
    scenario = Scenario(mortal, tmp_path)
    die_before_a_paused_broker(scenario, instance="a")
    verdict = until_adopted(scenario, adopter(scenario, fault=fault))
    print(verdict)
    assert bool(verdict.repeats) is (fault is not None), str(verdict)
    assert verdict.ok is (fault is None), str(verdict)
