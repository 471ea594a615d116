"""Records that are older than ``delivery_timeout_ms`` become dead letters, wherever they wait.

Ages rise with the position (`wal.ages`), so what has expired is all that waits up to one position, and of each lane
what comes first: its order is kept. That position is taken from a durable checkpoint: after a crash the next process
has it, too, and no record is both a dead letter and delivered because a process died between the two.

What is in no lane yet is taken as the dispatcher reads it, or goes back for it; what a lane holds, between two attempts
to send it (`Sender`). Letters are stored at once, in order; then the dead ring is flushed, whoever wants to know is
told, and the records are settled (I3). Without room for a letter nothing expires: the records are tried on, and no lane
stands still for it. Copies for ``dead_letter_topic`` never expire: they are what is left of their records.
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.frames import frames_of, payload_at, position_at, waits_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refusal import EXPIRED, Persistence, Refusal, letter_of
from aiorecover.delivery.reports import Reports
from aiorecover.errors import WalError, WalFullError
from aiorecover.record import PARTITION, TOPIC
from aiorecover.supervised import Supervised
from aiorecover.wal import format as fmt
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

STEP = 64  # records between two turns of the loop: about 2 ms of work
WAITING_MOST = 16_384  # records whose letters wait for a flush, 2 MB; a reader that finds more waits
FIRST_TOLD = 1.0  # seconds that are counted together in the first line of the log
TELL_INTERVAL = 60.0  # seconds between two lines: an outage that turns a million records into letters is told in few


class _Taken(NamedTuple):
    slot: Slot
    place: int
    topic: str
    partition: int | None
    refusal: Refusal


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
        ``doubtful_up_to``: position of the last record that may be in Kafka though it is in no lane. ``on_change``:
        there is room again, or something was settled.
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
        self._taken: deque[_Taken] = deque()
        self._burying = Supervised("expiry", self._bury_taken)
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
        up_to = self.up_to
        count = _count_up_to(run, up_to) if up_to else 0
        if not count:
            return 0, False
        expires = self._may_expire(run.records[0])
        for number in range(1, min(count, STEP)):
            if self._may_expire(run.records[number]) is not expires:
                return number, expires
        return min(count, STEP), expires

    def is_due(self, position: int, topic: str) -> bool:
        """Whether one record has expired; 0 for its position: it is settled."""
        return 0 < position <= self.up_to and topic != self._topic

    def has_due(self, lane: Lane, batch: LaneBatch) -> bool:
        """Whether the first record of a batch has expired, or is settled: a task of ours was cancelled half-way."""
        first = next(frames_of(batch))
        return not waits_at(*first) or self.is_due(position_at(*first), lane.topic)

    def _may_expire(self, record: object) -> bool:
        return type(record) is tuple and record[TOPIC] != self._topic

    # -- what is in no lane ------------------------------------------------------------------------------------------

    def take(self, entry: Placed) -> bool:
        """Store the letter of a record that was read; False without room, now or for long (`up_to` tells)."""
        slot, place, position, record = entry
        if not waits_at(slot, place):
            return True
        if len(self._taken) >= WAITING_MOST:
            return False
        refusal = self._refusal("possibly" if position <= self._doubtful_up_to else "not")
        if not self._put(slot, place, record[TOPIC], record[PARTITION], refusal):
            return False
        self._taken.append(_Taken(slot, place, record[TOPIC], record[PARTITION], refusal))
        self.begin()
        return True

    @property
    def waiting(self) -> int:
        """Records whose letters are not durable yet; 0 where the disk failed: they stay in the ring."""
        return 0 if self._failed else len(self._taken)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled our task: it is begun again after a pause."""
        return self._burying.interrupted

    async def _bury_taken(self) -> None:
        if not self.known:
            await self._dead.take_stock()
            self._known.set()
            self._on_change()
        while self._taken or self._full:
            if self._full:
                await self._dead.room()
                self._full = False
            try:
                if self._taken:
                    count = len(self._taken)
                    await self._dead.durable()
                    await self._settle_taken(count)
            except WalError as error:
                self._fail(error)
            self._on_change()
            if self._failed:
                return

    async def _settle_taken(self, count: int) -> None:
        """The first ``count`` of those taken: their letters are durable."""
        for number in range(count):
            await self._settle(self._taken[0])
            self._taken.popleft()
            if number % STEP == STEP - 1:
                self._on_change()
                await asyncio.sleep(0)

    # -- what a lane holds -------------------------------------------------------------------------------------------

    def put(self, lane: Lane, batch: LaneBatch) -> int:
        """Store the letters of the first records of a batch, as many as have expired and find room; how many."""
        refusal, count, up_to = self._refusal_of(batch), 0, self.up_to
        for slot, place in frames_of(batch):
            waits = waits_at(slot, place)  # else it is a dead letter already, as above
            if waits and (
                position_at(slot, place) > up_to or not self._put(slot, place, lane.topic, lane.partition, refusal)
            ):
                break
            count += 1
        return count

    async def bury(self, lane: Lane, batch: LaneBatch, count: int) -> None:
        """The first ``count`` records of a batch are dead letters when this returns.

        Raises:
            WalError: the disk failed; they stay in the ring.

        """
        await self._dead.durable()
        refusal = self._refusal_of(batch)
        for number, (slot, place) in zip(range(count), frames_of(batch), strict=False):
            await self._settle(_Taken(slot, place, lane.topic, lane.partition, refusal))
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)

    # -- one record --------------------------------------------------------------------------------------------------

    def _put(self, slot: Slot, place: int, topic: str, partition: int | None, refusal: Refusal) -> bool:
        payload = payload_at(slot, place)
        if payload is None:  # settled meanwhile
            return True
        letter = letter_of(payload, refusal, owed=self._topic not in (None, topic))
        try:
            self._dead.put_now(position_at(slot, place), partition, letter)
        except WalFullError as full:
            self._full = True
            self._tally.no_room(full)
            self.begin()
            return False
        except WalError as error:
            self._fail(error)
            return False
        return True

    async def _settle(self, taken: _Taken) -> None:
        """I3: the letter is durable; after everybody who wants to know first was told."""
        slot, place, topic, partition, refusal = taken
        if not waits_at(slot, place):
            return
        position = position_at(slot, place)
        report = self._reports.dead_report(slot, place, topic, partition, refusal)
        await self._reports.announce_dead(report)
        slot.ring.settle(slot, [place])
        self._dead.settled(position)
        self.dead_lettered += 1
        self._tally.count(report.record_id)
        self._reports.bury(position, report, refusal)

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
        """Nothing becomes durable any more (I7)."""
        if not self._failed:
            log.error("nothing expires any more, records are tried on error=%s", error)
        self._failed = True

    async def close(self) -> None:
        """End; what was not settled is found again by the next start."""
        await asyncio.gather(*self._burying.end(), return_exceptions=True)
        self._tally.close()


class Tally:
    """One line of the log for many records."""

    def __init__(self, limit_ms: int | None) -> None:
        """Count nothing yet."""
        self._limit_ms = limit_ms
        self._untold = 0
        self._last_id = ""
        self._told = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._no_room = False

    def count(self, record_id: str) -> None:
        """One more."""
        self._untold += 1
        self._last_id = record_id
        self._no_room = False
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + FIRST_TOLD, self._told + TELL_INTERVAL), self._tell)

    def no_room(self, full: WalFullError) -> None:
        """There is no room for a letter: told once until there is."""
        if not self._no_room:
            log.error("records have expired, are tried on, and stay in the ring: no room for dead letters: %s", full)
        self._no_room = True

    def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        self._told, self._timer = loop.time(), None
        log.error(
            "records were not delivered in time and became dead letters: look at producer.dead_letters "
            "records=%d last=%s delivery_timeout_ms=%s",
            self._untold,
            self._last_id,
            self._limit_ms,
        )
        self._untold = 0

    def close(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._tell()


def _count_up_to(run: Run, up_to: int) -> int:
    """How many records at the beginning of ``run`` stand up to a position."""
    return bisect_right(run.sequences, up_to - fmt.position(run.epoch, 0))
