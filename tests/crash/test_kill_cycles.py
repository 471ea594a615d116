"""The promise of `kill -9`: what was accepted is delivered after the restart, in order, and nothing of it twice."""

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.cycles import run_cycles
from tests.prove.kills import too_little
from tests.support.broker import Cluster

CYCLES = 10


@pytest.mark.timeout(240)
def test_every_accepted_record_survives_ten_kills_in_order_and_once(kafka: Cluster, tmp_path: Path) -> None:
    verdict = run_cycles(kafka, cycles=CYCLES, seed=3, directory=tmp_path, report=print)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.repeated == 0
    happened = Counter(kills=verdict.kills, recovered=verdict.recovered, accepted=verdict.accepted)
    assert not too_little(happened, CYCLES)
    assert verdict.kills >= 8  # a seed that lets most of them end by themselves proves little


@pytest.mark.parametrize("quiet", ["kills", "recovered", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    enough = Counter(kills=CYCLES, recovered=CYCLES, accepted=1_000 * CYCLES)
    assert not too_little(enough, CYCLES)
    enough[quiet] = 0
    assert too_little(enough, CYCLES)
