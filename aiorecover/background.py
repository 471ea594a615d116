"""The coroutines beside `publish`: loops only, the deciding is below.

dispatcher   ring → lanes                      (delivery)
discovery    topics that are not known yet     (delivery)
checkpoint   watermark → disk, slots → free    every `checkpoint_interval_ms`, if there is news or something waits,
                                               and when slots wait
             stalled records → retry ring      (compactor), where that frees slots
             what damage left in slots         (recounting), where some was met
fsync        frames → disk                     every `fsync_interval_ms`, with fsync="interval"
spare        the next slot, ahead of need      when the ring asks
backlog      how much is left, and how fast    each second
stocktaking  the dead ring, for damage         once, some moments after the start (delivery)
dead letter topic   dead ring → ring           (delivery), where the option asks for it
manifests    what became of records → Kafka    (manifests), where the option asks for it
adoption     directories without an owner      (adoption)
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from aiorecover.compactor import Compactor
from aiorecover.config import Config
from aiorecover.delivery import backlog as backlogs
from aiorecover.delivery.delivery import Delivery
from aiorecover.errors import ClosedError, WalError, WalFullError, WalIOError
from aiorecover.recounting import Recounting
from aiorecover.supervised import Supervised
from aiorecover.wal.directory import Directory
from aiorecover.wal.keeper import Keeper

log = logging.getLogger("aiorecover")

RECYCLE_TICK = 0.1  # seconds between two looks whether slots wait: at 100 MB/s that is at most one slot more
EXPIRY_SHARE = 16  # of ``delivery_timeout_ms``: so often is looked for what has expired; a checkpoint each time
SPARE_LOOK = 1.0  # seconds: a signal handler that asks while the wait begins sets the event and wakes nobody
BEAT = 20.0  # seconds between two checkpoints at most while something waits: a sign of life where our lock is not seen
FAILURE_PAUSE = 1.0  # seconds before a loop that failed unexpectedly is started again

Loop = Callable[[], Coroutine[Any, Any, None]]


class Background:
    """Runs the loops of one started producer."""

    def __init__(
        self,
        config: Config,
        directory: Directory,
        keeper: Keeper,
        delivery: Delivery,
        on_room: Callable[[], None],
    ) -> None:
        """``on_room`` is called when slots were freed."""
        self._config = config
        self._directory = directory
        self._keeper = keeper
        self._delivery = delivery
        self._on_room = on_room
        self._spare_wanted = asyncio.Event()
        self._more: dict[str, Loop] = {}
        self._loops: list[Supervised] = []
        self._checkpointing = asyncio.Lock()
        self.compactor = Compactor(directory, keeper, delivery.moves, on_room)
        self._recounting = Recounting(
            directory, delivery.moves, delivery.holders, delivery.reports, self.compactor.try_again
        )
        self.checkpoints = 0
        self.backlog = backlogs.Backlog()
        self.full = False

    def add(self, name: str, loop: Loop) -> None:
        """Have one more loop begun by `start`."""
        self._more[name] = loop

    def start(self) -> None:
        """Begin every loop."""
        loops: dict[str, Loop] = {
            "dispatcher": self._delivery.run_dispatcher,
            "discovery": self._delivery.run_discovery,
            "checkpoint": self._checkpoint_loop,
            "spare": self._spare_loop,
            "backlog": self._backlog_loop,
            **self._more,
        }
        if self._config.fsync == "interval":
            loops["fsync"] = self._fsync_loop
        for name, loop in loops.items():
            supervised = Supervised(name, partial(self._forever, name, loop))
            self._loops.append(supervised)
            supervised.start()

    async def stop(self) -> None:
        """End every loop."""
        ending = set[asyncio.Task[None]]().union(*(loop.end() for loop in self._loops))
        if ending:
            await asyncio.wait(ending)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a loop: it is begun again after a pause."""
        return any(loop.interrupted for loop in self._loops)

    def want_spare(self) -> None:
        """The ring has no next slot ready."""
        self._spare_wanted.set()

    async def sync(self) -> None:
        """One fdatasync of the ring that begins now."""
        await self._keeper.submit(self._directory.sync)

    async def checkpoint(self, *, closed: bool = False) -> int:
        """Capture the state, make it durable, free what it covers; the number of slots freed (I1, I4).

        ``closed``: nothing will be stored any more.
        """
        async with self._checkpointing:
            await self._keep_damaged()
            captured = self._directory.next_checkpoint(closed=closed, destination=self._delivery.destination)
            await self._keeper.submit(self._directory.write_checkpoint, captured)
            self.checkpoints += 1
            freed = self._directory.recycle(captured)
        if freed:
            self._on_room()
        return freed

    async def _forever(self, name: str, loop: Loop) -> None:
        """A loop that dies of something unexpected is reported and begun again: delivery must not just stop.

        One that returns has nothing more to do.
        """
        while True:
            try:
                await loop()
            except WalError as error:
                if self._directory.ring.failure is not None and name != "dispatcher":  # delivery goes on (I7)
                    log.error("the %s loop stops until the directory is reopened error=%s", name, error)  # noqa: TRY400
                    return
                log.error("the %s loop failed and is begun again error=%s", name, error)  # noqa: TRY400
            except ClosedError:
                return  # the producer stops
            except Exception:
                log.exception("the %s loop failed and is begun again", name)
            else:
                return
            await asyncio.sleep(FAILURE_PAUSE)

    async def _checkpoint_loop(self) -> None:
        clock = asyncio.get_running_loop().time
        interval = self._config.checkpoint_interval_ms / 1000
        last, mark, news, paced = clock(), -1, False, clock()
        limit = self._config.delivery_timeout_ms
        pace = min(interval, max(RECYCLE_TICK, (limit or 0) / 1000 / EXPIRY_SHARE))
        while True:
            await asyncio.sleep(min(RECYCLE_TICK, interval))
            ring = self._directory.ring
            waits = clock() - last >= min(interval, BEAT) and self._directory.pending() > 0
            due = waits or clock() - last >= interval
            self._check_files()
            self._directory.give_back_memory()
            await self._keep_damaged()
            left = ring.spares.full and ring.leave()
            retry = self._directory.retry
            left |= not retry.pending() and retry.leave()  # it may have room for no more than this one slot
            if left:
                self._delivery.wake()  # its reader stands in that slot until it looks again
            aged, expired = self._directory.note_age()
            news |= aged and limit is not None
            expired &= clock() - paced >= pace
            recyclable = ring.recyclable or retry.recyclable
            if left or recyclable or expired or (due and (news or waits or ring.watermark() != mark)):
                mark, news = ring.watermark(), False
                await self.checkpoint()
                if expired:
                    paced = clock()
                    self._delivery.expire()
            if due:
                last = clock()
                await self._keeper.submit(self._directory.shrink)
            await self._recounting.look()
            async with self._checkpointing:
                await self.compactor.look()

    async def _keep_damaged(self) -> None:
        stretches = self._directory.take_damaged()
        try:
            if any(stretches):
                await self._keeper.submit(self._directory.keep_damaged, stretches)
        finally:
            self._directory.release_damaged(stretches)

    def _check_files(self) -> None:
        """Records stored in files that nobody can open any more would be lost at the next start."""
        wrong = self._directory.moved_away()
        if wrong is not None and self._directory.ring.failure is None:
            message = (
                "the files of the directory were removed or replaced, and no start finds what waits in them: let that "
                "be delivered before you stop, or put them back; then start anew"
            )
            self._directory.poison(WalIOError(errno.ENOENT, f"{message} path={wrong}"))
            log.critical("nothing more is accepted: %s path=%s", message, wrong)

    async def _fsync_loop(self) -> None:
        ring, stored = self._directory.ring, 0
        while True:
            await asyncio.sleep(self._config.fsync_interval_ms / 1000)
            if ring.sequence == stored:
                continue
            sequence = ring.sequence
            await self.sync()
            stored = sequence

    async def _backlog_loop(self) -> None:
        clock, directory, delivery = asyncio.get_running_loop().time, self._directory, self._delivery
        while True:
            now = backlogs.Look(clock(), directory.ring.accepted, directory.records_left, delivery.oldest)
            line = self.backlog.look(now)
            if line is not None:
                log.info("%s path=%s", line, directory.path)
            await asyncio.sleep(backlogs.LOOK)

    async def _spare_loop(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SPARE_LOOK):
                    await self._spare_wanted.wait()
            self._spare_wanted.clear()
            if not self._directory.wants_spare:
                continue
            try:
                await self._keeper.submit(self._directory.prepare_spares)
            except WalFullError as error:
                if not self.full:
                    log.warning("no room for another slot error=%s", error)
                self.full = True
            else:
                if self.full:
                    log.info("there is room for another slot again: publishing goes on")
                self.full = False
                self._on_room()  # somebody else may have made the room: delivery does not wake who waits for it then
