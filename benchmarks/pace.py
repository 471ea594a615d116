"""How fast a publisher goes: it looks at `pause_at` before each record, and pauses when it has come so far."""

import asyncio
import time

TICK_S = 0.001  # a paced publisher sleeps so long at least, then publishes what is due
TURN_CALLS = 256  # so often does publish give the loop a turn by itself


class Unpaced:
    """As fast as it goes; publish gives the turns."""

    pause_at = 1 << 62

    def begin(self) -> None:
        """The measurement begins."""

    async def pause(self, number: int) -> None:
        raise NotImplementedError


class Turning(Unpaced):
    """As fast as it goes; the loop gets a turn before publish would give one."""

    def begin(self) -> None:
        self.pause_at = TURN_CALLS // 2

    async def pause(self, number: int) -> None:
        self.pause_at = number + TURN_CALLS // 2
        await asyncio.sleep(0)


class Paced(Unpaced):
    """So many records a second, those of a tick together."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()
        self.pause_at = 0

    async def pause(self, number: int) -> None:
        while self.pause_at <= number:
            await asyncio.sleep(self.wait_s(number))
            self.count_due()

    def wait_s(self, number: int) -> float:
        """How long it is until this record is due, or a tick."""
        return max(TICK_S, self._began + (number + 1) / self._rate - time.perf_counter())

    def count_due(self) -> None:
        """Pause next when everything is published that is due by now."""
        self.pause_at = int((time.perf_counter() - self._began) * self._rate)
