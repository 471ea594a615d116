"""Damaged bytes, copied out of a ring before their slot is recycled: for people and their tools.

damaged/             0700, in the instance directory
RING-SLOT-OFFSET   the ring's name, the slot's ordinal, the offset within the slot; at most a slot long, and with holes
                   where a page could not be read
"""

import logging
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from aiorecover.errors import WalError, WalIOError
from aiorecover.wal.losses import MOST_PINNED, Stretch
from aiorecover.wal.storage import PAGE, FileSystem, StorageFile, os_errors

log = logging.getLogger("aiorecover.wal")

DAMAGED = "damaged"
MOST_FILES = MOST_PINNED  # in a directory: enough to see what happened, and a dying disk cannot fill another one
BAD_MOST = 8  # pages of a stretch: each may take the disk half a minute, and the next checkpoint waits for it


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
    pieces = _pieces(ring, slot.file_offset + stretch.start, slot.file_offset + stretch.stop)
    file = file_system.open(directory / name)
    try:
        for offset, data in pieces:
            file.write(data, offset)
        file.sync()
    finally:
        file.close()
    file_system.sync_directory(directory)


def _pieces(ring: StorageFile, start: int, stop: int) -> list[tuple[int, bytes]]:
    """What can be read from ``start`` to ``stop``, and how far behind ``start`` it stands: all of it, or some pages.

    Raises:
        WalIOError: nothing.

    """
    try:
        return [(0, ring.read(start, stop - start))]
    except WalIOError as error:
        failure = error
    pieces: list[tuple[int, bytes]] = []
    bad = 0
    for begin, end in pairwise([start, *range(start - start % PAGE + PAGE, stop, PAGE), stop]):
        try:
            pieces.append((begin - start, ring.read(begin, end - begin)))
        except WalIOError:
            bad += 1
            if bad == BAD_MOST:
                break
    if not pieces:
        raise failure
    log.warning("some damaged bytes cannot be read, and are not kept: check the disk path=%s pages=%d", ring.path, bad)
    return pieces
