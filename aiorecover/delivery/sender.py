"""Sends each lane's batches one after the other, and settles what Kafka has acknowledged.

A lane's task lives only while the lane has something to send. What an error means is decided in `outcomes`; here it is
only carried out.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.frames import positions_of
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import MEND_TOPIC, START_ANEW, Lane, lane_halted, lane_waits
from aiorecover.delivery.lines import LaneLines
from aiorecover.delivery.outcomes import (
    NEWER_EPOCH,
    TOO_LARGE,
    Persisted,
    SwallowedError,
    Verdict,
    outcome_of,
)
from aiorecover.delivery.refused import Refused
from aiorecover.delivery.reports import Reports, tell_halted
from aiorecover.delivery.session import SessionLostError
from aiorecover.delivery.sessions import GivenUpError, Sessions, tell_stuck
from aiorecover.delivery.settling import settle_batch
from aiorecover.errors import ClosedError, WalCorruptError, WalError
from aiorecover.supervised import RESTART_PAUSE

log = logging.getLogger("aiorecover.delivery")

Over = Callable[[], bool]
"""Whether a batch shall not be sent any more; asked while something is waited for."""


class Sender:
    """Carries batches from the lanes to the sessions."""

    def __init__(
        self,
        sessions: Sessions,
        reports: Reports,
        refused: Refused,
        journal: Journal,
        expiry: Expiry,
        *,
        halts: bool,
        is_forgotten: Callable[[int], bool],
        backoff: tuple[float, float],
        on_acknowledged: Callable[[Lane, LaneBatch], None],
        on_halted: Callable[[Lane], None],
        on_parted: Callable[[Lane, LaneBatch, LaneBatch | None], None],
    ) -> None:
        """Know everybody.

        ``halts``: a record that Kafka refuses for good halts its lane, rather than being a dead letter.
        ``is_forgotten``: whether the brokers may have forgotten an identity under which a batch may have come through
        then, in milliseconds since the machine's boot. ``backoff``: first and longest pause between two attempts, in
        seconds. ``on_parted``: of a batch the first records have expired; what is left of it goes in its place.
        """
        self._refused = refused
        self._halts = halts
        self._is_forgotten = is_forgotten
        self._sessions = sessions
        self._reports = reports
        self._journal = journal
        self._expiry = expiry
        self._backoff = backoff
        self._on_acknowledged = on_acknowledged
        self._on_halted = on_halted
        self._on_parted = on_parted
        self._lines = LaneLines()
        self._renewals = LaneLines()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.delivered = 0
        self.found = 0  # records of those that the recovery check found in Kafka
        self.renewed = 0  # identities that the broker no longer followed, or that a batch was parted with under
        self.in_flight = 0  # records
        self.interrupted = 0  # lanes whose task was cancelled, or has failed

    def deliver(self, lane: Lane) -> None:
        """Have the lane's ready batches sent; nothing happens when that goes on already."""
        if lane.delivering or self._closing:
            return
        lane.delivering = True
        task = asyncio.create_task(self._work(lane), name=f"aiorecover-lane-{lane.topic}-{lane.partition}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: "asyncio.Task[None]") -> None:
        """Somebody may have cancelled it, before it even began perhaps: then the lane goes on after a pause.

        So it does whatever else ends a task before its time: a signal handler may raise anywhere.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._closing or (error is None and not task.cancelled()):
            return
        in_flight = lane.in_flight
        if in_flight is not None and in_flight.settling:  # it would be settled twice: the next start knows what is left
            self._halt(lane, error or asyncio.CancelledError(), START_ANEW)
            return
        lane.put_back()
        lane.delivering = True  # until then: a pause is a pause
        self.interrupted += 1
        task.get_loop().call_later(RESTART_PAUSE, self._begin_again, lane, error)
        if error is not None:
            log.warning(
                "a lane's task failed: begun again in %.0f s topic=%s partition=%d",
                RESTART_PAUSE,
                lane.topic,
                lane.partition,
                exc_info=error,
            )

    def _begin_again(self, lane: Lane, error: BaseException | None) -> None:
        self.interrupted -= 1
        lane.delivering = False
        if self._closing:
            return
        self.deliver(lane)
        if error is None:
            log.warning(
                "a lane's task was cancelled from outside %.0f s ago: begun again topic=%s partition=%d",
                RESTART_PAUSE,
                lane.topic,
                lane.partition,
            )

    async def close(self) -> None:
        """End every lane's task; what is not acknowledged stays in the ring."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, lane: Lane) -> None:
        with suppress(ClosedError):
            while lane.halted is None and (batch := lane.next()) is not None:
                await self._carry(lane, batch)
        lane.delivering = False  # not where anything else ends it: that is for `_ended`

    async def _carry(self, lane: Lane, batch: LaneBatch) -> None:
        """Bring one batch to its end. What fails unexpectedly halts the lane, unless the batch is settled already."""
        try:
            self.in_flight += batch.count
            try:
                metadata = await self._send(lane, batch)
            finally:
                self.in_flight -= batch.count
            if metadata is not None:
                await self._settle(lane, batch, metadata)
        except ClosedError:
            raise
        except Exception as error:
            if self._closing:  # an `on_delivery` that outlived the stop: the ring is closed, the record stays in it
                return
            if not isinstance(error, WalCorruptError):  # of which the lane's line tells all
                log.exception("delivering a lane failed topic=%s partition=%d", lane.topic, lane.partition)
            if lane.in_flight is not None:
                self._halt(lane, error, START_ANEW)

    async def _send(self, lane: Lane, batch: LaneBatch) -> RecordMetadata | None:
        """Send one batch until it is acknowledged; None when it was refused for good, which has been dealt with."""
        if batch.found_at is not None:
            return _found(lane, batch.found_at)
        if batch.count > 1 and (batch.at_fault or lane.has_outgrown(batch)):
            await self._refused.cut(lane, batch, too_large=not batch.at_fault)
            return None
        pauses = Backoff(*self._backoff, random.uniform)
        over = partial(self._is_over, lane, batch)
        while True:
            if lane.leaves:
                lane.put_back()
                return None
            if self._is_due(lane, batch) and await self._part_with_expired(lane, batch):
                return None
            self._renew_unknown(lane, batch)
            try:
                return await self._attempt(lane, batch, over)
            except GivenUpError:
                continue
            except BaseException as error:
                # Of an error of the ring no session is at fault: with it all lanes would begin anew.
                if isinstance(error, ClosedError | WalError) or _ends_our_task(error) or self._closing:
                    batch.possibly |= batch.attempts > 0  # it stays with aiokafka, which may send it yet
                    raise
                with suppress(GivenUpError):  # raised where the lane waits for an identity first
                    if not await self._after(lane, batch, error, over):
                        return None
            await asyncio.sleep(pauses.next())

    def _is_over(self, lane: Lane, batch: LaneBatch) -> bool:
        """Whether a batch is not to be sent any more as it is."""
        return lane.leaves or self._is_unknown(batch) or self._is_due(lane, batch)

    def _is_due(self, lane: Lane, batch: LaneBatch) -> bool:
        return self._expiry.limit_ms is not None and self._expiry.has_due(lane, batch)

    def _is_unknown(self, batch: LaneBatch) -> bool:
        """Whether Kafka, if it has the batch, may take it for a new one by now: it came so long ago."""
        since_ms = batch.unsure_since_ms
        return since_ms is not None and self._is_forgotten(since_ms)

    def _renew_unknown(self, lane: Lane, batch: LaneBatch) -> None:
        """Such a batch goes under a fresh identity, which has what is on its way of it refused: it may come twice."""
        if not self._is_unknown(batch):
            return
        lane.part_with(batch)
        self.renewed += 1
        if self._renewals.may_tell(lane, time.monotonic()):
            log.warning(
                "a batch has been on its way for longer than kafka may remember it: taking a fresh identity, what came "
                "through of it appears twice topic=%s partition=%d records=%d",
                lane.topic,
                lane.partition,
                batch.count,
            )

    async def _attempt(self, lane: Lane, batch: LaneBatch, over: Over) -> RecordMetadata:
        """Give the batch its identity, write it down and send it; ``over``: as in `Sessions.send`."""
        if lane.identity is None:
            lane.identify(batch, await self._sessions.identity(lane, over))
        elif batch.identity is None:
            lane.identify(batch, lane.identity)
        if not await self._journal.enter(lane, batch, over):
            raise GivenUpError
        metadata = await self._sessions.send(lane, batch, over)
        if lane.is_swallowed(batch, metadata.offset):  # settled, it would be lost
            raise SwallowedError
        return metadata

    async def _part_with_expired(self, lane: Lane, batch: LaneBatch) -> bool:
        """What comes first in it has expired, and no attempt is under way; False where it cannot: it is tried on."""
        count = await self._expiry.bury(lane, batch)
        if not count:
            return False
        if batch.maybe_there:
            self._journal.part_with(lane)
        lane.part_with(batch)
        self.renewed += batch.possibly  # what is left of it may come twice
        rest = await self._refused.rest_of(batch, count) if count < batch.count else None
        await self._expiry.settle(lane, batch, count)
        lane.parted(count, rest)
        self._on_parted(lane, batch, rest)
        return True

    async def _after(self, lane: Lane, batch: LaneBatch, error: BaseException, over: Over) -> bool:
        """What an error means for the lane; False when this batch is not to be sent any more."""
        if isinstance(error, SessionLostError):  # the session knows already; the batch is sent again as it is
            batch.possibly = True
            return True
        outcome = outcome_of(error)
        if outcome.persisted is not Persisted.NOT:
            batch.possibly = True
        if outcome.verdict is Verdict.PERMANENT:
            await self._give_up(lane, batch, error, over)
            return False
        if outcome.verdict is Verdict.FRESH_IDENTITY:
            log.warning(
                "kafka no longer follows the lane's identity: taking a fresh one topic=%s partition=%d error=%s",
                lane.topic,
                lane.partition,
                type(error).__name__,
            )
            lane.overtaken(random.uniform if isinstance(error, NEWER_EPOCH) else None)
            lane.renew(batch, await self._sessions.identity(lane, over))
            self.renewed += 1
        elif outcome.verdict is Verdict.SESSION_FATAL:
            self._sessions.give_up(lane, f"{type(error).__name__}: {error}")
        else:
            tell_stuck(lane, batch, error)
        return True

    async def _give_up(self, lane: Lane, batch: LaneBatch, error: BaseException, over: Over) -> None:
        """Kafka refuses the batch for good: cut it, or if it is a single record, part with that."""
        if batch.count == 1 and self._halts:
            self._halt(lane, error, MEND_TOPIC)
            return
        lane.take_back(batch, await self._sessions.identity(lane, over))
        self.renewed += batch.possibly  # for Kafka says nothing of what it has: what goes on of it may come twice
        too_large = isinstance(error, TOO_LARGE)
        if batch.count == 1:
            if too_large and batch.earlier and lane.limit is not None:
                lane.limit.explained()
            await self._refused.bury(lane, batch, error)
            return
        self._tell_refused(lane, batch, error, too_large=too_large)
        largest = await self._refused.cut(lane, batch, too_large=too_large)
        if too_large:
            lane.too_large(batch, largest, time.monotonic(), random.uniform)

    def _tell_refused(self, lane: Lane, batch: LaneBatch, error: BaseException, *, too_large: bool) -> None:
        """Of the parts of a batch, and of one that was larger on trial, nothing is told."""
        if batch.earlier or batch.probes or not self._lines.may_tell(lane, time.monotonic()):
            return
        event = "kafka refused a batch: looking for the record at fault"
        if too_large:
            event = "kafka refused a batch as too large: sending smaller ones"
        log.warning(
            "%s topic=%s partition=%d records=%d bytes=%d error=%r",
            event,
            lane.topic,
            lane.partition,
            batch.count,
            batch.bytes,
            error,
        )

    def _halt(self, lane: Lane, error: BaseException, remedy: str) -> None:
        at_fault, batches = lane.in_flight, list(lane.batches)
        lane.halt(f"{type(error).__name__}: {error}", remedy)
        tell_halted(lane)
        self._on_halted(lane)  # first: the others go on, whatever is met below
        for held in batches:
            told = lane_halted(lane, held) if held is at_fault else lane_waits(lane, held)
            self._reports.refuse(positions_of(held), told)

    async def _settle(self, lane: Lane, batch: LaneBatch, metadata: RecordMetadata) -> None:
        """I3: only after the acknowledgement, and after everybody who wants to know first was told."""
        batch.possibly = True  # it is there: cancelled from here on, it is sent once more
        waited = await settle_batch(
            batch, lane.topic, metadata, reports=self._reports, refused=self._refused, expiry=self._expiry
        )
        self.delivered += batch.count
        if lane.limit is not None:
            lane.limit.taken(batch.bytes, time.monotonic())
        if batch.rest is not None:
            batch.rest.at_fault = True
        if batch.found_at is not None:  # it may stand before what was acknowledged: records without a key have no order
            self.found += batch.count
            lane.acknowledged()
        else:
            if 0 <= metadata.offset <= lane.offset:
                self._begin_anew(lane, metadata.offset)
            lane.acknowledged(metadata.offset)
        try:
            self._on_acknowledged(lane, batch)
        finally:  # whatever that meets: it is settled, and who waits is told
            self._reports.tell(waited)

    def _begin_anew(self, lane: Lane, offset: int) -> None:
        """The topic was made anew, or its log was cut: what the broker knows of the lane is of another one."""
        log.warning(
            "kafka acknowledged an offset that was given before: was the topic deleted, or its log cut? "
            "topic=%s partition=%d offset=%d before=%d",
            lane.topic,
            lane.partition,
            offset,
            lane.offset,
        )
        lane.begin_anew()
        self.renewed += 1


def _found(lane: Lane, offset: int) -> RecordMetadata:
    """As Kafka would have acknowledged a batch that it has already."""
    place = TopicPartition(lane.topic, lane.partition)
    return RecordMetadata(lane.topic, lane.partition, place, offset, None, 0, None)


def _ends_our_task(error: BaseException) -> bool:
    """Whether it is no error of an attempt; a cancellation that comes out of aiokafka is one like any other."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception)
