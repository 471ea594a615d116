"""Killed around requests while a topic refuses some: a poison record is a dead letter once, a good one arrives once.

Poison that its topic takes by the time of the next life stands there, and is no dead letter.
"""

from pathlib import Path

import pytest

from tests.crash.crash_points import POINTS
from tests.crash.letters import of_letters
from tests.crash.refusing import Refusing
from tests.support.broker import Cluster, TopicFactory

TIMES = (2, 5, 9)  # the request at which a life dies: a batch that is refused, a half of it, or a copy
OTHERS = len(POINTS) * len(TIMES)  # lives


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_killed_again_and_again_every_poison_record_is_a_letter_and_the_good_ones_arrive_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, *, exactly_once: bool
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=exactly_once)
    for point in POINTS:
        for times in TIMES:
            assert refusing.dies_at(point, times), f"never reached: {point} {times} times"
    fates = refusing.fates()
    print(fates)
    assert fates.wrong() == []
    assert fates.came_through == 0
    assert fates.letters >= 2  # those of the last life
    assert fates.letters <= fates.copies <= fates.letters + OTHERS


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_what_its_topic_takes_after_all_is_no_dead_letter_any_more(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, *, exactly_once: bool
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=exactly_once)
    for times in (5, 9):
        assert refusing.dies_at("before the answer is read", times)
    held = of_letters(refusing.scenario)
    refusing.mend()
    fates = refusing.fates()
    print(fates)
    assert fates.came_through >= 2
    assert fates.letters <= len(held)
    assert fates.wrong() == []
