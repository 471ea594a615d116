"""The ring: it gives segments of the file to lanes, takes them back, and keeps the limits.

All methods belong to the event loop's thread, but for those that say "blocks": these run in a thread.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from aiorecover.errors import WalError, WalFullError
from aiorecover.ring import format as layout
from aiorecover.ring.checkpoint import Checkpoint, Sources
from aiorecover.ring.directory import Directory
from aiorecover.ring.flush import Flusher
from aiorecover.ring.format import SEGMENT_HEAD_SIZE, BatchState, Geometry, SegmentHead, SegmentKind
from aiorecover.ring.lane import DEAD, Away, Lane
from aiorecover.ring.pool import Beside, FreeSegment, Pool
from aiorecover.ring.segments import Batch, Segment

IDLE_S = 1.0  # a lane without records gives its segment back after it: a start and one record take 64 KiB no longer
LEAST_BYTES = 8 << 20  # `wal_max_bytes` at the least: some lanes, and room to rewrite
SHARE_OF_VOLUME = 20  # a twentieth of the volume stays free unless the caller says otherwise
FREE_MOST = 1 << 30  # or a GiB, where that is less
DAMAGES_MOST = 1000  # damaged batches that wait to be named in a manifest: the log names all
NAMED_LANES = 3  # that an error about a full ring names

_log = logging.getLogger("aiorecover")


class Limits(NamedTuple):
    """The limits of a ring, in bytes. ``min_free``: left free on the volume; None: a share of it."""

    max_bytes: int = 20 << 30
    min_free: int | None = None
    batch_bytes: int = 256 << 10


def kept_free(total: int, min_free: int | None) -> int:
    """Return the bytes that stay free on a volume of ``total`` bytes; ``min_free`` as in `Limits`."""
    return min(FREE_MOST, total // SHARE_OF_VOLUME) if min_free is None else min_free


class Ring:
    """The segments of one directory, and the lanes that they belong to.

    Attributes:
        lanes: by (topic, partition).
        parked: segments whose batches are all done, but not durably (R10).
        used: bytes of the segments that belong to lanes, or are parked.
        recovering: what earlier lives left is not in the lanes yet.

    """

    def __init__(self, directory: Directory, limits: Limits = Limits(), geometry: Geometry = Geometry()) -> None:  # noqa: B008
        self.directory, self.files, self.fd = directory, directory.files, directory.ring
        self.limits, self.geometry = limits, geometry
        self.batch_bytes = limits.batch_bytes
        self.min_free = 0
        self.producer_id = ""
        self.epoch = 0
        self.boot_id = bytes(16)
        self._saving = threading.Lock()  # the keeper writes the checkpoint, and delivery does at its first connection
        self.closing = False  # threads must not touch the file any more
        self.topics: dict[str, int] = {}  # known numbers of partitions
        self.sources: Sources = {}
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.pool = Pool(self.files, self.fd, geometry)
        self.parked: list[Segment] = []
        self.away = Away()
        self.used = 0
        self.pending = 0  # records in sealed batches that are not done
        self.transaction = self.settled_transaction = 0  # the highest number in a batch, and in a settled one (R12)
        self.recovering = False
        self.doubt_since = directory.flush_pending  # a flush was under way as the last life ended (R6)
        self.undurable = False  # a flush failed before the opening's: what earlier lives left may not be on the disk
        self.damaged = 0  # records
        self.damages: deque[tuple[int, int, int]] = deque(maxlen=DAMAGES_MOST)  # epoch, first and last sequence
        self.issued: dict[int, int] = {}  # the highest sequence that was found of each earlier epoch
        self.checkpoint_due = False
        self.flusher = Flusher(self)
        self.next_sequence: Callable[[], int] = lambda: 0
        self.want_flush: Callable[[], None] = lambda: None
        self.beside: Beside = _at_once
        self.owner: Any = None  # the producer behind the receipts
        self.on_ready: Callable[[Lane], None] = lambda _: None  # a lane has a first record, or a full batch
        self._ordinal = 0
        self._cooling: list[tuple[int, Segment]] = []  # number of the flush that has to be done, segment

    # -- space ---------------------------------------------------------------------------------------------------------

    def check_volume(self) -> None:
        """Fix what stays free on the volume.

        Raises:
            WalFullError: the volume cannot hold the least that a ring takes, and no segment waits to be delivered.

        """
        free, total = self.files.volume(self.directory.path)
        self.min_free = kept_free(total, self.limits.min_free)
        room = free + self.used + self.pool.kept - self.min_free
        least = min(LEAST_BYTES, self.limits.max_bytes)
        if room < least and not self.used:
            fits = free - least
            other = f"lower wal_min_free_bytes to {fits} at most" if fits >= 0 else "choose a wal_dir on another one"
            raise WalFullError(
                f"the volume cannot hold a write-ahead log: free disk space, or {other} free={free} "
                f"wal_min_free_bytes={self.min_free} needed={least} path={self.directory.path}"
            )

    def start_ordinals(self) -> None:
        """Begin the ordinals of this epoch."""
        self._ordinal = self.epoch << 32

    def size_for(self, need: int) -> int | None:
        """Return the class of segment that takes ``need`` bytes, its head included; None: none does."""
        geometry = self.geometry
        for size in (geometry.small, geometry.large):
            if need <= size:
                return size
        size = -(-need // geometry.huge_unit) * geometry.huge_unit
        return size if size <= geometry.huge_most else None

    def allows(self, size: int) -> bool:
        """Whether the limit leaves room for a segment of this size."""
        return self.used + size <= self.limits.max_bytes

    def has_room(self, size: int) -> bool:
        """Whether limit and volume leave room for a segment of this size, whatever it is for."""
        return self.allows(size) and (self.pool.keeps(size) or self._volume_allows(size))

    def _volume_allows(self, size: int) -> bool:
        try:
            return self.files.volume(self.directory.path)[0] - size >= self.min_free
        except WalError:  # the directory was removed: `state` says so
            return True

    def take(self, size: int, lane: Lane, kind: SegmentKind) -> Segment:
        """Give a free segment to a lane; a rewrite may go beyond the limit (R10).

        Raises:
            WalFullError: the limit, or the volume's, is reached.

        """
        rewriting = kind is not SegmentKind.PUBLISHED
        if not rewriting and not self.allows(size):
            self._hurry()
            raise WalFullError(
                f"the ring is full: wait for delivery, or raise wal_max_bytes wal_max_bytes={self.limits.max_bytes} "
                f"{self._fillers()}"
            )
        place, reserved, _ = self._find(size, rewriting)
        self._ordinal += 1
        head = SegmentHead(
            size,
            kind,
            lane.topic,
            lane.partition,
            self._ordinal,
            int.from_bytes(self.files.random(8), "little") | 1,
            self.epoch,
            self.boot_id,
            self.producer_id,
        )
        region = self.pool.region_of(place)
        segment = Segment(region, place - region.base, head, lane)
        segment.allocated = reserved
        try:
            segment.allocate(SEGMENT_HEAD_SIZE, min(size, self.geometry.small))
            region.heat()
        except BaseException:
            self.pool.put(place, size, segment.allocated, segment.allocated)
            raise
        segment.write(0, layout.pack_segment(head, place))
        segment.opened_at = self.files.monotonic()
        region.used += 1
        lane.segments += 1
        lane.held += size
        self.used += size
        return segment

    @property
    def full(self) -> bool:
        """Whether the limit, or the volume's, does not let a lane take another small segment."""
        return not self.has_room(self.geometry.small)

    def _find(self, size: int, rewriting: bool) -> FreeSegment:  # noqa: FBT001
        found = self.pool.take_kept(size)
        if found is not None:
            return found
        self.pool.give_back(self.used + self.pool.kept + size - self.limits.max_bytes)  # of other sizes
        volume = self.files.volume(self.directory.path)[0]
        if not rewriting and volume - size < self.min_free:  # a rewrite takes what it can get (R10)
            self._hurry()
            raise WalFullError(
                "the volume is full: free disk space, or wait for delivery "
                f"free={volume} wal_min_free_bytes={self.min_free} path={self.directory.path}"
            )
        return self.pool.take_hole(size)

    def free(self, segment: Segment) -> None:
        """Put a segment whose batches are all done, durably, back into the pool."""
        region = segment.region
        if not segment.cooled:
            region.hot -= 1
        region.used -= 1
        segment.lane.segments -= 1
        segment.lane.earlier -= segment.earlier
        self.used -= segment.size
        if segment.earlier:  # how much of it has disk space is not known
            self.pool.put(segment.place, segment.size, 0, segment.size)
        else:
            self.pool.put(segment.place, segment.size, segment.allocated, segment.allocated)

    def _hurry(self) -> None:
        """Have room made soon: idle lanes give back their segments, and a flush frees parked ones."""
        for lane in self.lanes.values():
            if lane.idle:
                lane.give_back()
        if self.parked:
            self.want_flush()

    def _fillers(self) -> str:
        """Say which lanes take most of the ring."""
        sizes: Counter[str] = Counter()
        for lane in self.lanes.values():
            sizes["dead letters" if lane.partition == DEAD else str(lane)] += lane.segments
        return "most_segments=" + ",".join(
            f"{name}:{number}" for name, number in sizes.most_common(NAMED_LANES) if number
        )

    # -- what lanes and batches say ------------------------------------------------------------------------------------

    def lane(self, topic: str, partition: int) -> Lane:
        """Return the lane of a partition, made where it is new."""
        found = self.lanes.get((topic, partition))
        if found is None:
            found = self.lanes[topic, partition] = Lane(self, topic, partition)
        return found

    def opened(self, batch: Batch) -> None:
        """Take note that a lane has opened a batch."""
        self.flusher.dirty[batch] = None
        if batch.segment.kind is SegmentKind.PUBLISHED:
            batch.lane.touched_at = self.files.monotonic()
            self.on_ready(batch.lane)

    def sealed(self, batch: Batch) -> None:
        """Take note that a lane has sealed a published batch."""
        self.pending += batch.count
        self.on_ready(batch.lane)

    def finish(self, batch: Batch, state: BatchState, *, stored: bool = False) -> None:
        """Store that a batch is done, unless a thread has, and count what follows from it."""
        if not stored:
            batch.store(state, self.epoch)
        segment = batch.segment
        if batch.count:
            self.pending -= batch.count
        batch.lane.remove(batch)
        batch.lane.touched_at = self.files.monotonic()
        segment.pending -= 1
        if segment.closed and not segment.pending:
            self.park(segment)
        waiters, batch.waiters = batch.waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def abandon(self, child: Batch) -> None:
        """Void a rewritten batch whose parent goes on counting (R8)."""
        child.count = 0  # its records were never counted
        self.finish(child, BatchState.VOID)

    def closed(self, segment: Segment) -> None:
        """Take note that a lane writes to another segment now."""
        if not segment.pending:
            self.park(segment)
        elif segment.kind is SegmentKind.PUBLISHED and segment.lane.later and segment.lane.later[0] is not segment:
            self._cooling.append((self.flusher.begun + 1, segment))

    def park(self, segment: Segment) -> None:
        """Keep a segment until it is durable that its batches are done."""
        self.parked.append(segment)
        segment.lane.held -= segment.size
        if self.used + segment.size > self.limits.max_bytes:
            self.want_flush()

    @property
    def unflushed(self) -> bool:
        """Whether a flush would make something durable."""
        return bool(self.flusher.dirty or self.parked or self.checkpoint_due)

    def flushed(self) -> None:
        """After a flush: cool what it covers, unmap what is cold."""
        waiting = []
        for number, segment in self._cooling:
            if number > self.flusher.done:
                waiting.append((number, segment))
            elif segment.pending and not segment.cooled and segment.unloaded == SEGMENT_HEAD_SIZE:
                segment.cool()
        self._cooling = waiting
        for region in self.pool.regions:
            if not region.hot:
                region.mapping = None  # unmapped once no thread reads there

    def tidy(self) -> None:
        """Once a second: give back segments of idle lanes, and the disk space of what has been free for a while."""
        now = self.files.monotonic()
        for lane in self.lanes.values():
            if lane.segments and lane.idle and now - lane.touched_at >= IDLE_S:
                lane.give_back()
        if self._cooling or self.parked:
            self.want_flush()
        self.pool.rest(now, self.beside, busy=self.used > 0 and self._volume_allows(self.geometry.large))

    # -- the checkpoint ------------------------------------------------------------------------------------------------

    def note_source(self, source: tuple[str, int, int], sequence: int, segment: Segment) -> None:
        """Remember that the newest record, in ``segment``, was made from this topic, partition and offset (R16)."""
        topic, partition, offset = source
        segment.sources = True
        self.sources[topic, partition] = (offset, self.epoch, sequence)
        self.checkpoint_due = True  # with the flush that covers the record: else it would be made again

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as it stands on the disk; there is one once the ring is open."""
        stored = self.directory.checkpoint
        assert stored is not None
        return stored

    def save_checkpoint(self, sources: Sources) -> None:
        """Write the checkpoint; blocks. ``sources``: what a completed flush covers.

        Raises:
            WalError: it could not be written; the one before still holds.

        """
        with self._saving:
            stored = self.checkpoint
            self.directory.save(
                msgspec.structs.replace(
                    stored,
                    topics=dict(self.topics),
                    sources={f"{topic}:{partition}": newest for (topic, partition), newest in sources.items()},
                    transaction=max(stored.transaction, self.settled_transaction),
                )
            )

    def remember_cluster(self, cluster_id: str) -> None:
        """Store in the checkpoint which cluster the records belong to; blocks.

        Raises:
            WalError: it could not be written: nothing may be sent.

        """
        with self._saving:
            self.directory.save(msgspec.structs.replace(self.checkpoint, cluster_id=cluster_id))

    def close(self) -> None:
        """Unmap everything and let go of the directory."""
        self.closing = True
        for region in self.pool.regions:
            region.close()
        self.directory.close()


def _at_once(work: Callable[[], None], then: Callable[[], None]) -> None:
    """Run both here: where there is no keeper."""
    work()
    then()
