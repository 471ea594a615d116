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
import logging
import mmap
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from aiorecover.wal import format as fmt
from aiorecover.wal.copied import Copied
from aiorecover.wal.mapping import map_zeros

log = logging.getLogger("aiorecover.wal")

# Bytes ahead of the tail: 300 records of 200 bytes; a fault for each page costs three times as much.
PREFAULT = 64 * 1024
POPULATE_WRITE = 23 if sys.platform == "linux" else None  # MADV_POPULATE_WRITE (Linux 5.14), which mmap does not name
DENSE = 4 * mmap.PAGESIZE  # bytes for each of them within which frames are had back together: 0.1 us a page
DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)


class Slot:
    """A slot that is written, read or waiting to be settled.

    ``count`` (frames with a record) and ``unsettled`` (known frames without settlement): up to ``last_sequence``; it is
    behind in the slot that is written, where what came since is counted on leaving it. ``complete``: every frame of the
    slot is counted there (always for slots written by this process; for older ones once the reader reached their end).
    ``passed``: how many frames the first reader has passed, and at which offset it stands, unless it is ``complete``.
    ``readers``: who stands in it. ``claimed``: places of frames of a batch that a crash left in flight; they count
    as ``unsettled``, and readers pass them. ``counted``: where some were given up for lost (`recount`), the places of
    those before ``counted_to`` that are waited for, and readers pass the others; else None. ``warm``: pages of it may
    count as memory of the process, as they always do where it is written to. ``marks``: in the retry ring, where some
    of its copies stand (`copies`).
    ``hot_from``: whose settle word is at this place, or behind it, was stored since pages were last given back.
    ``had_back``: between these two offsets all pages were had back since. ``lost_pages``: which of them could not be
    had back so far, and with them what was settled there; the places at which each begins and ends.
    """

    __slots__ = (
        "claimed",
        "complete",
        "copies",
        "count",
        "counted",
        "counted_to",
        "done_word",
        "faulted",
        "had_back",
        "header",
        "hot_from",
        "id_prefix",
        "index",
        "last_sequence",
        "limit",
        "lost_pages",
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
        self.hot_from = header.slot_bytes // fmt.WORD
        self.had_back = (0, 0)
        self.lost_pages: list[tuple[int, int]] = []
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
        self.counted: array[int] | None = None  # in order
        self.counted_to = 0
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
        if self.words is None or self.is_given_up(place):
            return False
        self.reach((place,))
        word = self.words[place]
        return fmt.mark_of(word, self.salt) is None  # a flipped bit settles nothing, and a page that was lost is zeros

    def which_wait(self, places: Sequence[int]) -> list[int]:
        """The numbers of those of ``places``, which ascend, that wait: as `waits`, in a quarter of the time."""
        words, salt, settled = self.words, self.salt, fmt.VOID
        if words is None or not places:
            return []
        self.reach(places)
        found = [number for number, place in enumerate(places) if words[place] ^ salt > settled]
        if self.counted is None:
            return found
        counted, up_to = set(self.counted), self.counted_to
        return [number for number in found if places[number] > up_to or places[number] in counted]

    def is_settled(self, place: int) -> bool:
        """Whether the frame there was settled by this process; a flipped bit settles nothing."""
        if self.words is None:
            return False
        self.reach((place,))
        return self.words[place] == self.done_word

    def is_given_up(self, place: int) -> bool:
        """Whether nobody waits for the frame any more, because it was lost, though it may be readable by now."""
        counted = self.counted
        if counted is None or place > self.counted_to:
            return False
        at = bisect_left(counted, place)
        return at == len(counted) or counted[at] != place

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
        tail = self.tail
        if self.map is None or self.faulted - tail >= PREFAULT // 2:
            return True
        page = tail & -mmap.PAGESIZE
        start, stop = max(self.faulted, page), min(page + PREFAULT, self.header.slot_bytes)
        self.faulted = stop
        if start >= stop:
            return True
        if self._populate(start, stop):
            return True
        if start < self.limit:  # noqa: PLR1730 - in a call a signal handler may seal the slot: none up to the store
            self.limit = start
        return False

    def drop_pages(self) -> None:
        """Have the pages behind the tail count as memory no longer; in the page cache they stay, dirty or not."""
        self.warm = False
        mapping = self.map
        end = self.header.slot_bytes if self.sealed else self.tail & -mmap.PAGESIZE
        if mapping is None or DONT_NEED is None or end == 0:
            return
        self.hot_from, self.had_back = end // fmt.WORD + fmt.SETTLE_WORD, (0, 0)
        with suppress(OSError, ValueError):  # it is a hint; a signal handler may have closed the mapping
            mapping.madvise(DONT_NEED, 0, end)

    def reach(self, places: Sequence[int]) -> None:
        """Have the frames with these settle words at hand, before they are touched; ``places`` ascend.

        A page that was given back, that has left the page cache since, and that the disk cannot read any more would be
        a signal (SIGBUS). Zeros stand in its place from then on, as if it had rotted to that: what is settled there is
        known to this process and no other one, so no frame comes there any more. Nothing is done where the system
        cannot be asked for pages.
        """
        self.warm = True
        start, stop = (places[0] - fmt.SETTLE_WORD) * fmt.WORD, (places[-1] + 1) * fmt.WORD
        if places[0] >= self.hot_from or (self.had_back[0] <= start and stop <= self.had_back[1]):
            return
        if stop - start <= DENSE * len(places):
            self.reach_bytes(start, stop)
            return
        for place in places:
            self.reach_bytes((place - fmt.SETTLE_WORD) * fmt.WORD, (place + 1) * fmt.WORD)

    def reach_bytes(self, start: int, stop: int) -> None:
        """As `reach`, of the slot's bytes from offset ``start`` to ``stop``."""
        first, last = self.had_back
        if self.map is None or (first <= start and stop <= last):
            return
        start, stop = start & -mmap.PAGESIZE, min((stop - 1 | mmap.PAGESIZE - 1) + 1, self.header.slot_bytes)
        if not self._populate(start, stop):
            self._replace_lost(start, stop)
        self.had_back = (min(start, first), max(stop, last)) if start <= last and first <= stop else (start, stop)

    def _replace_lost(self, start: int, stop: int) -> None:
        pages = range(start, stop, mmap.PAGESIZE)
        lost = [page for page in pages if not self._populate(page, page + mmap.PAGESIZE)]
        if lost and lost[-1] >= self.tail & -mmap.PAGESIZE:
            self.limit = min(self.limit, self.tail)  # the next frame goes to another slot
        with suppress(OSError):  # then it is a signal after all
            for page in lost:
                map_zeros(self._mapping(), page, mmap.PAGESIZE)
        self.lost_pages += [(page // fmt.WORD, (page + mmap.PAGESIZE) // fmt.WORD) for page in lost]
        if lost:
            message = "pages of the ring cannot be read any more, what is settled there is known to this process only"
            first = self.file_offset + lost[0]
            log.warning("%s: check the disk slot=%d pages=%d offset=%d", message, self.header.ordinal, len(lost), first)
            self.ring.spares.distrust()

    def _populate(self, start: int, stop: int) -> bool:
        """Have pages at hand to be stored into; False: one of them cannot be read."""
        mapping = self.map
        if mapping is None or POPULATE_WRITE is None:
            return True
        try:
            mapping.madvise(POPULATE_WRITE, start, stop - start)
        except OSError as error:  # EINVAL: an older kernel
            return error.errno != errno.EFAULT
        except ValueError:  # a signal handler closed the mapping
            return True
        return True

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
        mapping = self._mapping_of_ends()
        for start in (self.header.slot_bytes - fmt.RESERVED, 0):
            mapping[start : start + len(reserved)] = reserved

    def store_seal(self) -> None:
        """Write down what the slot holds, at both ends, before the next slot's header."""
        packed = fmt.pack_seal(fmt.Seal(self.count, self.tail, self.last_sequence), self.salt)
        mapping = self._mapping_of_ends()
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

    def _mapping_of_ends(self) -> mmap.mmap:
        mapping = self._mapping()
        for start in (self.header.slot_bytes - fmt.RESERVED, 0):
            self.reach_bytes(start, start + fmt.RESERVED)
        return mapping

    def _mapping(self) -> mmap.mmap:
        if self.map is None:
            message = f"slot is not mapped ordinal={self.header.ordinal}"
            raise ValueError(message)
        return self.map


first_position = attrgetter("first_position")
"""The key by which one of several slots in order is found that holds a position."""
