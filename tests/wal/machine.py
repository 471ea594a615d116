"""The half of `model.Machine` without moves: publishing, delivering, flushing, checkpoints, and how a life ends."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, TypeVar

from aiorecover.errors import WalDestinationError, WalError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import lanes, neighbours, room
from aiorecover.wal.checkpoint import Checkpoint, Destination
from aiorecover.wal.moved import RETRY, RING
from aiorecover.wal.reading import Reader
from aiorecover.wal.room import rewriting_takes
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Suspicion
from aiorecover.wal.view import View
from tests.wal.entries import Entries
from tests.wal.ledger import LANES, Ledger, ViolationError, demand, from_lane, lane_of, record_of
from tests.wal.letters import Letters
from tests.wal.memory import SECTOR, FaultyFile, no_room
from tests.wal.neighbourhood import Neighbourhood
from tests.wal.outside import check_views
from tests.wal.played import Played
from tests.wal.rig import RESERVED, SLOT, Disk, Machine, Opened, Position, found, missing, read, take

SLOTS = 8
ENTRY_BYTES = 5 * SECTOR
SMALL: dict[ModuleType, dict[str, int]] = {  # so that a ring of eight slots is full, and shrinks, and that lanes grow
    room: {"IDLE_LOOKS": 2, "KEEP_FREE": 1, "LOW_MARK_SHARE": 4},
    lanes: {
        "FIRST_BLOCKS": 2,
        "ENTRY_BYTES": ENTRY_BYTES,
        "BLOCK_BYTES": 2 * ENTRY_BYTES,
        "BODY_MOST": ENTRY_BYTES - lanes.ENTRY.size,
    },
}

SEEDS = range(1 << 32)
SECTORS = (512, 4096)
LIMITS = (1, 2, 3, 5, 8, 13, 21, 34, 55)
"""Frames that are asked for at a time: lives also end with little of what waits handed out."""
POWER = (None, None, *range(3, 9))
"""How a life ends: None is the death of the process, a number the seed of a power cut."""
NEVER = ("never", "")
MOMENTS = [(file, when) for file in ("ring", "retry", "checkpoint") for when in ("before", "after")]
LOOKED_AT = 10
"""One take-over in so many is looked at from outside: that opens the directory once more."""
FAILURES = (*[""] * 25, "ring", "retry", "checkpoint")

Step = tuple[Callable[..., None], dict[str, Sequence[Any]], Callable[[Any], Any]]
F = TypeVar("F", bound=Callable[..., None])

STEPS: Final[dict[str, Step]] = {}


def step(when: Callable[[Any], Any] = lambda _: True, **values: Sequence[Any]) -> Callable[[F], F]:
    """What may happen whenever ``when`` holds, with any of the ``values`` for each argument."""

    def add(function: F) -> F:
        STEPS[function.__name__] = (function, values, when)
        return function

    return add


class CutError(Exception):
    """The end comes in the middle of a call."""


class Core:
    """The real thing and the ledger, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.letters = Letters()
        self.entries = Entries()
        self.number = 0
        self.powerless = False  # has the power ever gone: then records may be missing, and are reported
        self.failed_flush = False  # has a flush ever failed
        self.full = False  # the disk has no room
        self.drained = False  # has this life delivered everything, and publishes nothing
        self.adopted: Neighbourhood | None = None  # where this life has it from, if it is that of a neighbour
        self.adopts = False  # the next one is
        self.completed = 0  # the watermark of the last checkpoint whose write returned
        self.captured: Checkpoint | None = None
        self.pending: set[Position] = set()  # copies of a move that is being made: they count if its checkpoint does
        self._sizes = {module: {name: getattr(module, name) for name in values} for module, values in SMALL.items()}
        self._set_sizes(SMALL)
        self._take_over(Disk(max_slots=SLOTS), {0})

    def teardown(self) -> None:
        """Leave the library as it was."""
        self._set_sizes(self._sizes)

    @staticmethod
    def _set_sizes(sizes: dict[ModuleType, dict[str, int]]) -> None:
        for module, values in sizes.items():
            for name, value in values.items():
                setattr(module, name, value)

    def _take_over(
        self, disk: Disk, moved: set[int], name: str | None = "shop", clean: Suspicion | None = None
    ) -> None:
        """``clean``: the end before was, and this much was suspect then."""
        waiting = self.ledger.waiting()
        demand(not waiting or _seems_to_wait(disk), "whoever adopts orphans sees that something waits", waiting)
        if clean is not None:
            demand(not (self.drained and _seems_to_wait(disk)), "what was drained and let go is not adopted for ever")
            _forbid_rewriting(disk)
        if name != "shop":
            _is_refused(disk, name)
        if self.number % LOOKED_AT == 0:  # as good as by chance, and the same in a walk that is repeated
            check_views(disk, "shop")
        lanes_left = disk.lanes.live()
        self.adopted = Neighbourhood(disk) if self.adopts else None
        directory = None if self.adopted is None else self.adopted.adopt("shop", waits=bool(waiting))
        opened = Opened(disk, name="shop", directory=directory)
        self.life = life = Played(opened, self.ledger, self.letters, self.entries)
        self.ledger.producers[life.ring.epoch] = life.ring.producer_id
        self.captured = None
        demand(clean in {None, life.directory.checkpoint.suspect}, "a clean end leaves no doubt", clean)
        ring, checkpoint = life.ring, life.directory.checkpoint
        newest = max((epoch for epoch, _ in self.ledger.records), default=0)
        demand(ring.epoch > newest, "I5: an epoch is never used twice", ring.epoch)
        damaged = [each.damaged_slots for each in life.directory.rings]
        demand(damaged == [[], [], []], "I10: no crash damages a slot", damaged)
        demand(checkpoint.watermark >= self.completed, "I4: one good copy is always there", checkpoint.watermark)
        demand(checkpoint.destination.name == "shop", "I4: a checkpoint is never lost", checkpoint.destination)
        demand(checkpoint.moved in moved, "a move is made or not", checkpoint.moved, moved)
        demand(ring.slot_bytes == SLOT, "the stored slot size wins", ring.slot_bytes)
        self.completed = checkpoint.watermark
        self.beyond = min(0, self.unallocated)  # a power cut may bring back what was given back
        self.ledger.opened(checkpoint.watermark, checkpoint.moved)
        self.letters.opened(checkpoint.dead.watermark)
        life.take_up(lanes_left)

    # -- the user --------------------------------------------------------------------------------------------------

    @step(size=[1, 30, 300, 1200, 2100, 5000, 14_000], count=range(1, 13))
    def append(self, size: int, count: int) -> None:
        ring = self.life.ring
        for _ in range(count):
            self.number += 1
            record = record_of(self.number, size)
            before = ring.sequence
            try:
                _, sequence = ring.append(record, record)
            except WalFullError:
                demand(ring.sequence == before, "a full ring stores nothing", before)
                demand(self.unallocated <= self.kept or self.full, "a ring is full at its limit", self.unallocated)
                return
            except WalError:
                demand(ring.sequence == before, "a refusal stores nothing", before)
                demand(self.life.poisoned, "nothing is refused without a reason")
                return
            demand(not self.life.poisoned, "I7: nothing is accepted after a failed flush", sequence)
            demand(self.unallocated >= self.beyond, "the rings together stay within their limit", self.unallocated)
            self.ledger.accept((ring.epoch, sequence), record)

    @property
    def unallocated(self) -> int:
        """Slots by which the three rings may still grow."""
        disk, rings = self.life.disk, self.life.directory.rings
        limit = (disk.max_slots + RESERVED) * disk.slot_bytes
        return (limit - sum(ring.bytes_allocated for ring in rings)) // SLOT

    @property
    def kept(self) -> int:
        """Slots that are left to the others: one each, and what it takes to rewrite the retry ring."""
        return RESERVED + rewriting_takes(len(self.life.retry.live) + 1)

    @step(limit=LIMITS)
    def read(self, limit: int) -> None:
        self.life.read(limit)
        reported = missing(self.life.ring)
        demand(self.powerless or not reported, "a dying process tears no hole", reported)
        demand(len(set(reported)) == len(reported), "what is missing is reported once", reported)
        there = set(self.ledger.waiting()) & set(reported) - self.ledger.evictable
        demand(not there, "only what is missing is reported as missing", there)

    @step(lambda m: not m.life.busy and m.life.retry.live, limit=LIMITS)
    def read_retry(self, limit: int) -> None:
        self.life.read_retry(limit)
        demand(self.powerless or not missing(self.life.retry), "a dying process tears no hole in the retry ring")

    @step(lambda m: m.ledger.handed, lane=LANES, part=[0.1, 0.5, 1.0, 1.0])
    def deliver(self, lane: bytes, part: float) -> None:
        """Of this lane, or of the next one that has anything."""
        mine = next(filter(None, map(self.life.deliverable, from_lane(lane))), [])
        self.life.deliver(mine[: int(part * len(mine)) + 1])

    @step(lambda m: m.life.delivered, seed=SEEDS, part=[0.1, 0.5, 1.0, 1.0])
    def settle(self, seed: int, part: float) -> None:
        """In any order of the lanes, but each lane in its own: its batches are in flight one by one."""
        chance = random.Random(seed)
        queues: dict[bytes, list[Position]] = {lane: [] for lane in LANES}
        for position in sorted(self.life.delivered):
            queues[lane_of(self.ledger.records[position])].append(position)
        in_flight = self.life.batches.in_flight  # a batch is settled as a whole, in its own order
        if b"" not in in_flight:
            chance.shuffle(queues[b""])
        parts = {lane: 1.0 if lane in in_flight else part for lane in LANES}
        turns = [lane for lane, queue in queues.items() for _ in range(round(parts[lane] * len(queue)))]
        chance.shuffle(turns)
        self.life.settle([queues[lane].pop(0) for lane in turns])

    @step(lambda m: not m.life.retry_first, lane=LANES)
    def stall(self, lane: bytes) -> None:
        """What is not in flight is passed over from now on."""
        self.life.passed |= set(self.life.undelivered(lane))
        self.life.stalled.add(lane)

    @step(lambda m: m.life.stalled and not m.life.busy, seed=SEEDS)
    def catch_up(self, seed: int) -> None:
        self.life.again(random.Random(seed).choice(sorted(self.life.stalled)))

    @step(lambda m: m.life.second is None and not m.life.evicted and m.in_main(), seed=SEEDS)
    def read_again(self, seed: int) -> None:
        """A second reader goes from a record that waits to the end, and stays where it is."""
        life, waiting = self.life, self.in_main()
        start = random.Random(seed).choice(waiting)
        _, slot, place = life.places[start]
        life.second = Reader(life.ring, bytes).behind(slot, place, start[1])
        again = found(read(life.second, 25)) if seed % 2 else found(take(life.second, 3))
        demand(again[0][0] == start, "a second reader begins where it is put", again[0][0])
        for position, record in again:
            waits = position in self.ledger.ahead or position not in self.ledger.settled
            demand(self.ledger.records.get(position) == record and waits, "what is read again is what waits", position)
        expected = {position for position in waiting if position >= start}
        demand(seed % 2 == 0 or expected <= {position for position, _ in again}, "all of it", expected)

    def in_main(self) -> list[Position]:
        """Handed records that wait in a slot of the main ring, and were not moved: a poisoned ring recycles nothing."""
        live, places, moved = self.life.ring.live, self.life.places, self.ledger.is_moved
        first = live[0].first_position if live else 1 << 63
        handed = self.ledger.handed - self.life.batches.claimed  # which readers pass
        here = (p for p in handed if fmt.position(*p) >= first and places[p][0] is self.life.ring)
        return sorted(p for p in here if not moved(p))

    @step(lambda m: m.life.second is not None)
    def leave(self) -> None:
        if self.life.second is not None:
            self.life.second.close()
        self.life.second = None

    # -- the keeper ------------------------------------------------------------------------------------------------

    @step()
    def prepare_spares(self) -> None:
        with suppress(WalFullError):
            self.life.directory.prepare_spares()

    @step()
    def shrink(self) -> None:
        self.life.directory.shrink()

    @step()
    def leave_slot(self) -> None:
        self.life.ring.leave()

    @step(full=[False, True])
    def fill_disk(self, full: bool) -> None:
        """The disk has no room, or has it again."""
        self.full = full
        disk = self.life.disk
        for file in (disk.ring, disk.retry, disk.dead, disk.lanes):
            file.before.pop("allocate", None)
            if full:
                file.before["allocate"] = no_room

    @step(fails=[*[False] * 9, True])
    def sync(self, fails: bool) -> None:
        if fails:
            self.life.disk.ring.stored.fail_syncs(1)
        snapshot = self.ledger.snapshot(everywhere=False)
        if not self._fails(self.life.directory.sync, expected=fails):
            self.ledger.synced(snapshot)

    def _fails(self, call: Callable[[], None], *, expected: bool) -> bool:
        """Whether it fails, as it must in a poisoned directory."""
        try:
            call()
        except WalIOError:
            demand(expected or self.life.poisoned, "no flush fails by itself")
            self.life.poisoned = self.failed_flush = True
            self.letters.flush_failed()
            self.entries.flush_failed()
            return True
        demand(not (expected or self.life.poisoned), "I7: after a failed flush none succeeds")
        return False

    @step()
    def capture(self) -> None:
        """The first part of a checkpoint; until the keeper gets to the rest, anything may happen."""
        self.captured = self.life.directory.next_checkpoint(destination=self._destination())

    def _destination(self) -> Destination:
        self.number += 1
        return Destination(name="shop", cluster_id=str(self.number) * 300)  # several sectors: it can be torn

    @step(traffic=[False, True], end=[*[NEVER] * 8, *MOMENTS], power=POWER, fails=FAILURES, sector=SECTORS)
    def write_checkpoint(self, traffic: bool, end: tuple[str, str], power: int | None, fails: str, sector: int) -> None:
        """The rest of it: publishing goes on during the flush, and the end may come at each step."""
        captured = self.captured or self.life.directory.next_checkpoint(destination=self._destination())
        self._write(captured, traffic, end, power, fails, sector)

    def _write(
        self, captured: Checkpoint, traffic: bool, end: tuple[str, str], power: int | None, fails: str, sector: int
    ) -> bool:
        """Whether it is written, and this life goes on."""
        life, files = self.life, self._files()
        at = self._moments(end, traffic=traffic)
        for name, file in files.items():
            file.before["sync"] = lambda name=name: at(name, "before")  # type: ignore[misc]
            file.after["sync"] = lambda name=name: at(name, "after")  # type: ignore[misc]
        if fails:
            files[fails].stored.fail_syncs(1)
        self.captured = None if captured is self.captured else self.captured  # written later, though captured before
        try:
            failed = self._fails(lambda: life.directory.write_checkpoint(captured), expected=bool(fails))
        except CutError:
            self.completed = min(self.completed, captured.watermark)  # it falls when nothing was recycled in between
            self._end(power, sector, {captured.moved, life.directory.checkpoint.moved})
            return False
        finally:
            for file in files.values():
                file.before.pop("sync")
                file.after.pop("sync")
        if failed:
            return False
        self.completed = life.directory.checkpoint.watermark
        return True

    def _files(self) -> dict[str, FaultyFile]:
        disk = self.life.disk
        return {
            "ring": disk.ring,
            "retry": disk.retry,
            "dead": disk.dead,
            "lanes": disk.lanes,
            "checkpoint": disk.checkpoint,
        }

    def _moments(self, end: tuple[str, str], *, traffic: bool) -> Callable[..., None]:
        """What happens at each moment of a checkpoint that is begun now: of which file, before its flush or after."""
        ledger, letters = self.ledger.snapshot(), self.letters.snapshot()

        def rings_are_flushed() -> None:
            self.ledger.synced(ledger)
            self.letters.synced(letters)

        told = {
            ("lanes", "before"): lambda: self.entries.look(self.life.disk.lanes.live()),
            ("lanes", "after"): self.entries.synced,
            ("checkpoint", "before"): rings_are_flushed,
        }

        def at(*moment: str) -> None:
            if moment in told:
                told[moment]()
            if moment == end:
                raise CutError
            if traffic and moment == ("ring", "after"):
                self._publish_meanwhile()

        return at

    def _publish_meanwhile(self) -> None:
        life = self.life
        self.append(300, 3)
        life.read(60)
        for lane in LANES[1:]:
            life.deliver(life.deliverable(lane)[:5])
        life.settle(sorted(life.delivered))

    @step()
    def recycle(self) -> None:
        life = self.life
        ring, durable = life.ring, life.directory.checkpoint
        life.opened.keep_damaged()
        before = list(ring.live)
        readers = [slot_of(reader) for reader in (life.reader, life.second) if reader is not None]
        life.directory.recycle(durable)
        mark = max(durable.watermark, durable.moved)
        for slot in before[: len(before) - len(ring.live)]:
            demand(slot not in readers, "I1: a slot is not recycled while somebody stands in it", slot.header.ordinal)
            covered = fmt.position(slot.header.epoch, slot.last_sequence) <= mark
            demand(covered, "I1: a slot is recycled only when a durable checkpoint covers it", slot.header.ordinal)
            for position in self.ledger.waiting():
                moved = self.ledger.is_moved(position)
                demand(moved or not stands_in(position, slot), "I1: nothing that waits is recycled", position)

    @step(seed=SEEDS)
    def write_back(self, seed: int) -> None:
        """The kernel makes some of it durable by itself."""
        disk = self.life.disk
        self.entries.look(disk.lanes.live())
        for number, file in enumerate((disk.ring, disk.retry, disk.checkpoint, disk.dead, disk.lanes)):
            file.write_back(seed + number)

    def always(self) -> None:
        """What holds after each step: each group of steps adds its own."""

    # -- the end of a life -----------------------------------------------------------------------------------------

    def _end(
        self,
        power: int | None,
        sector: int,
        moved: set[int],
        slot_bytes: int = SLOT,
        name: str | None = "shop",
        *,
        clean: bool = False,
    ) -> None:
        """``clean``: everything was flushed, and nothing was stored since."""
        self.ledger.copied |= self.pending
        self.pending = set()
        suspect = self.life.ring.suspect.up_to
        left = self.life.directory.checkpoint.suspect if clean else None
        self.entries.look(self.life.disk.lanes.live())
        disk = self._left(power, sector)
        evicted = self.life.evicted and power is None
        if clean or (power is None and not evicted):
            self.ledger.died(suspect=self.life.poisoned or (power is not None and self.failed_flush))
        elif evicted:
            self.ledger.lost_pages()
        else:
            self.ledger.lost_power(exact=not (suspect or self.failed_flush))
            self.powerless = True
        if power is not None:  # what was in flight is not known in another boot of the machine
            self.ledger.loose |= self.entries.in_flight()
        self.letters.ended(lost_power=power is not None, clean=clean, evicted=evicted)
        self.entries.ended(lost_power=power is not None)
        disk.slot_bytes, disk.max_slots = slot_bytes, (SLOTS + RESERVED) * SLOT // slot_bytes - RESERVED
        self.full = False
        self._take_over(disk, moved, name, left)

    def _moved(self) -> set[int]:
        """What the next opening may find as P."""
        life = self.life
        in_doubt = {life.move.slot.last_position} if life.in_doubt and life.move is not None else set()
        return {life.directory.checkpoint.moved} | in_doubt

    def _left(self, power: int | None, sector: int) -> Disk:
        if power is None:
            return self.life.disk.after_death()
        return self.life.disk.after_power_cut(self.number * 10 + power, sector)


def _forbid_rewriting(disk: Disk) -> None:
    """After a clean end no page is in doubt."""

    def rewritten() -> NoReturn:
        raise ViolationError("a clean end leaves no page to be written again")

    for file in (disk.ring, disk.retry, disk.dead):
        file.before["rewrite"] = rewritten


def _seems_to_wait(disk: Disk) -> bool:
    """To a neighbour, who reads no frame."""
    files = {"ring": disk.ring, "retry": disk.retry, "checkpoint": disk.checkpoint}
    boot_id = Machine(disk.boots).boot_id()
    return any(neighbours._waits(View(Path("/"), ring, files.get, boot_id)) for ring in (RING, RETRY))


def _is_refused(disk: Disk, name: str | None) -> None:
    """Another name, or none, opens nothing, and changes nothing."""
    try:
        Opened(disk, name=name)
    except WalDestinationError:
        return
    raise ViolationError("a directory is opened under its own name only", name)


def slot_of(reader: Reader) -> Slot | None:
    """Where it stands; nowhere, once it has read a sealed slot to the end."""
    slot = reader.slot
    return None if slot is None or (slot.sealed and reader.offset >= slot.tail) else slot


def stands_in(position: Position, slot: Slot) -> bool:
    """Whether ``slot`` of the main ring is its place."""
    epoch, sequence = position
    return epoch == slot.header.epoch and slot.header.first_sequence <= sequence <= slot.last_sequence
