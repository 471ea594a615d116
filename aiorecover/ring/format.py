"""Layout of the file ``ring``: heads of regions, segments and batches, and the checksum of a sync point.

Pure: bytes in, values out. The package docstring shows the boxes; golden bytes in the tests hold both to each other.
All numbers are little-endian; places within a segment count from the segment's first byte.
"""

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from aiorecover.ring.checksum import crc32
from aiorecover.ring.records import BATCH_HEAD_SIZE

FORMAT_VERSION = 2
PAGE = 4096  # bytes: the unit in which the kernel maps, reserves and gives back
LINE = 64  # bytes that reach memory and disk as a whole: a cache line
SEGMENT_HEAD_SIZE = 512
OWN_HEAD_SIZE = 2 * LINE
RECORDS_AT = OWN_HEAD_SIZE + BATCH_HEAD_SIZE  # within a batch: its own head, Kafka's head, then the records
HUGE_UNIT = 1 << 20  # a huge segment is a whole number of MiB

_REGION_MAGIC = b"aiorreg2"
_SEGMENT_MAGIC = b"aiorseg2"
_REGION = struct.Struct("<8sIII")  # magic, version, segment size, CRC
_SEGMENT = struct.Struct("<8sIHBBIiQQII16s16s16x")  # see SegmentHead
_LINES = struct.Struct("<QIIQQQQIIII IIIIIIII QI4xQQ")
_REST_OF_LINE_0 = struct.Struct("<QQQQIIII")  # from the commit word on
_LINE_1 = struct.Struct("<32x QI4x QQ")  # a new batch has no sync points
_POINT_CRC = struct.Struct("<IIQIqQI4xIII")

# Places within a batch.
SALT_AT = 0
STATE_AT = 8
COMMIT_AT = 16
SENT_AT = 40  # first sent at
COUNT_AT = 56
LINE_1_AT = LINE
POINTS_AT = (64, 80)
TRANSACTION_AT = 112
LATEST_AT = 120


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes in bytes; the defaults are the format's, tests take smaller ones."""

    region: int = 64 << 20
    small: int = 64 << 10
    large: int = 1 << 20
    huge_unit: int = HUGE_UNIT

    @property
    def huge_most(self) -> int:
        """Size of the largest segment: a region less its first page, in whole units."""
        return (self.region - PAGE) // self.huge_unit * self.huge_unit

    def places(self, size: int) -> range:
        """Return where the segments of a region of this class begin within the region; a huge class has one."""
        last = self.region - size if size in (self.small, self.large) else PAGE
        return range(PAGE, last + 1, size)

    def known(self, size: int) -> bool:
        """Whether ``size`` is a class of segments."""
        whole = size % self.huge_unit == 0 and self.large < size <= self.huge_most
        return size in (self.small, self.large) or whole


class BatchState(enum.IntEnum):
    """The state of a batch; the last three are "done". On disk each value is combined with the low half of the salt."""

    OPEN = 0x1F0E5A01
    SEALED = 0x2E5EA102
    SENT = 0x3D5E1703
    SETTLED = 0x4C5E7704
    REPLACED = 0x5B4E9105
    VOID = 0x6A401D06


DONE = frozenset({BatchState.SETTLED, BatchState.REPLACED, BatchState.VOID})
_STATES = {int(state): state for state in BatchState}


class SegmentKind(enum.IntEnum):
    """The kind of a segment's batches."""

    PUBLISHED = 1
    REWRITTEN = 2  # children: not in the order of their places
    DEAD = 3  # dead letters: a settled one says nothing of those before it


class SegmentHead(NamedTuple):
    """The head of a segment. ``partition`` is -1 while a topic's partitions are unknown, -2 in the lane ``dead``."""

    size: int
    kind: SegmentKind
    topic: str
    partition: int
    ordinal: int  # epoch << 32 | n: never given twice
    salt: int
    epoch: int
    boot_id: bytes
    producer_id: str


class SyncPoint(NamedTuple):
    """Up to where a flush covers a batch: end of its records, their count, start of its notes, checksum."""

    end: int
    count: int  # type: ignore[assignment]
    notes: int
    crc: int


class BatchHead(NamedTuple):
    """The two lines of a batch's own head, as they lie there."""

    salt: int
    state: BatchState | None  # None: the word is no state of this salt
    state_epoch: int
    end: int
    notes: int
    first: int
    base: int
    sent_at: int
    accepted_at: int
    epoch: int
    count: int  # type: ignore[assignment]
    span: int
    points: tuple[SyncPoint, SyncPoint]
    parent: tuple[int, int]  # (ordinal, place) of the batch that this one was rewritten from; (0, 0): none
    transaction: int
    latest: int


def pack_region(size: int, base: int) -> bytes:
    """Return the head of the region at ``base`` whose segments have ``size`` bytes."""
    body = _REGION.pack(_REGION_MAGIC, FORMAT_VERSION, size, 0)[:-4]
    return body + crc32(body, base & 0xFFFFFFFF).to_bytes(4, "little")


REGION_HEAD_SIZE = _REGION.size


def read_region(data: bytes, base: int, geometry: Geometry) -> int | None:
    """Return the segment size of the region at ``base``; None: no head of a region."""
    if len(data) < REGION_HEAD_SIZE:
        return None
    magic, version, size, _ = _REGION.unpack_from(data)
    if magic != _REGION_MAGIC or version != FORMAT_VERSION or not geometry.known(size):
        return None
    return size if data[:REGION_HEAD_SIZE] == pack_region(size, base) else None


def pack_segment(head: SegmentHead, place: int) -> bytes:
    """Return the 512 bytes of a segment's head; ``place`` is its offset in the file, which the checksum covers."""
    topic = head.topic.encode()
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        0,
        FORMAT_VERSION,
        head.kind,
        len(topic),
        head.size,
        head.partition,
        head.ordinal,
        head.salt,
        head.epoch,
        0,
        head.boot_id,
        head.producer_id.encode(),
    )
    rest = (body[12:] + topic).ljust(SEGMENT_HEAD_SIZE - 12, b"\0")
    return _SEGMENT_MAGIC + crc32(rest, _seed(place)).to_bytes(4, "little") + rest


def read_segment(data: bytes, place: int, size: int) -> SegmentHead | None:
    """Return the head at ``place`` of a region with segments of ``size`` bytes; None: there is none that is whole."""
    if data[:8] != _SEGMENT_MAGIC or len(data) < SEGMENT_HEAD_SIZE:
        return None
    _, crc, version, kind, length, own_size, partition, ordinal, salt, epoch, _, boot_id, producer = (
        _SEGMENT.unpack_from(data)
    )
    if crc != crc32(data[12:SEGMENT_HEAD_SIZE], _seed(place)) or version != FORMAT_VERSION or own_size != size:
        return None
    topic = data[_SEGMENT.size : _SEGMENT.size + length].decode()
    text = producer.rstrip(b"\0").decode()
    return SegmentHead(size, SegmentKind(kind), topic, partition, ordinal, salt, epoch, boot_id, text)


def looks_like_segment(data: bytes) -> bool:
    """Whether the bytes begin as a segment's head does, be it whole or not."""
    return data[:8] == _SEGMENT_MAGIC and len(data) >= SEGMENT_HEAD_SIZE


def claimed_size(data: bytes) -> int:
    """Return the size that the head of a segment claims; 0: it does not begin as one."""
    return _SEGMENT.unpack_from(data)[5] if looks_like_segment(data) else 0


def _seed(place: int) -> int:
    return (place >> 12) & 0xFFFFFFFF  # segments begin at whole pages


def state_word(state: BatchState, salt: int, epoch: int) -> int:
    """Return the 8 bytes that say a batch's state, and in which epoch it came to it."""
    return (int(state) ^ salt & 0xFFFFFFFF) | epoch << 32


def commit_word(end: int, notes: int) -> int:
    """Return the 8 bytes that say where whole records end and whole notes start."""
    return end | notes << 32


def pack_new(
    end: int, notes: int, first: int, base: int, accepted_at: int, epoch: int, parent: tuple[int, int]
) -> tuple[bytes, bytes]:
    """Return line 0 from its commit word on, and line 1, of a batch without records."""
    rest = _REST_OF_LINE_0.pack(commit_word(end, notes), first, base & _U64, 0, accepted_at, epoch, 0, 0)
    return rest, _LINE_1.pack(*parent, 0, base & _U64)


_U64 = 0xFFFFFFFFFFFFFFFF


def pack_sealed(count: int, span: int) -> int:
    """Return the 8 bytes of a sealed batch's count and last minus first sequence."""
    return count | span << 32


def pack_point(point: SyncPoint) -> tuple[int, int]:
    """Return a sync point as the two words it is stored in."""
    return point.end | point.count << 32, point.notes | point.crc << 32


def read_batch(data: bytes, salt: int, at: int = 0) -> BatchHead | None:
    """Return the head of the batch at ``at`` of ``data``; None: no batch of the segment with this salt begins there.

    Salt and state say the same: where one of them is damaged, the other one tells. A salt of 0 is no batch yet.
    """
    if len(data) - at < OWN_HEAD_SIZE:
        return None
    fields = _LINES.unpack_from(data, at)
    if not fields[0] or (fields[0] != salt and fields[1] ^ salt & 0xFFFFFFFF not in _STATES):
        return None
    (_, word, state_epoch, commit, first, base, sent_at, accepted_at, epoch, count, span) = fields[:11]
    state = _STATES.get(word ^ salt & 0xFFFFFFFF)
    points = SyncPoint(*fields[11:15]), SyncPoint(*fields[15:19])
    ordinal, place, transaction, latest = fields[19:]
    return BatchHead(
        salt=salt,
        state=state,
        state_epoch=state_epoch,
        end=commit & 0xFFFFFFFF,
        notes=commit >> 32,
        first=first,
        base=_signed(base),
        sent_at=sent_at,
        accepted_at=accepted_at,
        epoch=epoch,
        count=count,
        span=span,
        points=points,
        parent=(ordinal, place),
        transaction=transaction,
        latest=_signed(latest),
    )


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def salted(salt: int) -> int:
    """Return the checksum that a batch's running checksums of records and notes begin with."""
    return crc32(salt.to_bytes(8, "little"))


def point_crc(
    records: int,
    notes: int,
    first: int,
    epoch: int,
    base: int,
    parent: tuple[int, int],
    end: int,
    notes_at: int,
    count: int,
) -> int:
    """Return the checksum of a sync point; ``records`` and ``notes`` are running checksums that began with `salted`."""
    return crc32(_POINT_CRC.pack(records, notes, first, epoch, base, *parent, end, notes_at, count))


def align(place: int) -> int:
    """Return the next place at which a batch may begin."""
    return (place + LINE - 1) & -LINE
