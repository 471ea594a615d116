"""Three rings over one limit, played: any course of things keeps within it, and none ends in waiting for ever."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.wal.room import DEAD, KEPT, MAIN, RETRY, SLOTS_LEAST, Holding, Room, Shares, Way

PLENTY = 10_000
RECORDS = 4  # that fit a slot
Steps = list[tuple[object, ...]]
RINGS = (MAIN, RETRY, DEAD)
NO_DEADLINE = settings(deadline=None)  # a busy machine is no fault


@dataclass
class Played:
    """Rings whose slots hold numbers: what still waits in each. A slot that is used for nothing yet is ready."""

    slots: int
    disk: int = PLENTY  # free slots on it, above its guard
    below: int = PLENTY  # and below it
    waiting: list[list[int]] = field(default_factory=lambda: [[], [], []])  # of each slot that was written to
    ready: list[int] = field(default_factory=lambda: [0, 0, 0])
    free: list[int] = field(default_factory=lambda: [0, 0, 0])
    written: int = 0  # records in the last slot of the retry ring

    def __post_init__(self) -> None:
        self.rooms = [Room(ring, Shares(self.slots)) for ring in RINGS]

    def holdings(self) -> list[Holding]:
        return [
            Holding(len(self.waiting[ring]) + self.ready[ring], self.ready[ring], self.free[ring]) for ring in RINGS
        ]

    @property
    def allocated(self) -> int:
        return sum(holding.allocated for holding in self.holdings())

    def acquire(self, ring: int) -> bool:
        way = self.rooms[ring].take(self.holdings(), disk=self.disk)
        if way is None:
            return False
        if way is Way.FREE:
            self.free[ring] -= 1
            return True
        if way is Way.EXCHANGE:
            giver = max((other for other in RINGS if other != ring), key=lambda other: self.free[other])
            self.free[giver] -= 1
            self.disk += 1
        if self.disk == self.below == 0:
            return False
        self.disk, self.below = (self.disk - 1, self.below) if self.disk else (self.disk, self.below - 1)
        return True

    def prepare(self) -> None:
        """As the keeper does it."""
        for ring in (RETRY, DEAD, MAIN):
            if not self.ready[ring] and self.acquire(ring):
                self.ready[ring] = 1

    def write(self, ring: int, waiting: int) -> bool:
        """Fill a slot."""
        if self.ready[ring]:
            self.ready[ring] = 0
        elif not self.acquire(ring):
            return False
        self.waiting[ring].append(waiting)
        self.written = RECORDS if ring == RETRY else self.written
        return True

    def settle(self, ring: int, number: int, count: int) -> None:
        if self.waiting[ring]:
            number %= len(self.waiting[ring])
            self.waiting[ring][number] = max(0, self.waiting[ring][number] - count)

    def recycle(self) -> None:
        for ring in RINGS:
            while self.waiting[ring] and not self.waiting[ring][0]:
                del self.waiting[ring][0]
                self.free[ring] += 1

    def move(self) -> bool:
        """The oldest slot of the main ring to the retry ring, behind what was written there last."""
        if not self.waiting[MAIN]:
            return False
        count = self.waiting[MAIN][0]
        fits = min(count, RECORDS - self.written) if self.waiting[RETRY] else 0
        if count > fits and not self.write(RETRY, count - fits):
            return False
        if fits:
            self.waiting[RETRY][-1 - (count > fits)] += fits
        self.written = count - fits if count > fits else self.written + fits
        self.waiting[MAIN][0] = 0
        self.recycle()
        return True

    def bury(self) -> bool:
        """One record of the oldest slot that is refused for good."""
        if not self.waiting[MAIN] or not self.write(DEAD, 1):
            return False
        self.settle(MAIN, 0, 1)
        return True

    def fill(self) -> int:
        """Publish until there is no room; how many slots it took."""
        count = 0
        while self.write(MAIN, 3):
            count += 1
        return count


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(RINGS), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.sampled_from(RINGS), st.integers(0, 30), st.integers(1, 4)),
        st.sampled_from([("recycle",), ("prepare",), ("move",), ("bury",), ("fill",)]),
    ),
    max_size=150,
)
LIMITS = st.integers(SLOTS_LEAST, 40)


def play(world: Played, steps: Steps) -> None:
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
        assert world.allocated <= world.slots, name
        used = [holding.used for holding in world.holdings()]
        assert used[RETRY] <= world.rooms[RETRY].shares.most(RETRY)
        assert used[DEAD] <= world.rooms[DEAD].shares.most(DEAD)


def stays_within_its_limit(slots: int, steps: Steps) -> None:
    world = Played(slots)
    world.prepare()
    play(world, steps)
    world.recycle()
    while world.waiting[MAIN]:  # everything is delivered
        world.settle(MAIN, 0, RECORDS)
        world.recycle()
    assert len(world.waiting[RETRY]) + len(world.waiting[DEAD]) <= slots - KEPT[MAIN]
    assert world.fill() >= KEPT[MAIN] - world.ready[MAIN], "a part of it is kept, whatever the others hold"


def goes_on_after_delivery(slots: int, disk: int, below: int, steps: Steps) -> None:
    world = Played(slots, disk, below)
    world.prepare()
    play(world, steps)
    world.fill()
    had = len(world.waiting[MAIN])
    for ring in (MAIN, RETRY):
        for number in range(len(world.waiting[ring])):
            world.settle(ring, number, RECORDS)
    world.recycle()
    assert world.fill() >= min(1, had)


def full_behind(world: Played, letters: int) -> None:
    """A ring without room, and so many letters in the dead ring."""
    world.prepare()
    for _ in range(letters):
        world.write(DEAD, 1)
        world.prepare()
    world.fill()
    assert world.waiting[MAIN]
    world.waiting[MAIN] = [1] * len(world.waiting[MAIN])


def is_moved_to_the_last_slot(slots: int, disk: int, letters: int) -> None:
    world = Played(slots, disk, 0)
    full_behind(world, letters)
    while world.waiting[MAIN]:
        assert world.move()
        world.prepare()


def goes_on_past_stalled_lanes(slots: int, letters: int) -> None:
    world = Played(slots)
    full_behind(world, letters)
    while world.move():
        world.fill()  # whoever publishes is faster than the keeper
        world.prepare()
        world.waiting[MAIN] = [1] * len(world.waiting[MAIN])
    others = KEPT[MAIN] + max(KEPT[DEAD], world.holdings()[DEAD].used)
    assert len(world.waiting[RETRY]) == min(world.rooms[RETRY].shares.most(RETRY), slots - others)


@NO_DEADLINE
@given(LIMITS, STEPS)
def test_the_three_rings_together_never_exceed_their_limit_and_leave_the_main_ring_its_part(
    slots: int, steps: Steps
) -> None:
    stays_within_its_limit(slots, steps)


@NO_DEADLINE
@given(LIMITS, st.integers(0, 60), st.integers(0, 3), STEPS)
def test_after_any_course_of_things_settling_everything_lets_publishing_go_on(
    slots: int, disk: int, below: int, steps: Steps
) -> None:
    """From a full directory on a full disk, too: what delivery frees is enough."""
    goes_on_after_delivery(slots, disk, below, steps)


@NO_DEADLINE
@given(st.integers(8, 60), st.integers(3, 60), st.integers(0, 15))
def test_a_ring_full_of_slots_in_which_little_waits_can_be_moved_to_the_last_one(
    slots: int, disk: int, letters: int
) -> None:
    """The retry ring finds its next slot in what it has freed, also where the disk has no other."""
    is_moved_to_the_last_slot(slots, disk, letters)


@NO_DEADLINE
@given(st.integers(8, 60), st.integers(0, 15))
def test_publishing_goes_on_past_stalled_lanes_until_the_retry_ring_has_its_share(slots: int, letters: int) -> None:
    goes_on_past_stalled_lanes(slots, letters)


# -- faults ----------------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def each_ring_by_itself(patch: Patch) -> None:
    patch.setattr(Shares, "left", lambda self, ring, holdings: max(0, self.slots - holdings[ring].used))
    patch.setattr(Shares, "excess", lambda *_: 0)


def no_slot_ready_for_what_makes_room(patch: Patch) -> None:
    patch.setattr(Shares, "wanted", lambda self, ring, holding: holding.used)


def nothing_kept_for_the_main_ring(patch: Patch) -> None:
    patch.setattr(Shares, "kept", lambda self, ring: int(ring != MAIN))
    patch.setattr(Shares, "most", lambda self, ring: self.slots)


def nothing_exchanged(patch: Patch) -> None:
    take = Room.take
    patch.setattr(Room, "take", lambda self, holdings, *, disk: take(self, holdings, disk=disk, exchange=False))


def no_end_of_being_full(patch: Patch) -> None:
    patch.setattr(Room, "_low", lambda self, allocated: allocated + 1)


def courses(seed: int) -> Steps:
    """One course of things that fills all three."""
    chance = random.Random(seed)
    steps: Steps = []
    for _ in range(60):
        steps.append(("write", chance.choice(RINGS), chance.randint(1, RECORDS)))
        steps += chance.sample([("recycle",), ("prepare",), ("move",), ("bury",), ("settle", MAIN, 0, 2)], 2)
    return steps


def all_hold() -> bool:
    """What the properties above say, for a few courses of things."""
    try:
        for seed in range(10):
            stays_within_its_limit(12, courses(seed))
            goes_on_after_delivery(12, 9, 2, courses(seed))
            is_moved_to_the_last_slot(20, 12, seed)
            goes_on_past_stalled_lanes(20, seed)
    except AssertionError:
        return False
    return True


def test_as_it_is_all_of_it_holds() -> None:
    assert all_hold()


@pytest.mark.parametrize(
    "fault",
    [
        each_ring_by_itself,
        no_slot_ready_for_what_makes_room,
        nothing_kept_for_the_main_ring,
        nothing_exchanged,
        no_end_of_being_full,
    ],
)
def test_each_fault_in_the_shares_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    assert not all_hold()


# -- opened beyond the limit -----------------------------------------------------------------------------------------


@NO_DEADLINE
@given(st.integers(SLOTS_LEAST, 40), st.integers(0, 80), st.integers(0, 30), st.integers(0, 30), STEPS)
def test_a_directory_opened_beyond_its_limit_only_shrinks_but_for_what_is_kept(
    slots: int, main: int, retry: int, dead: int, steps: Steps
) -> None:
    world = Played(slots)
    world.waiting = [[3] * main, [3] * retry, [1] * dead]
    most = max(slots, main + retry + dead + SLOTS_LEAST)
    for name, *arguments in [("prepare",), *steps]:
        getattr(world, str(name))(*arguments)
        assert world.allocated <= most, name
    while world.waiting[MAIN]:
        world.settle(MAIN, 0, 4)
        world.recycle()
    assert world.fill() >= 1, "a lower limit lets publishing go on as well, once the ring is delivered"
