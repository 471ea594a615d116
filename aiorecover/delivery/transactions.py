"""Exactly once: the ring goes to Kafka in transactions, one after the other, each with the position that it ends at.

    dispatcher ─> lanes ─> batches ─> Kafka, in a transaction     acknowledged: taken, not settled
                                        │  all acknowledged or dead letters, and the ring flushed up to the position
    ring <─ settle <─ on_delivery <─ commit, with the position

Run
    What one transaction holds is a contiguous run of the ring: everything behind the position before, up to its own.
    So nothing is passed over: a lane that does not get through holds up all. A run ends after 100 ms, after up to
    500 ms as long as more is there to be read, and at once when it holds all that somebody who flushes waits for (ended
    earlier it would only be one more before his last), or 32 MiB. What is dispatched while it is committed, up to
    32 MiB more, waits for the next one; behind a transaction that was lost, one has both.

Order of the steps
    1. The run is closed: from now on it is known up to which position.
    2. Every batch is acknowledged, and what Kafka refused is a dead letter, durable (aiokafka would commit though
       batches failed). Meanwhile the ring is flushed (I11): a position that a power cut takes back would be given to
       other records. Neither needs the other, so they take as long as the longer of them.
    3. What was a dead letter before, and was taken now, as the topic was mended, is none any more, durably: the
       position covers letters, too, so behind the commit nothing tells which of them are in Kafka all the same. (Where
       the commit fails the record is still in the ring, and sent again.)
    4. Behind these the position is added, and the transaction committed.
    5. Everybody is told, and the frames are settled (I3).

After a crash, and whenever a session was lost
    A new session of the same transactional id ends what the one before had left open (fences it), one way or the other.
    Only then the position is read, and it decides: what it covers is settled, all else is sent, in a new transaction.
    Settle words say nothing but what was committed before, or is a dead letter, so they are right as far as they go.
    Where the position stands, and whose it is: `position_in_kafka`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from aiorecover.delivery import transaction
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.committed import Committed
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.flush import Queue
from aiorecover.delivery.frames import position_at
from aiorecover.delivery.hard_close import SessionLostError
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.pace import Pace
from aiorecover.delivery.position_in_kafka import LOOK, FencedError, PositionInKafka
from aiorecover.delivery.session import Session
from aiorecover.delivery.topic_rights import TopicRights
from aiorecover.delivery.transaction import REFUSALS
from aiorecover.errors import ClosedError, WalError
from aiorecover.wal.checkpoint import Transactional

log = logging.getLogger("aiorecover.delivery")

PAUSE = 0.1  # seconds until it is tried again after an error; the session, built anew, has pauses of its own
CONNECT_LOOK = 1.0  # seconds between two looks whether there is a session
UNFINISHED_LIMIT = 15.0  # seconds: a leader that is gone is replaced within ten, if there is a replica
DISK_PAUSE = 5.0  # seconds between two attempts where the ring cannot be flushed: reopening it is what helps

_T = TypeVar("_T")

Taken = tuple[Lane, LaneBatch, RecordMetadata]
"""A batch that is acknowledged, in the order in which they were."""


class Transactions:
    """The transaction that is open, and what is in it."""

    def __init__(
        self,
        session: Session,
        dispatcher: Dispatcher,
        *,
        group: str,
        owner: str,
        epoch: int,
        known: Transactional,
        rights: TopicRights,
        floor: Callable[[], int],
        a_topic: Callable[[], str | None],
        lanes: Callable[[], Iterable[Lane]],
        queues: Callable[[], Iterable[Queue]],
        deliver: Callable[[Lane], None],
        settle: Callable[[Taken], Awaitable[None]],
        withdraw: Callable[[Iterable[LaneBatch]], Awaitable[None]],
        flush_ring: Callable[[], Coroutine[Any, Any, None]],
        remember: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        on_disk_error: Callable[[Exception], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """Know whom to ask and to tell.

        ``owner`` and ``epoch`` of this opening; ``known``: what the last one remembered. ``rights``: nothing is refused
        yet. ``floor``: up to here all is settled. ``a_topic``: one that records go to, and that is there; None: not
        yet. ``queues``: what is in no lane, and on its way to become a dead letter. ``withdraw``: no letter is left of
        these. ``flush_ring`` returns once what is stored is durable; ``remember`` makes `known` durable. ``on_fenced``:
        who has committed instead of us.
        """
        self._session = session
        self._dispatcher = dispatcher
        self._group = group
        self._epoch = epoch
        self._in_kafka = PositionInKafka(
            session,
            self._transact,
            group=group,
            owner=owner,
            epoch=epoch,
            known=known,
            reached=lambda: max(self.settled_up_to, self._committed_to),
            floor=floor,
            a_topic=a_topic,
            remember=remember,
            until_news=self._until_news,
            tell=self._tell,
        )
        self._rights = rights
        self._lanes = lanes
        self._queues = queues
        self._deliver = deliver
        self._settle = settle
        self._withdraw = withdraw
        self._flush_ring = flush_ring
        self._on_change = on_change
        self._on_disk_error = on_disk_error
        self._on_fenced = on_fenced
        self._pace = Pace()
        self._news = asyncio.Event()
        self._number: int | None = None  # of the session whose transaction is open
        self._used: int | None = None  # of the last session taken for one: each has its own epoch, used from 0 on once
        self._marks: dict[Lane, int] | None = None  # records of each lane in the run that ends; None: it goes on
        self._taken: list[Taken] = []
        self._to_settle: list[Taken] = []  # committed
        self._in_doubt: int | None = None  # a commit up to here was begun, and not answered
        self._committed_to = 0
        self._told: set[type[BaseException]] = set()  # what has been told of since a commit went well
        self.settled_up_to = 0
        self._hurried_to = 0  # somebody waits for everything up to here; behind `settled_up_to` the first who does
        self.fenced = False
        self.aborts = 0
        self.trouble = ""  # why the last one is not committed

    # -- for the lanes -----------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """The position is known: records may be dispatched."""
        return self._in_kafka.was_read

    @property
    def known(self) -> Transactional:
        """What a checkpoint remembers."""
        return self._in_kafka.known

    @property
    def covered(self) -> int:
        """By the position that was found at first."""
        return self._in_kafka.covered

    def may_have(self, epoch: int) -> bool:
        """Records of it may be in Kafka, and are not told apart yet: none of them goes anywhere else meanwhile."""
        return not self.begun and epoch != self._epoch and self.known.read_in > 0

    def admits(self, lane: Lane) -> bool:
        """Whether the lane's next batch belongs to the transaction that is open."""
        if self._number is None or self._number != self._session.number:
            return False
        return self._marks is None or lane.settled < self._marks.get(lane, 0)

    @property
    def missing(self) -> str:
        """A right to a topic, and what to do about it; "" where none is."""
        return self._rights.missing

    def refused(self, topics: Iterable[str]) -> None:
        """Kafka does not let us write there, which has ended the transaction: the next one begins once it does."""
        for topic in self._rights.refused(topics):
            what = f"kafka refuses records, and nothing is committed: grant Write on the topic {topic}, trying on"
            log.warning("%s group=%s", what, self._group)
        self._session.give_up(self.missing)

    async def changed(self) -> None:
        """Return when that may be another answer."""
        await self._until_news(LOOK)

    def take(self, lane: Lane, batch: LaneBatch, metadata: RecordMetadata) -> None:
        """A batch is acknowledged, and waits for the commit."""
        self._taken.append((lane, batch, metadata))
        self._note_earlier(batch)
        self._dispatcher.taken(lane)
        self.wake()

    def _note_earlier(self, batch: LaneBatch) -> None:
        for slot, places in batch.frames:
            epoch = slot.header.epoch
            if epoch != self._epoch:
                self._in_kafka.sent(epoch, position_at(slot, places[-1]))

    def wake(self) -> None:
        """Something may be at its end."""
        self._news.set()

    def hurry(self, position: int) -> None:
        """Somebody waits for everything up to there. He says so again at each change: others may come before him."""
        self._hurried_to = min(self._hurried_to, position) if self._hurried_to > self.settled_up_to else position
        self.wake()

    def is_done(self, position: int) -> bool:
        """Whether everything up to there is settled; where nothing waits, that is known without Kafka."""
        waits = bool(self._to_settle) or self._has_something or self._position < position
        return self.settled_up_to >= position or not waits

    @property
    def uncommitted(self) -> Iterable[LaneBatch]:
        """What is acknowledged, and in no lane any more, and not settled yet."""
        return [batch for _, batch, _ in (*self._to_settle, *self._taken)]

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """One transaction after the other, for ever; whatever goes wrong in one, the next begins with what it held."""
        if self._in_doubt is not None:  # somebody has cancelled our task: only the position tells what became of it
            self._number = None
        while not self.fenced:
            try:
                await self._settle_committed()
                await self._open()
                await self._fill()
                await self._end()
            except FencedError as error:
                self.fenced = True
                self._on_fenced(str(error))
                await self._session.close()  # one that is built anew would fence the other
            except (WalError, TimeoutError) as error:
                self.trouble = repr(error)
                self._tell(error, "the ring cannot be flushed, so nothing is committed: check the disk")
                self._on_disk_error(error)
                await asyncio.sleep(DISK_PAUSE)
            except KafkaError as error:
                self._lost(error)
                await asyncio.sleep(PAUSE)

    async def _open(self) -> None:
        """Begin a transaction, of a session whose predecessors have none."""
        if self._number is not None and self._number == self._session.number:
            return
        self._number = None
        await self._rewind_lanes()
        number = self._used = await self._connected()
        await self._decide(await self._in_kafka.look())
        self._send_again()
        await self._in_kafka.confirm()
        await self._until_granted()
        await self._transact(transaction.begin)
        self._number = number
        self._set_going()

    async def _until_granted(self) -> None:
        """Kafka lets us write to each topic that it has refused; what was sent before would only be aborted.

        Meanwhile lanes part with what is too old. A topic of which they hold nothing any more is not asked for.
        """
        clock = asyncio.get_running_loop().time
        while topics := self._rights.topics:
            self._set_going()
            asks_at = clock() + self._rights.pause()
            while (left := asks_at - clock()) > 0:
                if self._session.number != self._used:
                    raise SessionLostError
                await self._until_news(left)
            for topic in topics:
                if not self._holds(topic):
                    self._rights.granted(topic)
                elif await self._may_write(topic):
                    self._rights.granted(topic)
                    log.warning("kafka takes records of the topic %s again group=%s", topic, self._group)

    async def _may_write(self, topic: str) -> bool:
        try:
            return await self._transact(partial(transaction.may_write, topic=topic))
        except SessionLostError:
            raise
        except KafkaError:  # something else is in the way: what is sent next tells of it
            self._rights.granted(topic)
            raise

    def _holds(self, topic: str) -> bool:
        return any(lane.topic == topic and not lane.holds_nothing for lane in self._lanes())

    async def _transact(self, step: Callable[[AIOKafkaProducer], Awaitable[_T]]) -> _T:
        """As `Session.transact`, but not in a later session: there nobody has read what a copy may have committed."""
        if self._session.number != self._used:
            raise SessionLostError
        return await self._session.transact(step)

    async def _decide(self, found: Committed | None) -> None:
        """What became of the transaction of the session before: the position tells."""
        doubt, self._in_doubt = self._in_doubt, None
        if doubt is not None and found is not None and found.position >= doubt:
            self._committed(doubt)
            await self._settle_committed()

    async def _fill(self) -> None:
        """Wait until the run shall end."""
        clock = asyncio.get_running_loop().time
        began: float | None = None
        while True:
            self._check_session()
            now = clock()
            if self._has_something:
                began = now if began is None else began
                idle = self._dispatcher.idle and not self._in_lanes
                hurried = self.settled_up_to < self._hurried_to <= self._position
                if self._pace.is_over(now, began, idle=idle, urgent=hurried or self._dispatcher.batches.fill_a_run):
                    return
            elif self._position > self.settled_up_to:  # nothing of it has to be sent
                self._reached(self._position)
            await self._until_news(LOOK if began is not None else self._pace.longest)

    async def _end(self) -> None:
        """The steps of a commit, in their order."""
        position = self._close_run()
        await self._until_answered_and_durable()
        await self._withdraw([batch for _, batch, _ in self._taken])
        self._in_doubt = position
        await self._in_kafka.commit(position)
        self._in_doubt = None
        self._committed(position)
        self._pace.ended(asyncio.get_running_loop().time(), more=not self._dispatcher.idle)
        number, self._number = self._number, None
        if number == self._session.number:  # else the next one begins with a session of its own
            with suppress(KafkaError):
                await self._transact(transaction.begin)
                self._number = number
        self._set_going()

    def _set_going(self) -> None:
        for lane in self._lanes():
            if lane.ready:
                self._deliver(lane)
        self._dispatcher.wake()
        self.wake()

    def _close_run(self) -> int:
        """What is dispatched from now on belongs to the next one; the position of this one."""
        self._dispatcher.batches.close_all()
        self._dispatcher.batches.committing = True
        self._marks = {lane: lane.added for lane in self._lanes()}
        return self._position

    async def _until_answered_and_durable(self) -> None:
        """Nothing of the run can be lost any more, wherever it is; the flush begins behind the last record of it (I11).

        Whichever fails, the run is not over: the next end of it waits for both anew.
        """
        flushing = asyncio.create_task(self._flush_ring(), name="aiorecover-transactions-flush")
        try:
            await self._until_answered(self._marks or {}, [(queue, queue.added) for queue in self._queues()])
            await flushing
        finally:
            flushing.cancel()  # or else, where the session was lost first, how it failed would be printed

    async def _until_answered(self, lanes: Mapping[Lane, int], letters: Sequence[tuple[Queue, int]]) -> None:
        """So many records of each lane are acknowledged, or dead letters; and what is in none is that."""
        waiting: list[tuple[Lane | Queue, int]] = [*lanes.items(), *letters]
        self.wake()
        while waiting:
            self._check_session()
            one, mark = waiting[-1]
            if one.settled >= mark:
                waiting.pop()
            else:
                await self._until_news(LOOK)

    def _committed(self, position: int) -> None:
        """All of the run is in Kafka."""
        self._to_settle += self._taken
        self._taken = []
        self._marks = None
        self._committed_to = position
        self._told.clear()
        self._rights.committed()
        self.trouble = ""

    async def _settle_committed(self) -> None:
        while self._to_settle:
            await self._settle(self._to_settle[0])
            _, batch, _ = self._to_settle.pop(0)
            self._dispatcher.batches.closed_bytes -= batch.bytes
        self._dispatcher.batches.committing = False
        if self._committed_to > self.settled_up_to:
            self._dispatcher.wake()
            self._reached(self._committed_to)

    # -- after a loss ------------------------------------------------------------------------------------------------

    def _lost(self, error: KafkaError) -> None:
        """The transaction cannot go on; the session that is built anew has the broker abort it, if it is not over."""
        self.aborts += 1
        why = self._session.trouble if isinstance(error, SessionLostError) else ""  # which that error does not say
        self.trouble = why or repr(error)
        self._number = None
        if not isinstance(error, SessionLostError):
            if isinstance(error, REFUSALS):
                self._in_kafka.refused(error)
            else:
                self._tell(error, "a transaction was lost, and what was in it is sent again in the next one")
            self._session.give_up(f"{type(error).__name__}: {error}")
        self.wake()

    def _tell(self, error: BaseException, message: str) -> None:
        """One line for each kind of trouble, until a commit goes well."""
        if type(error) not in self._told:
            self._told.add(type(error))
            log.warning("%s error=%r group=%s", message, error, self._group)

    async def _rewind_lanes(self) -> None:
        """Have every lane let go of what it has in flight: it may not go first any more."""
        while self._let_go():
            await self._until_news(LOOK)

    def _let_go(self) -> bool:
        """Whether some lane still has something; each time of all of them: the dispatcher goes on, and makes lanes."""
        lanes = list(self._lanes())
        for lane in lanes:
            lane.leaves = True
        self.wake()
        return any(lane.delivering for lane in lanes)

    def _send_again(self) -> None:
        """What was acknowledged in a transaction that was not committed goes first in its lane."""
        back: dict[Lane, list[LaneBatch]] = {}
        for lane, batch, _ in self._taken:
            back.setdefault(lane, []).append(batch)
        self._taken = []
        self._marks = None
        self._dispatcher.batches.committing = False
        for lane in self._lanes():
            lane.rewind(back.get(lane, ()))

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def _position(self) -> int:
        """Everything up to here was dispatched."""
        return self._dispatcher.waiting_from - 1

    @property
    def _in_lanes(self) -> bool:
        return any(not lane.holds_nothing for lane in self._lanes())

    @property
    def _has_something(self) -> bool:
        busy = bool(self._taken) or any(queue.settled < queue.added for queue in self._queues())
        return busy or self._in_lanes

    def _reached(self, position: int) -> None:
        self.settled_up_to = position
        self._on_change()

    def _check_session(self) -> None:
        if self._number != self._session.number:
            raise SessionLostError
        if self._never_ends:
            message = "the transaction before this one does not end"
            raise KafkaError(message)

    @property
    def _never_ends(self) -> bool:
        since = self._session.unfinished_since
        return since is not None and asyncio.get_running_loop().time() - since > UNFINISHED_LIMIT

    async def _connected(self) -> int:
        """The number of a session that has had no transaction of ours: lanes begin anew in it."""
        while (number := self._session.number) is None or number == self._used:
            if number is not None:
                self._session.give_up("its transaction cannot go on")
                await asyncio.sleep(LOOK)
                continue
            if await self._session.connected_within(CONNECT_LOOK) and self._session.number is None:
                message = "the session is closed"  # and says so at once, again and again
                raise ClosedError(message)
            if self._session.start_refused and self._never_ends:  # by now it is decided, one way or the other
                await self._in_kafka.leave_id()
        return number

    async def _until_news(self, limit: float) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._news.wait()
