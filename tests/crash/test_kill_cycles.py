"""The promise of `kill -9`: what was accepted is delivered after the restart, in order, and nothing of it twice."""

from pathlib import Path

import pytest

from tests.crash.cycles import run_cycles
from tests.support.broker import Cluster


@pytest.mark.timeout(240)
def test_every_accepted_record_survives_ten_kills_in_order_and_once(kafka: Cluster, tmp_path: Path) -> None:
    verdict = run_cycles(kafka, cycles=10, seed=3, directory=tmp_path, report=print)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.repeated == 0
    assert verdict.kills >= 8  # a seed that lets most of them end by themselves proves little
    assert verdict.accepted > 1_000
