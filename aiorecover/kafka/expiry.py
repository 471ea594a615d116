"""``delivery_timeout_ms``: records that could not be delivered in time become dead letters."""

import asyncio
import logging
from typing import TYPE_CHECKING

from aiorecover.errors import WalIOError
from aiorecover.kafka.lanes import DeliveryLane, LaneState
from aiorecover.kafka.rewrite import FULL
from aiorecover.ring.format import BatchState
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

LOOK_S = 0.5  # between two looks for records that are too old

_log = logging.getLogger("aiorecover")


class Expiry:
    """Make dead letters of records that are too old, a lane at a time."""

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery, self.ring, self.rewriter = delivery, delivery.ring, delivery.rewriter

    async def run(self, limit_s: float) -> None:
        """Bury again and again what was accepted more than ``limit_s`` seconds ago."""
        while True:
            await asyncio.sleep(min(LOOK_S, limit_s / 4))
            self.bury_before(self.ring.files.now_ms() / 1000 - limit_s)

    def bury_before(self, moment: float) -> None:
        """Bury what was accepted before ``moment``, Unix seconds, and is neither in flight nor held; returns at once.

        In transactions not before the first one: what earlier ones committed is not settled until then.
        """
        delivery = self.delivery
        if not delivery.settled_before:
            return
        if self.rewriter.dead_is_full:
            delivery.throttle.warn("dead_letters_full", "ring", "%s: records that are too old wait", FULL)
            return
        for lane in list(delivery.router.lanes.values()):
            if lane.topic.unassigned is lane and self.rewriter.is_assigning(lane.topic):
                continue
            cursor = lane.stored.published
            if cursor.batch is not None and cursor.index and cursor.batch.accepted_at < moment:
                cursor.seal()
            batch = lane.head
            waits = lane.state in (LaneState.SEALED, LaneState.BACKING_OFF) or lane.topic.unassigned is lane
            unread = batch is None and bool(lane.stored.later)  # no broker's task has asked for it yet
            old = batch is not None and batch.accepted_at < moment
            if waits and lane.state not in (LaneState.HELD, LaneState.HALTED) and (old or unread):
                delivery.hold(lane)
                delivery.spawn(self._expire(lane, moment), "aiorecover-expire")

    async def _expire(self, lane: DeliveryLane, moment: float) -> None:
        """Bury a lane's batches that are too old; the lane is held."""
        delivery = self.delivery
        await delivery.load(lane)
        while (batch := lane.head) is not None and batch.accepted_at < moment and not self.rewriter.dead_is_full:
            if not await self._bury(lane, batch):
                return
            await delivery.load(lane)
        delivery.router.go_on(lane)
        delivery.waiters.check()

    async def _bury(self, lane: DeliveryLane, batch: Batch) -> bool:
        """Bury all records of a batch, unless Kafka has them (R11); False: the lane is halted."""
        checker, reason = self.delivery.checker, "not delivered within delivery_timeout_ms"
        if (lane.doubt or self._sent_before(lane, batch)) and not await checker.look(lane):
            reason += ", and kafka cannot be read: it may be there"
        if lane.head is batch:
            count = batch.count
            try:
                await self.rewriter.bury(batch, reason)
            except WalIOError as error:
                self.rewriter.halt(lane, f"{reason}, and the disk has failed: {error}")
                return False
            _log.error("dead_letter not delivered in time lane=%s records=%d", lane.stored, count)
        checker.end_doubt(lane)
        return True

    def _sent_before(self, lane: DeliveryLane, batch: Batch) -> bool:
        """Whether an earlier life may have sent a batch."""
        if batch.epoch == self.ring.epoch or lane.stored.partition < 0 or self.delivery.options.transactional_id:
            return False  # in transactions, their number has said it
        return batch.state is BatchState.SENT or not (batch.segment.trusted or lane.checked)
