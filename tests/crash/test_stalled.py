"""Beside one partition without a leader 50 keep their rate, and the rings stay small; minutes are `WHAT=stalled`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiorecover import compactor
from tests.crash.stalled import KEPT, SLOT_BYTES, SLOTS_BESIDE, Sample, Span, Stall, run_stalled
from tests.support.broker import KafkaCluster
from tests.support.oracle import Disorder, Verdict

pytestmark = pytest.mark.timeout(240)

SECONDS = 8.0  # without a leader
AROUND = 2.0
WAITING = 100_000  # bytes
MOST = 2 * WAITING + SLOTS_BESIDE * SLOT_BYTES
FINE = Stall(
    Verdict(accepted=1, delivered=1),
    seconds=60.0,
    waiting=1,
    filled=100 * SLOT_BYTES,
    moved=90,
    caught_up_s=1.0,
    spans=[Span("leaderless", KEPT, KEPT)],
    samples=[Sample(1.0, WAITING, MOST, MOST)],
)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spans": [Span("leaderless", KEPT - 0.01, 1.0)]}, "a neighbour below"),
        ({"spans": [Span("leaderless", 1.0, 1.0), Span("healed", 1.0, KEPT - 0.01)]}, "a neighbour below"),
        ({"spans": [Span("healed", 1.0, 1.0, KEPT - 0.01)]}, "published below 0.9 of the pace"),
        ({"samples": [Sample(1.0, WAITING, MOST + 1, MOST)]}, "beyond their bound in 1 of 1 looks"),
        ({"verdict": Verdict(accepted=1, delivered=0, missing=["a/1/1"])}, "missing (1)"),
        ({"verdict": Verdict(accepted=1, delivered=1, repeated=1)}, "repeated=1"),
        ({"verdict": Verdict(accepted=1, delivered=1, foreign=["a/1/2"])}, "foreign (1)"),
        ({"verdict": Verdict(accepted=2, delivered=2, out_of_order=[Disorder("1", "2", "3")])}, "out of order (1)"),
        ({"complaints": ["the counts do not add up: 2 came, 1 went"]}, "do not add up"),
        ({"moved": 0}, "too little was moved"),
        ({"filled": MOST, "moved": 4}, "too little was moved"),
    ],
)
def test_what_is_wrong_with_a_stall_is_seen(change: dict[str, Any], told: str) -> None:
    assert FINE.wrong() == []
    (wrong,) = replace(FINE, **change).wrong()
    assert told in wrong


def test_beside_a_partition_without_a_leader_fifty_keep_their_rate_and_the_rings_stay_small(
    mortal3: KafkaCluster, tmp_path: Path
) -> None:
    stall = run_stalled(mortal3, tmp_path, seconds=SECONDS, around=AROUND)
    print(stall)
    assert stall.wrong() == [], str(stall)


def test_rings_of_which_nothing_is_moved_are_seen(
    mortal3: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above could not fail."""
    monkeypatch.setattr(compactor, "moves_oldest", lambda *_, **__: False)
    stall = run_stalled(mortal3, tmp_path, seconds=SECONDS / 2, around=AROUND / 2)
    assert any("beyond their bound" in wrong for wrong in stall.wrong()), str(stall)
    assert stall.verdict.ok, str(stall.verdict)
