"""What the next start finds in a directory: opened with the library, read to the end, closed.

The only module here that looks below the public interface: a start through `RecoverableProducer` would need a broker
to show what it has found.
"""

from dataclasses import dataclass, field
from pathlib import Path

from aiorecover import record as rec
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Undecodable
from aiorecover.wal.stream import Stream
from tests.power.records import Name, name_of

__all__ = ["Found", "Position", "recover"]

Position = tuple[int, int]
"""Epoch and sequence."""

_LIMIT = 1000


@dataclass
class Found:
    """One opening."""

    epoch: int
    records: list[tuple[Position, Name | None]] = field(default_factory=list)
    """In the order of reading; None where the bytes are not what anybody published."""
    missing: list[tuple[int, int, int]] = field(default_factory=list)
    """Reported as not there: epoch, first and last sequence."""
    damaged_slots: list[int] = field(default_factory=list)
    moved: int = 0
    """Of the records, those that stand in the retry ring."""


def recover(wal_dir: Path, slot_bytes: int) -> Found:
    """Open, read everything that is not settled, close."""
    directory = open_directory(Options(wal_dir, slot_bytes, max_bytes=1 << 40, min_free_bytes=0))
    try:
        return _read(directory)
    finally:
        directory.close()


def _read(directory: Directory) -> Found:
    ring = directory.ring
    found = Found(ring.epoch)
    reader = Stream(directory, rec.decode)  # what was moved, too
    while (run := reader.look(_LIMIT)) is not None or reader.moved:
        found.moved += len(run) if run is not None and run.slot.ring is directory.retry else 0
        for number, record in enumerate(run.records if run is not None else ()):
            value = None if isinstance(record, Undecodable) else record[rec.VALUE]
            found.records.append((fmt.parts(run.position(number)), name_of(value)))  # type: ignore[union-attr]
    reader.close()
    found.missing = [(damage.epoch, damage.first, damage.last) for damage in ring.damage]
    found.damaged_slots = list(ring.damaged_slots)
    return found
