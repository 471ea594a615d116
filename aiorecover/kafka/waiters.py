"""Callers that wait: for all that was published so far (`drained`), or for one record (`settled`)."""

import asyncio
from typing import TYPE_CHECKING

from aiorecover.errors import ClosedError, DeliveryError, DeliveryPendingError, PermanentDeliveryError
from aiorecover.kafka.lanes import LaneState
from aiorecover.ring.format import BatchState
from aiorecover.ring.lane import DEAD
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery


class Waiters:
    """The callers that wait for deliveries of one producer.

    Attributes:
        stopped: nothing more is delivered.

    """

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery = delivery
        self.stopped = False
        self._watching: set[asyncio.Future[None]] = set()  # each for a batch
        self._waiters: list[tuple[tuple[int, int], asyncio.Future[None]]] = []  # each for all up to an order

    def stop(self) -> None:
        """Raise in every caller that waits: nothing more is delivered."""
        self.stopped = True
        for waiter in (*self._watching, *(waiter for _, waiter in self._waiters)):
            if not waiter.done():
                waiter.set_exception(self._ended())

    def _ended(self) -> Exception:
        if self.delivery.failure is not None:
            return DeliveryError(str(self.delivery.connection.cause))
        return ClosedError("the producer is stopped: the record is delivered after the next start")

    def seal_all(self) -> None:
        """Seal every open batch that has records."""
        for lane in list(self.delivery.router.lanes.values()):
            cursor = lane.stored.published
            if cursor.index:
                cursor.seal()
                if lane.task is not None:
                    lane.task.wake.set()

    async def drained(self) -> None:
        """Wait until what was published so far is done, or stands in a halted lane.

        Raises:
            PermanentDeliveryError: a lane is halted.
            DeliveryError: delivery has stopped.

        """
        if self.delivery.failure is not None:
            raise DeliveryError(str(self.delivery.connection.cause))
        upto = self.delivery.ring.epoch, self.delivery.ring.next_sequence()
        if self._before(upto):
            await self._wait_until(upto)
        for stored, lane in self.delivery.router.lanes.items():
            if lane.state is LaneState.HALTED and (oldest := stored.oldest) and oldest < upto:
                raise PermanentDeliveryError(f"{lane.error} lane={stored}")

    async def _wait_until(self, upto: tuple[int, int]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((upto, waiter))
        self.delivery.hurried += 1
        try:
            self.seal_all()
            await waiter
        finally:
            self.delivery.hurried -= 1
            self._waiters = [one for one in self._waiters if one[1] is not waiter]

    async def settled(self, batch: Batch, index: int, record_id: str) -> tuple[Batch, int]:
        """Wait until a record is in Kafka; return the batch that it was sent in, and its index there.

        Raises:
            PermanentDeliveryError: it is a dead letter, it halted its lane, or it was damaged on the disk.
            DeliveryPendingError: it comes after one that halted its lane.
            DeliveryError: delivery has stopped.
            ClosedError: the producer is stopped.

        """
        while True:
            if not batch.done:
                self._refuse_halted(batch, record_id)
                await self._wait_for(batch)
            elif batch.state is BatchState.VOID:
                raise PermanentDeliveryError(f"the record was damaged on the disk record={record_id}")
            elif batch.state is not BatchState.REPLACED:
                return batch, index
            else:
                children = batch.children or ()
                batch, index = next((child, places.index(index)) for child, places in children if index in places)
                if batch.lane.partition == DEAD:
                    message = f"the record is a dead letter: {batch.error} record={record_id}"
                    raise PermanentDeliveryError(message, persisted="not")

    def _refuse_halted(self, batch: Batch, record_id: str) -> None:
        lane = self.delivery.router.lanes.get(batch.lane)
        if lane is not None and lane.state is LaneState.HALTED:
            kind = PermanentDeliveryError if lane.head is batch else DeliveryPendingError
            raise kind(f"{lane.error}, do not publish it again lane={batch.lane} record={record_id}")

    async def _wait_for(self, batch: Batch) -> None:
        """Wait until a batch is done, a lane is halted, or delivery ends."""
        if self.stopped:
            raise self._ended()
        waiter = asyncio.get_running_loop().create_future()
        if batch.waiters is None:
            batch.waiters = []
        batch.waiters.append(waiter)
        self._watching.add(waiter)
        try:
            await waiter
        finally:
            self._watching.discard(waiter)
            if batch.waiters and waiter in batch.waiters:
                batch.waiters.remove(waiter)

    def halted(self) -> None:
        """Wake every caller after a lane was halted, to look whether it waits for that one."""
        for waiter in self._watching:
            if not waiter.done():
                waiter.set_result(None)
        self.check()

    def check(self) -> None:
        """Wake the callers for whom all is done now."""
        for upto, waiter in self._waiters:
            if not waiter.done() and not self._before(upto):
                waiter.set_result(None)

    def _before(self, upto: tuple[int, int]) -> bool:
        lanes = self.delivery.router.lanes.items()
        going = (stored.oldest for stored, lane in lanes if lane.state is not LaneState.HALTED)
        return self.delivery.ring.recovering or any(oldest < upto for oldest in going if oldest is not None)
