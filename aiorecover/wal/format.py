"""The bytes of a ring file: slot header, seal and frame. Pure: no file, no clock.

The boxes are drawn in the package docstring; every offset below is the previous one plus its size. All integers are
little-endian.
"""

import base64
import secrets
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from aiorecover.errors import WalFormatError
from aiorecover.wal.checksum import crc32

MAGIC = b"\x89AIOREC\n"  # first byte above 127 and a line feed: text-mode mangling shows
FORMAT_VERSION = 1

WORD = 4  # frames start on 4 bytes, so that a settle word never crosses a 512-byte sector
MASK32 = 0xFFFF_FFFF
SKIP_BIT = 0x8000_0000  # in a frame's length: the space is reserved, but holds no record
LENGTH_MASK = SKIP_BIT - 1

SEQUENCE_BITS = 40  # position = epoch << 40 | sequence: 4 months at 100,000 records/s in one epoch
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
EPOCH_MAX = (1 << 23) - 1  # a position stays a positive signed 64-bit integer: Kafka's offsets are
MARK_BITS = 16  # a settle word bears in its low half the generation in which it was stored, modulo MARKS
MARK_MASK = (1 << MARK_BITS) - 1
MARKS = MARK_MASK
VOID = MARK_MASK  # in place of a generation: the frame never counts, whatever was lost meanwhile

SLOT_HEADER = struct.Struct("<8sHHIQQIIQQII")
SEAL = struct.Struct("<4sIIIQII")
FRAME = struct.Struct("<IIQI")

HEADER_BYTES = SLOT_HEADER.size
SEAL_BYTES = SEAL.size
FRAME_BYTES = FRAME.size
CRC_BYTES = 4

RESERVED = 128  # at each end of a slot: header copy, seal copy, room for a later version
SEAL_OFFSET = HEADER_BYTES
FIRST_FRAME = RESERVED
CHECK_WORD = 1  # a frame's words: 0 length, 1 CRC, 2-3 sequence, 4 settle word
SEQUENCE_WORD = 2
SETTLE_WORD = 4

PRODUCER_ID_BITS = 64
DIRECTORY_TEXT = 7  # characters at the beginning of a producer id that stay: a reader may compare whole ones
DIRECTORY_BITS = 5 * DIRECTORY_TEXT
NONCE_BITS = PRODUCER_ID_BITS - DIRECTORY_BITS  # 29: two openings of copies draw the same once in 540 million
NONCE_MASK = (1 << NONCE_BITS) - 1
TEXTS_KEPT = 256  # producer ids as text: so many openings are rarely in one ring, and each costs 2 us

SLOT_BYTES_MIN = 1 << 14
SLOT_BYTES_MAX = 1 << 30

SEAL_MAGIC = b"SEAL"

if sys.byteorder != "little":  # settle words are stored through a native view of the mapping
    message = "aiorecover needs a little-endian machine byteorder=big"
    raise WalFormatError(message)


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """One life of a slot; ``ordinal`` is never used twice in a directory."""

    slot_bytes: int
    producer_id: int
    ordinal: int
    epoch: int
    salt: int
    first_sequence: int
    created_ms: int

    @property
    def first_position(self) -> int:
        """Position of the first frame."""
        return position(self.epoch, self.first_sequence)

    def may_hold(self, sequence: int) -> bool:
        """Whether a frame here can have this sequence. Its checksum knows the lower half alone: the upper may rot."""
        return 0 <= sequence - self.first_sequence < self.slot_bytes // FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Seal:
    """Written when a slot is left: what it holds, so that nobody needs to read it to know."""

    count: int  # frames with a record
    tail: int  # file offset within the slot behind the last frame
    last_sequence: int


def new_producer_id(before: int | None) -> int:
    """The producer id of an opening: the directory's part of the one ``before``, and a nonce.

    None: of a new directory.
    """
    directory = secrets.randbits(DIRECTORY_BITS) << NONCE_BITS if before is None else directory_of(before)
    return directory | secrets.randbits(NONCE_BITS)


def directory_of(producer_id: int) -> int:
    """What all producer ids of a directory, and of its copies, have in common; the nonce is zero."""
    return producer_id & ~NONCE_MASK


def nonce_of(producer_id: int) -> int:
    """What one opening has drawn."""
    return producer_id & NONCE_MASK


def with_nonce(producer_id: int, nonce: int) -> int:
    """The producer id of another opening of the same directory."""
    return directory_of(producer_id) | nonce & NONCE_MASK


@lru_cache(TEXTS_KEPT)
def producer_text(producer_id: int) -> str:
    """The 64 bits as they stand in record ids: base32, lower case, 13 characters."""
    raw = producer_id.to_bytes(PRODUCER_ID_BITS // 8, "big")
    return base64.b32encode(raw).decode().rstrip("=").lower()


@lru_cache(TEXTS_KEPT)
def producer_id_of(text: str) -> int | None:
    """The producer id that stands so in record ids; None: none does."""
    with suppress(ValueError):  # binascii's error is one
        producer_id = int.from_bytes(base64.b32decode(f"{text.upper()}==="), "big")
        if producer_text(producer_id) == text:
            return producer_id
    return None


def id_prefix(producer_id: int, epoch: int) -> bytes:
    """What stands before the sequence in the record ids of an epoch."""
    return b"%b/%d/" % (producer_text(producer_id).encode(), epoch)


def position(epoch: int, sequence: int) -> int:
    """The one ordered integer of a record in a directory."""
    return epoch << SEQUENCE_BITS | sequence


def parts(number: int) -> tuple[int, int]:
    """Epoch and sequence of a position."""
    return number >> SEQUENCE_BITS, number & SEQUENCE_MASK


def aligned(offset: int) -> int:
    """The next place where a frame may start."""
    return (offset + WORD - 1) & -WORD


def frame_end(offset: int, length: int) -> int:
    """Where the frame behind one of ``length`` payload bytes at ``offset`` starts."""
    return aligned(offset + FRAME_BYTES + (length & LENGTH_MASK))


def new_salt(previous: int) -> int:
    """A salt for a slot's next life.

    The high half tells the lives' settle words apart: neither it nor its complement is zero or that of the life before.
    So a word of an earlier life can neither settle nor look like a frame of this one.
    """
    before = previous >> MARK_BITS
    while True:
        salt = secrets.randbits(32)
        if salt >> MARK_BITS not in {0, MARK_MASK, before, before ^ MARK_MASK}:
            return salt


def open_word(salt: int) -> int:
    """The settle word of a frame that is not settled; it also marks the frame for resynchronising."""
    return salt ^ MASK32


def done_word(salt: int, mark: int) -> int:
    """The settle word of a frame that is settled; ``mark`` stands in its low half."""
    return salt ^ mark


def mark_of(word: int, salt: int) -> int | None:
    """The mark of a settled frame; None when the frame is not settled, whatever else its word may say."""
    mark = word ^ salt
    return mark if mark <= VOID else None


def frame_crc(payload: bytes | memoryview, salt: int, sequence: int) -> int:
    """The frame's checksum: CRC-32 of the payload, seeded by the slot's salt plus the sequence, modulo 2^32."""
    return crc32(payload, salt + sequence)


def skip_crc(length: int, salt: int, sequence: int) -> int:
    """The checksum of a skip frame, whose payload was never stored."""
    return crc32(struct.pack("<I", length), salt + sequence)


def pack_slot_header(header: SlotHeader) -> bytes:
    """The header as it stands at both ends of a slot."""
    packed = SLOT_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        0,
        header.slot_bytes,
        header.producer_id,
        header.ordinal,
        header.epoch,
        header.salt,
        header.first_sequence,
        header.created_ms,
        0,
        0,
    )
    return packed[:-CRC_BYTES] + struct.pack("<I", crc32(packed[:-CRC_BYTES]))


def unpack_slot_header(data: bytes | memoryview) -> SlotHeader | None:
    """The header in ``data``, or None when its checksum does not hold.

    Raises:
        WalFormatError: a valid header of a newer format version.

    """
    data = bytes(data[:HEADER_BYTES])
    magic, version, _, slot_bytes, producer_id, ordinal, epoch, salt, first, created, _, crc = SLOT_HEADER.unpack(data)
    if magic != MAGIC or crc != crc32(data[:-CRC_BYTES]):
        return None
    if version != FORMAT_VERSION:
        message = (
            "the ring was written by a newer aiorecover: upgrade to read it "
            f"version={version} supported={FORMAT_VERSION}"
        )
        raise WalFormatError(message)
    return SlotHeader(slot_bytes, producer_id, ordinal, epoch, salt, first, created)


def possible_slot_bytes(size: int) -> bool:
    """Whether slots can have this size: a power of two within the limits."""
    return SLOT_BYTES_MIN <= size <= SLOT_BYTES_MAX and size & (size - 1) == 0


def header_fits(header: SlotHeader) -> bool:
    """Whether a slot can begin so: a checksum proves that the bytes are whole, not that they make sense."""
    return (
        possible_slot_bytes(header.slot_bytes)
        and 0 < header.ordinal < 1 << 63  # the next one fits, too
        and 0 < header.epoch <= EPOCH_MAX
        and header.salt >> MARK_BITS not in {0, MARK_MASK}
        and 0 < header.first_sequence <= SEQUENCE_MASK
    )


def seal_fits(seal: Seal, header: SlotHeader) -> bool:
    """Whether a slot with this header can end as the seal says."""
    frames = seal.last_sequence - header.first_sequence + 1
    room = seal.tail - FIRST_FRAME
    return (
        FIRST_FRAME <= seal.tail <= header.slot_bytes - RESERVED
        and seal.tail % WORD == 0
        and 0 <= seal.count <= frames <= room // FRAME_BYTES
        and seal.last_sequence <= SEQUENCE_MASK
    )


def pack_seal(seal: Seal, salt: int) -> bytes:
    """The seal of the slot's life that ``salt`` belongs to."""
    packed = SEAL.pack(SEAL_MAGIC, salt, seal.count, seal.tail, seal.last_sequence, 0, 0)
    return packed[:-CRC_BYTES] + struct.pack("<I", crc32(packed[:-CRC_BYTES], salt))


def unpack_seal(data: bytes | memoryview, salt: int) -> Seal | None:
    """The seal in ``data`` if it belongs to this life of the slot, else None."""
    data = bytes(data[:SEAL_BYTES])
    magic, sealed_salt, count, tail, last_sequence, _, crc = SEAL.unpack(data)
    if magic != SEAL_MAGIC or sealed_salt != salt or crc != crc32(data[:-CRC_BYTES], salt):
        return None
    return Seal(count, tail, last_sequence)
