"""What a killed worker has left is adopted: once and in order, whenever the adopter itself is killed."""

import time
from pathlib import Path

import pytest

from aiorecover.wal.instances import instances
from tests.crash.crash_points import OPENINGS, POINTS
from tests.crash.flights import die_before_a_paused_broker
from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.scenario import Scenario
from tests.crash.workers import too_late
from tests.support.admin import run, until
from tests.support.broker import Cluster, KafkaCluster

LANES = 6
LEFT = 1_500  # records: some 16 slots, and several batches of each lane
TIMES = {"before an opening is durable": 2, "after an opening is durable": 2, "before a directory is closed": 1}
SOME = 3  # how often any other point is reached: in the middle of what is adopted
NOWHERE = "127.0.0.1:1"  # no broker listens there
STOP_MS = 3_000
_WITHIN_S = 60.0  # it takes a second

pytestmark = pytest.mark.timeout(240)


def adopter(scenario: Scenario, *, crash: tuple[str, int] | None = None, fault: str | None = None) -> Child:
    """A worker that publishes nothing: whatever it sends, flushes and settles belongs to another one's directory."""
    return scenario.life(
        ("wait", {}),
        crash=crash,
        fault=fault,
        servers=f"{scenario.cluster.bootstrap_servers},{NOWHERE}",  # where the owner looked for a broker, too
        instance="b",
        adoption_grace_ms=0,
        max_batch_size=2048,
    )


def until_adopted(scenario: Scenario, child: Child) -> Verdict:
    """The verdict over everything, once nothing waits in the directory that was left."""

    async def nothing_waits() -> bool | None:
        (left,) = (one for one in instances(scenario.wal_dir) if one.path.name == "a")
        return (left.state == "free" and left.waiting is False) or None

    run(until(nothing_waits, timeout_s=_WITHIN_S, what="the directory was not adopted"))
    child.tell()
    scenario.finish(child)
    return scenario.verdict()


@pytest.mark.parametrize("point", [*POINTS, *OPENINGS])
def test_an_adopter_killed_at_a_point_is_followed_by_another_one(kafka: Cluster, tmp_path: Path, point: str) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES)
    owner = scenario.life(("publish", {"count": LEFT}), ("wait", {}), servers=NOWHERE, instance="a")
    owner.wait_for("wait")
    scenario.kill(owner)
    child = adopter(scenario, crash=(point, TIMES.get(point, SOME)))
    assert child.wait_dead(_WITHIN_S), f"never reached: {point}"
    scenario.ledger.take(child)
    verdict = until_adopted(scenario, adopter(scenario))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.delivered >= LEFT


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
