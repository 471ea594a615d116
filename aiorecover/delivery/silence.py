"""Since when nobody gets an answer, with batches in flight. Pure: times are handed in."""

from math import inf

QUIET = 2.0  # seconds without an attempt: the next one is no continuation of an earlier silence


class Silence:
    """Of one session; times are seconds of any clock that only goes on."""

    def __init__(self) -> None:
        """Nothing is in flight."""
        self.in_flight = 0  # batches
        self._since: float | None = None  # when they get no answer
        self._tried = 0.0  # when an attempt ended last
        self._moved = -inf  # when bytes of what is in flight moved last, on a slow line

    def began(self, now: float) -> None:
        """One more batch is in flight."""
        if self._since is None or (self.in_flight == 0 and now - self._tried > QUIET):
            self._since = now
        self.in_flight += 1

    def ended(self, now: float) -> None:
        """One is not any more, answered or not."""
        self.in_flight -= 1
        self._tried = now

    def broken(self, now: float) -> None:
        """An answer came, to one that has ended; or none can have come yet."""
        self._since = now if self.in_flight else None

    def moved(self, now: float) -> None:
        """Bytes of what is in flight move: the line is slow, and an answer cannot have come yet."""
        self._moved = now
        self.broken(now)

    def moves(self, now: float) -> bool:
        """They did so just now."""
        return now - self._moved <= QUIET

    def forget(self) -> None:
        """What comes now is answered by somebody else, or was an error that only an answer brings."""
        self._since = None

    def lasts(self, now: float) -> float:
        """Seconds that batches in flight got no answer; 0 where none is."""
        return now - self._since if self._since is not None and self.in_flight else 0.0
