"""Record ids as bits: which were found, which came in order in their partition, and which came again."""

import re
from collections.abc import Callable, Iterator

from aiorecover.errors import ConfigError
from aiorecover.record_id import parse_record_id

__all__ = ["MEMORY_MOST", "PAGE", "Epoch", "Ids", "Range"]

PAGE = 32_768  # sequences of a page; the first has 1 to 32,768
MEMORY_MOST = 1 << 30  # bytes of all bits and tables
_BYTES = PAGE // 8
_WHOLE = b"\xff" * _BYTES
_GROWS = 64  # bytes: a page begins so small, for epochs of few records
_PAGE_COSTS, _EPOCH_COSTS, _PLACE_COSTS, _MORE_COSTS = 400, 800, 300, 150  # bytes of objects
_DIGITS_MOST = 16
_ZERO = 0x30
_SET = re.compile("1+")

Range = tuple[int, int]
Key = tuple[str, int]


class _Page:
    __slots__ = ("again", "ahead", "conflicts", "count", "found", "left")

    def __init__(self) -> None:
        self.count = 0
        self.found: bytes | bytearray = bytearray()
        self.ahead: bytes | bytearray = bytearray()
        self.again: bytearray | None = None
        self.left: bytearray | None = None  # of `again`: the contents were not compared yet
        self.conflicts: bytearray | None = None


class Epoch:
    """The ids of one producer id and epoch."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.pages: dict[int, _Page] = {}
        self.repeated = 0
        self.more: dict[int, int] = {}  # sequences that came more than twice: how often beyond that

    @property
    def found(self) -> int:
        """The number of different ids."""
        return sum(page.count for page in self.pages.values())

    @property
    def found_ranges(self) -> Iterator[Range]:
        """The ids that were found, as ranges in order."""
        return self._ranges(lambda page: page.found)

    @property
    def repeated_ranges(self) -> Iterator[Range]:
        """The ids that were found more than once."""
        return self._ranges(lambda page: page.again)

    @property
    def conflict_ranges(self) -> Iterator[Range]:
        """The ids whose appearances differ in topic or content."""
        return self._ranges(lambda page: page.conflicts)

    @property
    def disorder_ranges(self) -> Iterator[Range]:
        """The ids that came after higher ones at each of their places."""

        def behind(page: _Page) -> bytes | None:
            if page.found == page.ahead:
                return None
            found = int.from_bytes(page.found, "little")
            return (found & ~int.from_bytes(page.ahead, "little")).to_bytes(_BYTES, "little")

        return self._ranges(behind)

    def missing_ranges(self, first: int, last: int) -> Iterator[Range]:
        """Yield the ranges from ``first`` to ``last`` that were not found."""
        at = first
        for begin, end in self.found_ranges:
            if begin > at:
                yield at, begin - 1
            at = end + 1
        if at <= last:
            yield at, last

    def _ranges(self, bits_of: Callable[[_Page], bytes | bytearray | None]) -> Iterator[Range]:
        pending: Range | None = None
        for number in sorted(self.pages):
            bits = bits_of(self.pages[number])
            for low, high in _runs(bits) if bits else ():
                first, last = number * PAGE + 1 + low, number * PAGE + 1 + high
                if pending is not None and pending[1] == first - 1:
                    pending = pending[0], last
                    continue
                if pending is not None:
                    yield pending
                pending = first, last
        if pending is not None:
            yield pending


class _Top:
    """The highest epoch and sequence of a producer id in a partition so far."""

    __slots__ = ("epoch", "sequence")

    def __init__(self) -> None:
        self.epoch = self.sequence = 0


class Place:
    """An epoch in one partition of a topic."""

    __slots__ = ("epoch", "top")

    def __init__(self, epoch: Epoch, top: _Top) -> None:
        self.epoch, self.top = epoch, top


class Partition:
    """The epochs that were seen in one partition, and the highest sequence of each so far."""

    def __init__(self, ids: "Ids") -> None:
        self._ids = ids
        self._places: dict[bytes, Place] = {}
        self._tops: dict[str, _Top] = {}

    def locate(self, text: bytes | None) -> tuple[Place, int] | None:
        """Return the place that a record id belongs to, and its sequence; None: it is no record id."""
        if text is None:
            return None
        prefix, _, digits = text.rpartition(b"/")
        if not digits.isdigit() or digits[0] == _ZERO or len(digits) > _DIGITS_MOST:
            return None
        place = self._places.get(prefix)
        if place is None:
            known = parse_record_id(f"{prefix.decode('ascii', 'replace')}/1")
            if known is None:
                return None
            self._ids.use(_PLACE_COSTS)
            top = self._tops.setdefault(known[0], _Top())
            place = self._places[prefix] = Place(self._ids.epoch(known[:2]), top)
        return place, int(digits)

    def add(self, place: Place, sequence: int) -> bool:
        """Count an appearance; return whether it is the first of its id."""
        epoch, top = place.epoch, place.top
        number = epoch.key[1]
        ahead = number > top.epoch or (number == top.epoch and sequence > top.sequence)
        if ahead:
            top.epoch, top.sequence = number, sequence
        return self._ids.set(epoch, sequence, ahead=ahead)


class Ids:
    """The ids of all epochs.

    Raises:
        ConfigError: from whatever adds to it: there are too many epochs, or holes, for `MEMORY_MOST`.

    """

    def __init__(self) -> None:
        self.epochs: dict[Key, Epoch] = {}
        self._used = 0

    def use(self, size: int) -> None:
        """Count memory."""
        self._used += size
        if self._used > MEMORY_MOST:
            raise ConfigError(
                "these topics have too many epochs, or too many holes, for the memory of one process: audit them with "
                f"--engine spark epochs={len(self.epochs)} memory_most={MEMORY_MOST}"
            )

    def epoch(self, key: Key) -> Epoch:
        """Return the epoch, a new one where it was not seen yet."""
        found = self.epochs.get(key)
        if found is None:
            self.use(_EPOCH_COSTS)
            found = self.epochs[key] = Epoch(key)
        return found

    def set(self, epoch: Epoch, sequence: int, *, ahead: bool) -> bool:
        """Count an appearance; return whether it is the first of its id."""
        number, bit = divmod(sequence - 1, PAGE)
        page = epoch.pages.get(number)
        if page is None:
            self.use(_PAGE_COSTS)
            page = epoch.pages[number] = _Page()
        at, mask = bit >> 3, 1 << (bit & 7)
        if at >= len(page.found):
            page.found = self._grown(page.found, at)
            page.ahead = self._grown(page.ahead, at)
        if ahead and not page.ahead[at] & mask:
            page.ahead[at] |= mask  # type: ignore[index] # a whole page has no bit to set
        if page.found[at] & mask:
            epoch.repeated += 1
            if page.again is not None and page.again[at] & mask:
                if sequence not in epoch.more:
                    self.use(_MORE_COSTS)
                epoch.more[sequence] = epoch.more.get(sequence, 0) + 1
            page.again = self._with(page.again, at, mask)
            return False
        page.found[at] |= mask  # type: ignore[index]
        page.count += 1
        if page.count == PAGE:
            page.found = self._shared(page.found)
            page.ahead = self._shared(page.ahead)
        return True

    def conflict(self, epoch: Epoch, sequence: int) -> None:
        """Remember that two appearances of an id differ."""
        number, bit = divmod(sequence - 1, PAGE)
        page = epoch.pages[number]
        page.conflicts = self._with(page.conflicts, bit >> 3, 1 << (bit & 7))

    def begin_comparing(self) -> bool:
        """Mark all repeated ids as not compared; return whether there are any."""
        some = False
        for epoch in self.epochs.values():
            for page in epoch.pages.values():
                if page.again is not None:
                    page.left, some = bytearray(page.again), True
        return some

    def is_left(self, epoch: Epoch, sequence: int) -> bool:
        """Whether an id is repeated and was not compared yet."""
        number, bit = divmod(sequence - 1, PAGE)
        page = epoch.pages.get(number)
        return page is not None and page.left is not None and bool(page.left[bit >> 3] & (1 << (bit & 7)))

    def compared(self, epoch: Epoch, sequence: int) -> None:
        """Mark an id as compared."""
        number, bit = divmod(sequence - 1, PAGE)
        left = epoch.pages[number].left
        if left is not None:
            left[bit >> 3] &= ~(1 << (bit & 7))

    def _with(self, bits: bytearray | None, at: int, mask: int) -> bytearray:
        if bits is None:
            self.use(_BYTES)
            bits = bytearray(_BYTES)
        bits[at] |= mask
        return bits

    def _grown(self, bits: bytes | bytearray, at: int) -> bytearray:
        size = min(_BYTES, max(_GROWS, 2 * len(bits), at + 1))
        self.use(size - len(bits))
        return bytearray(bits).ljust(size, b"\0")

    def _shared(self, bits: bytes | bytearray) -> bytes | bytearray:
        if bits != _WHOLE:
            return bits
        self._used -= _BYTES
        return _WHOLE


def _runs(bits: bytes | bytearray) -> Iterator[Range]:
    """Yield the bits that are set, the lowest of each byte first, as ranges."""
    if bits == _WHOLE:
        yield 0, PAGE - 1
        return
    text = format(int.from_bytes(bits, "little"), "b")[::-1]
    for run in _SET.finditer(text):
        yield run.start(), run.end() - 1
