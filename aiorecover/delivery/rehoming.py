"""What was in flight to a partition that is gone finds another lane, before all else of its topic.

A batch that the last process had in flight is sent again as it was. Where its partition is gone (`gone`) there is
nobody to take it for a repeat, and nothing to repeat: what it may have brought to Kafka is gone with the topic. So its
entry in the journal is cleared first, and then its records go to the lanes that they have today, in new batches, in
their order. Nothing else of the topic was dispatched before. A process that dies before the entry is cleared leaves it
to the next one to decide anew; one that dies behind it leaves records that are delivered as any others.

Records that name the partition have no other: they stay in its lane, as a batch without an identity.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.batches import Batches
from aiorecover.delivery.frames import record_at
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.parts import STEP, Piece, part_of, pieces_of, unmapped
from aiorecover.delivery.router import Router, Topic
from aiorecover.errors import WalError
from aiorecover.record import KEY, PARTITION
from aiorecover.supervised import Supervised

log = logging.getLogger("aiorecover.delivery")

LOOK = 0.05  # seconds between two looks whether a lane's attempt has ended: without a leader it fails at once
RETRY = 0.5  # seconds, where the disk or the user's partitioner fails

Shares = dict[Lane, list[Piece]]
Parts = dict[Lane, LaneBatch]


class Rehoming:
    """Empties the lanes of partitions that are gone, and opens their topics."""

    def __init__(
        self,
        router: Router,
        journal: Journal,
        batches: Batches,
        *,
        codec: int,
        deliver: Callable[[Lane], None],
        on_left: Callable[[Lane, Iterable[Lane]], None],
        on_unreadable: Callable[[Lane, Exception], None],
        on_open: Callable[[], None],
    ) -> None:
        """Know whom to tell.

        ``on_left``: a lane has given away what can go elsewhere, to these lanes; ``on_unreadable``: it cannot be read;
        ``on_open``: a topic takes records now.
        """
        self._router = router
        self._journal = journal
        self._batches = batches
        self._codec = codec
        self._deliver = deliver
        self._on_left = on_left
        self._on_unreadable = on_unreadable
        self._on_open = on_open
        self._troubled = False  # the disk does not clear an entry
        self._task = Supervised("rehoming", self._run)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled our task: it is begun again after a pause."""
        return self._task.interrupted

    def begin(self) -> None:
        """Topics may be closed for it."""
        if not self._task.running and any(topic.closed for topic in self._router.topics.values()):
            self._task.start()

    def end(self) -> set[asyncio.Task[None]]:
        """For good; the task to wait for."""
        return self._task.end()

    async def _run(self) -> None:
        while closed := [topic for topic in self._router.topics.values() if topic.closed]:
            pauses = [await self._look_at(topic) for topic in closed]
            if any(pauses):
                await asyncio.sleep(max(pauses))

    async def _look_at(self, topic: Topic) -> float:
        """Empty the lanes for which that can be done now; seconds until the next look, 0: the topic is open.

        Nobody waits for a lane in here: what it waits for may be the room that others take.
        """
        for lane in [lane for lane in topic.lanes.values() if lane.leaves]:
            there = not lane.delivering and (not lane.held or lane.halted is not None)
            if there and not await self._empty(topic, lane):
                return RETRY
        if any(lane.leaves for lane in topic.lanes.values()):
            return LOOK
        topic.closed = False
        self._on_open()
        return 0

    async def _empty(self, topic: Topic, lane: Lane) -> bool:
        """False where the disk or the user's partitioner fails: all is as it was."""
        given: list[tuple[LaneBatch, Parts]] = []
        for batch in list(lane.ready):
            try:
                parts = await self._parts(topic, lane, batch)
            except (WalError, ValueError) as error:  # the others must not wait: the next opening finds what is missing
                lane.leaves = False
                self._on_unreadable(lane, error)
                return True
            if parts is None:
                return False
            given.append((batch, parts))
        if not self._forget_entry(lane):
            return False
        self._give_away(lane, given)
        return True

    def _give_away(self, lane: Lane, given: Sequence[tuple[LaneBatch, Parts]]) -> None:
        lane.leaves = False
        lane.give_away(parts.get(lane) for _, parts in given)
        for target, part in chain.from_iterable(parts.items() for _, parts in given):
            if target is not lane:
                target.take_over(part)
        # What a halted lane holds does not count, until it goes on: then all of it does.
        added = sum(part.bytes for _, parts in given for target, part in parts.items() if target.halted is None)
        self._batches.closed_bytes += added - sum(batch.bytes for batch, _ in given)
        targets = {lane, *chain.from_iterable(parts for _, parts in given)}
        self._on_left(lane, targets)
        for target in targets:
            self._deliver(target)

    def _forget_entry(self, lane: Lane) -> bool:
        """Before anything else becomes of its records: else the next process would send them as they were, too."""
        try:
            self._journal.forget(lane)
        except WalError as error:
            if not self._troubled:  # one line until it is over, not two a second
                log.warning("an entry cannot be cleared: check the disk topic=%s error=%s", lane.topic, error)
            self._troubled = True
            return False
        self._troubled = False
        return True

    async def _parts(self, topic: Topic, lane: Lane, batch: LaneBatch) -> Parts | None:
        """A batch for each lane that the records go to, the present one for those that name its partition."""
        shares = await self._shares(topic, lane, pieces_of(batch))
        if shares is None:
            return None
        return {target: await part_of(batch, pieces, self._codec) for target, pieces in shares.items()}

    async def _shares(self, topic: Topic, lane: Lane, pieces: Iterable[Piece]) -> Shares | None:
        """None while the user's partitioner fails. Only a record's frame knows whether it names its partition."""
        shares: Shares = {}
        for number, piece in enumerate(pieces, start=1):
            slot, place, _ = piece
            record = record_at(slot, place)
            if record is None:
                raise unmapped(slot)
            named = record[PARTITION] is not None
            target = lane if named else self._router.place(topic, record[KEY], None)
            if target is None:
                return None
            shares.setdefault(target, []).append(piece)
            if number % STEP == 0:
                await asyncio.sleep(0)
        return shares
