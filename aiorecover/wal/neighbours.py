"""The other instance directories of a ``wal_dir``, as far as one must know them who may take one over.

Nothing of them is written. Whether one is free is found out by its lock, which is taken for some microseconds: that is
true on every machine and in every container that shares the directory, which /proc/locks is not. An owner who comes
in just these microseconds takes the next number, or looks again 50 ms later if it asked by name. So only those are
tried that may hold something, and nothing is tried or read twice of one whose checkpoint is the same as before.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from aiorecover.errors import WalError, WalFormatError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, SECTOR, Destination, unpack
from aiorecover.wal.directory import CHECKPOINT, LOCK
from aiorecover.wal.instance import never_ours
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.storage import FileSystem, StorageFile, os_errors
from aiorecover.wal.view import View

_UNKNOWN = Destination()
NEWEST_LETTERS = 2  # slots of the dead ring in which owed letters are looked for: what was owed last is the newest


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One directory at one look.

    ``free``: nobody has locked it. ``waiting``: something may wait in it that is not delivered; None where that was not
    looked for (somebody has it, or ``error`` says why not). ``stamp``: another one once somebody has opened it.
    ``progress``: another one once somebody has delivered from its front, or published. ``directory_id``: its producer
    id without the nonce, the same in copies of it; None where nothing tells it. ``limit_ms``: the age at which records
    expire there; None: at none. ``boot_id``: the machine's, when it was opened last; empty: unknown.
    """

    name: str
    stamp: bytes | None = None
    free: bool = False
    waiting: bool | None = None
    destination: Destination = _UNKNOWN
    directory_id: int | None = None
    progress: tuple[int, ...] = ()
    error: str = ""
    limit_ms: int | None = None
    boot_id: str = ""


class Neighbours:
    """Those of one instance directory. Every call may block on the disk."""

    def __init__(self, file_system: FileSystem, own: Path, owed: Callable[[bytes], bool] | None = None) -> None:
        """``own``: the directory that is left out.

        ``owed``: whether a letter in the dead ring waits for us, too, by its payload; None: none does.
        """
        self._file_system = file_system
        self._wal_dir = own.parent
        self._own = own.name
        self._owed = owed

    def names(self) -> list[str]:
        """The directories beside ours.

        Raises:
            WalIOError: ``wal_dir`` cannot be listed.

        """
        with os_errors("list the directory", self._wal_dir):
            names = self._file_system.names(self._wal_dir)
        return sorted(name for name in names if name != self._own and not never_ours(name))

    def look(self, name: str, before: Neighbour | None = None) -> Neighbour:
        """What it is now. ``before``: of the last look; what its stamp proves to be the same is not read again."""
        try:
            return self._look(self._wal_dir / name, before)
        except WalError as error:
            return Neighbour(name, error=str(error))

    def _look(self, path: Path, before: Neighbour | None) -> Neighbour:
        names = self._names(path)
        if LOCK not in names or not names & {CHECKPOINT, RING}:
            return Neighbour(path.name, waiting=False)  # no directory of ours, or one that is being made
        with ExitStack() as opened:

            def file(name: str) -> StorageFile | None:
                if name not in names:
                    return None
                found = self._file_system.open_foreign(path / name)
                opened.callback(found.close)
                return found

            checkpoint = file(CHECKPOINT)
            stamp = _stamp(checkpoint, file(RING))
            before = before if before is not None and before.stamp == stamp else None
            if before is not None and (before.waiting is False or before.error):
                return before
            free = self._is_free(path)
            if before is not None and (before.waiting or not free):
                return replace(before, free=free)
            try:
                known = _known(path.name, stamp, checkpoint)
                if not free:
                    return known
                return replace(known, free=True, waiting=self._waits(path, file))
            except WalError as error:  # not read again before somebody has mended or opened it
                return Neighbour(path.name, stamp, error=str(error)) if free else Neighbour(path.name, stamp)

    def _waits(self, path: Path, file: Callable[[str], StorageFile | None]) -> bool:
        boot_id = self._file_system.boot_id()
        views = [View(path, ring, file, boot_id) for ring in (RING, RETRY)]
        waiting = [_waits(view) for view in views]  # each of them is looked at: damage is to be told
        if any(waiting):
            return True
        return self._owed is not None and _owes(View(path, DEAD, file, boot_id), self._owed)

    def _names(self, path: Path) -> set[str]:
        with os_errors("look at the directory", path):
            if self._file_system.is_symlink(path):
                message = f"the instance directory is a symbolic link: it is never adopted path={path}"
                raise WalFormatError(message)
            return set(self._file_system.names(path)) if self._file_system.is_directory(path) else set()

    def _is_free(self, path: Path) -> bool:
        """Nothing is written; and the lock is not kept by a child that is forked meanwhile, as any file of ours."""
        lock = self._file_system.open(path / LOCK)
        try:
            return lock.lock()
        finally:
            lock.close()


def _stamp(checkpoint: StorageFile | None, ring: StorageFile | None) -> bytes:
    """Another one after each opening, which writes both copies; where there is none, after each growth of the ring."""
    copies = b"" if checkpoint is None else b"".join(checkpoint.read(start, SECTOR) for start in (0, COPY_BYTES))
    return copies if any(copies) else b"%d" % (0 if ring is None else ring.size())


def _known(name: str, stamp: bytes, checkpoint: StorageFile | None) -> Neighbour:
    """What the checkpoint tells of it, also while somebody has it."""
    copies = () if checkpoint is None else [unpack(checkpoint.read(at, COPY_BYTES)) for at in (0, COPY_BYTES)]
    newest = max(copies, key=lambda copy: copy.generation, default=None)
    known = newest.checkpoint if newest is not None else None
    if known is None:
        return Neighbour(name, stamp)
    progress = (known.main.watermark, known.main.flushed, known.moved, known.retry.watermark)
    return Neighbour(
        name,
        stamp,
        destination=known.destination,
        directory_id=fmt.directory_of(known.producer_id),
        progress=progress,
        limit_ms=known.ages.limit_ms,
        boot_id=known.boot_id,
    )


def _owes(view: View, owed: Callable[[bytes], bool]) -> bool:
    live = [slot for slot in view.slots() if slot.header is not None and not slot.covered]
    return any(owed(frame.payload) for frame in view.frames(live[-NEWEST_LETTERS:]))


def _waits(view: View) -> bool:
    """Whether something may wait: told from the slots' headers and the checkpoint alone, no frame is read.

    So that a directory whose process was killed counts, even if all was delivered: opening it and closing it cleanly
    costs less than reading it twice, and is done once.
    """
    live = [slot for slot in view.slots() if slot.header is not None and not slot.covered]
    known = view.checkpoint
    if known is None or not known.closed:
        return bool(live)
    # What was stored before the last opening is over only when its slot is covered: an opening that reads nothing does
    # not raise ``flushed``, and what a killed process had stored since its last checkpoint stands behind it.
    before = any(slot.sealed or (slot.header is not None and slot.header.epoch < known.epoch) for slot in live)
    state = known.retry if view.ring == RETRY else known.main
    return before or (bool(live) and state.watermark < state.flushed)
