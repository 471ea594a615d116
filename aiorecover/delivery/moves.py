"""What delivery has to say, and to do, when records are moved to the retry ring, or the retry ring is rewritten."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.resume import Resumed
from aiorecover.delivery.router import Router
from aiorecover.wal.directory import Directory
from aiorecover.wal.slot import Slot

TURN = 0.002  # seconds of work with lanes between two turns of the loop: a thousand of them may take 50 ms and more


class Moves:
    """Asked before a move begins, and told of its steps."""

    def __init__(
        self,
        directory: Directory,
        router: Router,
        dispatcher: Dispatcher,
        journal: Journal,
        in_no_lane: Sequence[Resumed],
        *,
        contiguous: bool = False,
    ) -> None:
        """``in_no_lane``: what the last process had in flight and is not built again yet.

        ``contiguous``: all goes in transactions, which hold runs of the main ring: nothing is moved.
        """
        self._directory = directory
        self._router = router
        self._dispatcher = dispatcher
        self._journal = journal
        self._in_no_lane = in_no_lane
        self._contiguous = contiguous

    @property
    def worth_a_look(self) -> bool:
        """Some lane does not get through, or something was passed over: else slots come free by themselves."""
        dispatcher = self._dispatcher
        if self._contiguous:
            return False
        return dispatcher.has_gaps or dispatcher.stalled.expected or any(map(_stuck, self._router.lanes()))

    def may_move(self, slot: Slot) -> bool:
        """Whether a slot may be copied elsewhere now, as far as its batches are concerned.

        Not while what the last process had in flight there is in no lane yet: nobody would point its entry in the
        journal to the copies (`Journal.repoint`), and the process after this one would take them for records that were
        never sent. What cannot be built again stays where it is until the next start.
        """
        return all(slot is not held for resumed in self._in_no_lane for _, held, _ in resumed.frames)

    def only_behind_wait(self, slot: Slot) -> bool:
        """Whether a slot of the main ring can be moved, and nobody waits for what it holds who keeps up with the ring.

        Who goes back for what was passed over may stand in it: he goes on with the copies (`made`). What he had read by
        then, or has in a batch, is settled there and here.
        """
        dispatcher = self._dispatcher
        waiting = (lane for lane in self._router.lanes() if not _stuck(lane) and _has_frames_in(lane, slot))
        return (
            slot.sealed
            and self._can_be_copied(slot, readers=dispatcher.going_back_in(slot))
            and dispatcher.reader.at > slot.last_position
            and all(map(dispatcher.catches_up, waiting))
        )

    def only_stalled_wait(self, slot: Slot) -> bool:
        """Whether only who does not get through waits for what such a slot holds.

        Somebody may be on the way to it, or be in it, or have it in batches: then its room comes free soon.
        """
        waiting = (lane for lane in self._router.lanes() if not _stuck(lane))
        return not self._dispatcher.goes_back_to(slot.last_position) and not any(
            _has_frames_in(lane, slot) for lane in waiting
        )

    def may_rewrite(self, slots: Iterable[Slot]) -> bool:
        """Whether these slots, all of the retry ring, can be copied."""
        return self._dispatcher.reader.past_copies and all(map(self._can_be_copied, slots))

    def may_recount(self, slot: Slot) -> bool:
        """Whether it can be told what of a slot still waits (`wal.recount`): everything in it was read once.

        Copies are looked at once all in their slot count.
        """
        directory, first = self._directory, self._dispatcher.reader
        if not slot.complete or not self._words_count(slot):
            return False
        if slot.ring is directory.retry:
            up_to = directory.copies_from
            return first.past_copies and (up_to is None or (slot.sealed and slot.last_position <= up_to))
        return first.at > (slot.last_position if slot.sealed else slot.ring.last_position)

    def _can_be_copied(self, slot: Slot, readers: int = 0) -> bool:
        return slot.complete and slot.readers == readers and self.may_move(slot) and self._words_count(slot)

    def _words_count(self, slot: Slot) -> bool:
        """Its settle words tell what waits in it: where they are suspect, all of their time has been judged.

        What was passed over then is judged by who goes back for it (`judge`); a copy would be taken for waiting.
        """
        up_to = self._directory.ring.suspect.up_to
        return slot.first_position > up_to or self._dispatcher.waiting_from > up_to

    async def repoint(self) -> None:
        """All is copied: have it written down where the batches in flight will stand, a lane between two turns.

        Batches that are written down meanwhile say both by themselves, as all is copied. May be called again.

        Raises:
            WalError: the move must not be made.

        """
        async for lane in self._lanes_in_turns():
            entered = lane.entered
            if entered is not None and any(_is_being_copied(slot) for slot, _ in entered.frames):
                self._journal.repoint(lane)

    def made(self) -> None:
        """The copies count: what was passed over is looked for among them."""
        self._dispatcher.forget_moved()

    async def go_along(self) -> None:
        """Have the batches stand where their copies are; until then what becomes of them becomes of the copies."""
        async for lane in self._lanes_in_turns():
            for batch in (*lane.batches, lane.entered):
                if batch is not None:
                    batch.go_along()

    async def _lanes_in_turns(self) -> AsyncIterator[Lane]:
        """Those there are now: a later one has nothing in slots that are being moved."""
        clock = asyncio.get_running_loop().time
        until = clock() + TURN
        for lane in list(self._router.lanes()):
            if clock() > until:
                await asyncio.sleep(0)
                until = clock() + TURN
            yield lane


def _is_being_copied(slot: Slot) -> bool:
    """From here, or from where its frames were moved to: a batch that was cut, or came later, did not go along."""
    return any(map(_is_being_copied, slot.copies.homes)) if slot.moved else bool(slot.copies)


def _stuck(lane: Lane) -> bool:
    return lane.passed_over or lane.failing


def _has_frames_in(lane: Lane, slot: Slot) -> bool:
    return any(slot is home for batch in lane.batches for home, _ in batch.frames)
