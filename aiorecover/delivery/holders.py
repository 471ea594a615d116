"""Who has records in hand: they were read, and are not settled, refused or passed over yet.

Asked where the frames of some are damaged: those are not lost, for they were read before. And of a record with a dead
letter that an earlier process has left: it may go on, as the process died before it was settled.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.refused import Refused
from aiorecover.delivery.resume import Resumed
from aiorecover.delivery.router import Router
from aiorecover.wal.slot import Slot

Frames = tuple[Slot, Iterable[int]]


class Holders:
    """All of them."""

    def __init__(
        self,
        router: Router,
        dispatcher: Dispatcher,
        refused: Refused,
        expiry: Expiry,
        in_no_lane: Sequence[Resumed],
        uncommitted: Callable[[], Iterable[Frames]],
    ) -> None:
        """``in_no_lane``: what the last process had in flight and is not built again yet.

        ``uncommitted``: of transactions, what is in no lane any more, and not settled yet.
        """
        self._router = router
        self._dispatcher = dispatcher
        self._refused = refused
        self._expiry = expiry
        self._in_no_lane = in_no_lane
        self._uncommitted = uncommitted

    def places_in(self, slot: Slot) -> set[int]:
        """Places of the frames of ``slot`` that somebody has; also of copies there that count for what he has."""
        found: set[int] = set()
        for held, places in self._frames():
            if held is slot:
                found.update(places)
            elif held.moved:
                counted = (held.counts_at(place) for place in places)
                found.update(there for home, there in counted if home is slot)
        return found

    def may_have(self, topic: str, position: int) -> bool:
        """Whether a record of an earlier epoch may wait; said also where that cannot be told without reading it."""
        dispatcher = self._dispatcher
        if not dispatcher.reader.has_passed(position) or dispatcher.may_be_behind(topic, position):
            return True
        return self._expiry.has_letter(position) or any(_may_hold(slot, position) for slot in self._slots_of(topic))

    def _slots_of(self, topic: str) -> Iterator[Slot]:
        """Where those stand that somebody has of a topic, or of any."""
        for lane in self._router.lanes():
            if lane.topic == topic:
                for batch in lane.batches:
                    yield from (slot for slot, _ in batch.frames)
        yield from (run.slot for run in self._dispatcher.held)
        yield from (slot for resumed in self._in_no_lane for _, slot, _ in resumed.frames)
        yield from (slot for slot, _ in self._uncommitted())

    def _frames(self) -> Iterator[Frames]:
        for lane in self._router.lanes():
            for batch in lane.batches:
                yield from batch.frames
        for run in self._dispatcher.held:
            yield run.slot, run.places
        for resumed in self._in_no_lane:
            for _, slot, places in resumed.frames:
                yield slot, places
        for slot, place in chain(self._refused.taken, self._expiry.taken):
            yield slot, (place,)
        yield from self._uncommitted()


def _may_hold(slot: Slot, position: int) -> bool:
    """Of a slot with copies only reading tells."""
    if slot.ring is not None and slot.ring.holds_copies:
        return True
    return slot.first_position <= position and (not slot.sealed or position <= slot.last_position)
