"""Rewriting: a batch's records laid out anew as other batches, which then take its place (R8).

One mechanism, for

* the topic's partitions are known now: from the unassigned lane to the lanes of partitions;
* a batch that is too large, or that Kafka refuses: two halves of it in its own lane;
* one record that is refused or too late: to the lane of dead letters, with a note of where it was to go and why not.

Children first, marked with their parent; a flush; REPLACED; a flush; then they take its place in the lanes. A process
that dies in between leaves children that the next opening voids, or a parent that is replaced.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiorecover.errors import ClosedError, WalFullError, WalIOError
from aiorecover.kafka.dead_letter_topic import TURN_S, publish_copies
from aiorecover.kafka.lanes import DeliveryLane, Event, LaneState
from aiorecover.kafka.outcomes import UNREAD
from aiorecover.kafka.router import DEAD_TOPIC, PartitionerError, Topic
from aiorecover.ring.format import BatchState
from aiorecover.ring.lane import DEAD, VARINT_MOST, Lane, note_room
from aiorecover.ring.notes import Note, encode_payload, notes_by_index
from aiorecover.ring.records import id_of, key_of, timestamp_delta, walk
from aiorecover.ring.segments import Batch
from aiorecover.ring.writer import append_raw

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

FULL_PAUSE_S = 0.5  # before a rewrite that found no room is tried again
AHEAD = 16  # unassigned batches that are rewritten with one pair of flushes: 4 MiB of records
FULL = "dead letters hold a quarter of the ring: purge some, or requeue them"
DEAD_SHARE = 4  # dead letters hold a quarter of the ring at the most; beyond that the lane halts
ROOM = 64  # bytes beside the records of a child: its head is counted elsewhere

_log = logging.getLogger("aiorecover")

Choose = Callable[[bytes | None, int], tuple[Lane | None, int]]  # (key, index) -> lane (None: left out), which group


class _Record(NamedTuple):
    data: bytes
    delta: int
    sequence: int
    epoch: int
    note: bytes | None
    at: int  # its index in the parent


class _Laid(NamedTuple):
    """A parent, its children with the indexes that their records have in it, and the ids of its dead letters."""

    parent: Batch
    children: list[tuple[Batch, list[int]]]
    buried: list[tuple[int, int]]


class Rewriter:
    """The rewrites of one producer, one at a time for each lane and topic.

    Attributes:
        on_dead_letters: called with (epoch, sequence) of each record that has become a dead letter.

    """

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery, self.ring = delivery, delivery.ring
        self._assigning: set[Topic] = set()
        self.taking_out = asyncio.Lock()  # of dead letters: one caller at a time
        self.on_dead_letters: Callable[[list[tuple[int, int]]], None] = lambda _: None

    # -- what is rewritten ---------------------------------------------------------------------------------------------

    def assign(self, topic: Topic, ahead: int = AHEAD) -> None:
        """Move a topic's unassigned records to the lanes of their partitions; returns at once."""
        lane = topic.unassigned
        if lane is None or lane.state is not LaneState.IDLE or self.is_assigning(topic) or self.ring.recovering:
            return  # held: its oldest batch becomes dead letters, then `Router.go_on` asks again
        self._assigning.add(topic)
        self.delivery.spawn(self._assign(topic, ahead), "aiorecover-assign")

    def is_assigning(self, topic: Topic) -> bool:
        """Whether a topic's unassigned records are on their way to the lanes of their partitions."""
        return topic in self._assigning

    async def _assign(self, topic: Topic, ahead: int) -> None:
        """Rewrite ``ahead`` batches at a time: fewer where the disk had no room for more."""
        lane = topic.unassigned
        assert lane is not None
        try:
            while topic.gate is not None and topic.count:
                cursor = lane.stored.published
                if cursor.index:
                    cursor.seal()
                await self.delivery.load(lane)
                parents = lane.stored.queue[:ahead]
                if not parents:
                    continue
                try:
                    await self._replace(parents, lambda key, _: (self.delivery.router.route(topic, key), 0))
                except (WalFullError, PartitionerError) as error:
                    lane.error = f"records wait for their partitions: {error}"
                    self.delivery.throttle.warn("assigning_waits", topic.name, "%s topic=%s", lane.error, topic.name)
                    self.delivery.spawn(self._assign_later(topic), "aiorecover-assign-later")
                    break
                except WalIOError as error:
                    self.halt(lane, f"the disk has failed: {error}")
                    break
                lane.error = None
                ahead = min(AHEAD, 2 * ahead)
                self.delivery.open_gate(topic)
        finally:
            self._assigning.discard(topic)
        lane.stored.give_back()
        self.delivery.open_gate(topic)

    async def _assign_later(self, topic: Topic) -> None:
        """Try again; meanwhile the records may become too old."""
        await asyncio.sleep(FULL_PAUSE_S)
        self.assign(topic, 1)

    async def refused(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Halve a batch that Kafka refuses; bury the record where it stands alone, or halt the lane."""
        if lane.doubt and not await self.delivery.checker.look(lane):
            self.delivery.failed(lane, UNREAD)
            return
        if lane.head is batch:
            alone = batch.count == 1
            if alone and (self.delivery.options.halt or self.dead_is_full):
                full = "" if self.delivery.options.halt else f"{FULL}; "
                self.halt(lane, full + reason)
                return
            half = batch.count // 2
            try:
                if alone:
                    await self.bury(batch, reason)
                else:
                    await self._rewrite(batch, lambda _, index: (lane.stored, int(index >= half)))
            except WalIOError as error:
                self.halt(lane, f"{reason}, and the disk has failed: {error}")
                return
            if alone:
                where = lane.stored, self.ring.producer_id, batch.epoch, batch.first
                _log.error("dead_letter kafka refuses a record: %s lane=%s record_id=%s/%d/%d", reason, *where)
        self.delivery.checker.end_doubt(lane)
        lane.error = None
        self.delivery.router.go_on(lane)
        self.delivery.waiters.check()

    async def take_out(self, gone: dict[Batch, tuple[set[str], int]]) -> None:
        """Take letters out of the lane of dead letters.

        A flush comes first, which covers the records that were published anew. The work goes on to its end where the
        caller is cancelled. The caller has acquired `taking_out`; it is released at the end.

        Args:
            gone: for each batch the record ids of the letters to take out, and how many letters it has.

        Raises:
            ClosedError: the producer was stopped meanwhile.
            WalIOError: the disk has failed.

        """
        task = self.delivery.spawn(self._take_out(gone), "aiorecover-dead-letters", vital=False)
        task.add_done_callback(lambda _: self.taking_out.release())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClosedError("the producer was stopped: some letters may be there still") from None
            raise

    async def _take_out(self, gone: dict[Batch, tuple[set[str], int]]) -> None:
        if gone:
            await self.delivery.flushed()
        for batch, (ids, number) in gone.items():
            if len(ids) < number:
                await self._leave_out(batch, ids)
                continue
            await self.delivery.in_thread(batch.store_word, BatchState.SETTLED, self.ring.epoch)
            batch.state = BatchState.SETTLED
            self.ring.finish(batch, BatchState.SETTLED, stored=True)

    async def _leave_out(self, batch: Batch, ids: set[str]) -> None:
        gone: set[int] = set()
        data = await _read(batch)
        for index, span in enumerate(walk(data)):
            if "{}/{}/{}".format(*id_of(data, span[4])) in ids:
                gone.add(index)
        await self._rewrite(batch, lambda _, index: (None if index in gone else batch.lane, 0))

    def halt(self, lane: DeliveryLane, reason: str) -> None:
        """Halt a lane until the next start."""
        lane.error = f"halted until the next start: {reason}"
        lane.step(Event.HALT)
        self.delivery.waiters.halted()
        _log.error("lane_halted %s lane=%s", reason, lane.stored)

    @property
    def dead_is_full(self) -> bool:
        """Whether dead letters hold all that they may hold."""
        return self.ring.lane(DEAD_TOPIC, DEAD).held * DEAD_SHARE > self.ring.limits.max_bytes

    async def bury(self, batch: Batch, reason: str) -> None:
        """Make dead letters of the records of a batch.

        Raises:
            WalIOError: the disk has failed.

        """
        dead = self.ring.lane(DEAD_TOPIC, DEAD)
        await self._rewrite(batch, lambda *_: (dead, 0), reason)

    async def _rewrite(self, batch: Batch, choose: Choose, reason: str | None = None) -> None:
        """Rewrite a batch, and where there is no room for it wait until there is."""
        while True:
            try:
                await self._replace([batch], choose, reason)
            except WalFullError as error:
                self.delivery.throttle.warn("rewrite_waits", "ring", "no room to rewrite a batch: %s", error)
                await asyncio.sleep(FULL_PAUSE_S)
            else:
                return

    # -- how -----------------------------------------------------------------------------------------------------------

    async def _replace(self, parents: list[Batch], choose: Choose, reason: str | None = None) -> None:
        made = await self._lay_out_all(parents, choose, reason)
        if all(parent.segment.mapping is not None for parent in parents):
            self._store_replaced(parents)
        else:
            await self.delivery.in_thread(self._store_replaced, parents)
        await self.delivery.flushed()  # until then the parents stand for their records, and nothing is sent
        for laid in made:
            self._take_place(laid)
        born = [child for laid in made for child, _ in laid.children]
        for lane in {child.lane: None for child in born}:
            self.delivery.router.ready(lane)
        if reason is not None and self.delivery.report is not None:
            for child in born:
                await self.delivery.report(child)

    async def _lay_out_all(self, parents: list[Batch], choose: Choose, reason: str | None) -> list[_Laid]:
        """Write the children, and make them durable; where that fails, they are void."""
        if self.ring.flusher.failed is not None:
            raise self.ring.flusher.failed
        made = [_Laid(parent, [], []) for parent in parents]
        try:
            for laid in made:
                await self._lay_out(laid, choose, reason)
                topic = self.delivery.options.dead_letter_topic
                if reason is not None and topic is not None:
                    await publish_copies(self.delivery, topic, laid.parent, await _read(laid.parent), reason)
            await self.delivery.flushed()
        except BaseException:
            for laid in made:
                for child, _ in laid.children:
                    self.ring.abandon(child)
            raise
        return made

    def _store_replaced(self, parents: list[Batch]) -> None:
        for parent in parents:
            parent.store_word(BatchState.REPLACED, self.ring.epoch)

    def _take_place(self, laid: _Laid) -> None:
        """Put the children into their lanes; then wake the callers that wait for the parent."""
        parent = laid.parent
        for child, _ in laid.children:
            child.lane.insert(child)
            self.ring.pending += child.count
        if laid.buried:
            self.delivery.dead_lettered += len(laid.buried)
            self.on_dead_letters(laid.buried)
        parent.children, parent.state = list(laid.children), BatchState.REPLACED
        self.ring.finish(parent, BatchState.REPLACED, stored=True)

    async def _lay_out(self, laid: _Laid, choose: Choose, reason: str | None) -> None:
        parent = laid.parent
        data = await _read(parent)
        groups: dict[tuple[Lane, int], list[_Record]] = {}
        notes = notes_by_index(parent.read_notes())
        turn = time.monotonic()
        for index, span in enumerate(walk(data)):
            record = data[span[0] : span[4]]
            _, epoch, sequence = id_of(data, span[4])
            note = notes.get(index)
            if reason is not None:
                note = _dead_note(note, parent.lane, reason)
            payload = None if note is None else encode_payload(note)
            lane, number = choose(key_of(data, span), index)
            if lane is None:
                continue
            where = lane, number
            groups.setdefault(where, []).append(
                _Record(record, timestamp_delta(data, span), sequence, epoch, payload, index)
            )
            if time.monotonic() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
        for (lane, _), records in groups.items():
            laid.children.append((self._write(parent, lane, records, reason), [one.at for one in records]))
            if reason is not None:
                laid.buried.extend((one.epoch, one.sequence) for one in records)
            if time.monotonic() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()

    def _write(self, parent: Batch, lane: Lane, records: list[_Record], reason: str | None) -> Batch:
        cursor = lane.rewritten
        need = sum(len(one.data) + VARINT_MOST + note_room(one.note) for one in records) + ROOM
        origin = parent.segment.ordinal, parent.at
        child = cursor.open(parent.base, need, records[0].sequence, records[0].epoch, origin)
        child.accepted_at, child.error = parent.accepted_at, reason
        try:
            for one in records:
                append_raw(cursor, one.data, one.delta, one.note, one.sequence)
        except BaseException:
            cursor.leave()
            if not child.done:
                self.ring.abandon(child)
            raise
        cursor.seal()
        return child


async def _read(batch: Batch) -> bytes:
    if batch.segment.mapping is None:
        return bytes(await asyncio.to_thread(batch.read))
    return bytes(batch.read())


def _dead_note(note: Note | None, lane: Lane, reason: str) -> Note:
    context, source = (None, None) if note is None else (note.context, note.source)
    return Note(context, source, lane.topic, lane.partition, reason)
