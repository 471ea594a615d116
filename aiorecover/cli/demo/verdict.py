"""The judge of the demonstration: it compares what the pipe reported as accepted with what stands in Kafka.

It knows nothing of the library but the header ``aiorecover-id``. It has what was accepted from
the publishing process's reports, reads what was delivered back with a plain aiokafka consumer, and takes the order
from the records' own contents: run number (which child) and record number, which rise for every key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

__all__ = ["Ordinal", "Outcome", "Seen", "Verdict", "judge", "present_ends", "read_back"]

ID_HEADER = "aiorecover-id"
EXAMPLES = 5
POLL_MS = 500
TRIES = 20  # to see a topic that was made just now: not every broker knows it yet
TRY_AGAIN_S = 0.25
DECIDED_S = 10.0  # that a transaction may stay open: another program may have one in this topic
LOOK_S = 0.05
FETCH_WAIT_MS = 50  # 500 by default: a fetch at the end of a partition holds up all other questions to that broker


class Ordinal(NamedTuple):
    """Where a record stands in what was published: which child published it, and its number."""

    run: int
    number: int


class Seen(NamedTuple):
    """One record as it stands in Kafka."""

    partition: int
    key: bytes
    record_id: str
    ordinal: Ordinal


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts; ``good`` is the judgement.

    ``delivered``: accepted records found in Kafka. ``out_of_order``: first appearances after a later record
    of their key, or in another partition than it. ``repeated``: further appearances of an id; a fault where the broker
    ``recognises_repeats``. ``without_word``: in Kafka although the child was killed before it could report that
    ``publish`` had returned.
    """

    accepted: int
    delivered: int
    missing: int
    out_of_order: int
    repeated: int
    without_word: int
    recognises_repeats: bool = False
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every accepted record is there in order; and once, where the broker sees to that."""
        return not (self.missing or self.out_of_order or (self.repeated and self.recognises_repeats))

    def as_json(self) -> dict[str, Any]:
        """The counts and the judgement as plain data."""
        return {**asdict(self), "good": self.good}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, and what is worth knowing beside it."""

    verdict: Verdict
    embedded: bool
    topic: str
    seconds: float
    kills: int
    recovered: int
    kept: str | None = None
    exactly_once: bool = False

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "verdict": self.verdict.as_json()}


def judge(accepted: Mapping[str, Ordinal], seen: Iterable[Seen], *, recognises_repeats: bool = False) -> Verdict:
    """Compare what was accepted with what is in Kafka, given in the order of each partition's offsets.

    ``recognises_repeats``: a batch that is sent again is not appended again, as by any Kafka but a mock of one.
    """
    found: set[str] = set()
    newest: dict[bytes, Seen] = {}
    repeated = out_of_order = 0
    examples: list[str] = []
    for record in seen:
        if record.record_id in found:
            repeated += 1
            examples += [f"repeated {record.record_id}"] * recognises_repeats
            continue
        found.add(record.record_id)
        before = newest.setdefault(record.key, record)
        if before is not record and not _follows(record, before):
            out_of_order += 1
            examples.append(f"out of order {record.record_id} after {before.record_id}")
        else:
            newest[record.key] = record
    missing = [record_id for record_id in accepted if record_id not in found]
    examples += [f"missing {record_id}" for record_id in missing]
    delivered = len(accepted) - len(missing)
    return Verdict(
        accepted=len(accepted),
        delivered=delivered,
        missing=len(missing),
        out_of_order=out_of_order,
        repeated=repeated,
        without_word=len(found) - delivered,
        recognises_repeats=recognises_repeats,
        examples=examples[:EXAMPLES],
    )


def _follows(record: Seen, before: Seen) -> bool:
    return record.partition == before.partition and record.ordinal > before.ordinal


async def present_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return the present end of every partition: where the demonstration's records begin."""
    async with _reader(bootstrap_servers, topic) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        return {partition.partition: offset for partition, offset in ends.items()}


async def read_back(
    bootstrap_servers: str, topic: str, begin: Mapping[int, int], isolation_level: str = "read_uncommitted"
) -> list[Seen]:
    """Return every record from ``begin`` to the present end, per partition in the order of offsets."""
    async with _reader(bootstrap_servers, topic, isolation_level) as consumer:
        if isolation_level == "read_committed":
            await _until_decided(bootstrap_servers, topic, consumer)
        ends = await consumer.end_offsets(consumer.assignment())
        for partition in ends:
            consumer.seek(partition, begin.get(partition.partition, 0))
        seen: list[Seen] = []
        left = set(ends)
        while left := {partition for partition in left if await consumer.position(partition) < ends[partition]}:
            for partition, records in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
                seen += [_seen(record) for record in records if record.offset < ends[partition]]
        return seen


@contextlib.asynccontextmanager
async def _reader(
    bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted"
) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a plain consumer outside of any group, with every partition of the topic."""
    for tries_left in range(TRIES, -1, -1):
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            await consumer.start()
            break
        except UnknownTopicOrPartitionError:
            await consumer.stop()
            if not tries_left:
                raise
            await asyncio.sleep(TRY_AGAIN_S)
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _until_decided(bootstrap_servers: str, topic: str, committed: AIOKafkaConsumer) -> None:
    """Wait until no transaction is open: a commit is answered before every partition has heard of it."""
    async with _reader(bootstrap_servers, topic) as everything:
        partitions = everything.assignment()
        give_up_at = time.monotonic() + DECIDED_S
        while await committed.end_offsets(partitions) != await everything.end_offsets(partitions):
            if time.monotonic() > give_up_at:
                break
            await asyncio.sleep(LOOK_S)


def _seen(record: Any) -> Seen:
    contents = json.loads(record.value)
    record_id = dict(record.headers)[ID_HEADER].decode()
    return Seen(record.partition, record.key, record_id, Ordinal(contents["run"], contents["number"]))
