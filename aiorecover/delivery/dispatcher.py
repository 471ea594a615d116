"""Reads the ring in order and fills the lanes' batches.

Everything that is not settled passes here, once: new records, an outage's backlog, what a crash left. Records whose
lane cannot take them (unknown topic, missing partition, failing partitioner, stalled or halted lane) are passed over;
second readers come back for them (`drain`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import Any

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.batches import Batches
from aiorecover.delivery.behind import Behind, Order
from aiorecover.delivery.burial import Burial
from aiorecover.delivery.drain import STEP, GoingBack
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.flush import Flush
from aiorecover.delivery.frames import name_at
from aiorecover.delivery.in_kafka import InKafka, Place
from aiorecover.delivery.judge import Judge, Verdict, words_of
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.passed_over import PassedOver, tell_of_no_lane
from aiorecover.delivery.router import Router, Topic
from aiorecover.delivery.stalled import StalledLanes
from aiorecover.record import KEY, PARTITION, RECORD_ID_HEADER, TOPIC, record_ids
from aiorecover.wal import format as fmt
from aiorecover.wal.reading import ALL
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from aiorecover.wal.suffix import Unfinished, Word

log = logging.getLogger("aiorecover.delivery")

DISCOVER_INTERVAL = 0.5  # seconds until the second look at topics that are not known; then twice as long each time
DISCOVER_MAX = 10.0  # seconds between two looks in the long run: a topic made meanwhile waits so long at most
FIRST_STEP = 256  # frames, 0.2 ms: the loop connects meanwhile, and has to wait for a step of ours some fifty times
STALL_LOOK = 0.5  # seconds between two looks whether a lane that has no room is stalled


class Dispatcher:
    """The one reader of new frames."""

    def __init__(
        self,
        reader: Stream,
        router: Router,
        *,
        codec: int,
        batch_bytes: int,
        linger: float,
        answered: Callable[[Run], bool],
        deliver: Callable[[Lane], None],
        refuse: Callable[[Lane, Placed], None],
        undecodable: Callable[[Placed, str], bool],
        on_idle: Callable[[], None],
        expiry: Expiry,
        holds: Callable[[Run], bool],
        doubtful_up_to: int = 0,
        in_kafka: InKafka | None = None,
        session: Callable[[], int | None] = lambda: 0,
        has_delivered: Callable[[], bool] = lambda: True,
        on_flush: Callable[[], None] = lambda: None,
        cover: Callable[[Run], int | None] | None = None,
    ) -> None:
        """Know whom to tell.

        ``answered``: whether Kafka has told of its topics at all, and of what it has of a run; until then everything is
        held, because what is passed over is read twice. `wake` when that changes.

        ``deliver`` of lanes with a batch to send, ``refuse`` of records of a halted lane, ``undecodable`` of a frame
        that is no record (True: it becomes a dead letter), ``on_idle`` that the next
        publish must `wake` us, ``on_flush`` that all that somebody waits for was dispatched.

        ``expiry``: what has expired goes nowhere else; ``holds``: it has to wait, too, as it may be in Kafka.
        ``doubtful_up_to``: as in `Expiry`.

        ``in_kafka``: records of earlier epochs that are there already; None: nothing is known of any. ``session``: as
        in `StalledLanes`. ``has_delivered``: something was acknowledged since the start; until then steps are short.

        ``cover``: of transactions, which hold contiguous runs of the ring: nothing is passed over. It takes the first
        records of a run that are committed already, and says how many; None: not now, it will `wake` us.
        """
        self._judge = Judge(InKafka(0, 0) if in_kafka is None else in_kafka)
        self.reader = reader
        self.router = router
        self._answered = answered
        self._has_delivered = has_delivered
        self._cover = cover
        self._undecodable = undecodable
        self._on_idle = on_idle
        self._on_flush = on_flush
        self._held: Run | None = None
        self._bell: asyncio.Future[None] | None = None
        self._flushes: list[Flush] = []
        self._expiry = expiry
        self._burial = Burial(
            expiry,
            self._judge,
            router,
            is_behind=self._is_behind,
            fall_behind=self._fall_behind,
            wake=self.wake,
            contiguous=cover is not None,
        )
        self._holds = holds
        self._passed = PassedOver(
            reader,
            router,
            at=self._at,
            dispatch=self._dispatch_any,
            refuse=refuse,
            expires=self._burial.has_begun,
            keeps_waiting=self._burial.keeps_waiting,
        )
        self._drain = self._passed.drain
        self._gaps = self._passed.gaps
        self.stalled = StalledLanes(router, session, self.start_catching_up)
        self.batches = Batches(
            router,
            self.stalled,
            deliver,
            codec=codec,
            batch_bytes=batch_bytes,
            linger=linger,
            doubtful_up_to=doubtful_up_to,
            transactional=cover is not None,
        )
        self._more_expired = False  # what was passed over is looked at once for all that say so
        self._failure: BaseException | None = None  # why dispatching stopped in the middle
        self.fell_behind = self._passed.fell_behind
        self.undeliverable = 0
        # Of transactions, the position of the next record, which has no lane; None: it has one, or may have one by now.
        self._stands_at: int | None = None
        self._stood_at: int | None = None  # the same, until it has one

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dispatch for ever; never longer than a few milliseconds without giving the loop a turn."""
        while True:
            moved = self.step()
            if self._flushes:
                self._look_at_flushes()
            if moved:
                if self.batches.due <= asyncio.get_running_loop().time():
                    self.batches.tick(busy=True)  # also without a rest: a lane with few records must not wait for one
                await asyncio.sleep(0)
            else:
                await self._rest()

    def step(self) -> bool:
        """Dispatch some records; False when nothing can be done right now.

        Whatever fails is raised here, and nothing is skipped for it: what was dispatched before it is, and the next
        step begins with the very record that it failed at.
        """
        moved = self._advance()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return moved

    def _advance(self) -> bool:
        if self._more_expired:
            self._more_expired = False
            if self._gaps:
                self._drain.start()
        moved = self._drain.step() if self._drain else False
        most = ALL if self._has_delivered() else FIRST_STEP
        run = self._held = self._held or self.reader.look(STEP, most)  # at once: nothing that raises below skips it
        if run is not None and not self._answered(run):
            done = 0 if self._holds(run) else self._expire_leading(run)
            self._held = run.behind(done)
            self._want(run)
            return moved or done > 0
        done = self._dispatch_held(run) if run is not None else 0
        if self._no_room and self._pass_over():
            return True
        return moved or done > 0 or (run is None and self.reader.moved)

    def _dispatch_held(self, run: Run) -> int:
        """As `_dispatch_any`; what is left of the run is held."""
        done = 0
        try:
            done = self._dispatch_any(run)
            self._held = run.behind(done)
        except BaseException:  # a signal, when it is dispatched and before that is noted
            self._held = run.behind(done)
            raise
        return done

    def _want(self, run: Run) -> None:
        """Have the topics of what is held among the first that Kafka is asked for."""
        for name in {record[TOPIC] for record in run.records if type(record) is tuple}:
            self.router.topic(name)

    # -- where settle words do not tell all --------------------------------------------------------------------------

    def _dispatch_one_by_one(self, run: Run, going: GoingBack | None = None) -> int:
        """As `_dispatch`, but each record as it is judged.

        One record after the other: what falls behind here decides what the records behind it are. Records that are
        passed over are judged by the reader that comes back for them, so none is judged, and dismissed, twice.
        """
        for number, word in enumerate(words_of(run)):
            try:
                if not self._dispatch_as_judged(run, number, word, going):
                    return number
            except BaseException as error:  # noqa: BLE001 - as in `_dispatch`
                self._failure = self._failure or error
                return number
        return len(run)

    def _dispatch_as_judged(self, run: Run, number: int, word: Word | Unfinished, going: GoingBack | None) -> bool:
        """Whether one record is dealt with; False without room, or where dispatching it failed."""
        entry = run.placed(number)
        buried = self._burial.bury_judged(run, number, word, going)
        if buried is not None:
            if buried and run.words is not None:
                self._judge.expired(entry, self._lane_of(entry, going))
            return buried
        place = self._judge.place(entry)
        verdict = self._judged(entry, word, place, going)
        if verdict is Verdict.DISMISS:
            self.reader.dismiss(run.slot, 1)
            return True
        if run.words is not None and (verdict is not None or self._outlives(entry, word, going)):
            self.reader.reopen(run.slot, [run.places[number]])  # a word may stand there that does not count any more
        if verdict is Verdict.SETTLE and place is not None:
            return self._take_as_found(entry, place, going)
        one = run.pick([number])
        if one is None:
            return True
        one.words = None
        return self._dispatch(one, going) > 0

    def _lane_of(self, entry: Placed, going: GoingBack | None) -> Lane | None:
        return self._passed.lane(self.router.topic(entry[3][TOPIC]), entry, going)

    def _outlives(self, entry: Placed, word: Word | Unfinished, going: GoingBack | None) -> bool:
        return self._judge.outlives(entry, word, self._lane_of(entry, going))

    def _judged(
        self, entry: Placed, word: Word | Unfinished, place: Place | None, going: GoingBack | None
    ) -> Verdict | None:
        """What becomes of a record; None while that cannot be told. ``place``: where it was found in Kafka."""
        record = entry[3]
        if type(record) is not tuple:
            return self._judge.verdict(entry, word, None, None)
        if self._gaps and self._passed.covers(entry, going):
            return None
        lane = self._lane_of(entry, going)
        if lane is None or lane.stalled or (place is not None and lane.halted is not None):
            return None
        if self._gaps and self._passed.older_are_behind(lane, entry, going):
            return None
        return self._judge.verdict(entry, word, lane, place)

    def _take_as_found(self, entry: Placed, place: Place, going: GoingBack | None) -> bool:
        """Have a record announced and settled that is in Kafka already; False without room."""
        slot, at, _, record = entry
        lane = self.router.resumed(record[TOPIC], place.partition)
        if lane.passed_over:  # only a record without a key may stand elsewhere than in the lane it was judged for
            self._passed.fall_behind(self.router.topic(record[TOPIC]), lane, entry, going, found=True)
            return True
        return self.batches.add_found(lane, slot, at, place.offset)

    async def _rest(self) -> None:
        """Wait for records, room, or the moment to hand over what lingers."""
        loop = asyncio.get_running_loop()
        if self._flushes:
            self.batches.hand_over()
        elif self.batches.due <= loop.time():
            self.batches.tick(busy=self._no_room)
        stalls = self.stalled.expected and self._no_room
        until = min(self.batches.due, loop.time() + STALL_LOOK if stalls else inf)
        timer = loop.call_at(until, self.wake) if until < inf else None
        self._bell = loop.create_future()
        if self._more_expired:
            self.wake()
        if self.batches.due == inf and self._held is None:
            self._on_idle()
            if self.reader.has_more:  # a signal handler published after the last look, and before the bell hung
                self.wake()
        try:
            await self._bell
        finally:
            self._bell = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """There may be something to do."""
        bell = self._bell
        if bell is not None and not bell.done():
            with suppress(asyncio.InvalidStateError):  # a signal handler that published rang it right before us
                bell.set_result(None)

    # -- records into batches ----------------------------------------------------------------------------------------

    def _dispatch_any(self, run: Run, going: GoingBack | None = None) -> int:
        if self._cover is not None:
            covered = self._cover(run)
            if covered != 0:
                return covered or 0
        if self._judge.concerned(run):
            return self._dispatch_one_by_one(run, going)
        count, expires = self._expiry.leading(run)
        if expires and (buried := self._burial.bury(run, count, going)) is not None:
            return buried
        if count and not expires:
            run = run.pick(range(count)) or run
        if going is None and not self._gaps:
            self._judge.forget_found(run)
        return self._dispatch(run, going)

    def _dispatch(self, run: Run, going: GoingBack | None = None) -> int:  # noqa: C901 - one loop
        """Put records into their lanes' batches; how many were dealt with before one found no room.

        The loop is written out: it runs once for every record, and each call in it costs 50-80 ns.
        """
        topics = self.router.topics
        slot, places, sequences = run.slot, run.places, run.sequences
        identities = record_ids(run.id_prefix, sequences)
        alone: list[Any] = [None]  # the headers of every record that has none of its own
        place, lane, batch = places[0], None, None
        try:
            for place, sequence, identity, record in zip(places, sequences, identities, run.records, strict=True):
                lane = None
                if type(record) is tuple:
                    name, key, value, partition, timestamp_ms, headers, _, _ = record
                    topic = topics.get(name)
                    if topic is not None and partition is None:
                        lane = topic.by_key.get(key)
                if lane is None:
                    lane = self._route((slot, place, fmt.position(run.epoch, sequence), record), going)
                    if lane is None:
                        if self._cover is not None and type(record) is tuple:
                            return places.index(place)
                        continue
                alone[0] = (RECORD_ID_HEADER, identity)
                wire = alone if headers is None else [*headers, *alone]
                batch = lane.open
                if (
                    batch is None
                    or (count := batch.count) >= batch.most
                    or batch.add(count, timestamp_ms, key, value, wire) is None
                ):
                    if batch is not None:
                        self.batches.close(lane)
                    batch = self.batches.begin(lane)
                    if batch is None:
                        return places.index(place)
                    batch.add(0, timestamp_ms, key, value, wire)
                    count = 0
                batch.count = count + 1
                if slot is batch.slot:
                    batch.places.append(place)
                else:
                    batch.start_group(slot).append(place)
            return len(places)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too: told by `step`, once what was dispatched is noted
            self._failure = self._failure or error
            return places.index(place) + self._is_in(lane, batch, slot, place)

    def _is_in(self, lane: Lane | None, batch: LaneBatch | None, slot: Slot, place: int) -> bool:
        """Whether a record is in the open batch of a lane, wherever a signal came in between.

        The batch is closed for it: only its bytes tell.
        """
        if lane is None or batch is None or lane.open is not batch or batch.is_empty:
            return False
        is_in = batch.take_stock(slot, place)
        self.batches.close(lane)
        return is_in

    def _route(self, entry: Placed, going: GoingBack | None) -> Lane | None:
        """The lane of a record that is not simply its key's; None when it is passed over."""
        record = entry[3]
        if type(record) is not tuple:
            self.report_undeliverable(entry, record)
            return None
        topic = self.router.topic(record[TOPIC])
        lane = self._lane_now(topic, entry, going) if self._cover is None else self._lane_in_turn(topic, entry)
        if lane is not None and going is None and record[PARTITION] is None:
            self.router.remember(topic, record[KEY], lane)
        return lane

    def _lane_now(self, topic: Topic, entry: Placed, going: GoingBack | None) -> Lane | None:
        """None: the record is passed over."""
        if self._gaps and self._passed.covers(entry, going):
            return None
        lane = self._passed.lane(topic, entry, going)
        behind = lane is None or lane.passed_over or (self._gaps and self._passed.older_are_behind(lane, entry, going))
        if behind:
            self._passed.fall_behind(topic, lane, entry, going)
        return None if behind else lane

    def _lane_in_turn(self, topic: Topic, entry: Placed) -> Lane | None:
        """Of transactions. None: all waits for the record, until there is news of topics (`look_again`)."""
        if entry[2] == self._stands_at:
            return None
        lane = self._passed.lane(topic, entry, None)
        if lane is None:
            self._stand(topic, entry)
            return None
        self._stood_at = None
        return lane if lane.halted is None else None

    def _stand(self, topic: Topic, entry: Placed) -> None:
        self._stands_at = entry[2]
        if self._stood_at == self._stands_at:
            return
        self._stood_at = self._stands_at
        tell_of_no_lane(topic, entry[3][PARTITION])
        self.fell_behind.set()

    @property
    def undecided(self) -> bool:
        """Of transactions: the next record has no lane; only metadata can help, or the partitioner."""
        return self._stood_at is not None

    def look_again(self) -> None:
        """There is news of topics."""
        self._stands_at = None
        self.wake()

    def acknowledged(self, lane: Lane, batch: LaneBatch) -> None:
        """A batch is in Kafka: there is room, and the lane's lingering batch may follow."""
        self.batches.closed_bytes -= batch.bytes
        self.stalled.through(lane, batch)
        self.wake()
        self.batches.follow(lane)

    def taken(self, lane: Lane) -> None:
        """As `acknowledged`, but its bytes stay in memory until the transaction is committed."""
        self.batches.follow(lane)
        self.wake()

    def report_undeliverable(self, entry: Placed, reason: object) -> None:
        """A record that cannot be decoded is a dead letter, or else stays in the ring; the others go on."""
        if self._undecodable(entry, str(reason)):
            return
        named = name_at(*entry[:3])
        name = named.record_id if named is not None else None
        self.undeliverable += 1
        log.error("a record cannot be delivered and stays in the ring record_id=%s reason=%r", name, reason)

    # -- what has expired --------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """More may have expired, in the ring and of what was passed over; or there is room for more letters."""
        self._more_expired = True
        self.wake()

    def parted(self, lane: Lane, batch: LaneBatch, rest: LaneBatch | None) -> None:
        """What came first in a batch has expired; ``rest`` is in its place."""
        self.batches.closed_bytes += (rest.bytes if rest is not None else 0) - batch.bytes
        self.batches.follow(lane)
        self.stalled.parted(lane)
        self.expire()

    def _expire_leading(self, run: Run) -> int:
        """Though Kafka has not answered yet; copies of dead letters, which do not expire, wait for their topic."""
        count, expires = self._burial.look(run)
        if not count:
            return 0
        if expires:
            return self._burial.bury(run, count, None) or 0
        return self._dispatch(run.pick(range(count)) or run)

    def _fall_behind(self, entry: Placed, going: GoingBack | None) -> None:
        topic = self.router.topic(entry[3][TOPIC])
        self._passed.fall_behind(topic, self._passed.lane(topic, entry, going), entry, going)

    def _is_behind(self, entry: Placed, going: GoingBack | None) -> bool:
        return bool(self._gaps) and self._passed.covers(entry, going)

    # -- passing over and catching up --------------------------------------------------------------------------------

    def start_catching_up(self) -> None:
        """Read again what was passed over and can be delivered by now."""
        self._drain.start()
        self.wake()

    def _pass_over(self) -> bool:
        """Have lanes passed over that are in the way, where nobody should wait for them; False where there are none.

        What stands in the retry ring was passed over by the last process. Its lane may be well again by now, and slow.
        """
        if self.stalled.expected and self.stalled.pass_over(full=self.batches.full):
            return True
        among_copies = self._held is not None and not self.reader.past_copies
        if not among_copies or self._cover is not None:
            return False
        return self.stalled.pass_over_again(full=self.batches.full, is_behind=self.is_behind)

    def failed(self, lane: Lane, began: float | None) -> None:
        """An attempt to send a batch failed; ``began``: when it did, None if it was not the lane's fault."""
        self.stalled.failed(lane, began)
        if self._no_room:
            self.wake()

    @property
    def _no_room(self) -> bool:
        """A reader stands still until somebody gets through, or so does what the last process had in flight."""
        resuming = self.batches.resuming and self.batches.full
        return self._held is not None or self._drain.no_room or resuming

    def _at(self) -> Order:
        """Order of the next record that the first reader dispatches."""
        if self._held is not None:
            return self._held.position(0)
        return self.reader.at

    @property
    def held(self) -> Iterator[Run]:
        """What was read, and is in no lane yet; without what was passed over."""
        if self._held is not None:
            yield self._held
        yield from self.reader.left
        yield from self._drain.held

    @property
    def idle(self) -> bool:
        """It has read all there is, and put it into lanes."""
        return self._bell is not None and self._held is None and not self.reader.has_more

    @property
    def passed_over(self) -> Iterable[Behind]:
        """What is behind, whenever it is gone through."""
        return self._gaps

    @property
    def has_gaps(self) -> bool:
        """Records were passed over, and are still behind."""
        return bool(self._gaps)

    def close(self) -> None:
        """Nothing more is read."""
        self.stalled.close()
        self._drain.close()
        self.reader.close()

    # -- flush -------------------------------------------------------------------------------------------------------

    def begin_flush(self, flush: Flush) -> None:
        """Somebody waits for what is dispatched: hand over without lingering."""
        self._flushes.append(flush)
        self._look_at_flushes()
        self.batches.hand_over()
        self.wake()

    def end_flush(self, flush: Flush) -> None:
        """They no longer do."""
        self._flushes.remove(flush)

    def left(self, lane: Lane, to: Iterable[Lane]) -> None:
        """Its partition is gone: what it held is in other lanes, but for records that name the partition."""
        for each in {lane, *to}:
            self.stalled.parted(each)
        for flush in self._flushes:
            flush.look_again(self.router.lanes())

    def _look_at_flushes(self) -> None:
        """While nothing that is dispatched later is in a lane yet; who waits is told also of what is missing."""
        if not self.reader.caught_up:
            return
        waiting_from = self.waiting_from
        waiting = [flush for flush in self._flushes if not flush.dispatched]
        for flush in waiting:
            flush.look(self._not_halted_from if flush.leaves_halted else waiting_from, self.router.lanes())
        if any(flush.dispatched for flush in waiting):
            self._on_flush()

    @property
    def _not_halted_from(self) -> Order:
        """As `waiting_from`, but for what is behind because its lane is halted."""
        return min([self._at(), *(gap.at for gap in self._gaps if gap.lane is None or gap.lane.halted is None)])

    @property
    def waiting_from(self) -> Order:
        """Order of the oldest record that is in no lane yet."""
        oldest = self._gaps.oldest
        return self._at() if oldest is None else min(self._at(), oldest.at)

    def goes_back_to(self, position: int) -> bool:
        """A second reader is on the way to records up to there."""
        return self._drain.goes_to(position)

    def going_back_in(self, slot: Slot) -> int:
        """How many second readers stand in it."""
        return self._drain.count_in(slot)

    def catches_up(self, lane: Lane) -> bool:
        """Something may be behind that goes to the lane: what it holds of that is not the newest."""
        return self._gaps.concern(lane)

    def forget_moved(self) -> None:
        """Slots were moved: what is behind is looked for where it is now, also by who is on the way."""
        self._drain.leave_moved()
        for gap in self._gaps:
            if gap.start is not None and gap.start[0].moved:
                gap.start = None

    def may_be_behind(self, topic: str, position: int) -> bool:
        """A record of the topic may be one of those that were passed over, and are still behind."""
        return any(gap.topic == topic and gap.at <= position for gap in self._gaps)

    def is_behind(self, lane: Lane) -> bool:
        """Records of the lane were passed over, and are still behind."""
        return bool(self._gaps.of(lane))
