"""Somebody waits for everything that the ring holds at a moment. Pure."""

from collections.abc import Callable, Iterable
from typing import Protocol

from aiorecover.delivery.behind import Order
from aiorecover.delivery.lane import Lane


class Queue(Protocol):
    """Records that are settled in the order in which they came."""

    @property
    def added(self) -> int:
        """How many came so far."""

    @property
    def settled(self) -> int:
        """How many of them are settled."""


class Flush:
    """One wait: first until all of it was dispatched, then until what the lanes held by then is settled.

    And what had become, or was becoming, a dead letter by then. What comes behind it is not waited for: others publish
    all the time, and a dead letter makes a record for ``dead_letter_topic``, which may be stuck.
    """

    def __init__(
        self, target: Order, burying: Callable[[], Iterable[Queue]] = list, *, leaves_halted: bool = False
    ) -> None:
        """``target``: order of the last record that is waited for; ``burying``: what is in no lane, and on its way.

        ``leaves_halted``: what waits for lanes that are halted is not waited for.
        """
        self.leaves_halted = leaves_halted
        self._target = target
        self._burying = burying
        self._marks: list[tuple[Lane, int]] | None = None
        self._letters: list[tuple[Queue, int]] = []

    def look(self, waiting_from: Order, lanes: Iterable[Lane]) -> None:
        """Be told after each step of dispatching.

        ``waiting_from``: order of the oldest record that is in no lane, and waited for.
        """
        if self._marks is None and waiting_from > self._target:
            self._mark(lanes)
            self._letters = [(queue, queue.added) for queue in self._burying()]

    def look_again(self, lanes: Iterable[Lane]) -> None:
        """Records have gone from one lane to another: what all hold by now is waited for."""
        if self._marks is not None:
            self._mark(lanes)

    def _mark(self, lanes: Iterable[Lane]) -> None:
        self._marks = [(lane, lane.added) for lane in lanes]

    @property
    def dispatched(self) -> bool:
        """Everything that is waited for was handed to its lane."""
        return self._marks is not None

    @property
    def buried(self) -> bool:
        """Nothing that is waited for is on its way to become a dead letter."""
        return all(queue.settled >= mark for queue, mark in self._letters)

    def unsettled(self) -> Lane | None:
        """A lane that has not settled all that is waited for."""
        waiting = (lane for lane, mark in self._marks or () if lane.settled < mark)
        return next((lane for lane in waiting if lane.halted is None or not self.leaves_halted), None)
