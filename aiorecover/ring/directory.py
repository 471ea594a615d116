"""One instance directory: found, made private, locked, and let go.

    wal_dir/        made with mode 0700; may belong to root or another user where our group may write there
      0/ 1/ NAME/   0700 and ours; one process each
        lock        flock; what `mark_flush` stored, 10 digits; the owner's process id; what `note` stored
        ring        flock; the segments
        checkpoint  see `aiorecover.ring.checkpoint`

A process owns the directory while it has both locks: a program that removes one file makes no second owner. Everything
here blocks and runs in a thread. On a file system without permissions (CIFS, FAT) the mount decides who may read.
"""

import errno
import logging
import os
import stat
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from aiorecover.errors import ClosedError, WalDestinationError, WalError, WalFormatError, WalIOError, WalLockedError
from aiorecover.ring.checkpoint import Checkpoint, dump, load
from aiorecover.ring.files import Files

log = logging.getLogger("aiorecover")

LOCK, RING, CHECKPOINT = "lock", "ring", "checkpoint"
OURS = frozenset({LOCK, RING, CHECKPOINT})
FIRST_CORE = frozenset({"retry", "dead", "lanes"})  # files that aiorecover 0.1 had beside these
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
WORD_BYTES = 10  # of a decimal number of seconds
NOTE_AT = 32  # in lock, a line of JSON
LOCKS = Path("/proc/locks")
MOST_INSTANCES = 1024  # more workers in one wal_dir are a mistake, and each one tried costs system calls
TRIES = 10  # times that a file is found replaced once it is locked: no program removes it for ever
PAUSE_S = 0.05  # between two attempts to take a directory by name

_open: weakref.WeakSet["Directory"] = weakref.WeakSet()
_warned: set[Path] = set()


class Directory:
    """A taken instance directory.

    Attributes:
        path: of the directory, absolute.
        instance: its name in ``wal_dir``.
        lock: descriptor of the file `lock`; -1 once closed.
        ring: descriptor of the file `ring`; -1 once closed.
        checkpoint: as it was found, then as it was saved last; None: there is none.
        flush_pending: what `mark_flush` stored last, by an owner before; 0: no flush was under way. It means something
            in the same boot only.
        boot_id: of the present boot; empty where the system does not say.
        owner_pid: the process that took it. In a forked child it is closed.

    """

    def __init__(self, path: Path, files: Files, lock: int, ring: int) -> None:
        self.path = path
        self.instance = path.name
        self.files = files
        self.lock = lock
        self.ring = ring
        self.owner_pid = os.getpid()
        self.boot_id = files.boot_id()
        word = files.read(lock, 0, WORD_BYTES)
        self.flush_pending = int(word) if len(word) == WORD_BYTES and word.isdigit() else 0
        found = files.read_file(path / CHECKPOINT)
        self.checkpoint = None if found is None else load(found, path / CHECKPOINT)
        files.write(lock, 0, b"%010d %-20d\n\n" % (self.flush_pending, self.owner_pid))
        _open.add(self)

    @classmethod
    def take(
        cls, wal_dir: Path | str, *, files: Files | None = None, instance: str | None = None, wait_s: float = 0.0
    ) -> "Directory":
        """Take the first free numbered directory, existing ones first, or the one called ``instance``.

        ``instance`` is one plain name, and is waited for as long as ``wait_s`` says. Made where missing.

        Raises:
            WalLockedError: another process has the directory asked for by name, or all numbers are taken.
            WalFormatError: a path is no directory of ours, or another version of aiorecover made it.
            WalCorruptError: the checkpoint is damaged.
            WalIOError: the operating system refused, or the permissions are unsafe.
            WalFullError: no room for another file.

        """
        wal_dir = Path(wal_dir).absolute()
        files = Files() if files is None else files
        _make_wal_dir(files, wal_dir)
        if instance is None:
            path, lock, ring = _take_number(files, wal_dir)
        else:
            path, lock, ring = _take_named(files, wal_dir / instance, wait_s)
        try:
            directory = cls(path, files, lock, ring)
        except BaseException:
            files.close(ring)
            files.close(lock)
            raise
        _warn_of_memory(files, wal_dir)
        return directory

    def lost(self) -> str | None:
        """Return why nothing more may be accepted or delivered: `lock` or `ring` was removed. None: neither was.

        It costs two system calls.

        Raises:
            ClosedError: the directory is closed, or this is a forked child.

        """
        self._check_open()
        for fd, name in ((self.lock, LOCK), (self.ring, RING)):
            if self.files.links(fd) == 0:
                return f"{self.path / name} was removed: {_STOP}"
        return None

    def replaced(self) -> str | None:
        """Return why nothing more may be accepted: a path leads to another file, or cannot be looked at; else None.

        Call it once a second.

        Raises:
            ClosedError: the directory is closed, or this is a forked child.

        """
        self._check_open()
        for fd, name in ((self.lock, LOCK), (self.ring, RING)):
            try:
                if not self.files.same_file(fd, self.path / name):
                    return f"{self.path / name} was removed or replaced: {_STOP}"
            except WalIOError as error:
                return f"{error}: {_STOP}"
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; the new one is durable on return.

        Raises:
            ClosedError: the directory is closed, or this is a forked child.
            WalError: it is not saved. Where files of ours were removed, the directory may have another owner by now.

        """
        wrong = self.replaced()
        if wrong is not None:
            raise WalIOError(errno.ESTALE, wrong, str(self.path))
        self.files.replace_file(self.path / CHECKPOINT, dump(checkpoint))
        self.checkpoint = checkpoint

    def mark_flush(self, since: int) -> None:
        """Store that a flush is under way, or with 0 that none is (R6).

        ``since``: Unix seconds up to which all is flushed; 1 where that is not known. Not synced: it outlives the
        process and not the machine.

        Raises:
            ClosedError: the directory is closed, or this is a forked child.
            WalError: it could not be stored.

        """
        self._check_open()
        self.files.write(self.lock, 0, b"%010d" % since)

    def note(self, noted: "Noted") -> None:
        """Store it for those who look from outside; not synced. Where that fails nothing is said."""
        with suppress(WalError):
            self.files.write(self.lock, NOTE_AT, msgspec.json.encode(noted) + b"\n")

    def check_destination(self, name: str | None, guarantee: str | None, cluster_id: str | None) -> None:
        """Compare the destination with what the checkpoint remembers.

        A name once given has to be given again. ``guarantee`` and ``cluster_id``: None is not compared.

        Raises:
            WalDestinationError: one differs.

        """
        stored = self.checkpoint
        if stored is None:
            return
        if stored.name not in {None, name}:
            message = "the directory belongs to another producer name: use that name, or another wal_dir or instance"
            raise WalDestinationError(f"{message} path={self.path} stored={stored.name!r} name={name!r}")
        if guarantee not in {None, stored.guarantee}:
            message = (
                f"records were accepted with guarantee={stored.guarantee!r}: start with that until all is delivered"
            )
            raise WalDestinationError(f"{message} path={self.path} guarantee={guarantee!r}")
        if stored.cluster_id is not None and cluster_id not in {None, stored.cluster_id}:
            message = (
                "kafka is another cluster than the one that the records belong to, nothing is sent: mend "
                f"bootstrap_servers, or if it was replaced on purpose start with the option cluster_id={cluster_id!r}"
            )
            raise WalDestinationError(f"{message} path={self.path} stored={stored.cluster_id!r}")

    def close(self) -> None:
        """Close both files, which lets go of the locks; a second time it does nothing."""
        lock, ring, self.lock, self.ring = self.lock, self.ring, -1, -1
        for fd in (ring, lock):
            if fd >= 0:
                self.files.close(fd)

    def _check_open(self) -> None:
        if self.lock < 0:
            forked = os.getpid() != self.owner_pid
            raise ClosedError("this forked process has none of its parent's files" if forked else "it is stopped")


_STOP = "another process may own the directory, nothing more is accepted or delivered: stop, and start again"


class Noted(msgspec.Struct):
    """The owner's note for processes that look at its directory: counts of this process, and its troubles."""

    at: float  # Unix seconds; noted anew each second in which something has changed
    accepted: int
    delivered: int
    troubles: list[str]  # what holds records up, the worst first


class Instance(NamedTuple):
    """One directory of a ``wal_dir``, seen from outside."""

    path: Path
    locked: bool
    pid: int | None = None  # of the owner, where it is known
    noted: "Noted | None" = None  # by its owner


def instances(wal_dir: Path | str, *, files: Files | None = None) -> list[Instance]:
    """Return the instance directories of ``wal_dir`` that this user may read: by number, then by name.

    No lock is taken, so no owner fails to get its own meanwhile. ``locked`` is what /proc/locks shows: an owner in
    another container or on another machine does not show there, so to adopt one is to `Directory.take` it.

    Raises:
        WalIOError: ``wal_dir`` cannot be listed.

    """
    files, wal_dir = Files() if files is None else files, Path(wal_dir)
    found = []
    for name in sorted(files.names(wal_dir), key=lambda name: (not name.isdecimal(), name.zfill(20))):
        path = wal_dir / name
        with suppress(WalIOError):
            status = files.status(path)
            if status is not None and stat.S_ISDIR(status.st_mode) and OURS.intersection(files.names(path)):
                pid = _holder(files, path)
                found.append(Instance(path, pid is not None, pid, None if pid is None else noted(path, files)))
    return found


def _make_wal_dir(files: Files, wal_dir: Path) -> None:
    found, _ = _make(files, wal_dir, "wal_dir")
    if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        message = (
            "every user may rename what is in wal_dir: name a directory inside it, which is then made with mode 0700, "
            "or chmod o-w it"
        )
        raise WalIOError(errno.EPERM, message, str(wal_dir))
    names = files.names(wal_dir)
    if LOCK in names and OURS.intersection(names) != {LOCK}:
        message = "wal_dir is an instance directory itself: give the directory above it, and this name as instance"
        raise WalFormatError(f"{message} wal_dir={wal_dir.parent} instance={wal_dir.name!r}")


def _take_number(files: Files, wal_dir: Path) -> tuple[Path, int, int]:
    """Return path, lock and ring of the first numbered directory that is free."""
    known = sorted(int(name) for name in files.names(wal_dir) if name.isdecimal() and name == str(int(name)))
    for number in (*known, *(number for number in range(MOST_INSTANCES) if number not in known)):
        path = wal_dir / str(number)
        owner = _make_private(files, path)
        if owner is not None:
            message = "the directory of another user is left alone: chown it with its files to deliver its records"
            log.warning("wal_instance_foreign %s path=%s uid=%d", message, path, owner)
            continue
        taken = _try(files, path)
        if taken is not None:
            return path, *taken
    raise WalLockedError(f"every instance directory is taken: use another wal_dir path={wal_dir}")


def _take_named(files: Files, path: Path, wait_s: float) -> tuple[Path, int, int]:
    until = files.monotonic() + wait_s
    owner = _make_private(files, path)
    if owner is not None:
        message = f"the instance directory belongs to uid {owner}: chown it with all files, or choose another instance"
        raise WalIOError(errno.EACCES, message, str(path))
    while (taken := _try(files, path)) is None:
        if files.monotonic() >= until:
            raise _held(files, path)
        files.sleep(PAUSE_S)
    return path, *taken


def _make_private(files: Files, path: Path) -> int | None:
    """Make an instance directory, or make ours private again: volumes of Kubernetes open it to a group.

    Return the user id that it belongs to where that is not ours; else None.
    """
    found, made = _make(files, path, "the instance directory")
    if found.st_uid == files.user():
        if stat.S_IMODE(found.st_mode) & 0o077:
            files.make_private(path)
        return None
    if made:  # or each number would be made in vain
        message = (
            f"a directory made here belongs to uid {found.st_uid}: mount the file system for this user, or run as it"
        )
        raise WalIOError(errno.EPERM, message, str(path))
    return found.st_uid


def _try(files: Files, path: Path) -> tuple[int, int] | None:
    """Return lock and ring, both locked; None where another process has one of them."""
    names = {name for name in files.names(path) if not name.startswith(".")}
    if names and not names & OURS:
        message = "the instance directory holds files of another program: choose another wal_dir or instance"
        raise WalFormatError(f"{message} path={path}")
    for _ in range(TRIES):
        with ExitStack() as opened:
            lock = files.open(path / LOCK)
            opened.callback(files.close, lock)
            if not files.lock(lock):
                return None
            if names & FIRST_CORE:
                message = "aiorecover 0.1 wrote this directory: drain it with aiorecover 0.1, then use an empty one"
                raise WalFormatError(f"{message} path={path}")
            ring = files.open(path / RING)
            opened.callback(files.close, ring)
            if not files.lock(ring):
                return None
            if files.same_file(lock, path / LOCK) and files.same_file(ring, path / RING):
                opened.pop_all()
                return lock, ring
    message = "lock or ring is another file whenever it is locked: use a file system on which a file keeps its inode"
    raise WalIOError(errno.ESTALE, message, str(path))


def _make(files: Files, path: Path, what: str) -> tuple[os.stat_result, bool]:
    """Return the status of a directory, made where nothing is, and whether it was made."""
    found = files.status(path)
    made = found is None
    if found is None:
        files.make_directory(path)
        found = files.status(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if found is not None and stat.S_ISLNK(found.st_mode) else "not a directory"
        raise WalFormatError(f"{what} is {kind}: name a directory itself, or a path where nothing is path={path}")
    return found, made


def _held(files: Files, path: Path) -> WalLockedError:
    pid = _holder(files, path)
    if pid == os.getpid():
        message = "this very process holds the instance directory: await stop() of the earlier producer"
    else:
        message = "another process holds the instance directory: stop it, or choose another instance"
    return WalLockedError(f"{message} path={path} pid={'unknown' if pid is None else pid}")


def _holder(files: Files, path: Path) -> int | None:
    """Return the process that holds a lock of the directory, as /proc/locks shows it; None: it shows none.

    Some file systems (btrfs, overlay) show another device there: the inode and the process id in `lock` decide then.
    """
    written = (files.read_file(path / LOCK) or b"")[WORD_BYTES:NOTE_AT].strip().decode("ascii", "replace")
    wanted = set()
    for name in (LOCK, RING):
        found = files.status(path / name)
        if found is not None:
            wanted.add((f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}", str(found.st_ino)))
    for line in (files.read_file(LOCKS) or b"").decode("ascii", "replace").splitlines():
        fields = line.split()  # number, FLOCK, ADVISORY, WRITE, process, device:inode; "->" before one that waits
        if fields[1:2] == ["FLOCK"] and fields[3] == "WRITE":
            device, _, inode = fields[5].rpartition(":")
            if (device, inode) in wanted or (fields[4] == written and inode in {one for _, one in wanted}):
                return int(fields[4])
    return None


def noted(path: Path, files: Files | None = None) -> Noted | None:
    """Return the note of an instance's owner; None: there is none yet, or the owner writes it now."""
    files = Files() if files is None else files
    line = (files.read_file(path / LOCK) or b"")[NOTE_AT:].partition(b"\n")[0]
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=Noted)
    return None


def _warn_of_memory(files: Files, wal_dir: Path) -> None:
    kind = files.file_system(wal_dir)
    if kind in IN_MEMORY and wal_dir not in _warned:
        _warned.add(wal_dir)
        message = "records there do not outlive the machine or its container: choose a wal_dir on a disk"
        log.warning("wal_dir_in_memory %s path=%s file_system=%s", message, wal_dir, kind)


def _close_in_child() -> None:
    """Close a forked child's copies of the descriptors, which would keep the locks after the parent's end."""
    for directory in list(_open):
        directory.close()


os.register_at_fork(after_in_child=_close_in_child)
