"""How long to wait before the next attempt. Pure: chance is handed in."""

from collections.abc import Callable

JITTER = 0.2  # of a pause, more or less: what failed together is not to try again together


class Backoff:
    """Pauses that double from the first to the longest, each a little off."""

    def __init__(self, first: float, longest: float, spread: Callable[[float, float], float]) -> None:
        """``first`` and ``longest`` in seconds; ``spread(low, high)`` picks a number in between at random."""
        self._first = min(first, longest)
        self._longest = longest
        self._spread = spread
        self._pause = 0.0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        self._pause = min(self._longest, self._pause * 2 or self._first)
        return self._pause * self._spread(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        """It went well: the next failure is a first one."""
        self._pause = 0.0
