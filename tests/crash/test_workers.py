"""Workers that come and go over one wal_dir: nothing lost, in order per directory, and nothing delivered by two."""

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.workers import run_workers, too_late
from tests.prove.workers import too_little
from tests.support.broker import Cluster

LONG = 200  # rounds


@pytest.mark.timeout(400)
def test_workers_that_come_and_go_lose_nothing_and_deliver_every_directory_once(kafka: Cluster, tmp_path: Path) -> None:
    outcome = run_workers(kafka, rounds=10, seed=34, directory=tmp_path, most=6, report=print)
    print(outcome)
    assert outcome.verdict.ok, str(outcome)
    assert outcome.verdict.repeated == 0
    assert outcome.verdict.kills >= 8
    assert outcome.happened["terminated"] >= 1
    assert outcome.happened["full"] >= 1
    assert outcome.adopted >= 1  # a seed that leaves nothing behind proves little
    assert outcome.verdict.accepted > 1_000


@pytest.mark.parametrize("quiet", ["kills", "terminated", "handed over", "full", "adopted", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    ends = {"kills": LONG, "terminated": LONG // 3, "handed over": LONG // 10}
    enough = Counter({**ends, "full": LONG // 10, "adopted": LONG // 10, "accepted": 1_000 * LONG})
    assert not too_little(enough, LONG)
    enough[quiet] = 0
    assert too_little(enough, LONG)


def test_a_stop_that_takes_longer_than_it_may_is_seen() -> None:
    assert not too_late({"stop_s": 3.5}, 3_000)
    assert too_late({"stop_s": 5.5}, 3_000)
