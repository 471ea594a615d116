"""Batches in flight: written down in the file `lanes`, sent, acknowledged, and taken up by the next life.

Done by `delivery` itself (`journaling`, `resume`); here is the broker, which answers a batch that it has by its
identity, and as much of a lane and of a batch as the journal looks at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.resume import Resumed, take_up
from aiorecover.wal.directory import Directory
from aiorecover.wal.lookup import Lookup
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from tests.protocols.oracle import Position, Sent, demand
from tests.wal.batches import Batch, Lane, _at_once

if TYPE_CHECKING:
    from tests.protocols.world import World

__all__ = ["InFlight", "resumed"]

NOW_MS = 1
LANES = "abc"


class InFlight:
    """Of one life."""

    def __init__(self, world: "World") -> None:
        """Take up what the life before had in flight; readers pass it."""
        self._world = world
        self._directory = world.directory
        self.lanes: dict[str, Lane] = {}
        self.batches: dict[str, Batch] = {}
        self.journal: Any = Journal(self._directory.lanes, self._grow, lambda: NOW_MS)  # it asks for real batches
        for one in take_up(self._directory, NOW_MS, None).lanes:
            self._take_up(one)

    async def _grow(self) -> None:
        self._directory.grow_lanes()

    def _take_up(self, one: Resumed) -> None:
        name = LANES[one.entry.partition]
        lane = self.lanes[name] = Lane(one.entry.partition, one.entry.identity, one.block, topic="t")
        lane.identity, lane.base = self._fresh(), 0
        if one.frames:
            frames = [(slot, list(places)) for _, slot, places in one.frames]
            identity = _identity(one)
            lane.entered = self.batches[name] = Batch(_positions(one), frames, identity, identity)

    def _fresh(self) -> Identity:
        """Nobody had it before."""
        return Identity(len(self._world.facts.entered) + 1, 0)

    def enter(self, name: str, *records: str) -> None:
        """A batch of these records, which were read, is written down."""
        world = self._world
        lane = self.lanes.setdefault(name, Lane(LANES.index(name), self._fresh(), topic="t"))
        entries = [world.queue.pop(record) for record in records]
        frames = [(slot, [one.place for one in run]) for slot, run in groupby(entries, lambda one: one.slot)]
        lane.identity = self._fresh()
        batch = Batch([one.position for one in entries], frames, (lane.identity.producer_id, 0, 0))
        sent = Sent(batch.identity, tuple(batch.positions))
        world.facts = replace(world.facts, entered=(*world.facts.entered, sent))
        demand(_at_once(self.journal.enter(lane, batch)), "a lane with a block can write to it")
        self.batches[name] = batch
        world.facts = replace(world.facts, in_flight=world.facts.in_flight | {sent})
        world.at(f"batch of {name} entered")

    def send(self, *names: str) -> None:
        """Kafka has it, once."""
        world = self._world
        for name in names or list(self.batches):
            batch = self.batches[name]
            sent, log = Sent(batch.identity, tuple(batch.positions)), world.facts.log
            if sent not in world.facts.taken:
                known = [one.identity for one in world.facts.taken]
                demand(sent.identity not in known, "I6b: under an old identity exactly the same is sent", sent)
                world.facts = replace(world.facts, taken=world.facts.taken | {sent}, log=(*log, *sent.positions))
            world.at(f"batch of {name} sent")

    def acknowledge(self, *names: str) -> None:
        """Its records are settled one by one, in order."""
        world = self._world
        for name in names or list(self.batches):
            batch = self.batches.pop(name)
            places = [(slot, place) for slot, places in batch.frames for place in places]
            for position, (slot, place) in zip(batch.positions, places, strict=True):
                world.settle_in_batch(slot, place, position)
                if position == batch.positions[-1]:
                    self.lanes[name].entered = None
                    self._over(batch)
                world.at(f"{position} of the batch of {name} settled")

    def forget(self, name: str) -> None:
        """Its records go in other batches: the entry never counts again (`Journal.forget`)."""
        world, batch = self._world, self.batches.pop(name)
        self._over(batch)
        world.facts = replace(world.facts, loose=world.facts.loose | set(batch.positions))
        self.journal.forget(self.lanes[name])
        sent = Sent(batch.identity, tuple(batch.positions))
        world.facts = replace(world.facts, forgotten=world.facts.forgotten | {sent})
        world.at(f"batch of {name} forgotten")

    def _over(self, batch: Batch) -> None:
        sent = Sent(batch.identity, tuple(batch.positions))
        self._world.facts = replace(self._world.facts, in_flight=self._world.facts.in_flight - {sent})

    def repoint(self) -> None:
        """What is copied is written down with its copies, before these count."""
        for name in self.batches:
            self.journal.repoint(self.lanes[name])


def resumed(directory: Directory) -> tuple[Sent, ...]:
    """What an opening takes up, to be sent again as it was."""
    taken = take_up(directory, NOW_MS, None).lanes
    return tuple(Sent(_identity(one), tuple(_positions(one))) for one in taken if one.frames)


def _identity(one: Resumed) -> tuple[int, int, int]:
    return one.entry.identity.producer_id, one.entry.identity.epoch, one.entry.base_sequence


def _positions(one: Resumed) -> list[Position]:
    return [position for ring, slot, places in one.frames for position in _in_slot(ring, slot, places)]


def _in_slot(ring: Ring, slot: Slot, places: Sequence[int]) -> Iterator[Position]:
    lookup = Lookup(ring)
    for place in places:
        frame = lookup.frame(slot, place)
        demand(frame, "what is in flight is there", slot.header.ordinal, place)
        assert frame is not None
        copy = unpack_moved(frame.payload) if ring.holds_copies else None
        yield (slot.header.epoch, frame.sequence) if copy is None else (copy.epoch, copy.sequence)
