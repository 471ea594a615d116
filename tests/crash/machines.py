"""Machines that lose their power: a `wal_dir`, and what the next boot finds of it."""

import os
from typing import Any, Final, Protocol

from aiorecover.testing import MemoryDisk
from aiorecover.testing.memory_file import MemoryFile
from aiorecover.wal.view import View

__all__ = ["Machine", "MemoryMachine", "ids_in"]

_SECTORS: Final = (512, 4096)


class Machine(Protocol):
    """One after the other: it works, `strike` takes the power, and `restart` brings it back."""

    @property
    def wal_dir(self) -> str | os.PathLike[str]:
        """Where a producer works until the power goes."""

    @property
    def file_class(self) -> type[Any]:
        """The class of its files, whose ``sync`` returns when all that was stored before is durable."""

    def strike(self, seed: int) -> None:
        """The power goes now, in whichever thread; the seed decides what came through of what was not flushed.

        What is written from here on until `restart` has not happened.
        """

    def restart(self) -> None:
        """Another boot, and what that finds."""

    def write_back(self, seed: int) -> None:
        """The kernel writes some of what was stored, without having been asked."""

    def ids(self) -> set[str]:
        """Of all records that stand in the ring, settled ones, too."""


class MemoryMachine:
    """One with a `MemoryDisk`."""

    file_class = MemoryFile

    def __init__(self) -> None:
        self.wal_dir = MemoryDisk()
        self._left = self.wal_dir

    def strike(self, seed: int) -> None:
        """The power goes."""
        self._left = self.wal_dir.after_power_cut(seed, _SECTORS[seed % len(_SECTORS)])

    def restart(self) -> None:
        """It comes back."""
        self.wal_dir = self._left

    def write_back(self, seed: int) -> None:
        """Some sectors are durable."""
        self.wal_dir.write_back(seed)

    def ids(self) -> set[str]:
        """What stands in the ring."""
        return ids_in(self.wal_dir.file_system, self.wal_dir.path / "0")


def ids_in(files: Any, directory: Any) -> set[str]:
    """Of all records in the ring of a directory, if it is there; ``files``: the file system that it is in."""
    if not files.is_directory(directory):
        return set()
    with View(directory, "ring", lambda name: files.open_foreign(directory / name), files.boot_id()) as view:
        return {f"{one.producer_id}/{one.epoch}/{one.sequence}" for one in view.frames(settled=True)}
