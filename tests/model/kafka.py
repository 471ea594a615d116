"""The world outside: the broker, what was promised, and a reader of records that shares nothing with the package."""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.disk import BadError

TOPIC = "t"
PARTITIONS = 2
SOURCE = "src"
Id = tuple[int, int]  # epoch, sequence

_HEAD = struct.Struct(">qiibIhiqqqhii")


class Truth(NamedTuple):
    """A record as it was given to ``publish``."""

    key: int
    value: bytes
    context: int | None
    offset: int | None  # of its source

    @property
    def bad(self) -> bool:
        return self.value.startswith(b"!")

    @property
    def partition(self) -> int:
        return self.key % PARTITIONS


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def read_records(data: bytes) -> list[tuple[Id, int, bytes | None, bytes | None]]:
    """Return (id, index, key, value) of each record."""
    records = []
    at = 0
    while at < len(data):
        size, body = _varint(data, at)
        at = body + size
        _, place = _varint(data, body + 1)
        index, place = _varint(data, place)
        key, place = _field(data, place)
        value, place = _field(data, place)
        headers, place = _varint(data, place)
        ids = b""
        for _ in range(headers):
            _, place = _field(data, place)
            content, place = _field(data, place)
            ids = content or b""
        if place != at or at > len(data):
            raise BadError("GARBAGE: a record does not end where it says")
        _, epoch, sequence = ids.split(b"/")
        records.append(((int(epoch), int(sequence)), index, key, value))
    return records


def read_head(data: bytes) -> tuple[tuple[int, int, int], int]:
    """Return identity and count of a batch as it goes to Kafka."""
    fields = _HEAD.unpack_from(data)
    if fields[1] != len(data) - 12 or fields[3] != 2 or fields[6] != fields[12] - 1:
        raise BadError(f"GARBAGE: Kafka's head cannot be {fields}")
    return fields[9:12], fields[12]


class Kafka:
    """Remembers the last five batches of a producer id in a partition; an unknown one may start anywhere."""

    def __init__(self) -> None:
        self.log: dict[int, list[tuple[int, Id]]] = {}  # by partition: number of power cuts before, record
        self.batches: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self.producer = 0
        self.section = 0
        self.delayed: list[tuple[int, tuple[int, int, int], list[Id], bool]] = []  # requests that arrive later

    def new_producer(self) -> int:
        self.producer += 1
        return self.producer

    def produce(self, partition: int, identity: tuple[int, int, int], ids: list[Id], bad: bool) -> str:
        if bad:
            return "refused"
        producer, _, base = identity
        last = self.batches.get((partition, producer))
        if last is None:
            last = self.batches[partition, producer] = deque(maxlen=5)
        elif (base, len(ids)) in last:
            return "ok"
        elif base != last[-1][0] + last[-1][1]:
            return "order"
        last.append((base, len(ids)))
        self.log.setdefault(partition, []).extend((self.section, one) for one in ids)
        return "ok"

    def arrive(self) -> None:
        """A delayed request comes in."""
        if self.delayed:
            self.produce(*self.delayed.pop(0))

    def has(self, partition: int, wanted: Id) -> bool:
        return any(one == wanted for _, one in self.log.get(partition, ()))


@dataclass
class Promises:
    """The promises that were made to callers; no crash takes them back."""

    records: dict[Id, Truth] = field(default_factory=dict)
    returned: set[Id] = field(default_factory=set)
    required: set[Id] = field(default_factory=set)
    undurable: list[Id] = field(default_factory=list)  # required, and no completed flush covers them
    settled: set[Id] = field(default_factory=set)  # acknowledged, or taken out of the dead letters
    offsets: list[tuple[int, Id]] = field(default_factory=list)  # of the source, by record
    next_offset: int = 1

    def covered(self, ids: list[Id]) -> None:
        """A flush that covers these has completed."""
        gone = set(ids)
        self.undurable = [one for one in self.undurable if one not in gone]

    def power_cut(self) -> None:
        self.required.difference_update(self.undurable)
        self.undurable.clear()

    def verify(
        self, kafka: Kafka, dead: set[Id], excused: set[Id], *, stale_allowed: bool, repeats_allowed: bool = False
    ) -> None:
        """Compare with what has come, once everything is delivered."""
        got = {one for log in kafka.log.values() for _, one in log}
        lost = self.required - got - dead - excused - self.settled
        if lost:
            raise BadError(f"LOST {sorted(lost)}")
        for partition, log in kafka.log.items():
            whole = [(section, one) for section, one in log if one not in excused]
            self._verify_partition(partition, whole, stale_allowed=stale_allowed)
            if not repeats_allowed:
                self._verify_sections(partition, whole)

    def _verify_partition(self, partition: int, log: list[tuple[int, Id]], *, stale_allowed: bool) -> None:
        ids = [one for _, one in log]
        for one in ids:
            if one not in self.records or self.records[one].partition != partition:
                raise BadError(f"GARBAGE: {one} in partition {partition}")
        first = list(dict.fromkeys(ids))
        if first != sorted(first):
            raise BadError(f"ORDER in partition {partition}: {ids}")
        last = list(dict.fromkeys(reversed(ids)))[::-1]
        if last != sorted(last) and not stale_allowed:
            raise BadError(f"STALE repeat, no whole suffix, in partition {partition}: {ids}")

    def _verify_sections(self, partition: int, log: list[tuple[int, Id]]) -> None:
        for section in {one for one, _ in log}:
            part = [one for number, one in log if number == section]
            if len(part) != len(set(part)):
                raise BadError(f"TWICE without a power cut, in partition {partition}: {part}")


Log = Callable[[str], None]
