"""Where a batch that Kafka refused for good is cut, until the record at fault stands alone. Pure.

One poison record among n costs at most 2 log2(n) + 2 sends, the refused batch's own included:

- The smaller half goes first. Refused, it is cut again, and the other half follows it.
- The first half is in Kafka: then the other one holds the record at fault, and is cut without being sent. Not so where
  the batch was too large: both halves may be small enough.
- A batch that is too large is cut by bytes. A record that makes up more than half of it is taken out at once: most
  often it alone is above the limit.
"""

from collections.abc import Sequence


def cut(sizes: Sequence[int], *, too_large: bool) -> list[int]:
    """How many records each part of a refused batch gets, in order; ``sizes``: bytes of its records, two or more."""
    if not too_large:
        first = len(sizes) // 2
        return [first, len(sizes) - first]
    total = sum(sizes)
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    if 2 * sizes[largest] > total:
        parts = [largest, 1, len(sizes) - largest - 1]
        return [part for part in parts if part]
    first = _middle(sizes, total)
    return [first, len(sizes) - first]


def _middle(sizes: Sequence[int], total: int) -> int:
    """The cut nearest to half of the bytes; neither side is empty."""
    before, best, nearest = 0, 1, total
    for number, size in enumerate(sizes[:-1], start=1):
        before += size
        away = abs(total - 2 * before)
        if away < nearest:
            best, nearest = number, away
    return best
