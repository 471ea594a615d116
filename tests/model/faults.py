"""Functions that `plants` puts in the place of the package's: each breaks one rule."""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from aiorecover.ring import backlog, flush, format, opening, recovery, ring, segments  # noqa: A004
from aiorecover.ring.directory import Directory
from aiorecover.ring.format import BatchState, SegmentKind
from tests.model import disk

Change = tuple[object, str, Any]


def nothing(*_: Any, **__: Any) -> None:
    pass


def before(function: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **more: Any) -> Any:
        act(*args)
        return function(*args, **more)

    return changed


def after(function: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **more: Any) -> Any:
        result = function(*args, **more)
        act(*args, result)
        return result

    return changed


# -- R1, R2 ------------------------------------------------------------------------------------------------------------


def save_in_memory(self: Directory, checkpoint: Any) -> None:
    self.checkpoint = checkpoint


def ordinals_go_on(self: ring.Ring) -> None:
    self._ordinal = max([0, *(one.ordinal for one in _segments_of(self))])


def _segments_of(owner: ring.Ring) -> list[segments.Segment]:
    found = []
    for region in owner.pool.regions:
        for at in owner.geometry.places(region.size):
            data = owner.files.read(owner.fd, region.base + at, format.SEGMENT_HEAD_SIZE)
            head = format.read_segment(data, region.base + at, region.size)
            if head is not None:
                found.append(segments.Segment(region, at, head, owner.lane(head.topic, head.partition)))
    return found


def trust(value: bool) -> Change:
    def act(*args: Any) -> None:
        args[-1].trusted = value

    return opening, "_segment", after(opening._segment, act)


# -- R3, R4 ------------------------------------------------------------------------------------------------------------


def settle_in_memory(reading: Any) -> None:
    with patch.object(backlog, "_store", nothing):
        settle_implied(reading)


settle_implied = backlog._settle_implied
take_down = backlog._take_down
void_children = backlog._void_children


def any_done_is_evidence(*args: Any) -> None:
    reading, left, found = args
    if found.verdict is recovery.Verdict.DONE and found.head.state is not BatchState.SETTLED:
        evident = found._replace(head=found.head._replace(state=BatchState.SETTLED))
        settled, segment = reading.settled, left.segment
        if segment.kind is not SegmentKind.DEAD:
            settled[segment.lane] = max(evident.order, settled.get(segment.lane, (0, 0)))
    take_down(*args)


class NoDead:
    PUBLISHED = SegmentKind.PUBLISHED
    DEAD = None


def flush_unmarked(owner: ring.Ring, left: list[segments.Segment], doubt_since: int) -> None:
    if doubt_since:
        backlog._write_again(owner, left, doubt_since)
    owner.files.flush(owner.fd)


def write_trusted_again(owner: ring.Ring, left: list[segments.Segment], since: int) -> None:
    write_again(owner, [one for one in left if one.trusted], since)


def write_heads_again(owner: ring.Ring, left: list[segments.Segment], since: int) -> None:
    with patch.object(backlog, "in_question", lambda *_: False):
        write_again(owner, left, since)


def write_no_regions_again(owner: ring.Ring, left: list[segments.Segment], since: int) -> None:
    with patch.object(owner.pool, "regions", []):
        write_again(owner, left, since)


write_again = backlog._write_again


def forget_late(*args: Any) -> None:
    args[1].late.clear()


# -- R5 ----------------------------------------------------------------------------------------------------------------


def commit_first() -> tuple[Change, ...]:
    """The store of a record waits for the one of its commit word."""
    held: list[Any] = []
    store_slice, store_word = disk._Slices.__setitem__, disk._Words.__setitem__

    def later(self: Any, where: slice, data: bytes) -> None:
        if sys._getframe(1).f_code.co_name in {"append", "publish"}:  # the writer in C has no frame
            held[:] = [(self, where, data)]
        else:
            store_slice(self, where, data)

    def word(self: Any, index: int, value: int) -> None:
        store_word(self, index, value)
        for one in held:
            held.clear()
            store_slice(*one)

    return (disk._Slices, "__setitem__", later), (disk._Words, "__setitem__", word)


def write_on(owner: ring.Ring, found: backlog.Recovered, _: None) -> None:
    """Cursors go on in the segments of earlier lives."""
    for left in found.left:
        one = left.segment
        if one.kind is SegmentKind.PUBLISHED and left.waiting and one.lane.published.segment is None:
            ends = list(backlog._batches(one))
            one.cooled = one.closed = False
            one.region.heat()
            one.lane.published.segment = one
            one.lane.published.free_from, one.notes = ends[-1].end, ends[-1].notes


# -- R6 ----------------------------------------------------------------------------------------------------------------

store_point = segments.Batch.store_point
_point_crc = format.point_crc
begin, run, complete = flush.Flusher.begin, flush.Flusher.run, flush.Flusher.complete


def one_point(self: segments.Batch, *_: Any) -> None:
    self.which = 1


def begin_beside(self: flush.Flusher) -> None:
    self.running = None


def point_at_seal(_: Any, batch: segments.Batch) -> None:
    batch.store_point(batch.end, batch.count, batch.notes)


def crc_without(*places: int) -> Callable[..., int]:
    """A checksum that does not cover some of its arguments; the one at 5 is a pair."""

    def crc(*args: Any) -> int:
        rest = list(args)
        for place in places:
            rest[place] = (0, 0) if place == 5 else 0
        return _point_crc(*rest)

    return crc


def go_on(self: flush.Flusher, job: flush.Job, error: BaseException | None = None) -> None:
    if error is None:
        complete(self, job)
    else:
        self.running = None
        self.ring.parked += job.parked


def clear_the_word(self: flush.Flusher, job: flush.Job) -> None:
    recovering, self.ring.recovering = self.ring.recovering, False
    try:
        run(self, job)
    finally:
        self.ring.recovering = recovering


# -- R8 ----------------------------------------------------------------------------------------------------------------


def void_as_settled(owner: ring.Ring, one: segments.Segment, found: recovery.Found, state: BatchState) -> None:
    store(owner, one, found, BatchState.SETTLED if state is BatchState.VOID else state)


def void_in_memory(reading: Any) -> None:
    with patch.object(backlog, "_store", nothing):
        void_children(reading)


def seal_the_void(reading: Any) -> None:
    opened = dict(reading.opened)
    void_children(reading)
    reading.opened = opened


store = backlog._store
_is_void = recovery.is_void


def orphans_are_void(found: Any, parent: Any, *, parent_reused: bool) -> bool:
    marked: bool = found.head.parent != (0, 0)
    return _is_void(found, parent, parent_reused=parent_reused) or (marked and (parent_reused or parent is None))


# -- R10, R16 ----------------------------------------------------------------------------------------------------------


def free_all(self: flush.Flusher, job: flush.Job, error: BaseException | None = None) -> None:
    job.parked += self.ring.parked
    self.ring.parked = []
    complete(self, job, error)


def one_salt(self: disk.MemoryFiles, size: int) -> bytes:
    return b"\1" * size if size == 8 else self.rng.randbytes(size)


def live_sources(self: flush.Flusher, job: flush.Job) -> None:
    job.sources = self.ring.sources


def forget_sources(self: flush.Flusher, job: flush.Job, error: BaseException | None = None) -> None:
    for one in job.parked:
        one.sources = False
    complete(self, job, error)


def nothing_due(self: flush.Flusher, *_: Any) -> None:
    self.ring.checkpoint_due = False
