"""The write-ahead log as a dictionary: what a user may rely on, without slots, checksums or files.

Which records must be found, which may be found, which must never be seen (again), in which ring, and what Kafka has by
now. A record's payload names its lane (`record_of`, `lane_of`).
"""

from dataclasses import dataclass, field

from aiorecover.wal import format as fmt
from tests.wal.rig import Position

LANES = (b"a", b"b", b"c", b"")
"""The last one is of records without key and partition: they have no order."""


class ViolationError(AssertionError):
    """The library broke a promise."""


def demand(holds: object, promise: str, *details: object) -> None:
    """Raise when a promise does not hold."""
    if not holds:
        raise ViolationError(" ".join([promise, *map(repr, details)]))


def record_of(number: int, size: int) -> bytes:
    """A record that is like no other, of the lane that its number says."""
    return b"%d/%b/" % (number, LANES[number * 7 % 11 % 4]) + bytes(size)


def lane_of(record: bytes) -> bytes:
    """The lane of a record; empty for a record that has none."""
    parts = record.split(b"/", 2)
    return parts[1] if len(parts) == 3 else b""


def from_lane(lane: bytes) -> tuple[bytes, ...]:
    """All lanes, this one first."""
    begin = LANES.index(lane)
    return *LANES[begin:], *LANES[:begin]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a flush that begins now makes durable: these records, and these settlements."""

    records: set[Position]
    settled: set[Position]


@dataclass
class Ledger:
    """What was accepted, and what has to come of it."""

    records: dict[Position, bytes] = field(default_factory=dict)  # all that was ever accepted
    producers: dict[int, int] = field(default_factory=dict)  # of each epoch: in the ids of all that it has accepted
    settled: set[Position] = field(default_factory=set)
    lost: set[Position] = field(default_factory=set)  # not synced, and a power cut took them
    over: set[Position] = field(default_factory=set)  # settled, and the reader of a later life has passed them
    durable: set[Position] = field(default_factory=set)  # accepted before a completed sync began
    settled_durably: set[Position] = field(default_factory=set)
    ahead: dict[Position, bool] = field(default_factory=dict)  # a reader has these before it; True: must give them
    handed: set[Position] = field(default_factory=set)  # it gave these, in this life, and they are not settled
    moved: int = 0  # P: up to here copies count, beyond it originals do
    copied: set[Position] = field(default_factory=set)  # ever, to the retry ring, by a move that was made
    copies: dict[Position, bool] = field(default_factory=dict)  # made in this life, before the retry ring's reader
    evictable: set[Position] = field(default_factory=set)  # pages have left memory, theirs among them, for all we know
    revived: set[Position] = field(default_factory=set)  # their settle words may have left memory in this very life
    undone: set[Position] = field(default_factory=set)  # given once more like that, and by no later life
    afloat: set[Position] = field(default_factory=set)  # where they are, it is in memory: the disk never had them
    exact: bool = False  # one power cut, and nothing else: what is settled durably comes only as part of a suffix
    given: set[bytes] = field(default_factory=set)  # lanes of which a reader gave anything in this life
    kafka: dict[bytes, list[Position]] = field(default_factory=lambda: {lane: [] for lane in LANES})
    loose: set[Position] = field(default_factory=set)  # may come to Kafka twice, also where only a process dies
    reopened: set[Position] = field(default_factory=set)  # settled, and in flight once more with the rest of a batch
    refused: set[Position] = field(default_factory=set)  # Kafka will never take them
    buried: set[Position] = field(default_factory=set)  # in place of them letters were durable
    out_of_order: set[Position] = field(default_factory=set)  # refused once, and taken by Kafka later
    doubt: bool = False  # a power cut, or a failed flush: whatever was sent may come once more

    # -- the log ---------------------------------------------------------------------------------------------------

    def accept(self, position: Position, record: bytes) -> None:
        """A record was accepted."""
        demand(position not in self.records, "I5: a position is never used twice", position)
        demand(position > max(self.records, default=(0, 0)), "I5: positions go up", position)
        self.records[position] = record
        self.ahead[position] = True

    def take(self, given: list[tuple[Position, bytes]], *, last: bool, retry: bool = False) -> None:
        """A reader gave these; ``last``: it says that there is nothing more. ``retry``: that of the retry ring."""
        waiting = sorted(position for position in self.ahead if self.is_moved(position) is retry)
        passed = 0
        for position, record in given:
            demand(self.records.get(position) == record, "I2: nothing but what was accepted is read", position)
            demand(self.is_moved(position) is retry, "a record counts in exactly one place", position)
            demand(position in self.ahead, "what is settled stays settled; each once, in order", position)
            while waiting[passed] < position:
                self._lose(waiting[passed])
                passed += 1
            self._give(waiting[passed])
            passed += 1
        for position in waiting[passed:] if last else ():
            self._lose(position)

    def take_copies(self, given: list[tuple[Position, bytes]], *, last: bool) -> None:
        """The retry ring's reader gave what was moved in this life."""
        waiting = sorted(self.copies)
        for position, record in given:
            demand(self.records.get(position) == record, "I2: nothing but what was accepted is read", position)
            demand(position in self.copies, "a moved record is given once, in order", position)
            while waiting[0] < position:
                self._miss(waiting.pop(0))
            del self.copies[waiting.pop(0)]
        for position in waiting if last else ():
            self._miss(position)

    def _miss(self, position: Position) -> None:
        demand(not self.copies.pop(position), "every moved record that waits is found in the retry ring", position)

    def _give(self, position: Position) -> None:
        lane = lane_of(self.records[position])
        if self.exact and position in self.settled_durably:
            demand(lane and lane in self.given, "what is durably settled comes only behind what is not", position)
        if position in self.revived and not self.ahead[position]:
            self.undone.add(position)
            self.loose.add(position)
        else:
            self.undone.discard(position)
        if not self.ahead.pop(position):  # it has come through a power cut, or stayed in memory
            self.durable |= {position} - self.afloat - self.evictable
            self.settled.discard(position)  # and its settle word has not, or one before it in its lane
            self.settled_durably.discard(position)
        self.given.add(lane)
        self.handed.add(position)

    def _lose(self, position: Position) -> None:
        must = self.ahead.pop(position) and position not in self.evictable
        demand(not must, "every accepted record is found again", position)
        (self.over if position in self.settled else self.lost).add(position)

    def settle(self, position: Position) -> None:
        """A record was delivered."""
        self.handed.remove(position)
        self.settled.add(position)
        self.reopened.discard(position)
        if position in self.copies:
            self.copies[position] = False

    def claim(self, position: Position) -> None:
        """It was in flight when a process died, and is once more with all of its batch; readers pass it."""
        there = self.ahead.pop(position, False) or position in self.settled
        demand(there, "what is in flight waits, or was settled before the rest of its batch", position)
        if position in self.settled:
            self.reopened.add(position)
            self.settled.discard(position)
            self.settled_durably.discard(position)
        self.handed.add(position)

    def made(self, moved: int, copied: set[Position], given: set[Position]) -> None:
        """A move is durable: up to P, these copies count; ``given``: those that a reader gives."""
        self.moved = moved
        self.copied |= copied
        self.copies |= dict.fromkeys(given, True)

    def rewrote(self, copied: set[Position]) -> None:
        """The retry ring is rewritten: its reader has these before it once more."""
        self.copies |= dict.fromkeys(copied, True)

    def is_moved(self, position: Position) -> bool:
        """Whether its place is not in the main ring any more."""
        return fmt.position(*position) <= self.moved

    # -- what survives ---------------------------------------------------------------------------------------------

    def snapshot(self, *, everywhere: bool = True) -> Snapshot:
        """What a sync that begins now will make durable; not ``everywhere``: of the main ring alone."""
        doubtful = {position for position, must in self.ahead.items() if not must}
        settled = self.settled - doubtful
        if not everywhere:
            settled = {position for position in settled if position not in self.copied}
        return Snapshot(set(self.records) - self.lost - self.over - doubtful, settled)

    def synced(self, snapshot: Snapshot) -> None:
        """That sync has completed."""
        self.durable |= snapshot.records - self.lost
        self.settled_durably |= snapshot.settled & self.settled

    def evicted(self, unread: set[Position]) -> None:
        """A flush has failed, and what none before it had covered may be gone, in this very life.

        ``unread``: records of earlier lives to which no reader has come. Where no flush had covered that they were
        settled, they may wait again: the one limitation that leaves repeats in no order.
        """
        self.evictable = self.records.keys() - self.durable
        self.revived |= unread & self.settled - self.settled_durably - self.lost - self.ahead.keys()
        self.ahead |= dict.fromkeys(self.revived & unread, False)

    def died(self, *, suspect: bool = False) -> None:
        """The process is gone: everything that was stored is there, nothing that was settled comes back.

        ``suspect``: after a failed flush it may, in the suffix of its lane.
        """
        self.doubt = self.doubt or suspect
        if suspect:
            again = self.settled - self.lost
            self.ahead |= dict.fromkeys(again, False)
        self.ahead |= dict.fromkeys(self.handed, True)
        self._next_life(exact=False)

    def lost_pages(self) -> None:
        """The process is gone, and behind a failed flush pages have left memory: the disk has what a power cut leaves.

        What is there for all that may still be in memory alone.
        """
        self.lost_power()
        self.afloat = self.records.keys() - self.durable

    def lost_power(self, *, exact: bool = False) -> None:
        """The machine is gone: what was synced is there, of all the rest anything."""
        self.doubt = True
        self.afloat.clear()
        self.settled |= self.reopened  # nobody knows which of its words the disk has
        self.ahead = {
            position: position in self.durable and position not in self.settled
            for position in self.records
            if position not in self.lost
        }
        self._next_life(exact=exact)

    def _next_life(self, *, exact: bool) -> None:
        self.handed.clear()
        self.copies.clear()
        self.given.clear()
        self.reopened.clear()
        self.evictable.clear()
        self.revived.clear()
        self.exact = exact

    def opened(self, watermark: int, moved: int) -> None:
        """The next life begins with what its checkpoint says: what that covers is not looked at."""
        self.moved = moved
        for position in list(self.ahead):
            gone = position not in self.copied if self.is_moved(position) else fmt.position(*position) <= watermark
            if gone:
                self._lose(position)

    # -- Kafka -----------------------------------------------------------------------------------------------------

    def deliver(self, position: Position) -> None:
        """Kafka has it (once more)."""
        lane = lane_of(self.records[position])
        log = self.kafka[lane]
        again = position in log
        demand(not again or self.doubt or position in self.loose, "where a process dies nothing comes twice", position)
        in_order = again or not lane or position in self.out_of_order
        demand(in_order or position > max(log, default=(0, 0)), "I6: first appearances are in order", position)
        log.append(position)

    def commit(self, position: Position) -> None:
        """Kafka has it, in a transaction that is committed."""
        demand(position not in self.kafka[lane_of(self.records[position])], "exactly once", position)
        self.deliver(position)

    def check_committed(self, position: Position) -> None:
        """What the position covers is in Kafka."""
        demand(
            position in self.kafka[lane_of(self.records[position])], "nothing is settled that is not there", position
        )

    def bury(self, position: Position) -> None:
        """Kafka would not take it, and its letter is durable."""
        self.buried.add(position)

    def accept_late(self, position: Position) -> None:
        """There is no room for a letter, and Kafka takes the record after all."""
        self.refused.discard(position)
        self.out_of_order.add(position)

    def check_kafka(self) -> None:
        """Nothing waits any more: nothing is missing, and of each lane the newest stands last."""
        kept = self.records.keys() - self.lost - (self.over - self.durable) - self.buried
        for lane, log in self.kafka.items():
            expected = {position for position in kept if lane_of(self.records[position]) == lane}
            missing = expected - set(log)
            demand(not missing, "every accepted record is delivered", missing)
            last = [position for position in dict.fromkeys(reversed(log)) if position in expected - self.undone]
            demand(not lane or last == sorted(last, reverse=True), "I6: the newest value stands last", lane, log)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def check_watermark(self, watermark: int, promise: str) -> None:
        """Nothing at or below ``watermark`` waits in the main ring."""
        waiting = [position for position in self.waiting() if not self.is_moved(position)]
        oldest = min(waiting, default=None)
        demand(oldest is None or fmt.position(*oldest) > watermark, promise, oldest)

    def waiting(self) -> list[Position]:
        """What is certainly there and not settled."""
        return [*self.handed, *(position for position, must in self.ahead.items() if must)]

    def check_position(self, position: int) -> None:
        """Nothing at or below ``position`` waits, wherever it stands."""
        oldest = min(self.waiting(), default=None)
        demand(oldest is None or fmt.position(*oldest) > position, "what is told to be settled is", oldest)

    def check_checkpoint(self, watermark: int) -> None:
        """What a durable checkpoint says is durable itself."""
        perhaps = {
            position for position, must in self.ahead.items() if not must
        }  # passed by the reader, for all we know
        for position in set(self.records) - self.lost - self.over - self.settled_durably - perhaps:
            beyond = fmt.position(*position) > watermark or self.is_moved(position)
            demand(beyond, "I4: a checkpoint says only what was captured before", position)
