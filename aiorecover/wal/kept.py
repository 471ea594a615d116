"""Damaged bytes, copied out of a ring before their slot is recycled: for people and their tools.

damaged/             0700, in the instance directory
RING-SLOT-OFFSET   the ring's name, the slot's ordinal, the offset within the slot; at most a slot long
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from aiorecover.errors import WalError
from aiorecover.wal.losses import MOST_PINNED, Stretch
from aiorecover.wal.storage import FileSystem, StorageFile, os_errors

log = logging.getLogger("aiorecover.wal")

DAMAGED = "damaged"
MOST_FILES = MOST_PINNED  # in a directory: enough to see what happened, and a dying disk cannot fill another one


def keep(file_system: FileSystem, path: Path, ring: StorageFile, stretches: Iterable[Stretch]) -> None:
    """Copy ``stretches`` of ``ring`` into the instance directory ``path``, durably (the keeper's thread).

    What cannot be kept is a warning: its loss was reported, and delivery must go on.
    """
    for stretch in stretches:
        try:
            _keep(file_system, path, ring, stretch)
        except WalError as error:
            log.warning("damaged bytes cannot be kept: check the disk path=%s error=%s", path, error)


def _keep(file_system: FileSystem, path: Path, ring: StorageFile, stretch: Stretch) -> None:
    directory, slot = path / DAMAGED, stretch.slot
    name = f"{ring.path.name}-{slot.header.ordinal}-{stretch.start}"
    with os_errors("keep damaged bytes", directory):
        if file_system.is_symlink(directory):
            log.warning("damaged bytes cannot be kept: remove the symbolic link path=%s", directory)
            return
        if not file_system.exists(directory):
            file_system.make_directory(directory)
            file_system.sync_directory(path)
        names = file_system.names(directory)
    if name not in names and len(names) >= MOST_FILES:
        log.warning("damaged bytes are not kept: there is no room for more files path=%s", directory)
        return
    data = ring.read(slot.file_offset + stretch.start, stretch.stop - stretch.start)
    file = file_system.open(directory / name)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    file_system.sync_directory(directory)
