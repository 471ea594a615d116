"""A whole ``wal_dir`` in memory, that can die with its process and lose its power.

Give a `MemoryDisk` to a producer in place of a path, and take crash images of it at any moment, also while the
producer runs: each is a disk of its own, with nothing locked, for the producer of the next life::

    def orders_service(disk: MemoryDisk, cluster: MockCluster) -> RecoverableProducer:
        return RecoverableProducer(
            disk,
            bootstrap_servers=cluster.bootstrap_servers,
            fsync="always",
            slot_bytes=64 * 1024,  # small: a crash image copies every slot
            retry_backoff_ms=10,
        )


    async def crash(
        cluster: MockCluster, image: Callable[[MemoryDisk], MemoryDisk]
    ) -> tuple[list[bytes | None], MemoryDisk]:
        disk = MemoryDisk()
        service = orders_service(disk, cluster)
        cluster.broker_down()
        await service.start()
        accepted: list[bytes | None] = []
        for number in range(100):
            order = b"order %d" % number
            await service.publish("orders", order, partition=0)
            accepted.append(order)
        left = image(disk)  # the crash: whatever this service does from here on does not count
        await service.stop(timeout_ms=0)
        cluster.broker_up()
        return accepted, left


    async def recover(cluster: MockCluster, disk: MemoryDisk) -> list[bytes | None]:
        async with orders_service(disk, cluster) as service:
            await service.flush(timeout_ms=20_000)
        ...  # reads the topic


    def test_a_killed_service_loses_no_order() -> None:
        with MockCluster() as cluster:
            cluster.create_topic("orders")
            accepted, left = asyncio.run(crash(cluster, MemoryDisk.after_process_death))
            assert asyncio.run(recover(cluster, left)) == accepted

``examples/test_recovery.py`` is the whole file, with power cuts.

What survives what
    death of the process  everything that was stored: the pages belong to the kernel. What was not synced still is not.
    power cut             what a sync made durable; and of everything else any part, sector by sector, so that pages
                          may be torn. A file's length is between the durable and the live one. A file or directory
                          whose name no sync of its directory made durable may be gone with all that is in it. The seed
                          chooses; the same seed chooses the same on the same disk. Try many.
    between syncs         the kernel writes when it likes. `MemoryDisk.write_back` plays that, so that a power cut also
                          finds older versions of a sector than the last one.

Faults: `MemoryDisk.full` and `resize`; `fail_syncs`; `remove`; and for one file, by its name in the ``wal_dir``,
``disk.file("0/ring").fail_reads(offset, length)``, ``flip(bit)``, ``damage(offset, data)``, ``cut(size)``, and, behind
a sync that failed, ``evict(seed)``.

Limits
    Linux only (memfd and /proc). Everything is in memory: two slots for each 16 MiB by default, so give tests a small
    ``slot_bytes``. An image is of one moment for all files; where several threads store, that holds for interpreters
    with a global lock. A sync takes no time: what it covers is what was stored when it was called. Reads through
    mappings do not fail (a real disk would answer with SIGBUS). Do not use a disk on both sides of a fork.
"""

import os
from pathlib import Path

from aiorecover.testing.memory_file import SECTOR, StoredFile
from aiorecover.testing.memory_file_system import MemoryFileSystem

__all__ = ["MemoryDisk"]


class MemoryDisk(os.PathLike[str]):
    """A ``wal_dir`` in memory; see the module for what survives what.

    Attributes:
        path: its name in logs and messages; nothing is there.
        file_system: what the producer opens files through.

    """

    def __init__(self, path: str | os.PathLike[str] = "/memory/wal", *, size: int | None = None) -> None:
        """Make an empty disk; ``size`` in bytes, None is without end.

        A disk with a size has free space to be guarded: set the producer's ``wal_min_free_bytes`` below it.
        """
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would ask the real disk
        self.file_system = MemoryFileSystem(self.path, size)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"MemoryDisk({str(self.path)!r}, size={self.size})"

    # -- looking -----------------------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """Names below the ``wal_dir``, such as ``0/ring``, in order."""
        return sorted(str(path.relative_to(self.path)) for path in self.file_system.files())

    def file(self, name: str) -> StoredFile:
        """The file of a name such as ``0/ring``, to look at and to damage.

        Raises:
            FileNotFoundError: there is none.

        """
        return self.file_system.file(self.path / name)

    # -- crash images ------------------------------------------------------------------------------------------------

    def after_process_death(self) -> "MemoryDisk":
        """What the next process finds when this one is killed now."""
        return self._with(self.file_system.after_process_death())

    def after_power_cut(self, seed: int, sector: int = SECTOR) -> "MemoryDisk":
        """What the next process finds when the machine goes down now.

        Args:
            seed: chooses what came through of that which nothing had made durable.
            sector: bytes that the disk writes whole or not at all, 512 or 4096.

        """
        if sector not in (512, 4096):
            raise ValueError(f"a sector must be 512 or 4096 bytes sector={sector}")
        return self._with(self.file_system.after_power_cut(seed, sector))

    def _with(self, file_system: MemoryFileSystem) -> "MemoryDisk":
        image = MemoryDisk(self.path)
        image.file_system = file_system
        return image

    # -- what happens to it ------------------------------------------------------------------------------------------

    def write_back(self, seed: int) -> None:
        """The kernel makes some sectors and names durable, without having been asked; the seed chooses which."""
        self.file_system.write_back(seed)

    @property
    def size(self) -> int | None:
        """Bytes that the disk holds; None is without end."""
        return self.file_system.size

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return self.file_system.used()

    def resize(self, size: int | None) -> None:
        """Let the disk hold so many bytes: beyond them, no file grows (ENOSPC). None is without end."""
        self.file_system.size = size

    def full(self) -> None:
        """Let no file grow any more, until `resize`."""
        self.resize(self.used)

    def fail_syncs(self, times: int = 1) -> None:
        """Let the next syncs of each file that is there fail with EIO, ``times`` each; see `StoredFile.fail_syncs`."""
        for path in self.file_system.files():
            self.file_system.file(path).fail_syncs(times)

    def remove(self, name: str) -> None:
        """Somebody removes a file or a directory with all that is in it; who has it open keeps it."""
        self.file_system.remove(self.path / name)
