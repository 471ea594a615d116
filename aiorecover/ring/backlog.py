"""The backlog: batches that earlier lives left, read while records are accepted already.

`recover` reads it, stores what follows from it (R3, R4, R8), and blocks, so it runs in a thread; `fill_lanes`, on the
loop, puts it into the lanes, and delivery begins.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from aiorecover.errors import ClosedError, WalIOError
from aiorecover.ring import format as layout
from aiorecover.ring.checkpoint import Sources
from aiorecover.ring.damage import keep_aside
from aiorecover.ring.format import RECORDS_AT, SEGMENT_HEAD_SIZE, BatchState, SegmentKind
from aiorecover.ring.lane import Lane
from aiorecover.ring.loading import batch_from, latest_delta
from aiorecover.ring.notes import DamagedNoteError, read_notes
from aiorecover.ring.records import DamagedRecordError, id_of
from aiorecover.ring.recovery import (
    Found,
    Order,
    Read,
    Verdict,
    find_batches,
    in_question,
    intact,
    is_void,
    newest_point,
)
from aiorecover.ring.ring import Ring
from aiorecover.ring.segments import Segment

TAIL = 128  # bytes: the id is a record's last header


@dataclass(slots=True)
class Left:
    """A segment of an earlier life, and the batches that wait in it."""

    segment: Segment
    waiting: int = 0  # batches
    records: int = 0  # in these
    first: Order | None = None  # the order of the oldest one
    accepted_at: int = 0  # when that one was opened, Unix seconds
    at: int = 0  # its place
    notes: int = 0  # where the notes of the batch before it start
    children: list[Found] = field(default_factory=list)  # the waiting ones of a segment that holds rewritten batches


@dataclass(slots=True)
class Recovered:
    """All that `recover` found, for `fill_lanes`."""

    left: list[Left] = field(default_factory=list)
    late: list[tuple[Segment, Found, int]] = field(default_factory=list)  # no point at their end; which one holds
    records: int = 0
    damaged: int = 0  # records
    transaction: int = 0  # the highest number in a batch, and in a settled one (R12)
    settled_transaction: int = 0
    sources: Sources = field(default_factory=dict)
    issued: dict[int, int] = field(default_factory=dict)  # the highest sequence that was found of each epoch


@dataclass(slots=True)
class _Reading:
    """The state of `recover`: what it has found so far."""

    ring: Ring
    result: Recovered = field(default_factory=Recovered)
    settled: dict[Lane, Order] = field(default_factory=dict)  # up to where a lane is settled (R3)
    opened: dict[tuple[int, int], tuple[Segment, Found]] = field(default_factory=dict)  # to be sealed
    doubtful: dict[Lane, list[tuple[Segment, Found]]] = field(default_factory=dict)  # not covered by a sync point


def recover(ring: Ring, segments: list[Segment]) -> Recovered:
    """Read what earlier lives left and store what follows from it; blocks. It can be repeated at any point.

    Raises:
        WalIOError: the disk failed.

    """
    reading = _Reading(ring)
    segments = sorted(segments, key=lambda segment: segment.ordinal)
    if segments:
        _flush(ring, segments, ring.doubt_since)
    for segment in segments:
        if ring.closing:
            raise ClosedError("the producer was stopped meanwhile")
        left = Left(segment)
        reading.result.left.append(left)
        for found in find_batches(segment.read, segment.salt, segment.size, trusted=segment.trusted):
            if not segment.trusted and segment.kind is SegmentKind.PUBLISHED:
                _judge_tail(reading, segment, found)
            _take_down(reading, left, found)
    for segment, found in chain.from_iterable(reading.doubtful.values()):
        if found.verdict is Verdict.TAIL:
            _store(ring, segment, found, BatchState.VOID)
    _void_children(reading)
    _settle_implied(reading)
    for segment, found in reading.opened.values():
        if found.order > reading.settled.get(segment.lane, (0, 0)):
            _seal(ring, segment, found)
    reading.result.records = sum(left.records for left in reading.result.left)
    return reading.result


def _flush(ring: Ring, segments: list[Segment], doubt_since: int) -> None:
    """Make what lies there durable before anything follows from it (R4).

    After another boot too: an earlier opening in this boot may have stored words. If it fails, the dirty word for the
    next opening is stored after it: death between the two is not guarded against.
    """
    if doubt_since:
        _write_again(ring, segments, doubt_since)
    began_at = ring.files.now_ms() // 1000
    try:
        ring.files.flush(ring.fd)
    except WalIOError as error:
        ring.flusher.failed = error
        ring.doubt_since = 1
        ring.directory.mark_flush(1)
        raise
    ring.flusher.previous_at = max(began_at, ring.flusher.previous_at)


def _judge_tail(reading: _Reading, segment: Segment, found: Found) -> None:
    """Take batches that no sync point covers for damaged once a later batch of the lane holds (R14): it was flushed."""
    doubtful = reading.doubtful.setdefault(segment.lane, [])
    if found.verdict is Verdict.WAITS:
        for earlier, one in doubtful:
            reading.result.damaged += keep_aside(reading.ring, earlier, one)
            if one.verdict is Verdict.TAIL:
                _store(reading.ring, earlier, one, BatchState.VOID)
        doubtful.clear()
    if found.verdict is Verdict.TAIL or (found.verdict is Verdict.WAITS and found.lost):
        doubtful.append((segment, found))


def _take_down(reading: _Reading, left: Left, found: Found) -> None:
    ring, segment, result = reading.ring, left.segment, reading.result
    result.transaction = max(result.transaction, found.head.transaction)
    late = 0
    if segment.trusted and found.head.state is not BatchState.VOID:
        late = _point_to_store(segment, found, ring.doubt_since)
    if late and found.verdict is Verdict.WAITS and not _is_intact(ring, segment, found):
        found = found._replace(verdict=Verdict.DAMAGED)  # a new point would take it for whole
    if found.verdict in (Verdict.DAMAGED, Verdict.EMPTY):
        _leave_out(ring, segment, found, result)
        return
    if (
        found.verdict is Verdict.DONE
        and found.head.state is BatchState.SETTLED
        and segment.kind is not SegmentKind.DEAD
    ):
        reading.settled[segment.lane] = max(found.order, reading.settled.get(segment.lane, (0, 0)))
        result.settled_transaction = max(result.settled_transaction, found.head.transaction)
    if late:
        result.late.append((segment, found, late - 1))
    if segment.trusted and found.head.state is not BatchState.VOID:
        _take_sources(segment, found, result)
    _take_issued(segment, found, result)
    if found.verdict is not Verdict.WAITS:
        return
    _count(left, found)
    if segment.kind is not SegmentKind.PUBLISHED:
        left.children.append(found)
    if found.head.state is BatchState.OPEN and segment.trusted:
        reading.opened[segment.ordinal, found.at] = segment, found


def _leave_out(ring: Ring, segment: Segment, found: Found, result: Recovered) -> None:
    """Void a batch that has no records, or name and void one that is damaged."""
    if found.verdict is Verdict.DAMAGED:
        result.damaged += keep_aside(ring, segment, found)
    if found.head.epoch:  # 0: not even its head can be read
        _store(ring, segment, found, BatchState.VOID)


def _take_issued(segment: Segment, found: Found, result: Recovered) -> None:
    epoch, last = found.head.epoch, found.head.first + found.head.span
    if found.verdict is Verdict.TAIL:
        return
    if found.verdict is Verdict.WAITS:  # an open one has not stored it in its head
        tail = bytes(segment.read(max(found.at + RECORDS_AT, found.end - TAIL), found.end))
        with suppress(DamagedRecordError):  # the batch is checked when it is read, and named then
            last = id_of(tail, len(tail))[2]
    result.issued[epoch] = max(result.issued.get(epoch, 0), last)


def _count(left: Left, found: Found) -> None:
    if left.first is None:
        left.first, left.at, left.notes = found.order, found.at, found.notes_from
        left.accepted_at = found.head.accepted_at
    left.first = min(left.first, found.order)
    left.waiting += 1
    left.records += found.count


def _point_to_store(segment: Segment, found: Found, doubt_since: int) -> int:
    """Return 0 where a batch has a sync point at its end, else 1 + the number of the point that stays.

    The first flush stores the other one (R4).
    """
    if found.end == found.at + RECORDS_AT:
        return 0
    points = found.head.points
    newest = max((0, 1), key=lambda one: (points[one].end, points[one].count))
    holds = newest
    covered = found.covered
    if in_question(found, doubt_since):
        holds = newest_point(segment.read, found.head, found.at, found.notes_from)
        covered = covered and holds == newest
    return 0 if covered else 1 + (holds if holds >= 0 else 1)


def _take_sources(segment: Segment, found: Found, result: Recovered) -> None:
    if found.notes == found.notes_from:
        return
    try:
        for sequence, _, note in read_notes(bytes(segment.read(found.notes, found.notes_from))):
            if note.source is not None:
                topic, partition, offset = note.source
                segment.sources = True
                newest = result.sources.get((topic, partition), (0, 0, 0))
                if (found.head.epoch, sequence) > newest[1:]:
                    result.sources[topic, partition] = (offset, found.head.epoch, sequence)
    except DamagedNoteError:
        return  # the batch is checked when it is read, and named then


def _is_intact(ring: Ring, segment: Segment, found: Found) -> bool:
    return intact(segment.read, found, flush_pending=in_question(found, ring.doubt_since))


def _write_again(ring: Ring, segments: list[Segment], since: int) -> None:
    """Store again what a failed flush may have left out of the disk, and the kernel calls clean (R6).

    In a segment of another boot these are the words that openings and delivery have stored since.
    """
    for region in ring.pool.regions:
        ring.files.write(ring.fd, region.base, layout.pack_region(region.size, region.base))
    for segment in segments:
        segment.write(0, bytes(segment.read(0, SEGMENT_HEAD_SIZE)))
        for found in _batches(segment):
            segment.write(found.at, bytes(segment.read(found.at, found.at + RECORDS_AT)))
            if segment.trusted and in_question(found, since):
                older = min((point.end for point in found.head.points if point.end), default=0)
                start = older if all(point.end for point in found.head.points) else found.at + RECORDS_AT
                segment.write(start, bytes(segment.read(start, max(start, found.end))))
                segment.write(found.notes, bytes(segment.read(found.notes, found.notes_from)))


def _void_children(reading: _Reading) -> None:
    """Void the rewritten batches whose parents still count (R8)."""
    ring, result, opened = reading.ring, reading.result, reading.opened
    by_ordinal = {left.segment.ordinal: left.segment for left in result.left}
    parents: dict[int, dict[int, Found]] = {}
    for left in result.left:
        if not left.children:
            continue
        kept, left.first, left.waiting, left.records = [], None, 0, 0
        for child in left.children:
            ordinal, place = child.head.parent
            segment = by_ordinal.get(ordinal)
            if segment is not None and ordinal not in parents:
                parents[ordinal] = {found.at: found for found in _batches(segment)}
            parent = parents.get(ordinal, {}).get(place)
            void = is_void(child, parent, parent_reused=segment is None)
            if not void and left.segment.trusted and not _is_intact(ring, left.segment, child):
                result.damaged += keep_aside(ring, left.segment, child)
                void = True
            if void:
                _store(ring, left.segment, child, BatchState.VOID)
                opened.pop((left.segment.ordinal, child.at), None)
            else:
                kept.append(child)
                _count(left, child)
        left.children = kept


def _settle_implied(reading: _Reading) -> None:
    """Store the settled words that follow from a later one in the lane (R3)."""
    for left in reading.result.left:
        upto = reading.settled.get(left.segment.lane)
        if upto is None or left.first is None or left.first >= upto or left.segment.kind is SegmentKind.DEAD:
            continue
        waiting = left.children or [found for found in _batches(left.segment) if found.verdict is Verdict.WAITS]
        left.children, left.first, left.waiting, left.records = [], None, 0, 0
        for found in waiting:
            if found.order < upto:
                _store(reading.ring, left.segment, found, BatchState.SETTLED)
                continue
            _count(left, found)
            if left.segment.kind is not SegmentKind.PUBLISHED:
                left.children.append(found)


def _batches(segment: Segment) -> Iterator[Found]:
    read: Read = segment.read
    return find_batches(read, segment.salt, segment.size, trusted=segment.trusted)


def _store(ring: Ring, segment: Segment, found: Found, state: BatchState) -> None:
    segment.store(found.at + layout.STATE_AT, layout.state_word(state, segment.salt, ring.epoch))


def _seal(ring: Ring, segment: Segment, found: Found) -> None:
    """Seal a batch that the last life left open."""
    data = bytes(segment.read(found.at + RECORDS_AT, found.end))
    latest = found.head.base + latest_delta(data)
    span = id_of(data, len(data))[2] - found.head.first
    segment.store(found.at + layout.COUNT_AT, layout.pack_sealed(found.count, span))
    segment.store(found.at + layout.LATEST_AT, latest & 0xFFFFFFFFFFFFFFFF)
    _store(ring, segment, found, BatchState.SEALED)


def fill_lanes(ring: Ring, recovered: Recovered) -> None:
    """Put what earlier lives left into the lanes; on the loop."""
    ring.undurable = ring.flusher.failed is not None
    lanes: dict[Lane, list[Left]] = {}
    for segment, found, which in recovered.late:
        batch = batch_from(ring, segment, found)
        batch.which = which
        ring.flusher.dirty[batch] = None
        ring.away[segment.ordinal, found.at] = batch
    for left in recovered.left:
        segment = left.segment
        segment.pending = left.waiting
        if not left.waiting:
            ring.park(segment)
        elif segment.kind is SegmentKind.PUBLISHED:
            segment.unloaded, segment.unloaded_notes = left.at, (left.notes,)
            segment.accepted_at = left.accepted_at
            lanes.setdefault(segment.lane, []).append(left)
        else:
            segment.unloaded = segment.size
            for child in left.children:
                known = ring.away.get((segment.ordinal, child.at))
                segment.lane.insert(batch_from(ring, segment, child) if known is None else known)
    for lane, found_in in lanes.items():
        lane.later.extendleft(left.segment for left in reversed(found_in))
    ring.pending += recovered.records
    ring.damaged += recovered.damaged
    ring.issued = recovered.issued
    stored = ring.checkpoint.transaction
    ring.transaction = max(stored, recovered.transaction)
    ring.settled_transaction = max(stored, recovered.settled_transaction)
    _take_positions(ring, recovered)
    ring.recovering = False
    ring.checkpoint_due = True
    for lane in list(ring.lanes.values()):
        if not lane.idle:
            ring.on_ready(lane)


def _take_positions(ring: Ring, recovered: Recovered) -> None:
    for key, newest in recovered.sources.items():
        if newest[1:] > ring.sources.get(key, (0, 0, 0))[1:]:
            ring.sources[key] = newest
