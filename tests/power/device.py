"""A disk that writes down all that it is told: `python -m tests.power.device IMAGE LOG COUNTER DIR`.

It is one file in FUSE. A loop device stands on ``DIR/disk`` and ext4 on that, so the log holds the file system's own
writes and flushes, in order. COUNTER is a file of eight bytes: how many entries the log has, raised before the loop
device gets its answer. Who reads there right after an `fdatasync` returned knows a point of the log at which it had.

One thread: a write that was answered before a flush came stands before it in the log, and is covered by it.
"""

import errno
import mmap
import os
import stat
import sys
from pathlib import Path
from typing import Any

import mfusepy

from aiorecover.testing.mock_cluster_process import die_with_parent
from tests.power.writelog import pack_flush, pack_write

__all__ = ["COUNTER_BYTES", "DISK", "main"]

DISK = "disk"
COUNTER_BYTES = 8


class LoggedDisk(mfusepy.Operations):  # type: ignore[misc]
    """The only file of its file system; the image is in memory and ends with the process."""

    use_ns = True

    def __init__(self, image: Path, log: Path, counter: Path) -> None:
        self._image = bytearray(image.read_bytes())
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with counter.open("r+b") as file:
            self._counter = memoryview(mmap.mmap(file.fileno(), COUNTER_BYTES)).cast("Q")

    def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path == f"/{DISK}":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self._image)}
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def readdir(self, path: str, fh: Any) -> list[str]:
        return [".", "..", DISK]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._image[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._image[offset : offset + len(data)] = data
        self._enter(pack_write(offset, data))
        return len(data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._enter(pack_flush())
        return 0

    def flush(self, path: str, fh: int) -> int:
        """A descriptor was closed: that makes nothing durable."""
        return 0

    def _enter(self, entry: bytes) -> None:
        os.write(self._log, entry)
        self._counter[0] += 1


def main() -> None:
    """Serve until unmounted."""
    die_with_parent(os.getppid())  # or the mount would outlive a run that was killed
    image, log, counter, directory = sys.argv[1:]
    disk = LoggedDisk(Path(image), Path(log), Path(counter))
    mfusepy.FUSE(disk, directory, foreground=True, nothreads=True, fsname="aiorecover-power")


if __name__ == "__main__":
    main()
