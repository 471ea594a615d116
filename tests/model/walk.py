"""Random walks over lives and crashes; short scripts as their beginnings, and chains of them."""

import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from unittest.mock import patch

from aiorecover.errors import WalIOError
from aiorecover.ring import lane as lanes
from aiorecover.ring import loading
from aiorecover.testing.memory_disk import UNITS
from tests.model.disk import BadError, Crash, MemoryFiles
from tests.model.kafka import PARTITIONS, TOPIC
from tests.model.life import Life
from tests.model.process import ALWAYS, BLIND, READBACK, World
from tests.model.scripts import SCRIPTS

KILL, POWER, FAIL = "k", "p", "f"
FAR = 1 << 60
SIZES = (0, 0, 0, 0, 120, 300, 700, 3000, 5000, 9000)
HOWS = (0, 0, 0, 1, 2, 3)


class Plan(NamedTuple):
    """How to walk. ``chain``: (script, end) of each life; empty: lives and ends are drawn.

    A script "early+x" flushes before the recovery and goes on with x; "early" dies there. "fail": its flush fails.
    ``kinds``: ends to draw from, k kill -9, p power cut, f a flush that fails before one of them.
    """

    kinds: str = "kpf"
    chain: tuple[tuple[str, str], ...] = ()
    scripts: tuple[str, ...] = tuple(SCRIPTS)
    theme: float = 0.6  # how often a life begins with a script
    crash: int = 0  # steps within which the first life of a chain dies, others at their end; 0: any may die; -1: none
    operations: int = 20
    mode: str = ""
    unit: int = 0
    lives: int = 3
    big: float = 0.05  # how often a record is large
    damage: float = 0.01  # how often a batch is damaged as a life ends
    age: float = 0.03  # how often a day passes after kill -9
    crowd: float = 0.02  # how often a checkpoint finds no room
    known: float = 0.7  # how often the topic's partitions are known at first


class Outcome(NamedTuple):
    """The result of a walk; ``error`` is empty where it has found no broken promise."""

    seed: int
    plan: Plan
    error: str
    steps: int
    trace: list[str]


@contextmanager
def small() -> Iterator[None]:
    """Scale the package down: two batches of a lane have objects, small batches. Silence its log."""
    logger = logging.getLogger("aiorecover")
    silent, logger.disabled = logger.disabled, True
    with patch.object(lanes, "LOADED", 2), patch.object(loading, "LOADED", 2), patch.object(lanes, "LEAST_BATCH", 256):
        try:
            yield
        finally:
            logger.disabled = silent


def walk(seed: int, plan: Plan = Plan(), *, tracing: bool = False) -> Outcome:  # noqa: B008 - it is immutable
    """Walk once; within `small`."""
    rng = random.Random(seed)
    files = MemoryFiles(rng, plan.unit or rng.choice(UNITS))
    trace: list[str] = []
    world = World(files, plan.mode or rng.choice((ALWAYS, READBACK, READBACK, BLIND)), trace if tracing else None)
    error = ""
    try:
        _Walk(world, plan).run()
    except BadError as bad:
        error = str(bad)
    except Exception as raised:  # noqa: BLE001 - whatever the package raises is a finding
        error = f"RAISED {raised!r}"
        trace += traceback.format_exc().splitlines()
    if world.doubtful:
        error = ""
    return Outcome(seed, plan, error, files.disk.steps, trace)


def shortest(found: Outcome, plan: Plan, tries: int = 300) -> Outcome:
    """Return the trace of a finding of this kind in the fewest steps that some more walks come upon."""
    best = found
    kind = found.error.split()[0]
    for number in range(tries):
        tried = walk(found.seed + number, plan._replace(operations=4 + number % 12, lives=1 + number % 3))
        if tried.error.startswith(kind) and tried.steps < best.steps:
            best = tried
    return walk(best.seed, best.plan, tracing=True)


class _Walk:
    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan, self.rng = world, plan, world.rng
        self.bad = 0.1 if self.rng.random() < 0.5 else 0.0
        self.known = bool(plan.chain) or self.rng.random() < plan.known
        self.weights: list[float] = []
        self.failing = False

    def run(self) -> None:
        plan, rng, disk = self.plan, self.rng, self.world.files.disk
        chain = plan.chain or [("", rng.choice(plan.kinds)) for _ in range(rng.randint(1, plan.lives))]
        for number, (script, end) in enumerate(chain):
            self.failing = end == FAIL
            far = rng.choice((12, 60, 250, 250, 1000)) if not plan.chain else rng.choice((100, 300, 600))
            lives_on = plan.chain and rng.random() < 0.5
            if plan.crash:
                far, lives_on = max(1, plan.crash), number > 0 or plan.crash < 0
            disk.crash_at = FAR if lives_on else disk.steps + rng.randint(1, far)
            with suppress(Crash, WalIOError):  # the latter: the opening has failed
                self._live(script)
            disk.crash_at = FAR
            self._end(end)
        for _ in range(2):
            life = Life(self.world)
            try:
                life.recover()
            except WalIOError:
                continue
            break
        life.finish()
        life.verify()

    def _end(self, kind: str) -> None:
        world, rng = self.world, self.rng
        world.files.fail = world.files.failed = False
        world.files.no_room = 0
        if kind == POWER or (kind == FAIL and rng.random() < 0.5):
            world.log("POWER CUT")
            world.files.power_cut()
            world.promises.power_cut()
            world.kafka.section += 1
            world.kafka.delayed.clear()
            world.cut, world.aged = True, False
            return
        world.log("KILL -9")
        if rng.random() < self.plan.age:
            world.log("a day later")
            world.files.clock_ms += 25 * 3600 * 1000
            world.kafka.batches.clear()
            world.kafka.delayed.clear()
            world.aged = True

    def _live(self, script: str) -> None:  # noqa: C901 - what a life goes through
        rng = self.rng
        self.weights = [weight * (rng.random() + 0.1) for weight in (4, 1, 3, 0.7, 0.8, 0.3, 0.2, 0.5, 0.2, 0.1)]
        life = Life(self.world)
        if self.known and not life.left:
            life.metadata()
        fails = script == "fail"  # in the recovery
        if fails:
            life.files.fail, script = True, "published"
        early, script = script.startswith("early"), script.removeprefix("early").removeprefix("+")
        if early:
            life.files.clock_ms += 5000
            SCRIPTS["published"](life)
            if not script:
                return
        elif life.left and rng.random() < 0.3 and not self.world.excused:
            self._some(life, 3)
        if rng.random() < 0.05 * self.failing:
            self.world.files.fail = True
        calm = self.world.excused or rng.random() < 0.7
        life.recover(None if calm else lambda: self._some(life, 2))
        if script or rng.random() < self.plan.theme:
            SCRIPTS[script or rng.choice(self.plan.scripts)](life)
        if rng.random() < self.plan.crowd:
            self.world.files.no_room, self.world.crowded = rng.randint(1, 3), True
        for _ in range(0 if script else self.plan.operations):
            self._operate(life)
        life.check_counts()
        if rng.random() < self.plan.damage:
            life.damage()

    def _some(self, life: Life, most: int) -> None:
        for _ in range(self.rng.randint(0, most)):
            self._operate(life)

    def _operate(self, life: Life) -> None:  # noqa: C901, PLR0912 - a table of operations
        rng = self.rng
        which = rng.choices(range(10), self.weights)[0]
        if which == 0:
            size = rng.choice(SIZES) if rng.random() < self.plan.big else 0
            note = rng.choice((1, 1, 2)) if rng.random() < 0.25 else 0
            life.publish(rng.choice((0, 0, 2, 1)), bad=rng.random() < self.bad, note=note, size=size)
        elif which == 1 or (which == 2 and life.wanted):
            before = (lambda: self._some(life, 1)) if rng.random() < 0.3 else None
            life.flush(fail=self.failing and rng.random() < 0.3, meanwhile=lambda: self._some(life, 2), before=before)
        elif which == 2:
            life.send(rng.randrange(PARTITIONS), rng.choice(HOWS))
        elif which == 3:
            life.assign()
        elif which == 4:
            life.rewrite_on()
        elif which == 5:
            life.tidy(rng.choice((0, 0, 1, 3)))
        elif which == 6:
            life.metadata()
        elif which == 7:
            lane = life.ring.lane(TOPIC, rng.randrange(PARTITIONS))
            if lane.published.index:
                lane.published.seal()
            elif not life.ring.recovering:
                life.load(lane, lambda: self._some(life, 1))
        elif which == 8:
            life.abandon() if rng.random() < 0.5 else life.purge()
        elif life.kafka.delayed:
            life.kafka.arrive()
        else:
            self.world.files.clock_ms += rng.choice((1, 30, 2000))
