"""Slots are counted anew while who waits for their records waits: each is told, also where that comes too late."""

import asyncio
import errno
from typing import Any, cast

import pytest

from aiorecover import recounting as module
from aiorecover.delivery import reports as reports_module
from aiorecover.delivery.reports import Reports
from aiorecover.errors import PermanentDeliveryError, WalIOError
from aiorecover.receipt import DeliveryReport
from aiorecover.recounting import Recounting
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.recount import Recount, Recounted
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from tests.wal.rig import Opened
from tests.wal.rig import read as read_slot
from tests.wal.test_recount import all_counted_anew, filled, goes_back, rot, rots, second
from tests.wal.test_stream import Life, read, settle

pytestmark = pytest.mark.asyncio

Waiter = asyncio.Future[DeliveryReport]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "READ_PAUSE", 0.0)


class Rig:
    """Counts anew in a directory; what somebody has in hand is given."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.reports = Reports(directory, None)
        self.in_hand: set[int] = set()
        rig = cast("Any", self)
        self.ended = 0  # how often a slot was told to count no more than what is there
        self.recounting = Recounting(directory, rig, rig, self.reports, self._on_counted)

    def may_recount(self, slot: Slot) -> bool:
        return slot.complete

    def places_in(self, _: Slot) -> set[int]:
        return self.in_hand

    def _on_counted(self) -> None:
        self.ended += 1

    async def look(self) -> None:
        """As often as it takes."""
        for _ in range(5):
            await self.recounting.look()

    def waits_for(self, sequence: int, place: int) -> Waiter:
        return self.reports.waiter("t", sequence, place)


class InRing(Rig):
    """Forty records of a slot were read; the fifth rots in somebody's hands, the thirtieth while it is behind."""

    def __init__(self) -> None:
        self.opened = Opened()
        self.entries = filled(self.opened)
        self.slot = self.opened.ring.live[0]
        self.opened.ring.go_on()
        self.opened.append(b"next slot")
        self.opened.settle(self.opened.read())
        self.opened.reader.close()
        super().__init__(self.opened.directory)

    def rots(self) -> None:
        rot(self.opened, 5, 30)
        second(self.opened, self.entries[0])
        self.opened.keep_damaged()
        self.in_hand = {self.entries[4][1]}

    def ends(self) -> None:
        """All is settled but for what is lost."""
        self.in_hand = set()
        self.opened.settle(entry for entry in self.entries if entry[2] != 30)
        assert self.slot.done

    def asks(self, number: int) -> Waiter:
        _, place, sequence, _ = self.entries[number - 1]
        return self.waits_for(sequence, place)


class InRetryRing(Rig):
    """Records wait in the retry ring, in a slot that is full."""

    def __init__(self) -> None:
        self.life = Life()
        for _ in range(2):
            self.life.move()
        super().__init__(self.life.directory)
        self.slot = self.directory.retry.live[0]
        self.directory.retry.go_on()
        self.copies = [one for one in read(self.life.first.back_to(0)) if one[0] is self.slot]
        self.originals = [one for one in self.life.left if one[2] <= self.life.opened.ring.moved_up_to]

    def rot(self, number: int) -> None:
        """With its settle word."""
        self.directory.files.retry.damage(self.slot.file_offset + 4 * self.copies[number][1], b"rotten")  # type: ignore[attr-defined]

    def settle(self, *but: int) -> None:
        settle([one for number, one in enumerate(self.copies) if number not in but])

    def asks(self, number: int) -> Waiter:
        _, place, position, _ = self.originals[number]
        return self.waits_for(position & fmt.SEQUENCE_MASK, place)

    def rewrite(self) -> None:
        rewriting = self.life.copy_anew()
        rewriting.check()
        self.life.make_anew(rewriting)
        assert self.slot.moved


def is_told_lost(waiter: Waiter, persisted: str) -> None:
    with pytest.raises(PermanentDeliveryError, match="damage took the record") as caught:
        waiter.result()
    assert caught.value.persisted == persisted


def fails(*_: object) -> None:
    raise WalIOError(errno.EIO, "the disk is away")


@pytest.mark.parametrize("recycled", [False, True])
async def test_what_was_lost_beside_a_record_in_hand_is_told_also_if_that_was_the_last_of_its_slot(
    *, recycled: bool
) -> None:
    ring = InRing()
    early, in_hand, other = ring.asks(30), ring.asks(5), ring.asks(12)
    ring.rots()
    await ring.look()
    late = ring.asks(30)
    assert not any(waiter.done() for waiter in (early, in_hand, other, late)), "nothing tells the two apart yet"
    ring.ends()
    if recycled:
        ring.opened.checkpoint()
        assert ring.slot not in ring.opened.ring.live
    await ring.look()
    for waiter in (early, late):
        is_told_lost(waiter, "not")
    assert not ring.opened.ring.losses.miscounted


async def test_what_was_lost_beside_a_record_in_hand_is_told_also_if_the_rest_of_its_slot_is_moved() -> None:
    life = Life()
    slot = life.opened.ring.live[0]
    rig = Rig(life.directory)
    inside = [one for one in life.left if one[0] is slot]
    (_, held, _, _), (_, place, position, _) = inside[1:3]
    waiter = rig.waits_for(position & fmt.SEQUENCE_MASK, place)
    waits = rig.waits_for(inside[3][2] & fmt.SEQUENCE_MASK, inside[3][1])
    for rotten in (held, place):
        life.opened.disk.ring.damage(slot.file_offset + rotten * 4 + 30, b"rot")
    read_slot(reader := life.opened.reader.behind(slot, inside[0][1], inside[0][2] & fmt.SEQUENCE_MASK))
    reader.close()
    life.opened.keep_damaged()
    rig.in_hand = {held}
    await rig.look()
    rig.in_hand = set()
    settle(inside[1:2])
    copying = life.copy()
    copying.check()
    life.make(copying)
    assert slot.moved
    await rig.look()
    is_told_lost(waiter, "not")
    assert not waits.done(), "its copy waits"


@pytest.mark.parametrize("made", [False, True])
async def test_what_rots_once_it_was_copied_is_told_lost_only_where_the_copies_are_given_up(
    monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    life = Life()
    slot = life.opened.ring.live[0]
    rig = Rig(life.directory)
    inside = [one for one in life.left if one[0] is slot]
    _, place, position, _ = inside[2]
    waiter = rig.waits_for(position & fmt.SEQUENCE_MASK, place)
    copying = life.copy()
    rots(life, slot, place)
    goes_back(life, inside[0])
    life.opened.keep_damaged()
    await rig.look()
    assert not waiter.done(), "its copy may count at any moment"
    with monkeypatch.context() as patch:
        patch.setattr(Recount, "step", None)  # nothing has changed since: it is not counted a second time
        await rig.look()
    if not made:
        assert copying.abandon()
        await rig.look()
        is_told_lost(waiter, "not")
        return
    copying.check()
    life.make(copying)
    await rig.look()
    assert not waiter.done()
    assert life.directory.lost == 0
    settle([one for one in read(life.first.back_to(0)) if one[2] == position])
    assert life.directory.is_settled(position & fmt.SEQUENCE_MASK, place)


async def test_who_asks_for_what_was_settled_before_it_rotted_is_told_once_nothing_of_its_slot_is_left() -> None:
    ring = InRetryRing()
    settle(ring.copies[7:8])
    ring.rot(7)
    waiter = ring.asks(7)
    assert not waiter.done()
    ring.settle(7)
    assert ring.slot.done
    await ring.look()
    assert waiter.result().status == "delivered"
    assert waiter.result() == ring.asks(7).result()


@pytest.mark.parametrize("rewritten", [False, True])
async def test_of_what_was_settled_nobody_knows_any_more_where_a_copy_beside_one_in_hand_was_lost(
    *, rewritten: bool
) -> None:
    ring = InRetryRing()
    early, waits = ring.asks(5), ring.asks(1)
    settle(ring.copies[7:8])
    for rotten in (3, 7, 5):
        ring.rot(rotten)
    ring.in_hand = {ring.copies[3][1]}
    settled = ring.asks(7)
    await ring.look()
    assert ring.directory.retry.lost == 1
    assert not early.done()
    assert not settled.done()
    ring.in_hand = set()
    if rewritten:
        settle(ring.copies[3:4])
        ring.life.opened.keep_damaged()
        ring.rewrite()
    else:
        ring.settle(7, 5)
        assert ring.slot.done
        waits.cancel()
    await ring.look()
    is_told_lost(early, "not")
    is_told_lost(settled, "possibly")
    is_told_lost(ring.asks(7), "possibly")
    assert waits.cancelled() or not waits.done()


async def test_who_is_in_doubt_in_another_slot_waits_on() -> None:
    """A slot of which nothing is left tells nothing of what is in hand elsewhere."""
    ring = InRetryRing()
    for rotten in (3, 5):
        ring.rot(rotten)
    ring.in_hand = {ring.copies[number][1] for number in (3, 5)}
    in_hand = ring.asks(5)
    await ring.look()
    ring.directory.ring.losses.miscounts(ring.life.placed[0][0])  # of which nothing is left
    await ring.look()
    assert not in_hand.done()
    assert list(ring.directory.retry.losses.miscounted) == [ring.slot]


async def test_one_who_is_interrupted_as_he_tells_those_who_wait_tells_the_others_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = InRetryRing()
    monkeypatch.setattr(reports_module, "LOOKS_A_TURN", 2)
    numbers = range(3, 8)
    settle(ring.copies[3:8])
    for number in numbers:
        ring.rot(number)
    waiters = [ring.asks(number) for number in numbers]
    ring.settle(*numbers)
    looking = asyncio.create_task(ring.recounting.look())
    await asyncio.sleep(0)
    assert waiters[0].done()
    assert not waiters[-1].done()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    await ring.look()
    assert {waiter.result().status for waiter in waiters} == {"delivered"}


async def test_nothing_is_kept_of_who_does_not_wait_any_more() -> None:
    ring = InRing()
    waiter = ring.asks(30)
    ring.rots()
    await ring.look()
    ring.reports.forget(30, waiter)
    assert not ring.reports._waiters
    ring.ends()
    await ring.look()
    assert not ring.reports._waiters
    assert not ring.recounting._held
    assert all_counted_anew(ring.opened) == 0


async def test_a_signal_handler_that_raises_while_a_slot_is_read_has_nothing_given_up_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring, look, raised = InRing(), Reader.look, list[Run]()
    rot(ring.opened, 30)
    second(ring.opened, ring.entries[0])
    ring.opened.keep_damaged()

    def look_and_raise(self: Reader, *limits: int) -> Run | None:
        run = look(self, *limits)
        if run is None or raised:
            return run
        raised.append(run)
        raise InterruptedError("a handler's")

    monkeypatch.setattr(Reader, "look", look_and_raise)
    with pytest.raises(InterruptedError):
        await ring.recounting.look()
    await ring.look()  # the loop that calls it is begun again
    assert len(raised[0]) > 1
    assert ring.opened.ring.lost == 1
    ring.ends()


async def test_what_cannot_be_read_is_asked_for_again_after_a_longer_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the count as a reader does, and a device may be away."""
    ring = InRing()
    rot(ring.opened, 30)
    second(ring.opened, ring.entries[0])
    ring.opened.keep_damaged()

    monkeypatch.setattr(module, "READ_PAUSE", 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "look", fails)
        await ring.recounting.look()
    now = asyncio.get_running_loop().time()
    assert 9.0 < ring.recounting._not_before - now <= 10.0
    await ring.look()
    assert ring.opened.ring.lost == 0, "not before that is over"
    ring.recounting._not_before = 0.0
    await ring.look()
    assert ring.opened.ring.lost == 1


async def test_a_slot_that_is_done_while_it_is_counted_is_left_and_whoever_waited_for_the_count_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = InRing()
    rot(ring.opened, 30)
    second(ring.opened, ring.entries[0])
    ring.opened.keep_damaged()
    monkeypatch.setattr(Reader, "look", fails)
    await ring.recounting.look()
    assert ring.slot.readers
    ring.opened.settle(ring.entries)
    assert ring.slot.done
    await ring.look()
    assert not ring.slot.readers
    assert not ring.opened.ring.losses.miscounted
    assert ring.ended == 1


async def test_a_slot_of_which_a_page_was_lost_since_it_was_read_is_read_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring, finish = InRing(), Recount.finish
    rot(ring.opened, 30)
    second(ring.opened, ring.entries[0])
    ring.opened.keep_damaged()

    def lose_and_finish(self: Recount, held: set[int]) -> Recounted | None:
        self.slot.lost_pages.append((0, 1024))
        return finish(self, held)

    with monkeypatch.context() as patch:
        patch.setattr(Recount, "finish", lose_and_finish)
        await ring.recounting.look()
    assert (ring.opened.ring.lost, ring.slot.readers, ring.ended) == (0, 0, 0)
    await ring.recounting.look()
    assert (ring.opened.ring.lost, ring.slot.readers, ring.ended) == (1, 0, 1)
