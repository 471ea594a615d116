"""Lanes that are passed over because they do not get through; the deciding is in `stalls`."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.router import Router
from aiorecover.delivery.stalls import Stalls

log = logging.getLogger("aiorecover.delivery")

GATHER = 0.5  # seconds: lanes that stalled together come back together, and are caught up by one reader then


class StalledLanes:
    """Marks lanes as stalled, and as well again."""

    def __init__(self, router: Router, session: Callable[[], int | None], on_back: Callable[[], None]) -> None:
        """``on_back``: lanes take records again, those that were passed over first.

        ``session``: which one is connected; None: none is, and it is not the lanes.
        """
        self._router = router
        self._session = session
        self._seen = session()
        self._on_back = on_back
        self._stalls = Stalls(random.uniform)
        self._lanes: dict[Lane, int] = {}  # bytes of their closed batches
        self._timers: dict[Lane | None, asyncio.TimerHandle] = {}  # who comes back later; None: all that came back
        self._closed = False
        self.bytes = 0  # of the closed batches of all of them

    def __len__(self) -> int:
        """How many are stalled."""
        return len(self._lanes)

    @property
    def expected(self) -> bool:
        """A lane is failing, so that it may be stalled soon."""
        return bool(self._stalls)

    def failed(self, lane: Lane, began: float | None) -> None:
        """An attempt to send a batch failed; ``began``: when it did, None if it was not the lane's fault."""
        if began is None:
            self._stalls.unknown(lane)
            return
        self._is_same_session()  # looked at here, too: what fails from now on counts, however late somebody asks
        if not lane.failing:
            self._router.avoid(lane)
        self._stalls.failed(lane, began)

    def pass_over(self, *, full: bool) -> bool:
        """Have the lanes passed over that do not get through; False where there are none. ``full``: as in `Stalls`."""
        if not self._is_same_session():
            return False
        chosen = self._stalls.choose(time.monotonic(), full=full)
        self._begin(chosen)
        if chosen:
            log.warning(
                "lanes do not get through: their records wait in the ring, and the others go on "
                "topic=%s partition=%d lanes=%d lanes_stalled=%d",
                chosen[0].topic,
                chosen[0].partition,
                len(chosen),
                len(self._lanes),
            )
        return bool(chosen)

    def pass_over_again(self, *, full: bool, is_behind: Callable[[Lane], bool]) -> bool:
        """Have the lanes passed over that have no room, whether they get through or not; False where there are none.

        Each comes back with the next batch that gets through, and is caught up beside the others. Those that are being
        caught up, of which ``is_behind`` tells, are in nobody's way.
        """
        if self._session() is None:  # nobody gets through: nothing is gained
            return False
        waiting = [lane for lane in self._router.lanes() if lane.ready and not lane.passed_over]
        chosen = waiting if full else [lane for lane in waiting if lane.blocked and not is_behind(lane)]
        self._begin(chosen)
        return bool(chosen)

    def _begin(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.stalled = True
            self._lanes[lane] = lane.closed_bytes
            self.bytes += lane.closed_bytes
        if lanes:
            self._router.forget(*lanes)

    def _is_same_session(self) -> bool:
        """Whether the session is connected that was at the last look; what failed before another one is forgotten."""
        session = self._session()
        if session is not None and session == self._seen:
            return True
        self._seen = session
        self._stalls.begin_anew()
        return False

    def through(self, lane: Lane, batch: LaneBatch) -> None:
        """A batch got through. A stalled lane is gone back for, at once or, if it has stalled before, after a while."""
        now = time.monotonic()
        self._stalls.through(lane, now)
        if not lane.stalled:
            return
        less = min(batch.bytes, self._lanes[lane])
        self._lanes[lane] -= less
        self.bytes -= less
        if lane not in self._timers and not self._closed:
            rest = self._stalls.rest(lane, now)
            self._timers[lane] = asyncio.get_running_loop().call_later(rest, self._rested, lane)

    def parted(self, lane: Lane) -> None:
        """The lane holds less, and Kafka has not answered; one that holds nothing any more is tried anew."""
        if lane.holds_nothing:
            self.end(lane)
        elif lane.stalled:
            self.bytes += lane.closed_bytes - self._lanes[lane]
            self._lanes[lane] = lane.closed_bytes

    def _rested(self, lane: Lane) -> None:
        del self._timers[lane]
        if lane.stalled and not lane.failing:
            self.end(lane)

    def end(self, lane: Lane) -> None:
        """It takes records again, those that were passed over first; or it is halted, and they are refused."""
        self._stalls.unknown(lane)
        if not lane.stalled:
            return
        lane.stalled = False
        self.bytes -= self._lanes.pop(lane)
        self._stalls.returned(lane, time.monotonic())
        if None not in self._timers and not self._closed:
            self._timers[None] = asyncio.get_running_loop().call_later(GATHER, self._gathered)

    def _gathered(self) -> None:
        del self._timers[None]
        self._on_back()

    def close(self) -> None:
        """Nobody comes back any more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
