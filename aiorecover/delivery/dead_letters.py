"""The dead ring: records that Kafka will never take, each with why (`refusal`), until somebody purges them.

A letter is durable before its record is settled (I3). A crash in between leaves the record unsettled: it is refused
once more, and then found here by its position, so that it stands in the dead ring once.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from aiorecover.delivery import refusal
from aiorecover.delivery.refusal import Letter
from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES, NO_PARTITION, pack_moved, unpack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from aiorecover.wal.sync import GroupCommit

STEP = 64  # letters between two turns of the loop: they may be large, and nobody is in a hurry
READ_PAUSE = 1.0  # seconds until a place that cannot be read is asked for again; the reader gives up by itself
ROOM_LOOK = 1.0  # seconds between two looks for room: another process may have freed the disk


class Found(NamedTuple):
    """A letter and where it stands; ``letter`` is None for a frame that holds none: its bytes are in ``payload``."""

    slot: Slot
    place: int
    position: int
    partition: int | None
    letter: Letter | None
    payload: bytes


class DeadLetters:
    """Puts letters into the dead ring, finds them, and takes them out."""

    def __init__(self, ring: Ring, sync: Callable[[], Awaitable[None]]) -> None:
        """``sync``: an fdatasync of the dead ring that begins when it is called."""
        self._ring = ring
        self._commit = GroupCommit(sync)
        self._stock: array[int] | None = None  # original positions found here by `take_stock`, in order
        self._taking_stock = asyncio.Lock()
        self._room = asyncio.Event()

    async def keep(self, position: int, partition: int | None, letter: Letter) -> None:
        """Put one in; durable when this returns.

        Raises:
            WalFullError: the dead ring has no room: wait for `room`.
            WalIOError: it is not durable; nothing more is accepted (I7).

        """
        if position >> fmt.SEQUENCE_BITS == self._ring.epoch or not await self._holds(position):
            where = NO_PARTITION if partition is None else partition
            self._ring.append(pack_moved(position, where, refusal.encode(letter)), None)
        await self._commit.durable()

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
        await self._commit.close()

    # -- looking -----------------------------------------------------------------------------------------------------

    async def letters(self) -> AsyncIterator[Found]:
        """Every letter that waits, oldest first; few at a time are in memory. Letters that come meanwhile come too."""
        await self.take_stock()
        reader = Reader(self._ring, _found, primary=False)
        try:
            while (run := await _look(reader)) is not None:
                for place, found in zip(run.places, run.records, strict=True):
                    position, partition, letter, payload = found
                    yield Found(run.slot, place, position, partition, letter, payload)
        finally:
            reader.close()

    def remove(self, found: Found) -> bool:
        """Settle a letter; False when that was done already."""
        words = found.slot.words
        if words is None or words[found.place] != found.slot.open_word:
            return False
        self._ring.settle(found.slot, [found.place])
        return True

    def leave(self) -> None:
        """Have the slot that is written recycled too, if nothing in it waits."""
        self._ring.leave()

    async def take_stock(self) -> None:
        """Read once what earlier epochs left: their frames are counted, and their positions known.

        8 bytes of memory a letter.
        """
        async with self._taking_stock:
            if self._stock is not None:
                return
            positions: array[int] = array("q")
            reader = Reader(self._ring, _position)
            try:
                while (run := await _look(reader)) is not None:
                    positions.extend(position for position in run.records if isinstance(position, int))
            finally:
                reader.close()
            self._stock = array("q", sorted(positions))

    async def _holds(self, position: int) -> bool:
        await self.take_stock()
        stock = self._stock or ()
        at = bisect_left(stock, position)
        return at < len(stock) and stock[at] == position


async def _look(reader: Reader) -> Any:
    """The next letters, in small steps; None when there are no more at the moment."""
    while True:
        await asyncio.sleep(0)
        try:
            run = reader.look(STEP)
        except WalIOError:
            await asyncio.sleep(READ_PAUSE)
            continue
        if run is not None or not reader.moved:
            return run


def _position(payload: memoryview) -> int:
    return unpack_moved(payload).position


def _found(payload: memoryview) -> tuple[int, int | None, Letter | None, bytes]:
    """Never fails: what is no letter must be seen, and can be purged."""
    if len(payload) < MOVED_BYTES:
        return 0, None, None, bytes(payload)
    moved = unpack_moved(payload)
    partition = moved.partition if moved.partition >= 0 else None
    try:
        return moved.position, partition, refusal.decode(moved.payload), b""
    except ValueError:
        return moved.position, partition, None, bytes(moved.payload)
