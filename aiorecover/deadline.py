"""When a stop has to be over, for all its steps; who stops once more can bring it forward while one is under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

CLOSE_AT_LEAST = 0.2  # seconds that each step of closing gets, however short the time limit was
LET_GO_AT_LEAST = 2.0  # seconds for the last step: until then the directory is locked, and the next start takes another
CLOSE_SHARE = 0.7  # of the stop's time for delivering; the rest is for closing


class Deadline:
    """The shortest of the time limits that were given; none yet. One step is under way at a time."""

    def __init__(self) -> None:
        """``inf`` is no limit; all moments are of the loop's clock."""
        self._delivering_ends = inf
        self._ends = inf
        self._delivering = False
        self._at_least = CLOSE_AT_LEAST
        self._step: asyncio.Timeout | None = None

    def bring_forward(self, limit: float) -> None:
        """All of it is over ``limit`` seconds from now at the latest, also the step that is under way."""
        now = asyncio.get_running_loop().time()
        self._delivering_ends = min(self._delivering_ends, now + limit * CLOSE_SHARE)
        self._ends = min(self._ends, now + limit)
        if self._step is not None and not self._step.expired():
            self._step.reschedule(self._step_ends())

    @asynccontextmanager
    async def step(self, *, delivering: bool = False, at_least: float = CLOSE_AT_LEAST) -> AsyncIterator[None]:
        """The time that what is inside has; ``at_least`` seconds of it, where it is a step of closing.

        Raises:
            TimeoutError: it is over.

        """
        self._delivering, self._at_least = delivering, at_least
        timeout = self._step = asyncio.timeout_at(self._step_ends())
        async with timeout:
            try:
                yield
            finally:
                self._step = None

    def _step_ends(self) -> float:
        if self._delivering:
            return self._delivering_ends
        return max(self._ends, asyncio.get_running_loop().time() + self._at_least)
