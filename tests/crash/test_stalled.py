"""Beside one partition without a leader 50 keep their rate, and the rings stay small; minutes are `WHAT=stalled`.

And those of partitions that are stuck for another reason.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.stalled import KEPT, SLOT_BYTES, SLOTS_BESIDE, SPAN_S, Sample, Span, Stall, run_stalled
from tests.crash.stuck import CAUSES
from tests.support.admin import View
from tests.support.broker import KafkaCluster
from tests.support.oracle import Disorder, Verdict

pytestmark = pytest.mark.timeout(240)

SECONDS = 12.5  # without a leader: behind the first ones, in which the lanes move, one whole span
AROUND = 2.0
WAITING = 100_000  # bytes
MOST = 2 * WAITING + SLOTS_BESIDE * SLOT_BYTES
LEADERLESS, BELOW, FROZEN = (CAUSES[name] for name in ("leaderless", "below_min_isr", "frozen"))
NODES = [1, 2, 3]
FINE = Stall(
    Verdict(accepted=1, delivered=1),
    LEADERLESS,
    seconds=60.0,
    came=10,
    waiting=9,
    filled=100 * SLOT_BYTES,
    moved=90,
    caught_up_s=1.0,
    spans=[Span("leaderless", KEPT, KEPT)],
    samples=[Sample(1.0, WAITING, MOST, MOST)],
)
LATE = SPAN_S * (1 - KEPT)  # seconds of ten


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spans": [Span("leaderless", KEPT - 0.01, 1.0)]}, "a neighbour below"),
        ({"spans": [Span("leaderless", 1.0, 1.0), Span("healed", 1.0, KEPT - 0.01)]}, "a neighbour below"),
        ({"spans": [Span("healed", 1.0, 1.0, KEPT - 0.01)]}, "published below 0.9 of the pace"),
        ({"samples": [Sample(1.0, WAITING, MOST + 1, MOST)]}, "beyond their bound in 1 of 1 looks"),
        ({"samples": [Sample(1.0, WAITING, MOST, MOST, behind_s=9.0)]}, "held up for 9.0 s"),
        ({"samples": [Sample(1.0, WAITING, MOST, MOST, LATE + 0.1, "stuck")]}, "for ten seconds: stuck"),
        ({"samples": [Sample(1.0, WAITING, MOST, MOST, LATE + 0.1, "caught up")]}, "for ten seconds: caught up"),
        ({"verdict": Verdict(accepted=1, delivered=0, missing=["a/1/1"])}, "missing (1)"),
        ({"verdict": Verdict(accepted=1, delivered=1, repeated=1)}, "repeated=1"),
        ({"verdict": Verdict(accepted=1, delivered=1, foreign=["a/1/2"])}, "foreign (1)"),
        ({"verdict": Verdict(accepted=2, delivered=2, out_of_order=[Disorder("1", "2", "3")])}, "out of order (1)"),
        ({"complaints": ["the counts do not add up: 2 came, 1 went"]}, "do not add up"),
        ({"moved": 0}, "too little was moved"),
        ({"filled": MOST, "moved": 4}, "too little was moved"),
        ({"waiting": 8}, "too little was stuck"),
        ({"came": 0, "waiting": 0}, "too little was stuck"),
        ({"unlike": ["not as it has to be: leader=1"]}, "not as it has to be"),
        ({"cause": FROZEN, "seconds": 600.0}, "not longer than the brokers' connections.max.idle.ms"),
    ],
)
def test_what_is_wrong_with_a_stall_is_seen(change: dict[str, Any], told: str) -> None:
    assert FINE.wrong() == []
    (wrong,) = replace(FINE, **change).wrong()
    assert told in wrong


@pytest.mark.parametrize(("phase", "behind_s"), [("moving", 3.0), ("stuck", LATE), ("caught up", LATE)])
def test_a_neighbour_may_wait_while_lanes_move_and_then_for_a_tenth_of_ten_seconds(phase: str, behind_s: float) -> None:
    assert replace(FINE, samples=[Sample(1.0, WAITING, MOST, MOST, behind_s, phase)]).wrong() == []


def test_a_freeze_is_held_against_every_time_out() -> None:
    assert len(FROZEN.too_short(1.0)) == len(FROZEN.outlasts)
    assert FROZEN.too_short(FROZEN.seconds) == []


@pytest.mark.parametrize(
    ("leaders", "in_sync", "unlike"),
    [
        ({17: 1, 34: 2}, {17: {1}, 34: {2}}, set()),
        ({17: 1, 34: 2}, {17: {1}, 34: {2, 3}}, {34}),
        ({17: 3, 34: 2}, {17: {1, 3}, 34: {2}}, {17}),
        ({17: 1, 34: -1}, {17: {1}, 34: {2}}, {34}),
        ({}, {}, {17, 34}),
    ],
)
def test_what_brokers_tell_of_a_partition_that_is_not_stuck_is_seen(
    leaders: dict[int, int], in_sync: dict[int, set[int]], unlike: set[int]
) -> None:
    view = View(frozenset({1, 2}), leaders, {partition: frozenset(ids) for partition, ids in in_sync.items()})
    found = FROZEN.unlike(view, NODES)
    assert [f"{partition=}" in " ".join(found) for partition in (17, 34)] == [one in unlike for one in (17, 34)], found


@pytest.mark.parametrize(("leader", "unlike"), [(-1, 0), (1, 1), (3, 1)])
def test_a_partition_on_the_node_that_is_harmed_alone_has_to_have_no_leader(leader: int, unlike: int) -> None:
    view = View(frozenset({1, 2}), {17: leader}, {17: frozenset({3})})
    assert len(LEADERLESS.unlike(view, NODES)) == unlike


def test_beside_a_partition_without_a_leader_fifty_keep_their_rate_and_the_rings_stay_small(
    mortal3: KafkaCluster, tmp_path: Path
) -> None:
    stall = run_stalled(mortal3, tmp_path, LEADERLESS, seconds=SECONDS, around=AROUND)
    print(stall)
    assert stall.wrong() == [], str(stall)
