"""Somebody waits for everything that the ring holds at a moment. Pure."""

from collections.abc import Iterable

from aiorecover.delivery.behind import Order
from aiorecover.delivery.lane import Lane


class Flush:
    """One wait: first until all of it was dispatched, then until the lanes have settled what they held by then.

    What comes behind it is not waited for: others publish all the time, and a dead letter makes a record for
    ``dead_letter_topic``, which may be stuck.
    """

    def __init__(self, target: Order) -> None:
        """``target``: order of the last record that is waited for."""
        self._target = target
        self._marks: list[tuple[Lane, int]] | None = None

    def look(self, waiting_from: Order, lanes: Iterable[Lane]) -> None:
        """Be told after each step of dispatching; ``waiting_from``: order of the oldest record that is in no lane."""
        if self._marks is None and waiting_from > self._target:
            self._marks = [(lane, lane.added) for lane in lanes]

    @property
    def dispatched(self) -> bool:
        """Everything that is waited for was handed to its lane."""
        return self._marks is not None

    def unsettled(self) -> Lane | None:
        """A lane that has not settled all that is waited for."""
        return next((lane for lane, mark in self._marks or () if lane.settled < mark), None)
