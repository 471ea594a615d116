"""Every way through a scenario, every crash on it, every state that the crash may leave, judged.

A scenario is one program for each life of the process. Of the last life, and of each before it, every moment is
crashed: by the death of the process (everything stored is there) and by a power cut (every product of sector versions).
Each distinct state that judging passed is where the next life's program begins. What was already seen is not looked at
twice: a state is its bytes and what is known of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from aiorecover.wal.checkpoint import COPY_BYTES
from tests.protocols.oracle import Facts, Observation, ViolationError, after, demand, judge, judge_identity
from tests.protocols.sectors import SECTOR, Image, certain, power_cuts, states
from tests.protocols.world import EndedError, Moment, State, World, observe

Program = Callable[[World], None]
MOST = 200_000  # states of one moment: what has more is no small case any more, and its program must be made smaller


class ReachedError(Exception):
    """As many states were judged as were asked for, and there are more."""


@dataclass(frozen=True)
class Scenario:
    """Programs of consecutive lives; ``kills`` and ``cuts``: which ends the lives before the last one may have.

    ``rot``: after each power cut, either copy of the checkpoint may be damaged too, or both. ``told``: no life follows
    upon one that died of a failed flush before it left word of it (what that may cost stands in the docstring of
    ``aiorecover.wal``, among the limitations). ``in_flight``: batches are written down, and the file `lanes` is one of
    those whose states are enumerated.
    """

    name: str
    lives: Sequence[Program]
    max_slots: int = 8
    kills: bool = True
    cuts: bool = True
    rot: bool = False
    told: bool = False
    in_flight: bool = False


@dataclass
class Count:
    """What was enumerated."""

    ways: int = 0
    moments: int = 0
    states: int = 0
    openings: int = 0  # distinct images, opened and read


@dataclass
class Explorer:
    """Of one scenario."""

    scenario: Scenario
    most: int | None = None  # states; None: all
    count: Count = field(default_factory=Count)
    _judged: set[object] = field(default_factory=set)
    _seen: dict[object, Observation] = field(default_factory=dict)

    def run(self) -> Count:
        """All of it.

        Raises:
            ViolationError: a promise was broken; the message says where.

        """
        self._live([State()], 0)
        return self.count

    def _live(self, begins: Sequence[State], life: int) -> None:
        for begin in begins:
            following: dict[State, None] = {}
            for moment, label in self._moments(begin, life).items():
                self.count.moments += 1
                for images, power in self._ends(moment):
                    seen = self._judge(images, moment, begin.boots + power, label, power=power)
                    if seen is not None and self._goes_on(life, moment.facts, power=power):
                        facts = after(moment.facts, seen, power=power)
                        spans = tuple(map(certain, images)) if power else moment.spans
                        following[State(spans, facts, begin.boots + power)] = None
            if following:
                self._live(list(following), life + 1)

    def _goes_on(self, life: int, facts: Facts, *, power: bool) -> bool:
        if self.scenario.told and facts.untold and not power:
            return False
        return life + 1 < len(self.scenario.lives) and (self.scenario.cuts if power else self.scenario.kills)

    def _moments(self, begin: State, life: int) -> dict[Moment, str]:
        """Of every way through the program."""
        moments: dict[Moment, str] = {}
        for world in ways(self.scenario, begin, life):
            self.count.ways += 1
            moments |= {moment: label for moment, label in world.moments.items() if moment not in moments}
        return moments

    @staticmethod
    def _ends(moment: Moment) -> Iterator[tuple[tuple[Image, ...], bool]]:
        yield tuple(span.live for span in moment.spans), False
        if states(moment.spans) > MOST:
            raise ValueError(f"the program is too large to be enumerated states={states(moment.spans)}")
        for images in power_cuts(moment.spans):
            yield images, True

    def _judge(
        self, images: tuple[Image, ...], moment: Moment, boots: int, label: str, *, power: bool
    ) -> Observation | None:
        """What is found there; None where the same was judged before."""
        facts = moment.facts
        key = (images, boots, facts, power, None if power else moment.spans)
        if key in self._judged:
            return None
        if self.most is not None and self.count.states >= self.most:
            raise ReachedError
        self._judged.add(key)
        self.count.states += 1
        try:
            seen = self._observe(images, boots)
            judge(facts, seen, power=power)
            if power and self.scenario.rot:
                self._judge_rot(images, facts, boots)
        except Exception as error:
            end = "power cut" if power else "kill"
            told = _told(facts)
            raise ViolationError(f"{error} [{self.scenario.name}, {end} at {label!r}, {told}]") from error
        return seen

    def _judge_rot(self, images: tuple[Image, ...], facts: Facts, boots: int) -> None:
        """One good copy of the checkpoint is enough; with none, what was accepted is found all the same."""
        places = 0, COPY_BYTES // SECTOR
        for rotten in (places[:1], places[1:], places):
            sectors = tuple((at, b"rot" + held[3:] if at in rotten else held) for at, held in images[1].sectors)
            seen = self._observe((images[0], Image(images[1].size, sectors), *images[2:]), boots)
            if len(rotten) == 1:  # nothing else may know of an epoch without a durable frame
                judge_identity(facts, seen, power=True)
            gone = facts.must(power=True) - set(seen.positions)
            demand(not gone, "no copy of the checkpoint is needed to find a record", sorted(gone), rotten)

    def _observe(self, images: tuple[Image, ...], boots: int) -> Observation:
        key = (images, boots)
        if key not in self._seen:
            self.count.openings += 1
            self._seen[key] = observe(images, boots, self.scenario.max_slots)
        return self._seen[key]


def ways(scenario: Scenario, begin: State, life: int) -> Iterator[World]:
    """The program of that life, once for each sequence of choices."""
    program = scenario.lives[life]
    prefixes: list[list[int]] = [[]]
    while prefixes:
        prefix = prefixes.pop()
        world = World(begin, prefix, life=life, max_slots=scenario.max_slots, in_flight=scenario.in_flight)
        try:
            world.at("before opening")
            with suppress(EndedError):
                program(world)
            world.at("the end")
        finally:
            world.close()
        taken = [choice for choice, _ in world.choices]
        for number in range(len(prefix), len(taken)):
            prefixes += [[*taken[:number], other] for other in range(1, world.choices[number][1])]
        yield world


@cache
def _name(facts: Facts) -> dict[tuple[int, int], str]:
    return facts.names


def _told(facts: Facts) -> str:
    names = _name(facts)
    return f"log={[names.get(position) for position in facts.log]} accepted={len(facts.accepted)}"
