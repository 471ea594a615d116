"""One line of the log for many records that have expired: an outage turns a million into letters."""

import asyncio
import logging

from aiorecover.delivery.lines import letters_log
from aiorecover.errors import WalError, WalFullError

log = logging.getLogger("aiorecover.delivery")

FIRST_TOLD = 1.0  # seconds that are counted together in the first line of the log
TELL_INTERVAL = 60.0  # seconds between two lines


class Tally:
    """Counts them, and tells now and then."""

    def __init__(self, limit_ms: int | None) -> None:
        """Count nothing yet."""
        self._limit_ms = limit_ms
        self._untold = 0
        self._last_id = ""
        self._told = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._no_room = False

    def count(self, record_id: str) -> None:
        """One more."""
        self._untold += 1
        self._last_id = record_id
        self._no_room = False
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + FIRST_TOLD, self._told + TELL_INTERVAL), self._tell)

    def no_room(self, full: WalFullError) -> None:
        """There is no room for a letter: told once until there is."""
        if not self._no_room:
            log.error("records have expired, are tried on, and stay in the ring: no room for dead letters: %s", full)
        self._no_room = True

    @staticmethod
    def failed(error: WalError) -> None:
        """No letter becomes durable any more; to be told once."""
        log.error(
            "nothing expires until the directory is reopened, records are tried on: mend the disk, then stop and start "
            "anew error=%s",
            error,
        )

    def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        self._told, self._timer = loop.time(), None
        letters_log.error(
            "records were not delivered in time and became dead letters: look at producer.dead_letters "
            "records=%d last=%s delivery_timeout_ms=%s",
            self._untold,
            self._last_id,
            self._limit_ms,
        )
        self._untold = 0

    def close(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._tell()
