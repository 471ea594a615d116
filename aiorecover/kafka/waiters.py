"""Callers that wait: for all that was published so far (`drained`), or for one batch (`wait_for`)."""

import asyncio
from typing import TYPE_CHECKING

from aiorecover.errors import ClosedError, DeliveryError
from aiorecover.kafka.lanes import DeliveryLane
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery


class Waiters:
    """The callers that wait for deliveries of one producer."""

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery = delivery
        self._stopped = False
        self._watching: set[asyncio.Future[None]] = set()  # each for a batch
        self._waiters: list[tuple[tuple[int, int], asyncio.Future[None]]] = []  # each for all up to an order

    def stop(self) -> None:
        """Nothing more is delivered: raise that in every caller that waits."""
        self._stopped = True
        for waiter in (*self._watching, *(waiter for _, waiter in self._waiters)):
            if not waiter.done():
                waiter.set_exception(
                    ClosedError("the producer is stopped: the record is delivered after the next start")
                )

    def seal_all(self) -> None:
        """Seal every open batch that has records."""
        for lane in list(self.delivery.router.lanes.values()):
            cursor = lane.stored.published
            if cursor.index:
                cursor.seal()
                if lane.task is not None:
                    lane.task.wake.set()

    async def drained(self) -> None:
        """Wait until what was published so far is done.

        Raises:
            DeliveryError: delivery has stopped.

        """
        if self.delivery.failure is not None:
            raise DeliveryError(str(self.delivery.connection.cause))
        upto = self.delivery.ring.epoch, self.delivery.ring.next_sequence()
        if not self._before(upto):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((upto, waiter))
        self.delivery.hurried += 1
        try:
            self.seal_all()
            await waiter
        finally:
            self.delivery.hurried -= 1
            self._waiters = [one for one in self._waiters if one[1] is not waiter]

    async def wait_for(self, batch: Batch) -> None:
        """Wait until a batch is done, or delivery ends."""
        if self._stopped:
            raise ClosedError("the producer is stopped: the record is delivered after the next start")
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

    def check(self) -> None:
        """Wake who waits for what is done now."""
        for upto, waiter in self._waiters:
            if not waiter.done() and not self._before(upto):
                waiter.set_result(None)

    def _before(self, upto: tuple[int, int]) -> bool:
        return self.delivery.ring.recovering or any(
            _oldest(lane) < upto for lane in self.delivery.router.lanes.values()
        )


def _oldest(lane: DeliveryLane) -> tuple[int, int]:
    stored = lane.stored
    if stored.queue:
        return stored.queue[0].order
    if stored.later:
        return (stored.later[0].ordinal >> 32, 0)
    batch = stored.published.batch
    return batch.order if batch is not None and stored.published.index else (1 << 62, 0)
