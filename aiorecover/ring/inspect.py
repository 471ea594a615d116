"""Look at a directory without taking it: read-only, no lock, safe beside its owner.

The owner may write meanwhile: a batch that it delivers now may still be seen as waiting. After another boot, the
records that sync points cover count.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aiorecover.errors import WalCorruptError, WalFormatError
from aiorecover.ring import format as layout
from aiorecover.ring.checkpoint import Checkpoint, load
from aiorecover.ring.damage import kept_aside
from aiorecover.ring.directory import CHECKPOINT, RING
from aiorecover.ring.files import Files
from aiorecover.ring.format import RECORDS_AT, SEGMENT_HEAD_SIZE, Geometry, SegmentHead
from aiorecover.ring.lane import DEAD
from aiorecover.ring.notes import Note, notes_by_index
from aiorecover.ring.records import DamagedRecordError, Record, decode, id_of
from aiorecover.ring.recovery import Found, Verdict, find_batches, intact, is_void

READS = 3  # attempts to read what looks damaged: its owner may fill or reuse it meanwhile


@dataclass(slots=True)
class LaneView:
    """One lane: what waits in it. Sizes are bytes of records."""

    topic: str
    partition: int  # -1: not known yet; -2: dead letters
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    oldest_at: int | None = None  # Unix seconds at which the oldest waiting batch was begun


@dataclass(slots=True)
class DirectoryView:
    """One directory, seen from outside."""

    path: Path
    checkpoint: Checkpoint | None
    lanes: list[LaneView] = field(default_factory=list)
    unreadable: int = 0  # batches, and heads of segments
    kept_aside: int = 0  # batches that earlier starts could not read
    newest: int = 0  # the highest sequence of its present epoch that still lies in the ring; done ones count

    @property
    def records(self) -> int:
        """Records that wait, dead letters not among them."""
        return sum(lane.records for lane in self.lanes if lane.partition >= -1)


class StoredRecord(NamedTuple):
    """A record that waits in a directory; ``timestamp_ms`` as Kafka gets it."""

    topic: str
    partition: int
    record_id: str
    timestamp_ms: int
    record: Record
    note: Note | None


def look(path: Path | str, files: Files | None = None, geometry: Geometry = Geometry()) -> DirectoryView:  # noqa: B008
    """Return what waits in the directory ``path`` (``wal_dir/0``, say); blocks.

    Raises:
        WalFormatError: there is no ring.
        WalError: it cannot be read, or another version wrote it.

    """
    path, files = Path(path), files or Files()
    view = DirectoryView(path, read_checkpoint(path, files))
    lanes: dict[tuple[str, int], LaneView] = {}
    with _opened(path, files, geometry) as ring:
        view.unreadable = ring.unreadable
        for place, head in ring.segments:
            lane = lanes.setdefault((head.topic, head.partition), LaneView(head.topic, head.partition))
            lane.segments += 1
            for found in ring.batches(place, head):
                if view.checkpoint is not None and found.head.epoch == view.checkpoint.epoch:
                    view.newest = max(view.newest, found.head.first + max(found.head.span, found.count - 1))
                if found.verdict is Verdict.DAMAGED:
                    view.unreadable += 1
                elif ring.waits(found):
                    lane.batches += 1
                    lane.records += found.count
                    lane.size += found.end - found.at - RECORDS_AT
                    lane.oldest_at = min(found.head.accepted_at, lane.oldest_at or found.head.accepted_at)
    view.lanes = [lanes[key] for key in sorted(lanes)]
    view.kept_aside = kept_aside(path, files)
    return view


def read_checkpoint(path: Path | str, files: Files | None = None) -> Checkpoint | None:
    """Return the checkpoint of the directory ``path``; None: there is none yet.

    Raises:
        WalError: it is damaged, cannot be read, or another version wrote it.

    """
    where = Path(path) / CHECKPOINT
    data = (files or Files()).read_file(where)
    return None if data is None else load(data, where)


def waiting(
    path: Path | str,
    files: Files | None = None,
    geometry: Geometry = Geometry(),  # noqa: B008
    *,
    dead: bool | None = None,
    on_damage: Callable[[int], object] | None = None,
) -> Iterator[StoredRecord]:
    """Yield the records that wait in a directory, each lane in its order; blocks.

    ``dead``: only dead letters, or all but these; None: both. ``on_damage`` is called with 1 for a damaged checkpoint,
    with the number of heads of segments that cannot be read, and with 1 for each batch that is not what was stored,
    before what can be read of it is yielded; None: no checksum of a batch is compared.

    Raises:
        WalError: as `look`, but for a damaged checkpoint.

    """
    files = files or Files()
    try:
        read_checkpoint(path, files)
    except WalCorruptError:  # the records can be read without it
        if on_damage is not None:
            on_damage(1)
    with _opened(Path(path), files, geometry) as ring:
        lanes = sorted({(head.topic, head.partition) for _, head in ring.segments})
        if dead is not None:
            lanes = [lane for lane in lanes if (lane[1] == DEAD) == dead]
        if on_damage is not None:
            on_damage(ring.unreadable)
        for lane in lanes:
            inside = [
                (found.order, place, head, found)
                for place, head in ring.segments
                if (head.topic, head.partition) == lane
                for found in ring.batches(place, head)
                if found.verdict is Verdict.DAMAGED or ring.waits(found)
            ]
            for _, place, head, found in sorted(inside, key=lambda one: (one[0], one[2].ordinal)):
                if on_damage is not None and ring.is_damaged(place, head, found):
                    on_damage(1)
                if found.verdict is not Verdict.DAMAGED:
                    yield from _records(ring, place, head, found)


def check(
    path: Path | str,
    files: Files | None = None,
    geometry: Geometry = Geometry(),  # noqa: B008
) -> Iterator[tuple[SegmentHead, Found, bool]]:
    """Yield each batch that waits or is damaged, and whether all of it is what was stored; reads everything, blocks.

    Raises:
        WalError: as `look`.

    """
    with _opened(Path(path), files or Files(), geometry) as ring:
        for place, head in ring.segments:
            for found in ring.batches(place, head):
                if found.verdict is Verdict.DAMAGED or ring.waits(found):
                    yield head, found, not ring.is_damaged(place, head, found)


def unreadable_heads(path: Path | str, files: Files | None = None, geometry: Geometry = Geometry()) -> int:  # noqa: B008
    """Return how many heads of segments cannot be read: nothing of such a segment can be found; blocks.

    Raises:
        WalError: as `look`.

    """
    with _opened(Path(path), files or Files(), geometry) as ring:
        return ring.unreadable


def _records(ring: "_Ring", place: int, head: SegmentHead, found: Found) -> Iterator[StoredRecord]:
    data = ring.read(place + found.at + RECORDS_AT, found.end - found.at - RECORDS_AT)
    notes = notes_by_index(ring.read(place + found.notes, found.notes_from - found.notes))
    if not ring.still_has(place, head):
        return  # its owner has delivered it meanwhile: these may be the bytes of another lane
    at = 0
    try:
        while at < len(data):
            record, at = decode(data, at)
            identity = "{}/{}/{}".format(*id_of(data, at))
            note = notes.get(record.index)
            timestamp = found.head.base + record.timestamp_delta
            yield StoredRecord(head.topic, head.partition, identity, timestamp, record, note)
    except DamagedRecordError:
        return  # the next opening names it


@contextmanager
def _opened(path: Path, files: Files, geometry: Geometry) -> "Iterator[_Ring]":
    if files.status(path / RING) is None:
        raise WalFormatError(f"there is no ring: name the directory of an instance path={path}")
    fd = files.open(path / RING, read_only=True)
    try:
        if files.status(path / CHECKPOINT) is None:
            refuse_foreign(partial(files.read, fd), files.size(fd), geometry, path / RING)
        yield _Ring(files, fd, geometry)
    finally:
        files.close(fd)


class _Ring:
    """The file, open to be read; its owner may write to it meanwhile.

    Attributes:
        boot_id: of the present boot; empty where the system does not say.
        segments: place in the file and head of each.
        unreadable: heads of segments that cannot be read.

    """

    def __init__(self, files: Files, fd: int, geometry: Geometry) -> None:
        self._files, self._fd, self._geometry = files, fd, geometry
        boot_id = files.boot_id()
        self.boot_id = bytes.fromhex(boot_id.replace("-", ""))[:16] if boot_id else b""
        self.unreadable = 0
        self.segments = list(self._find_segments())
        self._by_ordinal = {head.ordinal: (place, head) for place, head in self.segments}
        self._parents: dict[int, dict[int, Found]] = {}  # batches by their places, of segments that hold parents

    def read(self, place: int, size: int) -> bytes:
        """Return ``size`` bytes from ``place`` in the file."""
        return self._files.read(self._fd, place, size)

    def _find_segments(self) -> Iterator[tuple[int, SegmentHead]]:
        end = self._files.size(self._fd)
        if end % self._geometry.region:  # it grows by whole regions: the rest was cut off
            self.unreadable += 1
        for base in range(0, end, self._geometry.region):
            size = class_of(self.read, base, self._geometry) or self._geometry.large
            for at in self._geometry.places(size):
                for _ in range(READS):
                    data = self.read(base + at, SEGMENT_HEAD_SIZE)
                    head = layout.read_segment(data, base + at, size)
                    if head is not None or not layout.looks_like_segment(data):
                        break
                if head is not None:
                    yield base + at, head
                elif layout.looks_like_segment(data):
                    self.unreadable += 1

    def batches(self, place: int, head: SegmentHead) -> list[Found]:
        """Return the batches of a segment; read it again, at one go, where its owner changes it meanwhile."""
        found: list[Found] = []
        for attempt in range(READS):
            data = self.read(place, head.size) if attempt else None

            def read(start: int, end: int, data: bytes | None = data) -> bytes:
                return self.read(place + start, end - start) if data is None else data[start:end]

            found = list(find_batches(read, head.salt, head.size, trusted=head.boot_id == self.boot_id))
            if all(one.verdict is not Verdict.DAMAGED for one in found):
                return found
        return found if self.still_has(place, head) else []  # used anew: all that was in it is done

    def still_has(self, place: int, head: SegmentHead) -> bool:
        """Whether a segment has not been used anew."""
        return layout.read_segment(self.read(place, SEGMENT_HEAD_SIZE), place, head.size) == head

    def waits(self, found: Found) -> bool:
        """Whether a batch waits; until its parent is replaced, a child's records are the parent's (R8)."""
        if found.verdict is not Verdict.WAITS:
            return False
        ordinal, at = found.head.parent
        segment = self._by_ordinal.get(ordinal)
        if segment is not None and ordinal not in self._parents:
            self._parents[ordinal] = {found.at: found for found in self.batches(*segment)}
        return not is_void(found, self._parents.get(ordinal, {}).get(at), parent_reused=segment is None)

    def is_damaged(self, place: int, head: SegmentHead, found: Found) -> bool:
        """Whether a batch is not what was stored, as far as an owner that may be flushing lets it be seen."""
        if found.verdict is Verdict.DAMAGED or head.boot_id != self.boot_id:
            return found.verdict is Verdict.DAMAGED  # of another boot: what sync points cover was compared already
        whole = intact(lambda start, end: self.read(place + start, end - start), found, flush_pending=True)
        return not whole and self.still_has(place, head)  # else its owner has delivered it meanwhile


def class_of(read: Callable[[int, int], bytes], base: int, geometry: Geometry) -> int | None:
    """Return the segment size of the region at ``base``; without its head the first segment's head says it.

    ``read``: gives so many bytes of the file from an offset. None: nothing there is ours.
    """
    found = layout.read_region(read(base, layout.REGION_HEAD_SIZE), base, geometry)
    if found is not None:
        return found
    for at in geometry.places(geometry.small):
        data = read(base + at, SEGMENT_HEAD_SIZE)
        size = layout.claimed_size(data)
        if geometry.known(size) and layout.read_segment(data, base + at, size) is not None:
            return size
    return None


def refuse_foreign(read: Callable[[int, int], bytes], size: int, geometry: Geometry, path: Path) -> None:
    """Raise where a ring without a checkpoint holds something, and none of its regions is ours.

    Raises:
        WalFormatError: another program has written the file.

    """
    for base in range(0, size, geometry.region):
        if not any(read(base, layout.REGION_HEAD_SIZE)) or class_of(read, base, geometry) is not None:
            return
    if size:
        raise WalFormatError(f"the file belongs to another program: choose another wal_dir path={path}")
