"""Publishers that wait for room: first come, first served."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from aiorecover.errors import WalFullError

T = TypeVar("T")


class WaitingLine:
    """Whoever finds the ring full stands here; bounded by the tasks of the user, who each wait in person."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._line: deque[asyncio.Event] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    async def store(self, store: Callable[[], T], seconds: float) -> T:
        """Call ``store`` when everybody who came before has been served and there may be room, until it finds some.

        Raises:
            WalFullError: there was no room within ``seconds``; nothing was stored. Whatever else ``store`` raises.

        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        woken = asyncio.Event()
        self._line.append(woken)
        try:
            while True:
                await _wait(woken, until - loop.time())
                woken.clear()
                late = loop.time() >= until
                if self._line[0] is woken:
                    try:
                        return store()
                    except WalFullError:
                        if late:
                            raise
                elif late:
                    message = "the ring is full and others wait already: free space, or raise full_timeout_ms"
                    raise WalFullError(f"{message} waiting={len(self)}")
        finally:
            self._line.remove(woken)
            self.wake()

    def wake(self) -> None:
        """There may be room: let the first one try; it lets the next one try when it is served."""
        if self._line:
            self._line[0].set()

    def wake_all(self) -> None:
        """It is over: let everybody find out."""
        for woken in self._line:
            woken.set()


async def _wait(woken: asyncio.Event, seconds: float) -> None:
    """Up to ``seconds``; not `asyncio.wait_for`, which in Python 3.11 may swallow a cancellation."""
    waiting = asyncio.ensure_future(woken.wait())
    try:
        await asyncio.wait({waiting}, timeout=max(0.0, seconds))
    finally:
        waiting.cancel()
