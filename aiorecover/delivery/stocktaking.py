"""Has the dead ring read once behind each start, so that damage is told though nobody looks at the letters."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.errors import WalIOError
from aiorecover.wal.window import WINDOW

AFTER_START = 5.0  # seconds: until then the loop connects and catches up, and who is soon stopped reads nothing
STEP = 512  # letters at a time, and a window of the file at most: about a millisecond of the loop
PAUSE = 0.01  # seconds between two steps: a tenth of the loop's time, 10 MB/s; a quarter of 20 GiB takes 9 minutes


class Stocktaking:
    """One pass. Who needs the stock meanwhile takes the rest of it at once, and then nothing is left to do here."""

    def __init__(self, dead: DeadLetters, read_into: Callable[[memoryview, int], Awaitable[int]]) -> None:
        """``read_into``: of the dead ring's file, in the keeper's thread: a buffer, and an offset in the file."""
        self._dead = dead
        self._read_into = read_into

    async def run(self) -> None:
        """Once."""
        await asyncio.sleep(AFTER_START)
        buffer = memoryview(bytearray(WINDOW))
        while True:
            await self._fetch(buffer)
            if await self._dead.take_some_stock(STEP):
                return
            await asyncio.sleep(PAUSE)

    async def _fetch(self, buffer: memoryview) -> None:
        """Have in memory what is read next: the loop must not wait for the disk.

        What cannot be read here is asked for again by who reads it, and told of there.
        """
        place = self._dead.next_in_stock
        if place is not None:
            with suppress(WalIOError):
                await self._read_into(buffer, place)
