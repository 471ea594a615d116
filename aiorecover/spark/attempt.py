"""One attempt of a task: its rows go out through a producer of its own."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from aiokafka.errors import KafkaTimeoutError

from aiorecover.errors import (
    ConfigError,
    EncodeError,
    PermanentDeliveryError,
    RecordTooLargeError,
)
from aiorecover.kafka.rewrite import FULL
from aiorecover.producer import RecoverableProducer
from aiorecover.record_id import RECORD_ID_HEADER, parse_record_id
from aiorecover.spark.attempt_directory import AttemptDirectory
from aiorecover.spark.event_loop import EventLoop
from aiorecover.spark.sink_manifest import WRITE_HEADER, Attempt, Write, ranges_of, topics_of

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Iterable, Iterator

    from aiorecover.spark.sink_plan import Plan

__all__ = ["make_attempt"]

_OURS = (RECORD_ID_HEADER, WRITE_HEADER)
_REFUSALS = (EncodeError, RecordTooLargeError)  # of this row alone: nothing was stored, and others go on
_NONE_KEPT = "of an attempt that fails no dead letters are kept, its rows are where the data frame has them from"
_US_PER_MS = 1000
_COLUMNS = ("topic", "value", "key", "partition", "timestamp", "headers")
_Row = tuple[Any, ...]


def make_attempt(
    plan: Plan, write: Write, batches: Iterable[pa.RecordBatch], *, partition: int, attempt: int
) -> Attempt:
    """Publish all rows; when this returns, each is in Kafka, or a dead letter, or refused and kept.

    Whatever is raised, also by ``batches``: what was sent by then stands in Kafka, and nothing more of it is sent.

    Raises:
        ConfigError: a topic is not there, ``wal_dir`` cannot be used, or too many rows are dead letters.
        DeliveryPendingError: not all is in Kafka within ``timeout_ms``.
        WalIOError: the disk refuses the ring, or the file for dead letters.

    """
    rows = iter(batches)
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return Attempt(write, partition, attempt, None, 1, 1, 0, 0)
    with EventLoop() as loop:
        sending = _Sending(plan, write)
        begun: concurrent.futures.Future[None] | None = None
        try:
            loop.run(sending.start())
            for batch in _with_first(first, rows):
                # One is published while Spark makes the next: never more than two are in memory.
                if begun is not None:
                    begun.result()
                begun = loop.submit(sending.publish(batch))
            if begun is not None:
                begun.result()
            return loop.run(sending.finish(partition, attempt))
        except BaseException:
            if begun is not None:
                begun.cancel()
            loop.run(sending.give_up())
            raise


def _with_first(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


class _Sending:
    """The producer of an attempt, and what became of its rows."""

    def __init__(self, plan: Plan, write: Write) -> None:
        self._plan = plan
        self._write = write
        self._mark = [(WRITE_HEADER, write.name.encode())]
        self._directory = AttemptDirectory(plan.wal_dir)
        self._producer = RecoverableProducer(
            self._directory.wal_dir, bootstrap_servers=plan.bootstrap_servers, **plan.options()
        )
        self._partitions: dict[str, set[int]] = {}
        self._rows = 0
        self._last = 0
        self._refused = 0
        self._why = ""

    async def start(self) -> None:
        await self._producer.start()

    async def publish(self, batch: pa.RecordBatch) -> None:
        """Accept all rows of a batch."""
        publish, known = self._producer.publish, self._partitions
        for topic, value, key, partition, timestamp_ms, headers in _rows_of(batch, self._plan):
            self._rows += 1
            given = self._mark if headers is None else self._marked(headers)
            try:
                if topic not in known:
                    await self._learn(topic)
                if partition is not None and partition not in known[topic]:
                    raise _no_such_partition(known[topic])  # the producer would wait until somebody adds it
                receipt = await publish(
                    topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=given
                )
            except _REFUSALS as error:
                self._refuse(error, topic, value, key, partition, timestamp_ms, headers)
            else:
                self._last = receipt.sequence

    def _marked(self, headers: list[dict[str, Any] | None]) -> list[tuple[str, bytes | None]]:
        """The row's own, without those of an earlier life of the record, and ours."""
        own = [(one["key"], one["value"]) for one in headers if one is not None and one["key"] not in _OURS]
        return own + self._mark

    async def _learn(self, topic: str) -> None:
        """Whether it is there; the producer itself would wait until somebody makes it. An outage is waited out.

        Raises:
            EncodeError: this is no topic's name.
            ConfigError: it is the one of the manifests, or is not there, or Kafka is not reached within ``timeout_ms``.

        """
        if topic == self._plan.manifest_topic:
            raise ConfigError(
                "manifests need a topic of their own: mend the column topic, or name another manifest_topic "
                f"manifest_topic={topic!r}"
            )
        until = time.monotonic() + self._plan.timeout_ms / 1000
        while topic not in self._partitions:
            try:
                self._partitions[topic] = await self._producer.partitions_for(topic)
            except KafkaTimeoutError as error:
                if self._producer.state == "connected" or time.monotonic() > until:
                    raise ConfigError(
                        f"a topic cannot be written to: make it, or mend the column topic, or Kafka: {error}"
                    ) from None

    def _refuse(self, error: Exception, *row: Any) -> None:
        self._refused += 1
        self._why = str(error)
        self._check_count(self._refused)
        told = dict(zip(_COLUMNS, row, strict=True)) | {"error": str(error)}
        with self._directory.refused.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told, default=_base64) + "\n")

    def _check_count(self, count: int) -> None:
        if count > self._plan.max_dead_letters:
            raise ConfigError(
                "so many rows are refused that it is not the rows: mend the cause, or raise max_dead_letters; "
                f"{_NONE_KEPT} max_dead_letters={self._plan.max_dead_letters} last={self._why!r:.300}"
            )

    async def finish(self, partition: int, attempt: int) -> Attempt:
        """Wait until Kafka has everything, and close."""
        producer = self._producer
        await self._flush()
        letters = await self._dead_letters()  # where there are too many, their copies are not waited for
        if letters and self._copies_to() is not None:
            await self._flush()
            letters = await self._dead_letters()  # and copies that were refused in turn
        accepted = producer.statistics().accepted
        producer_id, epoch = producer.producer_id, producer.epoch
        exported = self._copies() != len(letters)  # a copy that was refused in turn is a letter more
        if exported:
            await producer.dead_letters.export(self._directory.letters)
        if await producer.stop():
            message = "not everything is in kafka: the attempt does not count"
            raise PermanentDeliveryError(f"{message} state={producer.state}")
        kept = self._directory.keep() if exported or self._refused else None
        self._directory.remove_unless_kept()
        return Attempt(
            write=self._write,
            partition=partition,
            attempt=attempt,
            producer_id=producer_id,
            epoch=epoch,
            first=1,
            last=max(self._last, accepted),  # copies for a dead letter topic have sequences, too
            rows=self._rows,
            dead_letters=ranges_of(letters),
            refused=self._refused,
            topics=topics_of(self._topics(letters)),
            kept=kept,
        )

    def _copies(self) -> int:
        """Return how many records were accepted besides the rows: copies of dead letters."""
        return self._producer.statistics().accepted - (self._rows - self._refused)

    def _copies_to(self) -> str | None:
        topic: str | None = self._plan.producer.get("dead_letter_topic")
        return topic

    async def _flush(self) -> None:
        try:
            await self._producer.flush(self._plan.timeout_ms)
        except PermanentDeliveryError as error:
            if FULL not in str(error):
                raise
            raise ConfigError(
                "the dead letters of an attempt do not fit into its ring: mend the cause, or raise "
                f"producer.wal_max_bytes; {_NONE_KEPT}"
            ) from None

    def _topics(self, letters: list[int]) -> set[str]:
        copies = self._copies_to() if letters else None
        return {*self._partitions, *([copies] if copies else [])}

    async def _dead_letters(self) -> list[int]:
        """Their sequences.

        Raises:
            ConfigError: there are too many.

        """
        sequences: list[int] = []
        if self._producer.statistics().dead_lettered:
            async for letter in self._producer.dead_letters.list():
                self._why = letter.error
                found = parse_record_id(letter.record_id)
                if found is not None:
                    sequences.append(found[2])
        self._check_count(self._refused + len(sequences))
        return sequences

    async def give_up(self) -> None:
        """Send nothing more, and leave nothing here: the rows are the next attempt's."""
        await self._producer.stop(timeout_ms=0)
        self._directory.remove_unless_kept()


def _rows_of(batch: pa.RecordBatch, plan: Plan) -> Iterator[_Row]:
    """Rows in the order of `_COLUMNS`; what the data frame has not is None."""
    columns = dict(zip(plan.columns, batch.columns, strict=True))
    if plan.topic is not None:
        columns.pop("topic", None)
    none = [None] * batch.num_rows
    found = {name: columns[name].to_pylist() for name in _COLUMNS if name in columns and name != "timestamp"}
    found["timestamp"] = _milliseconds(columns.get("timestamp"), none)
    if plan.topic is not None:
        found["topic"] = [plan.topic] * batch.num_rows
    return zip(*(found.get(name, none) for name in _COLUMNS), strict=True)


def _milliseconds(column: pa.Array | None, none: list[None]) -> list[int | None] | list[None]:
    if column is None:
        return none
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if us is None else us // _US_PER_MS for us in micros]


def _no_such_partition(partitions: set[int]) -> EncodeError:
    return EncodeError(f"the partition does not exist: choose one of the topic's partitions={len(partitions)}")


def _base64(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)
