"""What the disk may hold of each file: the versions of every sector since the flush that last covered it. Pure.

A sector of 512 bytes is written whole, at any time, and in no order with others: that is all that the package docstring
of ``aiorecover.wal`` assumes. So after a power cut each sector holds any one of the versions that it had since the
begin of the last completed flush, whatever the others hold, and the file is as long as it was at one of those moments.
A flush that fails leaves it at that, and more: what was not durable by then the kernel calls clean, and no later flush
covers it before its page is stored into again (as in `aiorecover.testing.memory_file`).
Nothing is grouped and nothing is sampled: `power_cuts` gives the whole product. It stays small because the records are
(`world.payload`): zeros but for a word at each end, so that a slot changes in three or four of its 32 sectors.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import NamedTuple

SECTOR = 512
PAGE = 4096
_ZERO = bytes(SECTOR)


class Image(NamedTuple):
    """A file by its sectors that are not zero, in order: cheap to compare, and to keep by the hundred thousand."""

    size: int
    sectors: tuple[tuple[int, bytes], ...]

    def bytes(self) -> bytes:
        """The file itself."""
        data = bytearray(self.size)
        for number, content in self.sectors:
            data[number * SECTOR : (number + 1) * SECTOR] = content
        return bytes(data)


class Span(NamedTuple):
    """A file with what may be of it after a power cut; frozen, so that moments can be compared.

    ``versions``: of the sectors that are not certain, oldest first, the live one last. ``clean``: the pages that a
    failed flush has left behind as clean.
    """

    live: Image
    sizes: tuple[int, ...]
    versions: tuple[tuple[int, tuple[bytes, ...]], ...]
    clean: tuple[int, ...] = ()


class Tape:
    """One file, as kernel and disk may have it."""

    def __init__(self, span: Span) -> None:
        self._size = span.live.size
        self._live = dict(span.live.sectors)
        self._sizes = list(span.sizes)
        self._versions = {number: list(versions) for number, versions in span.versions}
        self._clean = set(span.clean)
        self._seen = span.live.bytes()

    def note(self, data: bytes) -> None:
        """The file holds ``data`` now."""
        if data == self._seen:
            return
        if len(data) != self._size:
            self._size = len(data)
            self._sizes.append(self._size)
        before = self._seen
        for page in range(0, max(len(data), len(before)), PAGE):
            if data[page : page + PAGE] == before[page : page + PAGE]:
                continue
            for start in range(page, page + PAGE, SECTOR):
                self._store(start // SECTOR, data[start : start + SECTOR].ljust(SECTOR, b"\0"))
        self._seen = data

    def _store(self, number: int, content: bytes) -> None:
        held = self._live.get(number, _ZERO)
        if held == content:
            return
        self._clean.discard(_page(number))
        self._versions.setdefault(number, [held]).append(content)
        self._live[number] = content

    def begin(self) -> tuple[dict[int, int], int]:
        """A flush begins: up to which version it covers each sector."""
        dirty = ((number, held) for number, held in self._versions.items() if _page(number) not in self._clean)
        return {number: len(held) - 1 for number, held in dirty}, len(self._sizes) - 1

    def end(self, begun: tuple[dict[int, int], int]) -> None:
        """That flush has ended: older versions are gone."""
        covered, size = begun
        del self._sizes[:size]
        for number, version in covered.items():
            versions = self._versions[number]
            del versions[:version]
            if len(versions) == 1:
                del self._versions[number]

    def fail(self) -> None:
        """That flush has failed: what it was to cover, and all that came meanwhile, is called clean."""
        self._clean.update(map(_page, self._versions))

    def dirty(self, offset: int, length: int) -> None:
        """A part was written, whatever it holds: the next flush covers its pages."""
        self._clean.difference_update(range(offset // PAGE, -(-(offset + length) // PAGE)))

    def span(self) -> Span:
        """As it is now."""
        live = tuple(sorted(item for item in self._live.items() if item[1] != _ZERO))
        versions = sorted((number, _each_once(held)) for number, held in self._versions.items())
        clean = {page for page in map(_page, self._versions) if page in self._clean}
        sizes = tuple(dict.fromkeys(self._sizes))
        return Span(Image(self._size, live), sizes, tuple(versions), tuple(sorted(clean)))


def _each_once(versions: Iterable[bytes]) -> tuple[bytes, ...]:
    """What came back later stands where it came last: the live one is the last."""
    return tuple(dict.fromkeys(reversed(list(versions))))[::-1]


def _page(sector: int) -> int:
    return sector * SECTOR // PAGE


def certain(image: Image) -> Span:
    """A file all of which is on the disk."""
    return Span(image, (image.size,), ())


def power_cuts(spans: tuple[Span, ...]) -> Iterator[tuple[Image, ...]]:
    """Everything that the disk may hold when the machine goes down now."""
    return product(*(list(_cuts(span)) for span in spans))


def states(spans: tuple[Span, ...]) -> int:
    """How many `power_cuts` gives at most."""
    return prod(len(span.sizes) * prod(len(held) for _, held in span.versions) for span in spans)


def _cuts(span: Span) -> Iterator[Image]:
    sure = dict(span.live.sectors)
    numbers = [number for number, _ in span.versions]
    seen = set()
    for size in span.sizes:
        for choice in product(*(held for _, held in span.versions)):
            sectors = sure | dict(zip(numbers, choice, strict=True))
            kept = (
                (number, content) for number, content in sectors.items() if content != _ZERO and number * SECTOR < size
            )
            image = Image(size, tuple(sorted(kept)))
            if image not in seen:
                seen.add(image)
                yield image
