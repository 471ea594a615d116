"""How far a backlog is delivered, and how long the rest will take. Pure: times and counts in, an estimate out.

What is left changes by what is published, too; what was done in between is the rest. That includes records of earlier
epochs that were settled already and are only read past: they go from what is left as the others do.
"""

from collections import deque
from dataclasses import dataclass, field

LOOK = 1.0  # seconds between two looks
WINDOW = 30  # looks that the rate is taken over: longer than a pause of delivery, shorter than anybody's patience
STILL = 5  # looks in which nothing was done: nothing flows, and what flowed before tells nothing; nor does what flows
# past the oldest that waits
LARGE = 100_000  # records left that are worth a line in the log: a second of delivery at full speed
SMALL = LARGE // 10  # so few left end it
LINE_EVERY = 60.0  # seconds between two lines


@dataclass(frozen=True, slots=True)
class Look:
    """``at``: seconds of any clock that only goes on; ``accepted``: records since the start; ``left``: not settled.

    ``oldest``: position of the oldest of them.
    """

    at: float
    accepted: int
    left: int
    oldest: int


@dataclass(slots=True)
class Backlog:
    """What the last looks tell."""

    _looks: deque[Look] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    _still: int = 0
    _stuck: int = 0
    _large: bool = False
    _line_at: float = 0.0

    def look(self, now: Look) -> str | None:
        """Take note; what is to be told people now, if anything."""
        first = not self._looks
        self._still = 0 if first or _done(self._looks[-1], now) > 0 else self._still + 1
        self._stuck = self._stuck + 1 if not first and now.left and _same_oldest(self._looks[-1], now) else 0
        if self._still >= STILL:
            self._looks.clear()
        self._looks.append(now)
        if first and now.left >= LARGE:
            self._large, self._line_at = True, now.at
            return f"a backlog is to be delivered records_left={now.left}"
        return self._line(now)

    @property
    def per_second(self) -> float | None:
        """Records that were done a second; None when nothing is known, or nothing flows."""
        if not self._looks:
            return None
        first, last = self._looks[0], self._looks[-1]
        done = _done(first, last)
        return done / (last.at - first.at) if done > 0 and last.at > first.at else None

    def seconds_left(self, left: int) -> float | None:
        """For so many records, at the rate of the last half minute; None when nothing is known, or nothing flows.

        Nor where the oldest does not get through: others may flow past it, and tell nothing of when it will.
        """
        if left == 0:
            return 0.0
        rate = self.per_second
        return None if rate is None or self._stuck >= STILL else round(left / rate, 1)

    def _line(self, now: Look) -> str | None:
        if self._large and now.left < SMALL:
            self._large = False
            return f"the backlog is delivered records_left={now.left}"
        self._large = self._large or now.left >= LARGE
        rate = self.per_second
        if not self._large or rate is None or now.at < self._line_at:
            return None
        self._line_at = now.at + LINE_EVERY
        seconds = self.seconds_left(now.left)
        left = "unknown" if seconds is None else f"{seconds:.0f}"
        return f"delivering a backlog records_left={now.left} records_per_second={rate:.0f} seconds_left={left}"


def _done(before: Look, after: Look) -> int:
    return before.left - after.left + after.accepted - before.accepted


def _same_oldest(before: Look, after: Look) -> bool:
    return before.left > 0 and before.oldest == after.oldest
