"""Completeness over time: equal pieces of time, and what was found or is missing in each."""

import math

from aiorecover.audit.ids import Key

__all__ = ["MOMENTS", "Moments", "width_for"]

MOMENTS = 240
"""Pieces at most: the width of a picture."""

BESIDE_MOST = 100_000  # ranges whose time is looked for; that of the others is not known
_SECONDS_MOST = 50_000
_DAY_S = 86_400
_WIDTHS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S]


def width_for(span_s: int, most: int = MOMENTS) -> int:
    """Return the least round number of seconds of which ``most`` cover the span; both ends may be cut."""
    needed = span_s / max(1, most - 1)
    return next((width for width in _WIDTHS_S if width >= needed), math.ceil(needed / _DAY_S) * _DAY_S)


class Moments:
    """Records by the second, or by the minute or more where there are too many seconds."""

    def __init__(self) -> None:
        self._grain = 1
        self._found: dict[int, int] = {}
        self._missing: dict[int | None, int] = {}
        self._beside: dict[tuple[Key, int], int] = {}

    def found(self, timestamp_ms: int) -> None:
        """Count a record."""
        place = timestamp_ms // 1000 // self._grain
        self._found[place] = self._found.get(place, 0) + 1
        if len(self._found) > _SECONDS_MOST:
            self._grain *= 60
            old, self._found = self._found, {}
            for at, count in old.items():
                self._found[at // 60] = self._found.get(at // 60, 0) + count

    def missing(self, epoch: Key, first: int, last: int) -> None:
        """Count a range in the moment of the record before it, of the first one after it where it begins the epoch."""
        count, beside = last - first + 1, (epoch, first - 1 if first > 1 else last + 1)
        if len(self._beside) < BESIDE_MOST:
            self._beside[beside] = self._beside.get(beside, 0) + count
        else:
            self._missing[None] = self._missing.get(None, 0) + count

    def beside(self, epoch: Key, sequence: int, timestamp_ms: int) -> None:
        """Take the time of a record, if it is next to a missing range."""
        count = self._beside.pop((epoch, sequence), None)
        if count is not None:
            second = timestamp_ms // 1000
            self._missing[second] = self._missing.get(second, 0) + count

    @property
    def wants_beside(self) -> bool:
        """Whether any record next to a missing range is wanted."""
        return bool(self._beside)

    def rows(self) -> tuple[int, list[dict[str, int | None]]]:
        """Return the seconds of a moment, and a row for each moment in which there is anything."""
        for count in self._beside.values():
            self._missing[None] = self._missing.get(None, 0) + count
        self._beside.clear()
        seconds = [at * self._grain for at in self._found]
        width = max(self._grain, width_for(max(seconds) - min(seconds) + 1 if seconds else 0))
        rows: dict[int | None, list[int]] = {}
        for second, count in ((at * self._grain, count) for at, count in self._found.items()):
            rows.setdefault(second // width * width, [0, 0])[0] += count
        for at, count in self._missing.items():
            rows.setdefault(None if at is None else at // width * width, [0, 0])[1] += count
        found_rows = [{"start_s": at, "found": found, "missing": lacks} for at, (found, lacks) in rows.items()]
        return width, sorted(found_rows, key=lambda one: (one["start_s"] is not None, one["start_s"] or 0))
