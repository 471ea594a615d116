"""Killed at each step of a letter: a poison record is a dead letter once, a good one in its topic once and in order.

The steps go from a refusal to the copy in the dead-letter topic. Poison that its topic takes by the time of the next
life stands there, and is no dead letter.
"""

from pathlib import Path

import pytest

from tests.crash.crash_points import LETTER_POINTS, MENDED_POINTS
from tests.crash.letters import of_letters
from tests.crash.refusing import Refusing
from tests.support.broker import Cluster, TopicFactory

TIMES = 3  # the third letter, or copy, of a life is the one at which it dies


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_killed_at_each_step_of_a_letter_every_poison_record_is_one_and_the_good_ones_arrive_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, *, exactly_once: bool
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=exactly_once)
    for point in LETTER_POINTS:
        assert refusing.dies_at(point, TIMES), f"never reached: {point} {TIMES} times"
    fates = refusing.fates()
    print(fates)
    assert fates.wrong() == []
    assert fates.came_through == 0
    assert fates.letters >= TIMES * len(LETTER_POINTS) // 2
    assert fates.letters <= fates.copies <= fates.letters + len(LETTER_POINTS)


@pytest.mark.parametrize("fault", [None, "leave_letters_of_what_came_through"])
def test_what_its_topic_takes_after_all_is_no_dead_letter_any_more(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, fault: str | None
) -> None:
    refusing = Refusing(kafka, topic, tmp_path)
    assert refusing.dies_at("when a letter is put", 1)
    (letter,) = of_letters(refusing.scenario)
    refusing.mend()
    fates = refusing.fates(fault)
    print(fates)
    assert fates.came_through >= 3
    assert fates.both == ([] if fault is None else [letter])
    assert fates.wrong() == [] or fault is not None


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("point", MENDED_POINTS)
def test_killed_as_soon_as_it_is_none_any_more_its_record_arrives_once(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, point: str, *, exactly_once: bool
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=exactly_once)
    assert refusing.dies_at("when a letter is flushed", 1)
    refusing.mend()
    assert refusing.dies_at(point, 1)
    fates = refusing.fates()
    print(fates)
    assert fates.wrong() == []
    assert (fates.letters, fates.came_through > 0) == (0, True)


@pytest.mark.parametrize("fault", [None, "leave_letters_of_what_came_through"])
def test_in_transactions_it_is_none_though_who_has_committed_it_dies_before_it_settles(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, fault: str | None
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=True)
    assert refusing.dies_at("when a letter is flushed", 1)
    letters = of_letters(refusing.scenario)
    assert letters
    refusing.mend()
    assert refusing.dies_at("after the commit", 2, fault)  # the first one holds nothing but the position
    fates = refusing.fates()
    print(fates)
    assert set(fates.both) <= letters.keys()  # of as many as were in that transaction
    assert bool(fates.both) == (fault is not None)
    assert fates.wrong() == [] or fault is not None


def test_a_record_that_a_kill_leaves_without_a_letter_is_missed(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    refusing = Refusing(kafka, topic, tmp_path)
    assert refusing.dies_at("when a refused record is settled", 1, "bury_behind_settling")
    fates = refusing.fates()
    print(fates)
    assert len(fates.verdict.missing) == 1
