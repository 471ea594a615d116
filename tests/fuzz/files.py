"""Opening arbitrary files, and what must hold whatever is in them.

Always: only errors of the library's own tree, a bounded number of steps and of bytes read, and each record that comes
out stands in the file with a checksum that holds for its slot's life (I2), not settled.

Unless the input forged something that is valid and that nobody wrote: each record that comes out was put in, at its
position, in order, once; each record that was put in and was not settled comes out if its frame is whole, else it is
reported. What cannot be known is let pass: a slot that is zero or cut off, or the end of one without a seal, with
nothing of its epoch behind it; and what stood before the oldest slot, when no checkpoint tells what was recycled.
"""

import collections
import dataclasses
import struct
import zlib
from collections.abc import Iterator

from aiorecover.errors import RecoverError
from aiorecover.wal import checkpoint as chk
from aiorecover.wal import format as fmt
from aiorecover.wal.run import Entry
from tests.fuzz.damage import arbitrary, damaged
from tests.fuzz.images import Image
from tests.fuzz.program import Program
from tests.wal.memory import FaultyFile
from tests.wal.rig import MAX_SLOTS, SLOT, Disk, Opened, Position, entries_of, found

__all__ = ["BrokenPromiseError", "Tally", "open_arbitrary_files", "open_files", "watermark_of"]

READ_TIMES = (
    12  # how often each byte may be read: opening reads headers, a reader each slot once, and over damage again
)
LIMIT = 64  # entries at once: several turns for each slot

LARGEST_SEQUENCE = LARGEST_DAMAGE = 1 << 16  # no ring of these sizes holds as many

Tally = collections.Counter[str]
"""How often inputs came to what end."""


class BrokenPromiseError(AssertionError):
    """Something that must hold whatever is in the files does not."""


class CountingFile(FaultyFile):
    """Counts what is read: a bound on the work that does not depend on the machine."""

    bytes_read = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = super().read_into(buffer, offset)
        self.bytes_read += count
        return count


@dataclasses.dataclass
class Outcome:
    """What came out of the files."""

    ring: bytes  # as it was opened
    checkpoint: bytes
    entries: list[Entry]
    missing: list[Position]
    damaged_slots: set[int]
    live: list[tuple[int, int, int]]  # slot index, epoch, first sequence
    epoch: int
    watermark: int  # of the checkpoint; 0 where a copy of it is lost
    accepted: list[Position] = dataclasses.field(default_factory=list)  # afterwards
    found_again: list[Position] = dataclasses.field(default_factory=list)


def open_arbitrary_files(data: bytes, tally: Tally) -> None:
    """One input of the fuzzer.

    Raises:
        BrokenPromiseError: something that must hold does not.

    """
    program = Program(data)
    mode = program.number()
    base, ring, checkpoint = arbitrary(program) if mode & 15 == 15 else damaged(program)
    open_files(base, ring, checkpoint, tally, goes_on=bool(mode & 16))


def open_files(base: Image, ring: bytes, checkpoint: bytes, tally: Tally, *, goes_on: bool = True) -> None:
    """Open what became of ``base``, and judge what comes out; ``goes_on``: also of what is accepted afterwards.

    Raises:
        BrokenPromiseError: something that must hold does not.

    """
    disk = Disk(CountingFile("ring", ring), FaultyFile("checkpoint", checkpoint), max_slots=MAX_SLOTS)
    try:
        outcome = _opened(disk, ring, checkpoint, goes_on=goes_on)
    except RecoverError as error:
        tally[type(error).__name__] += 1
        return
    finally:
        disk.ring.close()
        disk.checkpoint.close()
    _judge(base, outcome, tally)


def _opened(disk: Disk, ring: bytes, checkpoint: bytes, *, goes_on: bool) -> Outcome:
    with Opened(disk) as opened:
        live = [(slot.index, slot.header.epoch, slot.header.first_sequence) for slot in opened.ring.live]
        entries = _read_all(opened, disk, len(ring))
        missing = _missing(opened)
        damaged_slots, epoch = set(opened.ring.damaged_slots), opened.ring.epoch
        watermark = watermark_of(checkpoint)
        outcome = Outcome(ring, checkpoint, entries, missing, damaged_slots, live, epoch, watermark)
        if goes_on:
            _goes_on(opened, outcome)
    return outcome


def watermark_of(checkpoint: bytes) -> int:
    """Of the main ring; 0 where a copy is lost."""
    parts = checkpoint[: chk.COPY_BYTES], checkpoint[chk.COPY_BYTES : 2 * chk.COPY_BYTES]
    copies = [chk.unpack(part) for part in parts]
    if any(copy.state != "valid" for copy in copies):
        return 0  # the newest may be the one that is lost, and a later watermark with it
    newest = max(copies, key=lambda copy: copy.generation).checkpoint
    return 0 if newest is None else newest.main.watermark


def _read_all(opened: Opened, disk: Disk, size: int) -> list[Entry]:
    """Everything, in a bounded number of steps."""
    assert isinstance(disk.ring, CountingFile)
    entries: list[Entry] = []
    steps = 16 + 4 * (size // SLOT + 1) + 2 * size // fmt.FRAME_BYTES
    for _ in range(steps):
        taken = entries_of(opened.reader.look(LIMIT))
        entries += taken
        if not taken and not opened.reader.moved:
            break
    else:
        _demand(holds=False, what="reading ends", found=f"steps={steps}")
    bound = READ_TIMES * (size + 2 * SLOT) + (1 << 17)
    _demand(disk.ring.bytes_read <= bound, "each byte is read a few times", f"{disk.ring.bytes_read} of {size}")
    return entries


def _missing(opened: Opened) -> list[Position]:
    ranges = [(damage.epoch, damage.first, damage.last) for damage in opened.ring.damage]
    _demand(all(0 < first <= last for _, first, last in ranges), "damage names sequences", ranges)
    if sum(last - first + 1 for _, first, last in ranges) > LARGEST_DAMAGE:
        return []  # forged: nobody wrote so many
    return [(epoch, number) for epoch, first, last in ranges for number in range(first, last + 1)]


def _goes_on(opened: Opened, outcome: Outcome) -> None:
    """A directory that could be opened takes records, and the next opening finds them."""
    try:
        new = opened.append(b"new", b"n" * 9000, b"newer")
        opened.checkpoint()
        following = opened.dies()
    except RecoverError:
        return  # loud: a full ring, a forged header that stands in the way
    with following:
        outcome.found_again = [position for position, _ in found(following.read())]
    outcome.accepted = new


# -- judging -------------------------------------------------------------------------------------------------------


def _judge(base: Image, outcome: Outcome, tally: Tally) -> None:
    whole = outcome.ring + bytes(-len(outcome.ring) % SLOT)  # a file that was cut inside a slot gets its length back
    for entry in outcome.entries:
        _demand(_stands_there(whole, entry), "a record stands in the file as it came out", _named(entry))
    wrong = _what_is_wrong(base, outcome)
    if wrong is None:
        tally["whole" if not outcome.missing and not outcome.damaged_slots else "damage reported"] += 1
        return
    forged = _what_nobody_wrote(base, outcome)
    _demand(forged is not None, *wrong)
    tally["forged"] += 1


def _stands_there(ring: bytes, entry: Entry) -> bool:
    slot, place, sequence, record = entry
    at = slot.index * SLOT + (place - fmt.SETTLE_WORD) * fmt.WORD
    length, check, number, state = struct.unpack_from("<IIQI", ring, at)
    payload = ring[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length]
    held = fmt.frame_crc(payload, slot.header.salt, number) == check
    waits = fmt.mark_of(state, slot.header.salt) is None
    return bool(held and payload == record and number == sequence and waits)


def _what_is_wrong(base: Image, outcome: Outcome) -> tuple[str, object] | None:
    """The first promise that does not hold, were there nothing forged."""
    return next(((what, found) for what, found in _complaints(base, outcome) if found), None)


def _complaints(base: Image, outcome: Outcome) -> Iterator[tuple[str, object]]:
    """What must hold, and what says that it does not: nothing, if it does."""
    came = found(outcome.entries)
    positions = [position for position, _ in came]
    missing = set(outcome.missing)
    yield "each record that comes out was put in", [at for at, payload in came if base.records.get(at) != payload]
    yield "records come out in order, once", positions if sorted(set(positions)) != positions else None
    yield "what is reported missing does not come out", sorted(set(positions) & missing)
    yield "only what was there can be missing", [at for at in outcome.missing if at[1] > base.last.get(at[0], 0)]
    waiting = sorted(set(base.records) - base.settled - set(positions))
    yield (
        "what is whole comes out, whatever is damaged around it",
        [at for at in waiting if _is_whole(base, outcome, at)],
    )
    silent = [at for at in waiting if at not in missing and _should_be_known(base, outcome, at, positions)]
    yield "what is lost is reported", silent
    used = outcome.epoch <= max(base.last, default=0) and _epoch_is_known(base, outcome)
    yield "an epoch is never used twice", [outcome.epoch] if used else None
    lost = sorted(set(outcome.accepted) - set(outcome.found_again))
    yield "what was accepted after damage is found again", lost


def _is_whole(base: Image, outcome: Outcome, position: Position) -> bool:
    """Whether the frame stands where it stood, in a slot that is still known for what it was."""
    place = base.places[position]
    epoch, sequence = position
    if not any(index == place.slot and there == epoch and first <= sequence for index, there, first in outcome.live):
        return False
    at = place.slot * SLOT + (place.word - fmt.SETTLE_WORD) * fmt.WORD
    end = at + fmt.FRAME_BYTES + len(base.records[position])
    return base.ring[at:end] == outcome.ring[at:end]


def _should_be_known(base: Image, outcome: Outcome, position: Position, came: list[Position]) -> bool:
    """Whether the files still say that there was a record at this position."""
    place = base.places[position]
    if place.slot in outcome.damaged_slots:
        return False  # reported with its slot
    epoch, sequence = position
    if not outcome.watermark and (epoch, sequence) < min(
        (there, first) for _, there, first in outcome.live or [(0, 0, 0)]
    ):
        return False  # without a watermark nobody knows what was recycled before the oldest slot
    later = any(there == epoch and first > sequence for _, there, first in outcome.live)
    return later or any(there == epoch and number > sequence for there, number in came)


def _epoch_is_known(base: Image, outcome: Outcome) -> bool:
    copies = (slice(0, chk.COPY_BYTES), slice(chk.COPY_BYTES, None))
    return any(outcome.checkpoint[copy] == base.checkpoint[copy] for copy in copies)


def _what_nobody_wrote(base: Image, outcome: Outcome) -> object:
    """Something valid in the files that was not there, at this place, when a real process left them; or None."""
    for index in (0, 1):
        part = slice(index * chk.COPY_BYTES, (index + 1) * chk.COPY_BYTES)
        if outcome.checkpoint[part] != base.checkpoint[part] and _checkpoint_holds(outcome.checkpoint[part]):
            return "checkpoint", index
    written = set(_valid_pieces(base.ring))
    return next((piece for piece in _valid_pieces(outcome.ring) if piece not in written), None)


def _checkpoint_holds(data: bytes) -> bool:
    if len(data) < chk.ENVELOPE.size:
        return False
    length, crc = int.from_bytes(data[12:16], "little"), int.from_bytes(data[24:28], "little")
    body = data[chk.ENVELOPE.size : chk.ENVELOPE.size + length]
    return len(body) == length and zlib.crc32(body, zlib.crc32(data[:24])) == crc


def _valid_pieces(ring: bytes) -> Iterator[tuple[object, ...]]:
    """Every header, seal and frame whose checksum holds, with its place; found by trying every word."""
    ring += bytes(-len(ring) % SLOT)
    for start in range(0, len(ring), SLOT):
        ends = (start, start + SLOT - fmt.RESERVED)
        headers = [ring[end : end + fmt.HEADER_BYTES] for end in ends]
        valid = [header for header in headers if zlib.crc32(header[:-4]) == int.from_bytes(header[-4:], "little")]
        salts = {int.from_bytes(header[36:40], "little") for header in valid if any(header)}
        yield from ((start, "header", header) for header in valid if any(header))
        for salt in salts:
            seals = [ring[end + fmt.SEAL_OFFSET : end + fmt.SEAL_OFFSET + fmt.SEAL_BYTES] for end in ends]
            yield from (
                (start, "seal", seal)
                for seal in seals
                if zlib.crc32(seal[:-4], salt) == int.from_bytes(seal[-4:], "little")
            )
            yield from _valid_frames(ring, start, salt)


def _valid_frames(ring: bytes, start: int, salt: int) -> Iterator[tuple[object, ...]]:
    """A frame in its place counts whatever its settle word is; so every sequence that may be one is tried."""
    words = struct.unpack_from(f"<{SLOT // fmt.WORD}I", ring, start)
    for place, low, high, word in zip(range(SLOT), words[2:], words[3:], words[4:], strict=False):
        if (word ^ salt) >> fmt.MARK_BITS not in {0, fmt.MARK_MASK} and not (0 < low < LARGEST_SEQUENCE and not high):
            continue
        at = place * fmt.WORD
        length, check, sequence, state = struct.unpack_from("<IIQI", ring, start + at)
        payload = ring[start + at + fmt.FRAME_BYTES : start + min(SLOT, at + fmt.FRAME_BYTES + length)]
        skip = length & fmt.SKIP_BIT
        if check == (fmt.skip_crc(length, salt, sequence) if skip else fmt.frame_crc(payload, salt, sequence)):
            yield start, at, length, check, sequence, state


def _named(entry: Entry) -> object:
    slot, place, sequence, record = entry
    return slot.index, place, sequence, bytes(record)[:40]


def _demand(holds: bool, what: str, found: object) -> None:
    if not holds:
        message = f"not so: {what} found={found!r:.600}"
        raise BrokenPromiseError(message)
