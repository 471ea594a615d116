"""The durable state of a directory: two alternating, checksummed copies in one file.

    file    copy 0 at 0, copy 1 at COPY_BYTES
    copy    magic 8 · version u16 · zero u16 · length u32 · generation u64 · crc u32 · body

The newer valid copy counts. A copy is overwritten only while the other one is durable (I4), so a torn write costs one
checkpoint interval and never the directory.

A checkpoint grows with the age of what waits, and a disk that others have filled meanwhile must not refuse it: so the
blocks of both copies are allocated before the first one is written.
"""

import logging
import struct
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Protocol

import msgspec

from aiorecover.errors import WalCorruptError, WalError, WalFormatError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import StoredAges
from aiorecover.wal.checksum import crc32
from aiorecover.wal.ends import Ends, above, furthest
from aiorecover.wal.sources import Stored, later
from aiorecover.wal.suffix import Suspicion

log = logging.getLogger("aiorecover.wal")

MAGIC = b"\x89AIOCHK\n"
FORMAT_VERSION = 1
ENVELOPE = struct.Struct("<8sHHIQI")
COPY_BYTES = 64 * 1024  # source positions of thousands of partitions fit; a power of two keeps the write aligned
SECTOR = 512
OPENINGS_MOST = 64  # that are remembered, so that no copy's files are taken for ours; 11 bytes each
CLUSTER_NUMBERS = 1 << 16  # they are kept in 16 bits


class CheckpointFileLike(Protocol):
    """What a checkpoint needs of storage."""

    def size(self) -> int: ...  # noqa: D102
    def disk_bytes(self) -> int: ...  # noqa: D102
    def allocate(self, offset: int, length: int) -> None: ...  # noqa: D102
    def read(self, offset: int, length: int) -> bytes: ...  # noqa: D102
    def write(self, data: bytes, offset: int) -> None: ...  # noqa: D102
    def sync(self) -> None: ...  # noqa: D102


Line = tuple[tuple[str, int], ...]
"""Openings, oldest first, and the last position that is in Kafka of what the directory held in each."""


class Transactional(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a directory whose records go in transactions: what is known of the position that Kafka keeps for it.

    ``line``: the openings of this directory, the present one last. ``others``: those of its copies. ``read_in``: epoch
    of the last one that has read the position. ``committed_by``: who has committed it last, as far as is known; empty:
    nobody yet. ``topic``: partition 0 of it has the position; empty: where it is by default. ``number`` of the
    transactional id in use.
    """

    line: Line = ()
    others: Line = ()
    read_in: int = 0
    committed_by: str = ""
    topic: str = ""
    number: int = 0


class Destination(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the records of a directory belong; None is not yet known.

    ``servers``: where they were to go, as long as ``cluster_id`` is not known. ``cluster_number``: one more each time
    that another cluster takes the place of the one before; what delivery keeps of a cluster bears it.
    ``transactional``: None: they do not go in transactions. ``expiration_ms``: how long its brokers remember a producer
    that sends nothing, as far as they told.
    """

    cluster_id: str | None = None
    name: str | None = None
    servers: tuple[str, ...] = ()
    cluster_number: int = 0
    transactional: Transactional | None = None
    expiration_ms: int | None = None

    @property
    def next_number(self) -> int:
        """Of the cluster after this one; who names as many as there are numbers has nothing left of the first."""
        return (self.cluster_number + 1) % CLUSTER_NUMBERS

    def after(self, durable: "Destination") -> "Destination":
        """The newer of the two, which the one written before may be."""
        ahead = (durable.cluster_number - self.cluster_number) % CLUSTER_NUMBERS
        if ahead == 0:
            transactional = self.transactional  # None: from now on they go in none
            if transactional is not None and durable.transactional is not None:
                transactional = max(transactional, durable.transactional, key=attrgetter("number", "read_in"))
            newer = durable if self.cluster_id is None else self
            told = newer.expiration_ms
            if self.cluster_id == durable.cluster_id:
                told = self.expiration_ms or durable.expiration_ms
            return msgspec.structs.replace(newer, transactional=transactional, expiration_ms=told)
        return durable if ahead < CLUSTER_NUMBERS // 2 else self


Openings = tuple[tuple[int, int], ...]
"""Epoch and nonce of each, oldest first."""


class RingState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a directory knows durably of one of its rings.

    ``watermark``: highest position up to which nothing in the ring is needed any more. ``next_ordinal``: of its next
    slot, because a slot that is cut off the file takes its header with it. ``flushed``: position of the newest frame
    when the flush before this checkpoint began: every frame up to it is durable. ``earlier``: the same of the epochs
    before that one in which something waits, as many as `above` keeps. ``by_originals``, of the retry ring:
    both copies of the checkpoint were lost, and nothing was stored there since: a copy counts unless its original
    holds. ``seen``: of such epochs, up to where frames stood when the directory was opened, whether a flush had covered
    them or not: as long as the machine is up nothing but damage takes them.
    """

    watermark: int = 0
    next_ordinal: int = 1
    flushed: int = 0
    by_originals: bool = False
    earlier: Ends = ()
    seen: Ends = ()

    @property
    def ends(self) -> Ends:
        """Of each epoch, the oldest first, up to where it was flushed."""
        return (*self.earlier, self.flushed)

    @property
    def told(self) -> Ends:
        """Of each epoch up to where frames must be there, unless they are damaged or were recycled."""
        return furthest(self.ends, self.seen)

    def found(self, *, same_boot: bool) -> "RingState":
        """As it holds when it is read: what no flush had covered may have gone with the machine."""
        return self if same_boot else msgspec.structs.replace(self, seen=())

    def after(self, durable: "RingState") -> "RingState":
        """The same, with what is known already: nothing falls, and once something was stored it stays so."""
        watermark = max(self.watermark, durable.watermark)
        *earlier, flushed = furthest(self.ends, durable.ends)
        return RingState(
            watermark=watermark,
            next_ordinal=max(self.next_ordinal, durable.next_ordinal),
            flushed=flushed,
            by_originals=self.by_originals and durable.by_originals,
            earlier=above(watermark, earlier),
            seen=self.seen,
        )


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory knows durably.

    ``moved``: the P of compaction: frames of the main ring up to it are void, because they live in the retry ring
    (0: nothing was moved). ``boot_id``: of the machine when this was written. ``closed``: nothing was stored after
    it. ``poisoned``: a flush had failed. ``suspect``: which settle words
    may have been lost in any order, so that the lane suffix rule is in force for them. ``sources``: as in `Sources`;
    None: nobody has asked for them yet. ``openings``: those before this one, the newest `OPENINGS_MOST`.
    """

    producer_id: int
    epoch: int
    slot_bytes: int
    main: RingState = RingState()
    retry: RingState = RingState()
    dead: RingState = RingState()
    moved: int = 0
    boot_id: str = ""
    closed: bool = False
    poisoned: bool = False
    suspect: Suspicion = Suspicion()
    destination: Destination = Destination()
    ages: StoredAges = StoredAges()
    sources: Stored | None = None
    openings: Openings = ()

    @property
    def watermark(self) -> int:
        """Of the main ring; what was moved counts as done there."""
        return self.main.watermark

    def written_in(self, boot_id: str) -> bool:
        """In this boot of the machine, as far as it is known."""
        return self.boot_id == boot_id != ""

    @property
    def left_nothing(self) -> bool:
        """Its process had closed the main ring with nothing in it that waits."""
        return self.closed and self.main.watermark >= self.main.flushed

    @property
    def waits(self) -> tuple[bool, ...]:
        """Of the main, the retry and the dead ring: whether something waited there that a flush had covered."""
        void = self.moved, 0, 0
        return tuple(
            any(end > max(ring.watermark, up_to) for end in ring.ends)
            for ring, up_to in zip((self.main, self.retry, self.dead), void, strict=True)
        )

    def tells_first(self, durable: "Checkpoint") -> bool:
        """Something waits in a ring in which nothing did as ``durable``, the one written before, knows it.

        Were this one lost, that one would say that nothing can be missing there.
        """
        return any(now and not before for now, before in zip(self.waits, durable.waits, strict=True))

    def after(self, durable: "Checkpoint") -> "Checkpoint":
        """The same, taking nothing back of what ``durable``, the one written before, says of rings and destination.

        It may have been captured before a move or a rewriting was made, before the rings were told of that, or while
        another cluster was being remembered.
        """
        return msgspec.structs.replace(
            self,
            main=self.main.after(durable.main),
            retry=self.retry.after(durable.retry),
            dead=self.dead.after(durable.dead),
            moved=max(self.moved, durable.moved),
            destination=self.destination.after(durable.destination),
            ages=self.ages.after(durable.ages),
            sources=later(self.sources, durable.sources),
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy as found: ``state`` is valid, blank (all zero or absent) or damaged."""

    state: str
    generation: int = 0
    checkpoint: Checkpoint | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode


def pack(checkpoint: Checkpoint, generation: int) -> bytes:
    """One copy, padded to whole sectors.

    Raises:
        WalCorruptError: it does not fit a copy; the older checkpoint stays in force.

    """
    body = _encode(checkpoint)
    head = ENVELOPE.pack(MAGIC, FORMAT_VERSION, 0, len(body), generation, 0)[:-4]
    data = head + struct.pack("<I", crc32(body, crc32(head))) + body
    if len(data) > COPY_BYTES:
        message = f"the checkpoint does not fit its place: use fewer source partitions bytes={len(data)}"
        raise WalCorruptError(message)
    return data + bytes(-len(data) % SECTOR)


def unpack(data: bytes) -> Copy:
    """One copy from its bytes.

    Raises:
        WalFormatError: a valid copy of a newer format version.

    """
    if not any(data):
        return Copy("blank")
    if len(data) < ENVELOPE.size:
        return Copy("damaged")
    magic, version, _, length, generation, crc = ENVELOPE.unpack_from(data)
    body = data[ENVELOPE.size : ENVELOPE.size + length]
    if magic != MAGIC or len(body) != length or crc != crc32(body, crc32(data[: ENVELOPE.size - 4])):
        return Copy("damaged")
    if version != FORMAT_VERSION:
        message = (
            "the checkpoint was written by a newer aiorecover: upgrade to read it "
            f"version={version} supported={FORMAT_VERSION}"
        )
        raise WalFormatError(message)
    try:
        checkpoint = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Copy("damaged")
    return Copy("valid", generation, checkpoint) if _can_be(checkpoint, generation) else Copy("damaged")


_position_of = itemgetter(0)


def _can_be(checkpoint: Checkpoint, generation: int) -> bool:
    """A checksum proves that the bytes are whole, not that they make sense: what follows computes with them."""
    beyond = fmt.position(checkpoint.epoch + 1, 0)  # there, records of the next epoch would be taken for settled
    rings = (checkpoint.main, checkpoint.retry, checkpoint.dead)
    return (
        0 < generation < 1 << 63  # those that follow fit, too
        and checkpoint.producer_id >= 0  # and below 1 << 64, as every integer of MessagePack
        and 0 < checkpoint.epoch <= fmt.EPOCH_MAX
        and all(0 <= position < beyond for position in (checkpoint.moved, checkpoint.suspect.up_to))
        and all(0 <= position < beyond for ring in rings for position in (ring.watermark, ring.flushed))
        and all(
            0 <= position < beyond for position in (checkpoint.ages.expired, *map(_position_of, checkpoint.ages.marks))
        )
        and all(0 <= position < beyond for ring in rings for position in (*ring.earlier, *ring.seen))
        and all(0 < ring.next_ordinal < 1 << 63 for ring in rings)
        and 0 <= checkpoint.destination.cluster_number < CLUSTER_NUMBERS
        and _can_be_known(checkpoint.destination.transactional, checkpoint.epoch)
        and all(
            0 <= part < 1 << 31 and 0 < following < 1 << 63
            for parts in (checkpoint.sources or {}).values()
            for part, following in parts.items()
        )
        and all(0 < epoch < checkpoint.epoch and 0 <= nonce <= fmt.NONCE_MASK for epoch, nonce in checkpoint.openings)
        and 0 <= checkpoint.suspect.since <= checkpoint.suspect.generation <= checkpoint.epoch
    )


class CheckpointFile:
    """The two copies on storage; remembers which one is next."""

    def __init__(self, file: CheckpointFileLike) -> None:
        """Read both copies."""
        self._file = file
        self.copies = [unpack(file.read(index * COPY_BYTES, COPY_BYTES)) for index in (0, 1)]
        self._generation = max(copy.generation for copy in self.copies)
        self.wants_room = False  # there was none for the whole file: let the keeper call `allocate`

    def newest(self) -> Checkpoint | None:
        """The valid copy with the highest generation when the file was opened, or None; what is written is not here."""
        return max(self.copies, key=lambda copy: copy.generation).checkpoint

    def allocate(self) -> None:
        """Have the blocks of both copies exist, unless they do: a new file has none, a copied one may have holes.

        Where the file system cannot, it goes on without: then a full disk may refuse a checkpoint.

        Raises:
            WalFullError: the disk is full; what stands in the file is not harmed.

        """
        self.wants_room = False
        if min(self._file.size(), self._file.disk_bytes()) >= 2 * COPY_BYTES:
            return
        try:
            self._file.allocate(0, 2 * COPY_BYTES)
        except WalFullError:
            self.wants_room = True
            raise
        except WalIOError as error:  # if it is the disk, the next write says so
            log.info("the checkpoint is not allocated beforehand error=%s", error)

    def write(self, checkpoint: Checkpoint) -> None:
        """Make one copy durable, in the place of the older one (I4).

        Raises:
            WalCorruptError: nobody could read it again: what is there stays.

        """
        generation = self._generation + 1
        packed = pack(checkpoint, generation)
        if unpack(packed).state != "valid":
            message = "a checkpoint would make no sense and was not written: stop and start again"
            raise WalCorruptError(f"{message} generation={generation}")
        self._file.write(packed, generation % 2 * COPY_BYTES)
        self._file.sync()
        self._generation = generation

    def secure(self) -> None:
        """Make the newest copy durable as it was found: the other one is overwritten next (I4).

        A process that died before its flush left it in the page cache alone, and after a failed flush the kernel may
        call it clean: so it is stored again first.
        """
        newest = self.newest()
        if newest is not None:
            self._file.write(pack(newest, self._generation), self._generation % 2 * COPY_BYTES)
            self._file.sync()

    def leave_word(self, checkpoint: Checkpoint) -> None:
        """Store one copy without a flush, in the place of the older one; whether that works or not."""
        with suppress(WalError):
            self._file.write(pack(checkpoint, self._generation + 1), (self._generation + 1) % 2 * COPY_BYTES)

    def write_both(self, checkpoint: Checkpoint) -> None:
        """Make both copies durable, one after the other: a new epoch stands in both before its first frame (I5)."""
        self.write(checkpoint)
        self.write(checkpoint)


def _can_be_known(transactional: Transactional | None, epoch: int) -> bool:
    """Openings are named with their epochs; positions of copies may be beyond ours."""
    if transactional is None:
        return True
    openings = (*transactional.line, *transactional.others)
    return (
        transactional.number >= 0
        and 0 <= transactional.read_in <= epoch
        and all(last >= 0 and names_opening(owner) for owner, last in openings)
    )


def names_opening(owner: str) -> bool:
    """Whether somebody who has committed a position was an opening: its epoch stands at the end of its name."""
    return owner.rpartition("/")[2].isdecimal()
