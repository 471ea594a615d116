"""Who has records in hand: they were read, and are not settled, refused or passed over yet.

Asked where the frames of some are damaged: those are not lost, for they were read before.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    ) -> None:
        """``in_no_lane``: what the last process had in flight and is not built again yet."""
        self._router = router
        self._dispatcher = dispatcher
        self._refused = refused
        self._expiry = expiry
        self._in_no_lane = in_no_lane

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
