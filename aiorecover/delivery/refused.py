"""What becomes of a batch that Kafka refuses for good: it is cut until the record at fault stands alone (`halving`).

That record becomes a dead letter: copied to the dead ring with its error, durable there, announced, and only then
settled (I3). Its lane goes on only after that, so order is kept. A full dead ring halts the lane until there is room;
under ``on_permanent_error="halt"`` the lane is halted until the next start.

Parts are built from the batch's own bytes, which are whole in memory, and letters from frames, which know more of a
record than Kafka is sent (`frames` says what becomes of those that rot).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from aiorecover.delivery import halving
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.dead_record import DeadRecord
from aiorecover.delivery.frames import Named, let_go, named_of, nonce_at, payload_at, positions_of
from aiorecover.delivery.lane import MAKE_ROOM, Lane
from aiorecover.delivery.lines import Lines
from aiorecover.delivery.outcomes import outcome_of
from aiorecover.delivery.parts import STEP, part_of, pieces_of, sizes_of, unmapped
from aiorecover.delivery.refusal import UNDECODABLE, Refusal, letter_of
from aiorecover.delivery.reports import Reports, tell_halted
from aiorecover.errors import WalCorruptError, WalError, WalFullError
from aiorecover.supervised import Supervised
from aiorecover.wal.run import Placed
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

UNDECODABLE_MOST = 1024  # that wait for the dead ring; those above it stay in the ring until the next start


class Refused:
    """Cuts refused batches, and brings the records at fault to the dead ring."""

    def __init__(
        self,
        dead: DeadLetters,
        reports: Reports,
        *,
        codec: int,
        topic: str | None,
        on_cut: Callable[[LaneBatch, Sequence[LaneBatch]], None],
        part_with: Callable[[Lane], None],
        on_buried: Callable[[Lane, LaneBatch], None],
        on_full: Callable[[Lane], None],
        on_room: Callable[[Lane], None],
    ) -> None:
        """``topic``: where dead letters are published to; None: nowhere.

        ``part_with``: as `Journal.part_with`, right before a record is settled that may be on its way to Kafka.
        ``on_full``: a lane is halted until there is room in the dead ring; ``on_room``: it goes on.
        """
        self._dead = dead
        self._reports = reports
        self._codec = codec
        self._topic = topic
        self._on_cut = on_cut
        self._part_with = part_with
        self._on_buried = on_buried
        self._on_full = on_full
        self._on_room = on_room
        self._undecodable: deque[DeadRecord] = deque()
        self.settled = 0  # undecodable records that became dead letters, or were lost
        self._failure: WalError | None = None  # why those that were taken stay in the ring
        self._burying = Supervised("undecodable", self._bury_undecodable)
        self._lines = Lines()
        self.dead_lettered = 0

    async def cut(self, lane: Lane, batch: LaneBatch, *, too_large: bool) -> int:
        """Put the parts of a batch of several records in its place; bytes of the largest one."""
        lengths = halving.cut(await sizes_of(batch), too_large=too_large)
        parts = await self._parts(batch, lengths)
        if not too_large:
            parts[0].rest = parts[1]
        lane.replace(parts)
        self._on_cut(batch, parts)
        return max(part.bytes for part in parts)

    async def bury(self, lane: Lane, batch: LaneBatch, error: BaseException) -> None:
        """The one record of ``batch`` is a dead letter when this returns; the lane may go on."""
        refusal = Refusal(
            error=type(error).__name__,
            message=f"{outcome_of(error).reason}: {error}",
            persisted="possibly" if batch.maybe_there else "not",
            attempts=batch.earlier + batch.attempts,
            first_ms=batch.first_ms,
            last_ms=_now_ms(),
        )
        taken = DeadRecord(next(named_of(batch)), lane.topic, lane.partition, refusal)
        try:
            while not await self._is_put(taken, lane):
                await self._dead.room()
        finally:  # also when the lane's task is cancelled: whoever begins it again finds it as any other
            if lane.resumes:
                self._go_on(lane)
        await self._dead.durable()
        await self._settle(taken, lane if batch.maybe_there else None)
        lane.acknowledged()
        self._on_buried(lane, batch)

    async def withdraw(self, batch: LaneBatch) -> bool:
        """Kafka has taken it: what was a dead letter is none any more; whether one of an earlier process was."""
        first = next(positions_of(batch), None)
        if first is None or not self._dead.may_tell_of(first):
            return False
        return await self._dead.withdraw(list(positions_of(batch)))

    async def withdraw_durably(self, batches: Iterable[LaneBatch]) -> None:
        """As `withdraw`, and behind a power cut, too, nothing of it is a dead letter.

        Raises:
            WalIOError: the disk failed.

        """
        if any([await self.withdraw(batch) for batch in batches]):
            await self._dead.durable()

    def take_undecodable(self, entry: Placed, reason: str) -> bool:
        """A frame that holds and is no record: a dead letter, in its turn; False when too many wait already."""
        if len(self._undecodable) >= UNDECODABLE_MOST:
            return False
        slot, place, position, _ = entry
        now = _now_ms()
        refusal = Refusal(error=UNDECODABLE, message=reason, first_ms=now, last_ms=now)
        named = Named(slot, place, position, nonce_at(slot, place) or 0)  # 0: then there will be no letter, either
        self._undecodable.append(DeadRecord(named, "", None, refusal))
        if not self._burying.running:
            self._failure = None
            self._burying.start()
        return True

    @property
    def added(self) -> int:
        """Undecodable records that were taken."""
        return self.settled + len(self._undecodable)

    @property
    def taken(self) -> Iterator[tuple[Slot, int]]:
        """Slot and place of those that are not settled yet."""
        return ((taken.named.slot, taken.named.place) for taken in self._undecodable)

    def check(self) -> None:
        """Raise why those that were taken stay in the ring, if they do.

        Raises:
            WalError: the disk failed.

        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it would grow with each call, and keep whoever was told

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled our task: it is begun again after a pause."""
        return self._burying.interrupted

    async def close(self) -> None:
        """End; what was not settled is found again by the next start."""
        await asyncio.gather(*self._burying.end(), return_exceptions=True)
        self._lines.close()
        await self._dead.close()

    async def _bury_undecodable(self) -> None:
        while self._undecodable:
            taken = self._undecodable[0]
            payload = _payload_of(taken.named)
            if payload is not None:
                try:
                    await self._dead.put(taken.named, None, letter_of(payload, taken.refusal, owed=False))
                    await self._dead.durable()
                except WalFullError:
                    await self._dead.room()
                    continue
                except WalError as error:
                    left = len(self._undecodable)
                    log.error("undecodable records stay in the ring records=%d error=%s", left, error)  # noqa: TRY400 - one line
                    self._failure = error
                    return
                await self._settle(taken)
            self._undecodable.popleft()
            self.settled += 1

    async def _is_put(self, taken: DeadRecord, lane: Lane) -> bool:
        """Whether there was room for the letter; where there is none the lane is halted."""
        named = taken.named
        payload = payload_at(named.slot, named.place)
        if payload is None:
            raise unmapped(named.slot)
        try:
            letter = letter_of(payload, taken.refusal, owed=self._topic not in (None, lane.topic))
            await self._dead.put(named, lane.partition, letter)
        except WalFullError as full:
            if not lane.resumes:
                self._halt(lane, full)
            return False
        return True

    # -- one record --------------------------------------------------------------------------------------------------

    async def _settle(self, taken: DeadRecord, parts: Lane | None = None) -> None:
        """I3: the copy is durable; after everybody who wants to know first was told.

        ``parts``: the lane that parts with what may be on its way to Kafka. Not earlier: a process that dies before has
        the very same batch sent again.
        """
        slot, place, position, _ = taken.named
        await self._reports.announce_dead(self._reports.dead_report(taken))
        if parts is not None:
            self._part_with(parts)
        slot.ring.settle(slot, [place])
        self._dead.settled(position)
        self.dead_lettered += 1
        self._lines.tell(taken.named.record_id, taken.topic, taken.partition, taken.refusal)
        self._reports.bury(taken)

    def _halt(self, lane: Lane, error: WalFullError) -> None:
        lane.halt(f"no room for a dead letter: {error}", MAKE_ROOM)
        tell_halted(lane)
        self._on_full(lane)

    def _go_on(self, lane: Lane) -> None:
        lane.go_on()
        log.warning(
            "the lane that had no room for a dead letter goes on topic=%s partition=%d", lane.topic, lane.partition
        )
        self._on_room(lane)

    async def rest_of(self, batch: LaneBatch, count: int) -> LaneBatch:
        """``batch`` without its first ``count`` records."""
        return (await self._parts(batch, [batch.count - count], skip=count))[0]

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _parts(self, batch: LaneBatch, lengths: Sequence[int], *, skip: int = 0) -> list[LaneBatch]:
        """The records of ``batch`` behind ``skip`` in new batches of so many each."""
        pieces = pieces_of(batch)
        for number, _ in enumerate(islice(pieces, skip), start=1):
            if number % STEP == 0:
                await asyncio.sleep(0)
        return [await part_of(batch, islice(pieces, length), self._codec) for length in lengths]


def _payload_of(named: Named) -> bytes | None:
    """Of an undecodable record; None: it is settled, or lost."""
    try:
        return payload_at(named.slot, named.place)
    except WalCorruptError as error:
        log.error("an undecodable record is lost: its dead letter would be another one error=%s", error)  # noqa: TRY400 - the disk's fault
        let_go(named.slot, named.place)
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
