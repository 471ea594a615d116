"""The instance directories of a ``wal_dir``, seen from outside: whose they are, and whether a record waits."""

import errno
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiorecover.errors import WalError, WalIOError
from aiorecover.wal.directory import CHECKPOINT, LOCK
from aiorecover.wal.instance import never_ours
from aiorecover.wal.moved import RING
from aiorecover.wal.storage import ForeignFile, lock_identity, names_in
from aiorecover.wal.view import hardly_begun, open_view

PROC_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance directory.

    ``state``: locked, free or unknown (the system does not say). ``pid``: who holds the lock. ``waiting``: whether a
    record waits in the main ring, None where ``error`` says why that cannot be known.
    """

    path: Path
    state: str
    pid: int | None
    waiting: bool | None
    error: str | None = None


def instances(wal_dir: Path | str) -> list[Instance]:
    """The instance directories of ``wal_dir``, or the one that it is itself.

    No lock is taken or tried, so that no owner fails to get its own because we look.

    "free" is what this machine's /proc/locks says: an owner on another machine or in another container does not show.

    Raises:
        WalIOError: ``wal_dir`` cannot be listed.

    """
    wal_dir = Path(wal_dir)
    names = sorted(names_in(wal_dir), key=lambda name: (not name.isdecimal(), name.zfill(20)))
    if {CHECKPOINT, RING} & set(names) or hardly_begun(wal_dir, names):
        return [_instance(wal_dir)]
    paths = [wal_dir / name for name in names if not never_ours(name)]
    return [_instance(path) for path in paths if _is_instance(path)]


def _is_instance(path: Path) -> bool:
    try:
        return bool({LOCK, CHECKPOINT, RING} & set(names_in(path)))
    except WalIOError as error:
        return error.errno != errno.ENOTDIR  # that it cannot be read is to be seen


def _instance(path: Path) -> Instance:
    state, pid = _lock_state(path)
    try:
        with open_view(path) as view:
            waiting = next(view.frames(), None) is not None
    except WalError as error:
        return Instance(path, state, pid, None, str(error))
    return Instance(path, state, pid, waiting)


def _lock_state(path: Path) -> tuple[str, int | None]:
    try:
        locks = PROC_LOCKS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return "unknown", None
    with suppress(WalError):
        identity = lock_identity(path / LOCK)
        with ForeignFile(path / LOCK) as file:
            written = file.read(0, 20).strip()
        pid = holder(locks, identity, int(written) if written.isdigit() else None)
        return ("free", None) if pid is None else ("locked", pid)
    return "unknown", None


def holder(locks: str, identity: str, written: int | None) -> int | None:
    """Who holds the lock of a file according to the text of /proc/locks, or None.

    ``identity``: device and inode as the kernel writes them. On some file systems the device differs from what a file
    shows; there the inode must do, and ``written``, the process id inside the lock file.
    """
    inode = identity.rpartition(":")[2]
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[3] != "WRITE" or not fields[4].isdecimal():  # noqa: PLR2004 - who waits: "->"
            continue
        pid = int(fields[4])
        if fields[5] == identity or (fields[5].rpartition(":")[2] == inode and pid == written):
            return pid
    return None
