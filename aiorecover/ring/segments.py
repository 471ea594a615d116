"""Regions, segments and batches in memory: where they lie in the file, and how they are read and stored there.

A hot segment is read and written through the mapping of its region. A cold one is not resident: `Batch.read` and
`Batch.store` use ``pread`` and ``pwrite`` there, and belong in a thread.
"""

from typing import TYPE_CHECKING, Any

from aiorecover.ring import format as layout
from aiorecover.ring.checksum import crc32
from aiorecover.ring.files import Files, Mapping
from aiorecover.ring.format import DONE, RECORDS_AT, BatchState, SyncPoint
from aiorecover.ring.notes import notes_crc
from aiorecover.ring.records import BATCH_HEAD_SIZE, batch_head

if TYPE_CHECKING:
    from aiorecover.ring.lane import Lane

Identity = tuple[int, int, int]  # Kafka producer id, producer epoch, base sequence


class Region:
    """A part of the file whose segments have one size; mapped while one of them is hot."""

    __slots__ = ("base", "fd", "files", "hot", "length", "mapping", "size", "used")

    def __init__(self, files: Files, fd: int, base: int, size: int, length: int) -> None:
        self.files, self.fd, self.base, self.size, self.length = files, fd, base, size, length
        self.mapping: Mapping | None = None
        self.hot = 0  # segments that are read and written through the mapping
        self.used = 0  # segments that belong to a lane

    def heat(self) -> Mapping:
        """Count one more hot segment; map the region for the first one."""
        if self.mapping is None:
            self.mapping = self.files.map(self.fd, self.base, self.length)
        self.hot += 1
        return self.mapping

    def close(self) -> None:
        """Unmap the region, which no thread uses any more."""
        if self.mapping is not None:
            self.mapping.close()
            self.mapping = None
        self.fd = -1  # the number may belong to another file soon


class Segment:
    """A piece of the ring that belongs to one lane. ``at`` is its place within its region."""

    __slots__ = (
        "accepted_at", "allocated", "at", "closed", "cooled", "earlier", "filled", "kind", "lane", "notes",
        "opened_at", "ordinal", "pending", "region", "salt", "seed", "size", "sources", "trusted", "unloaded",
        "unloaded_notes",
    )  # fmt: skip

    def __init__(self, region: Region, at: int, head: layout.SegmentHead, lane: "Lane") -> None:
        self.region, self.at, self.size, self.lane = region, at, head.size, lane
        self.ordinal, self.salt, self.kind = head.ordinal, head.salt, head.kind
        self.seed = layout.salted(head.salt)  # the checksums of its batches begin with it
        self.pending = 0  # batches that are not done
        self.notes = self.size  # where the newest note starts
        self.allocated = 0  # bytes from its start that have disk space for sure
        self.closed = False  # its lane writes elsewhere now
        self.cooled = False
        self.earlier = False  # written by an earlier life: its batches are checked when they are read
        self.trusted = True  # written in this boot: its commit words count
        self.unloaded = layout.SEGMENT_HEAD_SIZE  # the first batch from here on has no object yet
        self.filled = layout.SEGMENT_HEAD_SIZE  # sealed batches reach up to here; of an earlier life: all of it
        self.unloaded_notes: tuple[int, ...] = (self.size,)  # where the notes of the batch before that one may start
        self.opened_at = 0.0
        self.accepted_at = 0  # Unix seconds: of the oldest batch that has no object, or had none
        self.sources = False  # its notes hold positions that the checkpoint has to have before it is reused

    @property
    def place(self) -> int:
        """Offset in the file."""
        return self.region.base + self.at

    @property
    def mapping(self) -> Mapping | None:
        """The mapping that shows the segment; None: it is cold."""
        return None if self.cooled else self.region.mapping

    def read(self, start: int, end: int) -> Any:
        """Return bytes-like contents; a view of the mapping where the segment is hot, so use it before it is reused."""
        mapping = self.mapping
        if mapping is not None:
            return mapping.view[self.at + start : self.at + end]
        return self.region.files.read(self.region.fd, self.place + start, end - start)

    def write(self, start: int, data: bytes) -> None:
        """Store bytes of a place that nothing reads meanwhile."""
        mapping = self.mapping
        if mapping is not None:
            mapping.data[self.at + start : self.at + start + len(data)] = data
        else:
            self.region.files.write(self.region.fd, self.place + start, data)

    def store(self, place: int, word: int) -> None:
        """Store 8 bytes at once."""
        mapping = self.mapping
        if mapping is not None:
            mapping.words[(self.at + place) >> 3] = word
        else:
            self.region.files.write(self.region.fd, self.place + place, word.to_bytes(8, "little"))

    def allocate(self, end: int, step: int) -> None:
        """Reserve disk space up to ``end``, in steps, before a page is touched.

        Raises:
            WalFullError: the disk has no room; nothing was stored.

        """
        if end > self.allocated:
            upto = min(max(end, self.allocated + step), self.size)
            self.region.files.allocate(self.region.fd, self.place + self.allocated, upto - self.allocated)
            self.allocated = upto

    def cool(self) -> None:
        """Take the segment out of the mapping."""
        mapping = self.mapping
        if mapping is not None:
            mapping.forget(self.at, self.size)
            self.cooled = True
            self.region.hot -= 1


class Batch:
    """One Kafka batch of a lane. Places count from the start of its segment."""

    __slots__ = (
        "__weakref__", "accepted_at", "at", "base", "children", "count", "covered", "end", "epoch", "error", "first",
        "identity", "lane", "latest", "notes", "notes_crc", "notes_from", "offset", "parent", "records_crc",
        "segment", "sent_at", "span", "state", "synced", "synced_notes", "transaction", "waiters", "which",
    )  # fmt: skip

    def __init__(self, lane: "Lane", segment: Segment, at: int, first: int, epoch: int, base: int) -> None:
        self.lane, self.segment, self.at = lane, segment, at
        self.first, self.epoch, self.base, self.latest = first, epoch, base, base
        self.state = BatchState.OPEN
        self.count = self.span = 0
        self.end = self.synced = at + RECORDS_AT  # of whole records: of an open batch, the lane's cursor knows better
        self.notes = self.notes_from = self.synced_notes = segment.notes
        self.records_crc = self.notes_crc = segment.seed
        self.which = 1  # the sync point that was stored last: the other one is next
        self.covered = at + RECORDS_AT  # up to where a completed flush covers it
        self.parent = (0, 0)
        self.accepted_at = self.sent_at = self.transaction = 0
        self.identity: Identity | None = None
        self.waiters: list[Any] | None = None
        self.children: list[tuple[Batch, Any]] | None = None
        self.offset: int | None = None  # Kafka's, of the first record
        self.error: str | None = None

    def __repr__(self) -> str:
        """Name the lane, the place, the state and the size."""
        place = f"{self.segment.ordinal:x}+{self.at}"
        return f"<batch {self.lane} {place} {self.state.name} first={self.first} count={self.count}>"

    @property
    def order(self) -> tuple[int, int]:
        """The place in the lane's order (R9)."""
        return self.epoch, self.first

    @property
    def done(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state in DONE

    @property
    def size(self) -> int:
        """Bytes of Kafka's head and the records."""
        return self.end - self.at - layout.OWN_HEAD_SIZE

    @property
    def safe(self) -> bool:
        """Whether a completed flush covers all of it."""
        return self.covered >= self.end

    @property
    def uncovered(self) -> bool:
        """Whether no completed flush covers any of it."""
        return self.covered == self.at + RECORDS_AT

    def read(self) -> Any:
        """Return the records, bytes-like."""
        return self.segment.read(self.at + RECORDS_AT, self.end)

    def read_notes(self) -> bytes:
        """Return the notes of its records, the newest first."""
        return bytes(self.segment.read(self.notes, self.notes_from))

    def store(self, state: BatchState, epoch: int) -> None:
        """Store the state and the epoch in which the batch came to it: one store."""
        self.store_word(state, epoch)
        self.state = state

    def store_word(self, state: BatchState, epoch: int) -> None:
        """Store a state on the disk alone: the object keeps its own until that is durable."""
        self.segment.store(self.at + layout.STATE_AT, layout.state_word(state, self.segment.salt, epoch))

    def store_identity(self, identity: Identity, sent_at: int, epoch: int) -> None:
        """Store what the batch is sent under, then SENT (R7). ``sent_at``: CLOCK_BOOTTIME in ms."""
        if self.state is BatchState.SENT:  # under another identity: half of the new one must never count
            self.store(BatchState.SEALED, epoch)
        head = batch_head(self.size - BATCH_HEAD_SIZE, self.count, self.base, self.latest, identity)
        self.segment.write(self.at + layout.OWN_HEAD_SIZE, head)
        self.segment.store(self.at + layout.SENT_AT, sent_at)
        self.identity, self.sent_at = identity, sent_at
        self.store(BatchState.SENT, epoch)

    def store_point(self, end: int, count: int, notes: int) -> None:
        """Store where the flush that follows covers the batch up to; the point that the last one made stays (R6)."""
        segment = self.segment
        self.records_crc = crc32(segment.read(self.synced, end), self.records_crc)
        if notes != self.synced_notes:
            self.notes_crc = notes_crc(bytes(segment.read(notes, self.synced_notes)), self.notes_crc)
        crc = layout.point_crc(
            self.records_crc,
            self.notes_crc,
            self.first,
            self.epoch,
            self.base,
            self.parent,
            end,
            notes,
            count,
        )
        self.which ^= 1
        place = self.at + layout.POINTS_AT[self.which]
        low, high = layout.pack_point(SyncPoint(end, count, notes, crc))
        segment.store(place, low)
        segment.store(place + 8, high)
        self.synced, self.synced_notes = end, notes


def store_all(batches: list[Batch], state: BatchState, epoch: int) -> None:
    """Store one state in several batches; blocks where they are cold."""
    for batch in batches:
        batch.store(state, epoch)
