"""What a seed says of who dies where; the long run is `make prove WHAT=steps`."""

from pathlib import Path

import pytest

from tests.crash.crash_points import (
    DRAINING_POINTS,
    LETTER_POINTS,
    MENDED_POINTS,
    MOVING_POINTS,
    OPENINGS,
    POINTS,
    REWRITING_POINTS,
    STALLED_POINTS,
    TRANSACTION_OPENINGS,
    TRANSACTION_POINTS,
)
from tests.crash.steps import KINDS, Drawn, draw, play
from tests.support.broker import KafkaCluster

SEEDS = range(3_000)
WHERE = {
    "stall": STALLED_POINTS,
    "move": MOVING_POINTS,
    "drain": DRAINING_POINTS,
    "rewriting": REWRITING_POINTS,
    "letter": LETTER_POINTS,
    "mended": MENDED_POINTS,
    "adopting": POINTS | OPENINGS,
    "adopting in transactions": TRANSACTION_POINTS | TRANSACTION_OPENINGS | OPENINGS,
    "adopting a stall": {"when a lane is passed over", *MOVING_POINTS, *DRAINING_POINTS},
    "adopting letters": LETTER_POINTS,
}


def test_seeds_that_follow_each_other_take_turns_in_the_scenarios_and_a_seed_says_the_same_again() -> None:
    assert [draw(seed).kind for seed in SEEDS[: len(KINDS)]] == [*KINDS]
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_scenario_is_drawn_once_and_more_often(kind: str) -> None:
    drawn = [one for one in map(draw, SEEDS) if one.kind == kind]
    assert {point for one in drawn for point, _ in one.steps} == {*WHERE[kind]}
    assert {len(one.steps) for one in drawn} == {*range(1, KINDS[kind].deaths + 1)}
    assert {one.exactly_once for one in drawn} == ({True, False} if KINDS[kind].both else {False})
    for point in WHERE[kind]:
        times = {count for one in drawn for name, count in one.steps if name == point}
        assert min(times) >= 1
        assert max(times) <= KINDS[kind].more.get(point, KINDS[kind].most)


@pytest.mark.timeout(240)
def test_who_dies_one_after_the_other_in_one_directory_leaves_every_record_once_and_in_order(
    mortal3: KafkaCluster, tmp_path: Path
) -> None:
    steps = [("when a letter is put", 2), ("when a refused record is settled", 1)]
    verdict = play(mortal3, tmp_path, Drawn("letter", steps, exactly_once=False))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert (verdict.crashed, verdict.kills) == (len(steps), len(steps))
