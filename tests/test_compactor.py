"""What becomes of a move that is given up, interrupted, or made while nobody waits for it any more."""

import asyncio
import dataclasses
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from aiorecover import compactor as module
from aiorecover import recounting
from aiorecover.compactor import Compactor
from aiorecover.delivery.reports import Reports
from aiorecover.errors import WalCorruptError, WalError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile
from aiorecover.wal.directory import Directory
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.run import Entry
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from tests.wal.rig import SLOT, Disk, Opened, read, take
from tests.wal.test_stream import read as read_stream

pytestmark = pytest.mark.asyncio


class Scene:
    """Six slots in which every seventh record waits, and delivery agrees to everything."""

    def __init__(self, opened: Opened | None = None, *, every: int = 7, full: int = 6) -> None:
        self.opened = opened or Opened()
        for _ in range(full):
            self.opened.fill_slot()
        entries = self.opened.read()
        self.opened.settle(entry for number, entry in enumerate(entries) if number % every)
        left = entries[::every]
        self.waiting = {fmt.position(slot.header.epoch, sequence) for slot, _, sequence, _ in left}
        self.left = len(entries) // every + 1
        self.told: list[str] = []
        self.coming = False  # somebody goes back, and has not come to any of it
        moves: Any = SimpleNamespace(
            worth_a_look=True,
            only_behind_wait=lambda slot: slot.sealed,
            only_stalled_wait=lambda _: not self.coming,
            may_rewrite=lambda _: True,
            repoint=lambda: self._told("repoint"),
            made=lambda: self.told.append("made"),
            go_along=lambda: self._told("go along"),
        )
        self.moves = moves
        self.keeper = Keeper("test")
        self.freed = 0
        self.compactor = Compactor(self.directory, self.keeper, moves, self._on_freed)

    @classmethod
    def of(cls, opened: Opened, left: int) -> "Scene":
        """Of what an opening has read of such slots."""
        scene = cls(opened, full=0)
        scene.left = left
        return scene

    def _on_freed(self) -> None:
        self.freed += 1

    async def _told(self, what: str) -> None:
        await asyncio.sleep(0)
        self.told.append(what)

    async def look_again(self) -> None:
        """Whatever pause there is."""
        self.compactor._not_before = 0.0
        await self.compactor.look()

    @property
    def directory(self) -> Directory:
        return self.opened.directory

    def still_whole(self) -> bool:
        """Nothing was lost, and no copy counts."""
        following = self.opened.dies()
        return self.directory.pending() == self.left == len(following.read()) == following.directory.pending()


async def test_the_oldest_slots_are_moved_while_that_gains_room() -> None:
    scene = Scene()
    oldest = scene.opened.ring.live[0]
    await scene.compactor.look()
    assert oldest not in scene.opened.ring.live
    assert scene.compactor.slots_moved == scene.freed == scene.told.count("made") == module.MOVES_A_LOOK
    assert scene.directory.pending() == scene.left
    assert scene.compactor.records_moved == scene.directory.retry.pending()


async def test_nothing_is_asked_where_all_get_through() -> None:
    scene = Scene()
    scene.moves.worth_a_look = False
    await scene.compactor.look()
    assert scene.compactor.slots_moved == 0


async def test_what_somebody_is_on_the_way_to_stays_until_the_ring_has_outgrown_what_waits() -> None:
    scene = Scene(every=3)
    scene.coming = True
    await scene.compactor.look()
    assert scene.compactor.slots_moved == 0
    for _ in range(12):
        scene.opened.fill_slot()
        scene.opened.settle(scene.opened.read())
    await scene.compactor.look()
    assert scene.compactor.slots_moved > 0


async def test_what_somebody_is_on_the_way_to_is_moved_where_there_is_no_other_room() -> None:
    scene = Scene(Opened(Disk(max_slots=10)), every=3)
    scene.coming = True
    await scene.compactor.look()
    assert scene.compactor.slots_moved == 0
    with suppress(WalFullError):
        for _ in range(10):
            scene.opened.fill_slot()
    assert scene.opened.ring.spares.full
    await scene.compactor.look()
    assert scene.compactor.slots_moved > 0


def fails(*_: Any) -> Any:
    raise WalFullError("no room")


@pytest.mark.parametrize("where", ["step", "repoint", "read"])
async def test_a_move_that_fails_goes_on_where_it_stood_after_a_pause(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied twice: room that failed tries took would be gone for good."""
    scene = Scene()
    retry, first = scene.directory.retry, scene.opened.ring.live[0]
    waiting = first.unsettled

    def breaks(*_: Any) -> Any:
        raise WalIOError(5, "the disk failed")

    with monkeypatch.context() as patch:
        if where == "step":
            patch.setattr(Move, "step", breaks)
        elif where == "repoint":
            patch.setattr(scene.moves, "repoint", breaks)
        else:
            patch.setattr(scene.opened.disk.ring, "read_into", breaks)
        for _ in range(3):
            await scene.look_again()
            assert retry.sequence in (0, waiting)
            assert scene.still_whole()
    assert scene.told == []
    await scene.compactor.look()
    assert scene.told == [], "not before the pause is over"
    await scene.look_again()
    assert scene.compactor.slots_moved > 0
    assert retry.sequence == scene.compactor.records_moved
    assert scene.left == scene.directory.pending()


async def test_a_move_without_room_is_given_up_so_that_a_rewriting_can_make_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    with monkeypatch.context() as patch:
        patch.setattr(scene.directory.retry, "append", fails)
        await scene.look_again()
    assert scene.compactor._under_way is None
    assert scene.directory.copies_from is None
    assert scene.still_whole()
    await scene.compactor.look()
    assert scene.compactor.slots_moved == 0, "not before the pause is over"
    await scene.look_again()
    assert scene.compactor.slots_moved > 0


async def test_giving_a_move_up_may_fail_too_and_is_ended_before_anything_else_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    retry, step = scene.directory.retry, Move.step

    def some(self: Move) -> bool:
        if self.count:
            fails()
        return step(self, 5)

    with monkeypatch.context() as patch:
        patch.setattr(Move, "step", some)
        patch.setattr(retry, "take_back", fails)
        for _ in range(3):
            await scene.look_again()
            assert retry.sequence == 5
            assert scene.directory.copies_from == retry.last_position - 5, "a checkpoint would make them count"
            assert scene.still_whole()
    await scene.look_again()
    assert retry.pending() == 0
    assert scene.directory.copies_from is None
    await scene.look_again()
    assert scene.compactor.slots_moved == module.MOVES_A_LOOK
    assert scene.left == scene.directory.pending()


async def test_giving_a_move_up_leaves_the_loop_to_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(every=1)
    retry, seen = scene.directory.retry, list[int]()
    waiting = scene.opened.ring.live[0].unsettled

    async def others() -> None:
        while True:
            seen.append(retry.pending())
            await asyncio.sleep(0)

    def corrupt(*_: Any) -> Any:
        raise WalCorruptError("a record cannot be read")

    monkeypatch.setattr(module, "moves_oldest", lambda *_, **__: True)
    monkeypatch.setattr(module, "STEP", 5)
    monkeypatch.setattr(Move, "check", corrupt)
    task = asyncio.create_task(others())
    await scene.compactor.look()
    task.cancel()
    assert max(seen) == waiting > 10
    assert retry.pending() == 0
    assert max(before - after for before, after in pairwise(seen)) == 5


async def test_a_slot_that_cannot_be_read_is_left_alone_after_some_tries_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    read, calls = scene.opened.disk.ring.read_into, []

    def bad_sector(buffer: memoryview, offset: int) -> int:
        if offset < SLOT:
            calls.append(offset)
            raise WalIOError(5, "the disk failed")
        return read(buffer, offset)

    monkeypatch.setattr(scene.opened.disk.ring, "read_into", bad_sector)
    for _ in range(30):
        await scene.look_again()
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
    assert [record.message for record in caplog.records if "stay where they are" in record.message]
    count = len(calls)
    await scene.look_again()
    assert len(calls) == count, "it is not read any more"
    assert scene.compactor._under_way is None
    assert scene.directory.retry.pending() == 0
    assert scene.opened.ring.live[0].readers == 0


class Counting:
    """What is damaged is counted anew beside the moves, as the background does it."""

    def __init__(self, scene: Scene) -> None:
        directory = scene.directory
        all_was_read: Any = SimpleNamespace(may_recount=lambda slot: slot.complete)
        nobody: Any = SimpleNamespace(places_in=lambda _: set())
        reports, again = Reports(directory, None), scene.compactor.try_again
        self.scene = scene
        self.recounting = recounting.Recounting(directory, all_was_read, nobody, reports, again)

    async def until_free(self, slot: Slot) -> None:
        """It does not take for ever."""
        for _ in range(500):
            await self.scene.look_again()
            await self.recounting.look()
            self.scene.opened.keep_damaged()
            if slot not in slot.ring.live:
                return
        raise AssertionError("the slot is still there")


BAD = [[(200, 1)], [(200, 1), (500, 1), (900, 1)], [(300, 300)]]
"""Where kilobytes of a slot cannot be read, and how many: in one place, in several, more than is read at a time."""


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("bad", BAD)
async def test_a_slot_of_which_pages_cannot_be_read_is_moved_without_what_stood_there(
    bad: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """Or one bad sector would keep the whole ring, as long as a lane does not get through."""
    monkeypatch.setattr(recounting, "PAUSE", 0.0)
    monkeypatch.setattr(recounting, "READ_PAUSE", 0.0)
    scene = Scene(Opened(Disk(slot_bytes=1 << 20)))
    for start, size in bad:
        scene.opened.disk.ring.stored.fail_reads(start << 10, size << 10)
    if restarted:
        opened = scene.opened.dies()
        scene.left = len(_read_patiently(opened))
        scene = Scene.of(opened, scene.left)
    slot, left = scene.opened.ring.live[0], scene.directory.pending()
    await Counting(scene).until_free(slot)
    assert scene.directory.pending() == left - scene.directory.lost
    assert (scene.directory.lost > 0) is not restarted, "the opening's reader has not counted it"
    assert scene.opened.ring.failure is None


async def test_the_retry_ring_is_rewritten_though_pages_of_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recounting, "PAUSE", 0.0)
    monkeypatch.setattr(recounting, "READ_PAUSE", 0.0)
    scene = Scene(Opened(Disk(slot_bytes=1 << 20)), every=3)
    for _ in range(3):
        await scene.look_again()
    retry = scene.directory.retry
    slot, behind = retry.live[:2]
    assert slot.sealed
    for home, place in in_slot(slot)[::2] + in_slot(behind):
        retry.settle(home, [place])
    for start in (200, 500, 900):
        scene.opened.disk.retry.stored.fail_reads(start << 10, 1)
    left = scene.directory.pending()
    await Counting(scene).until_free(slot)
    assert scene.compactor.rewrites > 0
    assert scene.directory.pending() == left - scene.directory.lost
    assert 0 < scene.directory.lost < 20
    assert retry.failure is None


def _read_patiently(opened: Opened) -> list[Entry]:
    found: list[Entry] = []
    for _ in range(10_000):
        with suppress(WalIOError):
            if not (taken := take(opened.reader, 100)) and not opened.reader.moved:
                break
            found += taken
    return found


async def test_pauses_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(scene.moves, "repoint", fails)
    pauses = []
    for _ in range(9):
        scene.compactor._not_before = 0.0
        await scene.compactor.look()
        pauses.append(scene.compactor._pause)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


async def test_a_move_that_is_cancelled_while_it_copies_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    step, begun = Move.step, asyncio.Event()

    def slowly(self: Move) -> bool:
        begun.set()
        return step(self, 1)

    monkeypatch.setattr(Move, "step", slowly)
    task = asyncio.create_task(scene.compactor.look())
    await begun.wait()
    assert scene.directory.retry.sequence > 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scene.told == []
    assert scene.still_whole()
    copied = scene.directory.retry.sequence
    monkeypatch.setattr(Move, "step", step)
    await scene.compactor.look()
    assert scene.compactor.slots_moved > 0
    assert copied < scene.compactor.records_moved == scene.directory.retry.sequence


async def test_a_move_whose_checkpoint_is_being_written_is_made_though_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    write = Directory.write_checkpoint
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def noting(self: Directory, checkpoint: Checkpoint) -> None:
        loop.call_soon_threadsafe(begun.set)
        write(self, checkpoint)

    monkeypatch.setattr(Directory, "write_checkpoint", noting)
    oldest = scene.opened.ring.live[0]
    task = asyncio.create_task(scene.compactor.look())
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await scene.keeper.submit(lambda: None)
    await asyncio.sleep(0)
    assert oldest not in scene.opened.ring.live
    assert scene.compactor.slots_moved == 1
    assert scene.directory.copies_from is None
    assert scene.directory.pending() == scene.left


async def test_a_checkpoint_that_fails_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Perhaps the disk has it: then only the copies count, and the next opening knows."""
    scene = Scene()

    def fails(self: Directory, _: Checkpoint) -> None:
        error = WalIOError(5, "the disk failed")
        self.poison(error)
        raise error

    monkeypatch.setattr(Directory, "write_checkpoint", fails)
    await scene.compactor.look()
    assert scene.told == ["repoint"]
    assert scene.compactor.slots_moved == 0
    assert scene.directory.pending() == scene.left
    await scene.look_again()
    assert scene.told == ["repoint"]


async def test_the_retry_ring_is_rewritten_once_most_of_it_is_settled() -> None:
    scene = Scene()
    ring, retry = scene.opened.ring, scene.directory.retry
    for _ in range(5):
        scene.opened.fill_slot()
    for slot, place, _, _ in scene.opened.read()[::2]:
        ring.settle(slot, [place])
    scene.left = ring.pending()
    for _ in range(5):
        await scene.compactor.look()
    assert len(retry.live) > 2
    last = retry.live[-1]
    words = [(slot, place) for slot in retry.live for _, place, _ in slot.marks]
    keep = words[0]
    for slot in list(retry.live):
        entries = [one for one in in_slot(slot) if one != keep and slot is not last]
        for home, place in entries:
            retry.settle(home, [place])
            scene.left -= 1
    await scene.compactor.look()
    assert scene.compactor.rewrites == 1
    assert scene.directory.pending() == scene.left


def inside(slot: Any) -> list[Entry]:
    reader = Reader.inside(slot.ring, slot, bytes)
    found = read(reader)
    reader.close()
    return found


def in_slot(slot: Any) -> list[tuple[Any, int]]:
    return [(home, place) for home, place, _, _ in inside(slot)]


class Retry:
    """Half of every slot waits for lanes that do not get through, and is moved as far as there is room."""

    def __init__(self, slots: int) -> None:
        self.scene = Scene(Opened(Disk(max_slots=slots)), every=2)
        self.opened = self.scene.opened
        self.retry = self.scene.directory.retry
        self.fills = 0

    async def fill(self) -> None:
        """Publish and move until neither goes on."""
        before = -1
        while self.opened.ring.sequence > before:
            before = self.opened.ring.sequence
            self.fills += 1
            with suppress(WalFullError):
                while True:
                    self.opened.fill_slot()
                    self.opened.settle(self.opened.read()[1::2])
                    self.opened.checkpoint()
            for _ in range(20):
                await self.scene.look_again()

    def deliver(self, *, but: int) -> None:
        """All in the retry ring but one record in so many: the lane that does not come back."""
        number = 0
        for slot in list(self.retry.live):
            for home, place in in_slot(slot):
                number += 1
                if number % but:
                    self.retry.settle(home, [place])


@pytest.mark.parametrize("slots", [14, 20, 40])
async def test_a_retry_ring_full_of_what_was_delivered_beside_one_stalled_lane_is_rewritten(
    slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """There is always room for it, however full both rings are: publishers do not wait for that lane."""
    scene = Retry(slots)
    await scene.fill()
    used, sequence = len(scene.retry.live), scene.opened.ring.sequence
    assert scene.opened.ring.spares.full
    assert used > 1
    (line,) = {record.getMessage() for record in caplog.records if "no slot is moved" not in record.getMessage()}
    assert line.startswith("nothing more can be moved to the retry ring error=the retry ring is full: wait for")
    assert len([record for record in caplog.records if record.getMessage() == line]) <= scene.fills
    scene.deliver(but=10)
    waiting = scene.retry.pending()
    for _ in range(20):
        await scene.scene.look_again()
    assert scene.scene.compactor.rewrites > 0
    assert scene.retry.pending() >= waiting
    await scene.fill()
    assert scene.opened.ring.sequence > sequence


async def test_a_large_rewriting_goes_on_behind_other_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits; until it is made, a kill leaves everything where it was."""
    monkeypatch.setattr(module, "STEPS_A_LOOK", 1)
    scene = Retry(20)
    monkeypatch.setattr(module, "STEP", 7)
    await scene.fill()
    scene.deliver(but=10)
    left, looks = scene.scene.directory.pending(), 0
    while not scene.scene.compactor.rewrites:
        await scene.scene.look_again()
        scene.opened.checkpoint()
        following = scene.opened.dies()
        assert scene.scene.directory.pending() == left
        assert following.directory.checkpoint.moved == scene.scene.directory.checkpoint.moved
        looks += 1
    assert looks > 3
    assert len(waiting_in(scene.opened.dies())) == left


def waiting_in(opened: Opened) -> list[Any]:
    """What an opening finds in both rings."""
    return read(Reader(opened.directory.retry, bytes)) + opened.read()


def on_a_disk_of(slots: int, retry: Retry) -> None:
    """The three files have so many slots together there, whatever the limit says."""
    quota = retry.opened.ring.spares.quota

    def free_bytes() -> int:
        return (slots - sum(holding.allocated for holding in quota.holdings())) * SLOT

    quota.limits = dataclasses.replace(quota.limits, free_bytes=free_bytes)


@pytest.mark.parametrize("slots", [12, 16, 20, 30])
async def test_on_a_full_disk_there_is_room_to_rewrite_the_retry_ring_too(slots: int) -> None:
    scene = Retry(60)
    on_a_disk_of(slots, scene)
    await scene.fill()
    for rewrites in range(1, 5):
        assert scene.opened.ring.spares.full
        scene.deliver(but=10)
        sequence, left = scene.opened.ring.sequence, scene.scene.directory.pending()
        for _ in range(20):
            await scene.scene.look_again()
        assert scene.scene.compactor.rewrites >= rewrites
        assert scene.scene.directory.pending() == left == len(waiting_in(scene.opened.dies()))
        await scene.fill()
        assert scene.opened.ring.sequence > sequence


def without_more_room(retry: Retry) -> None:
    """But for the slots that are ready, and what is free in the main ring for itself: it cannot be given up."""
    quota = retry.opened.ring.spares.quota
    quota.exchange = False
    quota.limits = dataclasses.replace(quota.limits, free_bytes=lambda: 0)


async def moved(retry: Retry, slots: int, payload: bytes) -> None:
    """Every second record until the retry ring has so many slots."""
    while len(retry.retry.live) < slots:
        retry.opened.fill_slot(payload)
        retry.opened.settle(retry.opened.read()[1::2])
        retry.opened.checkpoint()
        await retry.scene.look_again()


async def test_a_rewriting_that_has_no_room_for_all_of_it_is_not_begun_and_moves_go_on() -> None:
    scene = Retry(60)
    await moved(scene, 7, b"f" * 500)
    scene.deliver(but=3)
    without_more_room(scene)
    moves, waiting = scene.scene.compactor.slots_moved, scene.retry.waiting_bytes
    used = scene.retry.spares.holding.used
    assert sum(map(waiting, scene.retry.live)) > SLOT
    for _ in range(4):
        scene.opened.fill_slot()
        scene.opened.settle(scene.opened.read()[1:])
        await scene.scene.look_again()
    assert scene.scene.compactor.slots_moved >= moves + 3
    assert scene.scene.compactor.rewrites == 0
    assert scene.retry.spares.holding.used == used
    left = scene.scene.directory.pending()
    following = Opened(scene.opened.disk.after_death())
    assert len(waiting_in(following)) == left
    scene.opened.ring.spares.quota.exchange = True
    await scene.scene.look_again()
    assert scene.scene.compactor.rewrites == 1
    assert scene.scene.directory.pending() == left


async def test_a_rewriting_does_not_begin_where_somebody_came_to_the_retry_ring_meanwhile() -> None:
    scene = Retry(60)
    await moved(scene, 7, b"f" * 500)
    scene.deliver(but=3)
    answers = iter([True, False, True, True])
    scene.scene.moves.may_rewrite = lambda _: next(answers)
    await scene.scene.compactor._rewrite()
    assert scene.scene.compactor._under_way is None
    assert scene.retry.spares.holding.ready > 1
    await scene.scene.compactor._rewrite()
    assert scene.scene.compactor._under_way is not None


async def test_a_rewriting_that_takes_more_than_was_to_be_seen_is_given_up_and_moves_go_on() -> None:
    """Only the largest of a slot's records wait."""
    scene = Retry(60)
    large, spares = b"l" * 6000, scene.retry.spares
    while len(scene.retry.live) < 7:
        scene.opened.append(large)
        scene.opened.fill_slot(b"s" * 20)
        entries = scene.opened.read()
        scene.opened.settle(entry for number, entry in enumerate(entries) if number % 3)
        scene.opened.checkpoint()
        await scene.scene.look_again()
    entries = inside(scene.opened.ring.live[-1])
    for slot in list(scene.retry.live):
        entries += (entry for entry in inside(slot)[1:] if large not in entry[3])
    for home, place, _, _ in entries:
        home.ring.settle(home, [place])
    without_more_room(scene)
    used = spares.holding.used - spares.holding.ready
    await scene.scene.look_again()
    assert spares.holding.used > used, "it has begun"
    left = scene.scene.directory.pending()
    assert scene.scene.compactor.rewrites == 0
    assert scene.scene.compactor._under_way is None
    assert scene.scene.directory.copies_from is None
    assert left == len(waiting_in(scene.opened.dies()))
    used, moves = spares.holding.used, scene.scene.compactor.slots_moved
    for _ in range(4):
        scene.opened.fill_slot()
        scene.opened.settle(scene.opened.read()[1:])
        scene.opened.checkpoint()
        await scene.scene.look_again()
    assert scene.scene.compactor.slots_moved >= moves + 3
    assert spares.holding.used == used, "it does not try with as little once more"
    left = scene.scene.directory.pending()
    scene.opened.ring.spares.quota.exchange = True
    await scene.scene.look_again()
    assert scene.scene.compactor.rewrites == 1
    assert spares.holding.ready <= 1, "what it did not need is free"
    assert left == scene.scene.directory.pending() == len(waiting_in(scene.opened.dies()))


@pytest.mark.parametrize("held", [False, True])
async def test_a_rewriting_that_met_damage_is_tried_again_though_the_damaged_slot_is_done_before_it_is_counted(
    monkeypatch: pytest.MonkeyPatch, *, held: bool
) -> None:
    monkeypatch.setattr(recounting, "PAUSE", 0.0)
    scene = Scene(Opened(Disk(slot_bytes=1 << 20)), every=3, full=9)
    for _ in range(6):
        await scene.look_again()
    retry = scene.directory.retry
    first, *others = list(retry.live)
    frames = in_slot(first)[:3]
    for slot in (first, *others):
        for home, place in in_slot(slot)[3:]:
            retry.settle(home, [place])
    rotten = frames[1][1]
    scene.opened.disk.retry.damage(first.file_offset + fmt.WORD * rotten + 30, b"rotten")
    in_hand = {rotten} if held else set()
    moves: Any = SimpleNamespace(may_recount=lambda slot: slot.complete)
    holders: Any = SimpleNamespace(places_in=lambda slot: in_hand if slot is first else set())
    reports = Reports(scene.directory, None)
    counting = recounting.Recounting(scene.directory, moves, holders, reports, scene.compactor.try_again)
    for _ in range(4):
        await scene.look_again()
    assert scene.compactor.rewrites == 0
    if held:
        await counting.look()
    for home, place in frames:
        retry.settle(home, [place])
    in_hand.clear()
    for _ in range(6):
        await counting.look()
        scene.opened.keep_damaged()
        scene.opened.checkpoint()
        await scene.look_again()
    assert scene.compactor.rewrites == 1
    assert not {first, *others[:-1]} & {*retry.live}


def each_once_behind(scene: Scene) -> None:
    """The next opening finds all that wait, and none twice, among those whose settle words are suspect by then."""
    found = [position for _, _, position, _ in read_stream(Stream(scene.opened.dies().directory, bytes))]
    assert len(found) == len({*found})
    assert scene.waiting <= {*found}
    assert len(scene.waiting) == scene.left


@pytest.mark.parametrize(
    "where",
    [
        (CheckpointFile, "write_both"),
        (Directory, "_write"),
        (Checkpoint, "after"),
        (Directory, "write_checkpoint"),
        (Directory, "recycle"),
    ],
)
@pytest.mark.parametrize("done_by_then", [False, True])
async def test_where_nobody_knows_whether_a_move_was_made_nothing_more_is_moved_before_the_next_opening(
    monkeypatch: pytest.MonkeyPatch, where: tuple[type, str], *, done_by_then: bool
) -> None:
    """No memory, or a signal handler that raises."""
    scene, done = Scene(), getattr(*where)

    def fails(*given: Any, **named: Any) -> NoReturn:
        if done_by_then:
            done(*given, **named)
        raise MemoryError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(*where, fails)
        await scene.look_again()
    with suppress(WalError):  # the ring may have stopped by then
        scene.opened.checkpoint()
    await scene.look_again()
    failure = scene.directory.ring.failure
    assert failure is not None
    assert "stop, and start anew" in str(failure)
    await scene.look_again()
    assert scene.compactor.slots_moved == 0
    each_once_behind(scene)


async def test_a_signal_handler_that_raises_as_a_checkpoint_is_handed_over_has_no_move_made_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, submit = Scene(), Keeper.submit

    def submit_and_raise(self: Keeper, job: Any, *given: Any) -> Any:
        answer = submit(self, job, *given)
        if job == scene.directory.write_checkpoint:
            raise InterruptedError("a handler's")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "submit", submit_and_raise)
        await scene.look_again()
    await scene.look_again()
    assert scene.directory.ring.failure is not None
    assert scene.compactor.slots_moved == 0
    each_once_behind(scene)


@pytest.mark.parametrize("done_by_then", [False, True])
async def test_a_signal_handler_that_raises_as_delivery_learns_of_a_move_has_no_other_one_made(
    *, done_by_then: bool
) -> None:
    scene = Scene()
    tell = scene.moves.made

    def raises() -> NoReturn:
        if done_by_then:
            tell()
        raise InterruptedError("a handler's")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    scene.moves.made = raises
    for _ in range(3):
        await scene.look_again()
    assert "stop, and start anew" in str(scene.directory.ring.failure)
    assert scene.told.count("made") == done_by_then
    each_once_behind(scene)


async def test_an_ordinary_checkpoint_without_memory_is_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    opened.append(b"waits")

    def no_memory(*_: object) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", no_memory)
        patch.setattr(CheckpointFile, "write_both", no_memory)
        with pytest.raises(MemoryError):
            opened.checkpoint()
    assert opened.ring.failure is None
    opened.checkpoint()


async def test_what_is_not_counted_yet_is_not_tried_again_because_another_slot_was() -> None:
    scene = Scene()
    one, other = scene.opened.ring.live[:2]
    scene.compactor._stay = {one, other}
    scene.opened.ring.losses.miscounts(other)
    scene.compactor.try_again()
    assert (scene.compactor._stay, scene.compactor._tried) == ({other}, {one})
