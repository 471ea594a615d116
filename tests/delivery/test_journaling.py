"""Nothing is sent that is not written down, whatever the disk does."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

import pytest

from aiorecover.delivery import journaling
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import stalls as stalls_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.journal import Entry, decode
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import EPOCH_LIMIT, Identity, Lane
from aiorecover.errors import DeliveryPendingError
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal.lanes import BLOCK_BYTES, FIRST_BLOCKS, Lanes
from aiorecover.wal.slot import Slot
from tests.delivery.remembering import Broker
from tests.delivery.test_exactly_once import producer_of
from tests.wal.memory import FaultyFile, broken, no_room

pytestmark = pytest.mark.asyncio


class Scene:
    """A journal over a file in memory, with a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journaling, "ROOM_PAUSE", 0.001)
        self.file = FaultyFile("lanes")
        self.lanes = Lanes(self.file, 1, 1, "boot")
        self.growths = 0
        self.now_ms = 123
        self.journal = Journal(self.lanes, self.grow, lambda: self.now_ms)

    async def grow(self) -> None:
        self.growths += 1
        await asyncio.sleep(0)
        self.lanes.grow()

    def entries(self) -> Sequence[Entry]:
        return [decode(block.bodies[0]) for block in Lanes(self.file, 1, 1, "boot").found]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def batch_of(lane: Lane, *places: int) -> LaneBatch:
    batch = LaneBatch(1000, 0)
    header = fmt.SlotHeader(1 << 14, 0, 9, 1, 1 << 16, 1, 0)
    batch.start_group(Slot(0, header)).extend(places)
    batch.count = len(places)
    lane.identify(batch, Identity(7, 1))
    return batch


async def test_a_batch_is_written_down_with_its_identity_and_its_frames(scene: Scene) -> None:
    lane = Lane("t", 3)
    lane.sequence, lane.identity, lane.offset = 40, Identity(7, 1), 99
    batch = batch_of(lane, 36, 50)
    await scene.journal.enter(lane, batch)
    (entry,) = scene.entries()
    assert (entry.lane, entry.identity, entry.base_sequence, entry.count) == (("t", 3), Identity(7, 1), 40, 2)
    assert (entry.offset, entry.at_ms) == (99, 123)
    assert [(group.ordinal, list(group.places)) for group in entry.groups] == [(9, [36, 50])]


async def test_a_batch_that_stands_there_is_not_written_again(scene: Scene) -> None:
    lane = Lane("t", 3)
    batch = batch_of(lane, 36)
    await scene.journal.enter(lane, batch)
    scene.file.before["write"] = broken
    await scene.journal.enter(lane, batch)


async def test_under_another_identity_a_batch_is_written_down_anew(scene: Scene) -> None:
    lane = Lane("t", 3)
    batch = batch_of(lane, 36)
    await scene.journal.enter(lane, batch)
    lane.renew(batch, Identity(8, 0))
    await scene.journal.enter(lane, batch)
    assert [entry.identity for entry in scene.entries()] == [Identity(7, 2)]


async def test_what_is_forgotten_is_not_found_again_and_the_block_stays_the_lane_s(scene: Scene) -> None:
    lane = Lane("t", 3)
    await scene.journal.enter(lane, batch_of(lane, 36))
    block = lane.block
    scene.journal.forget(lane)
    assert scene.entries() == []
    scene.journal.repoint(lane)
    assert scene.entries() == []
    following = batch_of(lane, 50)
    await scene.journal.enter(lane, following)
    assert lane.block == block
    assert [entry.base_sequence for entry in scene.entries()] == [1]


@pytest.mark.parametrize("change", ["taken back", "renewed", "put back", "cut"])
async def test_a_batch_is_pointed_to_its_copies_under_the_identity_that_stands_there(scene: Scene, change: str) -> None:
    """A refused batch waits without one until it is cut or buried: for ever, where the dead ring is full."""
    lane = Lane("t", 3)
    batch = batch_of(lane, 36)
    lane.in_flight = batch
    await scene.journal.enter(lane, batch)
    (before,) = scene.entries()
    assert lane.entered is batch
    if change == "taken back":
        lane.take_back(batch, Identity(8, 0))
    elif change == "renewed":
        lane.renew(batch, Identity(8, 0))
    elif change == "cut":  # its parts are not written down: what stands there may be in Kafka, and is sent again
        lane.replace([LaneBatch(1000, 0), LaneBatch(1000, 0)])
    else:
        lane.put_back()
    scene.now_ms += 1
    scene.journal.repoint(lane)
    assert scene.entries() == [replace(before, at_ms=124)]


async def test_a_batch_that_is_moved_is_as_old_as_its_first_attempt_that_may_have_come_through(scene: Scene) -> None:
    """Kafka knows nothing of moves: its time with an identity goes on."""
    lane = Lane("t", 3)
    batch = batch_of(lane, 36)
    lane.in_flight = batch
    await scene.journal.enter(lane, batch)
    batch.begin_attempt(1, scene.now_ms + 1)
    batch.possibly = True
    scene.now_ms += 9
    batch.begin_attempt(1, scene.now_ms)
    scene.journal.repoint(lane)
    assert [entry.at_ms for entry in scene.entries()] == [124]


async def test_a_batch_that_is_parted_with_stays_written_down_as_that_until_another_one_is(scene: Scene) -> None:
    lane = Lane("t", 3)
    batch = batch_of(lane, 36, 50)
    await scene.journal.enter(lane, batch)
    batch.possibly = True
    scene.journal.part_with(lane)
    lane.part_with(batch)
    (entry,) = scene.entries()
    assert (entry.parted, entry.identity) == (True, Identity(7, 1))
    scene.journal.repoint(lane)
    assert scene.entries() == [entry], "it is nowhere any more"
    following = batch_of(lane, 64)
    await scene.journal.enter(lane, following)
    assert [(entry.parted, entry.identity) for entry in scene.entries()] == [(False, Identity(7, 2))]


async def test_where_the_disk_fails_a_batch_that_is_parted_with_stays_as_it_was_written_down(scene: Scene) -> None:
    lane = Lane("t", 3)
    batch = batch_of(lane, 36, 50)
    await scene.journal.enter(lane, batch)
    before = scene.entries()
    scene.file.before["write"] = broken
    scene.journal.part_with(lane)
    scene.file.before.clear()
    assert scene.entries() == before
    assert lane.entered is batch


async def test_what_comes_together_in_one_slot_is_written_down_as_one_group(scene: Scene) -> None:
    """Else an entry outgrows its place, once the records of a sparse lane are moved out of many slots."""
    lane, batch = Lane("t", 3), LaneBatch(1000, 0)
    home = Slot(0, fmt.SlotHeader(1 << 14, 0, 99, 1, 1 << 16, 1, 0))
    for number in range(100):
        slot = Slot(0, fmt.SlotHeader(1 << 14, 0, number + 1, 1, 1 << 16, 1, 0))
        batch.start_group(slot).append(36)
        slot.copies.add(36, home, 36 + number)
        slot.moved = True
    batch.count = 100
    lane.identify(batch, Identity(7, 1))
    await scene.journal.enter(lane, batch)
    (entry,) = scene.entries()
    assert [(group.ordinal, list(group.places)) for group in entry.groups] == [(99, list(range(36, 136)))]


async def test_a_lane_keeps_its_block(scene: Scene) -> None:
    lanes = [Lane("t", number) for number in range(2)]
    for _ in range(3):
        for lane in lanes:
            await scene.journal.enter(lane, batch_of(lane, 36))
    assert [lane.block for lane in lanes] == [0, 1]
    assert [entry.base_sequence for entry in scene.entries()] == [2, 2]


async def test_many_lanes_that_need_a_block_at_once_each_get_their_own(scene: Scene) -> None:
    lanes = [Lane("t", number) for number in range(100)]
    await asyncio.gather(*[scene.journal.enter(lane, batch_of(lane, 36)) for lane in lanes])
    assert sorted(lane.block or 0 for lane in lanes) == list(range(100))
    assert [entry.partition for entry in sorted(scene.entries(), key=lambda entry: entry.partition)] == list(range(100))


@pytest.mark.parametrize(("call", "error"), [("allocate", no_room), ("allocate", broken)])
async def test_a_batch_waits_until_it_can_be_written_down_and_one_line_says_so(
    scene: Scene, caplog: pytest.LogCaptureFixture, call: str, error: Callable[[], None]
) -> None:
    scene.file.before[call] = error
    lane = Lane("t", 3)
    batch = batch_of(lane, 36)
    with caplog.at_level(logging.WARNING):
        entering = asyncio.ensure_future(scene.journal.enter(lane, batch))
        await asyncio.sleep(0.05)
        assert not entering.done()
        assert batch.entered is None
        assert [record.message.startswith("a batch cannot be written") for record in caplog.records] == [True]
    scene.file.before.clear()
    await entering
    assert [entry.partition for entry in scene.entries()] == [3]


async def test_a_lane_that_finds_no_room_does_not_get_through_and_says_why_until_it_does(scene: Scene) -> None:
    lane, told = Lane("t", 3), []
    scene.journal = Journal(scene.lanes, scene.grow, lambda: 0, on_failed=lambda *failed: told.append(failed))
    scene.file.before["allocate"] = no_room
    began = time.monotonic()
    entering = asyncio.ensure_future(scene.journal.enter(lane, batch_of(lane, 36)))
    await _until(lambda: len(told) > 1)
    assert all(which is lane and began <= at <= time.monotonic() for which, at in told)
    assert told == sorted(told, key=itemgetter(1))
    assert lane.no_room.startswith("no room to grow the file: free disk space")
    scene.file.before.clear()
    assert await entering
    assert lane.no_room == ""


async def test_a_lane_that_nothing_is_to_be_sent_to_any_more_waits_for_no_room(scene: Scene) -> None:
    lane = Lane("t", 3)
    scene.file.before["allocate"] = no_room
    entered = await scene.journal.enter(lane, batch_of(lane, 36), lambda: True)
    assert (entered, lane.no_room, lane.block) == (False, "", None)


def acknowledge(lane: Lane, batch: LaneBatch) -> None:
    lane.in_flight = batch
    lane.acknowledged()


async def test_where_there_is_no_room_lanes_take_turns_with_the_blocks_that_there_are(scene: Scene) -> None:
    lanes = [Lane("t", number) for number in range(FIRST_BLOCKS + 3)]
    batches = [batch_of(lane, 36) for lane in lanes]
    for lane, batch in zip(lanes[:FIRST_BLOCKS], batches, strict=False):
        await scene.journal.enter(lane, batch)
    scene.file.before["allocate"] = no_room
    for number in (2, 5, 3):  # and those of the others are not answered yet
        acknowledge(lanes[number], batches[number])
    await scene.journal.enter(lanes[5], again := batch_of(lanes[5], 72))
    acknowledge(lanes[5], again)
    for lane, batch in zip(lanes[FIRST_BLOCKS:], batches[FIRST_BLOCKS:], strict=True):
        assert await scene.journal.enter(lane, batch)
    assert [lane.block for lane in lanes] == [0, 1, None, None, 4, None, 6, 7, 2, 3, 5]
    assert [entry.partition for entry in scene.entries()] == [0, 1, 8, 9, 4, 10, 6, 7]
    acknowledge(lanes[9], batches[9])
    assert await scene.journal.enter(lanes[2], batch_of(lanes[2], 90))
    assert [entry.partition for entry in scene.entries()] == [0, 1, 8, 2, 4, 10, 6, 7]


@pytest.mark.parametrize("what", ["in flight", "put back", "parted with", "not written", "of the last process"])
async def test_what_the_next_process_may_need_keeps_its_block(scene: Scene, what: str) -> None:
    lane, waiting = Lane("t", 0), Lane("t", 1)
    if what == "of the last process":
        await scene.journal.enter(Lane("t", 0), batch_of(Lane("t", 0), 36))
        lane.resume(5, 0)
        scene.journal.took_up(lane)
        lane.hold(1)
    else:
        batch = batch_of(lane, 36)
        await scene.journal.enter(lane, batch)
        if what in {"in flight", "not written"}:
            lane.in_flight = batch
        if what == "not written":
            acknowledge(lane, batch)
            scene.file.before["write"] = broken
            await scene.journal.enter(lane, following := batch_of(lane, 72))
            scene.file.before.clear()
            acknowledge(lane, following)
        if what == "parted with":
            scene.journal.part_with(lane)
    while scene.lanes.take() is not None:
        pass
    scene.file.before["allocate"] = no_room
    before = scene.entries()
    entering = asyncio.ensure_future(scene.journal.enter(waiting, batch_of(waiting, 36)))
    await _until(lambda: scene.growths > 5)
    assert (entering.done(), lane.block) == (False, 0)
    assert scene.entries() == before
    scene.file.before.clear()
    assert await entering


async def test_what_was_spent_when_the_last_process_died_keeps_no_block(scene: Scene) -> None:
    lanes = [Lane("t", number) for number in range(FIRST_BLOCKS)]
    for lane in lanes:
        await scene.journal.enter(lane, batch_of(lane, 36))
    last, waiting = Journal(scene.lanes, scene.grow, lambda: 0), Lane("t", FIRST_BLOCKS)
    resumed = [Lane("t", number) for number in range(FIRST_BLOCKS)]
    for number, lane in enumerate(resumed):
        lane.resume(5, number)
        if number != 4:  # it had parted with its batch
            last.took_up(lane)
        if number != 6:
            lane.hold(1)
    scene.file.before["allocate"] = no_room
    assert await last.enter(waiting, batch_of(waiting, 36))
    assert (waiting.block, resumed[6].block) == (6, None)
    assert [entry.partition for entry in scene.entries()] == [0, 1, 2, 3, 4, 5, FIRST_BLOCKS, 7]


async def test_a_block_that_cannot_be_cleared_is_given_to_nobody(scene: Scene) -> None:
    lane, waiting = Lane("t", 0), Lane("t", 1)
    batch = batch_of(lane, 36)
    await scene.journal.enter(lane, batch)
    acknowledge(lane, batch)
    while scene.lanes.take() is not None:
        pass
    scene.file.before.update(allocate=no_room, write=broken)
    entering = asyncio.ensure_future(scene.journal.enter(waiting, batch_of(waiting, 36)))
    await _until(lambda: scene.growths > 5)
    assert (entering.done(), lane.block) == (False, 0)
    scene.file.before.clear()
    assert await entering
    assert waiting.block != 0


async def test_many_lanes_that_wait_for_room_ask_for_it_no_more_often_than_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling, "ROOM_PAUSE", 0.1)
    scene.file.before["allocate"] = no_room
    lanes = [Lane("t", number) for number in range(50)]
    entering = asyncio.gather(*[scene.journal.enter(lane, batch_of(lane, 36)) for lane in lanes])
    began = time.monotonic()
    await _until(lambda: scene.growths > 4)
    assert time.monotonic() - began > 0.15
    assert all(lane.no_room for lane in lanes)
    scene.file.before.clear()
    await entering
    assert len({lane.block for lane in lanes}) == len(lanes)


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_lane_that_waits_for_room_no_more_is_not_waited_for(scene: Scene, leaves: bool) -> None:
    lane = Lane("t", 3)
    scene.file.before["allocate"] = no_room
    entering = asyncio.ensure_future(scene.journal.enter(lane, batch_of(lane, 36), lambda: leaves))
    await _until(lambda: scene.growths > 0)
    waits = [scene.lanes.awaited]
    if not leaves:
        scene.file.before.clear()
    await entering
    waits.append(scene.lanes.awaited)
    assert waits == [True, False]


async def test_lanes_without_room_are_one_line_beside_one_that_goes_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    known, others = Lane("t", 0), [Lane("t", number) for number in (1, 2)]
    await scene.journal.enter(known, batch_of(known, 36))
    while scene.lanes.take() is not None:
        pass
    scene.file.before["allocate"] = no_room
    with caplog.at_level(logging.WARNING):
        entering = asyncio.gather(*[scene.journal.enter(lane, batch_of(lane, 36)) for lane in others])
        growths = scene.growths
        while scene.growths < growths + 10:
            await scene.journal.enter(known, batch_of(known, 36))
            await asyncio.sleep(0.001)
        assert [" topic=t partition=1 error=" in record.getMessage() for record in caplog.records] == [True]
        scene.file.before.clear()
        await entering


async def test_a_lane_with_a_block_goes_on_under_the_next_epoch_while_the_disk_fails(scene: Scene) -> None:
    """What stands there gives an identity that Kafka refuses by then, so it cannot pass a new batch for an old one."""
    lane = Lane("t", 3)
    await scene.journal.enter(lane, batch_of(lane, 36))
    scene.file.before["write"] = broken
    identities = []
    for _ in range(3):
        batch = batch_of(lane, 36)
        await scene.journal.enter(lane, batch)
        identities.append(batch.identity)
    assert identities == [(7, 2, 0), (7, 2, 1), (7, 2, 2)]
    scene.file.before.clear()
    assert [entry.identity for entry in scene.entries()] == [Identity(7, 1)]
    await scene.journal.enter(lane, batch_of(lane, 36))
    assert [(entry.identity, entry.base_sequence) for entry in scene.entries()] == [(Identity(7, 2), 3)]


async def test_a_lane_at_its_last_epoch_needs_another_producer_id_while_the_disk_fails(scene: Scene) -> None:
    """The same epoch from sequence 0 on would have the broker take new batches for those that it has."""
    lane, first = Lane("t", 3), batch_of(Lane("t", 4), 36)
    lane.renew(first, Identity(7, EPOCH_LIMIT - 1))
    await scene.journal.enter(lane, first)
    scene.file.before["write"] = broken
    batch = batch_of(lane, 36)
    assert batch.identity == (7, EPOCH_LIMIT - 1, 1)
    found = await scene.journal.enter(lane, batch), lane.identity, lane.used_up, _identity(batch)
    assert found == (False, None, 7, None)
    lane.identify(batch, Identity(8, 0))
    assert await scene.journal.enter(lane, batch)
    assert batch.entered == (8, 0, 0)


def _identity(batch: LaneBatch) -> object:
    return batch.identity


async def test_a_lane_that_has_a_block_needs_no_room_on_a_full_disk(scene: Scene) -> None:
    lane = Lane("t", 3)
    await scene.journal.enter(lane, batch_of(lane, 36))
    size = scene.file.size()
    assert size >= FIRST_BLOCKS * BLOCK_BYTES
    for _ in range(3):
        await scene.journal.enter(lane, batch_of(lane, *range(36, 4000)))
    assert scene.file.size() == size


async def test_a_lane_without_room_for_its_entry_is_not_sent_and_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Broker(FIRST_BLOCKS + 1)
    monkeypatch.setattr(sessions_module, "Session", kafka.session())
    monkeypatch.setattr(journaling, "ROOM_PAUSE", 0.001)
    async with producer_of(MemoryDisk(), stop_timeout_ms=500) as producer:
        with monkeypatch.context() as full:
            full.setattr(Lanes, "grow", _no_room)
            full.setattr(Journal, "_free_block", _none_is_spent)
            for partition in range(FIRST_BLOCKS + 1):
                await producer.publish("t", b"x", partition=partition)
            await _until(lambda: sum(map(len, kafka.logs.values())) == FIRST_BLOCKS)
            (waiting,) = [number for number, log in kafka.logs.items() if not log]
            other = next(number for number in kafka.logs if number != waiting)
            for count in range(2, 6):
                await producer.publish("t", b"x", partition=other)
                await _until(partial(_holds, kafka, other, count))
            assert kafka.logs[waiting] == []
        await producer.flush(timeout_ms=10_000)
        assert kafka.logs[waiting] == [b"x"]


async def test_a_lane_without_room_for_its_entry_is_passed_over_and_caught_up_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More waits for it than a lane may hold: the one reader would stand still, and with it all lanes."""
    rounds, partitions = 40, range(FIRST_BLOCKS + 1)
    kafka = Broker(len(partitions))
    monkeypatch.setattr(sessions_module, "Session", kafka.session())
    monkeypatch.setattr(journaling, "ROOM_PAUSE", 0.001)
    for name in ("STALLED_AFTER", "OTHERS_AFTER"):
        monkeypatch.setattr(stalls_module, name, 0.01)
    published: dict[int, list[bytes]] = {partition: [] for partition in partitions}
    async with producer_of(MemoryDisk(), stop_timeout_ms=500, max_batch_size=1024) as producer:
        with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "aiorecover.delivery"):
            full.setattr(Lanes, "grow", _no_room)
            full.setattr(Journal, "_free_block", _none_is_spent)
            for number in range(rounds):
                for partition in partitions:
                    value = (b"%d " % number).ljust(300, b"x")
                    receipt = await producer.publish("t", value, partition=partition)
                    published[partition].append(value)
            await _until(lambda: sum(map(len, kafka.logs.values())) == FIRST_BLOCKS * rounds)
            (waiting,) = [number for number, log in kafka.logs.items() if not log]
            assert producer.statistics().lanes_stalled == 1
            receipt = await producer.publish("t", b"last", partition=waiting)
            published[waiting].append(b"last")
            with pytest.raises(DeliveryPendingError) as pending:
                await receipt.delivered(timeout_ms=50)
            assert f"waits for room on the disk topic=t partition={waiting} error=" in str(pending.value)
            lines = [record.getMessage() for record in caplog.records]
            told = [line for line in lines if line.startswith("a batch cannot be written down before it is sent")]
            assert [f"topic=t partition={waiting} error=" in line for line in told] == [True], lines
        await producer.flush(timeout_ms=10_000)
        assert (producer.statistics().lanes_stalled, kafka.repeats) == (0, 0)
    assert kafka.logs == published


def _holds(kafka: Broker, partition: int, count: int) -> bool:
    return len(kafka.logs[partition]) == count


def _no_room(_: Lanes) -> None:
    no_room()


def _none_is_spent(_: Journal) -> bool:
    """As if each lane with a block had something in flight at any time."""
    return False


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.001)
