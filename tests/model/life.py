"""One life of a process: the ring as the package opens it, and delivery by the rules R7, R8 and R9."""

from collections.abc import Callable, Iterator

import msgspec

from aiorecover.errors import WalFullError
from aiorecover.ring.format import OWN_HEAD_SIZE, RECORDS_AT, BatchState
from aiorecover.ring.lane import DEAD, UNASSIGNED, Lane
from aiorecover.ring.loading import read_ahead, take_ahead
from aiorecover.ring.notes import Note, encode_payload, read_notes
from aiorecover.ring.records import decode, walk
from aiorecover.ring.segments import Batch, Identity
from aiorecover.ring.writer import append_raw
from tests.model.disk import BadError
from tests.model.kafka import PARTITIONS, TOPIC, Id, read_head, read_records
from tests.model.process import ALWAYS, BLIND, READBACK, Process

_context_of = msgspec.msgpack.Decoder(int).decode


class Life(Process):
    """A process that delivers too."""

    looks = False  # into Kafka before it splits or renames what it sent, unless the mode is BLIND

    # -- delivery ------------------------------------------------------------------------------------------------------

    def load(self, lane: Lane, meanwhile: Callable[[], None] | None = None) -> None:
        if lane.later and (lane.short or lane.head is None) and lane not in self.loading:
            self.loading.append(lane)
            ahead = read_ahead(self.ring, lane)
            if meanwhile is not None:
                meanwhile()
            take_ahead(self.ring, lane, ahead)
            self.loading.remove(lane)

    def load_head(self, lane: Lane) -> None:
        while lane.head is None and lane.later and lane not in self.loading:
            self.load(lane)

    def unassigned_from(self) -> tuple[int, int] | None:
        """The order of the topic's oldest unassigned batch, one that is being rewritten included."""
        lane = self.ring.lane(TOPIC, UNASSIGNED)
        self.load_head(lane)
        if lane in self.loading:
            return 0, 0
        orders = [parent.order for parent, _ in self.rewrites if parent.lane is lane]
        if lane.head is not None:
            orders.append(lane.head.order)
        elif lane.published.index and lane.published.batch is not None:
            orders.append(lane.published.batch.order)
        return min(orders, default=None)

    def next_batch(self, partition: int, *, seal: bool = True) -> Batch | None:
        """The lane's oldest unfinished batch, where it may be sent."""
        if self.ring.recovering or partition in self.held:
            return None
        lane = self.ring.lane(TOPIC, partition)
        self.load_head(lane)
        if lane.head is None and seal and lane.published.index and lane not in self.loading:
            lane.published.seal()
        batch = lane.head
        if batch is None:
            return None
        limit = self.unassigned_from()
        if limit is not None and batch.order > limit:
            return None
        return None if self.world.mode == ALWAYS and not batch.safe else batch

    def send(self, partition: int, how: int = 0) -> bool:  # noqa: C901 - the answers of a broker
        """``how``: 0 answered, 1 stored and the answer lost, 2 lost on the way, 3 arrives later."""
        batch = self.next_batch(partition)
        if batch is None:
            return False
        ids = self.read(batch)
        if batch.state is not BatchState.SENT or batch.identity is None:
            aged = self.world.aged and batch.state is BatchState.SENT
            asked = (aged or self.world.mode == READBACK) and batch.epoch < self.ring.epoch
            if asked and any(self.kafka.has(partition, one) for one in ids):
                self.world.log("found in Kafka", batch)
                self.settle(batch, ids)
                return True
            self.identify(batch, (self.producer, 0, self.bases.get(partition, 0)))
        identity, count = read_head(bytes(batch.segment.read(batch.at + OWN_HEAD_SIZE, batch.end)))
        if identity != batch.identity or count != len(ids):
            raise BadError(f"GARBAGE: Kafka's head has {identity} {count} instead of {batch.identity} {len(ids)}")
        bad = any(self.promises.records[one].bad for one in ids)
        self.world.log(f"send how={how} {identity}", batch)
        self.files.disk.step()
        if how == 3:
            self.kafka.delayed.append((partition, identity, ids, bad))
        if how >= 2:
            return True
        answer = self.kafka.produce(partition, identity, ids, bad)
        self.files.disk.step()
        if how == 1:
            return True
        if answer == "ok":
            self.promises.settled.update(ids)
            if identity[0] == self.producer:
                self.bases[partition] = identity[2] + count
            self.settle(batch, ids)
        elif answer == "order":
            batch.identity = None
            self.producer, self.bases = self.kafka.new_producer(), {}
        elif self.ring.flusher.failed is None:
            self.halve(batch, partition)
        return True

    def identify(self, batch: Batch, identity: Identity) -> None:
        batch.store_identity(identity, self.files.boot_ms(), self.ring.epoch)

    def settle(self, batch: Batch, ids: list[Id]) -> None:
        self.promises.settled.update(ids)
        self.delivered += batch.count
        self.ring.finish(batch, BatchState.SETTLED)

    def read(self, batch: Batch) -> list[Id]:
        """Return the ids of a batch's records, which are what was published, notes too."""
        records = read_records(bytes(batch.read()))
        if len(records) != batch.count:
            raise BadError(f"GARBAGE: count is {batch.count} of {len(records)} records")
        notes = {sequence: note for sequence, _, note in read_notes(batch.read_notes())}
        for place, (one, index, key, value) in enumerate(records):
            truth = self.promises.records.get(one)
            if truth is None or index != place or key != b"k%d" % truth.key or value != truth.value:
                raise BadError(f"GARBAGE: record {one} {index} {key!r} {value!r}")
            note = notes.pop(one[1], None)
            context = None if note is None or note.context is None else _context_of(note.context)
            if context != truth.context or (note is not None and note.source and note.source[2] != truth.offset):
                raise BadError(f"GARBAGE: the note of {one} is {note}")
        if notes:
            raise BadError(f"GARBAGE: notes of no record {notes}")
        return [record[0] for record in records]

    # -- rewrite -------------------------------------------------------------------------------------------------------

    def halve(self, batch: Batch, partition: int) -> None:
        half = batch.count // 2
        places = list(range(batch.count))
        groups = [(partition, places[:half]), (partition, places[half:])] if half else [(DEAD, places)]
        self.held.add(partition)
        self.rewrites.append((batch, self._rewrite(batch, groups)))

    def assign(self) -> None:
        """Begin to rewrite the oldest unassigned batch."""
        lane = self.ring.lane(TOPIC, UNASSIGNED)
        if self.ring.recovering or TOPIC not in self.ring.topics or self.ring.flusher.failed is not None:
            return
        if any(parent.lane is lane for parent, _ in self.rewrites):
            return
        self.load_head(lane)
        if lane.head is None and lane.published.index and not lane.later:
            lane.published.seal()
        if lane.head is not None:
            groups: dict[int, list[int]] = {}
            for place, one in enumerate(self.read(lane.head)):
                groups.setdefault(self.promises.records[one].partition, []).append(place)
            self.rewrites.append((lane.head, self._rewrite(lane.head, sorted(groups.items()))))

    def _rewrite(self, parent: Batch, groups: list[tuple[int, list[int]]]) -> Iterator[None]:
        ring, flusher = self.ring, self.ring.flusher
        self.world.log("rewrite", parent)
        data = bytes(parent.read())
        spans = [(data[span[0] : span[4]], decode(data, span[0])[0].timestamp_delta) for span in walk(data)]
        ids = [record[0] for record in read_records(data)]
        notes = {sequence: note for sequence, _, note in read_notes(parent.read_notes())}
        children: list[Batch] = []
        for partition, places in groups:
            lane = ring.lane("", DEAD) if partition == DEAD else ring.lane(TOPIC, partition)
            payloads = {place: self._child_note(notes.get(ids[place][1]), partition) for place in places}
            need = sum(len(spans[place][0]) + 10 + len(payloads[place] or b"") + 16 for place in places)
            while True:
                try:
                    child = lane.rewritten.open(parent.base, need, ids[places[0]][1], parent.epoch, self.mark(parent))
                    break
                except WalFullError:
                    yield
            children.append(child)
            parent.children = [(one, None) for one in children]
            for place in places:
                append_raw(lane.rewritten, *spans[place], payloads[place], ids[place][1])
            lane.rewritten.seal()
            yield
        need = flusher.begun + 1
        while flusher.done < need and self.flush_before:
            yield
        ring.pending += sum(child.count for child in children)
        ring.finish(parent, BatchState.REPLACED)
        self.world.log("REPLACED", parent)
        need = flusher.begun + 1
        while flusher.done < need and self.flush_behind:
            yield
        for child in children:
            child.lane.insert(child)
        self.held.discard(parent.lane.partition)

    def mark(self, parent: Batch) -> tuple[int, int]:
        return parent.segment.ordinal, parent.at

    @staticmethod
    def _child_note(note: Note | None, partition: int) -> bytes | None:
        if partition == DEAD:
            note = note or Note()
            return encode_payload(Note(note.context, note.source, TOPIC, 0, "refused"))
        return None if note is None else encode_payload(note)

    def rewrite_on(self) -> None:
        for pair in list(self.rewrites):
            if next(pair[1], self) is self:
                self.rewrites.remove(pair)

    def abandon(self) -> None:
        """Give up a rewrite whose parent is not replaced: its children become VOID, and it begins again later (R8)."""
        for parent, steps in list(self.rewrites):
            children = [child for child, _ in parent.children or ()]
            if parent.done:
                continue
            steps.close()  # type: ignore[attr-defined]
            self.rewrites.remove((parent, steps))
            self.world.log("abandon", parent)
            for child in children:
                self.ring.abandon(child)
            parent.children = None
            self.held.discard(parent.lane.partition)
            return

    def damage(self) -> None:
        """Change a byte of a batch that a completed flush covers."""
        for lane in self.ring.lanes.values():
            batch = None if self.ring.recovering else lane.head
            if batch is not None and batch.safe and batch.state is not BatchState.OPEN:
                self.world.excused.update(self.read(batch))
                self.files.disk.damage(batch.segment.place + self.rng.randrange(batch.at + RECORDS_AT, batch.end))
                self.world.log("DAMAGE", batch)
                return

    def purge(self) -> None:
        """Throw a batch of dead letters away."""
        queue = [] if self.ring.recovering else self.ring.lane("", DEAD).queue
        if queue:
            batch = self.rng.choice(queue)
            self.promises.settled.update(self.read(batch))
            self.purged += batch.count
            self.ring.finish(batch, BatchState.SETTLED)

    def finish(self) -> None:
        """All that is left is delivered: a good broker, and time."""
        for _ in range(300):
            while self.kafka.delayed:
                self.kafka.arrive()
            self.metadata()
            self.assign()
            self.rewrite_on()
            self.flush()
            for partition in range(PARTITIONS):
                while self.send(partition) and partition not in self.held:
                    pass
            waiting = any(lane for lane in self.ring.lanes.values() if lane.partition != DEAD and not lane.idle)
            if not waiting and not self.rewrites:
                break
        else:
            raise BadError(f"STUCK {[lane for lane in self.ring.lanes.values() if not lane.idle]} {self.rewrites}")
        self.check_counts()
        self.tidy(5)
        self.dig()
        self.flush()
        self.tidy(5)
        self.flush()

    def verify(self) -> None:
        """After `finish`: nothing is lost, repeated, out of order, or keeps a segment."""
        ring = self.ring
        dead: set[Id] = set()
        segments = set()
        for batch in ring.lane("", DEAD).queue:
            dead.update(self.read(batch))
            segments.add(batch.segment)
        if ring.parked or ring.used != sum(segment.size for segment in segments):
            raise BadError(f"LEAK used={ring.used} dead={[segment.size for segment in segments]} parked={ring.parked}")
        if ring.damaged and not self.world.cut and not self.world.excused:
            raise BadError(f"DAMAGED {ring.damaged} records, and nobody has touched the disk")
        self.promises.verify(
            self.kafka,
            dead,
            self.world.excused,
            stale_allowed=self.world.mode == BLIND and self.world.cut,
            repeats_allowed=self.world.mode == BLIND and self.looks,
        )
