"""Writes down what is about to be sent (I6b); what an entry says is in `journal`, where it stands in `wal.lanes`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.journal import MAIN, RETRY, Entry, Group, encode
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.errors import WalError, WalFullError
from aiorecover.wal.lanes import Lanes
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

ROOM_PAUSE = 0.5  # seconds until a lane that found no room for its entry tries again: delivery must resume within 1 s


class Journal:
    """The lanes' entries of one producer."""

    def __init__(
        self,
        lanes: Lanes,
        grow: Callable[[], Awaitable[None]],
        clock_ms: Callable[[], int],
        cluster_number: Callable[[], int] = lambda: 0,
        on_failed: Callable[[Lane, float], None] = lambda *_: None,
    ) -> None:
        """``grow`` has blocks allocated, off the loop; ``clock_ms``: time since the machine's boot.

        ``cluster_number``: as in `Destination`, of the cluster that batches are sent to now. ``on_failed`` is told of
        each attempt that a lane found no room in, and when it began, as in `Sessions`.
        """
        self._lanes = lanes
        self._grow = grow
        self._clock_ms = clock_ms
        self._cluster_number = cluster_number
        self._on_failed = on_failed
        self._troubled = False  # it was told that the disk fails
        self._lacks_room = False  # and that a lane waits for a block: also while those that have one go on
        self._growing = asyncio.Lock()
        self._refusal: WalError | None = None  # why there was no room for a block when somebody asked last
        self._ask_from = 0.0  # by `time.monotonic`
        self._holders: dict[Lane, None] = {}  # whose entries are to be spent once, or are, the oldest ones first

    def took_up(self, lane: Lane) -> None:
        """An earlier process has stored what stands in the lane's block, and has not parted with it."""
        self._holders[lane] = None

    async def enter(self, lane: Lane, batch: LaneBatch, over: Callable[[], bool] | None = None) -> bool:
        """Have ``batch`` stand in the lane's block under its present identity; it stands there when this returns.

        A lane without a block waits for room, and does not get through until then: who holds it up for others is told.
        False: meanwhile ``over`` said that the batch shall not be sent any more, or the batch has no identity now, and
        needs that of another producer id.
        One that has a block goes on when the disk fails (I7), under the next producer epoch: whoever finds what stands
        there instead, and uses its identity, is fenced.
        """
        while batch.entered != batch.identity:
            block = await self._block_of(lane)
            if block is None:
                await asyncio.sleep(ROOM_PAUSE)
                if over is not None and over():
                    lane.no_room = ""
                    self._lanes.awaited = False  # of others that wait each says so again
                    return False
                continue
            self._holders.pop(lane, None)
            try:
                for groups in _places(batch):
                    self._lanes.store(block, encode(self._entry(lane, batch.identity, batch, groups)))
                self._troubled = lane.unwritten = False
                self._holders[lane] = None
            except WalError as error:
                self._tell_once(lane, error)
                if not lane.unwritten:
                    lane.unwritten = True
                    if lane.identity is None or lane.at_last_epoch:
                        lane.begin_anew()
                        batch.identity = None
                        return False
                    lane.renew(batch, lane.identity)
            batch.entered = batch.identity
            lane.entered = batch
        return True

    def forget(self, lane: Lane) -> None:
        """What stands in the lane's block never counts again, whatever becomes of its records.

        Raises:
            WalIOError: the disk failed.

        """
        if lane.block is not None:
            self._lanes.clear(lane.block)
        lane.entered = None  # at once: a move would point it to the copies, and so write it down again

    def part_with(self, lane: Lane) -> None:
        """What stands in the entry may be on its way to Kafka and is not sent again: the next process fences it (I6).

        The batch at hand, or the one that it was cut from. Whatever is settled of it by then, and wherever the rest is
        moved. As of now: however old the batch is, its last attempt may be on its way. Where the disk fails, the entry
        stays as it is: who finds a record of it unsettled sends or parts with all of it once more.
        """
        batch = lane.entered
        if batch is None or batch.entered is None or lane.block is None:
            return
        self._holders.pop(lane, None)
        slot, places = batch.frames[0]
        entry = self._entry(lane, batch.entered, batch, (_group(slot, places[:1]),))
        try:
            self._lanes.store(lane.block, encode(replace(entry, count=1, parted=True, at_ms=self._clock_ms())))
        except WalError as error:
            self._tell_once(lane, error)
            return
        batch.entered = lane.entered = None  # should it be sent after all, it is written down anew

    def repoint(self, lane: Lane) -> None:
        """Copies of some of the frames that are in flight were stored in the retry ring.

        Called before the checkpoint that makes the move. What stands in the entry is pointed to them, whatever became
        of it since: it may be put back, or cut. Both places are stored, so it can be called again.

        Raises:
            WalError: it could not be stored: the move must not be made.

        """
        batch = lane.entered
        if batch is None or batch.entered is None or lane.block is None:
            return
        if _groups(batch, made=False) is None:  # settled in part: it is being parted with, and not sent any more
            return
        for groups in _places(batch):  # under the identity that stands there: the batch may have none now, or another
            self._lanes.store(lane.block, encode(self._entry(lane, batch.entered, batch, groups)))

    def _entry(
        self, lane: Lane, identity: tuple[int, int, int] | None, batch: LaneBatch, groups: tuple[Group, ...]
    ) -> Entry:
        if identity is None:
            message = "a batch without an identity cannot be written down"
            raise ValueError(message)
        producer_id, epoch, base_sequence = identity
        return Entry(
            lane.topic,
            lane.partition,
            Identity(producer_id, epoch),
            base_sequence,
            batch.count,
            lane.offset,
            batch.begun_ms if batch.begun_as == identity else self._clock_ms(),  # of a move says nothing of Kafka
            groups,
            self._cluster_number(),
        )

    async def _block_of(self, lane: Lane) -> int | None:
        """None: there is no room for it yet, and so the lane does not get through."""
        if lane.block is not None:
            return lane.block
        began = time.monotonic()
        try:
            lane.block = await self._block()
        except WalError as error:
            self._tell_no_room(lane, error)
            lane.no_room = str(error)
            self._on_failed(lane, began)
            return None
        self._lacks_room &= not self._lanes.free  # with a block that another one had there is no more room than before
        lane.no_room = ""
        return lane.block

    async def _block(self) -> int:
        while (block := self._lanes.take()) is None:
            try:
                await self._grow_once()
            except WalFullError:
                if not self._free_block():
                    raise
        return block

    def _free_block(self) -> bool:
        """Take the block of a lane whose entry is spent: what it tells of is acknowledged, and settled.

        Of these, of the one that has stored it the longest ago. It takes a block again with its next batch: so where
        the disk is full, more lanes than there are blocks get through in turns. Not of one that has parted with a
        batch, until another one has followed.
        """
        lane = next((one for one in self._holders if _is_spent(one)), None)
        if lane is None or lane.block is None:
            return False
        del self._holders[lane]
        try:
            self._lanes.clear(lane.block)
        except WalError as error:
            self._tell_once(lane, error)
            return False
        self._lanes.give_back(lane.block)
        lane.block = None
        return True

    async def _grow_once(self) -> None:
        """For all lanes that wait, a thousand perhaps: the keeper has checkpoints and syncs to do, too."""
        async with self._growing:
            if self._lanes.free:
                return
            if self._refusal is not None and time.monotonic() < self._ask_from:
                raise self._refusal.with_traceback(None)
            try:
                await self._grow()
            except WalError as error:
                self._refusal, self._ask_from = error, time.monotonic() + ROOM_PAUSE / 2
                raise
            self._refusal = None

    def _tell_no_room(self, lane: Lane, error: WalError) -> None:
        """One line until some lane gets a block again."""
        if not self._lacks_room:
            self._lacks_room = True
            log.warning(
                "a batch cannot be written down before it is sent: its partition waits until there is room, the others "
                "go on: do what error= says topic=%s partition=%d error=%s",
                lane.topic,
                lane.partition,
                error,
            )

    def _tell_once(self, lane: Lane, error: WalError) -> None:
        """One line until it is over, not two a second for each lane."""
        if not self._troubled:
            self._troubled = True
            message = (
                "a batch cannot be written down before it is sent: do what error= says topic=%s partition=%d error=%s"
            )
            log.warning(message, lane.topic, lane.partition, error)


def _is_spent(lane: Lane) -> bool:
    """Whether nothing that its entry tells of may be in Kafka without our knowing, or is sent again."""
    return lane.entered is None and lane.in_flight is None and not lane.held


def _places(batch: LaneBatch) -> list[tuple[Group, ...]]:
    """Where the batch's frames are; if they are being moved, and copied by now, first where they were."""
    if not any([slot.copies for slot, _ in batch.frames]):  # nearly always: 3 µs of 14 an entry  # noqa: C419 - a generator costs more
        return [tuple([_group(slot, places) for slot, places in batch.frames])]
    now, then = _groups(batch, made=False), _groups(batch, made=True)
    if now is None:
        message = "a batch stands where nobody has copied it"
        raise ValueError(message)
    return [now] if then is None or then == now else [now, then]


def _groups(batch: LaneBatch, *, made: bool) -> tuple[Group, ...] | None:
    """``made``: as if the moves that are under way were made; None while that cannot be told.

    What stood in many slots may come to one: a group for each of them would not fit an entry.
    """
    found: list[tuple[Slot, Sequence[int]]] = []
    for slot, places in batch.frames:
        for home, there in _standing(slot, places, made=made):
            if not there:
                return None
            if found and found[-1][0] is home:
                found[-1] = home, [*found[-1][1], *there]
            else:
                found.append((home, there))
    return tuple(_group(home, there) for home, there in found)


def _standing(slot: Slot, places: Sequence[int], *, made: bool) -> Iterator[tuple[Slot, Sequence[int]]]:
    """Where the frames count, or will; of those that are copied later on there are no places yet."""
    if not slot.copies or not (made or slot.moved):
        yield slot, places
        return
    if any(place not in slot.copies for place in places):
        yield slot, ()
        return
    copies = [slot.copies[place] for place in places]
    for home, run in groupby(copies, lambda copy: copy[0]):
        yield from _standing(home, [place for _, place in run], made=made)


def _group(slot: Slot, places: Sequence[int]) -> Group:
    copied = slot.ring is not None and slot.ring.holds_copies
    return Group(RETRY if copied else MAIN, slot.header.ordinal, places)
