"""Rewriting: a batch's records laid out anew as other batches, which then take its place (R8).

One mechanism, for

* the topic's partitions are known now: from the unassigned lane to the lanes of partitions;
* a batch that is too large, or that Kafka refuses: two halves of it in its own lane;
* one record that is refused or too late: to the lane of dead letters, with a note of where it was to go and why not.

Children first, marked with their parent; a flush; REPLACED; a flush; then the lane goes on. What dies in between leaves
children that the next opening voids, or a parent that is replaced.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiorecover.errors import WalFullError
from aiorecover.kafka.lanes import DeliveryLane, Event
from aiorecover.kafka.router import DEAD_TOPIC, PartitionerError, Topic
from aiorecover.ring.format import State as Stored
from aiorecover.ring.lane import DEAD, VARINT_MOST, Lane, note_room
from aiorecover.ring.notes import Note, encode_payload, read_notes
from aiorecover.ring.records import id_of, key_of, timestamp_delta, walk
from aiorecover.ring.segments import Batch, store_all
from aiorecover.ring.writer import append_raw

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

TURN_S = 0.002  # on the loop at a time
FULL_PAUSE_S = 0.5  # before a rewrite that found no room is tried again
AHEAD = 16  # unassigned batches that are rewritten with one pair of flushes: 4 MiB of records
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


class Rewriter:
    """The rewrites of one producer, one at a time for each lane and topic."""

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery, self.ring = delivery, delivery.ring
        self._assigning: set[Topic] = set()
        self.waiting_for_room = False

    # -- what is rewritten ---------------------------------------------------------------------------------------------

    def assign(self, topic: Topic) -> None:
        """Move a topic's unassigned records to the lanes of their partitions; returns at once."""
        if topic.unassigned is not None and topic not in self._assigning and not self.ring.recovering:
            self._assigning.add(topic)
            self.delivery.spawn(self._assign(topic), "aiorecover-assign")

    async def _assign(self, topic: Topic) -> None:
        lane = topic.unassigned
        assert lane is not None
        try:
            while topic.gate is not None and topic.count:
                cursor = lane.stored.published
                if cursor.index:
                    cursor.seal()
                await self.delivery.load(lane)
                parents = lane.stored.queue[:AHEAD]
                if not parents:
                    continue
                try:
                    await self._replace(parents, lambda key, _: (self.delivery.router.route(topic, key), 0))
                except (WalFullError, PartitionerError) as error:
                    topic.error = f"records wait: {error} topic={topic.name}"
                    await asyncio.sleep(FULL_PAUSE_S)
                else:
                    topic.error = None
                    self.delivery.open_gate(topic)
        finally:
            self._assigning.discard(topic)
        lane.stored.give_back()
        self.delivery.open_gate(topic)

    async def refused(self, lane: DeliveryLane, batch: Batch, reason: str) -> None:
        """Halve a batch that Kafka refuses; bury the record where it stands alone, or halt the lane."""
        if lane.doubt and self.delivery.options.check:
            await self.delivery.checker.look(lane)
        if lane.head is batch:
            alone = batch.count == 1
            if alone and (self.delivery.options.halt or self._dead_is_full()):
                self.halt(lane, reason)
                return
            half = batch.count // 2
            dead = self.ring.lane(DEAD_TOPIC, DEAD)
            await self._persist(
                [batch],
                (lambda _, __: (dead, 0)) if alone else (lambda _, index: (lane.stored, int(index >= half))),
                reason,
            )
            if alone:
                self.delivery.dead_lettered += 1
                _log.error("dead_letter kafka refuses a record: %s lane=%s", reason, lane.stored)
        lane.doubt = False
        lane.error = None
        self.delivery.router.go_on(lane)
        self.delivery.waiters.check()

    async def expire(self, lane: DeliveryLane, batch: Batch) -> None:
        """Bury all records of a batch that could not be delivered in time; the lane is held."""
        if lane.doubt and self.delivery.options.check:
            await self.delivery.checker.look(lane)
        if lane.head is batch:
            dead = self.ring.lane(DEAD_TOPIC, DEAD)
            count = batch.count
            await self._persist([batch], lambda _, __: (dead, 0), "not delivered within delivery_timeout_ms")
            self.delivery.dead_lettered += count
            _log.error("dead_letter not delivered in time lane=%s records=%d", lane.stored, count)
        lane.doubt = False
        self.delivery.router.go_on(lane)
        self.delivery.waiters.check()

    async def leave_out(self, batch: Batch, ids: set[str]) -> None:
        """Rewrite a batch of dead letters without those of these record ids."""
        gone: set[int] = set()
        data = bytes(await asyncio.to_thread(batch.read))
        for index, span in enumerate(walk(data)):
            if "{}/{}/{}".format(*id_of(data, span[4])) in ids:
                gone.add(index)
        await self._persist([batch], lambda _, index: (None if index in gone else batch.lane, 0), None)

    def halt(self, lane: DeliveryLane, reason: str) -> None:
        """Have a lane wait for the next start."""
        lane.error = f"halted until the next start: {reason}"
        lane.step(Event.HALT)
        _log.error("lane_halted %s lane=%s", reason, lane.stored)

    def _dead_is_full(self) -> bool:
        held = self.ring.lane(DEAD_TOPIC, DEAD).segments * self.ring.geometry.small
        return held * DEAD_SHARE > self.ring.limits.max_bytes

    async def _persist(self, parents: list[Batch], choose: Choose, reason: str | None) -> None:
        """Rewrite, and where there is no room for it wait until there is."""
        while True:
            try:
                await self._replace(parents, choose, reason)
            except WalFullError as error:
                self.waiting_for_room = True
                self.delivery.throttle.warn("rewrite_waits", "ring", "no room to rewrite a batch: %s", error)
                await asyncio.sleep(FULL_PAUSE_S)
            else:
                self.waiting_for_room = False
                return

    # -- how -----------------------------------------------------------------------------------------------------------

    async def _replace(self, parents: list[Batch], choose: Choose, reason: str | None = None) -> None:
        made: list[tuple[Batch, list[tuple[Batch, list[int]]]]] = [(parent, []) for parent in parents]
        try:
            for parent, children in made:
                await self._lay_out(parent, choose, reason, children)
            await self.delivery.flushed()
        except BaseException:
            for _, children in made:
                for child, _ in children:
                    self.ring.abandon(child)
            raise
        cold = [parent for parent in parents if parent.segment.mapping is None]
        if cold:
            await asyncio.to_thread(store_all, cold, Stored.REPLACED, self.ring.epoch)
        born = [child for _, children in made for child, _ in children]
        letters = [child for child in born if child.lane.partition == DEAD]
        for letter in letters:  # not sent: whoever hears of it finds it there
            letter.lane.insert(letter)
        for parent, children in made:
            parent.children = list(children)
            self.ring.pending += sum(child.count for child, _ in children)
            self.ring.finish(parent, Stored.REPLACED, stored=parent in cold)
        await self.delivery.flushed()
        for child in [child for child in born if child not in letters]:
            child.lane.insert(child)
        for lane in {child.lane: None for child in born}:
            self.delivery.router.ready(lane)

    async def _lay_out(
        self, parent: Batch, choose: Choose, reason: str | None, made: list[tuple[Batch, list[int]]]
    ) -> None:
        data = parent.read()
        if parent.segment.mapping is None:
            data = await asyncio.to_thread(parent.read)
        data = bytes(data)
        groups: dict[tuple[Lane, int], list[_Record]] = {}
        notes = _notes_of(parent)
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
            made.append((self._write(parent, lane, records, reason), [one.at for one in records]))
            if time.monotonic() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()

    def _write(self, parent: Batch, lane: Lane, records: list[_Record], reason: str | None) -> Batch:
        cursor = lane.rewritten
        need = sum(len(one.data) + VARINT_MOST + note_room(one.note) for one in records) + ROOM
        origin = parent.segment.ordinal, parent.at
        child = cursor.open(parent.base, need, records[0].sequence, records[0].epoch, origin, parent.kind)
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


def _notes_of(parent: Batch) -> dict[int, Note]:
    if parent.notes == parent.notes_from:
        return {}
    return {index: note for _, index, note in read_notes(parent.read_notes())}


def _dead_note(note: Note | None, lane: Lane, reason: str) -> Note:
    context, source = (None, None) if note is None else (note.context, note.source)
    return Note(context, source, lane.topic, lane.partition, reason)
