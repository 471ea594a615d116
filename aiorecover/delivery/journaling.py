"""Writes down what is about to be sent (I6b); what an entry says is in `journal`, where it stands in `wal.lanes`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.journal import MAIN, Entry, Group, encode
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.errors import WalError, WalFullError
from aiorecover.wal.lanes import Lanes

log = logging.getLogger("aiorecover.delivery")

ROOM_PAUSE = 0.5  # seconds until a lane that found no room for its entry tries again: delivery must resume within 1 s


class Journal:
    """The lanes' entries of one producer."""

    def __init__(self, lanes: Lanes, grow: Callable[[], Awaitable[None]], clock_ms: Callable[[], int]) -> None:
        """``grow`` has blocks allocated, off the loop; ``clock_ms``: time since the machine's boot."""
        self._lanes = lanes
        self._grow = grow
        self._clock_ms = clock_ms
        self._troubled = False

    async def enter(self, lane: Lane, batch: LaneBatch) -> None:
        """Have ``batch`` stand in the lane's block under its present identity; it stands there when this returns.

        Without room, or while the disk fails, this waits: a batch that is not written down is never sent.
        """
        while batch.entered != batch.identity:
            try:
                if lane.block is None:
                    lane.block = await self._block()
                self._lanes.store(lane.block, encode(_entry(lane, batch, self._clock_ms())))
                batch.entered = batch.identity
                self._troubled = False
            except WalError as error:
                self._tell_once(lane, error)
                await asyncio.sleep(ROOM_PAUSE)

    async def _block(self) -> int:
        while (block := self._lanes.take()) is None:
            await self._grow()
        return block

    def _tell_once(self, lane: Lane, error: WalError) -> None:
        """One line until it is over, not two a second for each lane."""
        if not self._troubled:
            self._troubled = True
            what = "free disk space" if isinstance(error, WalFullError) else "check the disk"
            message = "a batch waits because it cannot be written down: %s topic=%s partition=%d error=%s"
            log.warning(message, what, lane.topic, lane.partition, error)


def _entry(lane: Lane, batch: LaneBatch, at_ms: int) -> Entry:
    if batch.identity is None:
        message = "a batch without an identity cannot be written down"
        raise ValueError(message)
    producer_id, epoch, base_sequence = batch.identity
    groups = tuple(Group(MAIN, slot.header.ordinal, places) for slot, places in batch.frames)
    identity = Identity(producer_id, epoch)
    return Entry(lane.topic, lane.partition, identity, base_sequence, batch.count, lane.offset, at_ms, groups)
