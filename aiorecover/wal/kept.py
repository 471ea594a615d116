"""Damaged bytes, copied out of a ring before their slot is recycled: for people and their tools.

damaged/             0700, in the instance directory
RING-SLOT-OFFSET   the ring's name, the slot's ordinal, the offset within the slot; at most a slot long

Where a page cannot be read, zeros stand in its place: what is beside it may be whole.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from aiorecover.errors import WalError, WalIOError
from aiorecover.wal.losses import MOST_PINNED, Stretch
from aiorecover.wal.storage import FileSystem, StorageFile, os_errors
from aiorecover.wal.window import PAGE

log = logging.getLogger("aiorecover.wal")

DAMAGED = "damaged"
MOST_FILES = MOST_PINNED  # in a directory: enough to see what happened, and a dying disk cannot fill another one
BAD_PAGES = 8  # in one stretch, before the rest of it is left out: each may take the disk half a minute, and us with it


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
    data, unread = _read(ring, slot.file_offset + stretch.start, stretch.stop - stretch.start)
    if unread:
        message = "of damaged bytes that are kept some cannot be read, they are zeros there: check the disk"
        log.warning("%s path=%s bytes=%d unread=%d", message, directory / name, len(data), unread)
    file = file_system.open(directory / name)
    try:
        file.write(data, 0)
        file.truncate(len(data))  # of a longer stretch that was kept from here before, the rest is of another damage
        file.sync()
    finally:
        file.close()
    file_system.sync_directory(directory)


def _read(ring: StorageFile, offset: int, length: int) -> tuple[bytes, int]:
    """What stands there, and how many bytes of it could not be read.

    Raises:
        WalIOError: nothing of it can be read.

    """
    try:
        return ring.read(offset, length), 0
    except WalIOError as error:
        data, unread = _read_pages(ring, offset, length)
        if unread == len(data):
            raise error from None
        return data, unread


def _read_pages(ring: StorageFile, offset: int, length: int) -> tuple[bytes, int]:
    data, unread, bad = bytearray(), 0, 0
    while len(data) < length:
        at = offset + len(data)
        page = bytes(min(PAGE - at % PAGE, length - len(data)))
        try:
            if bad < BAD_PAGES:
                page = ring.read(at, len(page))
            else:
                unread += len(page)
        except WalIOError:
            bad += 1
            unread += len(page)
        if not page:  # the file was cut
            break
        data += page
    return bytes(data), unread
