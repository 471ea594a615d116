"""The file `lanes`: one block for each lane, in which delivery writes down what it is about to send.

What the bodies mean is `delivery`'s business; here they are bytes that survive the death of the process, or are known
not to. A block holds two copies of an entry; a store goes to the older one, and the newer one whose checksum holds
counts. A copy that is neither blank nor whole makes its block damaged: a store that was cut off was never acted upon,
and whether it was one, or damage to something that was, nobody can tell.

Entries count only for whoever can know what became of them: in the boot of the machine in which they were stored, and
in this very file, for a copied directory must not speak in the name of the original one. The header tells: it bears
boot, device and inode, and the epoch ``since`` which they have been the same. An opening that finds others begins anew
with its own epoch; entries of earlier ones stay where they are until their blocks are taken, and are not `known`. Nor
are those of epochs to come: there the file is of a later state of the directory than all else.

A file that lost a part of itself, cut off or zeroed, looks as if fewer lanes had sent. So the header counts the blocks
in which something stands: it is written behind a block's first entry and before a block is cleared, and where only the
process dies it never counts more than there are. For all other batches it is right already: they cost one store. Of
the two copies of a block one alone may be blank only before the second store since the block was blank itself; that is
told by the low half of the generation, which begins anew with each clearing, while the high half goes on.

Stored by pwrite and not through a mapping: that takes 6 us more (10 instead of 4, for an entry of 3,000 records), and a
full or failing disk is an error that can be handled, where a mapping ends the process. Blocks are allocated by the
keeper's thread before they are given out: a lane that has one can always write to it, for delivery is what makes room.
One that waits for a block on a full disk gets it in the place of slots of the rings that are free, or come free: its
records may be what keeps these full. Where none is, since others take what is given up, the file system makes no holes,
or records of such lanes stand in each slot, lanes take turns: one that has nothing in flight leaves its block to it
(`delivery.journaling`). So it waits for longer only while each block tells of a batch that is in flight. A file that
has holes, as a copy may, is allocated as a whole by the opening.

It is a journal and no more, so what cannot be read keeps no directory closed: it counts as damaged, and its block is
not used by this opening. (The file of another directory does: who put it there may have our own.) Nor does a full disk:
header and holes are written once there is room.
"""

import logging
import struct
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import neg
from typing import Protocol

from aiorecover.errors import WalError, WalFormatError, WalFullError, WalIOError
from aiorecover.wal.checksum import crc32

log = logging.getLogger("aiorecover.wal")

MAGIC = b"\x89AIOLAN\n"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sHHIQIIQQ40sI")
ENTRY_MAGIC = b"LANE"
ENTRY = struct.Struct("<4sIQII")
SECTOR = 512
PAGE = 4096  # the kernel reads it before it changes a part of it
ENTRY_BYTES = 33 * SECTOR  # 4,096 words of 4 bytes, and a sector for all else: header, topic, identity
BODY_MOST = ENTRY_BYTES - ENTRY.size
BLOCK_BYTES = 2 * ENTRY_BYTES
FIRST_BLOCKS = 8  # 270 KB: allocated by the opening
LEAST_BYTES = BLOCK_BYTES + PAGE  # room for one more block: the file may end within a page
MOST_AT_ONCE = 1024  # blocks, 35 MB: a file that doubles must not take half of a small disk for lanes never seen

_BOOT_BYTES = 40
_STORES = (1 << 32) - 1  # in a generation: since its block was blank


class LanesFileLike(Protocol):
    """What is needed of storage."""

    @property
    def path(self) -> object: ...  # noqa: D102
    def size(self) -> int: ...  # noqa: D102
    def disk_bytes(self) -> int: ...  # noqa: D102
    def allocate(self, offset: int, length: int) -> None: ...  # noqa: D102
    def read(self, offset: int, length: int) -> bytes: ...  # noqa: D102
    def write(self, data: bytes, offset: int) -> None: ...  # noqa: D102
    def sync(self) -> None: ...  # noqa: D102
    def identity(self) -> tuple[int, int]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Header:
    """Whose file it is: of which directory, boot and inode, and since which epoch these are the same.

    ``directory_id``: a producer id of it without the nonce, which each opening has of its own. ``standing``: in how
    many blocks something stands; 0: that was not counted, as by a version that did not.
    """

    directory_id: int
    since: int
    device: int
    inode: int
    boot_id: str
    standing: int = 0

    def same_place(self, other: "Header") -> bool:
        """Whether entries stored under this header can be known under ``other``; without a boot id nothing is."""
        return bool(self.boot_id) and replace(self, since=other.since, standing=other.standing) == other


@dataclass(frozen=True, slots=True)
class BlockFound:
    """A block in which something stands.

    ``bodies``: of the whole copies, the newer one first; ``epoch``: in which that was stored, 0 if none is whole.
    """

    block: int
    bodies: tuple[bytes, ...]
    damaged: bool
    known: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class _Copy:
    state: str  # blank, whole or damaged
    generation: int = 0
    epoch: int = 0
    body: bytes = b""


def pack_header(header: Header) -> bytes:
    """The file's first sector."""
    boot = header.boot_id.encode()[:_BOOT_BYTES]
    packed = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        0,
        ENTRY_BYTES,
        header.directory_id,
        header.since,
        header.standing,
        header.device,
        header.inode,
        boot,
        0,
    )[:-4]
    return (packed + struct.pack("<I", crc32(packed))).ljust(SECTOR, b"\0")


def unpack_header(data: bytes) -> Header | None:
    """The header in ``data``; None when its checksum does not hold.

    Raises:
        WalFormatError: a valid header of a newer format version.

    """
    if len(data) < HEADER.size:
        return None
    magic, version, _, entry_bytes, directory_id, since, standing, device, inode, boot, crc = HEADER.unpack_from(data)
    if magic != MAGIC or crc != crc32(data[: HEADER.size - 4]):
        return None
    if version != FORMAT_VERSION or entry_bytes != ENTRY_BYTES:
        message = "the lanes were written by a newer aiorecover: upgrade to read them"
        raise WalFormatError(f"{message} version={version} supported={FORMAT_VERSION}")
    return Header(directory_id, since, device, inode, boot.rstrip(b"\0").decode(errors="replace"), standing)


def pack_entry(body: bytes, epoch: int, generation: int) -> bytes:
    """One copy; what stands behind it in its place does not matter."""
    head = ENTRY.pack(ENTRY_MAGIC, epoch, generation, len(body), 0)[:-4]
    return b"%b%b%b" % (head, crc32(body, crc32(head)).to_bytes(4, "little"), body)


def unpack_entry(data: bytes) -> _Copy:
    """One copy from its place."""
    if data == bytes(len(data)):
        return _Copy("blank")
    if len(data) < ENTRY.size:
        return _Copy("damaged")
    magic, epoch, generation, length, crc = ENTRY.unpack_from(data)
    body = data[ENTRY.size : ENTRY.size + length]
    if magic != ENTRY_MAGIC or len(body) != length or crc != crc32(body, crc32(data[: ENTRY.size - 4])):
        return _Copy("damaged")
    if not 0 < generation < 1 << 63:  # whole, and yet nothing that anybody stores; those that follow have to fit
        return _Copy("damaged")
    return _Copy("whole", generation, epoch, body)


class Lanes:
    """The blocks of one directory; `grow` and `sync` are for the keeper's thread, all else for the loop's."""

    def __init__(self, file: LanesFileLike, directory_id: int, epoch: int, boot_id: str) -> None:
        """Read what stands there, and make the file this boot's and this opening's own.

        Raises:
            WalFormatError: a newer version's file.
            WalIOError: the header cannot be written, though it could be read.

        """
        self._file = file
        self._epoch = epoch
        head = self._read(0, SECTOR)
        before = unpack_header(head or b"")
        now = Header(directory_id, epoch, *file.identity(), boot_id)
        same = before if before is not None and before.same_place(now) else None
        self._since = same.since if same is not None else epoch
        self._counted = same.standing if same is not None else 0  # by the header as it stands there
        self._blocks = max(0, file.size() - SECTOR) // BLOCK_BYTES
        self._generations = [0] * self._blocks
        self._unusable: set[int] = set()  # cannot be read, or not cleared
        self._holes = file.disk_bytes() < file.size()
        self.found = [found for block in range(self._blocks) if (found := self._look(block)) is not None]
        # Neither header nor entry: of a new directory, or somebody has removed or emptied it. Delivery knows which.
        self.is_new = before is None and not self.found
        self._standing = {found.block for found in self.found}
        # Blocks that held something by the header's count, and hold nothing any more: nobody can tell what it was.
        self.missing = max(0, self._counted - len(self._standing))
        self._untold = self.missing  # in the header until somebody was told: this process may die before
        # Always in this order: the lowest is taken first.
        self._free = [block for block in reversed(range(self._blocks)) if block not in self._unusable]
        self.awaited = False  # a lane has found none, and waits for one
        self._stored = False
        self._header = replace(now, since=self._since)
        self._late = False  # there was no room for it yet; then it is the keeper's
        if self._since == epoch:
            self._write_header(readable=head is not None)
        else:
            self._store_again()

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self._blocks

    @property
    def free(self) -> int:
        """How many belong to no lane."""
        return len(self._free)

    @property
    def wants_room(self) -> bool:
        """Under a quarter of the blocks is left, or header or holes are not written: let the keeper call `grow`."""
        return self._wants_blocks or self._late or self._holes

    def count_anew(self) -> None:
        """Have the header say what stands alone, as what is `missing` was told.

        Where the disk fails, the next opening has a doubt too many, or misses less: no batch waits for that.
        """
        self._untold = 0
        self._count()

    def _count(self) -> None:
        """Have the header say what stands, and what is missing that nobody was told of."""
        count = len(self._standing) + self._untold
        if self._counted != count and not self._late:
            with suppress(WalError):
                self._put_header(count)

    @property
    def _wants_blocks(self) -> bool:
        return 4 * len(self._free) < self._blocks or not self._free

    def grow(self) -> None:
        """Allocate as many blocks again as there are, if they are wanted, and the file's holes (the keeper's thread).

        Where a lane waits for one, and there is no room for so many, half of that, down to a single one.
        And write the header that there was no room for: what this opening has stored is known from then on, in this
        boot and this file. Nobody waits for that.

        Raises:
            WalFullError: the disk is full.

        """
        if self._late:
            self._write_late()
        if self._wants_blocks:
            self._add_blocks()
        if self._holes:
            self._fill_holes()

    def _fill_holes(self) -> None:
        """For want of room they stay, and nobody waits for that: a lane may have got its block."""
        with suppress(WalFullError):
            with suppress(WalIOError):  # if it is the disk, the next store says so
                self._file.allocate(0, self._file.size())
            self._holes = False

    def _add_blocks(self) -> None:
        first = self._blocks
        piece = self._file.size() > _place(first, 0)
        count = self._allocate(first)
        self._generations += [0] * count
        if piece:
            self._clear_piece(first)
        self._blocks += count
        self._free[:0] = [block for block in range(first + count - 1, first - 1, -1) if block not in self._unusable]

    def _allocate(self, first: int) -> int:
        """How many blocks there are more."""
        count = max(FIRST_BLOCKS, min(self._blocks, MOST_AT_ONCE))
        while True:
            try:
                self._file.allocate(_place(first, 0), count * BLOCK_BYTES)
            except WalFullError:
                if count == 1 or not self.awaited:
                    raise
                count //= 2  # its records may be what keeps the ring full
            else:
                return count

    def _clear_piece(self, block: int) -> None:
        """The file ended inside this block: a power cut, or a copy, has left a part of what stood there before.

        Before it is given out; where that cannot be, it is not.
        """
        if self._look(block) is None:
            return
        try:
            self.clear(block)
        except (WalIOError, WalFullError):
            self._unusable.add(block)

    def keep(self, block: int) -> None:
        """A block that was found goes on belonging to its lane."""
        if block in self._unusable:
            return
        del self._free[bisect_left(self._free, -block, key=neg)]  # not `remove`: 4 s for 10,000 lanes

    def give_back(self, block: int) -> None:
        """A block that was kept belongs to no lane any more."""
        if block in self._unusable:
            return
        insort(self._free, block, key=neg)

    def clear(self, block: int) -> None:
        """What was found in a block must never count again: as if nothing had ever stood there.

        Where a block cannot be read, that may fail, and where it belongs to no lane, for want of room: then a later
        opening may find it, beside the one that its lane has by then, and two for one lane count for nothing.

        Raises:
            WalIOError: the disk failed.
            WalFullError: the disk is full, and a file system that needs room to change what stands there.

        """
        self._standing.discard(block)
        self._count()
        try:
            if block in self._unusable:
                self._file.write(bytes(BLOCK_BYTES), _place(block, 0))
            else:
                self._wipe(block)
                self._generations[block] = (self._generations[block] | _STORES) + 1
        except (WalIOError, WalFullError) as error:
            if not self._may_stay(block, error):
                raise
        self._stored = True

    def _wipe(self, block: int) -> None:
        """Only where something stands, which needs no room, whatever holes the block has.

        The heads first: where it is cut off, the block is damaged. One copy alone may be the older one.
        """
        start, end = _place(block, 0), _place(block + 1, 0)
        edges = [start, *range(start - start % PAGE + PAGE, end, PAGE), end]
        heads = [(place, place + ENTRY.size) for place in (start, _place(block, 1))]
        found = self._file.read(start, BLOCK_BYTES)
        for first, last in (*heads, *pairwise(edges)):
            zeros = bytes(last - first)
            if found[first - start : last - start] != zeros:
                self._file.write(zeros, first)

    def _may_stay(self, block: int, error: WalError) -> bool:
        """Whether what could not be cleared harms nobody: no lane uses the block, nor will one in this opening."""
        if isinstance(error, WalFullError) and block in self._free:
            self.keep(block)
            self._unusable.add(block)
        return block in self._unusable

    def take(self) -> int | None:
        """A block for a lane without one; None: let the keeper call `grow`."""
        try:
            block = self._free.pop()
        except IndexError:
            self.awaited = True
            return None
        self.awaited = False  # of others that wait each says so again, when it tries again
        return block

    def store(self, block: int, body: bytes) -> None:
        """Put ``body`` in the place of the older copy.

        Raises:
            WalError: it could not be stored; the same may be tried again.
            ValueError: it is longer than `BODY_MOST`: it would reach into the other copy.

        """
        if len(body) > BODY_MOST:
            message = f"an entry of the lanes does not fit its place bytes={len(body)} most={BODY_MOST}"
            raise ValueError(message)
        generation = self._generations[block] + 1
        self._file.write(pack_entry(body, self._epoch, generation), _place(block, generation % 2))
        self._generations[block] = generation
        self._standing.add(block)
        self._count()
        self._stored = True

    def sync(self) -> None:
        """Make durable what was stored, if anything was (the keeper's thread).

        Raises:
            WalIOError: the disk failed.

        """
        if self._stored:
            self._stored = False
            self._file.sync()

    def _look(self, block: int) -> BlockFound | None:
        data = self._read(_place(block, 0), BLOCK_BYTES)
        if data is not None:
            copies = [unpack_entry(data[:ENTRY_BYTES]), unpack_entry(data[ENTRY_BYTES:])]
        else:
            self._unusable.add(block)
            message = "a block of the lanes cannot be read, the lane that it was for begins anew: check the disk"
            log.warning("%s block=%d path=%s", message, block, self._file.path)
            parts = (self._read(_place(block, copy), ENTRY_BYTES) for copy in (0, 1))
            copies = [_Copy("damaged") if part is None else unpack_entry(part) for part in parts]
        if all(copy.state == "blank" for copy in copies):
            return None
        whole = sorted((copy for copy in copies if copy.state == "whole"), key=lambda copy: -copy.generation)
        damaged = any(copy.state == "damaged" for copy in copies)
        damaged |= any(copy.state == "whole" and copy.generation % 2 != at for at, copy in enumerate(copies))
        self._generations[block] = whole[0].generation if whole else 0
        epoch = whole[0].epoch if whole else 0
        known = bool(whole) and self._since <= epoch < self._epoch  # nothing was stored in this opening yet
        if known and self._counted and len(whole) == 1:  # who does not count does not begin generations anew, either
            damaged |= whole[0].generation & _STORES > 1
        return BlockFound(block, tuple(copy.body for copy in whole), damaged, known, epoch)

    def _read(self, offset: int, length: int) -> bytes | None:
        """None: it cannot be read."""
        try:
            return self._file.read(offset, length)
        except WalIOError:
            return None

    def _put_header(self, count: int, length: int = SECTOR) -> None:
        self._counted = count  # also where it fails: tried again once it is another one
        self._file.write(pack_header(replace(self._header, standing=count)).ljust(length, b"\0"), 0)
        self._stored = True  # the next checkpoint flushes it

    def _write_header(self, *, readable: bool) -> None:
        """Where it cannot be read, as a whole page, and if it must be, not at all; without room for it, later (`grow`).

        Then without the rest of its page: a lane may have the first block by then. Without a header what this opening
        stores is not known to the next one; nothing worse comes of that.
        """
        try:
            self._put_header(len(self._standing), SECTOR if readable else PAGE)
        except WalFullError as error:
            self._late = True
            self._tell_unwritten("free disk space", error)
        except WalIOError as error:
            if readable:
                raise
            self._tell_unwritten("check the disk", error)

    def _store_again(self) -> None:
        """As it stands there: a flush that failed in an earlier life has perhaps left it in memory alone.

        The kernel calls it clean then, and where it gives the page up, the header of another boot may come back, and
        what this opening stores would be unknown to the next one. Where there is no room, it stands all the same.
        """
        with suppress(WalFullError):
            self._put_header(self._counted)

    def _write_late(self) -> None:
        """It counts nothing, for the loop may clear a block meanwhile; the next store has it count."""
        try:
            self._put_header(0)
        except WalFullError:
            return
        except WalIOError as error:
            self._tell_unwritten("check the disk", error)
        self._late = False

    def _tell_unwritten(self, remedy: str, error: WalError) -> None:
        message = "what is in flight at the end of this process may be sent twice"
        log.warning("%s: %s path=%s error=%s", message, remedy, self._file.path, error)


def _place(block: int, copy: int) -> int:
    return SECTOR + block * BLOCK_BYTES + copy * ENTRY_BYTES
