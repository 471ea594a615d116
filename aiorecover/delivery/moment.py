"""Which letters one look at the dead ring is about, though some of them change their place meanwhile. Pure.

A letter changes its place once its copy for ``dead_letter_topic`` is stored: behind all others stands one like it that
owes nothing. So who goes through the ring may have passed one of the two places, both or none. Places are positions in
the dead ring; they rise.
"""

from array import array
from bisect import bisect_left


class Moment:
    """The letters that were there at one moment, each of them once, wherever it stands now.

    Kept are 8 bytes for each that has got a place behind all those of that moment.
    """

    __slots__ = ("__weakref__", "_again", "_behind", "_last", "_passed")

    def __init__(self, last: int) -> None:
        """``last``: the newest place there is; who looks stands before the first one."""
        self._last = last
        self._passed = 0  # so far he has come
        self._behind = array("q")  # places behind the last one, of letters that were not passed before
        self._again: set[int] = set()  # places in front of it, of letters that were: one at most, while it is stored

    def again(self) -> "Moment":
        """The same letters, for who looks once more; of a moment in which nothing was passed."""
        same = Moment(self._last)
        same._behind = self._behind[:]
        return same

    @property
    def end(self) -> int:
        """Behind this place there is none of them."""
        return self._behind[-1] if self._behind else self._last

    def passes(self, place: int) -> bool:
        """Go on to a place; whether one of the letters stands there that was not passed at another one."""
        self._passed = place
        return self._holds(place)

    def replaced(self, old: int, new: int) -> None:
        """A letter has changed its place."""
        if not self._holds(old):
            if old in self._again and new <= self._last:
                self._again.add(new)
        elif old > self._passed:
            if new > self._last:
                self._behind.append(new)
        elif new <= self._last:
            self._again.add(new)

    def _holds(self, place: int) -> bool:
        if place <= self._last:
            return place not in self._again
        at = bisect_left(self._behind, place)
        return at < len(self._behind) and self._behind[at] == place
