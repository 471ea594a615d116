"""An open directory with some records in it, for tests that look at it from outside."""

from collections.abc import Iterator
from pathlib import Path

from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from tests.wal.rig import SLOT, take


def numbered(count: int, size: int = 100) -> Iterator[bytes]:
    return (b"%d/" % number + bytes(size + number % 5) for number in range(count))


def stored(path: Path, count: int = 300, *, settle: int = 0, slot_bytes: int = SLOT) -> Directory:
    """An open directory in ``path / "0"`` with some records, the first of them settled."""
    directory = open_directory(Options(path, slot_bytes, 64 * slot_bytes, 0, instance="0"))
    for payload in numbered(count):
        directory.ring.append(payload, payload)
    reader = Reader(directory.ring, bytes)
    for slot, place, _, _ in take(reader, settle) if settle else []:
        directory.ring.settle(slot, [place])
    reader.close()
    return directory
