"""How old the records of a directory are, without a time in any frame. Pure: times are handed in.

A mark says that every record up to a position had been accepted by then, so the age that it tells is never too great: a
record may pass for younger than it is, by the distance of two marks, and never for older. Marks are kept the less
densely the older they are. They are times since the machine's boot, which nobody sets and which go on while it sleeps.
A checkpoint keeps them; after another boot the clock on the wall has to tell how long ago it was written. That clock
may be wrong, by fifty years where nobody has set it yet, and what it says is believed only within bounds: to part too
late with what is old is better than to part with what was just accepted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import msgspec

from aiorecover.wal import format as fmt

FINENESS = 16  # two marks are a sixteenth of their age apart: some 500 marks, 9 KB of a checkpoint, tell of a month
MARK_EVERY = 100  # ms between two marks at least
THIN_AT = 64  # marks beyond those left by the last thinning, until the next one

EARLIEST = 1_735_689_600_000  # ms since 1970: 2025; a clock that shows less was not set when the checkpoint was written
LONGEST_DOWN = 366 * 86_400_000  # ms: who is away for longer than a year has a wrong clock, or time

Mark = tuple[int, int]
"""A position, and when everything up to it had been accepted at the latest: ms since boot."""


class Acceptance(NamedTuple):
    """When a record was accepted, by the clock on the wall as it stood then; ``waited_ms``: for so long it waits."""

    earliest_ms: int
    latest_ms: int
    waited_ms: int


class StoredAges(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a checkpoint says of them. ``boot_ms`` and ``wall_ms``: when it was captured, by either clock.

    ``expired``: everything up to this position was found to be older than ``limit_ms``.
    """

    marks: tuple[Mark, ...] = ()
    boot_ms: int = 0
    wall_ms: int = 0
    expired: int = 0
    limit_ms: int | None = None

    def after(self, durable: "StoredAges") -> "StoredAges":
        """The same, taking nothing back of what has expired by ``durable``, the one written before."""
        if durable.limit_ms != self.limit_ms or durable.expired <= self.expired:
            return self
        return msgspec.structs.replace(self, expired=durable.expired)


class Ages:
    """When the records of the main ring were accepted, at the latest."""

    def __init__(self, limit_ms: int | None, stored: StoredAges = StoredAges()) -> None:  # noqa: B008 - frozen
        """Begin with the marks of ``stored``. ``limit_ms``: the age at which a record has expired; None: at none."""
        self.limit_ms = limit_ms
        self._marks: list[Mark] = list(stored.marks)
        self._dense = len(self._marks) + THIN_AT
        self._expired = stored.expired if stored.limit_ms == limit_ms else 0  # another limit: all is judged anew
        self._ahead: tuple[int, int] | None = None  # the wall's of boot's clock, least and most since all was settled

    def note(self, position: int, now_ms: int) -> bool:
        """Everything up to ``position`` has been accepted by now; whether that is news worth a mark."""
        marks = self._marks
        if marks and (position <= marks[-1][0] or now_ms - marks[-1][1] < MARK_EVERY):
            return False
        marks.append((position, now_ms))
        if len(marks) >= self._dense:
            self._thin(now_ms)
        return True

    def forget(self, watermark: int) -> None:
        """Nothing waits any more up to ``watermark``; what waits was accepted behind the last mark up to there."""
        marks = self._marks
        if len(marks) > 1 and marks[1][0] <= watermark:
            del marks[: bisect_right(marks, watermark, key=itemgetter(0)) - 1]

    def look_at_wall(self, now_ms: int, wall_ms: int, *, all_settled: bool = False) -> None:
        """What the clock on the wall shows now: it may be set while records wait."""
        ahead = wall_ms - now_ms
        least, most = (ahead, ahead) if self._ahead is None or all_settled else self._ahead
        self._ahead = min(least, ahead), max(most, ahead)

    def accepted(self, position: int, now_ms: int) -> Acceptance:
        """When the record there was accepted, as far as marks tell: a sixteenth of its age too late at most.

        But what no checkpoint knew when its process ended was accepted at any time up to the opening behind it.
        """
        marks = self._marks
        at = bisect_left(marks, position, key=itemgetter(0))
        earliest = latest = marks[at][1] if at < len(marks) else now_ms
        if at < len(marks) and fmt.parts(marks[at][0])[1] == 0:  # of an opening: before the first of its epoch
            earliest = marks[at - 1][1] if at else latest - LONGEST_DOWN
        least, most = self._ahead or (0, 0)
        return Acceptance(earliest + least, latest + most, now_ms - earliest)

    def expired(self, now_ms: int) -> int:
        """The position up to which every record is older than the limit; it never falls."""
        if self.limit_ms is None:
            return 0
        past = bisect_right(self._marks, now_ms - self.limit_ms, key=itemgetter(1))
        if past:
            self._expired = max(self._expired, self._marks[past - 1][0])
        return self._expired

    def captured(self, now_ms: int, wall_ms: int) -> StoredAges:
        """What a checkpoint keeps."""
        expired = self.expired(now_ms)
        self._thin(now_ms)
        return StoredAges(tuple(self._marks), now_ms, wall_ms, expired, self.limit_ms)

    def _thin(self, now_ms: int) -> None:
        """Leave out the marks whose neighbours tell nearly as much."""
        marks = self._marks
        kept = marks[:1]
        for mark, following in pairwise(marks[1:]):
            if following[1] - kept[-1][1] > max(MARK_EVERY, (now_ms - following[1]) // FINENESS):
                kept.append(mark)
        self._marks = kept + marks[1:][-1:]
        self._dense = len(self._marks) + THIN_AT


def restored(stored: StoredAges, up_to: int, now_ms: int, wall_ms: int, *, same_boot: bool) -> StoredAges:
    """What the next opening begins with: everything up to ``up_to`` was accepted before it.

    In another boot, the time that has passed since the checkpoint is what the clock on the wall says, as far as that
    can be (`_down`), and else none. Times never fall from one mark to the next: where a clock went backwards, records
    are taken for young.
    """
    ahead = 0 if same_boot else now_ms - _down(stored.wall_ms, wall_ms) - stored.boot_ms
    marks = _rising([(position, then + ahead) for position, then in stored.marks])
    if not marks or marks[-1][0] < up_to:
        marks = _rising([*marks, (up_to, now_ms)])
    return msgspec.structs.replace(stored, marks=tuple(marks), boot_ms=now_ms, wall_ms=wall_ms)


def _down(stored_ms: int, wall_ms: int) -> int:
    """How long the machine was down by the clock on the wall; 0 where that was set, or is not set yet."""
    passed = wall_ms - stored_ms
    return passed if stored_ms >= EARLIEST and 0 <= passed <= LONGEST_DOWN else 0


def _rising(marks: Sequence[Mark]) -> list[Mark]:
    rising: list[Mark] = []
    for position, then in marks:
        rising.append((position, max(then, rising[-1][1]) if rising else then))
    return rising
