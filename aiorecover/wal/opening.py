"""Opening an instance directory: lock, recover, and be durable before the first record is accepted.

What is decided is decided in `recovery`; here it is carried out, as the package docstring has it.
"""

import errno
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from aiorecover.errors import WalCorruptError, WalDestinationError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import room, scan
from aiorecover.wal.ages import Ages, StoredAges, restored
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Copy, Destination
from aiorecover.wal.directory import CHECKPOINT, LANES, RING_GONE, UNSURE, Directory, Files, Options
from aiorecover.wal.epochs import earlier_epochs
from aiorecover.wal.instance import lock_instance, make_wal_dir
from aiorecover.wal.lanes import Lanes
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.moving import void_copies
from aiorecover.wal.recovery import HEAD_BYTES, Plan, RingPlan, SlotFound, classify, first_headers, plan, slot_bytes_of
from aiorecover.wal.ring import MARGIN, Ring
from aiorecover.wal.sources import Sources
from aiorecover.wal.spares import Limits, Quota, Spares
from aiorecover.wal.storage import PAGE, StorageFile
from aiorecover.wal.traces import traces
from aiorecover.wal.window import BAD_PAGES

log = logging.getLogger("aiorecover.wal")

_NAMES = (CHECKPOINT, RING, RETRY, DEAD, LANES)
_NO_MEANS = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})


def open_directory(options: Options) -> Directory:
    """Lock, recover and open an instance directory; durable when it returns.

    Raises:
        WalLockedError: the directory asked for by name is held by another process, or all numbers are.
        WalFormatError: the path holds something else, or a newer version's files.
        WalCorruptError: the files contradict each other.
        WalDestinationError: the directory was made with a ``name``, and this is another one, or none.
        WalFullError: no room for the first files.
        WalIOError: the operating system refused.

    """
    made = make_wal_dir(options.file_system, options.wal_dir)
    path, lock = lock_instance(options)
    try:
        directory = _open_locked(path, lock, options)
    except BaseException:
        lock.close()
        raise
    try:
        for parent in [path, options.wal_dir, *made]:
            options.file_system.sync_directory(parent)
    except BaseException:
        directory.close()
        raise
    return directory


def _open_locked(path: Path, lock: StorageFile, options: Options) -> Directory:
    files: dict[str, StorageFile] = {}
    try:
        gone = [name for name in _NAMES if not options.file_system.exists(path / name)]
        for name in _NAMES:
            if name not in gone:
                files[name] = options.file_system.open(path / name)
        if gone:  # an opening that is refused makes none of them: the next one, and a view, has to see what is gone
            _start(path, _copies(files.get(CHECKPOINT)), map(files.get, (RING, RETRY, DEAD)), files.get(LANES), options)
        for name in gone:
            files[name] = options.file_system.open(path / name)
        opened = Files(lock, *(files[name] for name in _NAMES))
        return recover(path, opened, options, ring_gone=RING in gone)
    except BaseException:
        for file in files.values():
            file.close()
        raise


def _copies(file: StorageFile | None) -> list[Copy]:
    return [Copy("blank")] * 2 if file is None else CheckpointFile(file).copies


class _Start(NamedTuple):
    """What an opening begins with; nothing was changed by then."""

    slot_bytes: int
    boot_id: str
    found: Plan
    checkpoint: Checkpoint


def _start(
    path: Path,
    copies: Sequence[Copy],
    rings: Iterable[StorageFile | None],
    lanes: StorageFile | None,
    options: Options,
) -> _Start:
    """Decide it; None: the file is not there.

    Raises:
        WalError: it is refused.

    """
    rings = list(rings)
    headers = (header for ring in rings if ring is not None for header in first_headers(ring.read))
    slot_bytes = slot_bytes_of(copies, headers, options.slot_bytes)
    boot_id = options.file_system.boot_id()
    try:
        main, retry, dead = (() if ring is None else _scan(ring, slot_bytes) for ring in rings)
        found = plan(copies, main, retry, dead, boot_id=boot_id, traces=traces(rings, lanes))
    except WalCorruptError as error:
        raise WalCorruptError(f"{error} path={path}") from None
    return _Start(slot_bytes, boot_id, found, _first_checkpoint(path, found, slot_bytes, boot_id, options))


def recover(path: Path, files: Files, options: Options, *, ring_gone: bool = False) -> Directory:
    """The directory as its files say; from here on they are its own. ``ring_gone``: there was no file `ring`."""
    checkpoint_file = CheckpointFile(files.checkpoint)
    rings = (files.ring, files.retry, files.dead)
    slot_bytes, boot_id, found, checkpoint = _start(path, checkpoint_file.copies, rings, files.lanes, options)
    if ring_gone and found.newest is not None and not found.newest.left_nothing:
        log.error("%s path=%s", RING_GONE, path / RING)
    _tell_unsure(path, checkpoint_file, found)
    ages = Ages(options.limit_ms, checkpoint.ages)
    for ring in rings:
        _restore_length(ring, slot_bytes)
    _rewrite(found, files, slot_bytes, boot_id)
    _allocate(path, checkpoint_file, new=found.epoch == 1)
    checkpoint_file.secure()
    checkpoint_file.write_both(checkpoint)
    if found.epoch == 1:  # its name, too, before another file has a length: that tells a directory in use (`traces`)
        options.file_system.sync_directory(path)
    quota = Quota(
        Limits(slot_bytes, options.max_bytes, options.min_free_bytes, partial(options.file_system.free_bytes, path))
    )

    def ring_of(ring: int, file: StorageFile, ring_plan: RingPlan, margin: int = 0) -> Ring:
        return Ring(
            file,
            ring_plan,
            checkpoint.epoch,
            checkpoint.producer_id,
            Spares(quota, ring, file, ring_plan.free),
            options.file_system.wall_ms,
            checkpoint.suspect,
            margin,
        )

    directory = Directory(
        path=path,
        files=files,
        checkpoint_file=checkpoint_file,
        ring=ring_of(room.MAIN, files.ring, found.main, MARGIN),
        retry=ring_of(room.RETRY, files.retry, found.retry),
        dead=ring_of(room.DEAD, files.dead, found.dead),
        lanes=Lanes(files.lanes, fmt.directory_of(checkpoint.producer_id), checkpoint.epoch, boot_id),
        producer_id=fmt.producer_text(checkpoint.producer_id),
        checkpoint=checkpoint,
        file_system=options.file_system,
        ages=ages,
        sources=None if checkpoint.sources is None else Sources(checkpoint.sources),
        same_boot=found.same_boot,
    )
    quota.poison = directory.poison
    directory.epochs = earlier_epochs(found.before, directory.ring.live)
    directory.ring.moved_up_to = found.moved_up_to
    void_copies(directory.retry, found.copies_up_to, directory.ring)
    _reserve(directory)
    directory.ring.spares.look()
    _report_damaged_slots(directory)
    return directory


def _tell_unsure(path: Path, checkpoint_file: CheckpointFile, found: Plan) -> None:
    """What a copy of the checkpoint alone has known is lost with it."""
    if found.unsure:
        log.error("%s path=%s rings=%s", UNSURE, path, ",".join(found.unsure))
    elif found.newest is not None and not _whole(checkpoint_file.copies, found):
        message = "one copy of the checkpoint does not hold, and the other one counts: check the disk"
        log.warning("%s path=%s", message, path / CHECKPOINT)


def _whole(copies: Sequence[Copy], found: Plan) -> bool:
    """Both hold; or only the very first one was written when the first process died, before there was any slot."""
    states = sorted(copy.state for copy in copies)
    first = states == ["blank", "valid"] and max(copy.generation for copy in copies) == 1
    slots = any(ring.lives or ring.free or ring.damaged for ring in (found.main, found.retry, found.dead))
    return states == ["valid"] * 2 or (first and not slots)


def _first_checkpoint(path: Path, found: Plan, slot_bytes: int, boot_id: str, options: Options) -> Checkpoint:
    """What both copies say before the first frame of the new epoch (I5)."""
    if found.epoch > fmt.EPOCH_MAX:
        message = "the directory was opened too often: drain it and start a new one"
        raise WalCorruptError(f"{message} path={path} epoch={found.epoch}")
    stored = found.newest.destination if found.newest is not None else Destination()
    return Checkpoint(
        producer_id=fmt.new_producer_id(found.producer_id),
        epoch=found.epoch,
        slot_bytes=slot_bytes,
        main=found.main.state,
        retry=found.retry.state,
        dead=found.dead.state,
        moved=found.moved,
        boot_id=boot_id,
        suspect=found.suspect,
        destination=_destination(path, stored, options),
        ages=_ages(found, options),
        sources=None if found.newest is None else found.newest.sources,
        openings=found.openings,
    )


def _ages(found: Plan, options: Options) -> StoredAges:
    """Whatever waits was accepted before this opening, and more of it is known from the checkpoint."""
    newest, files = found.newest, options.file_system
    now_ms, wall_ms = files.since_boot_ms(), files.wall_ms()
    stored = newest.ages if newest is not None else StoredAges()
    known = restored(stored, fmt.position(found.epoch, 0), now_ms, wall_ms, same_boot=found.same_boot)
    return Ages(options.limit_ms, known).captured(now_ms, wall_ms)


def _rewrite(found: Plan, files: Files, slot_bytes: int, boot_id: str) -> None:
    """Have every page stored again that no completed flush is known to cover.

    After a failed flush the kernel calls the pages that it lost clean, and the next flush would succeed without them.
    Nothing tells for certain that none failed (the process may have died of it), so this is done after every end that
    was not clean: pages are only marked, which is quick; the next flush writes them. After a reboot there is nothing
    to do: the pages come from the disk.

    Where a flush is known to have failed, all pages: a settle word that this life believes must not leave memory. (Not
    those that are not there: `StorageFile.rewrite`.)
    """
    newest = found.newest
    if newest is None or newest.boot_id != boot_id or (newest.closed and newest.epoch == found.epoch - 1):
        return
    for file, ring in ((files.ring, found.main), (files.retry, found.retry), (files.dead, found.dead)):
        for life in ring.lives:
            last = fmt.SEQUENCE_MASK if life.seal is None else life.seal.last_sequence
            if newest.poisoned or fmt.position(life.header.epoch, last) > ring.flushed:
                _rewrite_part(file, life.index * slot_bytes, slot_bytes)
    for index in _voided(found.retry):
        _rewrite_part(files.retry, index * slot_bytes, fmt.RESERVED)
        _rewrite_part(files.retry, (index + 1) * slot_bytes - fmt.RESERVED, fmt.RESERVED)


def _voided(retry: RingPlan) -> Iterator[int]:
    """Slots of which an opening may have taken the headers away, or shortened the seal: the disk may not know of it."""
    yield from (index for index, salt in retry.free if salt == 0)
    for life in retry.lives:
        if life.seal is not None and fmt.position(life.header.epoch, life.seal.last_sequence) == retry.flushed:
            yield life.index


def _rewrite_part(file: StorageFile, offset: int, length: int) -> None:
    """The reader comes to what cannot be read, and reports it; all beside it is written again.

    Raises:
        WalIOError: there are no means to ask for it (memory, descriptors), or what can be read cannot be stored again:
            no flush would tell that it is missing.

    """
    try:
        file.rewrite(offset, length)
    except WalIOError as error:
        _check_disk(error)
        _rewrite_pages(file, offset, length)


def _rewrite_pages(file: StorageFile, offset: int, length: int) -> None:
    bad = 0
    for start in range(offset, offset + length, PAGE):
        error = _rewrite_page(file, start, min(PAGE, offset + length - start))
        if error is not None:
            log.warning("a page of the ring cannot be read path=%s offset=%d error=%s", file.path, start, error)
            bad += 1
            if bad == BAD_PAGES:
                message = "no more pages of a slot are asked for, and a power cut may take those behind: check the disk"
                log.warning("%s path=%s offset=%d", message, file.path, start)
                return


def _rewrite_page(file: StorageFile, start: int, length: int) -> WalIOError | None:
    """Why it cannot be read.

    The kernel says the same of a page that it cannot read and of one that it cannot have stored into, as on a full disk
    whose file system copies what is written; so it is read. Where nothing stands there is nothing to lose: a hole that
    there is no room for keeps no directory closed.
    """
    try:
        file.rewrite(start, length)
    except WalIOError as error:
        _check_disk(error)
        try:
            held = file.read(start, length)
        except WalIOError as unreadable:
            return unreadable
        if any(held):
            file.rewrite(start, length)  # the moment when it could not be read is over, or that is not what fails
    return None


def _check_disk(error: WalIOError) -> None:
    """It is the disk, and not that we have no means to ask for the part."""
    if error.errno in _NO_MEANS:
        raise error


def _allocate(path: Path, checkpoint_file: CheckpointFile, *, new: bool) -> None:
    """Have room for the largest checkpoint. Without it only a new directory is refused: nothing waits there."""
    try:
        checkpoint_file.allocate()
    except WalFullError as error:
        if new:
            raise
        log.warning("no room for a checkpoint that grows: do what error= says path=%s error=%s", path, error)


def _reserve(directory: Directory) -> None:
    """A slot each for the retry and the dead ring, and blocks for the first lanes.

    So that a full disk cannot keep the main ring from being freed.
    """
    for ring in (directory.retry, directory.dead):
        try:
            ring.spares.reserve()
        except WalFullError as error:
            log.warning("no room for a reserved slot yet path=%s error=%s", directory.path, error)
    try:
        directory.lanes.grow()
    except WalFullError as error:
        log.warning("no room for what is in flight: do what error= says path=%s error=%s", directory.path, error)


def _report_damaged_slots(directory: Directory) -> None:
    """I10, also where no record is missed: nobody will use their room again. Which records are, its reader says."""
    for file, ring in zip(
        (directory.files.ring, directory.files.retry, directory.files.dead), directory.rings, strict=True
    ):
        if ring.damaged_slots:
            log.warning(
                "of some slots nothing can be read: check the disk; they are left as they are path=%s slots=%s",
                file.path,
                ",".join(map(str, ring.damaged_slots)),
            )


def _destination(path: Path, stored: Destination, options: Options) -> Destination:
    name = options.name
    if stored.name not in {None, name}:  # nor without one: a name that is forgotten keeps nothing apart
        message = "the directory belongs to another producer name: use its name, or another wal_dir or instance"
        raise WalDestinationError(f"{message} path={path} stored={stored.name!r} name={name!r}")
    cluster_id = stored.cluster_id or options.cluster_id
    servers = () if cluster_id is not None else options.servers
    return msgspec.structs.replace(stored, cluster_id=cluster_id, name=name, servers=servers)


def _restore_length(ring: StorageFile, slot_bytes: int) -> None:
    """Give a file that was cut inside a slot its length back: what is left there is read like any damage.

    The piece that an interrupted growth leaves holds nothing, and stays.
    """
    whole = ring.size() // slot_bytes * slot_bytes
    if any(ring.read(whole, fmt.HEADER_BYTES)):
        ring.allocate(whole, slot_bytes)


def _begun(ring: StorageFile, slot_bytes: int, slot: SlotFound, head: bytes) -> SlotFound:
    """With a look at the first frame of a slot that was left open: a header may be all that was stored there.

    ``head``: the slot's first `HEAD_BYTES`.
    """
    if slot.header is None or slot.seal is not None:
        return slot
    length, check, sequence, _ = fmt.FRAME.unpack_from(head, fmt.FIRST_FRAME)
    end = fmt.frame_end(0, length)
    if sequence != slot.header.first_sequence or end > slot_bytes - 2 * fmt.RESERVED:
        return slot
    data = b""
    with suppress(WalIOError):  # a page behind the header's: its reader will tell what is missing
        data = ring.read(slot.index * slot_bytes + fmt.FIRST_FRAME, end)
    return replace(slot, begun=scan.holds(data, 0, length, check, sequence, slot.header.salt, len(data)))


def _scan(ring: StorageFile, slot_bytes: int) -> Iterator[SlotFound]:
    slots, piece = divmod(ring.size(), slot_bytes)
    for index in range(slots):
        start = index * slot_bytes
        head = ring.read(start, HEAD_BYTES)
        end = ring.read(start + slot_bytes - fmt.RESERVED, fmt.RESERVED)
        yield _begun(ring, slot_bytes, classify(index, head, end), head)
    head = ring.read(slots * slot_bytes, min(piece, fmt.RESERVED)).ljust(fmt.RESERVED, b"\0")
    if any(head[: fmt.HEADER_BYTES]):  # cut inside a slot: its end says nothing
        yield classify(slots, head, head)
