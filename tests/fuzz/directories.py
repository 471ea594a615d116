"""Opening whole directories that were damaged: the three rings, the lanes' entries and the checkpoint together.

Nothing is forged here (but in `forged`): bits flip, sectors are lost or overwritten, files are cut off. So only
errors of the library's own tree may come, and what comes out was put in: each record of the main or of the retry ring
at its position, once; each dead letter; and what was in flight is the very batch that was entered, of records that
stand where its entry says.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aiorecover import record
from aiorecover.delivery.journal import MAIN, Entry, Group, encode
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.resume import take_up
from aiorecover.errors import RecoverError, WalFullError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES
from aiorecover.wal.lanes import ENTRY_BYTES
from aiorecover.wal.lookup import Lookup
from aiorecover.wal.moved import pack_moved, unpack_moved
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Entry as Stored
from aiorecover.wal.slot import Slot
from tests.fuzz.files import BrokenPromiseError, Tally
from tests.fuzz.images import repeatable
from tests.fuzz.program import Program
from tests.wal.memory import FaultyFile
from tests.wal.rig import SLOT, Disk, Opened, entries_of

__all__ = ["open_damaged_directories"]

IMAGES = 16
MAX_SLOTS = 12
SECTOR = 512
NOW_MS = 5_000
STAMPED_MS = 1_800_000_000_000  # no clock that was never set, and so young that no entry is old for it
MOST_EDITS = 24
LANES_BLOCKS = 6  # copies of entries that most images have
STEPS = 4_000  # turns of a reader: no image has as many frames
NAMES = ("ring", "checkpoint", "retry", "dead", "lanes")


@dataclass
class Lived:
    """The files of a directory, and what those who lived in it had put there."""

    files: dict[str, bytes] = field(default_factory=dict)
    inode: int = 0  # of the lanes' file: another one would be that of a copied directory
    records: dict[int, bytes] = field(default_factory=dict)
    letters: dict[int, bytes] = field(default_factory=dict)
    batches: dict[bytes, list[int]] = field(default_factory=dict)  # positions, by the entry without its groups


def open_damaged_directories(data: bytes, tally: Tally) -> None:
    """One input of the fuzzer.

    Raises:
        BrokenPromiseError: something came out that nobody put in.

    """
    program = Program(data)
    lived, files, boots = begun(program)
    for _ in range(MOST_EDITS):
        if not program:
            break
        name = NAMES[program.below(len(NAMES))]
        edits = EDITS + (_flip_in_an_entry,) * len(EDITS) if name == "lanes" else EDITS
        edits[program.below(len(edits))](program, files[name])
    disk = disk_of(files, lived, boots)
    try:
        with Opened(disk) as opened:
            tally[_looked_at(opened, lived, counts_are_known=_knows_copies(lived, files["checkpoint"]))] += 1
    except RecoverError as error:
        tally[type(error).__name__] += 1


def begun(program: Program) -> tuple[Lived, dict[str, bytearray], int]:
    """What there was, its files, which are to be changed, and in which boot of the machine they are opened."""
    lived = image(program.below(IMAGES))
    files = {name: bytearray(lived.files[name]) for name in NAMES}
    return lived, files, 1 + program.below(8) // 7


def disk_of(files: dict[str, bytearray], lived: Lived, boots: int) -> Disk:
    """The files in their place, and not a copy of them."""
    disk = Disk(*(FaultyFile(name, bytes(files[name])) for name in NAMES), max_slots=MAX_SLOTS, boots=boots)
    disk.lanes.stored.inode = lived.inode
    return disk


def _knows_copies(lived: Lived, checkpoint: bytearray) -> bool:
    """Whether a checkpoint is left: nothing else knows which copies a rewriting had made to count (`void_copies`)."""
    before = lived.files["checkpoint"]
    copies = slice(0, COPY_BYTES), slice(COPY_BYTES, 2 * COPY_BYTES)
    return any(checkpoint[copy] == before[copy] for copy in copies)


def _looked_at(opened: Opened, lived: Lived, *, counts_are_known: bool) -> str:
    directory = opened.directory
    resumed = _in_flight(opened, lived)
    came = [*_moved(directory.retry), *((_position(entry), bytes(entry[3])) for entry in _read(opened.ring, bytes))]
    _demand("each record that comes out was put in", [at for at, payload in came if lived.records.get(at) != payload])
    twice = [at for at, times in Counter([*(at for at, _ in came), *resumed]).items() if times > 1]
    _demand("each comes out once, or is in flight", twice if counts_are_known else None)
    letters = [(at, payload) for at, payload in _moved(directory.dead) if lived.letters.get(at) != payload]
    _demand("each dead letter was put in", letters)
    damaged = bool(directory.ring.damage or directory.retry.damage or directory.dead.damage)
    return f"{'damage reported' if damaged else 'whole'}{', in flight' if resumed else ''}"


def _in_flight(opened: Opened, lived: Lived) -> list[int]:
    """Positions of what is taken up."""
    positions: list[int] = []
    for resumed in take_up(opened.directory, NOW_MS, NOW_MS).lanes:
        entered = lived.batches.get(_identity(resumed.entry))
        _demand("what is in flight was entered", None if entered is not None else resumed.entry)
        found = [_origin(ring, slot, place) for ring, slot, places in resumed.frames for place in places]
        mine = [position for position, _ in found]
        _demand("it is of the records that it was entered with", mine if mine and mine != entered else None)
        wrong = [position for position, payload in found if lived.records.get(position) != payload]
        _demand("each record that is in flight was put in", wrong)
        positions += mine
    return positions


def _origin(ring: Ring, slot: Slot, place: int) -> tuple[int, bytes]:
    """Position and payload of the record."""
    frame = Lookup(ring).frame(slot, place)
    if frame is None:
        return 0, b""
    if ring.holds_copies:
        copy = unpack_moved(frame.payload)
        return copy.position, bytes(copy.payload)
    return fmt.position(slot.header.epoch, frame.sequence), bytes(frame.payload)


def _moved(ring: Ring) -> list[tuple[int, bytes]]:
    """Positions of origin and payloads of all that waits in a ring of copies."""
    copies = [unpack_moved(memoryview(entry[3])) for entry in _read(ring, bytes)]
    return [(copy.position, bytes(copy.payload)) for copy in copies]


def _read(ring: Ring, decode: Callable[[memoryview], bytes]) -> Iterator[Stored]:
    reader = Reader(ring, decode)
    for _ in range(STEPS):
        taken = entries_of(reader.look(64))
        yield from taken
        if not taken and not reader.moved:
            return
    _demand("reading ends", ring.bytes_used)


def _position(entry: Stored) -> int:
    return fmt.position(entry[0].header.epoch, entry[2])


def _identity(entry: Entry) -> bytes:
    """All of an entry but where its frames stand, which a move changes."""
    return encode(Entry(*entry.lane, entry.identity, entry.base_sequence, entry.count, entry.offset, 0, ()))


def _demand(what: str, wrong: object) -> None:
    if wrong:
        message = f"not so: {what} found={wrong!r:.600}"
        raise BrokenPromiseError(message)


# -- damage --------------------------------------------------------------------------------------------------------


def _flip(program: Program, file: bytearray) -> None:
    if file:
        file[program.number(3) % len(file)] ^= 1 << program.below(8)


def _lose(program: Program, file: bytearray) -> None:
    at = program.number(2) * SECTOR % max(len(file), 1)
    count = (1 + program.below(40)) * SECTOR
    file[at : at + count] = bytes(len(file[at : at + count]))


def _lose_a_slot(program: Program, file: bytearray) -> None:
    at = program.below(MAX_SLOTS) * SLOT
    file[at : at + SLOT] = bytes(len(file[at : at + SLOT]))


def _overwrite(program: Program, file: bytearray) -> None:
    at, data = program.number(3) % max(len(file), 1), program.bytes(1 + program.below(16))
    file[at : at + len(data)] = data


def _cut(program: Program, file: bytearray) -> None:
    del file[program.number(3) % max(len(file), 1) :]


def _flip_in_an_entry(program: Program, file: bytearray) -> None:
    """Where something stands: an entry has room for thousands of records."""
    at = SECTOR + program.below(LANES_BLOCKS) * ENTRY_BYTES + program.below(128)
    if at < len(file):
        file[at] ^= 1 << program.below(8)


EDITS = (_flip, _flip, _flip, _lose, _lose, _lose_a_slot, _overwrite, _cut)


# -- lives ---------------------------------------------------------------------------------------------------------


@functools.cache
def image(number: int) -> Lived:
    """One of the directories; the same number gives the same bytes."""
    chance = random.Random(f"directory {number}")
    with repeatable(chance):
        return _lived_in(chance)


def _lived_in(chance: random.Random) -> Lived:
    made, opened = Lived(), Opened(Disk(max_slots=MAX_SLOTS))
    lives = chance.randint(1, 3)
    for life in range(lives):
        for _ in range(chance.randint(6, 20)):
            (step,) = chance.choices(list(LIVING), list(LIVING.values()))
            step(chance, opened, made)
        disk = opened.disk
        files = (disk.ring, disk.checkpoint, disk.retry, disk.dead, disk.lanes)
        made.files = {name: file.live() for name, file in zip(NAMES, files, strict=True)}
        made.inode = disk.lanes.stored.inode
        opened = opened.dies() if life + 1 < lives else opened
    return made


def _publish(chance: random.Random, opened: Opened, made: Lived) -> None:
    for _ in range(chance.randint(1, 40)):
        if opened.ring.bytes_used >= (MAX_SLOTS - 6) * SLOT:
            return
        value = b"%d " % opened.ring.sequence + chance.randbytes(chance.choice([10, 200, 900]))
        payload = record.encode(("t", None, value, None, STAMPED_MS, None, None, None))
        try:
            _, sequence = opened.ring.append(payload, payload)
        except WalFullError:  # of what was copied, and not made
            return
        made.records[fmt.position(opened.ring.epoch, sequence)] = payload


def _settle(chance: random.Random, opened: Opened, _made: Lived) -> None:
    """Of all that waits in the main ring, whoever has read it before."""
    reader = Reader(opened.ring, bytes)
    for slot, place, _, _ in [entry for _ in range(20) for entry in entries_of(reader.look(64))]:
        if slot.waits(place) and chance.random() < 0.6:
            opened.ring.settle(slot, [place])
    reader.close()


def _move(chance: random.Random, opened: Opened, _: Lived) -> None:
    """The oldest slot, up to some step."""
    ring, retry = opened.ring, opened.directory.retry
    slots = [slot for slot in ring.live if not slot.moved]
    if len(slots) < 2 or not slots[0].complete or opened.directory.copies_from is not None:
        return
    moving = Move(ring, retry, slots[0])
    opened.directory.copies_from = moving.copies_from
    while not moving.step(64):
        if chance.random() < 0.05:
            return
    if chance.random() < 0.2:
        return
    captured = opened.directory.next_checkpoint(moved=slots[0].last_position)
    _made(opened, moving, captured)


def _rewrite(chance: random.Random, opened: Opened, _: Lived) -> None:
    retry = opened.directory.retry
    if not retry.live or opened.directory.copies_from is not None:
        return
    rewriting = Rewrite(retry)
    opened.directory.copies_from = rewriting.copies_from
    while not rewriting.step(64):
        if chance.random() < 0.1:
            return
    _made(opened, rewriting, rewriting.captured(opened.directory))


def _made(opened: Opened, copying: Move | Rewrite, captured: object) -> None:
    opened.directory.write_checkpoint(captured)  # type: ignore[arg-type]  # a checkpoint
    opened.directory.copies_from = None
    copying.finish()
    opened.directory.recycle(captured)  # type: ignore[arg-type]


def _bury(chance: random.Random, opened: Opened, made: Lived) -> None:
    """Letters of some records; whether those are settled does not matter here."""
    for position in chance.sample(sorted(made.records), min(3, len(made.records))):
        letter = made.letters.setdefault(position, b"letter " + chance.randbytes(chance.choice([20, 2000])))
        opened.directory.dead.append(pack_moved(position, 0, 0, letter), None)


def _enter(chance: random.Random, opened: Opened, made: Lived) -> None:
    """A batch of some records of the main ring that follow each other and wait."""
    reader = Reader(opened.ring, bytes)
    waiting = [entry for _ in range(20) for entry in entries_of(reader.look(64)) if entry[0].waits(entry[1])]
    reader.close()
    entered = {position for positions in made.batches.values() for position in positions}
    waiting = [entry for entry in waiting if _position(entry) not in entered]
    begin = chance.randrange(len(waiting) + 1)
    chosen = waiting[begin : begin + chance.randint(1, 30)]
    block = opened.directory.lanes.take()
    if not chosen or block is None:
        return
    groups: dict[int, list[int]] = {}
    for slot, place, _, _ in chosen:
        groups.setdefault(slot.header.ordinal, []).append(place)
    where = tuple(Group(MAIN, ordinal, places) for ordinal, places in groups.items())
    identity = Identity(chance.randrange(1 << 40), chance.randrange(100))
    lane = "t", len(made.batches)
    entry = Entry(*lane, identity, chance.randrange(1 << 30), len(chosen), -1, NOW_MS, where)
    opened.directory.lanes.store(block, encode(entry))
    made.batches[_identity(entry)] = [_position(one) for one in chosen]


def _checkpoint(_chance: random.Random, opened: Opened, _made: Lived) -> None:
    if opened.directory.copies_from is None:
        opened.checkpoint()


LIVING: dict[Callable[[random.Random, Opened, Lived], None], int] = {  # and how often each, against the others
    _publish: 6,
    _settle: 3,
    _move: 4,
    _rewrite: 2,
    _bury: 2,
    _enter: 3,
    _checkpoint: 2,
}
