"""Rings as data frames: ``spark.read.format("aiorecover").load(wal_dir)``, live or left behind.

For Spark 4.1 and newer: to look at what waits, and to publish what a machine that died has left. Nothing is locked,
changed or sent (:mod:`aiorecover.ring.inspect`). Options:

- ``path``: a ``wal_dir``, or one instance directory in it, at the same place on every executor.
- ``dead``: ``true`` shows dead letters, too. Default ``false``.

Columns: ``directory`` (of the instance), ``state``, ``producer_id``, ``epoch``, ``sequence``, ``topic``, ``partition``
(null: not chosen yet), ``key``, ``value``, ``timestamp``, ``headers`` (as in Kafka, with the record id), ``error``.
``state`` is ``waiting``, ``dead_letter`` (``topic`` and ``partition``: where it was to go; ``error``: why it did not),
or ``unreadable`` (``error``: what cannot be read in an instance).

Each instance is one partition of the data frame. A record that its owner rewrites meanwhile may come twice:
``dropDuplicates(["producer_id", "epoch", "sequence"])``.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from aiorecover.errors import ConfigError, WalError
from aiorecover.record_id import parse_record_id
from aiorecover.ring.directory import RING, instances
from aiorecover.ring.inspect import StoredRecord, look, waiting
from aiorecover.ring.lane import DEAD, UNASSIGNED
from aiorecover.ring.notes import Note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

__all__ = ["SCHEMA", "RingReader", "check"]

_ARROW = pa.schema(
    [
        ("directory", pa.string()),
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
        ("error", pa.string()),
    ]
)
SCHEMA = from_arrow_schema(_ARROW)

_BATCH_ROWS = 4_096  # in a batch; more is not faster
_BATCH_BYTES = 8 << 20  # of keys and values; a batch is in memory three times on its way to Spark


def check(options: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the path, and whether dead letters are wanted.

    Raises:
        ConfigError: an option is wrong, or nothing of aiorecover is at the path.

    """
    for name in options:
        if name.lower() not in {"path", "dead", "paths"}:  # Spark adds paths for load([...])
            raise ConfigError(f"unknown option: leave it out, there is dead=true, and the path option={name}")
    if "path" not in options:
        raise ConfigError('name one wal_dir, or an instance in it: .load("/var/lib/orders/wal")')
    path, dead = Path(options["path"].removeprefix("file:")), options.get("dead", "false").lower()
    if dead not in {"true", "false"}:
        raise ConfigError(f"dead is true or false: {dead=}")
    _directories(path)
    return path, dead == "true"


def _directories(path: Path) -> list[Path]:
    try:
        found = [path] if (path / RING).is_file() else [one.path for one in instances(path)]
    except (WalError, OSError) as error:
        raise ConfigError(f"the directory cannot be read, name a wal_dir or an instance in it: {error}") from None
    if not found:
        raise ConfigError(f"nothing of aiorecover is here: name a wal_dir or an instance in it path={path}")
    return found


class RingReader(DataSourceReader):
    """List the instances on the driver, and read them on the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise `ConfigError` for options that are wrong, or for columns of the user's own."""
        self._path, self._dead = check(options)
        if schema != SCHEMA:
            raise ConfigError(f"the columns are given: leave out .schema(...) columns={schema.names}")

    def partitions(self) -> Sequence[InputPartition]:
        """Return the instances."""
        return [InputPartition(path) for path in _directories(self._path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one instance, in batches of bounded size.

        Raises:
            ConfigError: the directory is not on this machine.

        """
        path: Path = partition.value
        if not path.is_dir():
            what = "the directory is not here: it must stand at the same place on every executor while it is read"
            raise ConfigError(f"{what} path={path} host={socket.gethostname()}")
        rows, size = list[tuple[Any, ...]](), 0
        for row in self._rows(path):
            rows.append(row)
            size += len(row[7] or b"") + len(row[8] or b"")
            if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _batch(rows)
                rows, size = [], 0
        if rows:
            yield _batch(rows)

    def _rows(self, path: Path) -> Iterator[tuple[Any, ...]]:
        directory = str(path)
        try:
            damaged = look(path).unreadable
            error = f"batches are damaged: the next start names them batches={damaged}" if damaged else None
            for one in waiting(path, dead=None if self._dead else False):
                note = one.note or Note()
                if one.partition != DEAD:
                    yield (directory, "waiting", *_fields(one, one.topic, one.partition), None)
                else:
                    yield (directory, "dead_letter", *_fields(one, note.topic, note.partition), note.error)
        except WalError as raised:
            error = str(raised)
        if error is not None:
            yield (directory, "unreadable", *[None] * (len(_ARROW) - 3), error)


def _fields(one: StoredRecord, topic: str | None, partition: int | None) -> tuple[Any, ...]:
    record, identity = one.record, parse_record_id(one.record_id) or (None, None, None)
    chosen = partition if partition != UNASSIGNED else None
    return (*identity, topic, chosen, record.key, record.value, one.timestamp_ms * 1000, record.headers)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)
