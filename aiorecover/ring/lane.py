"""A lane: the ordered stream of one topic-partition, as it is stored.

A lane writes through cursors, one for what is published and one for what is rewritten, each into a segment of its own.
It keeps objects for the first few of its batches only: of those that were sealed after them it keeps the segments, and
reads their heads when their turn comes.
"""

from bisect import insort
from collections import deque
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from aiorecover.errors import RecordTooLargeError
from aiorecover.ring import format as layout
from aiorecover.ring.format import RECORDS_AT, SEGMENT_HEAD_SIZE, BatchState, SegmentKind
from aiorecover.ring.notes import TRAILER_SIZE, pack_note
from aiorecover.ring.records import TABLE, VARINT, varint
from aiorecover.ring.segments import Batch, Segment
from aiorecover.ring.tail import Tail

if TYPE_CHECKING:
    from aiorecover.ring.ring import Ring

UNASSIGNED = -1  # the partition of records whose topic's partitions are unknown
DEAD = -2  # the partition of the lane of dead letters
LOADED = 8  # batches of a lane that have objects; those after them are read back when their turn comes
QUICK_S = 0.1  # a lane that fills a small segment faster gets a large one: 640 KB/s
UNFINISHED = 4  # as does one with so many segments
STEP = 256 << 10  # bytes of a large segment that are reserved at a time
LEAST_BATCH = 1024  # bytes: less at the end of a segment is not worth a batch's head
VARINT_MOST = 10  # bytes of a number; a record's length, time and index are known to be no longer

_order = attrgetter("order")


class Cursor(Tail):
    """The tail of a lane, and the segment that it writes to."""

    __slots__ = ("free_from", "kind", "lane", "segment")

    def __init__(self, lane: "Lane", kind: SegmentKind) -> None:
        self.lane, self.kind = lane, kind
        self.segment: Segment | None = None
        self.free_from = 0  # where the next batch may begin, within the segment
        self._forget()

    def _forget(self) -> None:
        self.batch = None
        self.stamp = -1  # the time that `prefix` stands for; none
        self.prefix = b""
        self.index = self.position = self.limit = self.commit = self.bias = self.base = self.latest = 0
        self.data = self.words = None

    def set_time(self, timestamp: int) -> None:
        """Make ``prefix`` what a record of this time begins with; open a batch where there is none.

        Raises:
            WalFullError: there is no room for a batch; nothing was stored.

        """
        if self.batch is None:
            self.open(timestamp, 0, self.lane.ring.next_sequence(), self.lane.ring.epoch)
        delta = timestamp - self.base
        self.prefix = b"\0" + (VARINT[delta] if 0 <= delta < TABLE else varint(delta))
        self.stamp = timestamp
        self.latest = max(self.latest, timestamp)

    def make_room(self, need: int) -> None:
        """Seal the batch, and open one that takes a record of ``need`` bytes, its note with it.

        Raises:
            RecordTooLargeError: no segment is large enough; nothing was stored.
            WalFullError: there is no room; nothing was stored.

        """
        batch = self.batch
        assert batch is not None
        base = max(self.stamp, 0)
        if self.index:
            self.seal()
        else:
            self._drop_empty()
        self.open(base, need, self.lane.ring.next_sequence(), self.lane.ring.epoch)

    def open(self, base: int, need: int, first: int, epoch: int, parent: tuple[int, int] = (0, 0)) -> Batch:
        """Open a batch with room for ``need`` bytes; in the order of stores that recovery relies on.

        Raises:
            RecordTooLargeError: no segment is large enough; nothing was stored.
            WalFullError: there is no room; nothing was stored.

        """
        ring = self.lane.ring
        need = max(RECORDS_AT + need, LEAST_BATCH)
        at = layout.align(self.free_from)
        segment = self.segment
        if segment is None or at + need > segment.notes:
            segment = self._next_segment(need)
            at = SEGMENT_HEAD_SIZE
        end = min(at + max(ring.batch_bytes, need), segment.notes)
        segment.allocate(end, STEP)
        batch = Batch(self.lane, segment, at, first, epoch, base)
        batch.parent, batch.accepted_at = parent, ring.files.now_ms() // 1000
        mapping = segment.mapping
        assert mapping is not None
        start, data, words = segment.at + at, mapping.data, mapping.words
        rest, line_1 = layout.pack_new(at + RECORDS_AT, segment.notes, first, base, batch.accepted_at, epoch, parent)
        words[start + layout.SALT_AT >> 3] = 0
        data[start + layout.LINE_1_AT : start + layout.LINE_1_AT + len(line_1)] = line_1
        data[start + layout.COMMIT_AT : start + layout.COMMIT_AT + len(rest)] = rest
        words[start + layout.STATE_AT >> 3] = layout.state_word(BatchState.OPEN, segment.salt, ring.epoch)
        words[start + layout.SALT_AT >> 3] = segment.salt
        segment.pending += 1
        self.batch, self.data, self.words = batch, data, words
        self.index = 0
        self.stamp = -1
        self.base = self.latest = base
        self.position = start + RECORDS_AT
        self.limit = segment.at + end
        self.commit = start + layout.COMMIT_AT >> 3
        self.bias = layout.commit_word(0, segment.notes) - segment.at
        ring.opened(batch)
        return batch

    def add_note(self, payload: bytes, sequence: int) -> None:
        """Lay down the note of the record that is stored next, which `make_room` has counted in.

        Raises:
            WalFullError: the disk has no room; nothing was stored.

        """
        segment = self.segment
        assert segment is not None
        segment.allocate(segment.size, segment.size)
        note = pack_note(payload, sequence, self.index)
        start = segment.notes - len(note)
        segment.write(start, note)
        segment.notes = start
        self.limit = min(self.limit, segment.at + start)
        self.bias = layout.commit_word(0, start) - segment.at

    def progress(self) -> tuple[int, int, int]:
        """Return the open batch's end, count and start of notes."""
        segment = self.segment
        assert segment is not None
        return self.position - segment.at, self.index, segment.notes

    def seal(self) -> Batch:
        """Seal the open batch, which has a record at least."""
        batch, segment = self.batch, self.segment
        assert batch is not None
        assert segment is not None
        batch.end, batch.count, batch.notes = self.progress()
        batch.latest = self.latest
        batch.span = self._last_sequence() - batch.first
        segment.store(batch.at + layout.COUNT_AT, layout.pack_sealed(batch.count, batch.span))
        segment.store(batch.at + layout.LATEST_AT, batch.latest & 0xFFFFFFFFFFFFFFFF)
        batch.store(BatchState.SEALED, self.lane.ring.epoch)
        self.free_from = batch.end
        self._forget()
        if self.kind is SegmentKind.PUBLISHED:
            self.lane.enqueue(batch)
        return batch

    def _last_sequence(self) -> int:
        tail = bytes(self.data[self.position - 20 : self.position])  # the id is the last header, the sequence its end
        return int(tail[tail.rindex(b"/") + 1 :])

    def _drop_empty(self) -> None:
        """Take back an open batch without records: VOID, so that it is no evidence (R3)."""
        batch = self.batch
        assert batch is not None
        self._forget()
        self.free_from = batch.end
        self.lane.ring.finish(batch, BatchState.VOID)

    def leave(self) -> None:
        """Let go of the segment; what is in it goes on being delivered."""
        segment = self.segment
        if segment is None:
            return
        if self.batch is not None:
            if self.index:
                self.seal()
            else:
                self._drop_empty()
        self.segment, self.free_from = None, 0
        segment.closed = True
        self.lane.ring.closed(segment)

    def _next_segment(self, need: int) -> Segment:
        """Take a segment for a batch of ``need`` bytes, and let go of the one before."""
        ring, old = self.lane.ring, self.segment
        size = ring.size_for(need + SEGMENT_HEAD_SIZE)
        if size is None:
            raise RecordTooLargeError(
                f"the record does not fit a segment: lower its size bytes={need} lane={self.lane}"
            )
        if size == ring.geometry.small and self._wants_large(old) and ring.has_room(ring.geometry.large):
            size = ring.geometry.large
        segment = ring.take(size, self.lane, self.kind)
        self.leave()
        self.segment, self.free_from = segment, SEGMENT_HEAD_SIZE
        return segment

    def _wants_large(self, old: Segment | None) -> bool:
        lane = self.lane
        if lane.segments - lane.earlier >= UNFINISHED:
            return True
        if old is None:
            return False
        return lane.ring.files.monotonic() - old.opened_at < QUICK_S * old.size / lane.ring.geometry.small


class Lane:
    """The stream of one topic-partition. Batches go to Kafka in the order of (epoch, first sequence) (R9)."""

    __slots__ = (
        "earlier", "held", "later", "loaded", "partition", "published", "queue", "rewritten", "ring", "segments",
        "topic", "touched_at",
    )  # fmt: skip

    def __init__(self, ring: "Ring", topic: str, partition: int) -> None:
        self.ring, self.topic, self.partition = ring, topic, partition
        self.published = Cursor(self, SegmentKind.PUBLISHED)
        self.rewritten = Cursor(self, SegmentKind.DEAD if partition == DEAD else SegmentKind.REWRITTEN)
        self.queue: list[Batch] = []  # sealed, sent or held batches that have objects, in order
        self.loaded = 0  # of these, the published ones
        self.later: deque[Segment] = deque()  # published batches without objects lie here, after those of the queue
        self.segments = 0  # that belong to the lane
        self.held = 0  # bytes of them, but for those whose batches are all done
        self.earlier = 0  # of these, the ones that earlier lives took
        self.touched_at = 0.0

    def __repr__(self) -> str:
        """Name topic and partition."""
        return f"{self.topic}/{self.partition}"

    def enqueue(self, batch: Batch) -> None:
        """Put a sealed published batch at the end."""
        batch.segment.filled = layout.align(batch.end)
        if self.later or self.loaded >= LOADED or self.ring.recovering:
            if not self.later or self.later[-1] is not batch.segment:
                batch.segment.unloaded, batch.segment.unloaded_notes = batch.at, (batch.notes_from,)
                batch.segment.accepted_at = batch.accepted_at
                self.later.append(batch.segment)
            self.ring.away[batch.segment.ordinal, batch.at] = batch
        else:
            batch.segment.unloaded, batch.segment.unloaded_notes = layout.align(batch.end), (batch.notes,)
            self.queue.append(batch)
            self.loaded += 1
        self.ring.sealed(batch)

    def insert(self, batch: Batch) -> None:
        """Put a batch that was rewritten, or found at the opening, where its order says."""
        insort(self.queue, batch, key=_order)

    @property
    def head(self) -> Batch | None:
        """The oldest unfinished batch that is sealed; None also where `load` has to be called first."""
        if self.later and not self.loaded:
            return None
        return self.queue[0] if self.queue else None

    @property
    def oldest(self) -> tuple[int, int] | None:
        """The order of the oldest batch that is not done; None: nothing waits.

        Of one that has no object only its epoch is known: that with a sequence of 0, which is lower.
        """
        if self.queue:
            return self.queue[0].order
        if self.later:
            return (self.later[0].ordinal >> 32, 0)
        batch = self.published.batch
        return batch.order if batch is not None and self.published.index else None

    @property
    def waits_since(self) -> int | None:
        """Unix seconds at which the oldest batch that is not done was opened; None: nothing waits. For any thread."""
        waiting = [batch.accepted_at for batch in self.queue[:1]]
        if not waiting:
            with suppress(IndexError):
                waiting.append(self.later[0].accepted_at)
        batch = self.published.batch
        if batch is not None and self.published.index:
            waiting.append(batch.accepted_at)
        return min(waiting, default=None)

    @property
    def short(self) -> bool:
        """Whether `load` should be called soon: few batches have objects, and more are there."""
        return bool(self.later) and self.loaded < LOADED // 2

    @property
    def idle(self) -> bool:
        """Whether nothing waits in the lane."""
        return not self.queue and not self.later and not self.published.index and not self.rewritten.index

    def remove(self, batch: Batch) -> None:
        """Forget a batch that is done."""
        if self.queue and self.queue[0] is batch:
            del self.queue[0]
        elif batch in self.queue:
            self.queue.remove(batch)
        else:
            return
        if batch.segment.kind is SegmentKind.PUBLISHED:
            self.loaded -= 1

    def give_back(self) -> None:
        """Let go of the segments that the lane writes to: nothing has come for a while."""
        self.published.leave()
        self.rewritten.leave()


def note_room(payload: bytes | None) -> int:
    """Return the bytes that a note takes."""
    return 0 if payload is None else len(payload) + TRAILER_SIZE


Away = WeakValueDictionary[tuple[int, int], Batch]
