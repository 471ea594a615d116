"""Bytes of an input turned into damage to real files: rot, lost sectors, cuts, pieces in the wrong place, forgeries.

A mutation that knows nothing of checksums never gets past the first one. So some edits change a field of a header, a
seal, a frame or a checkpoint and make its checksum hold again: such a file was forged, and `tests.fuzz.files` knows.
"""

import struct
import zlib
from collections.abc import Callable

from aiorecover.wal import checkpoint as chk
from aiorecover.wal import format as fmt
from tests.fuzz.images import IMAGES, Image, image
from tests.fuzz.program import Program
from tests.wal.rig import SLOT

SECTOR = 512
MOST_EDITS = 40  # an input has at most a few hundred bytes; each edit takes two to nine of them
LARGEST_RING = 12 * SLOT  # what an edit may make of a file

Files = tuple[bytearray, bytearray]
"""ring, checkpoint"""


def damaged(program: Program) -> tuple[Image, bytes, bytes]:
    """A real image, and its ring and checkpoint after the edits that the input asks for."""
    base = image(program.below(IMAGES))
    files = bytearray(base.ring), bytearray(base.checkpoint)
    for _ in range(MOST_EDITS):
        if not program:
            break
        edit = EDITS[program.below(len(EDITS))]
        edit(program, files)
    return base, bytes(files[0]), bytes(files[1])


def arbitrary(program: Program) -> tuple[Image, bytes, bytes]:
    """The input itself, as ring and as checkpoint."""
    length = program.number(2)
    return Image(), program.bytes(length), program.bytes(1 << 16)


# -- where ---------------------------------------------------------------------------------------------------------


def _any_file(program: Program, files: Files) -> bytearray:
    return files[program.below(4) == 0]


def _somewhere(program: Program, file: bytearray) -> int:
    return program.below(len(file)) if file else 0


def _slots(ring: bytearray) -> int:
    return max(1, len(ring) // SLOT)


def _frame(program: Program, ring: bytearray) -> tuple[int, int] | None:
    """A frame that is there: where it starts in the file, and the salt of its slot."""
    start = program.below(_slots(ring)) * SLOT
    wanted = program.below(1 << 8)
    if len(ring) < start + SLOT:
        return None
    salt = int.from_bytes(ring[start + 36 : start + 40], "little")
    at, following = fmt.FIRST_FRAME, fmt.FIRST_FRAME
    for _ in range(wanted + 1):
        if following + fmt.FRAME_BYTES > SLOT - fmt.RESERVED:
            break
        length, _, sequence, _ = fmt.FRAME.unpack_from(ring, start + following)
        if sequence == 0:
            break
        at, following = following, fmt.frame_end(following, length)
    return start + at, salt


# -- what ----------------------------------------------------------------------------------------------------------


def _flip(program: Program, files: Files) -> None:
    file = _any_file(program, files)
    at = _somewhere(program, file)
    if file:
        file[at] ^= 1 << program.below(8)


def _overwrite(program: Program, files: Files) -> None:
    file = _any_file(program, files)
    at = _somewhere(program, file)
    data = program.bytes(1 + program.below(8))
    file[at : at + len(data)] = data
    del file[LARGEST_RING:]


def _lose_sectors(program: Program, files: Files) -> None:
    file = _any_file(program, files)
    at = _somewhere(program, file) & -SECTOR
    count = program.below(40) * SECTOR
    file[at : at + count] = bytes(len(file[at : at + count]))


def _lose_every_other(program: Program, files: Files) -> None:
    """Many pieces of one slot are gone, as after a power cut."""
    ring = files[0]
    start = program.below(_slots(ring)) * SLOT
    step, size = 64 << program.below(5), 1 + program.below(64)
    for at in range(start + fmt.RESERVED + program.below(256), min(start + SLOT - fmt.RESERVED, len(ring)), step):
        ring[at : at + size] = bytes(len(ring[at : at + size]))


def _lose_a_header(program: Program, files: Files) -> None:
    ring = files[0]
    start = program.below(_slots(ring)) * SLOT
    which = program.below(4)
    for end in ([0], [SLOT - fmt.RESERVED], [0, SLOT - fmt.RESERVED], [])[which]:
        ring[start + end : start + end + fmt.RESERVED] = program.bytes(1).ljust(fmt.RESERVED, b"\0")


def _cut(program: Program, files: Files) -> None:
    file = _any_file(program, files)
    del file[_somewhere(program, file) :]


def _cut_slots(program: Program, files: Files) -> None:
    del files[0][program.below(_slots(files[0])) * SLOT :]


def _append_garbage(program: Program, files: Files) -> None:
    file = _any_file(program, files)
    file += program.bytes(8) * (1 + program.number(1) * 16)
    del file[LARGEST_RING:]


def _copy(program: Program, files: Files) -> None:
    ring = files[0]
    source, target = _somewhere(program, ring) & -fmt.WORD, _somewhere(program, ring) & -fmt.WORD
    data = ring[source : source + program.number(2) % 2048]
    ring[target : target + len(data)] = data
    del ring[LARGEST_RING:]


def _copy_slot(program: Program, files: Files) -> None:
    """Over another one, from this ring or from another producer's."""
    ring = files[0]
    other = image(program.below(IMAGES)).ring if program.below(2) else bytes(ring)
    source, target = program.below(_slots(bytearray(other))) * SLOT, program.below(_slots(ring)) * SLOT
    ring[target : target + SLOT] = other[source : source + SLOT]


def _swap_copies(program: Program, files: Files) -> None:
    copies = files[1]
    copies[:] = copies[chk.COPY_BYTES :].ljust(chk.COPY_BYTES, b"\0") + copies[: chk.COPY_BYTES]


def _frame_field(program: Program, files: Files) -> None:
    """A header word of a frame; its checksum is not mended."""
    ring = files[0]
    found = _frame(program, ring)
    if found is None:
        return
    at = found[0] + fmt.WORD * program.below(5)
    ring[at : at + 4] = _value(program, int.from_bytes(ring[at : at + 4], "little"), 4)


# -- forgeries -----------------------------------------------------------------------------------------------------


def _forge_frame(program: Program, files: Files) -> None:
    """Another sequence, settle word or payload, or a skip frame, with a checksum that holds."""
    ring = files[0]
    found = _frame(program, ring)
    if found is None:
        return
    at, salt = found
    length, _, sequence, state = fmt.FRAME.unpack_from(ring, at)
    what = program.below(4)
    sequence = (sequence + program.number(1) - 8) & (1 << 64) - 1 if what == 0 else sequence
    length = program.number(2) if what == 1 else length
    state = (state ^ fmt.MASK32) if what == 2 else state
    length = length | fmt.SKIP_BIT if what == 3 else length
    payload = bytes(ring[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + (length & fmt.LENGTH_MASK)])
    skip = length & fmt.SKIP_BIT
    check = fmt.skip_crc(length, salt, sequence) if skip else fmt.frame_crc(payload, salt, sequence)
    ring[at : at + fmt.FRAME_BYTES] = fmt.FRAME.pack(length, check, sequence, state)


_HEADER_FIELDS = ((8, 2), (12, 4), (16, 8), (24, 8), (32, 4), (36, 4), (40, 8), (48, 8))
_SEAL_FIELDS = ((4, 4), (8, 4), (12, 4), (16, 8))


def _forge_header(program: Program, files: Files) -> None:
    ring = files[0]
    start = program.below(_slots(ring)) * SLOT
    offset, size = _HEADER_FIELDS[program.below(len(_HEADER_FIELDS))]
    ends = ([0, SLOT - fmt.RESERVED], [0], [SLOT - fmt.RESERVED])[program.below(3)]
    if len(ring) < start + SLOT:
        return
    old = int.from_bytes(ring[start + offset : start + offset + size], "little")
    value = _value(program, old, size)
    for end in ends:
        at = start + end
        ring[at + offset : at + offset + size] = value
        check = zlib.crc32(ring[at : at + fmt.HEADER_BYTES - 4])
        ring[at + fmt.HEADER_BYTES - 4 : at + fmt.HEADER_BYTES] = struct.pack("<I", check)


def _forge_seal(program: Program, files: Files) -> None:
    ring = files[0]
    start = program.below(_slots(ring)) * SLOT
    offset, size = _SEAL_FIELDS[program.below(len(_SEAL_FIELDS))]
    if len(ring) < start + SLOT:
        return
    salt = int.from_bytes(ring[start + 36 : start + 40], "little")
    at = start + fmt.SEAL_OFFSET
    old = int.from_bytes(ring[at + offset : at + offset + size], "little")
    value = _value(program, old, size)
    for place in (at, at + SLOT - fmt.RESERVED):
        ring[place : place + 8] = fmt.SEAL_MAGIC + struct.pack("<I", salt)
        ring[place + offset : place + offset + size] = value
        check = zlib.crc32(ring[place : place + fmt.SEAL_BYTES - 4], salt)
        ring[place + fmt.SEAL_BYTES - 4 : place + fmt.SEAL_BYTES] = struct.pack("<I", check)


def _forge_checkpoint(program: Program, files: Files) -> None:
    """A byte of the body, of the generation or of the version."""
    copies = files[1]
    at = program.below(2) * chk.COPY_BYTES
    if len(copies) < at + chk.ENVELOPE.size:
        return
    length = int.from_bytes(copies[at + 12 : at + 16], "little")
    places = [at + 8, *range(at + 16, at + 24), *range(at + chk.ENVELOPE.size, at + chk.ENVELOPE.size + length % 256)]
    place = places[program.below(len(places))]
    if place < len(copies):
        copies[place] = program.number(1)
    head, body = copies[at : at + 24], copies[at + chk.ENVELOPE.size : at + chk.ENVELOPE.size + length]
    copies[at + 24 : at + 28] = struct.pack("<I", zlib.crc32(body, zlib.crc32(head)))


def _value(program: Program, old: int, size: int) -> bytes:
    """A number near the old one, at an end of its range, or any."""
    how = program.below(8)
    top = (1 << 8 * size) - 1
    given = program.number(min(size, 4)) if how > 4 else 0
    value = (old + 1, old - 1, 0, top, old ^ top, given, old * 2, given << 8 * size - 32 if size > 4 else given)[how]
    return (value & top).to_bytes(size, "little")


EDITS: list[Callable[[Program, Files], None]] = [
    *(_flip, _flip, _overwrite, _lose_sectors, _lose_every_other, _lose_a_header, _cut, _cut_slots),
    *(_append_garbage, _copy, _copy_slot, _swap_copies, _frame_field, _frame_field),
    *(_forge_frame, _forge_frame, _forge_header, _forge_seal, _forge_checkpoint),
]
