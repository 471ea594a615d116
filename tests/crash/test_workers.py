"""Workers that come and go over one wal_dir: nothing lost, in order per directory, and nothing delivered by two."""

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.workers import run_workers
from tests.prove.rounds import ROUND
from tests.prove.workers import too_little
from tests.support.broker import Cluster


@pytest.mark.timeout(400)
def test_workers_that_come_and_go_lose_nothing_and_deliver_every_directory_once(kafka: Cluster, tmp_path: Path) -> None:
    outcome = run_workers(kafka, rounds=10, seed=5, directory=tmp_path, most=6, report=print)
    print(outcome)
    assert outcome.verdict.ok, str(outcome)
    assert outcome.verdict.repeated == 0
    assert outcome.verdict.kills >= 8
    assert outcome.adopted >= 1  # a seed that leaves nothing behind proves little
    assert outcome.verdict.accepted > 1_000


@pytest.mark.parametrize("quiet", ["kills", "adopted", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    enough = Counter(kills=ROUND, adopted=1, accepted=1_000 * ROUND)
    assert not too_little(enough, ROUND)
    enough[quiet] = 0
    assert too_little(enough, ROUND)
