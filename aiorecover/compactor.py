"""Moves the oldest slot of the main ring to the retry ring, and rewrites the retry ring: when, says `wal.compaction`.

What happens in which order, and why, is in `wal.moving`. Here it is only done, a few milliseconds at a time.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial

from aiorecover.delivery.moves import Moves
from aiorecover.errors import WalCorruptError, WalError, WalFullError, WalIOError
from aiorecover.wal.checkpoint import Checkpoint
from aiorecover.wal.compaction import SlotLoad, moves_oldest, outgrows, rewrites
from aiorecover.wal.directory import Directory
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.moved import MOVED_BYTES
from aiorecover.wal.moving import STEP, Copying, Move, Rewrite
from aiorecover.wal.ring import Ring
from aiorecover.wal.room import copies_take
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover")

FIRST_PAUSE = 1.0  # seconds until it is tried again after a failure; then twice as long
MOVES_A_LOOK = 4  # slots between two ordinary checkpoints, which find the disk busy for so long
LONGEST_PAUSE = 60.0  # seconds: what is mended is not kept waiting for longer
STEPS_A_LOOK = 128  # of some 1 ms: the next checkpoint waits for so long; what is under way goes on behind it
READS_MOST = 8  # that fail before a slot is left where it is: 2 minutes, as the pauses grow; a device may be away


class Compactor:
    """One move or rewriting at a time. What fails is not begun anew: it goes on where it stood."""

    def __init__(self, directory: Directory, keeper: Keeper, moves: Moves, on_freed: Callable[[], None]) -> None:
        """``on_freed`` is called when slots of the main ring came free."""
        self._directory = directory
        self._keeper = keeper
        self._moves = moves
        self._on_freed = on_freed
        self._under_way: Copying | None = None  # until its checkpoint is being written
        self._obstacle: WalError | None = None  # why it cannot be made: its copies are marked void
        self._making: asyncio.Future[None] | None = None  # the checkpoint that makes it is being written
        self._handed = False  # that was to be written, and what follows from it is not done yet
        self._stay: set[Slot] = set()  # a part of these cannot be read: not copied before that is counted anew
        self._tried: set[Slot] = set()  # nor could a part of these: there is no more patience with it
        self._times = 1  # what waits is estimated: so many times as much is secured, once that was too little
        self._full = False  # it was said that there is no room
        self._pause = 0.0
        self._not_before = 0.0
        self.slots_moved = 0
        self.records_moved = 0
        self.rewrites = 0

    async def look(self) -> None:
        """Do what is worth it now, if anything is; to be called with no checkpoint under way."""
        now = asyncio.get_running_loop().time()
        if self._handed and self._making is None:
            self._stop()
        if self._making is not None or now < self._not_before or self._directory.ring.failure is not None:
            return
        try:
            if await self._go_on():
                await self._rewrite()
            if await self._go_on():
                await self._move_some()
        except Exception as error:
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._not_before = asyncio.get_running_loop().time() + self._pause
            unexpected = not isinstance(error, WalError)
            message = "no slot is moved to the retry ring for %.0f s error=%s"
            log.warning(message, self._pause, error, exc_info=unexpected)
        else:
            self._pause = 0.0

    def try_again(self) -> None:
        """A slot of which a part cannot be read was counted anew: it counts no more than what can be."""
        counted = {slot for slot in self._stay if slot not in slot.ring.losses.miscounted}
        self._tried = (self._tried | counted) & {*self._directory.ring.live, *self._directory.retry.live}
        self._stay -= counted

    async def _move_some(self) -> None:
        for _ in range(MOVES_A_LOOK):
            if not await self._move() or not await self._go_on():
                return

    async def _move(self) -> bool:
        ring = self._directory.ring
        slots = [slot for slot in ring.live if not slot.moved]
        full = ring.spares.full
        if len(slots) < 2 or not self._moves.worth_a_look:  # noqa: PLR2004 - the newest is being written
            return False
        if slots[0] in self._stay or not self._moves.only_behind_wait(slots[0]):
            return False
        loads = _loads(ring, slots, movable=True)
        if not (full or outgrows(loads)) and not self._moves.only_stalled_wait(slots[0]):
            return False
        if not moves_oldest(loads, room_needed=full):
            return False
        try:
            await self._have_room(slots[0])
        except WalFullError as error:
            self._tell_full(error)
            return False
        self._begin(Move(ring, self._directory.retry, slots[0], tried=self._tried))
        return True

    async def _have_room(self, slot: Slot) -> None:
        """For what is to be moved: a move that began and found none would stand in the way of a rewriting."""
        retry = self._directory.retry
        moved = self._directory.ring.waiting_bytes(slot) + slot.unsettled * MOVED_BYTES
        if moved > retry.rest:
            await self._keeper.submit(retry.spares.check_move, moved)
            if retry.wants_spare:
                await self._keeper.submit(retry.prepare_spare)

    async def _rewrite(self) -> None:
        retry = self._directory.retry
        slots = [slot for slot in retry.live if not slot.moved]
        loads = _loads(retry, slots, movable=self._stay.isdisjoint(slots))
        if not rewrites(loads) or not self._moves.may_rewrite(slots):
            await self._let_go()
            return
        waiting = sum(load.waiting for load in loads)
        try:
            await self._secure(copies_take(self._times * waiting, retry.slot_bytes))
            if self._moves.may_rewrite(slots):  # nobody has come there meanwhile
                self._begin(Rewrite(retry, tried=self._tried))
        except WalFullError as error:
            self._tell_full(error)
            await self._let_go()

    async def _secure(self, count: int) -> None:
        """Have all slots ready that a rewriting takes; one after the other, for others wait for the keeper, too.

        Moves go on where there is no room for them. One that began, and found none, would stand in their way.
        """
        while not await self._keeper.submit(self._directory.retry.spares.secure, count):
            pass

    async def _let_go(self) -> None:
        """What was secured, and is not needed, is free for any ring."""
        spares = self._directory.retry.spares
        if spares.holding.ready > 1:
            await self._keeper.submit(spares.let_go)

    def _begin(self, copying: Copying) -> None:
        self._under_way, self._obstacle = copying, None
        self._directory.copies_from = copying.copies_from

    async def _go_on(self) -> bool:
        """Bring what is under way to its end; whatever it raises, the next call goes on from there.

        False when there is more to do, behind the next checkpoint.
        """
        copying = self._under_way
        if copying is None:
            return True
        if self._obstacle is None and not await self._copy(copying):
            return False
        if self._obstacle is not None:
            return await self._give_up(copying, self._obstacle)
        await self._moves.repoint()
        await self._make(copying, copying.captured(self._directory))
        await self._moves.go_along()
        return True

    async def _copy(self, copying: Copying) -> bool:
        """Copy some more; whether that is at an end, either way."""
        try:
            for _ in range(STEPS_A_LOOK):
                await self._have_a_spare()
                if copying.step():
                    copying.check()
                    return True
                await asyncio.sleep(0)
        except WalFullError as error:
            self._obstacle = error  # the rewriting that may make room must not wait for it, nor moves for a rewriting
            if isinstance(copying, Rewrite):
                self._times *= 2
        except (WalIOError, WalCorruptError) as error:
            if isinstance(error, WalIOError) and copying.failures < READS_MOST:
                raise
            self._obstacle = error
            copying.doubt()
            self._stay.update(copying.slots)
            ordinals = ",".join(str(slot.header.ordinal) for slot in copying.slots)
            message = "slots stay where they are, and their room with them, until what can be read there is counted"
            log.error("%s slots=%s error=%s", message, ordinals, error)  # noqa: TRY400 - the disk's fault, not ours
        return self._obstacle is not None

    async def _give_up(self, copying: Copying, obstacle: WalError) -> bool:
        """Mark copies; whether that is at an end. Nothing else is copied before the last copy is void."""
        for _ in range(STEPS_A_LOOK):
            done = copying.abandon(STEP)
            await asyncio.sleep(0)
            if done:
                break
        else:
            return False
        self._under_way = self._directory.copies_from = None
        if isinstance(obstacle, WalFullError):
            raise obstacle
        return True

    async def _have_a_spare(self) -> None:
        """The next slot for the copies, allocated off the loop; where there is no room, copying will tell."""
        retry = self._directory.retry
        if retry.wants_spare:
            try:
                await self._keeper.submit(retry.prepare_spare)
            except WalFullError:
                return

    async def _make(self, copying: Copying, captured: Checkpoint) -> None:
        """Have the checkpoint written. From here on it may be on the disk: what it says is not taken back.

        If we are cancelled meanwhile, what follows from it is done all the same, once it is there.
        """
        self._handed = True
        self._under_way = None
        making = self._making = self._keeper.submit(self._directory.write_checkpoint, captured)
        making.add_done_callback(partial(self._made, copying, captured))
        await asyncio.shield(making)
        if self._handed:  # a signal handler has raised in what follows from it
            raise self._stop()

    def _made(self, copying: Copying, captured: Checkpoint, making: "asyncio.Future[None]") -> None:
        self._making = None
        if making.cancelled() or making.exception() is not None:  # the disk failed: nothing is freed until reopened
            return
        copying.finish()
        self._directory.copies_from = None
        freed = self._directory.recycle(captured)
        self._moves.made()
        self._handed = False
        self._tell(copying)
        if freed:
            self._on_freed()

    def _stop(self) -> WalError:
        """Nothing more is moved or accepted before the next opening (I7).

        No memory, or a signal handler that raised: nobody knows whether the checkpoint is on the disk, by which copies
        count, so they must neither be void nor made again. A disk that fails has had the ring stop already.
        """
        failure = self._directory.ring.failure
        if failure is None:
            message = "nobody knows whether records were moved: stop, and start anew"
            failure = WalIOError(errno.ENOMEM, message, str(self._directory.path))
            self._directory.poison(failure)
        return failure

    def _tell_full(self, error: WalFullError) -> None:
        """One line until something is made again; it is looked again at once, for that costs nothing."""
        if not self._full:
            log.warning("nothing more can be moved to the retry ring error=%s", error)
        self._full = True

    def _tell(self, copying: Copying) -> None:
        self._full = False
        if isinstance(copying, Rewrite):
            self.rewrites += 1
            self._times = 1
            log.info("the retry ring was rewritten records=%d", copying.count)
            return
        self.slots_moved += 1
        self.records_moved += copying.count
        message = "a slot was moved to the retry ring: only what does not get through waited in it slot=%d records=%d"
        log.info(message, copying.slots[0].header.ordinal, copying.count)


def _loads(ring: Ring, slots: Sequence[Slot], *, movable: bool) -> list[SlotLoad]:
    return [SlotLoad(ring.slot_bytes, ring.waiting_bytes(slot), movable) for slot in slots]
