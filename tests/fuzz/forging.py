"""Well-formed content that nobody wrote: frames, slots, entries and checkpoints whose checksums hold.

Each edit takes what stands in a directory's files as its pattern, and lets the input choose what is otherwise: so most
of it is nearly right, and what stands behind a checksum is reached.
"""

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from aiorecover import record
from aiorecover.delivery import refusal
from aiorecover.delivery.journal import Entry, Group, encode
from aiorecover.delivery.lane import Identity
from aiorecover.wal import checkpoint as chk
from aiorecover.wal import format as fmt
from aiorecover.wal import lanes
from aiorecover.wal.moved import MOVED
from tests.fuzz.program import Program
from tests.wal.rig import SLOT

Files = dict[str, bytearray]

LARGEST = 12 * SLOT  # what an edit may make of a ring
BLOCKS = 6  # in these an entry is put
NOW_MS = 5_000
RINGS = ("retry", "retry", "dead", "ring")
END = SLOT - fmt.RESERVED
DEEP = b"\x91" * 3_000 + b"\xc0"  # more levels than anybody decodes
RECORD = record.encode(("t", b"k", b"v" * 40, 1, 1_800_000_000_000, [("h", b"x")], {"a": 1}, None))
LETTER = refusal.encode(refusal.letter_of(RECORD, refusal.Refusal(error="E", message="m"), owed=True))
BODIES = (
    *(RECORD, RECORD, LETTER, LETTER, RECORD[:-1], b""),
    *(record.encode(("t", None, None, 1, 0, None, None, None))[:-2] + DEEP + b"\xc0", b"\x99" + LETTER[1:] + DEEP),
)


class Life(NamedTuple):
    """One slot as it stands: where its frames are, and where the next one would be."""

    number: int  # of the slot in the file
    header: fmt.SlotHeader
    places: list[int]
    end: int
    following: int

    @property
    def start(self) -> int:
        """In the file."""
        return self.number * SLOT


def lives(ring: bytearray) -> list[Life]:
    """The slots whose header in front holds, by ordinal."""
    found = []
    for index in range(len(ring) // SLOT):
        header = fmt.unpack_slot_header(bytes(ring[index * SLOT : index * SLOT + fmt.HEADER_BYTES]))
        if header is None:
            continue
        places, at, following = [], fmt.FIRST_FRAME, header.first_sequence
        while at + fmt.FRAME_BYTES <= END:
            length, _, sequence, _ = fmt.FRAME.unpack_from(ring, index * SLOT + at)
            if sequence == 0 or fmt.frame_end(at, length) > END:
                break
            places.append(at // fmt.WORD + fmt.SETTLE_WORD)
            at, following = fmt.frame_end(at, length), sequence + 1
        found.append(Life(index, header, places, at, following))
    return sorted(found, key=lambda life: life.header.ordinal)


def forge(program: Program, files: Files) -> None:
    """One edit."""
    FORGERIES[program.below(len(FORGERIES))](program, files)


def _near(program: Program, usual: int, *others: int, bits: int = 64) -> int:
    """Mostly what it should be; else one more or less, an end of the range, or one of ``others``."""
    choices = (usual, usual, usual, usual, usual + 1, usual - 1, 0, (1 << bits) - 1, *others)
    return choices[program.below(len(choices))] & (1 << bits) - 1


# -- frames --------------------------------------------------------------------------------------------------------


def _append_frames(program: Program, files: Files) -> None:
    """Behind the last one of a slot: they may be reached by who reads on, or stand behind its end."""
    ring = files[RINGS[program.below(len(RINGS))]]
    there = lives(ring)
    if not there:
        return
    life = there[-1 - program.below(len(there))]
    end, last = _stored(program, files, ring, life, 1 + program.below(4))
    _end(program, ring, life, end, last)


def _stored(program: Program, files: Files, ring: bytearray, life: Life, count: int) -> tuple[int, int]:
    """Where they end, and the last number."""
    at, sequence = life.end, life.following
    for _ in range(count):
        frame = _frame(program, files, life.header.salt, _near(program, sequence, sequence + 7, 1 << 40))
        if at + len(frame) > END:
            break
        ring[life.start + at : life.start + at + len(frame)] = frame
        at, sequence = fmt.frame_end(at, len(frame) - fmt.FRAME_BYTES), sequence + 1
    return at, sequence - 1


def _frame(program: Program, files: Files, salt: int, sequence: int) -> bytes:
    payload = _payload(program, files)
    states = (
        fmt.open_word(salt),
        fmt.open_word(salt),
        fmt.done_word(salt, 1),
        fmt.done_word(salt, fmt.VOID),
        salt ^ 1 << 30,
    )
    length = _near(program, len(payload), 1 << 30, fmt.SKIP_BIT | len(payload), bits=32)
    check = fmt.frame_crc(payload, salt, sequence)
    if length & fmt.SKIP_BIT:
        check = fmt.skip_crc(length, salt, sequence)
    return fmt.FRAME.pack(length, check, sequence, states[program.below(len(states))]) + payload


def _payload(program: Program, files: Files) -> bytes:
    """A copy: the place of origin, and a record or a letter; or what is none of these."""
    main = lives(files["ring"])
    life = main[program.below(len(main))] if main else None
    usual = life.header.first_position + program.below(64) if life is not None else 1
    newest = _newest(files)
    moved = 0 if newest is None else newest.moved
    position = _near(program, usual, moved, moved + 1, 1 << 63, usual + (1 << 40))
    partition, nonce = program.below(8) - 2, program.number(1)
    prefix = MOVED.pack(position - (position >> 63 << 64), partition, nonce)
    how = program.below(len(BODIES) + 2)
    if how == len(BODIES):
        return prefix[: program.below(16)]
    return prefix + (BODIES[how] if how < len(BODIES) else program.bytes(program.below(32)))


def _end(program: Program, ring: bytearray, life: Life, end: int, last: int) -> None:
    """The slot's seal: one of all of it, none, or whatever stands there."""
    how = program.below(4)
    if how == 3:
        return
    seal = bytes(fmt.SEAL_BYTES)
    if how:
        count = _near(program, last - life.header.first_sequence + 1, bits=32)
        seal = fmt.pack_seal(fmt.Seal(count, _near(program, end, END, bits=32), _near(program, last)), life.header.salt)
    for at in (life.start, life.start + END):
        ring[at + fmt.SEAL_OFFSET : at + fmt.SEAL_OFFSET + fmt.SEAL_BYTES] = seal


def _begin_slot(program: Program, files: Files) -> None:
    """A slot with frames in it: the next one, a second one with its ordinal, of another producer, of another epoch."""
    ring, pattern = files[RINGS[program.below(len(RINGS))]], _pattern(program, files)
    if pattern is None:
        return
    there = lives(ring)
    ordinal, first = (there[-1].header.ordinal + 1, there[-1].following) if there else (1, 1)
    salt = (0x1000 + program.number(1)) << 16 | 0xBEEF
    header = dataclasses.replace(
        pattern,
        producer_id=_near(program, pattern.producer_id, pattern.producer_id ^ 1 << 50),
        ordinal=_near(program, ordinal, ordinal + 5),
        epoch=_near(program, pattern.epoch, pattern.epoch + 2, fmt.EPOCH_MAX, bits=32),
        salt=salt,
        first_sequence=_near(program, first, 1, fmt.SEQUENCE_MASK - 1),
    )
    index = program.below(min(len(ring) // SLOT + 1, LARGEST // SLOT))
    ring.extend(bytes(max(0, (index + 1) * SLOT - len(ring))))
    ring[index * SLOT : (index + 1) * SLOT] = bytes(SLOT)
    for at in (index * SLOT, index * SLOT + END):
        ring[at : at + fmt.HEADER_BYTES] = fmt.pack_slot_header(header)
    life = Life(index, header, [], fmt.FIRST_FRAME, header.first_sequence)
    end, last = _stored(program, files, ring, life, program.below(6))
    _end(program, ring, life, end, last)


def _pattern(program: Program, files: Files) -> fmt.SlotHeader | None:
    headers = [life.header for name in ("retry", "dead", "ring") for life in lives(files[name])]
    return headers[program.below(len(headers))] if headers else None


# -- the checkpoint ------------------------------------------------------------------------------------------------


def _newest(files: Files) -> chk.Checkpoint | None:
    parts = (files["checkpoint"][at : at + chk.COPY_BYTES] for at in (0, chk.COPY_BYTES))
    return max(map(chk.unpack, map(bytes, parts)), key=lambda copy: copy.generation).checkpoint


def _forge_checkpoint(program: Program, files: Files) -> None:
    """Another P, and other ends of what counts in the rings of copies."""
    newest = _newest(files)
    if newest is None:
        return
    ends = {name: _ends_of(lives(files[name])) for name in ("ring", "retry", "dead")}
    forged = msgspec.structs.replace(
        newest,
        moved=_near(program, newest.moved, *ends["ring"]),
        main=_state(program, newest.main, ends["ring"]),
        retry=_state(program, newest.retry, ends["retry"]),
        dead=_state(program, newest.dead, ends["dead"]),
    )
    place = program.below(3)
    for at in range(2) if place == 2 else [place]:
        packed = chk.pack(forged, 1_000 + 2 * program.below(4) + at)
        files["checkpoint"][at * chk.COPY_BYTES : at * chk.COPY_BYTES + len(packed)] = packed


def _state(program: Program, state: chk.RingState, ends: Sequence[int]) -> chk.RingState:
    return msgspec.structs.replace(
        state,
        watermark=_near(program, state.watermark, *ends),
        flushed=_near(program, ends[-1] if ends else state.flushed, state.flushed),
        by_originals=program.below(16) == 0,
        next_ordinal=_near(program, state.next_ordinal),
    )


def _ends_of(there: Sequence[Life]) -> list[int]:
    return [fmt.position(life.header.epoch, max(0, life.following - 1)) for life in there]


# -- the lanes -----------------------------------------------------------------------------------------------------


def _forge_lanes(program: Program, files: Files) -> None:
    """Whose the file is."""
    file = files["lanes"]
    header = lanes.unpack_header(bytes(file[: lanes.SECTOR]))
    if header is None:
        return
    boots = ("boot 1", "boot 1", "boot 2", "")
    forged = lanes.Header(
        _near(program, header.directory_id, header.directory_id ^ 1 << 50),
        _near(program, header.since, bits=32),
        _near(program, header.device),
        _near(program, header.inode),
        boots[program.below(len(boots))],
    )
    file[: lanes.SECTOR] = lanes.pack_header(forged)


def _enter(program: Program, files: Files) -> None:
    """An entry in one of a block's two places, or one in each."""
    newest, block = _newest(files), program.below(BLOCKS)
    epoch = newest.epoch if newest is not None else 1
    base = lanes.SECTOR + block * lanes.BLOCK_BYTES
    if len(files["lanes"]) < base + lanes.BLOCK_BYTES:
        return
    generation = 2 + 2 * program.below(3)
    entry = _entry(program, files)
    for copy in ((0,), (1,), (0, 1), (0, 1))[program.below(4)]:
        if copy and program.below(2):
            entry = _moved(program, files, entry)
        number = _near(program, generation + copy, 1 << 63)
        packed = lanes.pack_entry(_body(program, entry), _near(program, epoch, bits=32), number)[: lanes.ENTRY_BYTES]
        at = base + copy * lanes.ENTRY_BYTES
        files["lanes"][at : at + len(packed)] = packed


def _entry(program: Program, files: Files) -> Entry:
    groups = tuple(_group(program, files) for _ in range(1 + program.below(3)))
    count = _near(program, sum(len(group.places) for group in groups), bits=31)
    identity = Identity(_near(program, 7, bits=40), _near(program, 3, bits=15))
    flags = program.below(16)
    return Entry(
        topic="t" if flags < 12 else "ü" * program.below(64),
        partition=program.below(4) - (flags == 15),
        identity=identity,
        base_sequence=_near(program, 0, bits=31),
        count=count,
        offset=program.below(8) - 1,
        at_ms=_near(program, NOW_MS, bits=62),
        groups=groups,
        cluster_number=flags == 14,
        parted=flags == 13,
        doubted=flags == 12,
    )


def _moved(program: Program, files: Files, entry: Entry) -> Entry:
    """The same batch, elsewhere: a group of as many places in the retry ring."""
    there = lives(files["retry"])
    places = there[-1].places[: entry.count] if there else []
    ordinal = there[-1].header.ordinal if there else 1
    return dataclasses.replace(entry, groups=(Group(1, _near(program, ordinal), places),))


def _group(program: Program, files: Files) -> Group:
    ring = (0, 0, 1, 1, 1, 2, 0xFFFF)[program.below(7)]
    there = lives(files["retry" if ring == 1 else "ring"])
    if not there or program.below(8) == 0:
        return Group(ring, _near(program, 1), [_near(program, 37, bits=32) for _ in range(program.below(4))])
    life = there[program.below(len(there))]
    first = program.below(len(life.places) + 1)
    places = life.places[first : first + 1 + program.below(24)]
    how = program.below(12)
    places = places[::-1] if how == 10 else places * 2 if how == 11 else places
    return Group(ring, _near(program, life.header.ordinal, 1 << 63), places)


def _body(program: Program, entry: Entry) -> bytes:
    body = bytearray(encode(entry)[: lanes.BODY_MOST])
    how = program.below(12)
    if how == 10:  # one of the numbers that say how long the rest is
        struct.pack_into("<H", body, (10, 40, 44)[program.below(3)], program.number(2))
    if how == 11:
        del body[program.below(len(body)) :]
    return bytes(body)


FORGERIES: list[Callable[[Program, Files], None]] = [
    *(_append_frames, _append_frames, _append_frames, _begin_slot, _begin_slot),
    *(_forge_checkpoint, _forge_lanes, _enter, _enter, _enter),
]
