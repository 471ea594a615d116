"""The file `lanes` as a dictionary: what stands in it, what may after a power cut, and what was in flight by then.

And what the broker knows of a lane: the last batch that it took, which it answers as a repeat.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aiorecover.wal import lanes
from aiorecover.wal.lanes import BlockFound
from tests.wal.ledger import demand
from tests.wal.rig import Position

Identity = tuple[int, int, int]
"""producer id, producer epoch, base sequence"""
Place = tuple[int, int]
"""block, copy"""


@dataclass(frozen=True, slots=True)
class Sent:
    """What was written down of a lane: ``spent`` once there is nothing to send again."""

    identity: Identity
    positions: tuple[Position, ...]
    spent: bool = False


@dataclass
class Entries:
    """What was written down, and what has to come of it."""

    sent: dict[bytes, Sent] = field(default_factory=dict)  # of each lane the last one, as far as it can be known
    taken: dict[bytes, Sent] = field(default_factory=dict)  # by the broker
    identities: int = 0
    standing: dict[Place, bytes] = field(default_factory=dict)  # what the kernel has
    torn: dict[Place, bytes] = field(default_factory=dict)  # what a power cut has left, and nobody stored
    may: dict[Place, set[bytes]] = field(default_factory=dict)  # what a power cut may leave, apart from what is torn
    must: dict[Place, bytes] = field(default_factory=dict)  # nothing was stored in their places since the last flush
    reliable: bool = True  # no flush has failed
    lost_power: bool = False  # before this life

    # -- the broker ------------------------------------------------------------------------------------------------

    def new_identity(self) -> int:
        """A producer id that nobody had before."""
        self.identities += 1
        return self.identities

    def is_repeat(self, lane: bytes, identity: Identity, positions: Iterable[Position]) -> bool:
        """Whether the broker has a batch already; by its identity alone, so that has to be told of nothing else."""
        known, batch = self.taken.get(lane), Sent(identity, tuple(positions))
        if known is not None and known.identity == identity:
            demand(known == batch, "I6b: under an old identity exactly what was written down is sent", lane, batch)
            return True
        self.taken[lane] = batch
        return False

    # -- the file --------------------------------------------------------------------------------------------------

    def look(self, image: bytes) -> None:
        """Note what was stored since the last look."""
        for place, body in _bodies(image):
            if body == self.torn.get(place):
                continue
            self.torn.pop(place, None)
            if body == self.standing.get(place, b""):
                continue
            self.must.pop(place, None)
            self.standing[place] = body
            self.may.setdefault(place, set()).add(body)

    def synced(self) -> None:
        """A flush of what was looked at has completed."""
        if self.reliable:
            self.must = {place: body for place, body in self.standing.items() if body}
            self.may = {place: {body} for place, body in (self.standing | self.torn).items()}

    def flush_failed(self) -> None:
        """No later one tells any more what it made durable."""
        self.reliable = False
        self.must.clear()

    def evicted(self, image: bytes) -> None:
        """Pages that a failed flush has called clean left memory: what the disk has stands there, if it is whole."""
        for place, body in _bodies(image):
            if body != self.standing.get(place, b"") and body != self.torn.get(place):
                self.standing.pop(place, None)
                self.torn[place] = body
                self.may.setdefault(place, set()).add(body)

    def in_flight(self) -> set[Position]:
        """What was written down and is not known to be over."""
        return {position for sent in self.sent.values() if not sent.spent for position in sent.positions}

    def ended(self, *, lost_power: bool) -> None:
        """A life is over."""
        self.lost_power = lost_power
        if lost_power:
            self.sent.clear()

    def found(self, blocks: Iterable[BlockFound], image: bytes) -> None:
        """The next opening has found these in ``image``."""
        found = {one.block: one for one in blocks}
        for block, one in found.items():
            stored = self.may.get((block, 0), set()) | self.may.get((block, 1), set())
            demand(stored.issuperset(one.bodies), "an entry is as it was stored, or no entry", block)
            demand(not (self.lost_power and one.known), "what another boot has stored is not known", block)
        places = self.must if self.lost_power else {place: body for place, body in self.standing.items() if body}
        for (block, _), body in places.items():
            whole = block in found and body in found[block].bodies
            demand(whole, "an entry stays whole while the other copy is stored, and where only a process dies", block)
        if self.lost_power:
            self._begin_anew(found, image)

    def _begin_anew(self, found: dict[int, BlockFound], image: bytes) -> None:
        before = self.may
        self.standing, self.torn, self.may, self.must = {}, {}, {}, {}
        for place, body in _bodies(image):
            if place[0] in found and body in found[place[0]].bodies:
                self.standing[place] = body
                self.may[place] = {body}
            elif body:  # damaged, or in a piece of a block; with another power cut it may come to be whole
                self.torn[place] = body
                self.may[place] = {body, *before.get(place, ())} if place[0] not in found else before.get(place, set())
        if self.reliable:
            self.must = dict(self.standing)


def _bodies(image: bytes) -> Iterator[tuple[Place, bytes]]:
    """What stands in each copy, whole or not; empty: nothing."""
    for start in range(lanes.SECTOR, len(image), lanes.ENTRY_BYTES):
        block, copy = divmod((start - lanes.SECTOR) // lanes.ENTRY_BYTES, 2)
        data = image[start : start + lanes.ENTRY_BYTES]
        if len(data) < lanes.ENTRY.size:
            continue
        magic, _, _, length, _ = lanes.ENTRY.unpack_from(data)
        yield (block, copy), data[lanes.ENTRY.size : lanes.ENTRY.size + length] if magic == lanes.ENTRY_MAGIC else b""
