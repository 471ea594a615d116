"""What a write says it has published, as records of the manifest topic: bytes in, bytes out.

A write is one ``df.write`` or one micro-batch of a stream; its name is ``<job>/<batch>``. Its manifest names the one
attempt of each task that counts. It is cut into parts, so that no number of tasks makes a record too large, and counts
once all parts are there. A write that is done again publishes another one; the first that is whole counts, in the order
of the manifest topic's partition 0, to which all go.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import WriterCommitMessage

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "KIND",
    "PARTITION",
    "PART_BYTES",
    "WRITE_HEADER",
    "WRITE_NAME",
    "Attempt",
    "Write",
    "empty_manifest_of",
    "manifest_of",
    "ranges_of",
    "topics_of",
]

KIND = "aiorecover-sink"
WRITE_HEADER = "aiorecover-write"
"""Of each record that a sink publishes: the name of its write."""
PARTITION = 0
"""The manifests' order decides which one counts, so all stand in one partition."""

_VERSION = 1
PART_BYTES = 256 * 1024  # of attempts as JSON: below every default limit for a record
_TOPICS_MOST = 20  # in what an attempt tells: 5 KB at most, and a job that chooses topics by the row tells none
WRITE_NAME = "[a-z2-7]{16}/(0|[1-9][0-9]{0,17})"
"""As `Write.name` makes it."""
_NAME = re.compile(WRITE_NAME)
_JOB_BYTES = 10  # 16 characters, in each record: so many that no two jobs ever have the same


@dataclass(frozen=True)
class Write:
    """What belongs together: a batch of a job."""

    job_id: str
    """Of a stream, its query's id; else the option ``job_id``, or a random one."""
    batch_id: int

    @property
    def name(self) -> str:
        """As it stands in each record's header."""
        return f"{self.job}/{self.batch_id}"

    @property
    def job(self) -> str:
        """Of its name: the job's id may be long."""
        digest = hashlib.sha256(self.job_id.encode()).digest()[:_JOB_BYTES]
        return base64.b32encode(digest).decode().lower()


@dataclass(frozen=True)
class Attempt(WriterCommitMessage):
    """What one attempt of a task has published, as it reaches the driver: its size is bounded.

    Its records have ids of its own, ``producer_id/epoch/first`` to ``last``; an attempt without rows has none.
    """

    write: Write
    partition: int
    """Of the data frame."""
    attempt: int
    producer_id: str | None
    epoch: int
    first: int
    last: int
    rows: int
    """That were given to it."""
    dead_letters: tuple[tuple[int, int], ...] = ()
    """Sequences that Kafka refused for good, as ranges: the ids behind them are nowhere else."""
    refused: int = 0
    """Rows that no record could be made of; they have no id."""
    topics: tuple[str, ...] | None = None
    """To which it has published; None: to too many to tell."""
    kept: str | None = None
    """Where dead letters and refused rows are, as ``host:directory``."""


def topics_of(names: Iterable[str]) -> tuple[str, ...] | None:
    """As `Attempt.topics`."""
    topics = tuple(sorted(names))
    return topics if len(topics) <= _TOPICS_MOST else None


def ranges_of(sequences: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Sequences in any order as ranges, first and last."""
    found: list[tuple[int, int]] = []
    for sequence in sorted(set(sequences)):
        if found and found[-1][1] == sequence - 1:
            found[-1] = found[-1][0], sequence
        else:
            found.append((sequence, sequence))
    return tuple(found)


def manifest_of(write: Write, attempts: Sequence[Attempt]) -> list[tuple[bytes, bytes]]:
    """Keys and values of the records that make up the manifest of a write, at least one; no attempts: none counts."""
    return _manifest(write.name, {"job_id": write.job_id, "batch_id": write.batch_id}, list(_parts(attempts)))


def empty_manifest_of(name: object) -> list[tuple[bytes, bytes]]:
    """The manifest that names no attempt, of a write of which only the name is known.

    Raises:
        ConfigError: no write has such a name.

    """
    told = _NAME.fullmatch(name) if isinstance(name, str) else None
    if told is None:
        raise ConfigError(
            f"a write is named as in the header {WRITE_HEADER}, which undecided_writes(...) shows, and the end of "
            f"aiorecover land --available-now: write={name!r:.100}"
        )
    return _manifest(told[0], {"job_id": None, "batch_id": int(told[1])}, [[]])


def _manifest(name: str, of: Mapping[str, object], parts: Sequence[Sequence[msgspec.Raw]]) -> list[tuple[bytes, bytes]]:
    run = uuid.uuid4().hex
    told = {"kind": KIND, "version": _VERSION, "write": name, "run": run, "parts": len(parts), **of}
    return [
        # No two have one key: a topic that is compacted keeps all of them.
        (f"{name}/{run}/{part}".encode(), msgspec.json.encode(told | {"part": part, "attempts": few}))
        for part, few in enumerate(parts)
    ]


def _parts(attempts: Sequence[Attempt]) -> Iterator[list[msgspec.Raw]]:
    few: list[msgspec.Raw] = []
    size = 0
    for one in attempts:
        told = asdict(one)
        del told["write"]
        encoded = msgspec.json.encode(told)
        if few and size + len(encoded) > PART_BYTES:
            yield few
            few, size = [], 0
        few.append(msgspec.Raw(encoded))
        size += len(encoded)
    yield few
