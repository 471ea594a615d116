"""What waits in the retry ring and in the main ring, read as one.

Per record there is one order: its position. Copies in the retry ring are in that order, and all of them stand before
what counts in the main ring, which is what stands behind P. So who reads the retry ring to its end, and then the main
ring, meets every record in order; and where it stands is told by a position alone, whatever is moved meanwhile.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Self

from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.reading import ALL, Reader, Undecodable
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.wal")

FIRST_PLACE = fmt.FIRST_FRAME // fmt.WORD + fmt.SETTLE_WORD

Decode = Callable[[memoryview], Any]


class Stream:
    """Stands at one position and goes forward; see `Reader` for what is given and what is owed.

    A slot in which the first one stands is not moved. Another one goes on with the copies then, once they count.
    """

    def __init__(self, directory: Directory, decode: Decode, *, primary: bool = True) -> None:
        """Stand before everything that an opening found; ``primary``: the first one, which counts it."""
        self._directory = directory
        self._decode = decode
        self._primary = primary
        self._main = Reader(directory.ring, decode, primary=primary, suspects=True)
        self._retry = Reader(directory.retry, self._decode_copy, primary=primary, suspects=True)
        self._copies: Reader | None = self._retry  # while it stands in the retry ring
        self._left: list[Run] = []  # read, and not given yet
        self._position = 0  # behind what it gave last
        self._claimed = 0
        self.moved = False  # the last `look` went forward

    @property
    def at(self) -> int:
        """No record that it will give has a lower position."""
        if self._left:
            return self._left[0].position(0)
        if self._copies is not None:
            return self._position
        return max(self._position, self._main.position)

    def has_passed(self, position: int) -> bool:
        """It will not give that record of an earlier epoch any more, or it was settled before."""
        if self.at > position:
            return True
        ring = self._directory.ring
        return self._copies is None if position <= ring.moved_up_to else position <= ring.watermark()

    @property
    def past_copies(self) -> bool:
        """It has read the retry ring to its end, and is in the main ring."""
        return self._copies is None

    @property
    def caught_up(self) -> bool:
        """All that earlier epochs left was read, as far as it is there: what is missing of it was reported."""
        return self._copies is None and self._main.caught_up

    @property
    def left(self) -> Sequence[Run]:
        """What it has read, and gives next."""
        return self._left

    @property
    def has_more(self) -> bool:
        """Frames of this epoch were stored behind the place where it stands."""
        return self._copies is None and self._main.has_more

    @property
    def found(self) -> int:
        """Unsettled records of earlier epochs, so far."""
        return self._main.found + self._retry.found + self._claimed

    def count(self, claimed: int) -> None:
        """So many records are claimed: readers pass them, and they count as found."""
        self._claimed += claimed

    def reopen(self, slot: Slot, places: Sequence[int]) -> None:
        """As `Reader.reopen`."""
        slot.ring.reopen(slot, places)

    def dismiss(self, slot: Slot, count: int) -> None:
        """As `Reader.dismiss`."""
        (self._retry if slot.ring is self._directory.retry else self._main).dismiss(slot, count)

    def stands_in(self, slot: Slot) -> bool:
        """Whether this is a reader in that slot of the main ring."""
        return self._copies is None and self._main.stands_in(slot)

    def leave_moved(self) -> None:
        """Go on with the copies now, and not only at the next `look`, if the slot at hand was moved; not the first one.

        Until then the slot is not recycled, and neither is what stands behind it.
        """
        slot = self._main.slot
        if self._copies is None and slot is not None and slot.moved:
            self.go_to(self._position)

    def close(self) -> None:
        """Stand nowhere."""
        self._left.clear()
        self._retry.close()
        self._main.close()

    # -- going back --------------------------------------------------------------------------------------------------

    def back_to(self, position: int, near: tuple[Slot, int] | None = None) -> Self:
        """Another one, standing before the record of ``position``, which this one has passed; it counts nothing.

        ``near``: slot and place of that record, where they are known; they may not be right any more.
        """
        other = type(self)(self._directory, self._decode, primary=False)
        other.go_to(position, near)
        return other

    def go_to(self, position: int, near: tuple[Slot, int] | None = None) -> None:
        """Stand before that record instead; not for the first one."""
        self.close()
        self._position = position
        self._copies = None
        main, retry = self._directory.ring, self._directory.retry
        if position <= main.moved_up_to:
            stand = copies.stand_before(retry, position, self._directory.copies_from)
            if stand is not None:
                self._copies = self._retry = self._retry.behind(*stand)
                return
        if near is not None and near[0].ring is main and not near[0].moved and near[0] in main.live:
            self._main = self._main.behind(*near, position & fmt.SEQUENCE_MASK)
            return
        self._enter_main()

    def _enter_main(self) -> None:
        """Stand in the first slot of the main ring that counts, if there is one: it is not moved from now on."""
        found = next((slot for slot in self._directory.ring.live if self._is_ahead(slot)), None)
        if found is not None:
            self._main = self._main.behind(found, FIRST_PLACE, found.header.first_sequence)

    def _is_ahead(self, slot: Slot) -> bool:
        """It holds something that counts, and stands behind this position."""
        return not slot.moved and (not slot.sealed or slot.last_position >= self._position)

    # -- reading -----------------------------------------------------------------------------------------------------

    def look(self, limit: int, most: int = ALL) -> Run | None:
        """As `Reader.look`."""
        self.moved = False
        if not self._left:
            self._read(limit, most)
        if not self._left:
            return None
        run = self._left[0]
        self._position = run.position(len(run) - 1) + 1
        del self._left[0]  # last, and no call: it must not get lost on the way
        return run

    def _read(self, limit: int, most: int) -> None:
        reader = self._main if self._copies is None else self._copies
        if not self._primary and not self._stands(reader):
            return
        run = reader.look(limit, most)
        self.moved = reader.moved or run is not None
        if self._copies is None:
            if run is not None and not self._primary:
                run = self._from_here(run)
            self._left = [run] if run is not None else []
        elif run is not None:
            self._left = self._originals(run)
        elif not reader.moved:
            self._leave_retry()

    def _stands(self, reader: Reader) -> bool:
        """Whether ``reader`` may go on where it is."""
        if reader.slot is None:
            self._enter_main()
            self.moved = self._main.slot is not None
            return False
        if reader.slot.moved:
            self.go_to(self._position)
            self.moved = True
            return False
        return True

    def _leave_retry(self) -> None:
        """All copies that count were read."""
        self._retry.close()
        self._copies = None
        self.moved = True
        if self._primary:
            self._position = max(self._position, self._directory.ring.moved_up_to + 1)
        else:
            self._enter_main()

    def _from_here(self, run: Run) -> Run | None:
        """Without what stands before this position."""
        if run.position(0) >= self._position:
            return run
        return run.behind(sum(run.position(number) < self._position for number in range(len(run))))

    # -- copies ------------------------------------------------------------------------------------------------------

    def _decode_copy(self, payload: memoryview) -> tuple[int, int, Any]:
        """Position and nonce of the original, and the record."""
        copy = unpack_moved(payload)
        try:
            return copy.position, copy.nonce, self._decode(copy.payload)
        except (ValueError, RecursionError) as error:
            return copy.position, copy.nonce, Undecodable(str(error))

    def _originals(self, run: Run) -> list[Run]:
        """The records of copies, as they were accepted: in runs of one opening each."""
        slot, numbers = run.slot, []
        up_to = self._directory.copies_from
        for number, (sequence, record) in enumerate(zip(run.sequences, run.records, strict=True)):
            if not self._primary and up_to is not None and fmt.position(slot.header.epoch, sequence) > up_to:
                self._leave_retry()
                break
            if self._is_stale(run, number):
                continue
            if not isinstance(record, tuple):
                log.error("a copy tells of no record and stays in the retry ring slot=%d", slot.header.ordinal)
            elif self._primary or record[0] >= self._position:
                numbers.append(number)
                if self._primary:
                    copies.mark(slot, record[0], run.places[number], sequence)
        openings = groupby(numbers, lambda number: _opening_of(run.records[number]))
        picked = [(opening, run.pick(list(group))) for opening, group in openings]
        return [_accepted_by(*opening, part) for opening, part in picked if part is not None]

    def _is_stale(self, run: Run, number: int) -> bool:
        """It was settled, or taken back, since the window was read: not to be counted, or settled, once more."""
        slot = run.slot
        known = not self._primary and run.words is None and slot.words is not None
        return known and not slot.waits(run.places[number])


def _opening_of(record: tuple[int, int, Any]) -> tuple[int, int]:
    """Epoch and nonce."""
    return record[0] >> fmt.SEQUENCE_BITS, record[1]


def _accepted_by(epoch: int, nonce: int, run: Run) -> Run:
    """Copies as the records that one opening has accepted."""
    prefix = fmt.id_prefix(fmt.with_nonce(run.slot.header.producer_id, nonce), epoch)
    sequences = [record[0] & fmt.SEQUENCE_MASK for record in run.records]
    return Run(run.slot, sequences, run.places, [record[2] for record in run.records], run.words, (epoch, prefix))
