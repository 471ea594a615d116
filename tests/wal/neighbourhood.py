"""A `Disk` as a neighbour has it before him: one of several directories in a ``wal_dir``, and its lock.

What adopts it is the product's own: `Neighbours` looks at it, and `open_directory` locks, recovers and opens it. Only
its files are those of the disk.
"""

from pathlib import Path

from aiorecover.errors import WalLockedError
from aiorecover.testing.memory_file import StoredFile
from aiorecover.testing.memory_file_system import MemoryFileSystem
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import CHECKPOINT, LANES, LOCK, Directory, Options
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.neighbours import Neighbour, Neighbours
from aiorecover.wal.opening import open_directory
from aiorecover.wal.storage import StorageFile
from tests.wal.ledger import ViolationError, demand
from tests.wal.rig import RESERVED, Disk

WAL_DIR = Path("/memory/wal")
LEFT = "left"


class Neighbourhood(MemoryFileSystem):
    """The ``wal_dir``; nobody has what is left there."""

    def __init__(self, disk: Disk) -> None:
        self._of_disk = {
            WAL_DIR / LEFT / name: file
            for name, file in {
                RING: disk.ring,
                RETRY: disk.retry,
                DEAD: disk.dead,
                CHECKPOINT: disk.checkpoint,
                LANES: disk.lanes,
            }.items()
        }
        names: dict[Path, StoredFile | None] = {WAL_DIR: None, WAL_DIR / LEFT: None}
        names[WAL_DIR / LEFT / LOCK] = StoredFile(LOCK)
        names.update({path: file.stored for path, file in self._of_disk.items()})
        super().__init__(WAL_DIR, live=names, durable=names.copy(), boots=disk.boots)
        self._disk = disk
        self._neighbours = Neighbours(self, WAL_DIR / "0")

    def open(self, path: Path) -> StorageFile:
        """Those of the disk, with what befalls them."""
        return self._of_disk[path] if path in self._of_disk else super().open(path)

    def look(self) -> Neighbour:
        """As whoever looks after orphans sees it."""
        demand(self._neighbours.names() == [LEFT], "what is left is found", self._neighbours.names())
        seen = self._neighbours.look(LEFT)
        demand(not seen.error, "what is left can be looked at", seen.error)
        return seen

    def adopt(self, name: str, *, waits: bool) -> Directory:
        """Take it; nobody else can then, and all see that. ``waits``: something in it is not delivered."""
        seen = self.look()
        demand(seen.free, "what nobody has is free")
        demand(seen.waiting or not waits, "whoever adopts sees that something waits")
        directory = self._open(name)
        directory_id = fmt.directory_of(directory.checkpoint.producer_id)
        demand(seen.directory_id == directory_id, "who adopts keeps the directory's part of the producer id")
        demand(not self.look().free, "who adopts has the lock")
        try:
            self._open(name)
        except WalLockedError:
            return directory
        raise ViolationError("one directory is adopted by two")

    def _open(self, name: str) -> Directory:
        size = self._disk.slot_bytes
        limit = (self._disk.max_slots + RESERVED) * size
        return open_directory(Options(WAL_DIR, size, limit, 0, instance=LEFT, name=name, file_system=self))
