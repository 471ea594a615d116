"""What is behind, found by what it covers. Pure.

There may be one gap for each of a thousand lanes, and every record of their topic asks whether it is in one: so gaps
are looked up, not gone through.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from aiorecover.delivery.behind import Behind, Name, Order, place_of
from aiorecover.delivery.lane import Lane


class Gaps:
    """A set of them, with one gap of a name at most."""

    def __init__(self, gaps: Iterable[Behind] = ()) -> None:
        """Hold these."""
        self._named: dict[Name, Behind] = {}
        self._others: dict[str, list[Behind]] = {}  # by topic: those that are not a lane's
        self._lanes: dict[str, dict[Sequence[int], dict[int, Behind]]] = {}  # by topic, partitions then, and partition
        for gap in gaps:
            self.add(gap)

    def __len__(self) -> int:
        """How many."""
        return len(self._named)

    def __iter__(self) -> Iterator[Behind]:
        """All of them."""
        return iter(list(self._named.values()))

    def __contains__(self, gap: object) -> bool:
        """Whether this very one is among them."""
        return isinstance(gap, Behind) and self._named.get(gap.name) is gap

    def named(self, name: Name) -> Behind | None:
        """The one of that name."""
        return self._named.get(name)

    def add(self, gap: Behind) -> None:
        """One more, in the place of the one of its name."""
        old = self._named.get(gap.name)
        if old is not None:
            self.remove(old)
        self._named[gap.name] = gap
        topic, _, _, partitions = gap.name
        if gap.lane is not None:
            self._lanes.setdefault(topic, {}).setdefault(partitions, {})[gap.lane.partition] = gap
        else:
            self._others.setdefault(topic, []).append(gap)

    def remove(self, gap: Behind) -> None:
        """Take this very one away, if it is there."""
        if gap not in self:
            return
        del self._named[gap.name]
        topic, _, _, partitions = gap.name
        if gap.lane is None:
            self._others[topic].remove(gap)
            if not self._others[topic]:
                del self._others[topic]
            return
        lanes = self._lanes[topic]
        del lanes[partitions][gap.lane.partition]
        if not lanes[partitions]:
            del lanes[partitions]
        if not lanes:
            del self._lanes[topic]

    def covering(self, topic: str, key: bytes | None, partition: int | None, at: Order) -> list[Behind]:
        """Those that a record which stands at ``at`` is in."""
        found = [gap for gap in self._others.get(topic, ()) if gap.at <= at and gap.covers(topic, key, partition)]
        for partitions, gaps in self._lanes.get(topic, {}).items():
            if partition is not None:
                gap = gaps.get(partition)
            else:
                gap = gaps.get(place_of(key, partitions)) if key is not None else None
            if gap is not None and gap.at <= at:
                found.append(gap)
        return found

    def apart_from(self, gap: Behind) -> bool:
        """No record in one of these is in ``gap``, so that each can be caught up without the other."""
        if self._others.get(gap.topic):
            return False
        lanes = self._lanes.get(gap.topic, {})
        if gap.lane is None:
            return not lanes
        spread = gap.name[3]
        return all((known is spread or known == spread) and gap.lane.partition not in of for known, of in lanes.items())

    def of(self, lane: Lane) -> list[Behind]:
        """Those with records whose order ``lane`` keeps, as far as they can be told from other lanes'."""
        found = [gap for gap in self._others.get(lane.topic, ()) if gap.partition == lane.partition]
        lanes = self._lanes.get(lane.topic, {}).values()
        return found + [gaps[lane.partition] for gaps in lanes if lane.partition in gaps]

    def concern(self, lane: Lane) -> bool:
        """Whether records that are in one of them may go to ``lane``, as far as that is told without reading them."""
        return any(gap.partition is None for gap in self._others.get(lane.topic, ())) or bool(self.of(lane))

    @property
    def oldest(self) -> Behind | None:
        """Which begins first."""
        return min(self._named.values(), key=attrgetter("at"), default=None)
