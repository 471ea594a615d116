"""What is stored: 1,000 different payloads of one size, over and over, so that what is read back can be checked."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import cycle, islice, zip_longest
from random import Random

SIZES = (100, 160, 1000, 10_000)
DIFFERENT = 1000
CHUNK = 100  # records between two looks at the clock, and in one transaction of those that store several in one


def payloads(size: int) -> list[bytes]:
    """Noise: nothing compresses it, and none of them is like another."""
    noise = Random(size)
    return [noise.randbytes(size) for _ in range(DIFFERENT)]


def chunks(size: int) -> Iterator[list[bytes]]:
    """The payloads in their order, for ever, ``CHUNK`` at a time."""
    every = payloads(size)
    return cycle([every[start : start + CHUNK] for start in range(0, DIFFERENT, CHUNK)])


def check(found: Iterable[bytes], size: int, stored: int, settled: int = 0, *, ordered: bool = True) -> None:
    """Exactly ``stored`` records were stored, of which the first ``settled`` are gone; in their order if ``ordered``.

    Raises:
        AssertionError: nothing was stored, or a record is missing, strange, there twice or out of order.

    """
    assert stored > 0, "nothing was stored: nothing was measured"
    expected = islice(cycle(payloads(size)), settled, stored)
    if not ordered:
        wanted, counted = Counter(expected), Counter(found)
        assert counted == wanted, f"other records were found than stored: found={counted.total()} {stored=}"
        return
    for number, (one, other) in enumerate(zip_longest(found, expected), settled):
        assert one is not None, f"records are missing: found={number} {stored=}"
        assert other is not None, f"more records were found than stored: {stored=}"
        assert one == other, f"another record was found than stored: {number=} {stored=}"
