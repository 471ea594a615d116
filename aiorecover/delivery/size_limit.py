"""How large the batches of a lane may be, whose topic has refused one as too large. Pure: times are handed in.

Kafka tells no limit, and measures what a batch is compressed to; here bytes are counted before compression, as batches
are filled. So the limit is found out: half of what was refused, until it is taken. It holds for as long as larger ones
are not taken: now and then one that is half as large again is tried, as topics are set anew, and records compress
differently.
"""

from collections.abc import Callable

from aiorecover.delivery.backoff import Backoff

FIRST_PROBE = 60.0  # seconds until a larger batch is tried; then twice as long each time
LONGEST_PROBE = 3600.0  # seconds: in the long run a limit that stays costs one batch sent twice in an hour


class SizeLimit:
    """Of one lane, in bytes before compression."""

    def __init__(self, refused: int, spread: Callable[[float, float], float]) -> None:
        """``refused``: bytes of the batch that was. ``spread(low, high)`` picks a number in between at random."""
        self.bytes = refused
        self._before = refused  # before the batch that is being cut was refused
        self._pauses = Backoff(FIRST_PROBE, LONGEST_PROBE, spread)
        self._probe_at = float("inf")

    def refused(self, size: int, largest: int, now: float, *, whole: bool) -> None:
        """A batch of ``size`` bytes was; the ``largest`` of its parts goes next. ``whole``: it was no part itself."""
        if whole:
            self._before = self.bytes
        if size > self.bytes:  # it was larger on trial
            return
        self.bytes = largest
        self._probe_after(now)

    def explained(self) -> None:
        """One record of the batch that is being cut was too large by itself: of the others nothing is known."""
        self.bytes = self._before

    def taken(self, size: int, now: float) -> None:
        """A batch of ``size`` bytes was."""
        if size > self.bytes:
            self.bytes = size
            self._probe_after(now)

    def next(self, now: float) -> int:
        """Bytes that the next batch may have; more than the limit where that is to be tried."""
        if now < self._probe_at:
            return self.bytes
        self._probe_at = now + self._pauses.next()
        return self.bytes * 3 // 2

    def _probe_after(self, now: float) -> None:
        self._pauses.reset()
        self._probe_at = now + self._pauses.next()
