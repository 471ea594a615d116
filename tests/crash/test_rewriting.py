"""Killed while the retry ring is rewritten (`rewriting`), everything arrives once and in order."""

from pathlib import Path

import pytest

from tests.crash.crash_points import REWRITING_POINTS
from tests.crash.rewriting import COPIED_AGAIN, killed_while_rewriting
from tests.support.broker import KafkaCluster

pytestmark = pytest.mark.timeout(240)

COPIED = 100  # copies of some 1,500 are copied once more when it dies there


@pytest.mark.parametrize("point", REWRITING_POINTS)
def test_killed_while_the_retry_ring_is_rewritten_everything_arrives_once_and_in_order(
    mortal3: KafkaCluster, tmp_path: Path, point: str
) -> None:
    verdict = killed_while_rewriting(mortal3, tmp_path, point, COPIED if point == COPIED_AGAIN else 1)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert (verdict.crashed, verdict.kills) == (1, 2), f"never reached: {point}"


def test_copies_that_count_before_the_rewriting_is_made_are_seen(mortal3: KafkaCluster, tmp_path: Path) -> None:
    point, fault = "when the retry ring is copied", "let_copies_count_that_were_not_made"
    verdict = killed_while_rewriting(mortal3, tmp_path, point, 1, fault)
    assert verdict.crashed == 1, f"never reached: {point}"
    assert verdict.repeats or verdict.complaints, str(verdict)
