"""Killed at each step of a letter: a poison record is a dead letter once, a good one in its topic once and in order.

The steps go from a refusal to the copy in the dead-letter topic. Poison that its topic takes by the time of the next
life stands there, and is no dead letter.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.crash_points import LETTER_POINTS, MENDED_POINTS
from tests.crash.letters import Fates, copy_of, examine_letters, of_letters
from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario
from tests.support.admin import configure_topic, run, until_taken_without_key
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

LANES = 3
POISON = 40  # one record in so many
RATE = 2_000
TIMES = 3  # the third letter, or copy, of a life is the one at which it dies
COMPACTED = {"cleanup.policy": "compact"}
MENDED = {"cleanup.policy": "delete", "retention.ms": "-1"}
_DIES_WITHIN_S = 30.0  # it takes a fraction of a second
_COPIED_WITHIN_S = 10.0
_LOOK_S = 0.1


class Refusing:
    """Lives of one directory that publish to a topic that refuses some of it."""

    def __init__(self, kafka: Cluster, topic: TopicFactory, directory: Path, *, exactly_once: bool = False) -> None:
        self.topic, self.dead = (topic(kafka, LANES, config=COMPACTED), topic(kafka, 1))
        self.scenario = Scenario(kafka, directory, lanes=LANES, topic=self.topic, exactly_once=exactly_once)
        self.servers = kafka.bootstrap_servers
        self._probe = topic(kafka, 1, config=COMPACTED)

    def life(self, *steps: Any, **task: Any) -> Child:
        return self.scenario.life(*steps, poison=POISON, dead_letter_topic=self.dead, **task)

    def dies_at(self, point: str, times: int = TIMES, fault: str | None = None) -> None:
        child = self.life(("publish", {"rate": RATE}), crash=(point, times), fault=fault)
        assert child.wait_dead(_DIES_WITHIN_S), f"never reached: {point} {times} times"
        self.scenario.ledger.take(child)

    def mend(self) -> None:
        """The topic takes what it has refused."""
        for name in (self.topic, self._probe):
            run(configure_topic(self.servers, name, MENDED))
        run(until_taken_without_key(self.servers, self._probe))  # what is told of later is heeded later

    def fates(self, fault: str | None = None) -> Fates:
        """A last life delivers, buries and copies what is left."""
        child = self.life(("publish", {"count": 2 * POISON}), FLUSH, ("wait", {}), FLUSH, fault=fault)
        child.wait_for("wait")
        self._wait_copied(of_letters(self.scenario))
        child.tell()
        self.scenario.finish(child)
        return examine_letters(self.scenario, self.dead)

    def _wait_copied(self, letters: dict[str, int]) -> None:
        """As `flush` waits for no copy. What is not there in time is told by who judges."""
        until = time.monotonic() + _COPIED_WITHIN_S
        while time.monotonic() < until:
            copies = run(read_topic(self.servers, self.dead, isolation_level=self.scenario.isolation_level))
            if letters.keys() <= {copy_of(copy) for copy in copies}:
                return
            time.sleep(_LOOK_S)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_killed_at_each_step_of_a_letter_every_poison_record_is_one_and_the_good_ones_arrive_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, *, exactly_once: bool
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=exactly_once)
    for point in LETTER_POINTS:
        refusing.dies_at(point)
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
    refusing.dies_at("when a letter is put", 1)
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
    refusing.dies_at("when a letter is flushed", 1)
    refusing.mend()
    refusing.dies_at(point, 1)
    fates = refusing.fates()
    print(fates)
    assert fates.wrong() == []
    assert (fates.letters, fates.came_through > 0) == (0, True)


@pytest.mark.parametrize("fault", [None, "leave_letters_of_what_came_through"])
def test_in_transactions_it_is_none_though_who_has_committed_it_dies_before_it_settles(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, fault: str | None
) -> None:
    refusing = Refusing(kafka, topic, tmp_path, exactly_once=True)
    refusing.dies_at("when a letter is flushed", 1)
    letters = of_letters(refusing.scenario)
    assert letters
    refusing.mend()
    refusing.dies_at("after the commit", 2, fault)  # the first one holds nothing but the position
    fates = refusing.fates()
    print(fates)
    assert set(fates.both) <= letters.keys()  # of as many as were in that transaction
    assert bool(fates.both) == (fault is not None)
    assert fates.wrong() == [] or fault is not None


def test_a_record_that_a_kill_leaves_without_a_letter_is_missed(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    refusing = Refusing(kafka, topic, tmp_path)
    refusing.dies_at("when a refused record is settled", 1, "bury_behind_settling")
    fates = refusing.fates()
    print(fates)
    assert len(fates.verdict.missing) == 1
