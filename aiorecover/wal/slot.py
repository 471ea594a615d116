"""One life of a slot, in memory.

A `Slot` is made for a life and thrown away with it: a handle of an earlier life has no mapping any more, so it cannot
settle anything in the next one (I3).

In what order a roll stores the seal of the slot that is left and the two copies of the next header is not load-bearing.
A power cut may keep any of these stores and none of the others, so an opening needs none of them to tell of another:
the newer header counts wherever it stands, and the next header says where a slot without a seal has ended. The order is
kept so that of a process which was killed only the newest slot may have no seal, and what the others hold is known
unread. Nor would the seal of the life before hold in the next one: its checksum begins with another salt. A new header
takes it away so that what a later version may use of these bytes is zero.
"""

import errno
import mmap
import sys
from contextlib import suppress
from typing import Any

from aiorecover.wal import format as fmt
from aiorecover.wal.copied import Copied

# Bytes ahead of the tail: 300 records of 200 bytes; a fault for each page costs three times as much.
PREFAULT = 64 * 1024
POPULATE_WRITE = 23 if sys.platform == "linux" else None  # MADV_POPULATE_WRITE (Linux 5.14), which mmap does not name
DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)


class Slot:
    """A slot that is written, read or waiting to be settled.

    ``count`` (frames with a record) and ``unsettled`` (known frames without settlement): up to ``last_sequence``; it is
    behind in the slot that is written, where what came since is counted on leaving it. ``complete``: every frame of the
    slot is counted there (always for slots written by this process; for older ones once the reader reached their end).
    ``passed``: how many frames the first reader has passed, and at which offset it stands, unless it is ``complete``.
    ``readers``: who stands in it. ``claimed``: places of frames of a batch that a crash left in flight; they count
    as ``unsettled``, and readers pass them. ``warm``: pages of it may count as memory of the process, as they always do
    where it is written to. ``marks``: in the retry ring, where some of its copies stand (`copies`).
    """

    __slots__ = (
        "claimed",
        "complete",
        "copies",
        "count",
        "done_word",
        "faulted",
        "header",
        "id_prefix",
        "index",
        "last_sequence",
        "limit",
        "map",
        "marks",
        "moved",
        "open_word",
        "passed",
        "readers",
        "ring",
        "salt",
        "sealed",
        "tail",
        "unsettled",
        "warm",
        "words",
    )

    def __init__(self, index: int, header: fmt.SlotHeader, mark: int = 0) -> None:
        """Start with no mapping and no frame; ``mark``: what settle words bear in their low half from now on."""
        self.index = index
        self.header = header
        self.id_prefix = fmt.id_prefix(header.producer_id, header.epoch)
        self.salt = header.salt
        self.open_word = fmt.open_word(header.salt)
        self.done_word = fmt.done_word(header.salt, mark)
        self.map: mmap.mmap | None = None
        self.words: memoryview | None = None
        self.faulted = 0  # offset up to which the pages are at hand
        self.warm = False
        self.tail = fmt.FIRST_FRAME
        self.limit = header.slot_bytes - fmt.RESERVED
        self.unsettled = 0
        self.count = 0
        self.last_sequence = header.first_sequence - 1
        self.sealed = False
        self.complete = False
        self.passed = (0, fmt.FIRST_FRAME)
        self.readers = 0
        self.claimed: set[int] = set()
        self.ring: Any = None  # the ring that it is a slot of
        self.moved = False  # a durable checkpoint's P covers it: copies count in place of what is unsettled here
        self.marks: list[tuple[int, int, int]] = []  # position of the record, place and sequence of its copy; ascending
        self.copies = Copied()  # in the retry ring, of a move or a rewriting

    @property
    def void_word(self) -> int:
        """The settle word of a copy that never counts, not even where settled frames have to be delivered again."""
        return fmt.done_word(self.salt, fmt.VOID)

    @property
    def file_offset(self) -> int:
        """Where the slot starts in the file."""
        return self.index * self.header.slot_bytes

    @property
    def done(self) -> bool:
        """Everything in it is settled, and nothing more will come."""
        return self.sealed and self.complete and self.unsettled == 0

    def waits(self, place: int) -> bool:
        """Whether the frame there is not settled; nothing waits in a slot that is not mapped any more."""
        return self.words is not None and self.words[place] == self.open_word

    def counts_at(self, place: int) -> tuple["Slot", int]:
        """Where the frame counts: here, or where its copy stands once that does; a settled one has no copy."""
        slot = self
        while slot.moved and place in slot.copies:
            slot, place = slot.copies[place]
        return slot, place

    @property
    def first_position(self) -> int:
        """Position of the first frame."""
        return self.header.first_position

    @property
    def last_position(self) -> int:
        """Position of the last frame (of a sealed or completely read slot)."""
        return fmt.position(self.header.epoch, self.last_sequence)

    @property
    def reached(self) -> int:
        """Position up to which frames of a slot of an earlier epoch are known to stand there: by its seal, or read."""
        read = self.header.first_sequence + self.passed[0] - 1
        return fmt.position(self.header.epoch, max(self.last_sequence, read))

    def attach(self, mapping: mmap.mmap) -> None:
        """Take a mapping of the slot; ``words`` is its view in 32-bit words, for settle words."""
        self.map = mapping
        self.warm = True
        self.words = memoryview(mapping).cast("I")

    def detach(self) -> mmap.mmap | None:
        """Give the mapping back; the handle can no longer store anything."""
        mapping, self.map = self.map, None
        if self.words is not None:
            self.words.release()
            self.words = None
        return mapping

    def prefault(self) -> bool:
        """Have the pages behind the tail at hand, where the system can; elsewhere each costs a fault when used.

        False: one of them was lost since the slot was prepared, and a store there would be a signal (SIGBUS). No frame
        comes to them any more: the next one goes to another slot. Nothing is written over them meanwhile, where frames
        of this life stand beside them.
        """
        mapping, tail = self.map, self.tail
        if mapping is None or POPULATE_WRITE is None or self.faulted - tail >= PREFAULT // 2:
            return True
        page = tail & -mmap.PAGESIZE
        start, stop = max(self.faulted, page), min(page + PREFAULT, self.header.slot_bytes)
        self.faulted = stop
        if start >= stop:
            return True
        try:
            mapping.madvise(POPULATE_WRITE, start, stop - start)
        except OSError as error:  # EINVAL: an older kernel
            if error.errno != errno.EFAULT:
                return True
            if start < self.limit:  # noqa: PLR1730 - in a call a signal handler may seal the slot: none up to the store
                self.limit = start
            return False
        except ValueError:  # a signal handler closed the mapping
            return True
        return True

    def drop_pages(self) -> None:
        """Have the pages behind the tail count as memory no longer; in the page cache they stay, dirty or not."""
        self.warm = False
        mapping = self.map
        end = self.header.slot_bytes if self.sealed else self.tail & -mmap.PAGESIZE
        if mapping is None or DONT_NEED is None or end == 0:
            return
        with suppress(OSError, ValueError):  # it is a hint; a signal handler may have closed the mapping
            mapping.madvise(DONT_NEED, 0, end)

    def store_header(self) -> None:
        """Both copies, the one at the end first, before the life's first frame."""
        self._store_at_both_ends(self._header_without_seal())

    def blank(self) -> None:
        """Take both header copies away: what stands in the slot is nobody's any more.

        And the first frame's: else a crash while the next life's header is stored would leave what looks damaged. So
        would a crash in here, if a seal or a frame were left beside the last copy while that is taken away: the seals
        go before the frame, or it would be missed, and the headers last, one after the other (`recovery.classify`).
        """
        self._store_at_both_ends(self._header_without_seal())  # the same, whatever stood there
        self._mapping()[fmt.FIRST_FRAME : fmt.FIRST_FRAME + fmt.FRAME_BYTES] = bytes(fmt.FRAME_BYTES)
        self._store_at_both_ends(bytes(fmt.HEADER_BYTES))

    def _header_without_seal(self) -> bytes:
        return fmt.pack_slot_header(self.header).ljust(fmt.RESERVED, b"\0")

    def _store_at_both_ends(self, reserved: bytes) -> None:
        mapping = self._mapping()
        for start in (self.header.slot_bytes - fmt.RESERVED, 0):
            mapping[start : start + len(reserved)] = reserved

    def store_seal(self) -> None:
        """Write down what the slot holds, at both ends, before the next slot's header."""
        packed = fmt.pack_seal(fmt.Seal(self.count, self.tail, self.last_sequence), self.salt)
        mapping = self._mapping()
        for start in (self.header.slot_bytes - fmt.RESERVED, 0):
            mapping[start + fmt.SEAL_OFFSET : start + fmt.SEAL_OFFSET + fmt.SEAL_BYTES] = packed
        self.warm = True
        self.sealed = True

    def adopt_seal(self, seal: fmt.Seal) -> None:
        """Know from a seal what an earlier process left."""
        self.count = seal.count
        self.tail = seal.tail
        self.last_sequence = seal.last_sequence
        self.sealed = True

    def _mapping(self) -> mmap.mmap:
        if self.map is None:
            message = f"slot is not mapped ordinal={self.header.ordinal}"
            raise ValueError(message)
        return self.map
