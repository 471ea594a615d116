"""Killed at every step around identity, send, acknowledgement, settling and checkpoint: nothing missing, nothing twice.

Three lives in a row die at the same point, the first, a few or many times that they reach it, and begin with what the
one before has left. So do two openings behind a flush that failed, while they write its slots again.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.crash.crash_points import FAILED_FLUSH_POINTS, POINTS
from tests.crash.scenario import Scenario
from tests.support.broker import Cluster

LANES = 6
TIMES = (1, 4, 20)
NOWHERE = "127.0.0.1:1"  # no broker listens there
_DIES_WITHIN_S = 30.0  # it takes a fraction of a second


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_everything_arrives_once_and_in_order(kafka3: Cluster, tmp_path: Path, point: str) -> None:
    scenario = Scenario(kafka3, tmp_path, lanes=LANES)
    for times in TIMES:
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, times))
        assert child.wait_dead(_DIES_WITHIN_S), f"never reached: {point} {times} times"
        scenario.ledger.take(child)
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.kills == len(TIMES)


def test_killed_while_slots_are_written_again_behind_a_failed_flush_everything_arrives_once_and_in_order(
    kafka3: Cluster, tmp_path: Path
) -> None:
    scenario = Scenario(kafka3, tmp_path, lanes=LANES)
    # No checkpoint covers a slot.
    seldom: dict[str, Any] = {"fsync_interval_ms": 300, "checkpoint_interval_ms": 60_000}
    word, again = FAILED_FLUSH_POINTS
    lives = [
        scenario.life(("publish", {"rate": 5_000}), crash=(word, 1), fault="fail_a_flush", servers=NOWHERE, **seldom)
    ]
    assert lives[0].wait_dead(_DIES_WITHIN_S), "no flush has failed"
    for times in TIMES[1:]:
        lives.append(scenario.life(("publish", {"rate": 5_000}), crash=(again, times), **seldom))
        assert lives[-1].wait_dead(_DIES_WITHIN_S), f"so many slots were not written again: {times}"
        assert not lives[-1].opened
    for child in lives:
        scenario.ledger.take(child)
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.kills == len(TIMES)
    assert verdict.delivered > 2_000
