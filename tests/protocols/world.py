"""The real log over files in memory, driven step by step, with a moment taken wherever a crash can come between.

A moment is what the files may hold (`sectors`) and what is known (`oracle.Facts`). Moments are taken at the begin
and the end of each flush, after each write, each growth, each cut, each store through a mapping in pieces (header and
seal at each end of a slot; a frame's header before its payload), and before and after each settling. What else may be
done meanwhile (`World.meanwhile`) is tried at each of these places of the keeper's thread, in every way: `World.choose`
leaves the choice to whoever explores. So is, once a program says so (`World.fragile`), a flush that fails: the life
goes on as a producer's does, which accepts and frees nothing any more, and delivers.
"""

import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from aiorecover.errors import WalError
from aiorecover.wal import format as fmt
from aiorecover.wal import lanes as lanes_module
from aiorecover.wal import ring as ring_module
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Destination
from aiorecover.wal.moved import NO_PARTITION, pack_moved, unpack_moved
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.room import IDLE_LOOKS
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import FileSystem
from aiorecover.wal.suffix import SuffixRule, Word
from tests.protocols.in_flight import InFlight, resumed
from tests.protocols.oracle import ORDERED, Facts, Observation, Position, demand, flushed
from tests.protocols.sectors import Image, Span, Tape, certain
from tests.wal.memory import FaultyFile
from tests.wal.rig import Disk, missing

FILES = ("ring", "checkpoint", "retry", "dead", "lanes")
WITHOUT_LANES = 4  # of these, where nothing is ever in flight: then what stands in `lanes` does not matter
LANES_INODE = 7  # nobody copies it
NOTHING = Image(0, ())
HALF = 7520  # two to a slot; the second one's settle word stands in another sector than the rest of its header
WHOLE = 14_000  # one to a slot


class State(NamedTuple):
    """Where a life begins."""

    spans: tuple[Span, ...] = tuple(certain(NOTHING) for _ in FILES)
    facts: Facts = Facts()
    boots: int = 1


class Moment(NamedTuple):
    """When a crash may come."""

    spans: tuple[Span, ...]
    facts: Facts


class Entry(NamedTuple):
    """A record that was read, and where it is to be settled."""

    ring: Ring
    slot: Slot
    place: int
    position: Position
    name: str
    copied: bool  # it stands in the retry ring


class EndedError(Exception):
    """A life is over before its program is: its opening was refused."""


def payload(name: str, size: int) -> bytes:
    """A record: zeros, and its name at the end."""
    return bytes(size - 8) + name.encode().ljust(8, b".")


def name_of(data: bytes | memoryview) -> str:
    """What `payload` was made of; something else for anything else."""
    name = bytes(data[-8:]).rstrip(b".").decode("latin-1")
    return "not a record" if any(data[:-8]) else name


class TracedFile(FaultyFile):
    """A file that tells of each call that changes it or makes it durable."""

    def __init__(self, name: str, live: bytes = b"") -> None:
        super().__init__(name, live)
        self.trace: Callable[[str, str], None] = _nothing
        self.written: Callable[[str, int, int], None] = _nothing
        self.fails: Callable[[], bool] = bool

    def sync(self) -> None:
        self.trace(self.stored.name, "flush begins")
        if self.fails():
            self.stored.fail_syncs()
            self.trace(self.stored.name, "flush fails")
        super().sync()
        self.trace(self.stored.name, "flush ends")

    def write(self, data: bytes, offset: int) -> None:
        super().write(data, offset)
        self.written(self.stored.name, offset, len(data))
        self.trace(self.stored.name, "write")

    def rewrite(self, offset: int, length: int) -> None:
        super().rewrite(offset, length)
        self.written(self.stored.name, offset, length)
        self.trace(self.stored.name, "rewrite")

    def allocate(self, offset: int, length: int) -> None:
        super().allocate(offset, length)
        self.trace(self.stored.name, "grow")

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.trace(self.stored.name, "cut")

    def map(self, offset: int, length: int) -> mmap.mmap:
        mapping = TracedMapping(self.fileno(), length, offset=offset)
        mapping.name = self.stored.name
        mapping.stored = partial(self.trace, self.stored.name, "store")
        return mapping


class TracedMapping(mmap.mmap):
    """A mapping that tells of each slice stored into it."""

    name: str
    stored: Callable[[], None]

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.stored()


def _nothing(*_: object) -> None:
    pass


def disk_of(images: Sequence[Image], boots: int, max_slots: int) -> Disk:
    files = [TracedFile(name, image.bytes()) for name, image in zip(FILES, images, strict=True)]
    disk = Disk(*files, max_slots=max_slots, boots=boots)
    disk.lanes.stored.inode = LANES_INODE
    return disk


class World:
    """One life of a process, from `open` to wherever it is cut off."""

    def __init__(
        self,
        state: State,
        choices: Sequence[int] = (),
        *,
        life: int = 0,
        max_slots: int = 8,
        in_flight: bool = False,
    ) -> None:
        self.facts = state.facts
        self.moments: dict[Moment, str] = {}
        self.choices: list[tuple[int, int]] = []  # taken, of how many
        self._given = list(choices)
        files = FILES if in_flight else FILES[:WITHOUT_LANES]
        self._tapes = [Tape(span) for span in state.spans[: len(files)]]
        self._untouched = state.spans[len(files) :]
        self._flushes: dict[str, Any] = {}
        self._pending: list[Callable[[], None]] = []
        self._busy = False
        self._salts = _salts(life)
        self.nonce = 1 + life  # another one for each opening: one epoch with two of them is refused
        self._max_slots = max_slots
        self.disk = disk_of([span.live for span in state.spans], state.boots, max_slots)
        self._files = [getattr(self.disk, name) for name in files]
        for file in self._files:
            file.trace, file.written, file.fails = self._trace, self._written, self._fails
        self._fragile = False  # a flush may fail
        self.failed = False  # one has
        self.poisoned = False  # and everybody knows
        self.queue: dict[str, Entry] = {}
        self.move: Move | None = None
        self.rewriting: Rewrite | None = None
        self.freed = 0
        self.captured = 0
        self.readers: list[Reader] = []
        self.batches: InFlight | None = None
        self._in_flight = in_flight
        self._patches = ExitStack()
        self._patches.enter_context(_the_same_each_time(self))

    # -- the machine -------------------------------------------------------------------------------------------------

    def salt(self, _: int) -> int:
        return next(self._salts)

    def choose(self, count: int) -> int:
        """One of ``count`` ways to go on."""
        number = len(self.choices)
        choice = self._given[number] if number < len(self._given) else 0
        self.choices.append((choice, count))
        return choice

    def at(self, label: str) -> None:
        """A crash may come here."""
        for tape, file in zip(self._tapes, self._files, strict=True):
            tape.note(file.live())
        if self._fragile and not self.facts.failed:
            return
        moment = Moment((*(tape.span() for tape in self._tapes), *self._untouched), self.facts)
        self.moments.setdefault(moment, label)

    def _trace(self, name: str, what: str) -> None:
        tape = self._tapes[FILES.index(name)]
        if what == "flush begins":
            self.at(f"{name}: {what}")
            self._flushes[name] = tape.begin(), self.facts
            self._turn()
        elif what == "flush ends":
            self.at(f"{name}: before the end of the flush")
            begun, then = self._flushes.pop(name)
            tape.end(begun)
            if name in ("ring", "retry"):
                self.facts = flushed(self.facts, then, name)
        elif what == "flush fails":
            del self._flushes[name]
            tape.fail()
            self.facts = replace(self.facts, failed=True, untold=True)
        self.at(f"{name}: {what}")
        self._turn()

    def _written(self, name: str, offset: int, length: int) -> None:
        self._tapes[FILES.index(name)].dirty(offset, length)

    def _fails(self) -> bool:
        if self._fragile and not self.failed:
            self.failed = self.choose(2) == 1
            return self.failed
        return False

    def _done(self, call: Callable[[], object]) -> bool:
        """Whether it is done; else a flush has failed, and whoever has seen that takes nothing any more."""
        try:
            call()
        except WalError as error:
            demand(self.failed, "nothing is refused without a reason", error)
            self.poisoned = True
            self.facts = replace(self.facts, untold=False)
            self.at("refused")
            return False
        return True

    def _turn(self) -> None:
        """The loop's thread may do something in the middle of what the keeper's does."""
        if self._busy:
            return
        while self._pending and self.choose(2):
            self._next()

    def _next(self) -> None:
        self._busy = True
        self._pending.pop(0)()
        self._busy = False

    @contextmanager
    def meanwhile(self, *steps: Callable[[], None]) -> Iterator[None]:
        """The loop does ``steps`` while the keeper does the rest: in every way."""
        self._pending = list(steps)
        self._turn()
        yield
        while self._pending:
            self._next()

    # -- words that programs are written in --------------------------------------------------------------------------

    def open(self) -> None:
        self.at("before opening")
        if not self._done(self._open):
            raise EndedError
        self.ring, self.retry = self.directory.ring, self.directory.retry
        self._rule = SuffixRule()
        self._main_reader = Reader(self.ring, name_of, suspects=True)
        self._retry_reader = Reader(self.retry, _copy, suspects=True)
        self.facts = replace(self.facts, opened=True, clean=False)
        self.at("opened")
        if self._in_flight:
            self.batches = InFlight(self)
            self.at("taken up")

    @property
    def sender(self) -> InFlight:
        """Whoever has batches in flight."""
        demand(self.batches is not None, "the scenario says that something is in flight")
        assert self.batches is not None
        return self.batches

    def _open(self) -> None:
        self.directory = self.disk.open()

    def close(self) -> None:
        """Let go of what the life held: nothing of it is seen by a crash."""
        for file in self._files:
            file.trace, file.written, file.fails = _nothing, _nothing, bool
        if self.move is not None:
            self.move.finish()
        if hasattr(self, "directory"):
            self.directory.close()
        for file in self._files:
            file.close()
        self._patches.close()

    def append(self, *names: str, size: int = HALF) -> None:
        for name in names:
            position = (self.ring.epoch, self.ring.sequence + 1)
            demand(position not in self.facts.names, "I5: no position is used twice", position)
            self.facts = replace(self.facts, begun=((position, name),))
            known = self.poisoned
            if not self._done(partial(self.ring.append, payload(name, size), name)):
                self.facts = replace(self.facts, begun=())
                continue
            demand(not known, "I7: nothing is accepted after a failed flush", position)
            self.facts = replace(self.facts, accepted=(*self.facts.accepted, (position, name)), begun=())
            self.at(f"{name} accepted")

    def flush(self) -> bool:
        """Whether those who wait for it are told that all is durable."""
        return self._done(self.directory.sync)

    def given(self, *names: str, size: int = HALF) -> None:
        """Durable records to begin with; crashes up to here belong to another scenario."""
        for name in names:
            self.append(name, size=size)
            self.flush()
        self.from_here()

    def from_here(self) -> None:
        """Crashes up to here belong to another scenario."""
        self.moments.clear()

    def fragile(self) -> None:
        """From here on each flush may fail, one in a life; crashes before that belong to another scenario."""
        self.from_here()
        self._fragile = True

    def read(self) -> None:
        """What is there to deliver by now: retry before main."""
        if self.move is None and self.rewriting is None:  # copies that do not count yet are not looked at
            self.queue |= {entry.name: entry for entry in drained(self._retry_reader, self._rule, copied=True)}
        for entry in drained(self._main_reader, self._rule, copied=False):
            self.queue.setdefault(entry.name, entry)

    def deliver(self, *names: str) -> None:
        """Kafka has them; then they are settled. What was refused nobody has."""
        for name in names:
            if self.poisoned and name not in self.queue:
                continue
            entry = self.queue.pop(name)
            self.facts = replace(self.facts, log=(*self.facts.log, entry.position))
            self.at(f"{name} delivered")
            self._settle(entry)
            self.at(f"{name} settled")

    def _settle(self, entry: Entry) -> None:
        copied = entry.copied or entry.place in entry.slot.copies
        entry.ring.settle(entry.slot, [entry.place])
        words = {("retry" if entry.copied else "ring", entry.position)}
        if copied:
            words.add(("retry", entry.position))
        settled = self.facts.settled | {entry.position}
        self.facts = replace(self.facts, settled=settled, words=self.facts.words | words)

    def settle_in_batch(self, slot: Slot, place: int, position: Position) -> None:
        """One record of a batch."""
        self._settle(Entry(slot.ring, slot, place, position, "", slot.ring is self.retry))

    def bury(self, name: str) -> None:
        """Kafka will never take it: a letter, once, and when that is durable the record is settled (I3)."""
        entry, dead = self.queue[name], self.directory.dead
        letters = (letter.position for letter in drained(Reader(dead, _copy), self._rule, copied=True))
        if entry.position not in letters:
            letter = pack_moved(fmt.position(*entry.position), self.nonce, NO_PARTITION, payload(name, HALF))
            if not self._done(partial(dead.append, letter, None)):
                return
            self.at(f"letter of {name} stored")
        if self._done(self.directory.sync_dead):
            del self.queue[name]
            self.facts = replace(self.facts, dead=self.facts.dead | {entry.position})
            self._settle(entry)
            self.at(f"{name} settled")

    def drain(self) -> None:
        """Read and deliver whatever waits, in order, and never read further than what was delivered.

        First what is in flight.
        """
        if self.batches is not None:
            self.batches.send()
            self.batches.acknowledge()
        for reader, copied in ((self._retry_reader, True), (self._main_reader, False)):
            for entry in drained(reader, self._rule, copied=copied):
                self.queue[entry.name] = entry
                self.deliver(entry.name)

    def checkpoint(self, *meanwhile: Callable[[], None], **more: Any) -> None:
        """Capture on the loop; flush, write and flush in the keeper's thread, with the loop going on; recycle."""
        captured = self.capture(**more)
        if not self.write(captured, *meanwhile):
            self.recycle()
        elif not captured.closed:
            self.recycle(captured)

    def capture(self, **more: Any) -> Checkpoint:
        """The loop's part of a checkpoint."""
        self.captured += 1
        long = Destination(
            cluster_id=str(self.captured % 10) * 600
        )  # so that a copy takes two sectors, and can be torn
        return self.directory.next_checkpoint(destination=long, **more)

    def write(self, captured: Checkpoint, *meanwhile: Callable[[], None]) -> bool:
        """The keeper's part of a checkpoint; whether it is written."""
        with self.meanwhile(*meanwhile):
            done = self._done(partial(self.directory.write_checkpoint, captured))
            if done:
                written = self.directory.checkpoint
                completed = (written.main.watermark, written.moved)
                self.facts = replace(self.facts, completed=completed, clean=written.closed)
        return done

    def end(self) -> None:
        """Nothing is stored any more, and the last checkpoint says so."""
        self.checkpoint(closed=True)
        self.at("ended")

    def recycle(self, durable: Checkpoint | None = None) -> None:
        """Free what the last durable checkpoint covers."""
        durable = durable or self.directory.checkpoint
        before = list(self.ring.live)
        held = [ring.bytes_used for ring in self.directory.rings]
        self.directory.recycle(durable)
        freed = held != [ring.bytes_used for ring in self.directory.rings]
        demand(not (freed and self.poisoned), "I7: nothing is recycled after a failed flush")
        for slot in [slot for slot in before if slot not in self.ring.live]:
            self.freed += 1
            stands = any(reader.slot is slot for reader in self.readers)
            demand(not stands, "I1: no slot is recycled under a reader", slot.header.ordinal)
            covered = slot.last_position <= max(durable.main.watermark, durable.moved)
            demand(covered, "I1: a durable checkpoint covers what is recycled", slot.header.ordinal)

    def stand_at(self, name: str) -> None:
        """A second reader stays at a record that was read."""
        entry = self.queue[name]
        self.readers.append(self._main_reader.behind(entry.slot, entry.place, entry.position[1]))

    def prepare(self) -> None:
        self.ring.prepare_spare()
        self.retry.prepare_spare()

    def shrink(self) -> None:
        """Nobody has needed for a minute what is free."""
        for _ in range(IDLE_LOOKS):
            self.directory.shrink()
        self.at("slots were cut off")

    # -- moving ------------------------------------------------------------------------------------------------------

    def begin_move(self) -> None:
        if self.poisoned:
            return
        self.move = Move(self.ring, self.retry, self.ring.live[0])
        self.directory.copies_from = self.move.copies_from

    def begin_rewriting(self) -> None:
        if self.poisoned:
            return
        self.rewriting = Rewrite(self.retry)
        self.directory.copies_from = self.rewriting.copies_from
        self.at("rewriting begun")

    def rewrite(self, *meanwhile: Callable[[], None]) -> None:
        """All records, one by one; between two of them the loop does the rest, in every way."""
        with self.meanwhile(*meanwhile):
            while self.rewriting is not None and not self._alone(partial(self.rewriting.step, 1)):
                self.at("rewritten")
                self._turn()

    def _alone(self, step: Callable[[], bool]) -> bool:
        """Nothing else is done in the middle of it."""
        self._busy = True
        done = step()
        self._busy = False
        return done

    def copy(self) -> bool:
        """One record; True when all are copied."""
        if self.move is None:
            return True
        done = self._alone(partial(self.move.step, 1))
        slot = self.move.slot
        copied = {(slot.header.epoch, _sequence_at(slot, place)) for place in slot.copies}
        self.facts = replace(self.facts, copied=self.facts.copied | copied)
        self.at("copied")
        return done

    def copy_all(self, *meanwhile: Callable[[], None]) -> None:
        """One by one; between two of them the loop does the rest, in every way."""
        with self.meanwhile(*meanwhile):
            while not self.copy():
                self._turn()

    def make(self, *meanwhile: Callable[[], None]) -> None:
        """The checkpoint that makes the move, or the rewriting; before it, entries are pointed to the copies."""
        self.repoint()
        if self.move is not None:
            self._make(*meanwhile, moved=self.move.slot.last_position)
        elif self.rewriting is not None:
            self._make(*meanwhile, rewritten=self.rewriting.copies_from)

    def repoint(self) -> None:
        """As the compactor has it done."""
        if self.batches is not None:
            self.batches.repoint()
            self.at("entries pointed to the copies")

    def _make(self, *meanwhile: Callable[[], None], **more: Any) -> None:
        if self.poisoned:
            return
        captured = self.capture(**more)
        if not self.write(captured, *meanwhile):
            return  # neither finished nor abandoned: nobody knows what the disk has
        if self.move is not None:
            self.move.finish()
        self.move = self.rewriting = self.directory.copies_from = None
        self.at("made")
        self.recycle(captured)

    def abandon(self) -> None:
        if self.poisoned:
            return
        for under_way in (self.move, self.rewriting):
            if under_way is not None:
                under_way.abandon()
        self.move = self.rewriting = self.directory.copies_from = None
        self.at("abandoned")

    # -- what the ring tells -----------------------------------------------------------------------------------------

    def begun(self, ring: str, ordinal: int) -> None:
        """A slot has its header."""
        ordinals = list(self.facts.ordinals)
        ordinals[("ring", "retry").index(ring)] = ordinal
        self.facts = replace(self.facts, ordinals=(ordinals[0], ordinals[1]))

    def torn(self) -> None:
        """A frame's header stands there, and its payload does not."""
        self.at("half a frame")


def _sequence_at(slot: Slot, place: int) -> int:
    start = place - fmt.SETTLE_WORD + fmt.SEQUENCE_WORD
    if slot.words is None:
        return 0
    return int(slot.words[start])


def _salts(life: int) -> Iterator[int]:
    for number in range(1, 200):
        yield (life * 200 + number) << 20 | 0x5A5A5


@contextmanager
def _the_same_each_time(world: World) -> Iterator[None]:
    """No chance and no clock; and frames are stored in two pieces, so that a crash can come between."""
    frames, frame = ring_module._FRAMES, ring_module._frame

    def in_pieces(length: int) -> tuple[Callable[..., None], int]:
        size = fmt.frame_end(0, length)

        def store(mapping: mmap.mmap, start: int, *rest: Any) -> None:
            fmt.FRAME.pack_into(mapping, start, *rest[:-1])
            world.torn()
            struct.pack_into(f"{length}s", mapping, start + fmt.FRAME_BYTES, rest[-1])

        return store, size

    store_header = Slot.store_header

    def stored(slot: Slot) -> None:
        store_header(slot)
        for name, ring in (("ring", world.ring), ("retry", world.retry)):
            if (
                isinstance(slot.map, TracedMapping)
                and slot.map.name == name
                and ring.next_ordinal > slot.header.ordinal
            ):
                world.begun(name, slot.header.ordinal)

    with ExitStack() as stack:
        patch = stack.enter_context
        patch(mock.patch.object(fmt, "new_salt", world.salt))
        patch(mock.patch.object(fmt, "secrets", SimpleNamespace(randbits=lambda _: world.nonce)))
        patch(mock.patch.object(FileSystem, "wall_ms", return_value=1))
        patch(mock.patch.object(FileSystem, "since_boot_ms", return_value=1))
        patch(mock.patch.object(lanes_module, "FIRST_BLOCKS", 2))
        patch(mock.patch.object(ring_module, "RECENT_BYTES", -1))  # everything through `_frame`, and read from the file
        patch(mock.patch.object(ring_module, "_frame", in_pieces))
        patch(mock.patch.object(Slot, "store_header", stored))
        yield
    ring_module._FRAMES, ring_module._frame = frames, frame


# -- reading as a drain would ----------------------------------------------------------------------------------------


class _Copied(NamedTuple):
    position: Position
    name: str


def _copy(data: memoryview) -> _Copied:
    moved = unpack_moved(data)
    return _Copied((moved.epoch, moved.sequence), name_of(moved.payload))


def drained(reader: Reader, rule: SuffixRule, *, copied: bool) -> Iterator[Entry]:
    """What waits, judged as the dispatcher judges it; read in small runs."""
    while (run := reader.take(2)) is not None:
        judged = _judged(reader, run, rule)
        for number in range(len(judged) if judged is not None else 0):
            slot, place, sequence, record = judged.entry(number)  # type: ignore[union-attr]
            position = record.position if copied else (slot.header.epoch, sequence)
            name = record.name if copied else record
            yield Entry(reader._ring, slot, place, position, name, copied)


def _judged(reader: Reader, run: Run, rule: SuffixRule) -> Run | None:
    if run.words is None:
        return run
    keep, reopened = [], []
    for number, word in enumerate(run.words):
        record = run.records[number]
        name = record.name if isinstance(record, _Copied) else record
        if rule.needed(name[0] if name[0] in ORDERED else None, word):
            keep.append(number)
            if word is not Word.WAITING:
                reopened.append(run.places[number])
    reader.reopen(run.slot, reopened)
    reader.dismiss(run.slot, len(run) - len(keep))
    return run.pick(keep)


def observe(images: Sequence[Image], boots: int, max_slots: int = 8) -> Observation:
    """Open what a crash left, and read it to its end."""
    disk = disk_of(images, boots, max_slots)
    newest = CheckpointFile(disk.checkpoint).newest()
    directory = disk.open()
    try:
        again = resumed(directory)
        rule = SuffixRule()
        given = list(drained(Reader(directory.retry, _copy, suspects=True), rule, copied=True))
        given += drained(Reader(directory.ring, name_of, suspects=True), rule, copied=False)
        letters = drained(Reader(directory.dead, _copy), rule, copied=True)
        return Observation(
            epoch=directory.ring.epoch,
            given=tuple(("retry" if entry.copied else "ring", entry.position, entry.name) for entry in given),
            letters=tuple((letter.position, letter.name) for letter in letters),
            missing=tuple(missing(directory.ring)),
            retry_missing=len(directory.retry.damage),
            damaged=sum(len(ring.damaged_slots) for ring in directory.rings),
            pending=directory.ring.pending() + directory.retry.pending(),
            checkpoint=newest is not None,
            watermark=0 if newest is None else newest.main.watermark,
            flushed=0 if newest is None else newest.main.flushed,
            moved=0 if newest is None else newest.moved,
            next_ordinals=(directory.ring.next_ordinal, directory.retry.next_ordinal),
            resumed=again,
        )
    finally:
        directory.close()
