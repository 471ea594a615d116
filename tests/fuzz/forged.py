"""Opening directories in which something stands that is valid, and that nobody wrote (`forging`).

What nobody wrote is read as if somebody had. So this much is asked: only errors of the library's own tree come; each
record, letter and batch in flight that comes out stands in the file that it comes from, with a checksum that holds for
its slot's life, where what the checkpoint covers ends and before what it does not know begins; none comes twice, or
beside a batch that it is in; a batch is that of an entry which this boot, and this file, may know; and a directory that
could be opened takes records, is rewritten, and gives them back.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from aiorecover import record
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.dead_letters import Found as LetterFound
from aiorecover.delivery.journal import encode
from aiorecover.delivery.resume import Resumed, rebuild, take_up
from aiorecover.errors import RecoverError
from aiorecover.wal import checkpoint as chk
from aiorecover.wal import format as fmt
from aiorecover.wal import lanes
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.moving import Rewrite
from aiorecover.wal.reading import Undecodable
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from tests.fuzz.directories import EDITS, NAMES, begun, disk_of
from tests.fuzz.files import BrokenPromiseError, Tally
from tests.fuzz.forging import NOW_MS, forge
from tests.fuzz.program import Program
from tests.wal.rig import SLOT, Opened, found

__all__ = ["open_forged_directories"]

MOST_EDITS = 16
STEPS = 6_000  # turns of a reader: no file has as many frames
LONGEST_S = 20.0  # until what is read ends; it takes milliseconds
UNBUILT = (RecoverError, ValueError, RecursionError, OverflowError, TypeError)
"""A batch that cannot be built again halts its lane, whatever the reason (`Delivery._resume_lane`)."""


@dataclass
class Stored:
    """The files as they were opened."""

    files: dict[str, bytes]
    inode: int
    boot_id: str
    newest: chk.Checkpoint | None = None
    given: set[tuple[str, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """One of the copies of the checkpoint counts, if any holds."""
        file = self.files["checkpoint"]
        copies = [chk.unpack(file[at : at + chk.COPY_BYTES]) for at in (0, chk.COPY_BYTES)]
        self.newest = max(copies, key=lambda copy: copy.generation).checkpoint

    def frame(self, slot: Slot, place: int) -> tuple[int, bytes] | None:
        """Number and payload of the frame that holds there (I2)."""
        ring = self.files[slot.ring.file.path.name].ljust((slot.index + 1) * SLOT, b"\0")
        at = slot.index * SLOT + (place - fmt.SETTLE_WORD) * fmt.WORD
        length, check, sequence, _ = fmt.FRAME.unpack_from(ring, at)
        payload = ring[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length]
        holds = at + fmt.FRAME_BYTES + length <= (slot.index + 1) * SLOT - fmt.RESERVED
        return (sequence, payload) if holds and fmt.frame_crc(payload, slot.salt, sequence) == check else None

    def counts(self, slot: Slot, sequence: int) -> bool:
        """Whether the checkpoint lets the frame count."""
        if self.newest is None:
            return True
        name, position = slot.ring.file.path.name, fmt.position(slot.header.epoch, sequence)
        if name == "ring":
            return position > max(self.newest.main.watermark, self.newest.moved)
        state = self.newest.retry if name == "retry" else self.newest.dead
        known = name == "dead" or state.by_originals or position <= state.flushed
        return position > state.watermark and known

    def knows_entries(self) -> bool:
        """Whether this boot, and this file, may know what stands in the lanes."""
        header = lanes.unpack_header(self.files["lanes"])
        if header is None or (header.boot_id, header.device, header.inode) != (self.boot_id, 0, self.inode):
            return False
        return self.newest is None or header.directory_id == fmt.directory_of(self.newest.producer_id)


def open_forged_directories(data: bytes, tally: Tally) -> None:
    """One input of the fuzzer.

    Raises:
        BrokenPromiseError: something came out that does not stand in the files, or counts twice, or not.

    """
    program = Program(data)
    lived, files, boots = begun(program)
    for _ in range(MOST_EDITS):
        if not program:
            break
        if program.below(8):
            forge(program, files)
        else:
            EDITS[program.below(len(EDITS))](program, files[NAMES[program.below(len(NAMES))]])
    disk = disk_of(files, lived, boots)
    try:
        stored = Stored({name: bytes(file) for name, file in files.items()}, lived.inode, f"boot {boots}")
        with Opened(disk) as opened:
            came = asyncio.run(_looked_at(opened, stored))
            with suppress(RecoverError):  # loud: there is no room, or what was forged stands in the way
                _goes_on(opened)
        tally[came] += 1
    except RecoverError as error:
        tally[type(error).__name__] += 1
    finally:
        for name in NAMES:
            getattr(disk, name).close()


async def _looked_at(opened: Opened, stored: Stored) -> str:
    """In a word, what came out."""
    taken = take_up(opened.directory, NOW_MS, NOW_MS)
    async with asyncio.timeout(LONGEST_S):
        built = [await _taken_up(resumed, stored) for resumed in taken.lanes]
        runs = [_given(run, stored) for run in _read(Stream(opened.directory, _decoded))]
        letters = [letter async for letter in DeadLetters(opened.directory.dead, _sync).letters()]
    for letter in letters:
        _judge_letter(letter, stored)
    came = {
        "records": sum(runs),
        "letters": len(letters),
        "in flight": taken.claimed,
        "built": sum(built),
        "doubted": len(taken.doubts),
    }
    return ", ".join(word for word, count in came.items() if count) or "nothing"


async def _taken_up(resumed: Resumed, stored: Stored) -> bool:
    """Whether it could be built again."""
    entry = resumed.entry
    _demand("an entry stands in the lanes", encode(entry) in stored.files["lanes"], entry)
    _demand("an entry is of this boot and file", stored.knows_entries(), entry)
    for _, slot, places in resumed.frames:
        for place in places:
            frame = stored.frame(slot, place)
            _demand("what is in flight stands in the file", frame is not None, slot.header.ordinal, place)
            stored.given.add((slot.ring.file.path.name, slot.header.ordinal, place))
    if not resumed.frames:
        return False
    try:
        batch = await rebuild(resumed, 0)
    except UNBUILT:
        return False
    _demand("a batch is of all its records", batch.count == entry.count == len(list(batch.records())), entry)
    return True


def _given(run: Run, stored: Stored) -> int:
    slot, name = run.slot, run.slot.ring.file.path.name
    for number, place in enumerate(run.places):
        frame = stored.frame(slot, place)
        where = name, slot.header.ordinal, place
        _demand("a record stands in the file", frame is not None, *where)
        assert frame is not None
        _demand("a record counts", stored.counts(slot, frame[0]), *where)
        _demand("a record comes once, and not beside its batch", where not in stored.given, *where)
        stored.given.add(where)
        _, _, position, content = run.placed(number)
        expected = frame[1]
        if name == "retry":
            copy = unpack_moved(memoryview(frame[1]))
            expected = bytes(copy.payload)
            _demand("a copy has the position of its record", position == copy.position, *where)
        else:
            _demand("a record has its position", position == fmt.position(slot.header.epoch, frame[0]), *where)
        undecodable = isinstance(content, Undecodable)
        _demand("a record is what stands there", undecodable or content == expected, *where)
        _demand("what cannot be decoded is told apart", undecodable != _can_be_decoded(expected), *where)
    return len(run)


def _judge_letter(letter: LetterFound, stored: Stored) -> None:
    slot, place = letter.slot, letter.place
    frame = stored.frame(slot, place)
    where = "dead", slot.header.ordinal, place
    _demand("a letter stands in the file", frame is not None, *where)
    assert frame is not None
    _demand("a letter counts", stored.counts(slot, frame[0]), *where)
    _demand("a letter comes once", where not in stored.given, *where)
    stored.given.add(where)
    payload = frame[1]
    try:
        copy = unpack_moved(memoryview(payload))
    except ValueError:
        _demand("what is of no record has no position", letter.position == 0, *where)
    else:
        _demand("a letter has its position", letter.position == copy.position, *where)
        payload = bytes(copy.payload)
    held = letter.payload == payload if letter.letter is None else letter.letter.record in payload
    _demand("a letter is what stands there", held, *where)


def _goes_on(opened: Opened) -> None:
    """It takes records, its retry ring is rewritten, and the next opening finds them; or it says why not."""
    new = opened.append(b"new", b"newer")
    opened.checkpoint()
    rewriting = Rewrite(opened.directory.retry)
    opened.directory.copies_from = rewriting.copies_from
    for _ in range(STEPS):
        if rewriting.step(64):
            break
    else:
        _demand("a rewriting ends", False, rewriting.count)
    rewriting.check()
    captured = rewriting.captured(opened.directory)
    opened.directory.write_checkpoint(captured)
    opened.directory.copies_from = None
    rewriting.finish()
    opened.directory.recycle(captured)
    with opened.dies() as following:
        there = {position for position, _ in found(following.read())}
    _demand("what was accepted is found again", there.issuperset(new), new)


# -- reading -------------------------------------------------------------------------------------------------------


def _decoded(payload: memoryview) -> bytes:
    """Its bytes, of a record.

    Raises:
        ValueError: it is none.
        RecursionError: likewise.

    """
    record.decode(payload)
    return bytes(payload)


def _can_be_decoded(payload: bytes) -> bool:
    try:
        record.decode(payload)
    except (ValueError, RecursionError):
        return False
    return True


def _read(stream: Stream) -> Iterator[Run]:
    for _ in range(STEPS):
        run = stream.look(64)
        if run is not None:
            yield run
        elif not stream.moved:
            stream.close()
            return
    _demand("reading ends", False)


async def _sync() -> None:
    """Nothing is to be made durable here."""


def _demand(what: str, holds: bool, *wrong: object) -> None:
    if not holds:
        message = f"not so: {what} found={wrong!r:.600}"
        raise BrokenPromiseError(message)
