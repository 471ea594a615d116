"""How far epochs are known to go: a position of each, the oldest epoch first. Pure."""

from collections.abc import Iterable
from itertools import chain

from aiorecover.wal import format as fmt

ENDS_MOST = 64  # epochs of which it is known how far they go: starts in an outage; 10 bytes each and ring

Ends = tuple[int, ...]


def furthest(*known: Iterable[int]) -> Ends:
    """Of each epoch the highest position that is told of it."""
    return tuple({position >> fmt.SEQUENCE_BITS: position for position in sorted(chain(*known))}.values())


def above(watermark: int, ends: Iterable[int]) -> Ends:
    """Those of the epochs in which something may still wait, the newest `ENDS_MOST`."""
    return tuple(end for end in ends if end > watermark)[-ENDS_MOST:]
