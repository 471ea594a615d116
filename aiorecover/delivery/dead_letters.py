"""The dead ring: records that Kafka will never take, each with why (`refusal`), until somebody purges them.

A letter is durable before its record is settled (I3). A crash in between leaves the record unsettled: it is refused
once more, and then found here by its position, so that it stands in the dead ring once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from weakref import WeakSet

from aiorecover.delivery import refusal
from aiorecover.delivery.frames import Named, bytes_at, place_in_ring
from aiorecover.delivery.moment import Moment
from aiorecover.delivery.refusal import Letter
from aiorecover.delivery.stock import Stock
from aiorecover.errors import ClosedError, WalCorruptError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import NO_PARTITION, pack_moved, unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.recount import Recount, nothing_counts
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import FIRST_PLACE
from aiorecover.wal.sync import GroupCommit

log = logging.getLogger("aiorecover.delivery")

STEP = 64  # letters between two turns of the loop: they may be large, and nobody is in a hurry
READ_PAUSE = 1.0  # seconds until a place that cannot be read is asked for again; the reader gives up by itself
OWED_MOST = 4096  # letters whose places are noted for the dead-letter topic; beyond it the whole ring is read again
FLUSH_PAUSE = 0.1  # seconds until a flush that somebody has cancelled is begun again
ROOM_LOOK = 1.0  # seconds between two looks for room: another process may have freed the disk


@dataclass(slots=True, eq=False, weakref_slot=True)
class Found:
    """A letter and where it stands, also after it has changed its place.

    ``letter`` is None for a frame that holds none: its bytes are in ``payload``. ``position``, ``nonce`` and
    ``partition``: of the record.
    """

    slot: Slot
    place: int
    position: int
    nonce: int
    partition: int | None
    letter: Letter | None
    payload: bytes

    @property
    def record_id(self) -> str:
        """The id that the record was accepted with."""
        return Named(self.slot, self.place, self.position, self.nonce).record_id


class DeadLetters:
    """Puts letters into the dead ring, finds them, and takes them out."""

    def __init__(self, ring: Ring, sync: Callable[[], Awaitable[None]]) -> None:
        """``sync``: an fdatasync of the dead ring that begins when it is called."""
        self._ring = ring
        self._commit = GroupCommit(sync)
        self._unsettled: dict[int, tuple[Slot, int]] = {}  # where the letters of this process stand, by position
        self._stock = Stock(ring)
        self._taking_stock = asyncio.Lock()
        self._room = asyncio.Event()
        self.changing = asyncio.Lock()  # held by who removes a letter because a record was published or stored for it
        self._hidden: tuple[Slot, int] | None = None  # a letter that will be in the place of another one
        self._given: WeakSet[Found] = WeakSet()  # that somebody has
        self._moments: WeakSet[Moment] = WeakSet()  # that somebody looks at
        self._owed: deque[tuple[Slot, int]] = deque()  # where letters stand that came since the last look at all
        self._owes = asyncio.Event()
        self._owed_unknown = False  # there were more than were noted
        self._closed = False

    async def put(self, named: Named, partition: int | None, letter: Letter) -> None:
        """Store one, unless that was done, and cut off, before; it counts once `durable` returns.

        A process that died may have done so, or a task of ours that was cancelled before it came to `settled`.

        Raises:
            WalFullError: the dead ring has no room: wait for `room`.

        """
        if self.is_of_earlier(named.position):
            await self.take_stock()
        self.put_now(named, partition, letter)

    def put_now(self, named: Named, partition: int | None, letter: Letter) -> None:
        """As `put`, where `take_stock` has returned before.

        Raises:
            WalFullError: the dead ring has no room: wait for `room`.

        """
        if named.position in self._unsettled or named.position in self._stock:
            return
        slot, place = self._append(named.position, named.nonce, partition, letter)
        self._unsettled[named.position] = slot, place
        self._note_owed(slot, place, letter)

    def settled(self, position: int) -> None:
        """The record of a letter is settled: it does not come again."""
        self._unsettled.pop(position, None)

    def take_back(self, position: int) -> None:
        """The record of a letter that is not durable goes on: no letter of this process is left of it."""
        where = self._unsettled.pop(position, None)
        if where is not None:
            self._settle(*where)

    def is_of_earlier(self, position: int) -> bool:
        """Whether an earlier process accepted the record of a letter."""
        return position >> fmt.SEQUENCE_BITS < self._ring.epoch

    def awaits(self, position: int) -> bool:
        """Whether the letter of a record was stored by this process, and the record is not settled yet."""
        return position in self._unsettled

    def may_tell_of(self, position: int) -> bool:
        """Whether there may be a letter of a record that is not settled yet, or of those behind it."""
        return bool(self._unsettled) or self._may_be_left(position)

    def _may_be_left(self, position: int) -> bool:
        """Whether an earlier process may have left a letter of a record of its own."""
        return self._stock.may_hold_some and self.is_of_earlier(position)

    async def withdraw(self, positions: Sequence[int]) -> bool:
        """These records are in Kafka after all: no letter is left of them; whether one of an earlier process was.

        One may be: its record was not settled yet, as a process died, or a task of ours was cancelled, and the topic
        was mended meanwhile.
        """
        for position in positions:
            self.take_back(position)
        if not self._may_be_left(positions[0]):
            return False
        await self.take_stock()
        wanted = {position for position in positions if position in self._stock}
        if not wanted:
            return False
        async with aclosing(self._letters(self.moment())) as letters:
            async for found in letters:
                if found.position in wanted:
                    self.remove(found)
                    self._stock.remove(found.position)  # its transaction may be lost, and it be refused once more
        return True

    async def durable(self) -> None:
        """Wait until every letter that was put in survives a power cut.

        Raises:
            WalIOError: the disk failed; nothing more is accepted (I7).
            ClosedError: it was closed first.

        """
        while True:
            try:
                return await self._commit.durable(patient=True)
            except ClosedError:  # unless we are closed, somebody has cancelled the flush: another one tells
                if self._closed:
                    raise
            await asyncio.sleep(FLUSH_PAUSE)

    async def replace(self, found: Found, letter: Letter) -> None:
        """Put ``letter`` in the place of one that was found, unless it was removed. Who walks sees one of the two.

        A crash in between leaves both, until `take_stock` finds them.

        Raises:
            WalFullError: the dead ring has no room: wait for `room`.
            WalIOError: it is not durable; nothing more is accepted (I7).

        """
        async with self.changing:
            self._hidden = new = self._append(found.position, found.nonce, found.partition, letter)
            replaced = False
            try:  # one of the two is seen at any moment, and one is left, also when this is cancelled
                await self.durable()
                old = place_in_ring(found.slot, found.place)
                if replaced := self.remove(found):
                    self._tell_replaced(found, old, *new, letter)
            finally:
                if not replaced:
                    self._settle(*new)
                self._hidden = None

    def _tell_replaced(self, found: Found, old: int, slot: Slot, place: int, letter: Letter) -> None:
        before = found.slot, found.place
        if self._unsettled.get(found.position) == before:  # its record may go on yet
            self._unsettled[found.position] = slot, place
        for one in self._given:
            if (one.slot, one.place) == before:
                one.slot, one.place, one.letter = slot, place, letter
        for moment in self._moments:
            moment.replaced(old, place_in_ring(slot, place))

    def _append(self, position: int, nonce: int, partition: int | None, letter: Letter) -> tuple[Slot, int]:
        where = NO_PARTITION if partition is None else partition
        place, sequence = self._ring.append(pack_moved(position, nonce, where, refusal.encode(letter)), None)
        return self._ring.slot_of(sequence), place

    async def room(self) -> None:
        """Wait until somebody has purged, or may have freed the disk."""
        self._room.clear()
        try:
            async with asyncio.timeout(ROOM_LOOK):
                await self._room.wait()
        except TimeoutError:
            return

    def made_room(self) -> None:
        """Slots were freed: who waits for room looks again."""
        self._room.set()

    async def close(self) -> None:
        """Wait for the running flush."""
        self._closed = True
        await self._commit.close()

    # -- for the dead-letter topic -----------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """A letter that was refused by this process is owed and was not given out yet."""
        return bool(self._owed) or self._owed_unknown

    def check(self) -> None:
        """Letters can be stored, and marked as paid.

        Raises:
            WalError: no more: the disk failed (I7).

        """
        if self._ring.failure is not None:
            raise self._ring.failure.with_traceback(None)  # else it would grow with each call

    async def next_owed(self) -> Found | None:
        """Wait for the next letter that is owed to the topic; None: look at all, more came than could be noted."""
        while True:
            await self._owes.wait()
            if not self._owed:
                self._owes.clear()
                if self._owed_unknown:
                    self._owed_unknown = False
                    return None
                continue
            slot, place = self._owed.popleft()
            try:
                payload = bytes_at(slot, place) if slot.waits(place) else None
            except WalCorruptError as error:  # the next start counts it among what is missing
                log.error("a dead letter is lost, and not published: it would be another one error=%s", error)  # noqa: TRY400 - the disk's fault
                continue
            if payload is not None:
                return self._give(slot, place, _found(memoryview(payload)))

    async def _let_others_run(self) -> None:
        await asyncio.sleep(0)
        if self._closed:
            message = "the producer was stopped: what was not dealt with is still in the dead ring"
            raise ClosedError(message)

    async def _look(self, reader: Reader) -> Run | None:
        """The next letters, in small steps; None when there are no more at the moment."""
        while True:
            run = await self._look_once(reader, STEP)
            if run is not None or not reader.moved:
                return run

    async def _look_once(self, reader: Reader, limit: int) -> Run | None:
        """As `Reader.look`, behind a turn of the loop, and as often as it takes to read the place."""
        while True:
            await self._let_others_run()
            try:
                return reader.look(limit)
            except WalIOError:
                await asyncio.sleep(READ_PAUSE)

    def _note_owed(self, slot: Slot, place: int, letter: Letter) -> None:
        if not letter.owed:
            return
        if len(self._owed) < OWED_MOST:
            self._owed.append((slot, place))
        else:
            self._owed_unknown = True
        self._owes.set()

    # -- looking -----------------------------------------------------------------------------------------------------

    def moment(self) -> Moment:
        """The letters that are there now, to be walked later on, or more than once (`letters`)."""
        return self._follow(Moment(self._ring.last_position))

    def knows(self, moment: Moment) -> bool:
        """Whether a moment is one of this dead ring since it was opened."""
        return moment in self._moments

    def _follow(self, moment: Moment) -> Moment:
        self._moments.add(moment)
        return moment

    async def letters(self, moment: Moment | None = None) -> AsyncGenerator[Found, None]:
        """Every letter that is there now, or was at a ``moment``, and still waits: each once, oldest first.

        Few at a time are in memory. One that has changed its place meanwhile may come later.
        """
        walk = self.moment() if moment is None else self._follow(moment.again())
        await self.take_stock()
        async with aclosing(self._letters(walk)) as letters:
            async for found in letters:
                yield found

    async def _letters(self, moment: Moment) -> AsyncGenerator[Found, None]:
        reader = self._reader_of_all()
        try:
            while (run := await self._look(reader)) is not None:
                slot = run.slot
                for place, number, found in zip(run.places, run.sequences, run.records, strict=True):
                    where = fmt.position(slot.header.epoch, number)
                    if where > moment.end:
                        return
                    seen = moment.passes(where) and (slot, place) != self._hidden
                    if seen and slot.waits(place):  # others remove some meanwhile
                        yield self._give(slot, place, found)
        finally:
            reader.close()

    def _reader_of_all(self) -> Reader:
        """Stands before the oldest letter, and tells of what is damaged since the stock was taken."""
        reader, oldest = Reader(self._ring, _found, primary=False), next(iter(self._ring.live), None)
        return reader if oldest is None else reader.behind(oldest, FIRST_PLACE, oldest.header.first_sequence)

    def _give(self, slot: Slot, place: int, found: tuple[int, int, int | None, Letter | None, bytes]) -> Found:
        given = Found(slot, place, *found)
        self._given.add(given)
        return given

    def remove(self, found: Found) -> bool:
        """Settle a letter; False when that was done already."""
        return self._settle(found.slot, found.place)

    def _settle(self, slot: Slot, place: int) -> bool:
        if not slot.waits(place):
            return False
        self._ring.settle(slot, [place])
        return True

    @staticmethod
    def waits(found: Found) -> bool:
        """Nobody has removed it meanwhile."""
        return found.slot.waits(found.place)

    async def count_anew(self, directory: Directory) -> None:
        """Have slots in which damage was met wait for no more than is there (`wal.recount`).

        Nobody else would: nothing of the dead ring is delivered. What rots while somebody has it is counted next time.
        """
        await self.take_stock()
        losses = self._ring.losses
        for slot, reports in list(losses.miscounted.items()):
            while not nothing_counts(slot):
                if await self._count_anew(Recount(directory, slot)):
                    break
            else:
                losses.counted(slot, reports)

    async def _count_anew(self, recount: Recount) -> bool:
        """Whether it could be: else one page more of the slot was lost meanwhile."""
        try:
            while not await self._step(recount):  # no turn of the loop behind the last one
                pass
            found = recount.finish(self._places_in(recount.slot))
        finally:
            recount.close()
        if found is not None and found.lost:
            message = "dead letters were damaged and are lost slot=%d letters=%d"
            log.error(message, recount.slot.header.ordinal, found.lost)
        return found is not None

    async def _step(self, recount: Recount) -> bool:
        await self._let_others_run()
        try:
            return recount.step(STEP)
        except WalIOError:
            await asyncio.sleep(READ_PAUSE)
            return False

    def _places_in(self, slot: Slot) -> set[int]:
        """Letters of a slot that somebody may take out yet who has read them, or stored them."""
        held = [*self._unsettled.values(), *((found.slot, found.place) for found in self._given)]
        held += [self._hidden] if self._hidden is not None else []
        return {place for home, place in held if home is slot and slot.waits(place)}

    def leave(self) -> None:
        """Have the slot that is written recycled too, if nothing in it waits."""
        self._ring.leave()

    async def take_stock(self) -> None:
        """Read once what earlier epochs left: their frames are counted, and their positions known.

        Of two letters of one record, which a process left that died while it put one in the place of the other
        (`replace`), the newer one counts.
        """
        while not await self.take_some_stock(STEP):
            pass

    async def take_some_stock(self, limit: int) -> bool:
        """A step of it, up to ``limit`` letters, for who is in no hurry; True: all is known.

        Who is, does not wait for the other one's pauses: between two steps anybody may take the next one.
        """
        async with self._taking_stock:
            stock = self._stock
            if stock.taken:
                return True
            run = await self._look_once(stock.reader, limit)
            if run is not None:
                stock.add(run)
            elif not stock.reader.moved:
                if twice := stock.twice():
                    await self._remove_replaced(twice)
                stock.finish()
            return stock.taken

    @property
    def next_in_stock(self) -> int | None:
        """Where the next step reads, an offset in the file; None: nowhere."""
        return None if self._stock.taken else self._stock.place

    async def _remove_replaced(self, twice: Container[int]) -> None:
        """Leave only the newest letter of each record in ``twice``."""
        try:
            await self.durable()  # the newer ones, before the others go: nobody knows whether they were flushed
        except WalIOError:
            return
        newest: dict[int, Found] = {}
        async with aclosing(self._letters(self.moment())) as letters:
            async for found in letters:
                if found.position not in twice:
                    continue
                if (older := newest.get(found.position)) is not None:
                    self.remove(older)
                newest[found.position] = found


def _found(payload: memoryview) -> tuple[int, int, int | None, Letter | None, bytes]:
    """Never fails: what is no letter must be seen, and can be purged."""
    try:
        moved = unpack_moved(payload)
    except ValueError:
        return 0, 0, None, None, bytes(payload)
    partition = moved.partition if moved.partition >= 0 else None
    try:
        return moved.position, moved.nonce, partition, refusal.decode(moved.payload), b""
    except ValueError:
        return moved.position, moved.nonce, partition, None, bytes(moved.payload)
