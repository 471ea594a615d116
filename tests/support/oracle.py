"""The checker outside the library: what was accepted, held against what stands in Kafka, record by record.

`read_topic` reads with a plain aiokafka consumer, `judge` is a pure function. Neither uses anything of
aiorecover; all that is known here about it is the header `aiorecover-id` and the form of its value, `producer
id/epoch/sequence`.

Counts alone prove little: one record lost and another one repeated leave them right. Here every record is
looked for by its id, its key and value are compared, and its place is judged by the offsets of its partition.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import UnknownTopicOrPartitionError

from tests.support import admin

__all__ = ["ID_HEADER", "Accepted", "Consumed", "Disorder", "Verdict", "Wrong", "judge", "read_topic"]

ID_HEADER = "aiorecover-id"

_SAME_AT_EACH_START = 7  # characters of a producer id; the rest is each start's own
_EXAMPLES = 5  # so many of each kind of fault are written out
_POLL_MS = 500
_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 10  # at an end nothing comes, and a broker answers nothing else on that connection meanwhile
_CLOSE_WITHIN_S = 10
_DECIDED_WITHIN_S = 2.0
_LOOK_S = 0.01

Lane = tuple[Any, ...]
Place = tuple[str, Any]


class Accepted(NamedTuple):
    """A record whose acceptance was confirmed; `partition` only where the publisher named one."""

    record_id: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None


class Consumed(NamedTuple):
    """A record as it stands in Kafka."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    record_id: str | None


class Disorder(NamedTuple):
    """`record_id` appears for the first time after `after`, which was accepted later."""

    record_id: str
    after: str
    lane: str


class Wrong(NamedTuple):
    """A record that is there, but not as it was accepted."""

    record_id: str
    what: str


@dataclass(frozen=True)
class Verdict:
    """The end of each accepted record."""

    accepted: int
    delivered: int
    missing: list[str] = field(default_factory=list)
    """Ids that were accepted and are nowhere."""
    repeated: int = 0
    """Appearances beyond the first of each id. `ok` allows them: a test of exactly once asks for 0."""
    out_of_order: list[Disorder] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    scattered: list[bytes] = field(default_factory=list)
    """Keys that stand in several partitions without a partition having been named: their order is lost."""
    foreign: list[str] = field(default_factory=list)
    """Ids that are there and were never confirmed. `ok` allows them: a kill may have come in between."""

    @property
    def ok(self) -> bool:
        """Nothing missing, nothing out of order, nothing altered."""
        return not (self.missing or self.out_of_order or self.wrong or self.scattered)

    def __str__(self) -> str:
        head = "ok" if self.ok else "NOT OK"
        counts = f"accepted={self.accepted} delivered={self.delivered} repeated={self.repeated}"
        kinds: dict[str, Sequence[object]] = {
            "missing": self.missing,
            "out of order": [f"{late.record_id} behind {late.after} in {late.lane}" for late in self.out_of_order],
            "wrong": [f"{wrong.record_id}: {wrong.what}" for wrong in self.wrong],
            "scattered keys": self.scattered,
            "foreign": self.foreign,
        }
        return "\n".join([f"{head}: {counts}", *(_listed(kind, found) for kind, found in kinds.items() if found)])


def judge(accepted: Sequence[Accepted], consumed: Iterable[Consumed], *, whole_lanes: bool = False) -> Verdict:
    """Hold what was consumed against what was accepted (in the order of acceptance, epoch after epoch).

    Order is judged by the first appearances within a partition: for each key, and for the records for which a
    partition was named. Records that were never confirmed count as well: their ids tell when they were made.
    With `whole_lanes` all records of a partition that have a key or a named partition must be in the order of
    their ids, which is more than the promise to users.
    """
    log = sorted(consumed, key=lambda record: (record.partition, record.offset))
    wanted = {record.record_id: record for record in accepted}
    appearances = Counter(record.record_id for record in log if record.record_id is not None)
    return Verdict(
        accepted=len(accepted),
        delivered=sum(1 for record_id in wanted if record_id in appearances),
        missing=[record_id for record_id in wanted if record_id not in appearances],
        repeated=appearances.total() - len(appearances),
        out_of_order=_out_of_order(accepted, log, wanted, whole_lanes=whole_lanes),
        wrong=[*_accepted_twice(accepted), *_altered(log, wanted)],
        scattered=_scattered(log, wanted),
        foreign=_foreign(log, wanted),
    )


def _accepted_twice(accepted: Sequence[Accepted]) -> Iterator[Wrong]:
    for record_id, times in Counter(record.record_id for record in accepted).items():
        if times > 1:
            yield Wrong(record_id, f"the id was given out {times} times")


def _altered(log: Sequence[Consumed], wanted: dict[str, Accepted]) -> Iterator[Wrong]:
    for record in log:
        original = wanted.get(record.record_id) if record.record_id is not None else None
        if original is None:
            continue
        pairs: list[tuple[str, object, object]] = [
            ("key", original.key, record.key),
            ("value", original.value, record.value),
        ]
        if original.partition is not None:
            pairs.append(("partition", original.partition, record.partition))
        for what, before, after in pairs:
            if before != after:
                where = f"partition={record.partition} offset={record.offset}"
                yield Wrong(original.record_id, f"{what} was {_short(before)}, is {_short(after)}, {where}")


def _scattered(log: Sequence[Consumed], wanted: dict[str, Accepted]) -> list[bytes]:
    free = {record.key for record in wanted.values() if record.partition is not None}
    partitions: dict[bytes, set[int]] = defaultdict(set)
    for record in log:
        if record.key is not None and record.key not in free:
            partitions[record.key].add(record.partition)
    return [key for key, found in partitions.items() if len(found) > 1]


def _foreign(log: Sequence[Consumed], wanted: dict[str, Accepted]) -> list[str]:
    names = (
        record.record_id or f"(without an id: partition={record.partition} offset={record.offset})" for record in log
    )
    return list(dict.fromkeys(name for name in names if name not in wanted))


def _out_of_order(
    accepted: Sequence[Accepted], log: Sequence[Consumed], wanted: dict[str, Accepted], *, whole_lanes: bool
) -> list[Disorder]:
    """By the ids, which include the unconfirmed records, and by the order of acceptance."""
    rank = {record.record_id: number for number, record in enumerate(accepted)}
    # A record without key and partition may go anywhere, so an unconfirmed one says nothing if there are
    # such.
    all_placed = all(record.key is not None or record.partition is not None for record in accepted)

    def lanes(record: Consumed) -> Iterator[Lane]:
        original = wanted.get(record.record_id or "")
        placed = original.partition is not None if original else record.key is None and all_placed
        if record.key is not None:
            yield "partition", record.partition, "key", record.key
        if placed or (whole_lanes and record.key is not None):
            yield "partition", record.partition

    def told(record: Consumed) -> Place | None:
        place = _place(record)
        number = rank.get(record.record_id or "")
        return None if place is None or number is None else (place[0], number)

    found = [*_late(log, lanes, _place)]
    if not whole_lanes:  # the lanes of a test with many publishers mix what they were told
        found += _late(log, lanes, told)
    return list({late.record_id: late for late in reversed(found)}.values())[::-1]


def _late(
    log: Sequence[Consumed],
    lanes: Callable[[Consumed], Iterable[Lane]],
    place: Callable[[Consumed], Place | None],
) -> Iterator[Disorder]:
    """Return the first appearances that come after one of a higher place, of the same producer and lane."""
    seen: set[tuple[int, str]] = set()
    highest: dict[tuple[Lane, str], tuple[Any, str]] = {}
    for record in log:
        appearance = (record.partition, record.record_id or "")
        found = place(record)
        if found is None or appearance in seen:
            continue
        seen.add(appearance)
        producer, height = found
        for lane in lanes(record):
            above = highest.get((lane, producer))
            if above is None or height > above[0]:
                highest[lane, producer] = height, appearance[1]
            else:
                yield Disorder(appearance[1], above[1], " ".join(map(str, lane)))


def _place(record: Consumed) -> Place | None:
    """Return the part that the ids of all starts share, epoch, and sequence; None for an id of another form."""
    parts = (record.record_id or "").rsplit("/", 2)
    try:
        producer, epoch, sequence = parts
        return producer[:_SAME_AT_EACH_START], (int(epoch), int(sequence))
    except ValueError:
        return None


def _listed(kind: str, found: Sequence[object]) -> str:
    more = f", and {len(found) - _EXAMPLES} more" if len(found) > _EXAMPLES else ""
    return f"  {kind} ({len(found)}): {', '.join(map(str, found[:_EXAMPLES]))}{more}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


async def read_topic(
    bootstrap_servers: str, topic: str, *, isolation_level: str = "read_uncommitted", timeout_s: float = 60.0
) -> list[Consumed]:
    """Everything that stands in the topic at the time of the call, partition by partition, by offset.

    Nothing is waited for, but for the end of transactions: first see to it that the publisher is finished. Where a
    broker goes away meanwhile, reading begins again; `TimeoutError` if the end is not reached in time.
    """

    async def attempt() -> list[Consumed]:
        return await _read_whole(bootstrap_servers, topic, isolation_level)

    return await admin.until(attempt, timeout_s=timeout_s, what=f"the end of {topic} was not reached")


async def _read_whole(bootstrap_servers: str, topic: str, isolation_level: str) -> list[Consumed]:
    partitions = await _partitions(bootstrap_servers, topic)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        isolation_level=isolation_level,
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=_FETCH_WAIT_MS,
    )
    try:
        await consumer.start()
        consumer.assign(partitions)
        if isolation_level == "read_committed":
            await _until_decided(bootstrap_servers, consumer, partitions)
        found = await _read_to_end(consumer, partitions)
    finally:
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await consumer.stop()
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def _until_decided(bootstrap_servers: str, committed: AIOKafkaConsumer, places: list[TopicPartition]) -> None:
    """Wait until no transaction is open: a commit is answered before each partition has heard of it.

    Not for ever: there may be one that nobody ends.
    """
    everything = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=None, enable_auto_commit=False)
    try:
        await everything.start()
        give_up_at = time.monotonic() + _DECIDED_WITHIN_S
        while await committed.end_offsets(places) != await everything.end_offsets(places):
            if time.monotonic() > give_up_at:
                break
            await asyncio.sleep(_LOOK_S)
    finally:
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await everything.stop()


async def _partitions(bootstrap_servers: str, topic: str) -> list[TopicPartition]:
    views = await admin.ask_every_node(bootstrap_servers, topic)
    numbers = {partition for view in views.values() for partition in view.leaders}
    if not numbers:
        raise UnknownTopicOrPartitionError(topic)
    return [TopicPartition(topic, number) for number in sorted(numbers)]


async def _read_to_end(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> list[Consumed]:
    ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
    # Not seek_to_beginning: the consumer's own reset, to the end, may be under way and win.
    for partition, beginning in (await consumer.beginning_offsets(partitions)).items():
        consumer.seek(partition, beginning)
    found: list[Consumed] = []
    # The position, not the offset of the last record, tells the end: transactions leave markers that nobody
    # is given.
    unfinished = [partition for partition in partitions if await consumer.position(partition) < ends[partition]]
    while unfinished:
        batches = await consumer.getmany(*unfinished, timeout_ms=_POLL_MS)
        for partition, records in batches.items():
            found.extend(_consumed(record) for record in records if record.offset < ends[partition])
        unfinished = [partition for partition in unfinished if await consumer.position(partition) < ends[partition]]
    return found


def _consumed(record: Any) -> Consumed:
    return Consumed(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
        next(
            (value.decode() for name, value in record.headers if name == ID_HEADER and value is not None),
            None,
        ),
    )
