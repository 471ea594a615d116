"""Judge what lies in a segment of an earlier life. Pure: it reads through a function, and stores nothing.

| the segment was written in | state of the batch | records that count | what becomes of it |
|---|---|---|---|
| this boot | done | none | done: its word is evidence |
| this boot | SEALED, SENT | up to the commit word, `count` of them | waits; SENT keeps its identity (R2) |
| this boot | OPEN | up to the commit word, counted by walking | waits, is sealed; void where there are none |
| this boot | no state, or a commit word that cannot be | none | damaged |
| another boot | done | none | done: its word is evidence, whatever its points are |
| another boot | other | up to the newest sync point that holds | waits without an identity |
| another boot | other, no point holds | none | unflushed tail; damaged if two points are, or a later batch holds |

A batch begins where the one before ends. If there is none, the segment's salt is searched for at every line after it
(R14): after another boot the known end of the batch before may be too early, and damage has no end at all.
"""

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiorecover.ring import format as layout
from aiorecover.ring.checksum import crc32
from aiorecover.ring.format import (
    DONE,
    LINE,
    OWN_HEAD_SIZE,
    RECORDS_AT,
    SEGMENT_HEAD_SIZE,
    BatchHead,
    BatchState,
    SyncPoint,
)
from aiorecover.ring.notes import DamagedNoteError, notes_crc
from aiorecover.ring.records import DamagedRecordError, check, count

Read = Callable[[int, int], bytes]  # (start, end) within the segment -> the bytes there
Order = tuple[int, int]  # (epoch, first sequence)


class Verdict(enum.Enum):
    """The fate of a batch of an earlier life."""

    DONE = enum.auto()
    WAITS = enum.auto()
    EMPTY = enum.auto()
    TAIL = enum.auto()  # no completed flush covered it before the power went
    DAMAGED = enum.auto()


class Found(NamedTuple):
    """A batch of an earlier life."""

    at: int
    head: BatchHead
    verdict: Verdict
    end: int  # of the records that count
    count: int  # type: ignore[assignment]
    notes: int  # where the notes that count start
    notes_from: int  # where those of the batch before start

    @property
    def order(self) -> Order:
        """Its place in the lane's order."""
        return self.head.epoch, self.head.first

    @property
    def notes_after(self) -> tuple[int, ...]:
        """The places where its notes may start, those that count first; where a part is lost, the next batch tells."""
        return self.notes, self.head.notes, *(point.notes for point in self.head.points)

    @property
    def lost(self) -> int:
        """How many records after those that count are lost, if the newest sync point, which fails, was flushed."""
        return max(0, *(point.count - self.count for point in self.head.points if point.end > self.end), 0)

    @property
    def covered(self) -> bool:
        """Whether a sync point stands at its end, be it flushed or not."""
        return any(point.end == self.end and point.notes == self.notes for point in self.head.points)


def find_batches(
    read: Read, salt: int, size: int, *, trusted: bool, start: int = SEGMENT_HEAD_SIZE, notes: tuple[int, ...] = ()
) -> Iterator[Found]:
    """Yield the batches of a segment from ``start`` on, where a batch begins, in order of their places.

    ``trusted``: the segment was written in this boot. ``notes``: where the notes of what came before may
    start (`Found.notes_after`); empty: nothing came before.
    """
    at, notes = start, notes or (size,)
    lost = not trusted  # whether what follows may begin anywhere
    if not salt:  # of a head that was stored in part
        return
    while at + RECORDS_AT <= size:
        head = layout.read_batch(read(at, at + OWN_HEAD_SIZE), salt)
        if head is None:
            next_at = _look_for(read, salt, at, size)
            if next_at is None:
                return
            if not lost:  # in this boot batches follow each other without a gap
                yield _nameless(at, next_at, salt, notes[0])
            at = next_at
            continue
        found = _judge(read, head, at, notes[0], trusted)
        if not trusted and found.verdict in (Verdict.TAIL, Verdict.DAMAGED):
            again = (_judge(read, head, at, other, trusted) for other in notes[1:])
            found = next((one for one in again if one.verdict is Verdict.WAITS), found)
        yield found
        notes = found.notes_after
        if found.verdict in (Verdict.TAIL, Verdict.DAMAGED):
            lost = True
            at += LINE
        else:
            at = layout.align(found.end)


def _nameless(at: int, end: int, salt: int, notes: int) -> Found:
    """Return a batch of which nothing can be read, not even its head."""
    none = SyncPoint(0, 0, 0, 0)
    head = BatchHead(salt, None, 0, end, notes, 0, 0, 0, 0, 0, 1, 0, (none, none), (0, 0), 0, 0)
    return Found(at, head, Verdict.DAMAGED, end, 1, notes, notes)


def _look_for(read: Read, salt: int, at: int, size: int) -> int | None:
    """Return the next line that begins with the salt."""
    data = bytes(read(at, size))
    wanted = salt.to_bytes(8, "little")
    place = data.find(wanted)
    while place >= 0 and (at + place) % LINE:
        place = data.find(wanted, place + 1)
    return None if place < 0 else at + place


def _judge(read: Read, head: BatchHead, at: int, notes: int, trusted: bool) -> Found:  # noqa: FBT001
    start = at + RECORDS_AT
    sane = start <= head.end <= head.notes <= notes
    end, notes_at = (head.end, head.notes) if sane else (start, notes)
    if head.state in DONE:
        return Found(at, head, Verdict.DONE, end, head.count, notes_at, notes)
    if not trusted:
        return _judge_points(read, head, at, notes)
    verdict, records = Verdict.WAITS, head.count
    if not sane or head.state is None:
        verdict, records, end = Verdict.DAMAGED, 0, start
    elif end == start:
        verdict, records = Verdict.EMPTY, 0
    elif head.state is BatchState.OPEN:
        try:
            records = count(read(start, end))
        except DamagedRecordError:
            verdict, records = Verdict.DAMAGED, head.count
    return Found(at, head, verdict, end, records, notes_at, notes)


def _judge_points(read: Read, head: BatchHead, at: int, notes: int) -> Found:
    which = newest_point(read, head, at, notes)
    if which >= 0:
        point = head.points[which]
        return Found(at, head, Verdict.WAITS, point.end, point.count, point.notes, notes)
    verdict = Verdict.DAMAGED if all(point.end for point in head.points) else Verdict.TAIL
    return Found(at, head, verdict, at + RECORDS_AT, 0, notes, notes)


def newest_point(read: Read, head: BatchHead, at: int, notes: int) -> int:
    """Return which sync point holds and covers most; -1: none."""
    for which in sorted((0, 1), key=lambda one: (head.points[one].end, head.points[one].count), reverse=True):
        if point_holds(read, head, at, notes, head.points[which]):
            return which
    return -1


def point_holds(read: Read, head: BatchHead, at: int, notes: int, point: SyncPoint) -> bool:
    """Whether the checksum of ``point`` is that of what lies there; ``notes``: where those of the one before start."""
    if not at + RECORDS_AT < point.end <= point.notes <= notes or not point.count:
        return False
    begin = layout.salted(head.salt)
    records = crc32(read(at + RECORDS_AT, point.end), begin)
    try:
        noted = notes_crc(bytes(read(point.notes, notes)), begin)
    except DamagedNoteError:
        return False
    return point.crc == layout.point_crc(
        records, noted, head.first, head.epoch, head.base, head.parent, point.end, point.notes, point.count
    )


def intact(read: Read, found: Found, *, flush_pending: bool) -> bool:
    """Whether a waiting batch of this boot is what was stored (R14): its newest sync point, then what comes after it.

    ``flush_pending``: the process died within a flush, so the newest point may be half stored. Then the older one
    holds, or there was none, and the second word of the newest is as it was: zero.
    """
    which = newest_point(read, found.head, found.at, found.notes_from)
    newest = max(range(2), key=lambda one: found.head.points[one].end)
    half_stored = flush_pending and (which >= 0 or not found.head.points[newest].notes)
    if which != newest and found.head.points[newest].end and not half_stored:
        return False
    start, index, notes = found.at + RECORDS_AT, 0, found.notes_from
    if which >= 0:
        start, index, notes, _ = found.head.points[which]
    try:
        notes_crc(bytes(read(found.notes, notes)), 0)  # are they whole
        return index + check(read(start, found.end), first=index) == found.count
    except (DamagedRecordError, DamagedNoteError):
        return False


def in_question(found: Found, since: int) -> bool:
    """Whether the flush under way at the end of the last life may have covered the batch (R6).

    ``since``, Unix s: batches that were opened earlier had a point before that flush, so it gave them a second one. 0:
    no flush was under way.
    """
    return bool(since) and (found.head.accepted_at >= since or all(point.end for point in found.head.points))


def is_void(found: Found, parent: Found | None, *, parent_reused: bool) -> bool:
    """Whether a rewritten batch does not count (R8): its parent is there, readable, and was not replaced.

    ``parent_reused``: the parent's segment has another ordinal now, so the parent was done, durably. A parent that is
    VOID was damaged: nothing else is both rewritten and void.
    """
    if found.head.parent == (0, 0) or parent_reused or parent is None:
        return False
    gone = parent.head.state in {BatchState.REPLACED, BatchState.VOID}
    return parent.verdict in (Verdict.WAITS, Verdict.DONE) and not gone
