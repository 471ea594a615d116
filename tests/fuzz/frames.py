"""An arbitrary frame: one slot of frames, good and bad, beside a reader so simple that it can be believed.

The simple reader says the rules again (package docstring of `aiorecover.wal`, "A frame that does not hold …"), byte by
byte and without windows. What comes out of the real one must be the same, record by record and gap by gap; a payload
that is no record is undecodable, and the next one comes.
"""

import struct
from typing import Any

from aiorecover import record
from aiorecover.wal import format as fmt
from aiorecover.wal.reading import Reader, Undecodable
from tests.fuzz.files import BrokenPromiseError, Tally
from tests.fuzz.program import Program
from tests.wal.memory import FaultyFile
from tests.wal.rig import SLOT, Disk, read

SALTS = (0x5A17_C0DE, 0x0001_0000, 0xFFFE_FFFF, 0x8000_0000, 0x0100_0001)
FIRST = (1, 2, (1 << 32) - 3, fmt.SEQUENCE_MASK - SLOT)  # the checksum holds 32 bits of the sequence
AREA = SLOT - 2 * fmt.RESERVED
EPOCH = 3

SAMPLES = (
    record.encode(
        ("orders", b"k", b"v" * 40, None, 1_700_000_000_000, [("h", b"x"), ("n", None)], {"a": [1, None]}, None)
    ),
    record.encode(("t", None, None, 5, 0, None, None, ("source", 1, 2))),
)

Found = tuple[list[tuple[int, object]], list[tuple[int, int]]]
"""(sequence, record) as they come out; (first, last) as reported missing"""


def read_arbitrary_frames(data: bytes, tally: Tally) -> None:
    """One input of the fuzzer.

    Raises:
        BrokenPromiseError: the reader and the simple reader do not agree.

    """
    _decoded(data[1:])
    program = Program(data)
    salt, first = SALTS[program.below(len(SALTS))], FIRST[program.below(len(FIRST))]
    sealed = bool(program.below(2))
    area, last = _area(program, salt, first)
    seal = fmt.Seal(0, fmt.FIRST_FRAME + len(area), last) if sealed and 0 <= last - first < len(area) // 20 else None
    got, expected = _really(area, salt, first, seal), _simply(area, salt, first, seal)
    if got != expected:
        message = f"not so: the reader and the simple reader agree found={got!r:.400} expected={expected!r:.400}"
        raise BrokenPromiseError(message)
    kinds = {type(content) for _, content in got[0]}
    tally[f"{'sealed' if seal else 'open'} {'records' if kinds else 'no record'}{' missing' if got[1] else ''}"] += 1


def _decoded(payload: bytes) -> object:
    """A record or, of what is none, that it is undecodable; anything but a ValueError or RecursionError is a crash."""
    try:
        content = record.decode(payload)
    except (ValueError, RecursionError):
        return Undecodable
    if record.decode(record.encode(content)) != content and "nan" not in repr(content):
        message = f"not so: a record is the same when it was stored again found={content!r:.200}"
        raise BrokenPromiseError(message)
    return content


# -- the slot ------------------------------------------------------------------------------------------------------


def _area(program: Program, salt: int, first: int) -> tuple[bytes, int]:
    """What stands between the slot's two ends, and the last sequence that was used."""
    area = bytearray()
    sequence = first
    while program and len(area) < AREA // 2:
        kind = program.below(16)
        if kind >= KINDS:  # most are good
            kind = 0
        if kind == 1:
            sequence += program.below(8)
        area += _piece(kind, program, salt, sequence)
        area += bytes(-len(area) % fmt.WORD)
        sequence += kind in {0, 1, 3, 4}
    return bytes(area[:AREA]), sequence - 1


KINDS = 9


def _piece(kind: int, program: Program, salt: int, sequence: int) -> bytes:
    """0 and 1 good, 2 damaged, 3 skip, 4 settled, 5 raw, 6 zeros, 7 of an earlier life, 8 a length that lies."""
    if kind == 5:
        return program.bytes(program.number())
    if kind == 6:
        return bytes(program.number())
    if kind == 3:
        length = program.number() | fmt.SKIP_BIT
        head = fmt.FRAME.pack(length, fmt.skip_crc(length, salt, sequence), sequence, salt)
        return head + bytes(length & fmt.LENGTH_MASK)
    life = salt ^ 0x0101_0101 if kind == 7 else salt
    payload = _payload(program)
    state = fmt.done_word(life, program.number(2)) if kind == 4 else fmt.open_word(life)
    length = program.number(2) if kind == 8 else len(payload)
    frame = bytearray(fmt.FRAME.pack(length, fmt.frame_crc(payload, life, sequence), sequence, state) + payload)
    if kind == 2:
        frame[program.below(len(frame))] ^= 1 << program.below(8)
    return bytes(frame)


def _payload(program: Program) -> bytes:
    how = program.below(4)
    if how == 0:
        return program.bytes(program.number())
    payload = bytearray(SAMPLES[how & 1])
    if how > 1:
        at = program.below(len(payload))
        payload[at : at + program.below(4)] = program.bytes(program.below(8))
    return bytes(payload)


# -- the two readers -----------------------------------------------------------------------------------------------


def _really(area: bytes, salt: int, first: int, seal: fmt.Seal | None) -> Found:
    packed = fmt.pack_slot_header(fmt.SlotHeader(SLOT, 7, 1, EPOCH, salt, first, 0))
    end = packed + (fmt.pack_seal(seal, salt) if seal is not None else b"")
    end = end.ljust(fmt.RESERVED, b"\0")
    disk = Disk(FaultyFile("ring", end + area.ljust(AREA, b"\0") + end))
    directory = disk.open()
    try:
        entries = read(Reader(directory.ring, record.decode), 16)
        gaps = [(damage.first, damage.last) for damage in directory.ring.damage]
    finally:
        directory.close()
    return [(sequence, _plain(content)) for _, _, sequence, content in entries], gaps


def _plain(content: Any) -> object:
    return Undecodable if isinstance(content, Undecodable) else content


def _simply(area: bytes, salt: int, first: int, seal: fmt.Seal | None) -> Found:
    """The rules, once more."""
    came: list[tuple[int, object]] = []
    gaps: list[tuple[int, int]] = []
    room = len(area) if seal is not None else AREA
    written, area = len(area), area.ljust(room, b"\0")
    at, expected = 0, first
    while (following := _next(area, at, written, salt, expected)) is not None:
        at, length, sequence, state = following
        if seal is not None and sequence > seal.last_sequence:
            break
        if sequence > expected:
            gaps.append((expected, sequence - 1))
        if not length & fmt.SKIP_BIT and fmt.mark_of(state, salt) is None:
            came.append((sequence, _decoded(area[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length])))
        expected = sequence + 1
        at = fmt.frame_end(at, length)
    if seal is not None and seal.last_sequence >= expected:
        gaps.append((expected, seal.last_sequence))
    return came, gaps


def _next(area: bytes, start: int, written: int, salt: int, expected: int) -> tuple[int, int, int, int] | None:
    """The frame at ``start`` or, if none holds there, the next one that holds and has a settle word of this life."""
    for at in range(start, min(written, len(area) - fmt.FRAME_BYTES + 1), fmt.WORD):
        state = int.from_bytes(area[at + 16 : at + 20], "little")
        if at > start and (state ^ salt) >> fmt.MARK_BITS not in {0, fmt.MARK_MASK}:  # the low half may be any
            continue
        length, check, sequence, _ = struct.unpack_from("<IIQI", area, at)
        skip = bool(length & fmt.SKIP_BIT)
        end = at + fmt.FRAME_BYTES + (length & fmt.LENGTH_MASK)
        if not 0 <= sequence - expected <= (at - start) // fmt.FRAME_BYTES or (
            end > len(area) and (not skip or at == start)
        ):
            continue
        payload = area[at + fmt.FRAME_BYTES : end]
        if check == (fmt.skip_crc(length, salt, sequence) if skip else fmt.frame_crc(payload, salt, sequence)):
            return at, length, sequence, state
    return None
