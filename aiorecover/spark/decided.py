"""Whether a write is decided already, asked on the driver before it publishes a manifest of its own.

The first manifest of a write counts, and what is written under its name afterwards is leftovers, in silence. That is
right where the same rows are written again: a batch of a stream whose driver died before Spark's log had it, a
``save()`` with a ``job_id`` that a scheduler has started again. It loses rows where others are written: the checkpoint
of a stream was put back to an older state, so that its batches have numbers which were used, or a ``job_id`` was.

Spark does the batches of a query one after the other, so none is done again once a later one has its manifest. A
``save()`` of the same rows has as many. (So has one of other rows by chance, and in ``foreachBatch`` where all batches
have one ``job_id``: nothing tells that, so a warning says it of each ``save()`` that was done before.)

What is looked at is the end of the manifest topic: back to the newest manifest of the query, or of the write, but no
further than `LOOK_BACK_BYTES`. Where it cannot be read, which takes the right to, a line says so. Whoever gives writes
up looks there, too (:mod:`aiorecover.spark.giving_up`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from aiorecover.errors import ConfigError
from aiorecover.spark.sink_manifest import KIND, PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from aiorecover.spark.sink_manifest import Attempt, Write
    from aiorecover.spark.sink_plan import Plan

__all__ = ["LOOK_BACK_BYTES", "Decided", "check_write", "decided_among", "decided_in", "refuse_other_rows"]

LOOK_BACK_BYTES = 8 * 1024 * 1024
"""Of manifests: some ten thousand of small writes, a few tenths of a second, and that for each write with a name."""

_WITHIN_S = 10.0  # all is published by now, and Spark waits
_FIRST_STEP = 16  # records: of a query that has the topic for itself the newest manifest is among them
_STEPS_GROW = 4
_POLL_MS = 200
_CONSUMERS = (  # of the producer's options
    *("client_id", "metadata_max_age_ms", "security_protocol", "ssl_context", "sasl_mechanism"),
    *("sasl_plain_username", "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
)

_log = logging.getLogger("aiorecover.spark")


@dataclass(frozen=True)
class Decided:
    """A write that has its manifest."""

    write: str
    rows: int | None
    """That its attempts were given; None: no attempt counts, it was given up, or has failed."""

    @property
    def job(self) -> str:
        """As in the name of the write."""
        return self.write.partition("/")[0]

    @property
    def batch_id(self) -> int:
        """Likewise."""
        return int(self.write.partition("/")[2])


class _Attempt(msgspec.Struct):
    rows: int


class _Part(msgspec.Struct):
    kind: str
    write: str
    run: str
    part: int
    parts: int
    batch_id: int
    attempts: list[_Attempt]


def check_write(plan: Plan, write: Write, attempts: Sequence[Attempt], *, of_stream: bool) -> None:
    """Look for the manifest that a write, or a later one of its query, has already.

    Raises:
        ConfigError: there is one, and this is not the same write done again.

    """

    def is_enough(found: list[Decided]) -> bool:
        return any(one.job == write.job if of_stream else one.write == write.name for one in found)

    found = decided_in(_end_of_topic(plan, is_enough))
    refuse_other_rows(write, sum(one.rows for one in attempts), found, of_stream=of_stream)


def decided_among(plan: Plan, names: AbstractSet[str]) -> set[str]:
    """Of writes that are to be given up, those that have a manifest already, as far as the end of the topic tells.

    Raises:
        ConfigError: records stand there, and no manifest: it is another topic.

    """

    def is_enough(found: list[Decided]) -> bool:
        return names <= {one.write for one in found}

    values = _end_of_topic(plan, is_enough)
    if values and not any(map(_part, values)):
        raise ConfigError(
            "this topic has records, and no manifest among the last of them: name the one that the jobs name as "
            f"manifest_topic manifest_topic={plan.manifest_topic!r}"
        )
    return set(names) & {one.write for one in decided_in(values)}


def _end_of_topic(plan: Plan, is_enough: Callable[[list[Decided]], bool]) -> list[bytes | None]:
    """Back to where it is enough; nothing where it cannot be read."""
    try:
        return asyncio.run(_look(plan, is_enough))
    except (KafkaError, OSError, TimeoutError) as error:
        _log.warning(
            "whether this write was done before was not looked for, as the manifest topic cannot be read: grant Read "
            "on it, or look at Kafka manifest_topic=%s error=%s",
            *(plan.manifest_topic, str(error) or type(error).__name__),
        )
        return []


def refuse_other_rows(write: Write, rows: int, found: Iterable[Decided], *, of_stream: bool) -> None:
    """Whether this can be the same write done again, as the manifests that were ``found`` tell, the first one first.

    Raises:
        ConfigError: it cannot.

    """
    of_job = [one for one in found if one.job == write.job]
    later = max((one.batch_id for one in of_job), default=-1)
    if of_stream and later > write.batch_id:
        raise ConfigError(
            "a later batch of this query has its manifest already, so this checkpoint is an older state, and what is "
            "written under a number that was used counts for nothing: put back its newest state, or name a new "
            "checkpoint, with which the query begins anew "
            f"batch_id={write.batch_id} decided={later} query={write.job_id}"
        )
    same = next((one for one in of_job if one.batch_id == write.batch_id), None)
    if same is None:
        return
    named = f"job={write.job_id} batch_id={write.batch_id} rows={rows} decided={same.rows}"
    if same.rows is None and rows:
        raise ConfigError(
            "this write was given up, so that nothing counts that is written under its name: name another job_id, or a "
            f"new checkpoint {named}"
        )
    if same.rows in (None, rows) and of_stream:
        _log.info("this write was done before, so what was written now are leftovers %s", named)
    elif same.rows in (None, rows):  # nothing tells whether they are the same rows
        _log.warning(
            "a write with this job_id was done before, and counts; what was written now are leftovers. if these are "
            "other rows, write them with a job_id of their own, in foreachBatch with the batch's number in it %s",
            named,
        )
    elif of_stream:  # which would never go on, where its rows come of something that has changed since
        _log.warning(
            "this batch was done before, with another number of rows, which count, and those written now do not: if "
            "this checkpoint was put back to an older state, name a new one %s",
            named,
        )
    else:
        raise ConfigError(
            "a write with this job_id was done before, with another number of rows: these count, and those written now "
            f"do not; name another job_id for other rows {named}"
        )


def decided_in(values: Iterable[bytes | None]) -> list[Decided]:
    """The writes whose manifests are whole among these records of the manifest topic, each first one, in order."""
    runs: dict[tuple[str, str], dict[int, _Part]] = {}
    found: dict[str, Decided] = {}
    for value in values:
        part = _part(value)
        if part is None:
            continue
        parts = runs.setdefault((part.write, part.run), {})
        parts[part.part] = part
        if len(parts) == part.parts:
            attempts = [one for each in parts.values() for one in each.attempts]
            rows = sum(one.rows for one in attempts) if attempts else None
            found.setdefault(part.write, Decided(part.write, rows))
    return list(found.values())


def _part(value: bytes | None) -> _Part | None:
    with suppress(msgspec.MsgspecError):
        part = msgspec.json.decode(value or b"", type=_Part)
        if part.kind == KIND and part.write.endswith(f"/{part.batch_id}"):
            return part
    return None


async def _look(plan: Plan, is_enough: Callable[[list[Decided]], bool]) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(**_options(plan))
    try:
        async with asyncio.timeout(_WITHIN_S):
            await consumer.start()
            return await _read_back(consumer, TopicPartition(plan.manifest_topic, PARTITION), is_enough)
    finally:
        await consumer.stop()


async def _read_back(
    consumer: AIOKafkaConsumer, partition: TopicPartition, is_enough: Callable[[list[Decided]], bool]
) -> list[bytes | None]:
    """In ever larger steps."""
    consumer.assign([partition])
    beginning = (await consumer.beginning_offsets([partition]))[partition]
    start = end = (await consumer.end_offsets([partition]))[partition]
    values: list[bytes | None] = []
    step, size = _FIRST_STEP, 0
    while True:
        if start <= beginning or size >= LOOK_BACK_BYTES or is_enough(decided_in(values)):
            return values
        start, until = max(beginning, start - step), start
        values[:0] = await _between(consumer, partition, start, until)
        size = sum(len(value or b"") for value in values)
        room = (LOOK_BACK_BYTES - size) * (end - start) // max(1, size)
        step = max(1, min(step * _STEPS_GROW, room))


async def _between(consumer: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> list[bytes | None]:
    consumer.seek(partition, start)
    values: list[bytes | None] = []
    while await consumer.position(partition) < end:
        came = (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition, [])
        values.extend(record.value for record in came if record.offset < end)
    return values


def _options(plan: Plan) -> dict[str, Any]:
    config = plan.config()
    return {
        **{name: config.client[name] for name in _CONSUMERS if name in config.client},
        "bootstrap_servers": list(config.bootstrap_servers),
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "request_timeout_ms": config.request_timeout_ms,
        "fetch_max_wait_ms": _POLL_MS,
    }
