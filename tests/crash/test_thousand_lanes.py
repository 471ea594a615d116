"""`kill -9` with batches of a thousand partitions on their way: all are sent again, and each stands there once."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support.broker import KafkaCluster

pytestmark = pytest.mark.timeout(240)

LANES = 1_000
EACH = 5  # records on their way in each lane
MOST = 9 * LANES // 10  # batches that are on their way, at least: a slow machine may not have come to all
MORE: list[Step] = [("publish", {"count": EACH * LANES}), FLUSH]
AS_USUAL: dict[str, Any] = {"slot_bytes": 1 << 20, "checkpoint_interval_ms": 1_000}


def test_what_is_in_flight_in_a_thousand_lanes_is_sent_again_and_nothing_is_missing_repeated_or_out_of_order(
    mortal: KafkaCluster, tmp_path: Path
) -> None:
    scenario = Scenario(mortal, tmp_path, lanes=LANES)
    child = scenario.life(*MORE, ("wait", {}), ("publish", {"count": EACH * LANES}), ("wait", {}), **AS_USUAL)
    child.wait_for("wait")
    (node,) = mortal.nodes
    node.pause()
    child.tell()
    child.wait_for("wait", times=2)
    time.sleep(1.0)  # twice as long as any batch lingers: each lane has its own under way
    scenario.kill(child)
    node.resume()
    mortal.wait_ready()
    statistics = scenario.finish(scenario.life(*MORE, **AS_USUAL))
    print(statistics["batches_resumed"], statistics["identities_renewed"])
    assert statistics["batches_resumed"] >= MOST
    assert statistics["identities_renewed"] == 0
    verdict = scenario.examine()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.accepted == 3 * EACH * LANES
