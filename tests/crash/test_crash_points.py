"""Killed around a send: nothing missing, nothing twice.

Three lives in a row die at the same point, the first, a few or many times that they reach it, and begin with what the
one before has left.
"""

from pathlib import Path

import pytest

from tests.crash.crash_points import POINTS
from tests.crash.scenario import Scenario
from tests.support.broker import Cluster

LANES = 6
TIMES = (1, 4, 20)
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
