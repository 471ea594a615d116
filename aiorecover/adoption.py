"""Adoption: the directory of a process that is gone, and in which records wait, is delivered by one of its neighbours.

Which one, and when, is decided in `orphans`; what is there is looked at in `wal.neighbours`. A directory that is due is
opened as its own process would open it: its lock is taken, what was in flight is sent again as it was, its records go
out in order under its own record ids, its dead letters into its own dead ring. Nothing is published into it. Then it
is closed cleanly, and is there for whoever comes back.

One at a time, and only while our own session is connected, so to our own cluster: in an outage nothing could be
delivered, and directories would be opened for nothing. Whoever of several workers does not get the lock passes on to
the next one.

Only what belongs where ours goes is adopted: its name is ours, and so is the cluster that it remembers. One that never
reached a cluster remembers none; it is adopted where its name says that it belongs to us, or if it was looking for its
Kafka at an address that is one of ours and leads to the same Kafka from there (`orphans`), and is delivered to our
cluster or to none. Never is a copy of a directory that lies beside it: what waited when it was copied would be sent by
two, under the same ids.

A turn is short. A process that restarts with ``instance="name"`` waits for its directory, and an adopter cannot see
that somebody waits; so it lets go after a third of that wait (10 s of 30 s), and takes up again half a second later if
nobody came: opening, and connecting, costs some 50 ms each time. A lane that is stalled, or halted, so keeps nobody
from his directory. A recovery check is not cut off, because the next turn could not begin it again: after a power cut a
first turn may take 10 s more. Nor is what tells whether a partition is gone (`delivery.gone`); but a turn of 10 s ends
by 26 s, for its owner waits for 30 s, and where Kafka takes long to answer the next one has more time for it.

The next turn begins where the last one did with what does not get through, in the retry ring or in the main one; and
after a power cut with everything, until all that is suspect was judged in one. So one that is cut off in the middle of
that (`headway`), or had not found out which partitions are gone, is followed by one of twice the time (`orphans`). Its
owner has to wait for it, or to start some times more: else nobody would come to what stands behind.

Directories with names are adopted like those with numbers: a home that was scaled away has nobody else who would
deliver it.

Letters that are owed to ``dead_letter_topic`` are published by whoever has that option, and a directory in which
nothing else waits is opened for them.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiorecover.errors import DeliveryError, WalError, WalLockedError
from aiorecover.headway import Headway
from aiorecover.orphans import LONGEST, Orphans
from aiorecover.statistics import Statistics
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.neighbours import Neighbour, Neighbours

log = logging.getLogger("aiorecover")

TURN_MAX = 10.0  # seconds that a directory is kept at a time: a third of what ``instance`` waits by default
TURN_LEAST = 0.2  # seconds: in less, opening and connecting may be all that is done
TURN_SHARE = 1 / 3  # of the owner's wait
LET_GO = 1.0  # seconds to wait for what is in flight at the end of a turn
LET_GO_SHARE = 1 / 6  # of the owner's wait, if that is less; closing takes its time, too
PROLONGED = 16.0
"""Seconds that a turn may take beyond `TURN_MAX`, or its own time if that is more, to find something out: an owner who
waits for 30 s has his directory then, with what letting go takes. More than a recovery check reads (10 s), and enough
to know of a partition whether it is gone (`delivery.gone`)."""


class Home(Protocol):
    """An adopted directory that is open and being delivered."""

    async def drain(self) -> None:
        """Wait until everything in it is settled, and nothing is owed any more."""

    @property
    def checking(self) -> bool:
        """What was in flight is just being looked for in Kafka, which takes a bounded time and comes once."""

    @property
    def judged(self) -> bool:
        """Nothing in it is suspect any more, so the next one to open it begins behind what is settled."""

    async def stop(self, limit: float) -> int:
        """Close it, by ``limit`` seconds; how many records are left."""

    def statistics(self, state: str) -> Statistics:
        """Its counts."""


class Adoption:
    """Looks after the other directories of the ``wal_dir`` of one started producer."""

    def __init__(
        self,
        grace: float,
        patience: float,
        neighbours: Neighbours,
        keeper: Keeper,
        *,
        take: Callable[[str], Awaitable[Home]],
        ready: Callable[[], bool],
        own: Callable[[], Neighbour],
    ) -> None:
        """Know what is needed; `run` does it.

        Args:
            grace: seconds that a directory must be free.
            patience: seconds that an owner waits for its directory.
            neighbours: the other directories.
            keeper: the thread in which they are looked at.
            take: lock, open and begin to deliver a directory, by its name; raises WalError.
            ready: whether something could be delivered now.
            own: our own directory, as the others would see it.

        """
        self._turn = max(TURN_LEAST, min(TURN_MAX, patience * TURN_SHARE))
        self._orphans = Orphans(grace, math.ceil(LONGEST * TURN_MAX / self._turn))
        self._let_go = min(LET_GO, patience * LET_GO_SHARE)
        self._neighbours = neighbours
        self._keeper = keeper
        self._take = take
        self._ready = ready
        self._own = own
        self._home: Home | None = None
        self._settled = 0
        self.directories = 0

    async def run(self) -> None:
        """Look and adopt for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._orphans.next_look(clock(), ready=self._ready()))
            await self._look()
            while self._ready() and (name := self._orphans.due(clock())) is not None:
                if await self._adopt(name):
                    break  # it took its time: what was seen of the others is old

    @property
    def records(self) -> int:
        """Records of other directories that we have settled."""
        return self._settled + (_settled(self._home) if self._home is not None else 0)

    @property
    def pending(self) -> int:
        """Records known to be left in the directories that we have taken up."""
        return self._orphans.left + (_left(self._home) if self._home is not None else 0)

    async def _look(self) -> None:
        """A job of the keeper for each directory: a sync must not wait for all of them."""
        names = await self._keeper.submit(self._neighbours.names)
        looks = [await self._keeper.submit(self._neighbours.look, name, self._orphans.before(name)) for name in names]
        now, reached = asyncio.get_running_loop().time(), self._ready()
        for name, why in self._orphans.saw(now, looks, self._own(), reached=reached):
            log.warning("a directory without an owner cannot be adopted directory=%s error=%s", name, why)

    async def _adopt(self, name: str) -> bool:
        """Give one directory its turn; False: it could not be had."""
        try:
            home = await self._take(name)
        except WalLockedError:
            self._orphans.lost(name)
            return False
        except Exception as error:
            if self._orphans.failed(name, asyncio.get_running_loop().time(), str(error)):
                log.exception("a directory without an owner could not be adopted: tried again directory=%s", name)
            return False
        self._home = home
        if self._orphans.begin(name):
            log.info("a directory without an owner is adopted directory=%s", name)
        limit, whole, turn = 0.0, False, self._turn * self._orphans.turns(name)
        headway = Headway(_unread(home))
        middle = asyncio.get_running_loop().call_later(turn / 2, lambda: headway.half_over(_unread(home)))
        try:
            whole = await self._deliver(home, turn)
            limit = self._let_go
        finally:
            middle.cancel()
            left = await self._close(name, home, limit, headway)
        if not left and (whole or await self._is_empty(name)):
            self.directories += 1
            log.info("the adopted directory is delivered and let go directory=%s", name)
        else:
            log.info(
                "the adopted directory is let go for its owner, or for another turn directory=%s left=%d", name, left
            )
        return True

    async def _deliver(self, home: Home, turn: float) -> bool:
        """Deliver for one turn, or some in one while something is found out; whether everything is settled."""
        clock = asyncio.get_running_loop().time
        until = clock() + turn
        longest = until + max(TURN_MAX - turn, 0.0) + PROLONGED
        while True:
            try:
                async with asyncio.timeout_at(until):
                    await home.drain()
            except TimeoutError:
                if not home.checking or until >= longest:
                    return False
                until = min(until + turn, longest)
            except (DeliveryError, WalError):
                # A lane is halted, and the others have had their turn; kafka is another cluster; or the disk failed.
                return False
            except Exception:
                log.exception("delivering an adopted directory failed: it is let go and tried again")
                return False
            else:
                return True

    async def _is_empty(self, name: str) -> bool:
        """What a turn did not wait for may have been delivered while it was closed."""
        seen = await self._keeper.submit(self._neighbours.look, name)
        return seen.waiting is False

    async def _close(self, name: str, home: Home, limit: float, headway: Headway) -> int:
        checking = home.checking
        try:
            left = await home.stop(limit)
        finally:
            self._home = None
            settled = _settled(home)
            self._settled += settled
            now = asyncio.get_running_loop().time()
            cut_off = headway.cut_off(_unread(home), settled, checking=checking)
            self._orphans.let_go(name, now, settled=settled, left=_left(home), judged=home.judged, cut_off=cut_off)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # a stop that is cancelled closes in a hurry, and returns
            raise asyncio.CancelledError
        return left


def _settled(home: Home) -> int:
    counts = home.statistics("adopted")
    return counts.delivered + counts.dead_lettered


def _unread(home: Home) -> int:
    return home.statistics("adopted").unread


def _left(home: Home) -> int:
    counts = home.statistics("adopted")
    return counts.pending + counts.unread
