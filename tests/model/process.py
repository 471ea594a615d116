"""The world that outlives a crash, and one life of a process: the ring opened by the package, publishing, flushes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from aiorecover.errors import RecordTooLargeError, WalFullError, WalIOError
from aiorecover.ring import backlog, opening
from aiorecover.ring.checkpoint import load
from aiorecover.ring.directory import Directory
from aiorecover.ring.format import Geometry
from aiorecover.ring.lane import UNASSIGNED, Cursor, Lane
from aiorecover.ring.notes import Note, encode_payload
from aiorecover.ring.records import VARINT
from aiorecover.ring.ring import Limits, Ring
from aiorecover.ring.segments import Batch
from aiorecover.ring.writer import Writer
from tests.model.disk import LOCK, RING, BadError, MemoryFiles
from tests.model.kafka import PARTITIONS, SOURCE, TOPIC, Id, Kafka, Promises, Truth

GEOMETRY = Geometry(region=64 << 10, small=4096, large=8192, huge_unit=16384)
LIMITS = Limits(max_bytes=160 << 10, min_free=0, batch_bytes=400)
PATH = Path("wal/0")
ALWAYS, READBACK, BLIND = "always", "readback", "blind"  # what is sent, and what is looked for in Kafka

_context = msgspec.msgpack.Encoder().encode


class World:
    """The things that outlive a crash."""

    def __init__(self, files: MemoryFiles, mode: str, trace: list[str] | None = None) -> None:
        self.files, self.mode, self.trace = files, mode, trace
        self.rng = files.rng
        self.kafka = Kafka()
        self.promises = Promises()
        self.delivered = self.purged = 0
        self.cut = False  # there was a power cut
        self.synced: set[Id] = set()  # what a checkpoint was seen to follow
        self.excused: set[Id] = set()  # records of batches that the model has damaged
        self.doubtful = False  # damage, then death within a flush: what a half stored point hides is found in part
        self.crowded = False  # a checkpoint has not fitted
        self.aged = False  # a day has passed in this boot
        self.covering: tuple[int, list[Id]] = (0, [])  # flushes before the one that runs, and what that covers
        files.replacing = self._look_at_checkpoint

    def log(self, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(" ".join(map(str, what)))

    def _look_at_checkpoint(self, data: bytes) -> None:
        """R16: the position of a source is never ahead of what is settled or durable."""
        newest = load(data).sources.get(f"{SOURCE}:0", (0, 0, 0))[0]
        waiting = set(self.promises.undurable) - self.promises.settled
        before, covering = self.covering
        if self.files.flushes > before:
            self.synced.update(covering)
        waiting -= self.synced
        for offset, one in self.promises.offsets:
            if offset <= newest and one in waiting:
                raise BadError(f"SOURCE: the checkpoint says {newest}, and {offset} is neither durable nor settled")


class Process:
    """All here is lost in a crash."""

    # Duties of delivery under the rules; `plants` takes them away.
    alone = True  # R6: one flush at a time
    flush_before = True  # R8: children are durable before REPLACED is stored
    flush_behind = True  # R8: REPLACED is durable before the children are sent

    def __init__(self, world: World) -> None:
        self.world, self.files, self.rng = world, world.files, world.rng
        self.kafka, self.promises = world.kafka, world.promises
        self.files.during = self.files.before = None
        self.files.clock_ms += 2000
        directory = Directory(PATH, self.files, LOCK, RING)
        self.ring = Ring(directory, LIMITS, GEOMETRY)
        self.ring.want_flush = self._want
        self.ring.beside = self._beside
        self.digging: list[tuple[Callable[[], None], Callable[[], None]]] = []  # what the keeper's thread has to do yet
        world.doubtful = world.doubtful or bool(world.excused and directory.flush_pending)
        self.left = opening.open_ring(self.ring)
        self.writer = Writer(self.ring.producer_id, self.ring.epoch, self._find)
        self.ring.next_sequence = self.writer.next_sequence
        self.producer = self.kafka.new_producer()
        self.bases: dict[int, int] = {}
        self.rewrites: list[tuple[Batch, Iterator[None]]] = []
        self.loading: list[Lane] = []  # lanes that `load` has a turn in
        self.held: set[int] = set()  # partitions whose lanes wait for a rewrite
        self.accepted = self.recovered = 0
        self.delivered = self.purged = 0
        self.first = len(self.promises.undurable)  # records of this life follow
        self.wanted = False
        self.positions_known = False
        self.world.log(f"open epoch={self.ring.epoch} boot={self.files.boot} segments={len(self.left)}")

    def _want(self) -> None:
        self.wanted = True

    def _beside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.digging.append((work, then))

    def dig(self) -> None:
        """Do what was left to the keeper's thread."""
        while self.digging:
            work, then = self.digging.pop(0)
            work()
            then()

    # -- opening -------------------------------------------------------------------------------------------------------

    def recover(self, meanwhile: Callable[[], None] | None = None) -> None:
        ring = self.ring
        self.files.during = meanwhile
        try:
            found = backlog.recover(ring, self.left)
        finally:
            self.files.during = None
        if meanwhile is not None:
            meanwhile()
        backlog.fill_lanes(ring, found)
        self.recovered = found.records + self.ring.damaged
        self.world.log(f"recovered records={found.records} damaged={found.damaged} late={len(found.late)}")
        self._check_sources()
        self.positions_known = True
        self.check_counts()

    def _check_sources(self) -> None:
        """R16: the position of a source is not before what is durable, nor ahead of what a power cut took."""
        newest = self.ring.sources.get((SOURCE, 0), (0, 0, 0))[0]
        promises = self.promises
        there = promises.required | promises.settled | self.world.synced
        lost = {one for _, one in promises.offsets if one not in there}
        for offset, one in promises.offsets:
            if offset <= newest and one in lost:
                raise BadError(f"SOURCE: the position is {newest}, and {one}, offset {offset}, was lost in a power cut")
        promises.offsets = [one for one in promises.offsets if one[1] not in lost]  # those are made again
        if self.world.cut and (self.world.crowded or self.world.excused):
            return  # only the checkpoint knew
        for offset, one in promises.offsets:
            if offset > newest and one in self.promises.required:
                raise BadError(f"SOURCE: {one} is there, offset {offset} of the source, and the position is {newest}")

    # -- publish -------------------------------------------------------------------------------------------------------

    def _find(self, topic: str, key: Any, partition: int | None) -> tuple[Cursor, bytes]:
        number = int(key[1:]) % PARTITIONS if topic in self.ring.topics else UNASSIGNED
        found = self.ring.lane(topic, number).published, VARINT[len(key)] + key
        self.writer.lanes.setdefault(topic, {})[key] = found
        return found

    def publish(self, key: int, *, bad: bool = False, note: int = 0, size: int = 0) -> None:
        """``note``: 0 none, 1 a context, 2 a source."""
        ring, promises = self.ring, self.promises
        if ring.flusher.failed is not None:
            return
        one = ring.epoch, self.writer.next_sequence()
        if one in promises.returned:
            raise BadError(f"SEQUENCE used twice: {one}")
        value = b"%s%d.%d" % (b"!" if bad else b"", *one)
        value += b"." * (size - len(value))
        # A caller goes on from the position, which it gets once the records of earlier lives are known.
        offset = promises.next_offset if note == 2 and self.positions_known else None
        promises.next_offset += 1  # also where the process dies within `append`
        context = one[1] + (1 << 40) if note else None  # 32 bytes a note: zeros would be whole ones
        payload = None
        if note:
            source = None if offset is None else (SOURCE, 0, offset)
            payload = encode_payload(Note(context=_context(context), source=source))
        promises.records[one] = Truth(key, value, context, offset)
        try:
            receipt = self.writer.append(TOPIC, b"k%d" % key, value, self.files.now_ms(), None, None, payload)
        except (WalFullError, RecordTooLargeError):
            return
        if offset is not None:
            ring.note_source((SOURCE, 0, offset), receipt.sequence, receipt.batch.segment)
            promises.offsets.append((offset, one))
        promises.returned.add(one)
        promises.required.add(one)
        promises.undurable.append(one)
        self.accepted += 1
        if self.world.trace is not None:
            self.world.log(f"publish {one} key={key} note={note} size={size}{' bad' if bad else ''} -> {receipt.batch}")

    def metadata(self) -> None:
        if TOPIC not in self.ring.topics:
            self.ring.topics[TOPIC] = PARTITIONS
            self.ring.checkpoint_due = True
            self.writer.lanes.clear()
            self.world.log("partitions known")

    def forget(self) -> None:
        """The partitions are unknown; open batches go on no more."""
        for partition in (UNASSIGNED, *range(PARTITIONS)):
            cursor = self.ring.lane(TOPIC, partition).published
            if cursor.index:
                cursor.seal()
        self.ring.topics.clear()
        self.writer.lanes.clear()

    # -- flush ---------------------------------------------------------------------------------------------------------

    def flush(
        self,
        *,
        fail: bool = False,
        meanwhile: Callable[[], None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        ring, promises = self.ring, self.promises
        flusher = ring.flusher
        if flusher.failed is not None or (self.alone and flusher.running is not None):
            return
        self.wanted = False
        covers = promises.undurable[self.first if ring.recovering else 0 :]
        outer, self.files.during, self.files.fail = self.files.during, meanwhile, fail
        self.files.before = before
        self.world.covering = self.files.flushes, covers
        self.world.log("flush begins")
        job = flusher.begin()
        error = None
        try:
            self.dig()
            flusher.run(job)
        except WalIOError as caught:
            error = caught
        finally:
            self.files.during, self.files.before = outer, None
        flusher.complete(job, error)
        self.world.log("flush done" if error is None else "flush FAILED")
        if error is None:
            promises.covered(covers)

    def tidy(self, seconds: int = 2) -> None:
        self.files.clock_ms += seconds * 1000
        self.ring.tidy()

    # -- what has to hold ----------------------------------------------------------------------------------------------

    def check_counts(self) -> None:
        ring = self.ring
        if ring.recovering:
            return
        waiting = ring.pending + sum(lane.published.index for lane in ring.lanes.values())
        if self.accepted + self.recovered != self.delivered + self.purged + ring.damaged + waiting:
            raise BadError(
                f"COUNTS accepted={self.accepted} recovered={self.recovered} delivered={self.delivered} "
                f"purged={self.purged} damaged={ring.damaged} pending={waiting}"
            )
