"""A frozen broker, a lane below `min.insync.replicas` and one without a leader cost their neighbours a tenth at most.

As `benchmarks.neighbours` measures it: of every lane a burst 20 times a second, which leaves a busy machine room.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.neighbours import measure, own_brokers
from tests.support.broker import Cluster

pytestmark = pytest.mark.timeout(240)

STUCK = ("frozen", "below min ISR, leaderless")  # the first seconds, in which the lanes move, are not part of it
KEPT = 0.9  # of what the slower neighbour got through before


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with own_brokers() as cluster:
        yield cluster


def kept(brokers: Cluster, wal_dir: Path) -> dict[str, float]:
    """Of each phase, against the rate before."""
    rates = measure(brokers, str(wal_dir), alone=False)
    return {phase: rates[phase] / rates["before"] for phase in STUCK}


def test_stuck_partitions_leave_their_neighbours_nine_tenths_of_their_rate(brokers: Cluster, tmp_path: Path) -> None:
    shares = kept(brokers, tmp_path)
    assert min(shares.values()) >= KEPT, str(shares)
