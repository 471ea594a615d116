"""How far epochs are known to go: a position of each, the oldest epoch first. Pure."""

from collections.abc import Iterable, Iterator
from itertools import chain

from aiorecover.wal import format as fmt

Ends = tuple[int, ...]


def furthest(*known: Iterable[int]) -> Ends:
    """Of each epoch the highest position that is told of it."""
    return tuple({position >> fmt.SEQUENCE_BITS: position for position in sorted(chain(*known))}.values())


def above(watermark: int, ends: Iterable[int]) -> Iterator[int]:
    """Those of the epochs in which something may still wait."""
    return (end for end in ends if end > watermark)
