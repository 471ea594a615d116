"""Since when nobody gets an answer, with batches in flight. Pure: times are handed in."""

QUIET = 2.0  # seconds without an attempt: the next one is no continuation of an earlier silence


class Silence:
    """Of one session; times are seconds of any clock that only goes on."""

    def __init__(self) -> None:
        """Nothing is in flight."""
        self.in_flight = 0  # batches
        self._since: float | None = None  # when they get no answer
        self._tried = 0.0  # when an attempt ended last

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
        """An answer came, to one that has ended."""
        self._since = now if self.in_flight else None

    def forget(self) -> None:
        """What comes now is answered by somebody else, or was an error that only an answer brings."""
        self._since = None

    def lasts(self, now: float) -> float:
        """Seconds that batches in flight got no answer; 0 where none is."""
        return now - self._since if self._since is not None and self.in_flight else 0.0
