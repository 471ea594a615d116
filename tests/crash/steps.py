"""Steps of a stall, a move, a rewriting, a letter and an adoption at which a process dies, drawn from a seed.

The scenarios are those of `stalling`, `rewriting`, `refusing` and `adopting`. A seed says which one it is, at which of
its steps somebody dies, and the how manieth time it is reached; some die one after the other in one directory. Seeds
that follow each other take turns in the scenarios.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.crash.adopting import FIRST, adopter, dies_adopting, left_alone, let_go, until_adopted
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
from tests.crash.judgement import Verdict
from tests.crash.letters import examine_letters
from tests.crash.refusing import COMPACTED, POISON, Refusing
from tests.crash.rewriting import COPIED_AGAIN, killed_while_rewriting
from tests.crash.scenario import Scenario
from tests.crash.stalling import PARTITIONS, PASSED_OVER, dies_beside_a_stall, placed_topic, stuck
from tests.support.broker import Cluster, KafkaCluster

__all__ = ["KINDS", "Drawn", "draw", "play"]

_LANES = 6
_LEFT = 1_500  # records that a worker leaves: some 16 slots, and 25 batches of each lane
_LEFT_STALLED = 15_000  # of which a sixth is for the partition that is stuck
_COPIES = "when a record is copied"  # some of each slot
_SOON = {"before a checkpoint": 5, "before a checkpoint is flushed": 5, "after a checkpoint": 5}  # they take a second


class Drawn(NamedTuple):
    """What a seed says."""

    kind: str
    steps: Sequence[tuple[str, int]]
    """Who dies one after the other: at which point, when it is reached for which time."""
    exactly_once: bool
    """In transactions, where the kind can be had with both guarantees."""

    def __str__(self) -> str:
        guarantee = " in transactions" if self.exactly_once else ""
        return f"{self.kind}{guarantee}: {', '.join(f'{point} ({times})' for point, times in self.steps)}"


@dataclass(frozen=True)
class Kind:
    """A scenario."""

    points: Sequence[str]
    play: Callable[[KafkaCluster, Path, Drawn], Verdict]
    deaths: int = 1
    """At most."""
    most: int = 1
    """How many times a point is reached at most when somebody dies there; all have to be reached that often."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Points of which this is another number."""
    both: bool = False
    """With either guarantee."""


def draw(seed: int) -> Drawn:
    """What happens with a seed; the next one has the next kind."""
    rng = random.Random(seed)
    name = [*KINDS][seed % len(KINDS)]
    kind = KINDS[name]
    points = rng.choices(kind.points, k=rng.randint(1, kind.deaths))
    steps = [(point, rng.randint(1, kind.more.get(point, kind.most))) for point in points]
    return Drawn(name, steps, kind.both and rng.random() < 0.5)


def play(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    """Let it happen, and judge; `Verdict.crashed` tells who came as far as to die, and all nodes are well again."""
    try:
        return KINDS[drawn.kind].play(cluster, directory, drawn)
    finally:
        cluster.heal()


def _beside_a_stall(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    scenario = Scenario(cluster, directory, lanes=PARTITIONS, topic=placed_topic(cluster))
    for point, times in drawn.steps:
        dies_beside_a_stall(scenario, point, times)
    cluster.heal()
    return scenario.verdict()


def _rewriting(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    ((point, times),) = drawn.steps
    return killed_while_rewriting(cluster, directory, point, times)


def _letters(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    refusing = Refusing(cluster, _new_topic, directory, exactly_once=drawn.exactly_once)
    for point, times in drawn.steps:
        refusing.dies_at(point, times)
    return refusing.fates().whole()


def _mended(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    """As many letters as are drawn are there before the topic takes what it has refused."""
    ((point, letters),) = drawn.steps
    refusing = Refusing(cluster, _new_topic, directory, exactly_once=drawn.exactly_once)
    refusing.dies_at("when a letter is flushed", letters)
    refusing.mend()
    refusing.dies_at(point, 1)
    return refusing.fates().whole()


def _adopting(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    exactly_once = drawn.kind == "adopting in transactions"
    scenario = Scenario(cluster, directory, lanes=_LANES, exactly_once=exactly_once)
    for point, times in drawn.steps:
        left_alone(scenario, _LEFT)
        dies_adopting(scenario, point, times)
    return until_adopted(scenario, adopter(scenario))


def _adopting_a_stall(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    """Some die while there is no leader, the others once its node is back."""
    scenario = Scenario(cluster, directory, lanes=_LANES, topic=placed_topic(cluster, _LANES))
    left_alone(scenario, _LEFT_STALLED)
    stuck(cluster).kill()
    for point, times in sorted(drawn.steps, key=lambda step: step[0] in DRAINING_POINTS):
        if point in DRAINING_POINTS:
            cluster.heal()
        dies_adopting(scenario, point, times)
    cluster.heal()
    return until_adopted(scenario, adopter(scenario))


def _adopting_letters(cluster: KafkaCluster, directory: Path, drawn: Drawn) -> Verdict:
    refusing, dead = _new_topic(cluster, _LANES, config=COMPACTED), _new_topic(cluster, 1)
    scenario = Scenario(cluster, directory, lanes=_LANES, topic=refusing)
    for point, times in drawn.steps:
        left_alone(scenario, _LEFT, poison=POISON, dead_letter_topic=dead)
        dies_adopting(scenario, point, times, poison=POISON, dead_letter_topic=dead)
    let_go(scenario, adopter(scenario, poison=POISON, dead_letter_topic=dead))
    return examine_letters(scenario, dead).whole()


def _new_topic(
    cluster: Cluster, partitions: int = 6, *, replication: int | None = None, config: Mapping[str, str] | None = None
) -> str:
    name = f"steps-{os.urandom(4).hex()}"
    cluster.create_topic(name, partitions, replication, config)
    return name


KINDS: Final[dict[str, Kind]] = {
    "stall": Kind([*STALLED_POINTS], _beside_a_stall, more={"in the middle of catching up": 20}),
    "move": Kind([*MOVING_POINTS], _beside_a_stall, most=40, more={_COPIES: 500}),
    "drain": Kind([*DRAINING_POINTS], _beside_a_stall, most=4),
    "rewriting": Kind([*REWRITING_POINTS], _rewriting, more={COPIED_AGAIN: 1_000}),
    "letter": Kind([*LETTER_POINTS], _letters, deaths=3, most=40, both=True),
    "mended": Kind([*MENDED_POINTS], _mended, most=10, both=True),
    "adopting": Kind([*POINTS, *OPENINGS], _adopting, deaths=3, most=20, more={**_SOON, **FIRST}),
    "adopting in transactions": Kind(
        [*TRANSACTION_POINTS, *TRANSACTION_OPENINGS, *OPENINGS], _adopting, deaths=3, most=3, more=FIRST
    ),
    "adopting a stall": Kind(
        [PASSED_OVER, *MOVING_POINTS, *DRAINING_POINTS],
        _adopting_a_stall,
        deaths=3,
        most=6,
        more={PASSED_OVER: 1, _COPIES: 100, **dict.fromkeys(DRAINING_POINTS, 1)},
    ),
    "adopting letters": Kind([*LETTER_POINTS], _adopting_letters, deaths=3, most=20),
}
