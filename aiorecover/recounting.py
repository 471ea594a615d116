"""Has slots counted anew in which damage was met (`wal.recount`), a few milliseconds at a time."""

import asyncio
import logging
from collections.abc import Callable

from aiorecover.delivery.holders import Holders
from aiorecover.delivery.moves import Moves
from aiorecover.delivery.reports import Reports
from aiorecover.errors import WalIOError
from aiorecover.wal.directory import Directory
from aiorecover.wal.recount import Recount, nothing_counts
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover")

PAUSE = 1.0  # seconds between two slots: bad places come in crowds
READ_PAUSE = 10.0  # between two tries to read: a device that is away may be so for ten minutes before anything is lost
STEPS_A_LOOK = 128  # of some 1 ms: the next checkpoint waits for so long


class Recounting:
    """One slot at a time."""

    def __init__(
        self,
        directory: Directory,
        moves: Moves,
        holders: Holders,
        reports: Reports,
        on_counted: Callable[[], None],
    ) -> None:
        """``on_counted``: a slot counts no more than what is there, or nothing any more."""
        self._directory = directory
        self._moves = moves
        self._holders = holders
        self._reports = reports
        self._on_counted = on_counted
        self._under_way: Recount | None = None
        self._held: dict[Slot, frozenset[int]] = {}  # what was in hand when the slot was counted last
        self._untold = False  # slots were dropped, and who may have waited for their end was not looked at yet
        self._not_before = 0.0

    async def look(self) -> None:
        """Count what there is to count, and can be."""
        clock = asyncio.get_running_loop().time
        if clock() < self._not_before:
            return
        if self._under_way is not None and nothing_counts(self._under_way.slot):
            self._under_way.close()
            self._under_way = None
        if self._under_way is None:
            self._under_way = self._next()
        if self._untold:
            await self._reports.look_again()
            self._untold = False
            self._on_counted()
        if self._under_way is None:
            return
        recount, pause = self._under_way, PAUSE
        try:
            if not await self._read(recount):
                return
            self._finish(recount)
        except WalIOError:  # it is tried again; after some tries the place counts as damaged
            pause = READ_PAUSE
        except BaseException:  # a signal handler's, for example: what was read last may not be noted, and would be lost
            self._under_way = None
            recount.close()
            raise
        self._not_before = clock() + pause

    def _next(self) -> Recount | None:
        for ring in (self._directory.ring, self._directory.retry):
            for slot, reports in list(ring.losses.miscounted.items()):
                if nothing_counts(slot):
                    ring.losses.counted(slot, reports)
                    self._held.pop(slot, None)
                    self._untold = True
                elif self._moves.may_recount(slot) and not self._is_held_as_before(slot):
                    return Recount(self._directory, slot)
        return None

    def _is_held_as_before(self, slot: Slot) -> bool:
        held = self._held.get(slot)
        if held is None:
            return False
        in_hand = self._holders.places_in(slot)
        return all(place in in_hand or place in slot.copies for place in held)

    async def _read(self, recount: Recount) -> bool:
        """Read on; True at the end, with no turn of the loop behind the last step."""
        for _ in range(STEPS_A_LOOK):
            if recount.step():
                return True
            await asyncio.sleep(0)
        return False

    def _finish(self, recount: Recount) -> None:
        self._under_way = None
        slot = recount.slot
        if slot.moved or not self._moves.may_recount(slot):  # more was published meanwhile: it is read once more
            recount.close()
            return
        found = recount.finish(self._holders.places_in(slot))
        if found is None:
            return
        self._held.pop(slot, None)
        if found.held:
            self._held[slot] = found.held
        if found.lost:
            message = "records that were damaged are not waited for any more ring=%s slot=%d records=%d in_flight=%d"
            log.error(message, slot.ring.file.path.name, slot.header.ordinal, found.lost, len(found.held))
        self._reports.lose(found)
        if not found.held:
            self._on_counted()
