"""An instance directory on the file system: made, checked and locked.

A process takes the first numbered directory whose lock is free, and with it a predecessor's backlog; ``instance`` asks
for one by name.
"""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from aiorecover.errors import WalFormatError, WalFullError, WalIOError, WalLockedError
from aiorecover.wal.directory import CHECKPOINT, FILES, LOCK, Options
from aiorecover.wal.moved import RING
from aiorecover.wal.storage import FileSystem, StorageFile, os_errors

MAX_INSTANCES = 1024  # workers of one wal_dir; more are surely a mistake, and each look-up is a system call
LOCK_TRIES = 10  # times that a lock is another file than was opened: somebody removes it, and not for ever
LOCK_WAIT = 0.05  # seconds between two looks at the lock of a directory that was asked for by name
LOST_FOUND = "lost+found"  # wal_dir may be a file system of its own
HIDDEN = "."  # .gitkeep, .snapshot, .nfs…: no instance has such a name, and nothing is ever done to one


def make_wal_dir(file_system: FileSystem, wal_dir: Path) -> list[Path]:
    """Make the directory and its parents; the parents whose entries must be flushed."""
    with os_errors("use the directory", wal_dir):
        if file_system.is_symlink(wal_dir):
            message = f"wal_dir is a symbolic link: name the directory itself path={wal_dir}"
            raise WalFormatError(message)
        if file_system.exists(wal_dir) and not file_system.is_directory(wal_dir):
            message = f"wal_dir is not a directory: choose another path path={wal_dir}"
            raise WalFormatError(message)
        missing = [parent.parent for parent in wal_dir.parents if not file_system.exists(parent)]
        file_system.make_directory(wal_dir, parents=True)
        _check_owner(file_system, wal_dir)
        _check_content(file_system, wal_dir)
    return [*missing, wal_dir.parent]


def _check_owner(file_system: FileSystem, path: Path) -> None:
    owner = file_system.owner(path)
    if owner != os.geteuid():
        message = "wal_dir belongs to another user: records would be theirs to read; choose your own"
        raise WalFormatError(f"{message} path={path} uid={owner}")


def _check_content(file_system: FileSystem, wal_dir: Path) -> None:
    """Refuse a directory of another program: we would lock, grow and recycle among its files."""
    names = file_system.names(wal_dir)
    if LOCK in names and {CHECKPOINT, RING} & set(names):
        message = "wal_dir is an instance directory in a wal_dir: give the directory above it, and to use just this one"
        raise WalFormatError(f"{message} its name as instance wal_dir={wal_dir.parent} instance={wal_dir.name!r}")
    for name in names:
        entry = wal_dir / name
        if never_ours(name):
            continue
        foreign = [entry]
        if file_system.is_directory(entry):
            names = file_system.names(entry)
            foreign = [entry / one for one in names if one not in FILES and not one.startswith(HIDDEN)]
        if foreign:
            message = (
                "wal_dir holds a file of another program: choose another wal_dir, or if it is ours move the file away"
            )
            raise WalFormatError(f"{message} path={foreign[0]}")


def never_ours(name: str) -> bool:
    """What stands in a ``wal_dir`` under this name is no instance directory, and does not disturb those that are."""
    return name == LOST_FOUND or name.startswith(HIDDEN)


def lock_instance(options: Options) -> tuple[Path, StorageFile]:
    """The instance directory of this process, and its locked file.

    Raises:
        WalLockedError: the directory asked for by name is held by another process, or all numbers are.
        WalFormatError: the directory is a symbolic link.
        WalIOError: the operating system refused.

    """
    if options.instance is not None:
        return _lock_named(options.file_system, options.wal_dir / options.instance, options.lock_timeout)
    for number in range(MAX_INSTANCES):
        path = options.wal_dir / str(number)
        lock = _try_lock(options.file_system, path)
        if lock is not None:
            return path, lock
    message = f"every instance directory is in use: use another wal_dir path={options.wal_dir}"
    raise WalLockedError(message)


def _lock_named(file_system: FileSystem, path: Path, timeout: float) -> tuple[Path, StorageFile]:
    until = time.monotonic() + timeout
    while True:
        lock = _try_lock(file_system, path)
        if lock is not None:
            return path, lock
        if time.monotonic() >= until:
            raise _held(file_system, path)
        time.sleep(LOCK_WAIT)


def _held(file_system: FileSystem, path: Path) -> WalLockedError:
    """Not by the process id alone: in two containers both may be 1."""
    owner = _owner_of(file_system, path)
    message = "another process holds the instance directory: stop it, or choose another instance"
    if owner == str(os.getpid()) and file_system.has_open(path / LOCK):
        message = "this very process holds the instance directory: await stop() of the earlier producer"
        message += ", start the process anew, or choose another instance"
    return WalLockedError(f"{message} path={path} pid={owner}")


def _try_lock(file_system: FileSystem, path: Path) -> StorageFile | None:
    """The locked ``lock`` file of an instance directory, or None when another process has it."""
    for _ in range(LOCK_TRIES):
        lock = _opened_lock(file_system, path)
        if not _is_locked(lock):
            return None
        if _same_file(file_system, lock):
            _name_owner(lock)
            return lock
        lock.close()  # removed and made anew between opening and locking
    message = "the lock is another file whenever it was opened: use a file system on which a file keeps its inode"
    raise WalIOError(errno.ESTALE, message, str(path / LOCK))


def _opened_lock(file_system: FileSystem, path: Path) -> StorageFile:
    with os_errors("use the directory", path):
        if file_system.is_symlink(path):
            message = f"the instance directory is a symbolic link: name the directory itself path={path}"
            raise WalFormatError(message)
        file_system.make_directory(path)
    return file_system.open(path / LOCK)


def _is_locked(lock: StorageFile) -> bool:
    """Whether it is ours now; else it is closed."""
    locked = False
    try:
        locked = lock.lock()
    finally:
        if not locked:
            lock.close()
    return locked


def _name_owner(lock: StorageFile) -> None:
    try:
        with suppress(WalFullError):  # after a power cut it may be empty; a full disk must not keep records in there
            lock.write(f"{os.getpid():<20}\n".encode(), 0)
    except BaseException:
        lock.close()
        raise


def _same_file(file_system: FileSystem, lock: StorageFile) -> bool:
    with suppress(OSError):
        return file_system.identity(lock.path) == lock.identity()
    return False


def _owner_of(file_system: FileSystem, path: Path) -> str:
    with suppress(OSError):
        return file_system.read(path / LOCK).decode("ascii", errors="replace").strip() or "unknown"
    return "unknown"
