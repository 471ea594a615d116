"""A batch in flight whose slot is moved to the retry ring meanwhile: the next opening finds it where it counts."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import RecordMetadata

from aiorecover.config import Config
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery import delivery as delivery_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.journal import Doubt
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.moves import Moves
from aiorecover.delivery.resume import rebuild
from aiorecover.errors import WalIOError
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import FileSystem
from tests.delivery.stand_in import StandIn
from tests.delivery.test_resume import IDENTITY, NOW, OLDEST_TRUSTED, loses_lanes, payload, records_of, taken
from tests.support.eventually import until
from tests.wal.rig import Opened, read


class Mover:
    """Moves the oldest slot of a directory to the retry ring, a step at a time."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened

    def copy(self) -> None:
        directory = self.opened.directory
        self.move = Move(self.opened.ring, directory.retry, self.opened.ring.live[0])
        directory.copies_from = self.move.copies_from
        while not self.move.step():
            pass

    def make(self) -> None:
        directory = self.opened.directory
        captured = directory.next_checkpoint(moved=self.move.slot.last_position)
        directory.write_checkpoint(captured)
        directory.copies_from = None
        self.move.finish()
        self.opened.reader.close()
        directory.recycle(captured)

    def copy_again(self) -> None:
        """The retry ring is rewritten."""
        directory = self.opened.directory
        self.rewriting = Rewrite(directory.retry)
        directory.copies_from = self.rewriting.copies_from
        while not self.rewriting.step():
            pass

    def make_again(self) -> None:
        directory = self.opened.directory
        captured = self.rewriting.captured(directory)
        directory.write_checkpoint(captured)
        directory.copies_from = None
        self.rewriting.finish()
        directory.recycle(captured)

    def abandon(self) -> None:
        self.move.abandon()
        self.opened.directory.copies_from = None


class Moving(Mover):
    """The slot of a batch in flight is moved to the retry ring, up to a step of the test's choice."""

    def __init__(self, first: int = 5) -> None:
        super().__init__(Opened())
        self.opened.append(*(payload(number, 300) for number in range(20)))
        self.opened.fill_slot(payload(20, 300))
        self.opened.fill_slot(payload(21, 300))
        entries = self.opened.read()
        self.entries = entries[first : first + 10]
        self.opened.settle(entries[:first])
        self.lane = Lane("t", 3)
        self.lane.resume(39, 0)
        self.lane.identity, self.lane.sequence = IDENTITY, 40
        batch = LaneBatch(1 << 20, 0)
        for slot, place, _, _ in self.entries:
            (batch.places if slot is batch.slot else batch.start_group(slot)).append(place)
        batch.count = len(self.entries)
        self.lane.ready.append(batch)
        self.batch = self.lane.next()
        assert self.batch is batch
        self.lane.identify(batch, IDENTITY)
        directory = self.opened.directory
        assert directory.lanes.take() == 0
        self.journal = Journal(directory.lanes, never, lambda: NOW)

    def enter(self) -> None:
        assert self.batch is not None
        asyncio.run(self.journal.enter(self.lane, self.batch))

    def repoint(self) -> None:
        lanes: Any = SimpleNamespace(lanes=lambda: [self.lane])
        nobody: Any = None
        asyncio.run(Moves(self.opened.directory, lanes, nobody, self.journal, []).repoint())

    def cut(self) -> None:
        """Kafka refuses the batch: its parts wait for a session, and are not written down."""
        batch = self.batch
        assert batch is not None
        parts = [LaneBatch(1 << 20, 0), LaneBatch(1 << 20, 0)]
        self.lane.take_back(batch, IDENTITY)
        self.lane.replace(parts)

    def go_along(self) -> None:
        assert self.batch is not None
        assert self.batch.go_along()

    def settle(self) -> None:
        assert self.batch is not None
        for slot, places in self.batch.frames:
            slot.ring.settle(slot, places)


async def never() -> None:
    raise AssertionError


MADE = ["enter", "copy", "repoint", "make"]
ORDERS = {
    "copied": (["enter", "copy"], "ring"),
    "pointed to the copies": (["enter", "copy", "repoint"], "ring"),
    "made": (MADE, "retry"),
    "pointed twice": (["enter", "copy", "repoint", "repoint"], "ring"),
    "pointed twice, and made": (["enter", "copy", "repoint", "repoint", "make"], "retry"),
    "made, and gone along": ([*MADE, "go_along"], "retry"),
    "gone along, and sent": (["copy", "make", "go_along", "enter"], "retry"),
    "cut": (["enter", "cut", "copy", "repoint"], "ring"),
    "cut, and made": (["enter", "cut", "copy", "repoint", "make"], "retry"),
    "cut meanwhile, and made": (["enter", "copy", "cut", "repoint", "make"], "retry"),
    "moved, and copied again": ([*MADE, "copy_again", "repoint"], "retry"),
    "moved twice": ([*MADE, "copy_again", "repoint", "make_again"], "retry"),
    "moved twice, and gone along in between": ([*MADE, "go_along", "copy_again", "repoint", "make_again"], "retry"),
    "moved twice, and sent in between": (["copy", "make", "enter", "copy_again", "repoint", "make_again"], "retry"),
    "sent when it was moved twice": (["copy", "make", "copy_again", "make_again", "enter"], "retry"),
    "given up": (["enter", "copy", "repoint", "abandon"], "ring"),
    "sent while it is copied": (["copy", "enter"], "ring"),
    "sent while it is copied, and made": (["copy", "enter", "make"], "retry"),
    "sent when it was made": (["copy", "make", "enter"], "retry"),
}


@pytest.mark.parametrize("steps", ORDERS)
def test_a_batch_that_is_moved_is_found_where_it_counts(steps: str) -> None:
    names, where = ORDERS[steps]
    moving = Moving()
    for name in names:
        getattr(moving, name)()
    following = moving.opened.dies()
    (resumed,) = taken(following).lanes
    assert [ring is getattr(following.directory, where) for ring, _, _ in resumed.frames] == [True]
    prefix = f"{moving.opened.directory.producer_id}/1/".encode()
    found = records_of(asyncio.run(rebuild(resumed, 0)))
    assert [one[1] for one in found] == [b"k%d" % number for number in range(5, 15)]
    assert [one[3][-1][1] for one in found] == [b"%b%d" % (prefix, number + 1) for number in range(5, 15)]  # type: ignore[index]
    waiting_there = read(Reader(following.directory.retry, bytes)) + following.read()
    assert len(waiting_there) == len(moving.opened.accepted) - 15
    for ring, slot, places in resumed.frames:
        ring.settle(slot, places)
    (spent,) = taken(following.dies()).lanes
    assert spent.frames == []


@pytest.mark.parametrize("steps", ORDERS)
def test_of_a_batch_in_two_slots_only_what_is_moved_is_looked_for_elsewhere(steps: str) -> None:
    names, where = ORDERS[steps]
    in_first_slot = Moving().opened.ring.live[0].count
    moving = Moving(first=in_first_slot - 5)
    for name in names:
        getattr(moving, name)()
    following = moving.opened.dies()
    (resumed,) = taken(following).lanes
    rings = [following.directory.retry if where == "retry" else following.ring, following.ring]
    assert [ring for ring, _, _ in resumed.frames] == rings
    prefix = f"{moving.opened.directory.producer_id}/1/".encode()
    found = [one[3][-1][1] for one in records_of(asyncio.run(rebuild(resumed, 0)))]  # type: ignore[index]
    assert found == [b"%b%d" % (prefix, sequence) for _, _, sequence, _ in moving.entries]
    waiting_there = read(Reader(following.directory.retry, bytes)) + following.read()
    assert len(waiting_there) == len(moving.opened.accepted) - in_first_slot - 5


@pytest.mark.parametrize("steps", ORDERS)
def test_a_batch_that_is_moved_and_settled_is_spent(steps: str) -> None:
    names, _ = ORDERS[steps]
    moving = Moving()
    for name in names:
        getattr(moving, name)()
    moving.settle()
    (spent,) = taken(moving.opened.dies()).lanes
    assert spent.frames == []


@pytest.mark.parametrize("steps", ["copied", "pointed to the copies", "made"])
def test_a_batch_that_is_moved_is_as_old_as_its_timestamps(steps: str) -> None:
    moving = Moving()
    for name in ORDERS[steps][0]:
        getattr(moving, name)()
    following = moving.opened.dies()
    found = taken(following, wall_ms=OLDEST_TRUSTED + 1)
    assert (found.lanes, dict(found.doubts)) == ([], {Doubt.OLD: 1})
    found = taken(following.dies())  # and is doubted from then on, wherever it is
    assert (found.lanes, dict(found.doubts), len(found.hints)) == ([], {Doubt.BEFORE: 1}, 1)


def test_a_lost_file_of_the_lanes_is_a_doubt_where_only_what_was_moved_waits() -> None:
    moving = Moving()
    for step in ("copy", "make"):
        getattr(moving, step)()
    following = loses_lanes(moving.opened)
    following.settle(following.read())
    last = loses_lanes(following)
    assert last.read() == []
    assert dict(taken(last).doubts) == {Doubt.LOST: 1}


@pytest.mark.parametrize("parts", [True, False])
def test_a_batch_that_is_parted_with_while_it_is_moved_is_known_to_the_next_process(*, parts: bool) -> None:
    """Its first records have expired and are settled, the rest is not sent yet; else it would seem to be spent."""
    moving = Moving()
    moving.enter()
    assert moving.batch is not None
    moving.batch.possibly = True
    if parts:
        moving.journal.part_with(moving.lane)
    for entry in moving.entries[:4]:
        moving.opened.settle([entry])
    for step in ("copy", "repoint", "make"):
        getattr(moving, step)()
    following = moving.opened.dies()
    (resumed,) = taken(following).lanes
    assert (resumed.entry.parted, resumed.frames) == (parts, [])
    waiting = read(Reader(following.directory.retry, bytes)) + following.read()
    assert len(waiting) == len(moving.opened.accepted) - 9


def test_a_move_that_does_not_point_to_its_copies_would_repeat_the_batch() -> None:
    """Why `Journal.repoint` is called: without it the originals are gone, and the copies seem to be others' records."""
    moving = Moving()
    moving.enter()
    moving.copy()
    moving.make()
    following = moving.opened.dies()
    (resumed,) = taken(following).lanes
    assert resumed.frames == []
    assert len(read(Reader(following.directory.retry, bytes))) > len(moving.entries)


# -- what the last process had in flight -----------------------------------------------------------------------------


class Silent(StandIn):
    """Connected to a broker that does not answer."""

    async def send(self, *_: object) -> RecordMetadata:
        never: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        return await never

    def partitions(self, _: str) -> frozenset[int]:
        return frozenset(range(4))


@pytest.fixture
def following() -> Mover:
    """An opening after the death of a process that had a batch in flight."""
    before = Moving()
    before.enter()
    return Mover(before.opened.dies())


def delivery_of(opened: Opened) -> Delivery:
    directory = opened.directory
    config = Config.from_options("unused", "nowhere:1", {})
    return Delivery(
        config,
        directory,
        taken(opened),
        DeadLetters(directory.dead, never),
        grow=never,
        remember=never,
        durable=never,
        on_idle=lambda: None,
    )


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """There is no room in memory, so that what was in flight is not built again before `undo`."""
    monkeypatch.setattr(sessions_module, "Session", Silent)
    # Else it would be a day old, and forgotten by Kafka, on a machine that has been up for longer.
    monkeypatch.setattr(FileSystem, "since_boot_ms", lambda _: NOW)
    changes = pytest.MonkeyPatch()
    changes.setattr(batches_module, "BATCH_BYTES", 0)
    yield changes
    changes.undo()


@pytest.mark.asyncio
async def test_no_move_begins_before_what_was_in_flight_is_built_again(
    crowded: pytest.MonkeyPatch, following: Mover
) -> None:
    delivery = delivery_of(following.opened)
    first, second, *_ = following.opened.ring.live
    delivery.start()
    try:
        await asyncio.sleep(0.01)
        assert [delivery.moves.may_move(slot) for slot in (first, second)] == [False, True]
        crowded.undo()
        await until(lambda: delivery.moves.may_move(first))
        (lane,) = delivery.router.lanes()
        following.copy()
        Journal(following.opened.directory.lanes, never, lambda: NOW).repoint(lane)
        following.make()
    finally:
        await delivery.close()
    last = following.opened.dies()
    (resumed,) = taken(last).lanes
    assert [ring is last.directory.retry for ring, _, _ in resumed.frames] == [True]
    assert [one[1] for one in records_of(await rebuild(resumed, 0))] == [b"k%d" % number for number in range(5, 15)]


@pytest.mark.asyncio
async def test_what_was_in_flight_and_cannot_be_built_again_stays_where_it_is(
    crowded: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, following: Mover
) -> None:
    def broken(*_: object) -> None:
        raise WalIOError(5, "cannot read the file")

    monkeypatch.setattr(delivery_module, "rebuild", broken)
    crowded.undo()
    delivery = delivery_of(following.opened)
    delivery.start()
    try:
        await until(lambda: bool(delivery.halted))
        assert not delivery.moves.may_move(following.opened.ring.live[0])
    finally:
        await delivery.close()


def test_a_move_before_what_was_in_flight_is_built_again_would_repeat_it(following: Mover) -> None:
    """Why `Delivery.may_move` is asked: the entry points to where nothing is, and the copies go out as others' do."""
    (resumed,) = taken(following.opened).lanes
    assert resumed.entry.count == 10
    following.copy()
    following.make()
    last = following.opened.dies()
    (resumed,) = taken(last).lanes
    assert resumed.frames == []
    assert len(read(Reader(last.directory.retry, bytes))) > 10
