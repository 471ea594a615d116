"""One life of the log with a dispatcher that is played.

As the real one it has a reader for each ring, the retry ring's first; it judges suspect frames by the lane suffix rule,
passes over the records of stalled lanes, and delivers each lane in order. Its Kafka is a list for each lane.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import Moved, unpack_moved
from aiorecover.wal.moving import Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import SuffixRule
from tests.wal.batches import Batches, Place
from tests.wal.entries import Entries
from tests.wal.ledger import Ledger, demand, lane_of
from tests.wal.letters import Letters
from tests.wal.rig import Opened, Position, found, read

if TYPE_CHECKING:
    from aiorecover.wal.moving import Move


def copy_of(payload: memoryview) -> Moved:
    """A copy that stays when the reader's buffer has other bytes."""
    return unpack_moved(memoryview(bytes(payload)))


class Played:
    """From an opening to the end of the process."""

    def __init__(self, opened: Opened, ledger: Ledger, letters: Letters, entries: Entries):
        self.ledger = ledger
        self.letters = letters
        self.opened = opened
        self.directory = opened.directory
        self.ring, self.retry = opened.directory.ring, opened.directory.retry
        self.disk = opened.disk
        self.reader = Reader(self.ring, bytes, suspects=True)
        self.retry_reader = Reader(self.retry, copy_of, suspects=True)
        self.dead_reader = Reader(self.directory.dead, copy_of)
        self.knows_letters = False  # those of earlier lives were read
        self.letter_places: dict[Position, tuple[Slot, int]] = {}
        self.batches = Batches(self.directory, ledger, entries)
        self.rule = SuffixRule()
        self.second: Reader | None = None
        self.move: Move | None = None
        self.rewriting: Rewrite | None = None
        self.originals: list[Slot] = []  # of the rewriting that is under way
        self.void: list[Slot] = []  # of those that were made
        self.in_doubt = False  # a move or rewriting whose checkpoint failed: perhaps it is made, and perhaps not
        self.poisoned = False
        self.evicted = False  # pages that were not durable have left memory since
        self.in_transactions = False  # then no lane sends anything by itself
        self.covered = 0  # by the position that was committed: up to here all is in Kafka
        self.retry_first = bool(self.retry.live)  # it has not been read to its end since the opening
        self.places: dict[Position, Place] = {}
        self.names: dict[tuple[int, int], Position] = {}  # ordinal and place in the main ring: whose it is
        self.names_of_copies: dict[tuple[int, int], Position] = {}  # the same in the retry ring
        self.delivered: set[Position] = set()  # and not settled
        self.passed: set[Position] = set()  # passed over: their lane is stalled
        self.stalled: set[bytes] = set()
        self.copies: set[Position] = set()  # in the retry ring, of moves that were made in this life

    def take_up(self, lanes: bytes) -> None:
        """What the life before had in flight, before anybody reads; ``lanes``: what it left there."""
        for position, (ring, slot, place) in self.batches.take_up(lanes):
            self.ledger.claim(position)
            self.places[position] = ring, slot, place
            names = self.names if ring is self.ring else self.names_of_copies
            names[slot.header.ordinal, place] = position

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, limit: int) -> int:
        """Take from the main ring; how many frames came."""
        while self.retry_first and self.ring.suspect.up_to:
            self.read_retry(100)
        run = self.reader.take(limit)
        demand(run is None or len(run) <= limit, "no more than was asked for", limit)
        kept = self._judged(self.reader, run)
        entries = [] if kept is None else [kept.entry(number) for number in range(len(kept))]
        given = found(entries)
        self.ledger.take(given, last=run is None)
        for (slot, place, _, _), (position, record) in zip(entries, given, strict=True):
            self._keeps_its_id(position, slot.header.producer_id)
            self.places[position] = (self.ring, slot, place)
            self.names[slot.header.ordinal, place] = position
            if lane_of(record) in self.stalled:
                self.passed.add(position)
            if fmt.position(*position) <= self.covered:
                self.ledger.check_committed(position)
                self.delivered.add(position)
        return 0 if run is None else len(run)

    def read_retry(self, limit: int) -> int:
        """Take from the retry ring; how many frames came.

        Of what was moved in this life, only that is taken from there which was passed over: the rest is in flight, and
        is settled in both places at once.
        """
        run = self.retry_reader.take(limit)
        kept = self._judged(self.retry_reader, run)
        old: list[tuple[Position, bytes]] = []
        new: list[tuple[Position, bytes]] = []
        for slot, place, _, copy in [] if kept is None else map(kept.entry, range(len(kept))):
            position, record = (copy.epoch, copy.sequence), bytes(copy.payload)
            self._keeps_its_id(position, copy.producer_id(slot.header))
            self.names_of_copies[slot.header.ordinal, place] = position
            of_this_life = slot.header.epoch == self.retry.epoch
            (new if of_this_life else old).append((position, record))
            if not of_this_life or (position in self.passed and self._is_gone(position)):
                self.places[position] = (self.retry, slot, place)
            if not of_this_life and lane_of(record) in self.stalled:
                self.passed.add(position)
        self.ledger.take(old, last=run is None, retry=True)
        self.ledger.take_copies(new, last=run is None)
        self.retry_first = self.retry_first and run is not None
        return 0 if run is None else len(run)

    def unread(self) -> set[Position]:
        """Records of earlier lives to which its readers have not come."""
        behind, moved = self.reader.position, self.ledger.is_moved
        earlier = (position for position in self.ledger.records if position[0] < self.ring.epoch)
        return {p for p in earlier if (self.retry_first if moved(p) else fmt.position(*p) >= behind)}

    def _keeps_its_id(self, position: Position, producer_id: int) -> None:
        accepted = self.ledger.producers[position[0]]
        demand(producer_id == accepted, "a record has the producer id that it was accepted with", position)

    def _judged(self, reader: Reader, run: Run | None) -> Run | None:
        """What of suspect frames has to be delivered: it waits, also where a settle word stands that does not count."""
        if run is None or run.words is None:
            return run
        keep = []
        for number, word in enumerate(run.words):
            record = run.records[number]
            lane = lane_of(bytes(record.payload) if isinstance(record, Moved) else record)
            if self.rule.needed(lane or None, word):
                keep.append(number)
        reader.reopen(run.slot, [run.places[number] for number in keep])
        reader.dismiss(run.slot, len(run) - len(keep))
        return run.pick(keep)

    def again(self, lane: bytes) -> None:
        """The lane goes on: what was passed over is read again, from the retry ring or from where it stands."""
        while self.read_retry(100):
            pass
        expected = {position for position in self.passed if self._lane(position) == lane}
        there = {position for position in expected if self.places[position][0] is self.retry}
        there |= self._find_copies(expected - there)
        for slot in list(self.ring.live):
            reader = Reader.inside(self.ring, slot, bytes)
            there |= {position for position, _ in found(read(reader))} & expected
            reader.close()
        demand(expected - there <= self.ledger.evictable, "what was passed over is read again", expected - there)
        self.passed -= expected
        self.stalled.discard(lane)

    def _find_copies(self, expected: set[Position]) -> set[Position]:
        """Those that stand in the retry ring, too."""
        there = set()
        for slot in list(self.retry.live) if expected else ():
            reader = Reader.inside(self.retry, slot, copy_of)
            for slot_of_copy, place, _, copy in read(reader):
                position = copy.epoch, copy.sequence
                there.add(position)
                if position in expected and self._is_gone(position):
                    self.places[position] = (self.retry, slot_of_copy, place)
            reader.close()
        return there & expected

    def _is_gone(self, position: Position) -> bool:
        """The slot where it stood is recycled; as long as it is there, settling it settles the copy, too."""
        return self.places[position][1] not in (*self.ring.live, *self.retry.live)

    # -- delivering ------------------------------------------------------------------------------------------------

    def _lane(self, position: Position) -> bytes:
        return lane_of(self.ledger.records[position])

    def undelivered(self, lane: bytes) -> list[Position]:
        """What waits for the lane, in order, apart from what is in flight."""
        batch = self.batches.in_flight.get(lane)
        handed = self.ledger.handed - self.delivered - set(batch.positions if batch is not None else ())
        mine = [position for position in handed if self._lane(position) == lane]
        return sorted(p for p in mine if not self.retry_first or self.places[p][0] is self.retry)

    def goes_on(self, lane: bytes) -> bool:
        """It may send something: it is not stalled, and nothing of it is in flight."""
        return not self.in_transactions and lane not in self.stalled and lane not in self.batches.in_flight

    def deliverable(self, lane: bytes) -> list[Position]:
        """What is done with next, in order: up to a record that Kafka refuses and whose letter is not durable."""
        if not self.goes_on(lane):
            return []
        refused, buried = self.ledger.refused, self.letters.buried
        return list(takewhile(lambda p: p not in refused or p in buried, self.undelivered(lane)))

    def sendable(self, lane: bytes) -> list[Position]:
        """What may go in one batch: nothing of the lane is on its way, and Kafka refuses none of it."""
        if any(self._lane(position) == lane for position in self.delivered):
            return []
        return list(takewhile(lambda p: p not in self.ledger.refused, self.deliverable(lane)))

    def deliver(self, positions: Iterable[Position]) -> None:
        """Kafka acknowledges these, or has refused them."""
        for position in positions:
            if position in self.ledger.refused:
                self.ledger.bury(position)
            else:
                self.ledger.deliver(position)
                self.ledger.loose.add(position)
            self.delivered.add(position)

    def settle(self, positions: Iterable[Position]) -> None:
        """Delivered ones."""
        for position in positions:
            ring, slot, place = self.places.pop(position)
            ring.settle(slot, [place])
            self.delivered.discard(position)
            self.copies.discard(position)
            self.batches.claimed.discard(position)
            self.ledger.settle(position)
        self.batches.settled(self.places)

    # -- moving ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is being copied: nothing else is, and nobody reads the retry ring."""
        return self.move is not None or self.rewriting is not None or self.in_doubt

    def movable(self) -> bool:
        """The oldest slot can be moved: all that its lanes need from suspect slots is known to wait."""
        if self.busy or not self.ring.live or self._doubtful():
            return False
        slot = self.ring.live[0]
        read = self.reader.at[0] > slot.header.ordinal
        moved = slot.last_position <= self.ledger.moved
        return read and slot.sealed and slot.readers == 0 and slot.unsettled > 0 and not moved

    def rewritable(self) -> bool:
        """The retry ring can be rewritten: what the last rewriting left behind was recycled, and the same as above."""
        left = any(slot in self.void and not slot.moved for slot in self.retry.live)
        return not (self.busy or left or not self.retry.live or self._doubtful())

    def _doubtful(self) -> bool:
        return self.ring.suspect.up_to > 0 and (self.retry_first or any(map(self._unread, self.ring.live)))

    def _unread(self, slot: Slot) -> bool:
        return self.ring.is_suspect(slot) and not slot.complete

    def copied(self) -> set[Position]:
        """What has a copy in the slot that is being moved."""
        if self.move is None:
            return set()
        slot = self.move.slot
        return {self.names[slot.header.ordinal, place] for place in slot.copies}

    def abandon(self) -> None:
        """The move, or the rewriting, is not made."""
        for under_way in (self.move, self.rewriting):
            if under_way is not None:
                under_way.abandon()
        self.move = self.rewriting = self.directory.copies_from = None

    def made(self) -> None:
        """The move is durable."""
        if self.move is not None:
            copied, claimed = self.copied(), self.batches.claimed
            self.copies |= copied
            self.ledger.made(self.move.slot.last_position, copied, copied - claimed)
            self._name_claimed(self.move.slot, self.names)
            self.move.finish()
        self.move, self.directory.copies_from = None, None

    def begin_rewriting(self) -> None:
        """Once it is known what waits in the retry ring."""
        while self.read_retry(100):
            pass
        originals = [slot for slot in self.retry.live if slot not in self.void]
        self.rewriting = Rewrite(self.retry)
        self.originals, self.directory.copies_from = originals, self.rewriting.copies_from

    def rewrote(self) -> None:
        """The rewriting is durable: whoever reads on comes to the copies of what still waits."""
        copied = [(slot.header.ordinal, place) for slot in self.originals for place in slot.copies]
        self.ledger.rewrote({self.names_of_copies[at] for at in copied} - self.batches.claimed)
        for slot in self.originals:
            self._name_claimed(slot, self.names_of_copies)
        self.void += self.originals
        self.rewriting = self.directory.copies_from = None

    def _name_claimed(self, slot: Slot, names: dict[tuple[int, int], Position]) -> None:
        """Copies that the retry ring's reader passes."""
        for place in slot.copies:
            position = names[slot.header.ordinal, place]
            if position in self.batches.claimed:
                home, there = slot.copies[place]
                self.names_of_copies[home.header.ordinal, there] = position

    def superfluous(self) -> int:
        """Frames of the retry ring that wait, and of whose records another one counts or will count."""
        void = sum(slot.unsettled for slot in self.retry.live if slot in self.void)
        return void if self.rewriting is None else void + sum(len(slot.copies) for slot in self.originals)
