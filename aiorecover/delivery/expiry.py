"""Records that are older than ``delivery_timeout_ms`` become dead letters, wherever they wait.

Ages rise with the position (`wal.ages`), so what has expired is all that waits up to one position, and of each lane
what comes first: its order is kept. That position is taken from a durable checkpoint: after a crash the next process
has it, too, and no record is both a dead letter and delivered because a process died between the two.

What is in no lane yet is taken as the dispatcher reads it, or goes back for it; what a lane holds, between two attempts
to send it (`Sender`). Letters are stored at once, in order; then the dead ring is flushed, whoever wants to know is
told (`telling`), and the records are settled (I3). Nobody parts with a record before its letter is durable: the reader
waits with it, and the lane keeps its batch as it is. So where the flush fails the letters are taken back, and the
records are tried on. Nor does anything expire without room for a letter, and no lane stands still for it. Copies for
``dead_letter_topic`` never expire: they are what is left of their records.
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.dead_record import DeadRecord
from aiorecover.delivery.flush import Queue
from aiorecover.delivery.frames import Named, name_at, named_of, payload_at, placed_of, positions_of, waits_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refusal import EXPIRED, Letter, Persistence, Refusal, letter_of
from aiorecover.delivery.reports import Reports
from aiorecover.delivery.tally import Tally
from aiorecover.delivery.telling import Telling, Where
from aiorecover.errors import WalCorruptError, WalError, WalFullError
from aiorecover.record import PARTITION, TOPIC, encode
from aiorecover.supervised import Supervised
from aiorecover.wal import format as fmt
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

STEP = 64  # records between two turns of the loop: about 2 ms of work


class Expiry:
    """Finds what has expired, and buries it."""

    def __init__(
        self,
        dead: DeadLetters,
        reports: Reports,
        *,
        limit_ms: int | None,
        expired: Callable[[], int],
        topic: str | None,
        floor: int,
        doubtful_up_to: int,
        on_change: Callable[[], None],
    ) -> None:
        """``limit_ms``: ``delivery_timeout_ms``; None: nothing expires. ``expired``: as `Directory.expired`.

        ``topic``: of the copies of dead letters. ``floor``: everything up to there was settled at the opening.
        ``doubtful_up_to``: position of the last record that an earlier process may have sent, though nothing tells of
        it. ``on_change``: there is room again, or something was settled.
        """
        self.limit_ms = limit_ms
        self._message = f"not delivered within delivery_timeout_ms={limit_ms}"
        self._dead = dead
        self._reports = reports
        self._expired = expired
        self._topic = topic
        self._floor = floor
        self._doubtful_up_to = doubtful_up_to
        self._on_change = on_change
        self._letters: dict[int, int] = {}  # nonces by position: of records with a letter of ours, not settled yet
        self._fresh: set[int] = set()  # those of them, in no lane, whose letter waits for a flush
        self._flushing: set[int] = set()  # for the one that is under way
        self._rotten: set[int] = set()  # of records whose frames do not hold any more, until Kafka has them
        self._burying = Supervised("expiry", self._make_durable)
        self._telling = Telling(self._settle, on_change)
        self._known = asyncio.Event()  # which letters earlier processes have left
        self._full = False  # there was no room for a letter
        self._failed = False  # the disk failed: nothing becomes durable any more
        self._tally = Tally(limit_ms)
        self.dead_lettered = 0

    # -- what has expired --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """More may have expired: be ready for it."""
        if not self._burying.running and not self._failed:
            self._burying.start()

    @property
    def known(self) -> bool:
        """Which letters earlier processes have left: before that nothing is sent that may be one of them."""
        return self._known.is_set()

    def holds(self, run: Run) -> bool:
        """Whether a run has to wait for that."""
        return not self.known and self.limit_ms is not None and _count_up_to(run, self._expired()) > 0

    async def until_known(self) -> None:
        """Wait for that, where an earlier process may have buried something that is not settled."""
        if self.limit_ms is not None and self._expired() > self._floor:
            await self._known.wait()

    @property
    def up_to(self) -> int:
        """Position of the last record that has expired and can be buried; 0: none."""
        if self.limit_ms is None or self._full or self._failed or not self.known:
            return 0
        return self._expired()

    def leading(self, run: Run) -> tuple[int, bool]:
        """How many records at the beginning of ``run`` are too old, and whether they expire: copies never do."""
        count = 0 if self.limit_ms is None else max(_count_up_to(run, self.up_to), self._count_with_letters(run))
        if not count:
            return 0, False
        expires = self._may_expire(run.records[0])
        for number in range(1, count):
            if self._may_expire(run.records[number]) is not expires:
                return number, expires
        return count, expires

    def _count_with_letters(self, run: Run) -> int:
        """They expire though there is no room for another letter now."""
        if not self._letters:
            return 0
        return next((number for number in range(len(run)) if run.position(number) not in self._letters), len(run))

    def is_due(self, position: int, topic: str) -> bool:
        """Whether one record has expired; 0 for its position: it is settled."""
        if topic == self._topic or position in self._rotten:
            return False
        return 0 < position <= self.up_to or position in self._letters

    def has_due(self, lane: Lane, batch: LaneBatch) -> bool:
        """Whether the first record of a batch has expired, or is settled: a task of ours was cancelled half-way."""
        slot, place, position = next(placed_of(batch))
        return not waits_at(slot, place) or self.is_due(position, lane.topic)

    def _may_expire(self, record: object) -> bool:
        return type(record) is tuple and record[TOPIC] != self._topic

    # -- what is in no lane ------------------------------------------------------------------------------------------

    def store(self, entry: Placed) -> bool:
        """Have the letter of a record that was read stored; False without room, or where the disk fails."""
        slot, place, position, record = entry
        if position in self._letters or not waits_at(slot, place):
            return True
        refusal = self._refusal(self._persisted(position))
        named = name_at(slot, place, position)
        if named is None:
            self._try_on(position, f"its frame does not hold any more slot={slot.header.ordinal}")
            return False
        if not self._put(named, record[PARTITION], self._letter(encode(record), record[TOPIC], refusal)):
            return False
        self._fresh.add(position)
        self.begin()
        return True

    def has_letter(self, position: int) -> bool:
        """Whether one was stored for a record that is not settled."""
        return position in self._letters

    def is_durable(self, position: int) -> bool:
        """Whether the letter that was stored is; `on_change` tells when more are."""
        return position not in self._fresh and position not in self._flushing

    def take(self, entry: Placed, where: Where) -> bool:
        """Have a record with a durable letter told of and settled; False without room: `on_change` tells."""
        slot, place, position, record = entry
        if not waits_at(slot, place):
            return True
        refusal = self._refusal(self._persisted(position))
        named = Named(slot, place, position, self._letters[position])
        return self._telling.add(where, DeadRecord(named, record[TOPIC], record[PARTITION], refusal))

    def keeps_waiting(self, where: Where) -> bool:
        """Whoever is told of the records of that partition is slow: do not wait for it."""
        return self._telling.keeps_waiting(where)

    @property
    def queues(self) -> Iterable[Queue]:
        """Of the records with durable letters that are not settled yet."""
        return self._telling.queues

    @property
    def taken(self) -> Iterator[tuple[Slot, int]]:
        """Slot and place of those records."""
        return self._telling.taken

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return self._burying.interrupted or self._telling.interrupted

    async def _make_durable(self) -> None:
        if not self.known:
            await self._dead.take_stock()
            self._known.set()
            self._on_change()
        while (self._fresh or self._full) and not self._failed:
            if self._fresh:
                await self._flush()
            else:
                await self._dead.room()
                self._full = False
            self._on_change()

    async def _flush(self) -> None:
        self._flushing, self._fresh = self._fresh, set()
        try:
            await self._dead.durable()
        except WalError as error:
            self._fail(error)
        except BaseException:  # we are begun again, or it is the end
            self._fresh |= self._flushing
            raise
        finally:
            self._flushing = set()

    # -- what a lane holds -------------------------------------------------------------------------------------------

    async def bury(self, lane: Lane, batch: LaneBatch) -> int:
        """Have durable letters of its first records, as many as have expired and find room; how many.

        Where the disk fails none has: the batch is tried on as it is.
        """
        count = await self._put_of(lane, batch)
        if count:
            try:
                await self._dead.durable()
            except WalError as error:
                self._fail(error)
                return self._take_back(batch, count)
        return count

    async def settle(self, lane: Lane, batch: LaneBatch, count: int) -> None:
        """The first ``count`` records of a batch are dead letters when this returns: their letters are durable."""
        refusal = self._refusal_of(batch)
        for number, named in enumerate(islice(named_of(batch), count)):
            await self._settle(DeadRecord(named, lane.topic, lane.partition, refusal))
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)

    async def _put_of(self, lane: Lane, batch: LaneBatch) -> int:
        refusal, count = self._refusal_of(batch), 0
        for named in named_of(batch):
            if count % STEP == STEP - 1:
                await asyncio.sleep(0)
            if waits_at(named.slot, named.place):  # else it is a dead letter already, as in `has_due`
                if not self.is_due(named.position, lane.topic):
                    break
                if not self._put_frame(named, lane, refusal):
                    break
            count += 1
        return count

    def _take_back(self, batch: LaneBatch, count: int) -> int:
        """What was put of the first ``count``; how many of them are settled, and so no part of the batch any more."""
        placed = islice(placed_of(batch), count)
        waiting = [position for slot, place, position in placed if waits_at(slot, place)]
        for position in waiting:
            self._forget(position)
        return count - len(waiting)

    def forget_rotten(self, batch: LaneBatch) -> None:
        """Kafka has taken it."""
        if self._rotten:
            self._rotten.difference_update(positions_of(batch))

    # -- one record --------------------------------------------------------------------------------------------------

    def _put_frame(self, named: Named, lane: Lane, refusal: Refusal) -> bool:
        try:
            payload = payload_at(named.slot, named.place)
        except WalCorruptError as error:
            self._try_on(named.position, str(error))
            return False
        if payload is None:  # settled
            return True
        return self._put(named, lane.partition, self._letter(payload, lane.topic, refusal))

    def _try_on(self, position: int, error: str) -> None:
        self._rotten.add(position)
        log.error("a record is tried on: its dead letter would be another one error=%s", error)

    def _letter(self, payload: bytes, topic: str, refusal: Refusal) -> Letter:
        return letter_of(payload, refusal, owed=self._topic not in (None, topic))

    def _put(self, named: Named, partition: int | None, letter: Letter) -> bool:
        if named.position in self._letters:  # before a task of ours was cancelled
            return True
        try:
            self._dead.put_now(named, partition, letter)
        except WalFullError as full:
            self._full = True
            self._tally.no_room(full)
            self.begin()
            return False
        except WalError as error:
            self._fail(error)
            return False
        self._letters[named.position] = named.nonce
        return True

    async def _settle(self, taken: DeadRecord) -> None:
        """I3: the letter is durable; after everybody who wants to know first was told."""
        slot, place, position, _ = taken.named
        if not waits_at(slot, place):
            return
        await self._reports.announce_dead(self._reports.dead_report(taken))
        slot.ring.settle(slot, [place])
        self._letters.pop(position, None)
        self._dead.settled(position)
        self.dead_lettered += 1
        self._tally.count(taken.named.record_id)
        self._reports.bury(taken)

    def _persisted(self, position: int) -> Persistence:
        return "possibly" if position <= self._doubtful_up_to else "not"

    def _refusal(self, persisted: Persistence, attempts: int = 0, first_ms: int = 0) -> Refusal:
        now = time.time_ns() // 1_000_000
        return Refusal(
            error=EXPIRED,
            message=self._message,
            persisted=persisted,
            attempts=attempts,
            first_ms=first_ms or now,
            last_ms=now,
        )

    def _refusal_of(self, batch: LaneBatch) -> Refusal:
        persisted: Persistence = "possibly" if batch.maybe_there else "not"
        return self._refusal(persisted, batch.earlier + batch.attempts, batch.first_ms)

    def _fail(self, error: WalError) -> None:
        """Nothing becomes durable any more (I7): what waits for a flush is given back to who has it."""
        if not self._failed:
            self._tally.failed(error)
        self._failed = True
        for position in self._fresh | self._flushing:
            self._forget(position)
        self._fresh.clear()

    def _forget(self, position: int) -> None:
        """No letter, after all."""
        self._letters.pop(position, None)
        self._dead.take_back(position)

    async def close(self) -> None:
        """End; what was not settled is found again by the next start."""
        await asyncio.gather(*self._burying.end(), return_exceptions=True)
        await self._telling.close()
        self._tally.close()


def _count_up_to(run: Run, up_to: int) -> int:
    """How many records at the beginning of ``run`` stand up to a position."""
    return bisect_right(run.sequences, up_to - fmt.position(run.epoch, 0))
