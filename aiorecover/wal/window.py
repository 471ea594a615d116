"""A piece of a slot at hand: read by ``preadv`` into one reused buffer, never through a mapping.

So a damaged sector is an error, not a signal, and a backlog does not count as resident memory.
"""

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.spares import RingFile

WINDOW = 128 * 1024  # about 600 records: parsing and dispatching one window takes 1-2 ms of the loop
READ_AHEAD = 2 * 1024 * 1024  # the kernel fetches this much while we work on a window
READ_ATTEMPTS = 5  # how often a place that cannot be read is asked for, a second apart, before it counts as damaged
OUTAGE_ATTEMPTS = 60  # the same where not a single page around it can be read: a device may be away for a minute
PAGE = 4096  # what is given up around a place that cannot be read
BAD_PAGES = 64  # in one piece, before the rest of it is given up too: each may take the disk half a minute


class Window:
    """``buffer`` holds the bytes of the slot from ``start`` to ``stop``; both are offsets within the slot."""

    def __init__(self, file: RingFile, *, patient: bool = True, tried: bool = False) -> None:
        """Hold nothing yet; not ``patient``: what cannot be read is not asked for again, so no read fails.

        ``tried``: others have asked often enough for what cannot be read; all that can be is read beside it.
        """
        self.buffer = memoryview(bytearray(WINDOW))
        self.start = self.stop = 0
        self._file = file
        self._slot_at = 0
        self._patient = patient
        self._tried = OUTAGE_ATTEMPTS if tried else 0
        self._bad = 0  # pages that could not be read since one could, for who has no patience
        self._failures: dict[int, int] = {}  # file offset of a read that failed in this slot, how often
        self._given_up: set[int] = set()  # offsets within the slot of pages that were

    def enter(self, slot_at: int) -> None:
        """Hold nothing of the slot that begins at this offset of the file."""
        self._slot_at = slot_at
        self._failures.clear()
        self._given_up.clear()
        self.forget()

    def forget(self) -> None:
        """Have the next `fill` read again; what one large frame took is given back."""
        self.start = self.stop = 0
        if len(self.buffer) > WINDOW:
            self.buffer = memoryview(bytearray(WINDOW))

    def fill(self, offset: int, limit: int, sequence: int, *, ahead: bool) -> None:
        """Have at least one whole frame at ``offset`` in the buffer, if there is one before ``limit``.

        A frame that is larger than the window is read whole where it may be the expected one, with this ``sequence``;
        the buffer is no larger than that, and only until something else is read: its length may have rotted.
        ``ahead``: more of the file will be wanted soon.

        Raises:
            WalIOError: the place cannot be read; it counts as damaged when that is so for long.

        """
        if self.start <= offset < self.stop and self._end_of_frame(offset, sequence) <= fmt.aligned(self.stop):
            return
        self.forget()
        whole = self._read(offset, min(WINDOW, limit - offset), ahead=ahead)
        end = self._end_of_frame(offset, sequence)
        if whole and self.stop < end <= limit:
            self._read(offset, end - offset, ahead=ahead)

    def piece(self, begin: int, length: int) -> bytes:
        """Some bytes of the slot beside the window; fewer where the file was cut.

        Who asks has met damage: a large frame that is at hand may be none.

        Raises:
            WalIOError: as for `fill`.

        """
        if len(self.buffer) > WINDOW:
            self.forget()
        buffer = bytearray(length)
        count = self._read_into(memoryview(buffer), self._slot_at + begin)
        return bytes(buffer[:count])

    def given_up(self, offset: int) -> int | None:
        """The first place of the slot from ``offset`` on that was given up."""
        return min((place for place in self._given_up if place >= offset), default=None)

    def _end_of_frame(self, offset: int, sequence: int) -> int:
        """Where the frame at ``offset`` ends, as it says itself; of one that is not the expected one, its header."""
        end = offset + fmt.FRAME_BYTES
        if end > self.stop:
            return self.stop + fmt.FRAME_BYTES  # it is not at hand
        length, _, found, _ = fmt.FRAME.unpack_from(self.buffer, offset - self.start)
        return fmt.frame_end(offset, length) if found == sequence else end

    def _read(self, offset: int, length: int, *, ahead: bool) -> bool:
        """Read ``length`` bytes at ``offset``; False when the file was cut before them."""
        if length > len(self.buffer):
            self.buffer = memoryview(bytearray(length))
        where = self._slot_at + offset
        count = self._read_into(self.buffer[:length], where)
        self.start, self.stop = offset, offset + count
        if ahead:
            self._file.read_ahead(where + count, READ_AHEAD)
        return count == length

    def _read_into(self, buffer: memoryview, where: int) -> int:
        """As the file's, but a place that cannot be read for long is passed over: zeros hold no frame."""
        try:
            count = self._file.read_into(buffer, where)
        except WalIOError as error:
            failures = self._failures[where] = self._failures.get(where, self._tried) + 1
            if failures < READ_ATTEMPTS and self._patient:
                raise
            return self._read_pages(buffer, where, error, lasting=failures >= OUTAGE_ATTEMPTS or not self._patient)
        self._bad = 0
        return count

    def _read_pages(self, buffer: memoryview, where: int, failure: WalIOError, *, lasting: bool) -> int:
        """Page by page as the file has them, so that whoever reads there loses the same bytes.

        Who has no patience tries so many bad pages of a stretch, and not of each piece of it: it may be the whole slot.
        """
        bad, at = 0 if self._patient else self._bad, 0
        readable = False
        while at < len(buffer):
            page = buffer[at : at + PAGE - (where + at) % PAGE]
            try:
                if bad >= BAD_PAGES:
                    self._give_up(page, where + at)
                elif self._file.read_into(page, where + at) < len(page):
                    return self._file.size() - where
                else:
                    readable = True
            except WalIOError:
                bad += 1
                self._give_up(page, where + at)
            at += len(page)
        self._bad = 0 if readable else bad
        if not readable and not lasting:
            raise failure  # not a single page: the device is away, rather than damaged
        return len(buffer)

    def _give_up(self, page: memoryview, where: int) -> None:
        page[:] = bytes(len(page))
        self._given_up.add(where - self._slot_at)
