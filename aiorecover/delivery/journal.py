"""What stands in the file `lanes`: a batch, before it is sent. Pure.

To Kafka a batch is (producer id, producer epoch, base sequence, count); to the ring it is the frames that it was made
of. An entry holds both, so that the next process can send the very same batch again, and the broker answers it as a
repeat if it had come through.

A frame is written down as the ordinal of its slot, which is never used twice, and its place in there, which the batch
knows anyway: so it is found without reading its slot, and its checksum (seeded by the slot's salt) proves that it is
that frame of that life. (The design had the first position and deltas: to find a frame by those, everything before it
has to be read.)

    entry   kafka's producer id i64 · epoch i16 · bytes of the topic u16 · partition i32 · base sequence i32 · count i32
            · last acknowledged offset i64 (-1: unknown) · stored at i64 (ms since the machine's boot) · groups u16,
            its highest bit: parted with, the next one: doubted · cluster number u16 (`Destination`) · topic · groups
    group   ordinal u64 · ring u16 (0 main, 1 retry) · zero u16 · frames u32 · a place u32 for each

Where a slot is moved to the retry ring, its frames are in two places until the move is made. A batch in flight is then
written down once more, with its copies, before the checkpoint that makes the move: so the two copies of its entry say
where the frames are if it was made, and where if it was not. Which of them count, the next opening knows: copies of a
move that was not made are void, originals of one that was are recycled.

A batch that is parted with, while it may be on its way to Kafka, is written down as that before its records are
settled: then it is never sent again, whatever becomes of them, and the next process's batches fence it too. Of its
frames one is left there.

An entry in doubt is not used again by any opening, and it stays as `doubted` until its records are settled: it tells
where to look for them in Kafka, also when the process that came to doubt it dies before it has looked.

An opening asks two things of each other entry. Whether it is to be trusted (`doubt_of`): only then its identity may be
used again. And whether it is spent: all its records are settled, and there is nothing to send again. The lane of an
entry in doubt begins with a fresh identity, and its records are delivered as any others: those that were in flight may
appear twice.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from aiorecover.delivery.identity_life import LONGEST_MS
from aiorecover.delivery.lane import Identity

MAIN, RETRY = 0, 1

_HEAD = struct.Struct("<qhHiiiqqHH")
_GROUP = struct.Struct("<QHHI")
_PARTED, _DOUBTED = 1 << 15, 1 << 14  # in the number of groups: an entry has room for a thousand


class Doubt(StrEnum):
    """Why an entry is not trusted."""

    ELSEWHERE = "the machine was down, the directory was copied, or its file lanes was damaged"
    LOST = "the file lanes was lost, and nothing tells which they were"
    PARTLY_LOST = "a part of the file lanes was lost, and nothing tells which they were"
    DAMAGED = "an entry was being stored, or is damaged"
    BEFORE = "an earlier start did not trust it, and has not delivered all of it"
    TWICE = "a lane has two entries"
    MOVED = "the records go to another kafka cluster from now on"
    OLD = "kafka may have forgotten the identity"
    SUSPECT = "settle words may have been lost"
    GONE = "a part of the batch is not in the ring any more, or damaged"


@dataclass(slots=True)  # not frozen, nor the entry: they are made for every batch, and 2.5 µs cheaper so
class Group:
    """Frames of one slot, in the order of the batch."""

    ring: int
    ordinal: int
    places: Sequence[int]


@dataclass(slots=True)
class Entry:
    """One batch as it was about to be sent; ``offset``: the last one of its lane that was acknowledged, or -1.

    ``cluster_number``: of the cluster that gave the identity and the offset, as in `Destination`. ``parted``: it may be
    on its way to Kafka, and is not sent again. ``doubted``: an opening could not trust it.
    """

    topic: str
    partition: int
    identity: Identity
    base_sequence: int
    count: int
    offset: int
    at_ms: int
    groups: tuple[Group, ...]
    cluster_number: int = 0
    parted: bool = False
    doubted: bool = False

    @property
    def lane(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    def moved_from(self, other: "Entry") -> bool:
        """Whether both say the same of one batch, but that a part of it stands in the retry ring in one of them."""
        copied = any(group.ring == RETRY for group in (*self.groups, *other.groups))
        return copied and replace(self, groups=other.groups, at_ms=other.at_ms) == other


def encode(entry: Entry) -> bytes:
    """The body of a block."""
    topic = entry.topic.encode()
    parts = [
        _HEAD.pack(
            entry.identity.producer_id,
            entry.identity.epoch,
            len(topic),
            entry.partition,
            entry.base_sequence,
            entry.count,
            entry.offset,
            entry.at_ms,
            len(entry.groups) | _PARTED * entry.parted | _DOUBTED * entry.doubted,
            entry.cluster_number,
        ),
        topic,
    ]
    for group in entry.groups:
        parts.append(_GROUP.pack(group.ordinal, group.ring, 0, len(group.places)))
        parts.append(array("I", group.places).tobytes())
    return b"".join(parts)


def decode(body: bytes) -> Entry:
    """The entry in a body.

    Raises:
        ValueError: it is none; its checksum held, so it was written that way.

    """
    try:
        producer_id, epoch, length, partition, base, count, offset, at_ms, groups, number = _HEAD.unpack_from(body)
        at = _HEAD.size + length
        topic = body[_HEAD.size : at].decode()
        found = []
        for _ in range(groups % _DOUBTED):
            ordinal, ring, _, frames = _GROUP.unpack_from(body, at)
            at += _GROUP.size
            places = array("I", body[at : at + 4 * frames])
            at += 4 * frames
            found.append(Group(ring, ordinal, places))
    except (struct.error, ValueError) as error:
        message = f"an entry of the lanes is cut off bytes={len(body)}"
        raise ValueError(message) from error
    told = all(group.ring in {MAIN, RETRY} and group.places for group in found)
    if at != len(body) or count != sum(len(group.places) for group in found) or count == 0 or not told:
        message = f"an entry of the lanes does not add up bytes={len(body)} count={count}"
        raise ValueError(message)
    identity, parted, doubted = Identity(producer_id, epoch), bool(groups & _PARTED), bool(groups & _DOUBTED)
    return Entry(topic, partition, identity, base, count, offset, at_ms, tuple(found), number, parted, doubted)


def lanes_twice(entries: Iterable[Entry]) -> set[tuple[str, int]]:
    """Lanes of which more than one entry was found; what was doubted before is none beside the lane's next one."""
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for entry in entries:
        if entry.doubted:
            continue
        (twice if entry.lane in seen else seen).add(entry.lane)
    return twice


def doubt_of(
    entry: Entry | None,
    *,
    known: bool,
    damaged: bool,
    twice: bool,
    now_ms: int,
    cluster_number: int = 0,
    life_ms: int = LONGEST_MS,
) -> Doubt | None:
    """Why an entry's identity must not be used again, before its frames are looked at; None: it may be.

    Args:
        entry: None where nothing could be decoded.
        known: stored in this boot and in this very file.
        damaged: one of its two copies does not hold.
        twice: the lane has another entry.
        now_ms: time since the machine's boot.
        cluster_number: of the cluster that the records go to. Another one than that of the entry may have given the
            same identity to somebody else.
        life_ms: how long an identity is trusted.

    """
    if not known:
        return Doubt.ELSEWHERE
    if damaged or entry is None:
        return Doubt.DAMAGED
    if entry.cluster_number != cluster_number:
        return Doubt.MOVED
    if entry.doubted or twice:
        return Doubt.BEFORE if entry.doubted else Doubt.TWICE
    if not 0 <= now_ms - entry.at_ms <= life_ms:
        return Doubt.OLD
    return None
