"""Moves the oldest slot of the main ring to the retry ring, and rewrites the retry ring: when, says `wal.compaction`.

What happens in which order, and why, is in `wal.moving`. Here it is only done, a few milliseconds at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from aiorecover.delivery.moves import Moves
from aiorecover.errors import WalError, WalFullError
from aiorecover.wal.checkpoint import Checkpoint
from aiorecover.wal.compaction import SlotLoad, moves_oldest, rewrites
from aiorecover.wal.directory import Directory
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover")

FIRST_PAUSE = 1.0  # seconds until it is tried again after a failure, mostly for want of room; then twice as long
MOVES_A_LOOK = 4  # slots between two ordinary checkpoints, which find the disk busy for so long
REWRITE_MOST = 128 << 20  # bytes to be copied at once: some 300 bytes of memory a record, and no checkpoint meanwhile
LONGEST_PAUSE = 60.0  # seconds: who frees disk space is not kept waiting for longer


class Compactor:
    """One move or rewriting at a time."""

    def __init__(self, directory: Directory, keeper: Keeper, moves: Moves, on_freed: Callable[[], None]) -> None:
        """``on_freed`` is called when slots of the main ring came free."""
        self._directory = directory
        self._keeper = keeper
        self._moves = moves
        self._on_freed = on_freed
        self._making: asyncio.Future[None] | None = None  # the checkpoint that makes it is being written
        self._pause = 0.0
        self._not_before = 0.0
        self.slots_moved = 0
        self.records_moved = 0
        self.rewrites = 0

    async def look(self) -> None:
        """Do what is worth it now, if anything is; to be called with no checkpoint under way."""
        now = asyncio.get_running_loop().time()
        if self._making is not None or now < self._not_before or self._directory.ring.failure is not None:
            return
        try:
            await self._rewrite()
            await self._move_some()
        except Exception as error:
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._not_before = asyncio.get_running_loop().time() + self._pause
            unexpected = not isinstance(error, WalError)
            message = "no slot is moved to the retry ring for %.0f s error=%s"
            log.warning(message, self._pause, error, exc_info=unexpected)
        else:
            self._pause = 0.0

    async def _move_some(self) -> None:
        for _ in range(MOVES_A_LOOK):
            if not await self._move():
                return

    async def _move(self) -> bool:
        ring = self._directory.ring
        slots = [slot for slot in ring.live if not slot.moved]
        full = ring.spares.full
        if len(slots) < 2 or not self._moves.worth_a_look:  # noqa: PLR2004 - the newest is being written
            return False
        movable = self._moves.only_stalled_wait(slots[0], urgent=full)
        loads = _loads(ring, slots, movable=movable) if movable else []
        if not moves_oldest(loads, room_needed=full):
            return False
        moving = Move(ring, self._directory.retry, slots[0])
        await self._carry_out(moving, partial(self._directory.next_checkpoint, moved=slots[0].last_position))
        return True

    async def _rewrite(self) -> None:
        retry = self._directory.retry
        slots = [slot for slot in retry.live if not slot.moved]
        loads = _loads(retry, slots, movable=True)
        if not rewrites(loads) or not self._moves.may_rewrite(slots):
            return
        if sum(load.waiting for load in loads) > REWRITE_MOST:
            return
        await self._have_a_spare()
        moving = Rewrite(retry)
        await self._carry_out(moving, partial(self._directory.next_checkpoint, rewritten=moving.copies_from))

    async def _carry_out(self, moving: Move | Rewrite, capture: Callable[[], Checkpoint]) -> None:
        self._directory.copies_from = moving.copies_from
        try:
            await self._have_a_spare()
            while not moving.step():
                await asyncio.sleep(0)
                await self._have_a_spare()
            moving.check()
            self._moves.repoint()
        except BaseException:
            moving.abandon()
            self._directory.copies_from = None
            self._moves.point_back()
            raise
        await self._make(moving, capture())

    async def _have_a_spare(self) -> None:
        """The next slot for the copies, allocated off the loop; where there is no room, copying will tell."""
        retry = self._directory.retry
        if retry.wants_spare:
            try:
                await self._keeper.submit(retry.prepare_spare)
            except WalFullError:
                return

    async def _make(self, moving: Move | Rewrite, captured: Checkpoint) -> None:
        """Have the checkpoint written. From here on it may be on the disk: what it says is not taken back.

        If we are cancelled meanwhile, what follows from it is done all the same, once it is there.
        """
        making = self._making = self._keeper.submit(self._directory.write_checkpoint, captured)
        making.add_done_callback(partial(self._made, moving, captured))
        await asyncio.shield(making)

    def _made(self, moving: Move | Rewrite, captured: Checkpoint, making: "asyncio.Future[None]") -> None:
        self._making = None
        if making.cancelled() or making.exception() is not None:  # the disk failed: nothing is freed until reopened
            return
        moving.finish()
        self._directory.copies_from = None
        freed = self._directory.recycle(captured)
        self._moves.made()
        self._tell(moving)
        if freed:
            self._on_freed()

    def _tell(self, moving: Move | Rewrite) -> None:
        if isinstance(moving, Rewrite):
            self.rewrites += 1
            log.info("the retry ring was rewritten records=%d", moving.count)
            return
        self.slots_moved += 1
        self.records_moved += moving.count
        message = "a slot was moved to the retry ring: only what does not get through waited in it slot=%d records=%d"
        log.info(message, moving.slot.header.ordinal, moving.count)


def _loads(ring: Ring, slots: Sequence[Slot], *, movable: bool) -> list[SlotLoad]:
    return [SlotLoad(ring.slot_bytes, ring.waiting_bytes(slot), movable) for slot in slots]
