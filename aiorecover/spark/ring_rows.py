"""What stands in a ring as rows of Arrow, a batch of bounded size at a time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiorecover import record as records
from aiorecover.delivery import refusal
from aiorecover.wal.losses import in_words, named
from aiorecover.wal.moved import DEAD, RING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from aiorecover.wal.view import Damage, FrameView

__all__ = ["ARROW_SCHEMA", "SCHEMA", "Rows"]

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("directory", StringType()),
        StructField("ring", StringType()),
        StructField("state", StringType()),
        StructField("producer_id", StringType()),
        StructField("epoch", IntegerType()),
        StructField("sequence", LongType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("slot", LongType()),
        StructField("file_offset", LongType()),
        StructField("error", StringType()),
    ]
)
"""All may be null: Arrow's batches say so, and Spark wants the two to be equal."""

ARROW_SCHEMA = pa.schema(
    [
        ("directory", pa.string()),
        ("ring", pa.string()),
        ("state", pa.string()),
        ("producer_id", pa.string()),
        ("epoch", pa.int32()),
        ("sequence", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("slot", pa.int64()),
        ("file_offset", pa.int64()),
        ("error", pa.string()),
    ]
)
"""The same for Arrow; by hand, because pyspark's own conversion is called differently in each version."""

_BATCH_ROWS = 4_096  # in a batch: more gains nothing
_BATCH_BYTES = 8 * 1024 * 1024  # of keys and values: a batch stands three times in memory on its way to Spark
_US_PER_MS = 1000


class Rows:
    """Rows of one ring of one instance."""

    def __init__(self, path: Path, ring: str | None) -> None:
        self._directory = str(path)
        self._ring = ring
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self.last = 0
        """Sequence of the last record given; 0: none was."""

    def of_frames(self, frames: Iterable[FrameView]) -> Iterator[pa.RecordBatch]:
        """The records of frames; what the last batch lacks of its size comes with it."""
        for frame in frames:
            self._rows.append(self._row(frame))
            self._bytes += len(frame.payload)
            self.last = frame.sequence
            if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
                yield from self.rest()
        yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What was not given yet."""
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, ARROW_SCHEMA)
        self._rows, self._bytes = [], 0

    def of_damage(
        self, missing: Iterable[Damage], producers: Mapping[int | None, str | None] = MappingProxyType({})
    ) -> Iterator[pa.RecordBatch]:
        """A row for each stretch that is not there; ``producers``: ids by epoch, as far as they are known."""
        self._rows = [self._damage(one, producers.get(one.epoch)) for one in missing]
        return self.rest()

    def of_doubt(self, error: str) -> Iterator[pa.RecordBatch]:
        """A row that says that records may be missing which nothing names."""
        self._rows = [self._about("missing") | {"error": error}]
        return self.rest()

    def of_error(self, error: str) -> Iterator[pa.RecordBatch]:
        """A row that says why there are no others."""
        self._rows = [self._about("unreadable") | {"error": error}]
        return self.rest()

    def _about(self, state: str) -> dict[str, Any]:
        return {"directory": self._directory, "ring": self._ring, "state": state}

    def _damage(self, one: Damage, producer_id: str | None) -> dict[str, Any]:
        error = f"damage took away records {in_words(named(self._ring or '', one))}"
        about = self._about("missing") | {"slot": one.slot, "file_offset": one.file_offset, "error": error}
        if self._ring != RING:  # numbers of this ring's own, and not of records
            return about
        return about | {"producer_id": producer_id, "epoch": one.epoch, "sequence": one.first}

    def _row(self, frame: FrameView) -> dict[str, Any]:
        row = self._about("settled" if frame.settled else "waiting") | {
            "producer_id": frame.producer_id,
            "epoch": frame.epoch,
            "sequence": frame.sequence,
            "slot": frame.slot,
            "file_offset": frame.file_offset,
        }
        payload: bytes = frame.payload
        try:
            if self._ring == DEAD:
                letter = refusal.decode(payload)
                payload, row["error"] = letter.record, str(letter.refusal)
            topic, key, value, partition, timestamp_ms, headers, _, _ = records.decode(payload)
        except (ValueError, RecursionError) as error:
            return row | {"error": f"the record cannot be decoded: {error}"}
        identity = records.record_id(frame.producer_id, frame.epoch, frame.sequence)
        return row | {
            "topic": topic,
            "partition": partition if frame.partition is None else frame.partition,
            "key": key,
            "value": value,
            "timestamp": timestamp_ms * _US_PER_MS,
            "headers": [*(headers or ()), (records.RECORD_ID_HEADER, identity.encode())],
        }
