"""Which directory is adopted, and when: the deciding part of adoption. No clock, no disk: moments in seconds are given.

A directory is an orphan once it was found free at every look for the grace period, by nobody opened in between, and
something waits in it that belongs where ours goes. Of several the one that is due for the longest time comes first, so
that they take turns. It is let go after a turn even if something is left in it: its owner may be waiting for it. With
progress it is due again as soon as an owner who waits can have taken it; without, after a pause that doubles. A turn of
somebody else that brought nothing counts as one of ours: many workers try no more often than one.

Each turn begins where the last one did with what does not get through; and after a power cut with everything, until one
of them has judged all that is suspect (`wal.suffix`). So one that was cut off as it read that (`headway`), or did not
judge all, or had not found out yet which partitions are gone, is followed by one of twice the time, and without a
pause: that it brought nothing is no sign that nothing can be delivered. Of the longest one it is. One that came through
is followed by a short one: what it left for partitions that do not get through is delivered from the front, and an
owner waits for nothing meanwhile.

Where a directory belongs is told by its name and by the cluster that it remembers. One that never reached a cluster,
and has no name, belongs to us if it was looking for its Kafka at an address that is one of ours. An address such as
``localhost`` counts only within one boot of one machine: on another one it is another Kafka.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from aiorecover.wal.neighbours import Neighbour

RETAKE = 0.5  # seconds free before any turn, also with a shorter grace: who waits for it by name looks every 50 ms
PAUSE_FIRST = 10.0  # seconds after a turn that delivered nothing, or an opening that failed: about one turn
PAUSE_MAX = 600.0  # seconds: a directory that can be delivered at last waits no longer than this
LONGEST = 32  # turns in one: five minutes of 10 s, enough to read past 10 GB that are settled, or wait (5 us a record)
REMEMBERED = 600.0
"""Seconds behind a turn of ours in which somebody else's may have been a turn, too: nearly two of the longest."""
LOOK_SHARE = 0.25  # of the grace period between two looks: an owner that was there for longer than this is seen
LOOK_LEAST = 0.1  # seconds, also with a grace period of zero: a look costs about a millisecond
LOOK_MOST = 5.0  # seconds: so late is an orphan noticed


@dataclass(slots=True)
class _Known:
    """What is remembered of one directory."""

    seen: Neighbour
    waited: Neighbour | None = None  # the last look at which it was free, with something in it
    since: float | None = None  # found so at every look from here on
    undecided: bool = False  # whether it belongs to us shows once Kafka is reached
    begun: bool = False  # it had a turn since then
    ours: bool = False  # the next stamp is what our own turn left
    not_before: float = 0.0
    pause: float = 0.0
    left: int = 0
    turns: int = 1  # in one
    held: float = 0.0  # when our last turn ended
    told: str = ""


class Orphans:
    """The other directories of one ``wal_dir``, from look to look."""

    def __init__(self, grace: float, longest: int = LONGEST) -> None:
        """``grace``: seconds that a process which restarts has to come back for its own directory.

        ``longest``: how many turns one may be worth, more of them where a turn is short.
        """
        self._grace = max(grace, RETAKE)
        self._longest = longest
        self._known: dict[str, _Known] = {}
        self._interval = min(max(self._grace * LOOK_SHARE, LOOK_LEAST), LOOK_MOST)

    @property
    def left(self) -> int:
        """Records left in the directories that we have let go and that nobody else has taken since."""
        return sum(known.left for known in self._known.values())

    def before(self, name: str) -> Neighbour | None:
        """The last look at a directory."""
        known = self._known.get(name)
        return known.seen if known is not None else None

    def saw(
        self, now: float, looks: Iterable[Neighbour], own: Neighbour, *, reached: bool = True
    ) -> list[tuple[str, str]]:
        """Remember one look at all of them; what is new to be told: names, and why they cannot be adopted.

        ``own``: our own directory, as the others would see it; ``reached``: we are connected, so what it says of its
        cluster is all that it will say.
        """
        before, self._known = self._known, {}
        looks = list(looks)
        owners = Counter(look.directory_id for look in (*looks, own) if look.directory_id is not None)
        copies = {directory_id for directory_id, count in owners.items() if count > 1}
        for name, seen in ((look.name, look) for look in looks):
            self._known[name] = known = before.get(name) or _Known(seen)
            known.seen = seen
        return [
            news
            for seen in looks
            for news in self._saw(now, seen, _refusal(seen, own, copies, reached=reached) if _waits(seen) else "")
        ]

    def _saw(self, now: float, seen: Neighbour, refusal: str | None) -> Iterator[tuple[str, str]]:
        known = self._known[seen.name]
        known.undecided = refusal is None
        if seen.free and seen.waiting is False:
            known.turns = 1  # of what comes next nothing is known
        why = seen.error or refusal or ""
        if not (seen.free and seen.waiting) or why:
            known.since, known.left = None, 0
        else:
            self._waits(now, seen, known)
        known.ours = False
        if why and why != known.told:
            known.told = why
            yield seen.name, why

    def _waits(self, now: float, seen: Neighbour, known: _Known) -> None:
        """It is free, and something is in it: by nobody opened since the last time, or else its grace begins anew."""
        last, known.waited = known.waited, seen
        opened = last is not None and last.stamp != seen.stamp and not known.ours
        if known.since is not None and not opened:
            return
        known.since, known.begun = now, False
        if last is None or last.progress != seen.progress:
            known.pause = known.not_before = 0.0
            if now - known.held > REMEMBERED:  # its owner came back for a while: nothing is known of what he has left
                known.turns = 1
        elif opened:
            _back_off(known, now)

    def due(self, now: float) -> str | None:
        """The directory to be adopted now."""
        found = min(self._moments(), default=None)
        return found[1] if found is not None and found[0] <= now else None

    def next_look(self, now: float, *, ready: bool = True) -> float:
        """Seconds until the next look at all of them; ``ready``: what is due could be adopted."""
        if not ready:
            return self._interval
        moments = [moment - now for moment, _ in self._moments()]
        return min(self._interval, max(LOOK_LEAST, min(moments, default=self._interval)))

    def _moments(self) -> Iterator[tuple[float, str]]:
        """When each of them is due."""
        for name, known in self._known.items():
            if known.since is not None and not known.undecided:
                yield max(known.since + self._grace, known.not_before), name

    def lost(self, name: str) -> None:
        """Somebody else has taken it first."""
        self._known[name].since = None

    def turns(self, name: str) -> int:
        """How many turns its next one is worth."""
        return self._known[name].turns

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

    def let_go(
        self, name: str, now: float, *, settled: int, left: int, judged: bool = True, cut_off: bool = False
    ) -> None:
        """A turn is over: so many records were settled in it, so many are known to be left.

        ``judged``: the next turn begins behind them. ``cut_off``: it has to do anew what took the time of this one,
        as in `Headway`.
        """
        known = self._known[name]
        begins_anew = cut_off or not judged
        too_short = begins_anew and known.turns < self._longest  # no sign that nothing can be delivered
        known.turns = min(known.turns * 2, self._longest) if begins_anew else 1
        known.ours, known.told, known.left, known.held = True, "", left, now
        if settled:
            known.not_before, known.pause = now + RETAKE, 0.0
        elif too_short:
            known.not_before = now + RETAKE
        else:
            _back_off(known, now)


def _back_off(known: _Known, now: float) -> None:
    known.pause = min(max(known.pause * 2, PAUSE_FIRST), PAUSE_MAX)
    known.not_before = now + known.pause


def _waits(seen: Neighbour) -> bool:
    return seen.free and bool(seen.waiting) and not seen.error


def _refusal(seen: Neighbour, own: Neighbour, copies: set[int], *, reached: bool) -> str | None:
    """Why its records must not be delivered by us; empty: they may; None: that is not known yet."""
    if seen.directory_id in copies:  # what waited when it was copied would be sent by both, under the same ids
        return "it is a copy of another directory, or that of it: move the copy out of wal_dir"
    its, ours = seen.destination, own.destination
    if its.name != ours.name:  # nor one without a name: an opening would give it ours
        return f"it belongs to another producer name: start one with it stored={its.name!r} name={ours.name!r}"
    if its.cluster_id is None:
        return _refusal_of_unknown(seen, own)
    if ours.cluster_id is None and not reached:
        return None
    if its.cluster_id == ours.cluster_id:
        return ""
    remedy = "start a producer for that one, with its name as instance"
    return f"it belongs to another kafka cluster: {remedy} stored={its.cluster_id!r} cluster_id={ours.cluster_id!r}"


def _refusal_of_unknown(seen: Neighbour, own: Neighbour) -> str:
    """Nothing of it has reached a cluster yet. A name says where it belongs; so does an address that we use, too."""
    if own.destination.name is not None or _looked_where_we_do(seen, own):
        return ""
    return (
        "nothing tells to which kafka it belongs: start a producer with its name as instance, and give all that belong "
        "together the same option name"
    )


def _looked_where_we_do(seen: Neighbour, own: Neighbour) -> bool:
    shared = set(seen.destination.servers) & set(own.destination.servers)
    here = seen.boot_id == own.boot_id != ""
    return any(here or not _is_of_the_machine(server) for server in shared)


def _is_of_the_machine(server: str) -> bool:
    """Whether an address leads each machine, and each container, to itself."""
    host = server.rpartition(":")[0].strip("[]").lower()
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
