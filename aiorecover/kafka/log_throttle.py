"""Log lines that repeat: the first one at once, then one a minute with how many there were."""

import logging
from collections.abc import Callable
from typing import Any

PAUSE_S = 60.0
MOST = 1000  # subjects that are remembered: more are let go of, oldest first, and begin anew

_log = logging.getLogger("aiorecover")


class LogThrottle:
    """Remember when each (event, subject) was logged last."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last: dict[tuple[str, object], tuple[float, int]] = {}

    def warn(self, event: str, subject: object, message: str, *args: Any) -> None:
        """Log a warning about ``subject``, unless one of the same event was logged within the last minute."""
        now = self._monotonic()
        at, held = self._last.get((event, subject), (-PAUSE_S, 0))
        if now - at < PAUSE_S:
            self._last[event, subject] = (at, held + 1)
            return
        self._last.pop((event, subject), None)
        if len(self._last) >= MOST:
            del self._last[next(iter(self._last))]
        self._last[event, subject] = (now, 0)
        again = f" repeated={held}" if held else ""
        _log.warning(f"%s {message}%s", event, *args, again)

    def over(self, event: str, subject: object, message: str, *args: Any) -> None:
        """Log that what was warned of is over, if it was."""
        if self._last.pop((event, subject), None) is not None:
            _log.info(f"%s {message}", event, *args)
