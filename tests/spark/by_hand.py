"""The audit in plain Python: records as Kafka stores them, their faults, and Parquet files of them for Spark.

Nothing here uses aiorecover or Spark: it knows only the header `aiorecover-id` and the form of its text.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Epoch", "Stored", "examine", "write_files"]

_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class Stored(NamedTuple):
    """A record in Kafka; `identity` is (producer id, epoch, sequence), None: another producer wrote it."""

    topic: str
    partition: int
    offset: int
    identity: tuple[str, int, int] | None


class Epoch(NamedTuple):
    """The expected result for one producer and epoch."""

    first: int | None
    last: int | None
    expected: int
    found: int
    missing: list[tuple[int, int]]
    repeated: int
    out_of_order: int | None
    repeated_ranges: list[tuple[int, int]] = []  # noqa: RUF012 - a NamedTuple's default
    out_of_order_ranges: list[tuple[int, int]] = []  # noqa: RUF012 - a NamedTuple's default


def write_files(directory: Path, stored: Sequence[Stored], cuts: Sequence[int]) -> None:
    """Write the records into files that end at `cuts`, of different sizes: Spark reads large files first."""
    for number, (begin, end) in enumerate(itertools.pairwise([0, *cuts, len(stored)])):
        part = stored[begin:end]
        headers = [_headers(*one.identity) if one.identity else None for one in part]
        table = pa.table(
            {
                "key": pa.nulls(len(part), pa.binary()),
                "value": [b"v"] * len(part),
                "topic": [one.topic for one in part],
                "partition": pa.array([one.partition for one in part], pa.int32()),
                "offset": [one.offset for one in part],
                "timestamp": pa.nulls(len(part), _COLUMNS.field("timestamp").type),
                "timestampType": pa.nulls(len(part), pa.int32()),
                "headers": pa.array(headers, _COLUMNS.field("headers").type),
            },
            _COLUMNS,
        )
        pq.write_table(table, directory / f"{number:03d}.parquet")


def _headers(producer_id: str, epoch: int, sequence: int) -> list[tuple[str, bytes]]:
    return [("other", b"x"), ("aiorecover-id", f"{producer_id}/{epoch}/{sequence}".encode())]


def examine(stored: Iterable[Stored], known_last: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Epoch]:
    """Return the expected result of each producer and epoch, found sequence by sequence."""
    log = sorted(stored, key=lambda one: (one.topic, one.partition, one.offset))
    sequences: dict[tuple[str, int], list[int]] = defaultdict(list)
    in_order: set[tuple[str, int, int]] = set()
    highest: dict[tuple[str, int, str], tuple[int, int]] = {}
    for one in log:
        if one.identity is None:
            continue
        producer_id, epoch, sequence = one.identity
        sequences[producer_id, epoch].append(sequence)
        lane = one.topic, one.partition, producer_id
        if (epoch, sequence) > highest.get(lane, (0, 0)):
            in_order.add(one.identity)
            highest[lane] = epoch, sequence
    return {key: _epoch(key, sequences[key], known_last.get(key, 0), in_order) for key in {*sequences, *known_last}}


def _epoch(key: tuple[str, int], sequences: list[int], known: int, in_order: set[tuple[str, int, int]]) -> Epoch:
    there = set(sequences)
    last = max([known, *there])
    out_of_order = [sequence for sequence in there if (*key, sequence) not in in_order]
    return Epoch(
        first=min(there, default=None),
        last=max(there, default=None),
        expected=last,
        found=len(there),
        missing=_ranges(sequence for sequence in range(1, last + 1) if sequence not in there),
        repeated=len(sequences) - len(there),
        out_of_order=len(out_of_order),
        repeated_ranges=_ranges(sequence for sequence, times in Counter(sequences).items() if times > 1),
        out_of_order_ranges=_ranges(out_of_order),
    )


def _ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((sequence, sequence))
    return ranges
