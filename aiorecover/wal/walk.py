"""One slot of a ring, walked without a lock while its owner may go on writing, settling and recycling it.

Nothing is mapped and nothing written: a window is copied by ``preadv``, then the slot's header is read again. If the
slot has begun another life meanwhile, the copy is thrown away and the walk ends with `RecycledError` (I1). Frames carry
the salt of their life in their checksum, so that a copy in which two lives meet cannot pass for a record (I2).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from aiorecover.errors import WalError
from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.gaps import START, Place, damage_at, start_of, unjoined
from aiorecover.wal.losses import Damage
from aiorecover.wal.moved import COPY_HEAD, RING, origin_of, position_at
from aiorecover.wal.recovery import HEAD_BYTES, SlotFound, classify, is_covered
from aiorecover.wal.scan import AGAIN_MOST
from aiorecover.wal.storage import StorageFile

WINDOW = 128 * 1024  # copied between two looks at the header; one frame that is larger has its own size
RETRIES = 3  # a header is 64 bytes: who meets its owner storing it three times in a row has met damage

NEVER = fmt.position(fmt.EPOCH_MAX + 1, 0)  # no frame stands behind it

_unpack = fmt.FRAME.unpack_from


class RecycledError(WalError):
    """The slot was recycled meanwhile: all of it was settled or moved, and its place is another life's or cut off.

    Or the retry ring was rewritten again and again while its slots were listed.
    """


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot as it was when listed; enough to walk it from another process.

    ``state`` is as in `recovery.SlotFound`. ``durable``: frames up to it count as settled, whatever their settle words
    say (the ring's watermark, in the main ring also P, of the checkpoint that was read after the slot).
    ``counts_up_to``: in the retry ring, copies behind it do not count yet, and are not looked at; None where all do, or
    nothing tells.
    ``flushed``: in a slot that was left open, the position up to which frames were stored, as a flush or the next slot
    of its epoch tells; else 0. ``followed_at``: position of the first frame of the next slot; None where there is none.
    """

    path: Path
    ring: str
    index: int
    slot_bytes: int
    state: str
    header: fmt.SlotHeader | None = None
    seal: fmt.Seal | None = None
    durable: int = 0
    counts_up_to: int | None = None
    flushed: int = 0
    followed_at: int | None = None

    @property
    def file_offset(self) -> int:
        """Where the slot starts in its file."""
        return self.index * self.slot_bytes

    @property
    def ordinal(self) -> int | None:
        """The number of this life of the slot; None for a slot that is not live."""
        return self.header.ordinal if self.header is not None else None

    @property
    def epoch(self) -> int | None:
        """The epoch that all its frames belong to."""
        return self.header.epoch if self.header is not None else None

    @property
    def producer_id(self) -> str | None:
        """Of the opening that wrote it; None for a slot that is not live."""
        return fmt.producer_text(self.header.producer_id) if self.header is not None else None

    @property
    def first_sequence(self) -> int | None:
        """The sequence of its first frame, if it has one."""
        return self.header.first_sequence if self.header is not None else None

    @property
    def first_position(self) -> int:
        """Position of its first frame; 0 for a slot that is not live."""
        return self.header.first_position if self.header is not None else 0

    @property
    def created_ms(self) -> int | None:
        """When this life began, ms since 1970."""
        return self.header.created_ms if self.header is not None else None

    @property
    def sealed(self) -> bool:
        """Its owner has left it: no frame comes to it any more."""
        return self.seal is not None

    @property
    def last_sequence(self) -> int | None:
        """The sequence of its last frame; None while it is not sealed."""
        return self.seal.last_sequence if self.seal is not None else None

    @property
    def count(self) -> int | None:
        """How many records it holds; None while it is not sealed."""
        return self.seal.count if self.seal is not None else None

    @property
    def covered(self) -> bool:
        """The durable checkpoint says that nothing in it waits: its owner may recycle it at any moment."""
        return self.header is not None and is_covered(self.header, self.seal, self.followed_at, self.durable)


class FrameView(msgspec.Struct, frozen=True):
    """One record as it lies in a ring.

    ``producer_id`` and ``position``: of the record, as in its id; in the retry and dead rings, where a frame has a
    number of its own (``number``), those that it was accepted with. ``slot``: ordinal. ``partition``: what the retry
    and dead rings know beside the payload.
    """

    producer_id: str
    position: int
    number: int
    settled: bool
    payload: bytes
    slot: int
    file_offset: int
    partition: int | None = None

    @property
    def epoch(self) -> int:
        """Of the record's id."""
        return self.position >> fmt.SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """Of the record's id."""
        return self.position & fmt.SEQUENCE_MASK


def look_at(file: StorageFile, index: int, slot_bytes: int) -> SlotFound:
    """One slot by its two header copies.

    The owner stores the copy at the end first, so it is read last: one of the two is whole at any moment.
    """
    start = index * slot_bytes
    for _ in range(RETRIES):
        head = file.read(start, HEAD_BYTES).ljust(HEAD_BYTES, b"\0")
        end = file.read(start + slot_bytes - fmt.RESERVED, fmt.RESERVED)
        end = end if len(end) == fmt.RESERVED else head  # cut inside the slot: its end says nothing
        found = classify(index, head, end)
        if found.state not in {"damaged", "torn"}:
            break
    return found


class SlotWalk:
    """Goes once through the frames of one life of a slot.

    ``missing``: damage found so far. ``expected``: the sequence that would come next. ``copied``: in the retry ring,
    position of the record whose copy was the last one that waits; 0: none does.
    """

    def __init__(self, file: StorageFile, slot: SlotView, header: fmt.SlotHeader, copied: int = 0) -> None:
        """Stand before the first frame of the life that ``header`` began; ``copied``: in the slots before."""
        self._file = file
        self._slot = slot
        self.header = header
        self._seal = slot.seal
        self._buffer = bytearray(min(WINDOW, slot.slot_bytes))
        self._whole = slot.slot_bytes - fmt.RESERVED
        counts_up_to = NEVER if slot.counts_up_to is None else slot.counts_up_to
        self._counting = counts_up_to - fmt.position(header.epoch, 0)  # the last sequence of its epoch that counts
        self._offset = fmt.FIRST_FRAME
        self._again = self._again_at = 0  # how often in a row a frame held, and not in a copy; where that was
        self.expected = header.first_sequence
        self.copied = copied
        self.missing: list[Damage] = []

    def begins_with(self) -> int:
        """Position of the record whose copy is the first frame that holds; 0: none does. Of a walk that was not begun.

        Raises:
            RecycledError: the slot has begun another life.
            WalIOError: the operating system refused.

        """
        found = self._next_frame()
        position = 0 if found is None else self._record_at(found[0])
        self._look_again()
        return position

    def frames(self, *, settled: bool) -> Iterator[FrameView]:
        """The frames that wait, or all of them; ends where no frame of this life follows at the moment.

        Raises:
            RecycledError: the slot has begun another life.
            WalIOError: the operating system refused.

        """
        self._seal = self._look_again()
        size = WINDOW
        while self._offset < self._limit and self.expected <= self._last:
            seal, before = self._seal, self._offset
            count = self._copy(min(size, self._limit - before))
            self._seal = self._look_again()
            yield from self._parse(count, settled=settled)
            if self._offset > before:
                size = WINDOW
            elif count == size and self._reaches_beyond(count):
                size = min(2 * size, self._slot.slot_bytes)
            elif seal == self._seal:
                size = WINDOW
                if not self._pass_damage():
                    break
        self._end()

    @property
    def start(self) -> Place:
        """Where the walk begins."""
        return start_of(self.header, self._slot.file_offset)

    @property
    def place(self) -> Place:
        """Where it has come to."""
        return Place(self.header.epoch, self.expected, self.header.ordinal, self._slot.file_offset + self._offset)

    def begin(self) -> None:
        """Say what is missing when the oldest slots are gone, and were not recycled."""
        self._tell(unjoined(START, self.start, self._slot.durable))

    def follow(self, before: "SlotWalk") -> None:
        """Say what is missing when whole slots are gone: an epoch's sequences do not join, or do not start at 1."""
        self._tell(unjoined(before.place, self.start, self._slot.durable))

    @property
    def _limit(self) -> int:
        return min(self._seal.tail, self._whole) if self._seal is not None else self._whole

    @property
    def _last(self) -> int:
        """What stands behind it does not count, whatever it is."""
        return min(self._seal.last_sequence if self._seal is not None else fmt.SEQUENCE_MASK, self._counting)

    def _look_again(self) -> fmt.Seal | None:
        """The slot's seal, if it still is in the life that is walked."""
        found = look_at(self._file, self._slot.index, self._slot.slot_bytes)
        if found.header != self.header:
            message = "the slot was recycled meanwhile: list the slots again"
            raise RecycledError(
                f"{message} path={self._slot.path} ring={self._slot.ring} index={self._slot.index} "
                f"ordinal={self.header.ordinal}"
            )
        return found.seal

    def _copy(self, length: int) -> int:
        """Copy up to ``length`` bytes at the offset into the buffer; how many there were."""
        if length > len(self._buffer):
            self._buffer = bytearray(length)
        return self._read_into(memoryview(self._buffer)[:length], self._offset)

    def _read_into(self, buffer: memoryview, offset: int) -> int:
        """The slot's bytes; where the file was cut inside it, zeros, as an opening makes them."""
        count = self._file.read_into(buffer, self._slot.file_offset + offset)
        buffer[count:] = bytes(len(buffer) - count)
        return len(buffer)

    def _reaches_beyond(self, count: int) -> bool:
        """The next frame claims more bytes than were copied, and could have them."""
        if count < fmt.FRAME_BYTES:
            return False
        length, _, sequence, _ = _unpack(self._buffer)
        end = fmt.frame_end(self._offset, length)
        return sequence == self.expected and self._offset + count < end <= self._limit

    def _parse(self, count: int, *, settled: bool) -> Iterator[FrameView]:
        """The frames that the copy holds whole, up to the first one that does not hold."""
        data, salt, ordinal, epoch = self._buffer, self.header.salt, self.header.ordinal, self.header.epoch
        start = self._offset
        last, durable = self._last, self._slot.durable
        at = 0
        while at + fmt.FRAME_BYTES <= count and self.expected <= last:
            length, check, sequence, word = _unpack(data, at)
            if sequence != self.expected or not scan.holds(data, at, length, check, sequence, salt, count):
                return
            frame_at, at = at, fmt.frame_end(at, length)
            self._offset, self.expected = start + at, sequence + 1
            if length & fmt.SKIP_BIT:
                continue
            number = fmt.position(epoch, sequence)
            done = number <= durable or fmt.mark_of(word, salt) is not None
            if done and not settled:
                continue
            payload = bytes(data[frame_at + fmt.FRAME_BYTES : frame_at + fmt.FRAME_BYTES + length])
            file_offset = self._slot.file_offset + start + frame_at
            frame = self._frame(number, payload, ordinal, file_offset, done=done)
            if frame is not None and (settled or not frame.settled):
                yield frame

    def _frame(self, number: int, payload: bytes, ordinal: int, file_offset: int, *, done: bool) -> FrameView | None:
        origin = origin_of(self._slot.ring, self.header, number, payload)
        if origin is None:
            sequence = number & fmt.SEQUENCE_MASK
            self._tell(Damage(self.header.epoch, sequence, sequence, ordinal, file_offset))
            return None
        if origin.skipped and not done:
            self.copied = origin.position
        owner, payload = fmt.producer_text(origin.producer_id), payload[origin.skipped :]
        return FrameView(owner, origin.position, number, done, payload, ordinal, file_offset, origin.partition)

    # -- damage and ends ---------------------------------------------------------------------------------------------

    def _pass_damage(self) -> bool:
        """Go to the next frame of this life, and say what is missing before it; False when no frame follows."""
        seal = self._seal
        found = self._next_frame()
        self._seal = self._look_again()
        if found is None:
            return self._seal != seal  # sealed meanwhile: frames may have come before that
        offset, sequence = found
        # The owner stores one frame after the other: what was seen behind may be younger than our copy of this one.
        if sequence > self.expected and not self._holds_at(self._offset, self.expected):
            self._report(self.expected, sequence - 1, before=self._record_at(offset))
            self._offset, self.expected = offset, sequence
        elif sequence == self.expected and offset > self._offset:
            self._offset = offset
        else:
            self._look_for_it_again()
        return True

    def _look_for_it_again(self) -> None:
        """The frame here holds by now. One that never does in a copy is passed, as the reader of an opening does it."""
        self._again = self._again + 1 if self._again_at == self._offset else 1
        self._again_at = self._offset
        if self._again > AGAIN_MOST:
            self._report(self.expected, self.expected)
            self._offset, self.expected = self._offset + fmt.FRAME_BYTES, self.expected + 1

    def _next_frame(self) -> tuple[int, int] | None:
        """Offset and sequence of the next valid frame, found by its settle word (never by trying every byte)."""
        data = bytearray(WINDOW)
        start, limit = self._offset, self._limit
        while start + fmt.FRAME_BYTES <= limit:
            piece = memoryview(data)[: min(WINDOW, limit - start)]
            count = self._read_into(piece, start)
            for at in scan.candidates(data, count, self.header.salt):
                sequence = int.from_bytes(data[at + 8 : at + 16], "little")
                between = sequence - self.expected
                # The checksum covers 32 bits of the sequence: more frames than fit in between?
                may_be = 0 <= between <= (start + at - self._offset) // fmt.FRAME_BYTES and sequence <= self._last
                if may_be and self._holds_at(start + at, sequence):
                    return start + at, sequence
            if start + count >= limit:
                return None
            start += count - (fmt.FRAME_BYTES - fmt.WORD)  # a header may stand across the border
        return None

    def _holds_at(self, offset: int, sequence: int) -> bool:
        """Whether the frame with ``sequence`` holds at ``offset``, read afresh."""
        head = bytearray(fmt.FRAME_BYTES)
        self._read_into(memoryview(head), offset)
        length, check, stored, _ = _unpack(head)
        if stored != sequence or fmt.frame_end(offset, length) > self._limit:
            return False
        size = fmt.FRAME_BYTES + (0 if length & fmt.SKIP_BIT else length)
        data = bytearray(size)
        self._read_into(memoryview(data), offset)
        return scan.holds(data, 0, length, check, stored, self.header.salt, len(data))

    def _end(self) -> None:
        """No frame of this life follows: what its seal counts, or a flush covered, should have come before that."""
        if self._seal is not None:
            last, end = self._last, self._limit
        else:
            most = (self._whole - self._offset) // fmt.FRAME_BYTES  # more do not fit: they stood in a slot that is gone
            flushed = self._slot.flushed & fmt.SEQUENCE_MASK
            last, end = min(flushed, self.expected + most - 1, self._last), self._whole
        if last >= self.expected:
            self._report(self.expected, last)
            self.expected, self._offset = last + 1, end

    def _report(self, first: int, last: int, *, before: int = 0) -> None:
        """Frames are not there; what the durable checkpoint covers was settled and is not missed."""
        self._tell(damage_at(self.header.epoch, first, last, self.place, self._slot.durable), before)

    def _tell(self, damage: Damage | None, before: int = 0) -> None:
        """``before``: as in `Damage`."""
        if damage is not None:
            self.missing.append(replace(damage, after=self.copied, before=before))

    def _record_at(self, offset: int) -> int:
        """Position of the record whose copy is the frame at ``offset``; 0 in the main ring."""
        if self._slot.ring == RING:
            return 0
        head = bytearray(COPY_HEAD)
        self._read_into(memoryview(head), offset)
        return position_at(memoryview(head), 0, self.header.salt)
