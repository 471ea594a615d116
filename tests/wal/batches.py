"""The batches that a life has in flight: written down in the file `lanes` before they are sent, taken up by the next.

Both is done by `delivery` itself (`journaling`, `resume`): here are only the lanes and batches that it asks for.
"""

from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.resume import Resumed, take_up
from aiorecover.errors import WalFullError
from aiorecover.wal.directory import Directory
from aiorecover.wal.lookup import Lookup
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from tests.wal import entries
from tests.wal.entries import Entries, Sent
from tests.wal.ledger import LANES, Ledger, demand
from tests.wal.rig import Position

TOPIC = "orders" * 150  # so that an entry takes several sectors: it can be torn

Place = tuple[Ring, Slot, int]


@dataclass(eq=False)
class Batch:
    """As much of `delivery.batch.LaneBatch` as the journal looks at, and of whom it is made."""

    positions: list[Position]
    frames: list[tuple[Slot, list[int]]]
    identity: entries.Identity
    entered: entries.Identity | None = None
    begun_as: entries.Identity | None = None  # no time passes here: none is too old for Kafka
    begun_ms: int = 0
    acknowledged: bool = False

    @property
    def count(self) -> int:
        return len(self.positions)


@dataclass(eq=False)
class Lane:
    """As much of `delivery.lane.Lane` as the journal looks at; ``base``: sequence of its next batch."""

    partition: int
    identity: Identity
    block: int | None = None
    base: int = 0
    topic: str = TOPIC
    offset: int = -1
    entered: Batch | None = None
    unwritten: bool = False


@dataclass
class Batches:
    """Of one life."""

    directory: Directory
    ledger: Ledger
    entries: Entries
    lanes: dict[bytes, Lane] = field(default_factory=dict)
    in_flight: dict[bytes, Batch] = field(default_factory=dict)
    claimed: set[Position] = field(default_factory=set)  # readers pass them

    def __post_init__(self) -> None:
        self.journal: Any = Journal(self.directory.lanes, _grow, lambda: 0)  # its types cannot say what it asks for

    # -- a life begins ---------------------------------------------------------------------------------------------

    def take_up(self, image: bytes) -> Iterator[tuple[Position, Place]]:
        """What the life before had in flight, and where it stands; ``image``: of the file before the opening."""
        self.entries.found(self.directory.lanes.found, image)
        taken = take_up(self.directory, 0, None)
        resumed = {LANES[one.entry.partition]: one for one in taken.lanes}
        for lane, sent in list(self.entries.sent.items()):
            if lane not in resumed:
                self._doubt(lane, sent)
        for lane, one in resumed.items():
            yield from self._resume(lane, one)

    def _doubt(self, lane: bytes, sent: Sent) -> None:
        """What it tells of is delivered as any other records, and may come twice."""
        suspect = self.directory.ring.suspect.up_to
        sure = not sent.spent and all(position[0] > suspect >> 40 for position in sent.positions)
        demand(not sure, "what was in flight is sent again as it was", lane, sent)
        self.ledger.loose |= set() if sent.spent else set(sent.positions)
        del self.entries.sent[lane]

    def _resume(self, name: bytes, resumed: Resumed) -> Iterator[tuple[Position, Place]]:
        entry, sent = resumed.entry, self.entries.sent[name]
        places = [(ring, slot, place) for ring, slot, places in resumed.frames for place in places]
        identity = (entry.identity.producer_id, entry.identity.epoch, entry.base_sequence)
        demand(identity == sent.identity, "a lane goes on with its newest entry", name, identity)
        demand(bool(places) != sent.spent, "what was in flight is sent again, and nothing else", name, sent)
        lane = self.lanes[name] = Lane(entry.partition, entry.identity, resumed.block, entry.base_sequence)
        if entry.parted:
            self._begin_anew(lane)
        elif sent.spent:
            lane.base += entry.count
        else:
            positions = [_position_at(*place) for place in places]
            demand(tuple(positions) == sent.positions, "exactly what was written down is sent again", name, sent)
            frames = [(slot, list(there)) for _, slot, there in resumed.frames]
            lane.entered = self.in_flight[name] = Batch(positions, frames, identity, identity)
            self.claimed |= set(positions)
            yield from zip(positions, places, strict=True)

    # -- a batch ---------------------------------------------------------------------------------------------------

    def enter(self, name: bytes, positions: Sequence[Position], places: Sequence[Place]) -> None:
        """Have it written down; it is not sent where there is no room for that."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(LANES.index(name), Identity(self.entries.new_identity(), 0))
        lane.block = self._block() if lane.block is None else lane.block
        if lane.block is None:
            return
        groups = [(slot, [place for _, _, place in run]) for slot, run in groupby(places, lambda place: place[1])]
        identity = (lane.identity.producer_id, lane.identity.epoch, lane.base)
        batch = Batch(list(positions), groups, identity)
        entered = _at_once(self.journal.enter(lane, batch))
        demand(entered, "a lane with a block can write to it")
        self.in_flight[name] = batch
        self.entries.sent[name] = Sent(identity, tuple(positions))

    def _block(self) -> int | None:
        block = self.directory.lanes.take()
        if block is None:
            try:
                self.directory.grow_lanes()
            except WalFullError:
                return None
            block = self.directory.lanes.take()
            demand(block is not None, "lanes that have grown have a block")
        return block

    def acknowledge(self, name: bytes, *, lost: bool) -> list[Position]:
        """The broker has it; what of it is settled from now on. ``lost``: the answer is."""
        batch = self.in_flight[name]
        if not self.entries.is_repeat(name, batch.identity, batch.positions):
            for position in batch.positions:
                self.ledger.deliver(position)
        batch.acknowledged = batch.acknowledged or not lost
        return batch.positions if batch.acknowledged else []

    @property
    def unanswered(self) -> list[bytes]:
        """Lanes whose batch may be sent once more."""
        return [name for name, batch in self.in_flight.items() if not batch.acknowledged]

    def settled(self, waiting: dict[Position, Place]) -> None:
        """Some records are: whole batches are over."""
        for name, batch in list(self.in_flight.items()):
            if not any(position in waiting for position in batch.positions):
                lane = self.lanes[name]
                lane.base += batch.count
                self._over(name, lane)

    def part_with(self, name: bytes) -> None:
        """It is not sent again as it was: its records go in other batches."""
        lane = self.lanes[name]
        self.ledger.loose |= set(self.in_flight[name].positions)
        self.journal.part_with(lane)
        self._over(name, lane)
        self._begin_anew(lane)

    def _over(self, name: bytes, lane: Lane) -> None:
        """There is nothing to send again."""
        lane.entered = None
        sent = self.entries.sent[name]
        self.entries.sent[name] = Sent(sent.identity, sent.positions, spent=True)
        del self.in_flight[name]

    def _begin_anew(self, lane: Lane) -> None:
        lane.identity, lane.base = Identity(self.entries.new_identity(), 0), 0

    def repoint(self) -> None:
        """What is copied is written down with its copies, before these count."""
        for name in self.in_flight:
            self.journal.repoint(self.lanes[name])


async def _grow() -> None:
    """A lane without a block never comes to the journal."""


def _at_once(coroutine: Coroutine[Any, Any, bool]) -> bool:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return bool(end.value)
    raise AssertionError


def _position_at(ring: Ring, slot: Slot, place: int) -> Position:
    """Of the record whose frame stands there."""
    frame = Lookup(ring).frame(slot, place)
    demand(frame, "what was in flight is still there", slot.header.ordinal, place)
    assert frame is not None
    if not ring.holds_copies:
        return slot.header.epoch, frame.sequence
    copy = unpack_moved(frame.payload)
    return copy.epoch, copy.sequence
