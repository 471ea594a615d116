"""A machine with ext4 on a disk that logs every write and flush (`tests.power`): its power goes at a point of that log.

ext4 and the library write into real files. What the disk had been told by the moment of the power cut, and what came
through of that which no flush had covered, is the disk of the next boot; ext4 brings its journal back first.
"""

import ctypes
import mmap
import os
import random
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiorecover.wal.storage import FileSystem, StorageFile
from tests.crash.machines import ids_in
from tests.power.boot import another_boot
from tests.power.device import COUNTER_BYTES
from tests.power.lives import Geometry, logged_file, make_disk
from tests.power.mounts import loop_device, mounted
from tests.power.writelog import apply, survivors, unpack

__all__ = ["LoggedMachine"]

_DISK_BYTES: Final = 32 << 20
_SYNC_FILE_RANGE_WRITE: Final = 2
_PAGE: Final = 4096

_libc = ctypes.CDLL(None, use_errno=True)


class LoggedMachine:
    """One machine; the process has to be in a mount namespace of its own."""

    file_class = StorageFile

    def __init__(self, work: Path, geometry: Geometry) -> None:
        """``work``: an empty directory, best in memory."""
        self._image, self._log, self._counter = work / "image", work / "log", work / "counter"
        self._work, self._geometry = work, geometry
        self._mountpoint = work / "mounted"
        self._mountpoint.mkdir()
        self.wal_dir = self._mountpoint / "wal"
        self.writes = 0
        """That the disk was told, until the power went, in all boots."""
        self._power = ExitStack()
        self._struck = (0, 0)  # a point of the log, and a seed
        make_disk(self._image, geometry, _DISK_BYTES)

    def __enter__(self) -> Self:
        self._boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._power.__exit__(kind, error, trace)

    def _boot(self) -> None:
        self._log.unlink(missing_ok=True)
        self._counter.write_bytes(bytes(COUNTER_BYTES))
        another_boot(self._work / "boot_id")
        with ExitStack() as power:
            file = power.enter_context(logged_file(self._work, self._image, self._log, self._counter))
            device = power.enter_context(loop_device(file))
            power.enter_context(mounted(device, self._mountpoint, self._geometry.mount_options))
            with self._counter.open("rb") as counter:
                self._told = memoryview(mmap.mmap(counter.fileno(), COUNTER_BYTES, prot=mmap.PROT_READ)).cast("Q")
            self._power = power.pop_all()

    def strike(self, seed: int) -> None:
        """The power goes."""
        self._struck = self._told[0], seed

    def restart(self) -> None:
        """It comes back."""
        self._power.close()
        point, seed = self._struck
        log = unpack(self._log.read_bytes())
        image = bytearray(self._image.read_bytes())
        apply(image, log.durable(0, point))
        apply(image, survivors(log.pending(point), random.Random(seed)))
        self._image.write_bytes(image)
        self.writes += point
        self._boot()

    def write_back(self, seed: int) -> None:
        """Some pages of the ring go to the disk, which may keep them or not."""
        rng = random.Random(seed)
        try:
            descriptor = os.open(self.wal_dir / "0" / "ring", os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            pages = os.fstat(descriptor).st_size // _PAGE
            first, count = rng.randrange(pages + 1), rng.randrange(pages + 1)
            place = ctypes.c_int64(first * _PAGE), ctypes.c_int64(count * _PAGE)
            if _libc.sync_file_range(descriptor, *place, _SYNC_FILE_RANGE_WRITE) != 0:
                raise OSError(ctypes.get_errno(), "sync_file_range")
        finally:
            os.close(descriptor)

    def ids(self) -> set[str]:
        """What stands in the ring."""
        return ids_in(FileSystem(), self.wal_dir / "0")
