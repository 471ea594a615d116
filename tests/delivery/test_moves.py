"""Which slots can be moved, as far as delivery is concerned."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from aiorecover.delivery import moves as module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import MEND_TOPIC, Lane
from aiorecover.delivery.moves import Moves
from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot
from tests.wal.rig import Opened


class Scene:
    """Two full slots, and one in which is written; the first reader has passed them, and one lane has a batch."""

    def __init__(self, opened: Opened | None = None) -> None:
        self.opened = opened or Opened()
        self.opened.fill_slot()
        self.opened.fill_slot()
        self.opened.append(b"newest")
        self.entries = self.opened.read()
        self.slot: Slot = self.opened.ring.live[0]
        self.lane = Lane("t", 3)
        self.first: Any = SimpleNamespace(at=self.opened.ring.last_position + 1, past_copies=True)
        self.way_back_to = 1 << 62
        self.going_back = 0
        self.behind: list[Lane] = []
        self.dispatcher = SimpleNamespace(
            reader=self.first,
            goes_back_to=lambda position: self.way_back_to <= position,
            going_back_in=lambda slot: self.going_back if slot is self.slot else 0,
            catches_up=lambda lane: lane in self.behind,
            waiting_from=self.first.at,
            has_gaps=False,
            stalled=SimpleNamespace(expected=False),
            forget_moved=lambda: None,
        )
        self.repointed: list[Lane] = []
        self.fails = False
        self.lanes = [self.lane]
        router: Any = SimpleNamespace(lanes=lambda: self.lanes)
        journal: Any = SimpleNamespace(repoint=self._repoint)
        dispatcher: Any = self.dispatcher
        self.moves = Moves(self.opened.directory, router, dispatcher, journal, [])

    def _repoint(self, lane: Lane) -> None:
        self.repointed.append(lane)
        if self.fails:
            raise WalIOError(5, "the disk failed")

    def give(self, where: str, slot: Slot | None = None) -> None:
        """The lane has a batch with a frame of the slot."""
        batch = LaneBatch(1 << 20, 0)
        batch.start_group(slot or self.slot).append(37)
        if where == "ready":
            self.lane.ready.append(batch)
        else:
            setattr(self.lane, where, batch)

    def movable(self) -> bool:
        return self.moves.only_behind_wait(self.slot)


def test_a_slot_is_moved_that_all_have_passed() -> None:
    scene = Scene()
    assert scene.movable()
    scene.first.at = scene.slot.last_position
    assert not scene.movable()


def test_a_slot_in_which_a_reader_stands_or_which_is_written_to_is_not() -> None:
    scene = Scene()
    scene.slot.readers += 1
    assert not scene.movable()
    scene.slot.readers -= 1
    scene.slot = scene.opened.ring.live[-1]
    assert not scene.movable()


@pytest.mark.parametrize("where", ["in_flight", "ready", "open"])
def test_a_slot_is_not_moved_while_a_lane_that_gets_through_has_a_batch_in_it(where: str) -> None:
    scene = Scene()
    scene.give(where)
    assert not scene.movable()
    scene.lane.failing = True
    assert scene.movable()
    scene.lane.failing, scene.lane.stalled = False, True
    assert scene.movable()
    scene.lane.stalled = False
    scene.lane.halt("poison", MEND_TOPIC)
    assert scene.movable()


def test_other_slots_batches_do_not_matter() -> None:
    scene = Scene()
    scene.give("in_flight", scene.opened.ring.live[1])
    assert scene.movable()


def test_it_is_told_of_a_slot_that_somebody_is_on_the_way_to() -> None:
    scene = Scene()
    assert scene.moves.only_stalled_wait(scene.slot)
    scene.way_back_to = scene.slot.first_position
    assert not scene.moves.only_stalled_wait(scene.slot)
    assert scene.movable()


@pytest.mark.parametrize("where", ["in_flight", "ready", "open"])
def test_it_is_told_of_a_slot_in_which_a_lane_that_catches_up_has_a_batch(where: str) -> None:
    """It can be moved all the same, as what stalled lanes have in flight is."""
    scene = Scene()
    scene.give(where)
    scene.behind = [scene.lane]
    assert not scene.moves.only_stalled_wait(scene.slot)
    assert scene.movable()
    scene.behind = [Lane("t", 4)]
    assert not scene.movable()
    scene.lane.stalled = True
    assert scene.moves.only_stalled_wait(scene.slot)


def test_a_slot_in_which_only_second_readers_stand_can_be_moved() -> None:
    scene = Scene()
    scene.slot.readers, scene.going_back = 2, 1
    assert not scene.movable()
    scene.going_back = 2
    assert scene.movable()
    assert not scene.moves.may_rewrite([scene.slot]), "what they read there is the retry ring's only copy"


def test_suspect_settle_words_stay_in_place_until_all_of_their_time_are_judged() -> None:
    """What was passed over is judged later, and a copy would say no more what its original said."""
    disk = Scene().opened.disk.after_death()
    disk.boots += 1
    scene = Scene(Opened(disk))
    assert scene.opened.directory.ring.is_suspect(scene.slot)
    scene.dispatcher.waiting_from = scene.slot.first_position + 1
    assert not scene.movable()
    assert not scene.moves.may_rewrite([scene.slot])
    scene.dispatcher.waiting_from = fmt.position(scene.opened.ring.epoch, 1)
    assert scene.movable()


def test_the_retry_ring_is_rewritten_once_the_first_reader_has_left_it() -> None:
    scene = Scene()
    assert scene.moves.may_rewrite([scene.slot])
    scene.first.past_copies = False
    assert not scene.moves.may_rewrite([scene.slot])


def test_it_is_worth_a_look_only_where_somebody_does_not_get_through() -> None:
    scene = Scene()
    looks = [scene.moves.worth_a_look]
    scene.lane.failing = True
    looks.append(scene.moves.worth_a_look)
    scene.lane.failing, scene.dispatcher.has_gaps = False, True
    looks.append(scene.moves.worth_a_look)
    assert looks == [False, True, True]


def test_where_all_goes_in_transactions_nothing_is_moved() -> None:
    scene = Scene()
    scene.lane.failing = True
    assert scene.moves.worth_a_look
    scene.moves._contiguous = True
    assert not scene.moves.worth_a_look


def test_lanes_with_a_batch_in_what_is_moved_are_pointed_to_the_copies() -> None:
    scene = Scene()
    scene.give("entered")
    asyncio.run(scene.moves.repoint())
    assert scene.repointed == []
    copy = scene.opened.ring.live[1]
    scene.slot.copies.add(37, copy, 99)
    scene.fails = True
    with pytest.raises(WalIOError):
        asyncio.run(scene.moves.repoint())
    scene.fails = False
    asyncio.run(scene.moves.repoint())
    assert scene.repointed == [scene.lane] * 2
    scene.slot.moved = True
    asyncio.run(scene.moves.repoint())
    assert scene.repointed == [scene.lane] * 2, "an earlier move"
    copy.copies.add(99, scene.opened.ring.live[2], 37)
    asyncio.run(scene.moves.repoint())
    assert scene.repointed == [scene.lane] * 3, "the copies of an earlier move"


@pytest.mark.parametrize("where", ["in_flight", "ready", "open", "entered"])
def test_batches_go_along_with_what_is_moved(where: str) -> None:
    """So nobody keeps the moved slot, and where all its records went."""
    scene = Scene()
    scene.give(where)
    (batch,) = (*scene.lane.ready,) or (getattr(scene.lane, where),)
    copy = scene.opened.ring.live[1]
    scene.slot.copies.add(37, copy, 99)
    asyncio.run(scene.moves.go_along())
    assert batch.frames == [(scene.slot, [37])]
    scene.slot.moved = True
    asyncio.run(scene.moves.go_along())
    assert batch.frames == [(copy, [99])]
    assert (batch.slot, batch.places) == (copy, [99])


def test_a_batch_that_nothing_may_be_added_to_stays_so_when_its_groups_become_one() -> None:
    """What was found in Kafka is not sent: a record that came to it would be lost."""
    scene = Scene()
    batch = LaneBatch(1 << 20, 0)
    copy = scene.opened.ring.live[1]
    for number, slot in enumerate((scene.slot, scene.opened.ring.live[2])):
        batch.start_group(slot).append(37)
        slot.copies.add(37, copy, 90 + number)
        slot.moved = True
    batch.most = batch.count = 2
    assert batch.go_along()
    assert batch.frames == [(copy, [90, 91])]
    assert batch.most == 2


def test_a_thousand_lanes_do_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn for the others whenever a portion's time is over."""
    monkeypatch.setattr(module, "TURN", 0.0)
    scene = Scene()
    scene.slot.copies.add(37, scene.slot, 37)
    scene.give("entered")
    scene.lanes *= 50
    turns = []

    async def others() -> None:
        while True:
            turns.append(len(scene.repointed))
            await asyncio.sleep(0)

    async def all_of_it() -> None:
        task = asyncio.create_task(others())
        await scene.moves.repoint()
        task.cancel()

    asyncio.run(all_of_it())
    assert len(turns) >= 49
    assert max(after - before for before, after in pairwise(turns)) <= 1
