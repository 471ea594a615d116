"""Frames by their places, for who wrote down where they stand; read from the file, never through a mapping."""

from typing import NamedTuple

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

WINDOW = 16 * 1024  # read at a time: 80 records that follow each other, and little too much where they do not


class FrameFound(NamedTuple):
    """A frame that holds. ``payload`` is good until the next one is looked up."""

    sequence: int
    payload: memoryview
    settled: bool
    void: bool  # a copy that never counts: it says so, or stands behind the end of its slot


class Lookup:
    """Looks frames of one ring up; cheap where one stands close behind the other."""

    def __init__(self, ring: Ring) -> None:
        """Nothing was read yet."""
        self._ring = ring
        self._buffer = memoryview(b"")
        self._start = 0  # file offset of the buffer

    def frame(self, slot: Slot, place: int) -> FrameFound | None:
        """The frame whose settle word stands at ``place`` of this life of ``slot``; None when none holds there (I2).

        Raises:
            WalIOError: the place cannot be read.

        """
        start = (place - fmt.SETTLE_WORD) * fmt.WORD
        last = slot.header.slot_bytes - fmt.RESERVED
        if not fmt.FIRST_FRAME <= start <= last - fmt.FRAME_BYTES:
            return None
        where = slot.file_offset + start
        if not self._has(where, fmt.FRAME_BYTES) and not self._read(where, min(WINDOW, last - start)):
            return None
        at = where - self._start
        length, check, sequence, word = fmt.FRAME.unpack_from(self._buffer, at)
        whole = fmt.FRAME_BYTES + length
        if length & fmt.SKIP_BIT or start + whole > last or not slot.header.may_hold(sequence):
            return None
        if not self._has(where, whole):
            self._read(where, whole)
            at = 0
        if not scan.holds(self._buffer, at, length, check, sequence, slot.salt, len(self._buffer)):
            return None
        payload = self._buffer[at + fmt.FRAME_BYTES : at + whole]
        mark = fmt.mark_of(word, slot.salt)
        void = mark == fmt.VOID or (slot.sealed and sequence > slot.last_sequence)
        settled = void or mark is not None or self._covered(slot, sequence)
        return FrameFound(sequence, payload, settled, void)

    def _covered(self, slot: Slot, sequence: int) -> bool:
        """A durable watermark says that it is settled, whatever its word says."""
        return fmt.position(slot.header.epoch, sequence) <= self._ring.floor

    def _has(self, where: int, length: int) -> bool:
        return self._start <= where and where + length <= self._start + len(self._buffer)

    def _read(self, where: int, length: int) -> bool:
        buffer = memoryview(bytearray(length))
        count = self._ring.file.read_into(buffer, where)
        self._buffer, self._start = buffer[:count], where
        return count >= fmt.FRAME_BYTES
