"""The write-ahead log as a dictionary, and a machine that drives the real one beside it.

`Ledger` is what a user may rely on, without slots, checksums or files: which records must be found, which may be
found, and which must never be seen (again). `RingMachine` does to the real `Ring`, opening and checkpoint whatever can
happen to them, in any order: signals and threads apart (`test_signals` has those), it appends, reads, settles, flushes,
checkpoints, recycles, dies and loses its power, also in the middle of a checkpoint and while publishing goes on.
"""

import random
from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiorecover.errors import WalFullError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, Destination
from aiorecover.wal.recovery import classify
from aiorecover.wal.slot import Slot
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, read, take

if TYPE_CHECKING:
    from aiorecover.wal.reading import Reader
    from aiorecover.wal.ring import Entry

SLOTS = 8


class ViolationError(AssertionError):
    """The library broke a promise."""


def demand(holds: object, promise: str, *details: object) -> None:
    """Raise when a promise does not hold."""
    if not holds:
        raise ViolationError(" ".join([promise, *map(repr, details)]))


@dataclass
class Ledger:
    """What was accepted, and what has to come of it."""

    records: dict[Position, bytes] = field(default_factory=dict)  # all that was ever accepted
    settled: set[Position] = field(default_factory=set)
    lost: set[Position] = field(default_factory=set)  # not synced, and a power cut took them
    durable: set[Position] = field(default_factory=set)  # accepted before a completed sync began
    settled_durably: set[Position] = field(default_factory=set)
    ahead: dict[Position, bool] = field(default_factory=dict)  # the reader has these before it; True: must give them
    handed: list[Position] = field(default_factory=list)  # it gave these, in this life, and they are not settled

    def accept(self, position: Position, record: bytes) -> None:
        """A record was accepted."""
        demand(position not in self.records, "I5: a position is never used twice", position)
        demand(position > max(self.records, default=(0, 0)), "I5: positions go up", position)
        self.records[position] = record
        self.ahead[position] = True

    def take(self, given: list[tuple[Position, bytes]], *, last: bool) -> None:
        """The reader gave these; ``last``: it says that there is nothing more."""
        waiting = sorted(self.ahead)
        for position, record in given:
            demand(self.records.get(position) == record, "I2: nothing but what was accepted is read", position)
            demand(position in self.ahead, "what is settled stays settled; each once, in order", position)
            while waiting[0] < position:
                self._lose(waiting.pop(0))
            if not self.ahead.pop(waiting.pop(0)):  # it has come through a power cut
                self.durable.add(position)
                self.settled.discard(position)  # and its settle word has not
            insort(self.handed, position)
        for position in waiting if last else ():
            self._lose(position)

    def _lose(self, position: Position) -> None:
        demand(not self.ahead.pop(position), "every accepted record is found again", position)
        self.lost.add(position)

    def settle(self, position: Position) -> None:
        """A record was delivered."""
        self.handed.remove(position)
        self.settled.add(position)

    def snapshot(self) -> tuple[set[Position], set[Position]]:
        """What a sync that begins now will make durable."""
        doubtful = {position for position, must in self.ahead.items() if not must}
        return set(self.records) - self.lost - doubtful, self.settled - doubtful

    def synced(self, snapshot: tuple[set[Position], set[Position]]) -> None:
        """That sync has completed."""
        self.durable |= snapshot[0] - self.lost
        self.settled_durably |= snapshot[1] & self.settled

    def died(self) -> None:
        """The process is gone: everything that was stored is there, nothing that was settled comes back."""
        for position in self.handed:
            self.ahead[position] = True
        self.handed = []

    def lost_power(self) -> None:
        """The machine is gone: what was synced is there, of all the rest anything."""
        self.ahead = {
            position: position in self.durable and position not in self.settled
            for position in self.records
            if position not in self.lost and position not in self.settled_durably
        }
        self.handed = []

    def check_watermark(self, watermark: int, promise: str) -> None:
        """Nothing at or below ``watermark`` waits."""
        for position in self.waiting():
            demand(fmt.position(*position) > watermark, promise, position)

    def waiting(self) -> list[Position]:
        """What is certainly there and not settled."""
        return [*self.handed, *(position for position, must in self.ahead.items() if must)]

    def check_checkpoint(self, watermark: int) -> None:
        """What a durable checkpoint says is durable itself."""
        for position in set(self.records) - self.lost - self.settled_durably:
            demand(fmt.position(*position) > watermark, "I4: a checkpoint says only what was captured before", position)


class _CutError(Exception):
    """The end comes in the middle of a call."""


sizes = st.sampled_from([1, 30, 300, 1200, 2100, 5000, 15_000])
seeds = st.integers(0, 2**32)
moments = st.sampled_from([("ring", "before"), ("ring", "after"), ("checkpoint", "before"), ("checkpoint", "after")])


class RingMachine(RuleBasedStateMachine):
    """The real thing and the ledger, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.number = 0
        self.powerless = False  # has the power ever gone: then records may be missing, and are reported
        self.captured: Checkpoint | None = None
        self.completed = 0  # the watermark of the last checkpoint whose write returned
        self._take_over(Opened(Disk(max_slots=SLOTS), name="shop"))

    def _take_over(self, opened: Opened) -> None:
        self.opened = opened
        self.entries: dict[Position, Entry] = {}
        self.second: Reader | None = None
        self.captured = None
        ring = opened.ring
        newest = max((epoch for epoch, _ in self.ledger.records), default=0)
        demand(ring.epoch > newest, "I5: an epoch is never used twice", ring.epoch)
        demand(ring.damaged_slots == [], "I10: no crash damages a slot", ring.damaged_slots)
        checkpoint = opened.directory.checkpoint
        demand(checkpoint.watermark >= self.completed, "I4: one good copy is always there", checkpoint.watermark)
        demand(checkpoint.destination.name == "shop", "I4: a checkpoint is never lost", checkpoint.destination)
        self.completed = checkpoint.watermark

    # -- the user --------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(0, 40))
    def begin(self, count: int) -> None:
        self._append(100, count)

    @rule(size=sizes, count=st.integers(1, 12))
    def append(self, size: int, count: int) -> None:
        self._append(size, count)

    def _append(self, size: int, count: int) -> None:
        ring = self.opened.ring
        for _ in range(count):
            self.number += 1
            record = b"%d/" % self.number + bytes(size)
            before = ring.sequence
            try:
                _, sequence = ring.append(record, record)
            except WalFullError:
                demand(ring.sequence == before, "a full ring stores nothing", before)
                demand(ring.bytes_allocated == SLOTS * SLOT, "a ring is full at its limit", ring.bytes_allocated)
                return
            self.ledger.accept((ring.epoch, sequence), record)

    @rule(limit=st.integers(1, 60))
    def read(self, limit: int) -> None:
        given = take(self.opened.reader, limit)
        demand(len(given) <= limit, "no more than was asked for", len(given))
        records = found(given)
        self.ledger.take(records, last=not given)
        for entry, (position, _) in zip(given, records, strict=True):
            self.entries[position] = entry
        reported = missing(self.opened.ring)
        demand(self.powerless or not reported, "a dying process tears no hole", reported)
        demand(len(set(reported)) == len(reported), "what is missing is reported once", reported)
        there = set(self.ledger.waiting()) & set(reported)
        demand(not there, "only what is missing is reported as missing", there)

    @precondition(lambda self: self.ledger.handed)
    @rule(seed=seeds, part=st.sampled_from([0.1, 0.5, 1.0]))
    def settle(self, seed: int, part: float) -> None:
        """In any order."""
        chance = random.Random(seed)
        handed = self.ledger.handed
        self._settle(chance.sample(handed, max(1, int(part * len(handed)))))

    def _settle(self, positions: list[Position]) -> None:
        for position in positions:
            slot, place, _, _ = self.entries.pop(position)
            self.opened.ring.settle(slot, [place])
            self.ledger.settle(position)

    @precondition(lambda self: self.ledger.handed and self.second is None)
    @rule(seed=seeds)
    def read_again(self, seed: int) -> None:
        """A second reader goes from a record that waits to the end, and stays where it is."""
        start = random.Random(seed).choice(self.ledger.handed)
        slot, place, sequence, _ = self.entries[start]
        self.second = self.opened.reader.behind(slot, place, sequence)
        again = found(read(self.second, 25)) if seed % 2 else found(take(self.second, 3))
        demand(again[0][0] == start, "a second reader begins where it is put", again[0][0])
        for position, record in again:
            waits = position in self.ledger.ahead or position not in self.ledger.settled
            demand(self.ledger.records.get(position) == record and waits, "what is read again is what waits", position)
        waiting = [position for position in self.ledger.handed if position >= start]
        demand(seed % 2 == 0 or [position for position, _ in again][: len(waiting)] == waiting, "all of it", waiting)

    @precondition(lambda self: self.second is not None)
    @rule()
    def leave(self) -> None:
        if self.second is not None:
            self.second.close()
        self.second = None

    # -- the keeper ------------------------------------------------------------------------------------------------

    @rule()
    def prepare_spare(self) -> None:
        try:
            self.opened.ring.prepare_spare()
        except WalFullError:
            return

    @rule()
    def sync(self) -> None:
        snapshot = self.ledger.snapshot()
        self.opened.ring.sync()
        self.ledger.synced(snapshot)

    @rule()
    def capture(self) -> None:
        """The first part of a checkpoint; until the keeper gets to the rest, anything may happen."""
        self.number += 1
        destination = Destination(name="shop", cluster_id=str(self.number) * 300)  # several sectors: it can be torn
        self.captured = self.opened.directory.next_checkpoint(destination=destination)

    @rule(traffic=st.booleans(), end=st.none() | moments, power=st.none() | seeds)
    def write_checkpoint(self, traffic: bool, end: tuple[str, str] | None, power: int | None) -> None:
        """The rest of it: publishing goes on during the flush, and the end may come at each step."""
        if self.captured is None:
            self.capture()
        disk = self.opened.disk
        snapshot = self.ledger.snapshot()

        def flushed() -> None:
            self.ledger.synced(snapshot)
            if traffic:
                self._append(300, 3)
                self.read(60)
                self._settle(self.ledger.handed[:40])
            at("ring", "after")

        def at(*moment: str) -> None:
            if moment == end:
                raise _CutError

        disk.ring.before["sync"] = lambda: at("ring", "before")
        disk.ring.after["sync"] = flushed
        disk.checkpoint.before["sync"] = lambda: at("checkpoint", "before")
        disk.checkpoint.after["sync"] = lambda: at("checkpoint", "after")
        try:
            self.opened.directory.write_checkpoint(self.captured)  # type: ignore[arg-type]  # the precondition
        except _CutError:
            self._end(power)
            return
        for file in (disk.ring, disk.checkpoint):
            file.before.clear()
            file.after.clear()
        self.captured = None
        self.completed = self.opened.directory.checkpoint.watermark
        self.ledger.check_checkpoint(self.completed)

    @rule()
    def recycle(self) -> None:
        ring = self.opened.ring
        self.opened.keep_damaged()
        before = list(ring.live)
        readers = [reader.slot for reader in (self.opened.reader, self.second) if reader is not None]
        ring.recycle(self.completed)
        for slot in before[: len(before) - len(ring.live)]:
            demand(slot not in readers, "I1: a slot is not recycled while somebody stands in it", slot.header.ordinal)
            covered = fmt.position(slot.header.epoch, slot.last_sequence) <= self.completed
            demand(covered, "I1: a slot is recycled only when a durable checkpoint covers it", slot.header.ordinal)
            for position in self.ledger.waiting():
                demand(not _stands_in(position, slot), "I1: nothing that waits is recycled", position)

    @rule(seed=seeds)
    def write_back(self, seed: int) -> None:
        """The kernel makes some of it durable by itself."""
        self.opened.disk.ring.write_back(seed)

    # -- the end of a life -----------------------------------------------------------------------------------------

    @rule(stopped=st.booleans(), power=st.none() | seeds)
    def end(self, stopped: bool, power: int | None) -> None:
        """The process stops or is killed, or the machine goes down."""
        if stopped:
            self.opened.directory.close()
        self._end(power)

    def _end(self, power: int | None) -> None:
        if power is None:
            disk = self.opened.disk.after_death()
            self.ledger.died()
        else:
            disk = self.opened.disk.after_power_cut(power)
            self.ledger.lost_power()
            self.powerless = True
        self._take_over(Opened(disk))

    # -- always ----------------------------------------------------------------------------------------------------

    @rule()
    def deliver_everything(self) -> None:
        """What is settled is freed: nothing pins a slot for ever."""
        self.leave()
        while self.ledger.ahead:
            self.read(100)
        demand(take(self.opened.reader, 1) == [], "at the end is the end")
        self._settle(list(self.ledger.handed))
        take(self.opened.reader, 1)
        self.capture()
        self.write_checkpoint(traffic=False, end=None, power=None)
        self.recycle()
        ring = self.opened.ring
        demand(len(ring.live) <= 1, "what is settled is freed", len(ring.live), ring.pending())
        demand(ring.unread() == 0, "nothing is left to read", ring.unread())

    @invariant()
    def counts_add_up(self) -> None:
        ring = self.opened.ring
        here = sum(epoch == ring.epoch for epoch, _ in self.ledger.ahead)
        demand(ring.pending() == len(self.ledger.handed) + here, "I9: counts add up", ring.pending())

    @invariant()
    def the_watermark_is_below_what_waits(self) -> None:
        self.ledger.check_watermark(self.opened.ring.watermark(), "the watermark stays below what waits")

    @invariant()
    def slots_with_readers_keep_their_life(self) -> None:
        """I1, seen on the file."""
        for reader in (self.opened.reader, self.second):
            if reader is None or reader.slot is None:
                continue
            file, start = self.opened.disk.ring, reader.slot.file_offset
            header = classify(0, file.read(start, 128), file.read(start + SLOT - 128, 128)).header
            demand(header == reader.slot.header, "I1: a slot keeps its life while somebody stands in it", header)


def _stands_in(position: Position, slot: Slot) -> bool:
    epoch, sequence = position
    return epoch == slot.header.epoch and slot.header.first_sequence <= sequence <= slot.last_sequence
