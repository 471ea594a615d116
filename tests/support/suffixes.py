"""Whether what stands twice was sent again as it may be: a lane goes back, and from there on leaves nothing out."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.support.oracle import Consumed

__all__ = ["steps_back", "torn_suffixes"]


def torn_suffixes(consumed: Iterable[Consumed]) -> list[str]:
    """What is wrong, in words: in a partition, something was left out between a repeat and what follows it.

    A consumer that keeps the newest value of each key is right at the end of such a log only if every step back is
    followed by everything that had come behind it.
    """
    lanes = _by_partition(consumed)
    return [f"partition {partition}: {wrong}" for partition, names in lanes.items() for wrong in _torn(names)]


def steps_back(consumed: Iterable[Consumed]) -> int:
    """How often something was sent again: once for each suffix."""
    return sum(map(_steps_back, _by_partition(consumed).values()))


def _by_partition(consumed: Iterable[Consumed]) -> dict[int, list[str]]:
    lanes: dict[int, list[str]] = defaultdict(list)
    for record in sorted(consumed, key=lambda record: record[:2]):
        lanes[record.partition].append(record.record_id or f"(without an id, offset {record.offset})")
    return lanes


def _ranks(names: list[str]) -> dict[str, int]:
    return {name: rank for rank, name in enumerate(dict.fromkeys(names))}


def _steps_back(names: list[str]) -> int:
    ranks = _ranks(names)
    return sum(ranks[later] <= ranks[name] for name, later in pairwise(names))


def _torn(names: list[str]) -> Iterable[str]:
    ranks = _ranks(names)
    last = -1
    for name in names:
        if ranks[name] > last + 1:
            yield f"{name} follows a repeat, and {ranks[name] - last - 1} record(s) between them were left out"
        last = ranks[name]
    if last != len(ranks) - 1:
        yield f"it ends with a repeat, {len(ranks) - 1 - last} record(s) behind it were not sent again"
