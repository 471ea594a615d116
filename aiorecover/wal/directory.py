"""An instance directory: its lock, its files, and the opening.

    wal_dir/            0700
      0/ 1/ … or NAME/  one per process at a time
        lock            flock; the owner's process id, for people
        checkpoint      two alternating copies
        ring            the slots

A process takes the first numbered directory whose lock is free, and with it a predecessor's backlog; ``instance``
asks for one by name. Nothing is accepted before files, directories and parents are durable.
"""

import base64
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiorecover.errors import (
    WalCorruptError,
    WalDestinationError,
    WalError,
    WalFormatError,
    WalIOError,
    WalLockedError,
)
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Destination
from aiorecover.wal.recovery import Plan, SlotFound, classify, plan, slot_bytes_of
from aiorecover.wal.ring import Limits, Ring
from aiorecover.wal.storage import DIRECTORY_MODE, StorageFile, free_bytes, os_errors, sync_directory

MAX_INSTANCES = 1024  # workers of one wal_dir; more are surely a mistake, and each look-up is a system call
LOCK_WAIT = 0.05  # seconds between two looks at the lock of a directory that was asked for by name
PRODUCER_ID_BITS = 64

LOCK = "lock"
CHECKPOINT = "checkpoint"
RING = "ring"
LOST_FOUND = "lost+found"  # wal_dir may be a file system of its own
_OURS = {LOCK, CHECKPOINT, RING, "lanes", "retry", "dead"}


@dataclass(frozen=True, slots=True)
class Options:
    """What an opening needs to know; durations in seconds."""

    wal_dir: Path
    slot_bytes: int
    max_bytes: int
    min_free_bytes: int
    instance: str | None = None
    name: str | None = None
    lock_timeout: float = 0.0


@dataclass(slots=True)
class Directory:
    """An opened, locked instance directory."""

    path: Path
    lock: StorageFile
    checkpoint_file: CheckpointFile
    ring: Ring
    producer_id: str
    checkpoint: Checkpoint
    _files: list[StorageFile]

    def next_checkpoint(self, watermark: int, destination: Destination) -> Checkpoint:
        """The content of a checkpoint with this watermark."""
        old = self.checkpoint
        return Checkpoint(
            producer_id=old.producer_id,
            epoch=old.epoch,
            watermark=watermark,
            slot_bytes=old.slot_bytes,
            moved=old.moved,
            destination=destination,
        )

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Flush the ring, then make ``checkpoint`` durable (I4: its content was captured before this call)."""
        self.ring.sync()
        try:
            self.checkpoint_file.write(checkpoint)
        except WalError as error:  # no room is no better: the copy may be half written
            self.ring.poison(error)
            raise
        self.checkpoint = checkpoint

    def moved_away(self) -> str | None:
        """What is wrong with the files behind our paths, if anything: somebody removed or replaced them."""
        for file in self._files:
            try:
                found = os.stat(file.path, follow_symlinks=False)
            except OSError as error:
                return f"{file.path}: {error.strerror}"
            if (found.st_dev, found.st_ino) != file.identity():
                return f"{file.path}: replaced by another file"
        return None

    def abandon(self) -> None:
        """In a forked child: close everything; the lock stays with the parent."""
        self.ring.abandon()
        for file in self._files:
            file.close()

    def close(self) -> None:
        """Close every file; the lock goes with its last descriptor (in a forked child it stays the parent's)."""
        self.ring.close()
        for file in self._files:
            file.close()


def open_directory(options: Options) -> Directory:
    """Lock, recover and open an instance directory; durable when it returns.

    Raises:
        WalLockedError: the directory asked for by name is held by another process, or all numbers are.
        WalFormatError: the path holds something else, or a newer version's files.
        WalCorruptError: the files contradict each other.
        WalDestinationError: the directory was made with another ``name``.
        WalFullError: no room for the first files.
        WalIOError: the operating system refused.

    """
    made = _make_wal_dir(options.wal_dir)
    path, lock = _lock_instance(options)
    try:
        directory = _open_locked(path, lock, options)
    except BaseException:
        lock.close()
        raise
    try:
        for parent in [path, options.wal_dir, *made]:
            sync_directory(parent)
    except BaseException:
        directory.close()
        raise
    return directory


def _make_wal_dir(wal_dir: Path) -> list[Path]:
    """Make the directory and its parents; the parents whose entries must be flushed."""
    with os_errors("use the directory", wal_dir):
        if wal_dir.is_symlink():
            message = f"wal_dir is a symbolic link: name the directory itself path={wal_dir}"
            raise WalFormatError(message)
        if wal_dir.exists() and not wal_dir.is_dir():
            message = f"wal_dir is not a directory: choose another path path={wal_dir}"
            raise WalFormatError(message)
        missing = [parent.parent for parent in wal_dir.parents if not parent.exists()]
        wal_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        _check_owner(wal_dir)
        _check_content(wal_dir)
    return [*missing, wal_dir.parent]


def _check_owner(path: Path) -> None:
    if path.stat().st_uid != os.geteuid():
        message = "wal_dir belongs to another user: records would be theirs to read; choose your own"
        raise WalFormatError(f"{message} path={path} uid={path.stat().st_uid}")


def _check_content(wal_dir: Path) -> None:
    """Refuse a directory of another program: we would lock, grow and recycle among its files."""
    for entry in wal_dir.iterdir():
        if entry.name == LOST_FOUND or (entry.is_dir() and {child.name for child in entry.iterdir()} <= _OURS):
            continue
        message = "wal_dir holds files that are not ours: choose an empty directory"
        raise WalFormatError(f"{message} path={entry}")


def _lock_instance(options: Options) -> tuple[Path, StorageFile]:
    if options.instance is not None:
        return _lock_named(options.wal_dir / options.instance, options.lock_timeout)
    for number in range(MAX_INSTANCES):
        path = options.wal_dir / str(number)
        lock = _try_lock(path)
        if lock is not None:
            return path, lock
    message = f"every instance directory is in use: use another wal_dir path={options.wal_dir}"
    raise WalLockedError(message)


def _lock_named(path: Path, timeout: float) -> tuple[Path, StorageFile]:
    until = time.monotonic() + timeout
    while True:
        lock = _try_lock(path)
        if lock is not None:
            return path, lock
        if time.monotonic() >= until:
            owner = _owner_of(path)
            message = "another process holds the instance directory: stop it, or choose another instance"
            raise WalLockedError(f"{message} path={path} pid={owner}")
        time.sleep(LOCK_WAIT)


def _try_lock(path: Path) -> StorageFile | None:
    """The locked ``lock`` file of an instance directory, or None when another process has it."""
    with os_errors("use the directory", path):
        if path.is_symlink():
            message = f"the instance directory is a symbolic link: name the directory itself path={path}"
            raise WalFormatError(message)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    lock = StorageFile(path / LOCK)
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        message = f"cannot lock the directory: use a file system with flock: {error.strerror}"
        raise WalIOError(error.errno, message, str(path)) from error
    if not _same_file(lock):  # removed and made anew between opening and locking
        lock.close()
        return _try_lock(path)
    try:
        lock.write(f"{os.getpid():<20}\n".encode(), 0)
    except BaseException:
        lock.close()
        raise
    return lock


def _same_file(lock: StorageFile) -> bool:
    with suppress(OSError):
        found = os.stat(lock.path, follow_symlinks=False)
        return (found.st_dev, found.st_ino) == lock.identity()
    return False


def _owner_of(path: Path) -> str:
    with suppress(OSError):
        return (path / LOCK).read_text(encoding="ascii", errors="replace").strip() or "unknown"
    return "unknown"


def _open_locked(path: Path, lock: StorageFile, options: Options) -> Directory:
    files = [lock]
    try:
        files.extend(StorageFile(path / name) for name in (CHECKPOINT, RING))
        return _recover(path, files, options)
    except BaseException:
        for file in files[1:]:
            file.close()
        raise


def _recover(path: Path, files: list[StorageFile], options: Options) -> Directory:
    lock, checkpoint_storage, ring_storage = files
    checkpoint_file = CheckpointFile(checkpoint_storage)
    slot_bytes = slot_bytes_of(checkpoint_file.copies, _possible_headers(ring_storage), options.slot_bytes)
    _check_ours(path, checkpoint_file, ring_storage, slot_bytes)
    _restore_length(ring_storage, slot_bytes)
    found = plan(checkpoint_file.copies, _scan(ring_storage, slot_bytes))
    newest = checkpoint_file.newest()
    _check_consistent(path, checkpoint_file, found)
    destination = _destination(path, newest.destination if newest is not None else Destination(), options.name)
    producer_id = found.producer_id if found.producer_id is not None else secrets.randbits(PRODUCER_ID_BITS)
    checkpoint = Checkpoint(
        producer_id=producer_id,
        epoch=found.epoch,
        watermark=found.watermark,
        slot_bytes=slot_bytes,
        moved=found.moved,
        destination=destination,
    )
    if found.epoch > fmt.EPOCH_MAX:
        message = f"the directory was opened too often: drain it and start a new one path={path} epoch={found.epoch}"
        raise WalCorruptError(message)
    checkpoint_file.write_both(checkpoint)
    limits = Limits(slot_bytes, options.max_bytes, options.min_free_bytes, lambda: free_bytes(path))
    text = producer_text(producer_id)
    ring = Ring(ring_storage, found, producer_id, text, limits, _clock_ms)
    return Directory(path, lock, checkpoint_file, ring, text, checkpoint, files)


def _check_ours(path: Path, checkpoint_file: CheckpointFile, ring: StorageFile, slot_bytes: int) -> None:
    """Files with something in them, and no checkpoint or slot header: never taken for new, never written over."""
    if checkpoint_file.newest() is not None or any(slot.state == "live" for slot in _scan(ring, slot_bytes)):
        return
    # A first checkpoint that was cut off stands in the second copy; the first one is blank then.
    if checkpoint_file.copies[0].state == "damaged" or any(ring.read(0, fmt.RESERVED)):
        message = "neither checkpoint nor ring can be read: keep the files and restore them from a copy"
        raise WalCorruptError(f"{message}, or choose another directory path={path}")


def _check_consistent(path: Path, checkpoint_file: CheckpointFile, found: Plan) -> None:
    """A damaged checkpoint over a ring without one readable slot: nothing tells what was delivered."""
    damaged = any(copy.state == "damaged" for copy in checkpoint_file.copies)
    if checkpoint_file.newest() is None and damaged and found.damaged:
        message = "both the checkpoint and the ring are damaged: keep the files and restore them from a copy"
        raise WalCorruptError(f"{message} path={path}")


def _destination(path: Path, stored: Destination, name: str | None) -> Destination:
    if name is None or stored.name == name:
        return stored
    if stored.name is None:
        return Destination(cluster_id=stored.cluster_id, name=name)
    message = "the directory belongs to another producer name: use its name, or another wal_dir or instance"
    raise WalDestinationError(f"{message} path={path} stored={stored.name!r} name={name!r}")


def _possible_headers(ring: StorageFile) -> Iterator[fmt.SlotHeader | None]:
    """Headers where a ring of any slot size would have its first ones; only asked without a checkpoint."""
    yield fmt.unpack_slot_header(ring.read(0, fmt.HEADER_BYTES).ljust(fmt.HEADER_BYTES, b"\0"))
    for power in range(14, 31):
        for offset in ((1 << power) - fmt.RESERVED, 1 << power):
            yield fmt.unpack_slot_header(ring.read(offset, fmt.HEADER_BYTES).ljust(fmt.HEADER_BYTES, b"\0"))


def _restore_length(ring: StorageFile, slot_bytes: int) -> None:
    """Give a file that was cut inside a slot its length back: what is left there is read like any damage.

    The piece that an interrupted growth leaves holds nothing, and stays.
    """
    whole = ring.size() // slot_bytes * slot_bytes
    if any(ring.read(whole, fmt.HEADER_BYTES)):
        ring.allocate(whole, slot_bytes)


def _scan(ring: StorageFile, slot_bytes: int) -> Iterator[SlotFound]:
    for index in range(ring.size() // slot_bytes):
        start = index * slot_bytes
        head = ring.read(start, fmt.RESERVED)
        end = ring.read(start + slot_bytes - fmt.RESERVED, fmt.RESERVED)
        yield classify(index, head, end)


def producer_text(producer_id: int) -> str:
    """The 64 bits as they stand in record ids: base32, lower case, 13 characters."""
    raw = producer_id.to_bytes(PRODUCER_ID_BITS // 8, "big")
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
