"""Medians, quantiles and how they are written. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

BINS = 20  # of a histogram, from 1 to 10 and from each power of ten to the next


@dataclass(frozen=True)
class Spread:
    """The same figure of several rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, form: str = ",.0f") -> str:
        """Median, and the least and the greatest where there were several rounds."""
        middle = format(self.median, form)
        if len(self.values) == 1:
            return middle
        return f"{middle} ({min(self.values):{form}} to {max(self.values):{form}})"


def spread(rounds: Iterable[dict[str, Any]], name: str, scale: float = 1.0) -> Spread:
    """One figure of each round."""
    return Spread(tuple(one[name] * scale for one in rounds))


def ratios(dear: Iterable[dict[str, Any]], cheap: Iterable[dict[str, Any]], name: str) -> Spread:
    """How many times as much the one has of a figure as the other: of the pair of each round."""
    return Spread(tuple(one[name] / other[name] for one, other in zip(dear, cheap, strict=True)))


def quantile(ordered: Sequence[int], share: float) -> int:
    """The least value that at least this share of the values does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def quantiles(values: Iterable[int]) -> dict[str, int]:
    """The figures of a distribution that are reported; in the unit of ``values``."""
    ordered = sorted(values)
    return {
        "p50": quantile(ordered, 0.5),
        "p99": quantile(ordered, 0.99),
        "p99.9": quantile(ordered, 0.999),
        "max": ordered[-1],
    }


def histogram(values: Iterable[int]) -> list[tuple[int, int]]:
    """How many values there are in each bin that has any, as (number of the bin, count); bin n begins at 10^(n/20).

    Logarithmic, because times go from a microsecond to a second; a value below 1 counts as 1.
    """
    return sorted(Counter(int(math.log10(max(1, value)) * BINS) for value in values).items())
