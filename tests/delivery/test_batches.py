"""What the lanes hold open: bounded together, handed over in time."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from aiorecover.delivery import batches as module
from aiorecover.delivery import lane as lane_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.batches import BATCH_BYTES, SMALLEST_BATCH, Batches
from aiorecover.delivery.lane import MAX_READY, Lane
from aiorecover.delivery.lingering import AT_ONCE
from aiorecover.delivery.parts import part_of

pytestmark = pytest.mark.asyncio

ROUTER: Any = SimpleNamespace(rotate=lambda lane: None)
SLOT: Any = SimpleNamespace(name="one slot")
OTHER: Any = SimpleNamespace(name="another")
ATTRIBUTES_AT = 21  # two bytes of a record batch
TRANSACTIONAL = 0x10


class Held:
    """The bytes that stalled lanes have."""

    bytes = 0


def batches_of(sent: list[Lane], held: Any = None, *, linger: float = 0.0, transactional: bool = False) -> Batches:
    stalled: Any = held or Held()
    return Batches(
        ROUTER,
        stalled,
        sent.append,
        codec=0,
        batch_bytes=1 << 20,
        linger=linger,
        doubtful_up_to=0,
        transactional=transactional,
    )


def refuse(*_: object) -> None:
    raise MemoryError


def fill(batches: Batches, lane: Lane) -> None:
    batch = lane.open or batches.begin(lane)
    assert batch is not None
    batch.add(batch.count, 1, None, b"v", [])
    batch.count += 1


async def test_the_more_lanes_are_open_the_smaller_their_batches_but_none_is_smaller_than_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def batch(size: int, codec: int, **_: bool) -> Any:
        sizes.append(size)
        return SimpleNamespace(count=0)

    monkeypatch.setattr(module, "LaneBatch", batch)
    batches = batches_of([])
    for number in range(2_000):
        batches.begin(Lane("t", number))
    assert sizes[0] == 1 << 20
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == SMALLEST_BATCH
    assert sum(sizes[:500]) <= 4 * BATCH_BYTES


async def test_none_is_begun_without_room_in_the_lane_or_in_all_of_them_or_before_what_was_in_flight() -> None:
    held = Held()
    batches = batches_of([], held)
    lane = Lane("t", 0)
    batches.closed_bytes = BATCH_BYTES
    assert batches.begin(lane) is None
    held.bytes = 1  # of a stalled lane: the others have that much more
    assert batches.begin(lane) is not None
    batches.resuming = True
    assert batches.begin(Lane("t", 1)) is None
    batches.resuming = False
    full = Lane("t", 2)
    full.ready.extend([SimpleNamespace()] * MAX_READY)  # type: ignore[list-item]
    assert batches.begin(full) is None


async def test_in_transactions_lanes_hold_what_comes_while_one_is_committed_which_fills_half_of_the_memory() -> None:
    batches = batches_of([], transactional=True)
    lane = Lane("t", 0)
    lane.ready.extend([SimpleNamespace()] * MAX_READY)  # type: ignore[list-item]
    ends = []
    for batches.closed_bytes in (BATCH_BYTES - 1, BATCH_BYTES):
        ends.append(batches.fill_a_run)
    assert ends == [False, True]
    batches.closed_bytes = 0
    assert batches.begin(lane) is not None
    batches.closed_bytes = BATCH_BYTES
    assert batches.full
    batches.committing = True
    assert batches.begin(lane) is not None
    batches.closed_bytes = 2 * BATCH_BYTES
    assert batches.begin(Lane("t", 1)) is None


async def test_what_a_halted_lane_closes_counts_once_it_goes_on() -> None:
    batches = batches_of([], transactional=True)
    lane = Lane("t", 0)
    fill(batches, lane)
    lane.halt("no room for a dead letter", "purge")
    batches.close_all()
    assert lane.closed_bytes > 0
    assert batches.closed_bytes == 0


async def test_when_the_linger_is_over_an_idle_lane_sends_and_a_busy_one_follows_what_is_in_flight() -> None:
    sent: list[Lane] = []
    batches = batches_of(sent, linger=5.0)
    assert batches.due == inf
    idle, busy = Lane("t", 0), Lane("t", 1)
    fill(batches, busy)
    batches.close(busy)
    assert busy.next() is not None
    began = asyncio.get_running_loop().time()
    batches.hand_over()
    for lane in (idle, busy):
        fill(batches, lane)
    assert began + 5.0 <= batches.due < inf
    batches.hand_over()
    assert sent == [busy, idle]
    assert batches.due == inf
    busy.acknowledged()
    batches.follow(busy)
    assert sent == [busy, idle, busy]


async def test_of_a_thousand_lanes_a_tick_hands_over_the_oldest_and_who_waits_gets_all_of_them_handed_over() -> None:
    sent: list[Lane] = []
    batches = batches_of(sent)
    lanes = [Lane("t", number) for number in range(1000)]
    for lane in lanes:
        fill(batches, lane)
    batches.tick(busy=True)
    assert sent == lanes[:AT_ONCE]
    assert batches.due < inf
    batches.hand_over()
    assert sent == lanes
    assert batches.due == inf


@pytest.mark.parametrize("busy", [False, True])
async def test_a_batch_that_could_not_be_closed_is_handed_over_by_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, *, busy: bool
) -> None:
    sent: list[Lane] = []
    batches = batches_of(sent)
    lane, other = Lane("t", 0), Lane("t", 1)
    if busy:
        fill(batches, lane)
        batches.close(lane)
        lane.next()
        sent.clear()
    for each in (lane, other):
        fill(batches, each)
    with monkeypatch.context() as failing:
        failing.setattr(LaneBatch, "finish", refuse)
        if busy:
            with pytest.raises(MemoryError):
                batches.tick(busy=True)
            lane.acknowledged()
        with pytest.raises(MemoryError):
            batches.follow(lane) if busy else batches.tick(busy=True)
    assert batches.due < inf
    await asyncio.sleep(0.01)
    batches.tick(busy=True)
    assert sorted(each.partition for each in sent) == [0, 1]
    assert batches.due == inf


async def test_an_empty_batch_goes_nowhere_and_a_halted_lane_s_is_dropped() -> None:
    sent: list[Lane] = []
    batches = batches_of(sent)
    lane = Lane("t", 0)
    batches.begin(lane)
    batches.close(lane)
    fill(batches, lane)
    batches.drop_open(lane)
    batches.hand_over()
    assert (sent, batches.closed_bytes) == ([], 0)


async def test_what_was_found_in_kafka_is_settled_with_its_neighbours_there_and_apart_from_what_has_to_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FOUND_MOST", 3)
    monkeypatch.setattr(lane_module, "MAX_READY", 9)
    sent: list[Lane] = []
    batches = batches_of(sent)
    lane = Lane("t", 0)
    fill(batches, lane)
    for slot, offset in ((SLOT, 7), (OTHER, 8), (OTHER, 10), (OTHER, 11), (OTHER, 12), (OTHER, 13)):
        assert batches.add_found(lane, slot, offset, offset)
    first, *found = [*lane.ready, lane.open]
    assert first is not None
    assert (first.found_at, first.count) == (None, 1)
    assert [(one.found_at, one.count) for one in found if one is not None] == [(7, 2), (10, 3), (13, 1)]
    assert found[0] is not None
    assert [(slot.name, places) for slot, places in found[0].frames] == [("one slot", [7]), ("another", [8])]  # type: ignore[attr-defined]


async def test_where_a_transaction_ends_all_that_is_open_belongs_to_it_also_behind_other_batches() -> None:
    sent: list[Lane] = []
    batches = batches_of(sent, linger=5.0)
    idle, busy = Lane("t", 0), Lane("t", 1)
    for _ in range(MAX_READY):
        fill(batches, busy)
        batches.close(busy)
    busy.next()
    for lane in (idle, busy, busy):
        fill(batches, lane)
    batches.close_all()
    assert [(lane.open, lane.added, len(lane.ready)) for lane in (idle, busy)] == [(None, 1, 1), (None, 4, 2)]
    assert batches.closed_bytes == sum(batch.bytes for lane in (idle, busy) for batch in lane.batches)
    assert sent[-2:] == [idle, busy]


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_batch_says_to_kafka_whether_it_belongs_to_a_transaction(*, transactional: bool) -> None:
    batches = batches_of([], transactional=transactional)
    lane = Lane("t", 0)
    fill(batches, lane)
    batches.close(lane)
    (batch,) = lane.ready
    assert bool(bytes(batch._build())[ATTRIBUTES_AT + 1] & TRANSACTIONAL) is transactional
    part = await part_of(batch, [], 0)
    assert part.transactional is transactional
