"""Which directory is adopted, and when: the deciding part of adoption. No clock, no disk: moments in seconds are given.

A directory is an orphan once it was found free at every look for the grace period, by nobody opened in between, and
something waits in it. Of several the one that is due for the longest time comes first, so that they take turns. It is
let go after a turn even if something is left in it: its owner may be waiting for it. With progress it is due again as
soon as an owner who waits can have taken it; without, after a pause that doubles.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aiorecover.wal.checkpoint import Destination
from aiorecover.wal.neighbours import Neighbour

RETAKE = 0.5  # seconds free between two turns: who waits for it by name looks every 50 ms
PAUSE_FIRST = 10.0  # seconds after a turn that delivered nothing, or an opening that failed: about one turn
PAUSE_MAX = 600.0  # seconds: a directory that can be delivered at last waits no longer than this
LOOK_SHARE = 0.25  # of the grace period between two looks: an owner that was there for longer than this is seen
LOOK_LEAST = 0.1  # seconds, also with a grace period of zero: a look costs about a millisecond
LOOK_MOST = 5.0  # seconds: so late is an orphan noticed


@dataclass(slots=True)
class _Known:
    """What is remembered of one directory."""

    seen: Neighbour
    since: float | None = None  # found free, with something in it, at every look from here on
    begun: bool = False  # it had a turn since then
    ours: bool = False  # the next stamp is what our own turn left
    not_before: float = 0.0
    pause: float = 0.0
    left: int = 0
    told: str = ""


class Orphans:
    """The other directories of one ``wal_dir``, from look to look."""

    def __init__(self, grace: float) -> None:
        """``grace``: seconds that a process which restarts has to come back for its own directory."""
        self._grace = grace
        self._known: dict[str, _Known] = {}
        self._interval = min(max(grace * LOOK_SHARE, LOOK_LEAST), LOOK_MOST)

    @property
    def left(self) -> int:
        """Records left in the directories that we have let go and that nobody else has taken since."""
        return sum(known.left for known in self._known.values())

    def before(self, name: str) -> Neighbour | None:
        """The last look at a directory."""
        known = self._known.get(name)
        return known.seen if known is not None else None

    def saw(self, now: float, looks: Iterable[Neighbour], own: Destination) -> list[tuple[str, str]]:
        """Remember one look at all of them; what is new to be told: names, and why they cannot be adopted."""
        before, self._known = self._known, {}
        return [news for seen in looks for news in self._saw(now, seen, before.get(seen.name), own)]

    def _saw(self, now: float, seen: Neighbour, known: _Known | None, own: Destination) -> Iterator[tuple[str, str]]:
        if known is None:
            known = _Known(seen)
        self._known[seen.name] = known
        opened = not known.ours and known.seen.stamp != seen.stamp
        known.seen = seen
        why = seen.error or (_mismatch(seen.destination, own) if seen.free and seen.waiting else "")
        if not (seen.free and seen.waiting) or why:
            known.since, known.left = None, 0
        elif known.since is None or opened:
            known.since, known.begun, known.pause, known.not_before = now, False, 0.0, 0.0
        known.ours = False
        if why and why != known.told:
            known.told = why
            yield seen.name, why

    def due(self, now: float) -> str | None:
        """The directory to be adopted now."""
        found = min(self._moments(), default=None)
        return found[1] if found is not None and found[0] <= now else None

    def next_look(self, now: float) -> float:
        """Seconds until the next look at all of them."""
        moments = [moment - now for moment, _ in self._moments()]
        return min(self._interval, max(LOOK_LEAST, min(moments, default=self._interval)))

    def _moments(self) -> Iterator[tuple[float, str]]:
        """When each of them is due."""
        for name, known in self._known.items():
            if known.since is not None:
                yield max(known.since + self._grace, known.not_before), name

    def lost(self, name: str) -> None:
        """Somebody else has taken it first."""
        self._known[name].since = None

    def begin(self, name: str) -> bool:
        """It is ours for a turn; whether this is the first one."""
        known = self._known[name]
        first, known.begun, known.left = not known.begun, True, 0  # its turn counts what is left from here on
        return first

    def failed(self, name: str, now: float, why: str) -> bool:
        """It could not be opened; whether that is news."""
        known = self._known[name]
        _back_off(known, now)
        news, known.told = why != known.told, why
        return news

    def let_go(self, name: str, now: float, *, settled: int, left: int) -> None:
        """A turn is over: so many records were settled in it, so many are known to be left."""
        known = self._known[name]
        known.ours, known.told, known.left = True, "", left
        if settled:
            known.not_before, known.pause = now + RETAKE, 0.0
        else:
            _back_off(known, now)


def _back_off(known: _Known, now: float) -> None:
    known.pause = min(max(known.pause * 2, PAUSE_FIRST), PAUSE_MAX)
    known.not_before = now + known.pause


def _mismatch(its: Destination, own: Destination) -> str:
    """Why its records do not belong where ours go; empty: they do, or nothing tells."""
    if its.name != own.name:  # nor one without a name: an opening would give it ours
        return f"it belongs to another producer name: start one with it stored={its.name!r} name={own.name!r}"
    if its.cluster_id is not None and own.cluster_id is not None and its.cluster_id != own.cluster_id:
        return f"it belongs to another kafka cluster: stored={its.cluster_id!r} cluster_id={own.cluster_id!r}"
    return ""
