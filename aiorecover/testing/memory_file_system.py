"""The names of a `MemoryDisk`: those that every process sees, and those that a power cut leaves."""

import errno
import os
import random
import threading
from pathlib import Path

from aiorecover.testing.memory_file import SECTOR, MemoryFile, StoredFile, live_images
from aiorecover.wal.storage import FileSystem, StorageFile, os_errors

SHARE_OF_NAMES = 0.5  # of the names that were not synced, how many a power cut lets through
ENDLESS = 1 << 62  # free bytes of a disk without a size: more than any threshold asks for

_Names = dict[Path, StoredFile | None]
"""None is a directory."""


class MemoryFileSystem(FileSystem):
    """Directories and files at and below ``wal_dir``; the directories above it have always been there."""

    def __init__(
        self,
        wal_dir: Path,
        size: int | None = None,
        live: _Names | None = None,
        durable: _Names | None = None,
        boots: int = 1,
    ) -> None:
        """``size``: bytes of all files, None is without end. Without names, ``wal_dir`` itself is not there yet."""
        self.size = size
        self._boots = boots
        self._wal_dir = wal_dir
        self._lock = threading.RLock()
        self._live = live or {}
        self._durable = durable or {}
        for file in self._all_files():
            file.belong_to(self._lock, self._reserve)

    # -- what an opening asks for ------------------------------------------------------------------------------------

    def is_symlink(self, path: Path) -> bool:  # noqa: ARG002
        """There are no links."""
        return False

    def exists(self, path: Path) -> bool:
        """Whether there is anything at ``path``."""
        return path in self._live or path in self._wal_dir.parents

    def is_directory(self, path: Path) -> bool:
        """Whether ``path`` is a directory."""
        return self.exists(path) and self._live.get(path) is None

    def make_directory(self, path: Path, *, parents: bool = False) -> None:
        """Make a directory; one that is there stays as it is."""
        with self._lock:
            if self.exists(path):
                if not self.is_directory(path):
                    raise _error(errno.EEXIST, path)
                return
            if parents and not self.exists(path.parent):
                self.make_directory(path.parent, parents=True)
            self._check_directory(path.parent)
            self._live[path] = None

    def names(self, path: Path) -> list[str]:
        """What stands in a directory."""
        with self._lock:
            self._check_directory(path)
            return [name.name for name in self._live if name.parent == path]

    def owner(self, path: Path) -> int:  # noqa: ARG002
        """Everything is ours."""
        return os.geteuid()

    def identity(self, path: Path) -> tuple[int, int]:
        """Device and inode of the file at ``path`` now."""
        return self.file(path).identity()

    def has_open(self, path: Path) -> bool:
        """Whoever is played on this disk is this very process."""
        return self.exists(path)

    def read(self, path: Path) -> bytes:
        """All of a file."""
        return self.file(path).live()

    def open(self, path: Path) -> StorageFile:
        """Open a file, made when it is not there."""
        with self._lock, os_errors("open the file", path):
            self._check_directory(path.parent)
            if self.is_directory(path):
                raise _error(errno.EISDIR, path)
            if path not in self._live:
                self._live[path] = made = StoredFile(path.name)
                made.belong_to(self._lock, self._reserve)
            return MemoryFile(self.file(path), path)

    def open_foreign(self, path: Path) -> StorageFile:
        """Open a file that is there."""
        with self._lock, os_errors("open the file", path):
            return MemoryFile(self.file(path), path)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        with self._lock, os_errors("flush the directory to the disk", path, full=frozenset()):
            self._check_directory(path)
            kept = {name: node for name, node in self._durable.items() if name.parent != path}
            self._durable = kept | {name: node for name, node in self._live.items() if name.parent == path}

    def boot_id(self) -> str:
        """Another one after each power cut."""
        return f"boot {self._boots}"

    def free_bytes(self, path: Path) -> int:  # noqa: ARG002
        """What the disk still holds."""
        return ENDLESS if self.size is None else max(0, self.size - self.used())

    # -- what a test asks for ----------------------------------------------------------------------------------------

    def files(self) -> list[Path]:
        """The paths of all files."""
        with self._lock:
            return [path for path, node in self._live.items() if node is not None]

    def file(self, path: Path) -> StoredFile:
        """The file at ``path``; raises FileNotFoundError, or IsADirectoryError."""
        found = self._live.get(path)
        if found is None:
            raise _error(errno.EISDIR if self.exists(path) else errno.ENOENT, path)
        return found

    def used(self) -> int:
        """Bytes of all files, without what was given back of them."""
        with self._lock:
            return sum(node.disk_bytes() for node in self._live.values() if node is not None)

    def remove(self, path: Path) -> None:
        """Remove a name and all below it; durably so once the directory it stood in is synced."""
        with self._lock:
            if path not in self._live:
                raise _error(errno.ENOENT, path)
            self._live = {name: node for name, node in self._live.items() if not name.is_relative_to(path)}

    def write_back(self, seed: int) -> None:
        """Make some sectors and names durable."""
        with self._lock:
            self._durable = self._surviving_names(seed)
            for path in self.files():
                self.file(path).write_back(f"{seed} {path}")

    def after_process_death(self) -> "MemoryFileSystem":
        """An independent copy of everything."""
        with self._lock:
            files = self._all_files()
            images = zip(files, live_images(files), strict=True)
            copies = {file: file.after_process_death(image) for file, image in images}
            live = {path: file and copies[file] for path, file in self._live.items()}
            durable = {path: file and copies[file] for path, file in self._durable.items()}
        return MemoryFileSystem(self._wal_dir, self.size, live, durable, self._boots)

    def after_power_cut(self, seed: int, sector: int = SECTOR) -> "MemoryFileSystem":
        """An independent copy of what came through; there, everything is durable."""
        with self._lock:
            files = self._all_files()
            images = dict(zip(files, live_images(files), strict=True))
            names = {
                path: file and file.after_power_cut(images[file], self._chance(seed, path), sector)
                for path, file in self._surviving_names(seed).items()
            }
        return MemoryFileSystem(self._wal_dir, self.size, names, names.copy(), self._boots + 1)

    def _all_files(self) -> list[StoredFile]:
        """Those that still have a name, be it only on the disk."""
        names = [*self._live.values(), *self._durable.values()]
        return list({file: None for file in names if file is not None})

    def _surviving_names(self, seed: int) -> _Names:
        """The durable names, and of what changed since then, anything."""
        names: _Names = {}
        for path in sorted({*self._live, *self._durable}):  # a directory comes before what is in it
            chosen = self._live if self._chance(seed, f"name of {path}").random() < SHARE_OF_NAMES else self._durable
            if path in chosen and (path == self._wal_dir or path.parent in names):
                names[path] = chosen[path]
        return names

    def _chance(self, seed: int, what: object) -> random.Random:
        """One for each thing, so that one more file changes nothing for the others."""
        return random.Random(f"{seed} {what}")

    def _reserve(self, count: int) -> None:
        if count > self.free_bytes(self._wal_dir):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_directory(self, path: Path) -> None:
        if not self.exists(path):
            raise _error(errno.ENOENT, path)
        if not self.is_directory(path):
            raise _error(errno.ENOTDIR, path)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
