"""Which records stand in Kafka already: what the recovery check has read, and what counts of it. Pure.

A record is found by its exact id and by what it holds: somebody may have passed the id on with other contents. Records
of copies of the directory are told apart by their nonces; where they stand behind ours, ours count as overtaken, which
repeats some and loses none. Never counts "everything up to".

Only newest appearances tell where a record stands in its lane. When the tail goes back to an older record (a suffix was
sent again, as after a power cut), what stood behind that one in the ring stands before it in Kafka now: it does not
count as found until it appears once more. So what counts of a tail is always in the order of the ring, up to the end of
the partition; a tail that was not read to its end does not count at all.

Kept one by one: the lanes' records take turns in the ring, so the intervals of a lane are mostly single records.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from aiorecover.record_id import parse_record_id
from aiorecover.wal import format as fmt
from aiorecover.wal.checksum import crc32

MOST_IDS = 400_000  # of all lanes, 60 MB for a moment: a checkpoint interval of 5 s at 80,000 records a second
LOOK_BACK = 400_000  # offsets, shared by all lanes: aiokafka's consumer reads about 100,000 records a second
WORDS_LOST = 4_096  # a full batch: settle words of the last one acknowledged are not always durable with its entry

_OFFSET_BITS, _NAME_BITS = 63, 32 + fmt.NONCE_BITS

Lane = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Hint:
    """A lane that may have been in flight; ``offset``: the last one known to be acknowledged, or -1."""

    topic: str
    partition: int
    offset: int

    @property
    def lane(self) -> Lane:
        """Topic and partition."""
        return self.topic, self.partition


class Place(NamedTuple):
    """Where a record stands in its topic."""

    partition: int
    offset: int


def oldest_hints(hints: Iterable[Hint]) -> list[Hint]:
    """One for each lane: the one that goes back furthest."""
    oldest: dict[Lane, Hint] = {}
    for hint in hints:
        known = oldest.get(hint.lane)
        if known is None or hint.offset < known.offset:
            oldest[hint.lane] = hint
    return list(oldest.values())


def first_offset(known: int, beginning: int, end: int, lanes: int) -> int:
    """From where a tail is read.

    Args:
        known: the last offset known to be acknowledged, -1: none; one behind ``end`` is of a topic that is gone.
        beginning: the partition's first offset.
        end: the one behind its last.
        lanes: how many are read: they share `LOOK_BACK`, where nothing is known or too much was appended since.

    """
    furthest = max(beginning, end - max(1, LOOK_BACK // max(1, lanes)))
    if not 0 <= known < end:
        return min(furthest, end)
    return max(furthest, known + 1 - WORDS_LOST)


def content_of(key: bytes | None, value: bytes | None) -> int:
    """Tells records under one id apart, with a chance of one in four billion to be wrong."""
    shape = 4 * len(key or b"") + 2 * (key is None) + (value is None)
    return crc32(value or b"", crc32(key or b"", shape & 0xFFFFFFFF))


class InKafka:
    """Records of earlier epochs of one directory that stand in Kafka."""

    def __init__(self, directory_id: int, epoch: int) -> None:
        """``epoch``: our own; of it and of later ones nothing can have been found."""
        self._begins = fmt.producer_text(directory_id)[: fmt.DIRECTORY_TEXT].encode()
        self._epoch = epoch
        self._numbers: dict[Lane, int] = {}
        self._lanes: list[Lane] = []
        self._noted: list[array[int]] = []  # of each lane, positions that count, ascending
        self._found: dict[int, int] = {}  # position: lane, offset, nonce and content in one number
        self.last = 0  # the highest position that counts; known once `read_up` was called

    def __len__(self) -> int:
        """How many records count."""
        return len(self._found)

    @property
    def full(self) -> bool:
        """No more may be noted."""
        return len(self._found) >= MOST_IDS

    def __contains__(self, position: int) -> bool:
        """Whether a record with this position was found: the very one, or a copy's."""
        return position in self._found

    def note(self, lane: Lane, offset: int, name: bytes | None, content: int) -> None:
        """The next record of a tail; ``name``: its id, if it has one. Records of others are passed over."""
        told = self._told(name) if name is not None else None
        if told is None:
            return
        position, nonce = told
        number = self._number(lane)
        noted = self._noted[number]
        while noted and noted[-1] >= position:
            self._drop(number, noted.pop())
        noted.append(position)
        self._found[position] = (number << _OFFSET_BITS | offset) << _NAME_BITS | _name(nonce, content)

    def forget(self, lane: Lane) -> None:
        """The lane's tail was not read to its end: what was noted of it may have been overtaken."""
        number = self._number(lane)
        for position in self._noted[number]:
            self._drop(number, position)
        self._noted[number] = array("Q")

    def read_up(self) -> None:
        """Nothing more will be noted."""
        self._noted.clear()
        self.last = max(self._found, default=0)

    def place(self, topic: str, position: int, nonce: int, content: int) -> Place | None:
        """Where this very record stands; None when it was not found."""
        packed = self._found.get(position)
        if packed is None or packed & ((1 << _NAME_BITS) - 1) != _name(nonce, content):
            return None
        number, offset = divmod(packed >> _NAME_BITS, 1 << _OFFSET_BITS)
        found_in, partition = self._lanes[number]
        return Place(partition, offset) if found_in == topic else None

    def clear(self) -> None:
        """Nobody will ask any more."""
        self._found.clear()
        self.last = 0

    def _number(self, lane: Lane) -> int:
        number = self._numbers.get(lane)
        if number is None:
            number = self._numbers[lane] = len(self._lanes)
            self._lanes.append(lane)
            self._noted.append(array("Q"))
        return number

    def _drop(self, number: int, position: int) -> None:
        """Unless it stands in another partition as well, and was noted there since."""
        if self._found.get(position, -1) >> (_OFFSET_BITS + _NAME_BITS) == number:
            del self._found[position]

    def _told(self, name: bytes) -> tuple[int, int] | None:
        """Position and nonce, of an id that this directory, or a copy of it, gave out before this epoch."""
        if not name.startswith(self._begins):  # all 35 bits; first, as most are of others where many share a topic
            return None
        parsed = parse_record_id(name.decode("ascii", "replace"))
        if parsed is None:
            return None
        owner, epoch, sequence = parsed
        producer_id = fmt.producer_id_of(owner)
        if producer_id is None or epoch >= self._epoch:
            return None
        return fmt.position(epoch, sequence), fmt.nonce_of(producer_id)


def _name(nonce: int, content: int) -> int:
    return nonce << 32 | content
