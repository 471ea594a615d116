"""Records in a real ring, batches of them, and what becomes of one that Kafka has taken."""

from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import record as rec
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.reports import Reports
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.slot import Slot

__all__ = ["SLOT", "Stored", "acknowledge", "batch_of", "metadata", "open_at", "settle", "store"]

SLOT = 16 * 1024


class Stored(NamedTuple):
    """Where a record stands."""

    sequence: int
    place: int
    slot: Slot


def open_at(path: Path) -> Directory:
    return open_directory(Options(path, slot_bytes=SLOT, max_bytes=64 * SLOT, min_free_bytes=0))


def store(directory: Directory, *contexts: Any, size: int = 10) -> list[Stored]:
    """Publish one record for each context."""
    stored = []
    for number, context in enumerate(contexts):
        record = ("t", b"k", b"x" * size, None, 1000 + number, None, context, None)
        place, sequence = directory.ring.append(rec.encode(record), record)
        stored.append(Stored(sequence, place, directory.ring.live[-1]))
    return stored


def batch_of(*stored: Stored) -> LaneBatch:
    batch = LaneBatch(1 << 16, 0)
    for one in stored:
        assert batch.add(batch.count, 1, None, b"v", []) is not None
        batch.count += 1
        if one.slot is batch.slot:
            batch.places.append(one.place)
        else:
            batch.start_group(one.slot).append(one.place)
    return batch


def metadata(offset: int, partition: int = 2) -> RecordMetadata:
    return RecordMetadata("t", partition, TopicPartition("t", partition), offset, -1, 0, None)


def settle(directory: Directory, batch: LaneBatch) -> None:
    for slot, places in batch.frames:
        directory.ring.settle(slot, places)


async def acknowledge(directory: Directory, reports: Reports, batch: LaneBatch, offset: int) -> None:
    """What the sender does with an acknowledged batch."""
    await reports.announce(batch, "t", metadata(offset))
    waited = reports.collect(batch, "t", metadata(offset))
    settle(directory, batch)
    reports.tell(waited)
