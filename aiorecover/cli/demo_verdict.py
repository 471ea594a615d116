"""The judge of the demonstration: what was accepted, by the pipe's word, against what stands in Kafka.

It knows nothing of the library but the header ``aiorecover-id``. What was accepted it has from the publishing
process's reports; what was delivered it reads back with a plain aiokafka consumer; the order it takes from
the records' own contents: run number (which child) and record number, which rise for every key.
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

    from aiokafka import TopicPartition

__all__ = ["Ordinal", "Seen", "Verdict", "judge", "present_ends", "read_back"]

ID_HEADER = "aiorecover-id"
_EXAMPLES = 5
_POLL_MS = 500
_TRIES = 20
_TRY_AGAIN_SECONDS = 0.25
_DECIDED_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_FETCH_WAIT_MS = 50  # 500 by default: a fetch at the end of a partition holds up all other questions to that broker


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

    ``delivered``: accepted records found in Kafka. ``out_of_order``: first appearances behind a later record
    of their key, or in another partition than it. ``altered``: the id stands at another record's contents.
    ``repeated``: further appearances of an id; a fault where the broker ``recognises_repeats``. ``without_word``:
    in Kafka although the child was killed before it could report that ``publish`` had returned. ``cut_off``:
    partitions whose oldest records the broker deleted before they could be counted.
    """

    accepted: int
    delivered: int
    missing: int
    out_of_order: int
    altered: int
    repeated: int
    without_word: int
    cut_off: int
    recognises_repeats: bool = False
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True if every accepted record is there, unaltered and in order; and once, where the broker sees to that."""
        repeated = self.repeated and self.recognises_repeats
        return not (self.missing or self.out_of_order or self.altered or self.cut_off or repeated)

    def as_json(self) -> dict[str, Any]:
        """The counts and the judgement as plain data."""
        return {**asdict(self), "good": self.good}


def judge(
    accepted: Mapping[str, Ordinal], seen: Iterable[Seen], cut_off: int = 0, *, recognises_repeats: bool = False
) -> Verdict:
    """Compare what was accepted with what is in Kafka, given in the order of each partition's offsets.

    ``recognises_repeats``: a batch that is sent again is not appended again, as by any Kafka but a mock of one.
    """
    found: set[str] = set()
    newest: dict[bytes, Seen] = {}
    repeated = out_of_order = altered = 0
    examples: list[str] = []
    for record in seen:
        if record.record_id in found:
            repeated += 1
            examples += [f"repeated {record.record_id}"] * recognises_repeats
            continue
        found.add(record.record_id)
        if accepted.get(record.record_id, record.ordinal) != record.ordinal:
            altered += 1
            examples.append(f"altered {record.record_id}")
        before = newest.setdefault(record.key, record)
        if before is not record and not _follows(record, before):
            out_of_order += 1
            examples.append(f"out of order {record.record_id} after {before.record_id}")
        else:
            newest[record.key] = record
    missing = [record_id for record_id in accepted if record_id not in found]
    examples += [f"missing {record_id}" for record_id in missing]
    return Verdict(
        accepted=len(accepted),
        delivered=len(accepted) - len(missing),
        missing=len(missing),
        out_of_order=out_of_order,
        altered=altered,
        repeated=repeated,
        without_word=len(found) - (len(accepted) - len(missing)),
        cut_off=cut_off,
        recognises_repeats=recognises_repeats,
        examples=examples[:_EXAMPLES],
    )


async def present_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The present end of every partition: where the demonstration's records will begin."""
    async with _reader(bootstrap_servers, topic) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        return {partition.partition: offset for partition, offset in ends.items()}


async def read_back(
    bootstrap_servers: str, topic: str, begin: Mapping[int, int], isolation_level: str = "read_uncommitted"
) -> tuple[list[Seen], int]:
    """Read every record from ``begin`` to the present end; also how many partitions lost some of them."""
    async with _reader(bootstrap_servers, topic, isolation_level) as consumer:
        partitions = consumer.assignment()
        if isolation_level == "read_committed":
            await _until_decided(bootstrap_servers, topic, consumer)
        first = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, max(begin.get(partition.partition, 0), first[partition]))
        seen = [record async for record in _records(consumer, ends)]
        # Asked once more: a broker that deletes by age or size may have done so meanwhile.
        first = await consumer.beginning_offsets(partitions)
    return seen, sum(offset > begin.get(partition.partition, 0) for partition, offset in first.items())


@contextlib.asynccontextmanager
async def _reader(
    bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted"
) -> AsyncIterator[AIOKafkaConsumer]:
    """A plain consumer outside of any group, with every partition of the topic."""
    tries = _TRIES
    while True:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            isolation_level=isolation_level,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
        )
        try:
            await consumer.start()
            break
        except UnknownTopicOrPartitionError:
            # A topic that was made just now need not be known to every broker yet.
            await consumer.stop()
            tries -= 1
            if not tries:
                raise
            await asyncio.sleep(_TRY_AGAIN_SECONDS)
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _until_decided(bootstrap_servers: str, topic: str, committed: AIOKafkaConsumer) -> None:
    """Until no transaction is open: a commit is answered before every partition has heard of it.

    Not for ever: somebody else may have one open in this topic.
    """
    async with _reader(bootstrap_servers, topic) as everything:
        partitions = everything.assignment()
        give_up_at = time.monotonic() + _DECIDED_SECONDS
        while await committed.end_offsets(partitions) != await everything.end_offsets(partitions):
            if time.monotonic() > give_up_at:
                break
            await asyncio.sleep(_LOOK_SECONDS)


async def _records(consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> AsyncIterator[Seen]:
    """Yield until every partition is read to its end; per partition in the order of offsets."""
    behind = {partition for partition, end in ends.items() if await consumer.position(partition) < end}
    while behind:
        for partition, records in (await consumer.getmany(*behind, timeout_ms=_POLL_MS)).items():
            for record in records:
                if record.offset < ends[partition]:
                    yield _seen(record)
        behind = {partition for partition in behind if await consumer.position(partition) < ends[partition]}


def _seen(record: Any) -> Seen:
    contents = json.loads(record.value)
    record_id = dict(record.headers)[ID_HEADER].decode()
    return Seen(record.partition, record.key, record_id, Ordinal(contents["run"], contents["number"]))


def _follows(record: Seen, before: Seen) -> bool:
    return record.partition == before.partition and record.ordinal > before.ordinal
