"""Lanes whose open batch lingers: when it is handed over, and how many at once. Pure: times are handed in.

A batch costs the processor as much with one record as with twenty: its task, its entry in the journal, its place in the
request and in the answer. Six lanes may have it every few milliseconds; a thousand would leave time for nothing else,
and so publish little, and have a record or two in each. So while more is to be read, what lingers is handed over oldest
first, and no more of it in a second than leaves most of that to the records: the more lanes have something, the longer
each of them lingers, and the more is in its batch. Once all is read nothing is won by that: as soon as the loop bears.
"""

from itertools import islice
from math import inf

from aiorecover.delivery.lane import Lane

EACH = 0.0003  # seconds from one batch to the next, in the long run: it costs 60 to 100 us by itself
AT_ONCE = 64  # batches, after a rest: their tasks are begun in one turn of the loop, and take it a few milliseconds
TURN = 0.005  # seconds from one hand-over to the next at most while something is left of the first
LONGEST = 0.5  # seconds until nothing but the turns of the loop holds a batch up: delivery must resume within 1 s


class Lingering:
    """Oldest first; times are seconds of any clock that only goes on."""

    def __init__(self, linger: float) -> None:
        """``linger``: how long a batch that is not full waits for more records, where there are few."""
        self._linger = linger
        self._lanes: dict[Lane, float] = {}  # since when
        self._tick = 0.0
        self._begun: float | None = None  # since when those that were there by then are being handed over
        self._room = float(AT_ONCE)  # so many batches there was time for, and
        self._looked = 0.0  # when that was

    @property
    def due(self) -> float:
        """When the next ones must be handed over; never where nothing lingers."""
        return self._tick if self._lanes else inf

    def add(self, lane: Lane, now: float) -> None:
        """Its batch was begun. Linger is a rhythm: what comes later is handed over with the first of them."""
        if not self._lanes:
            self._tick = now + self._linger
        self._lanes.pop(lane, None)  # it could not be handed over: the others come first
        self._lanes[lane] = now

    def discard(self, lane: Lane) -> None:
        """Its batch lingers no longer."""
        self._lanes.pop(lane, None)

    def oldest(self, now: float, *, busy: bool) -> list[Lane]:
        """Those whose turn it is; they linger until they are discarded. ``busy``: more is to be read."""
        self._room = min(AT_ONCE, self._room + (now - self._looked) / EACH) if busy else AT_ONCE
        self._looked = now
        begun = self._begun = now if self._begun is None else self._begun
        long_ago = now - max(LONGEST, self._linger)
        overdue = sum(since <= long_ago for since in islice(self._lanes.values(), AT_ONCE))
        most = max(1, int(self._room), overdue)
        found = [lane for lane, since in islice(self._lanes.items(), most) if since <= begun]
        self._room = max(0.0, self._room - len(found))
        following = next(islice(self._lanes.values(), len(found), None), inf)
        pause = max(EACH, min(self._linger, TURN)) if busy and following > long_ago else 0.0
        if following <= begun:
            self._tick = now + pause
        else:  # it came later, and lingers by itself
            self._begun = None
            self._tick = max(now + pause, min(following, now) + self._linger)
        return found
