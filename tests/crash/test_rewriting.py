"""Killed while the retry ring is rewritten: three lanes of twelve wait in it, and only one stays stalled.

The partitions of two are below min.insync.replicas until their topic asks for one replica; the third one's, of another
topic, has no leader until its node is back.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.crash.crash_points import REWRITING_POINTS
from tests.crash.judgement import Verdict
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support import admin
from tests.support.broker import KafkaCluster

pytestmark = pytest.mark.timeout(240)

PARTITIONS = 6  # of each topic
LEADERLESS = 3
BELOW_MIN_ISR = (2, 5)
OPTIONS: dict[str, Any] = {"max_batch_size": 16 * 1024, "slot_bytes": 1 << 16}  # a ring that goes round many times
COPIED = 100  # copies of some 1,500 are copied once more when it dies there
DIES_WITHIN_S = 60.0  # it takes seconds


@pytest.fixture
def placed(mortal3: KafkaCluster) -> tuple[str, str]:
    """Two topics, on the first two nodes but for the partitions that will be stuck."""
    one, two, dies = (node.node_id for node in mortal3.nodes)
    below, leaderless = (f"{what}-{os.urandom(4).hex()}" for what in ("below", "leaderless"))
    pairs = {number: [one, dies if number in BELOW_MIN_ISR else two] for number in range(PARTITIONS)}
    alone = {number: [dies if number == LEADERLESS else two] for number in range(PARTITIONS)}
    servers, config = mortal3.bootstrap_servers, {"min.insync.replicas": "2"}
    admin.run(admin.create_placed_topic(servers, below, pairs, config))
    admin.run(admin.create_placed_topic(servers, leaderless, alone))
    return below, leaderless


@pytest.mark.parametrize("point", REWRITING_POINTS)
def test_killed_while_the_retry_ring_is_rewritten_everything_arrives_once_and_in_order(
    mortal3: KafkaCluster, placed: tuple[str, str], tmp_path: Path, point: str
) -> None:
    verdict = killed_and_opened(mortal3, placed, tmp_path, point)
    assert verdict.ok, str(verdict)
    assert verdict.kills == 2


def test_copies_that_count_before_the_rewriting_is_made_are_seen(
    mortal3: KafkaCluster, placed: tuple[str, str], tmp_path: Path
) -> None:
    point, fault = "when the retry ring is copied", "let_copies_count_that_were_not_made"
    verdict = killed_and_opened(mortal3, placed, tmp_path, point, fault)
    assert verdict.repeats or verdict.complaints, str(verdict)


def killed_and_opened(
    cluster: KafkaCluster, placed: tuple[str, str], directory: Path, point: str, fault: str | None = None
) -> Verdict:
    """Killed at the point, and once more while one lane is still stalled: what was not made is rewritten then, too."""
    below, leaderless = placed
    scenario = Scenario(cluster, directory, lanes=PARTITIONS, topic=below, beside=[leaderless])
    times = COPIED if point == "when a copy is copied once more" else 1
    child = scenario.life(
        ("publish", {"count": 2_000}),
        FLUSH,
        ("wait", {}),
        ("publish", {"count": 15_000, "rate": 6_000}),
        ("wait_stalled", {"lanes": 1 + len(BELOW_MIN_ISR)}),
        ("wait", {}),
        ("publish", {"rate": 3_000}),
        crash=(point, times),
        **OPTIONS,
    )
    child.wait_for("wait")
    cluster.nodes[2].kill()
    child.tell()
    child.wait_for("wait", times=2)
    admin.run(admin.configure_topic(cluster.bootstrap_servers, below, {"min.insync.replicas": "1"}))
    child.tell()
    assert child.wait_dead(DIES_WITHIN_S), f"never reached: {point}"
    scenario.ledger.take(child)

    steps: list[Step] = [("publish", {"count": 2_000, "rate": 3_000}), ("wait_stalled", {"lanes": 1}), ("wait", {})]
    child = scenario.life(*steps, fault=fault, **OPTIONS)
    child.wait_for("wait")
    scenario.kill(child)
    cluster.heal()
    verdict = scenario.verdict(fault=fault)
    print(verdict)
    return verdict
