"""Second readers: they go back for what was passed over, up to where the first reader stands.

A reader goes back for all that can be delivered by then, one pass over the ring for all of it. What can be delivered
later, and stands further back, gets a reader of its own, so that a lane whose outage was long does not keep one waiting
whose outage was short. They take turns.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

from aiorecover.delivery.behind import Behind, Order
from aiorecover.delivery.gaps import Gaps
from aiorecover.delivery.lane import Lane
from aiorecover.record import KEY, PARTITION, TOPIC
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream

log = logging.getLogger("aiorecover.delivery")

STEP = 512  # records of a turn, as of the first reader
TURNS = 2  # for each of the first reader's: else what is behind would stay so while as much is published as goes
MOST = 4  # readers at a time, each with a window of the file in memory; what is ready then waits for one to arrive


class GoingBack:
    """One reader, and what it came for."""

    __slots__ = ("gaps", "held", "in_vain", "reader")

    def __init__(self, first: Stream, gaps: Gaps, oldest: Behind) -> None:
        """Stand at the first record of the ``oldest`` of ``gaps``."""
        self.gaps = gaps
        self.reader = first.back_to(oldest.at, oldest.start)
        self.held: Run | None = None  # what it found no room for
        self.in_vain = True  # so far: all that it came for is behind again, from the very same records on

    def take(self, run: Run, until: Order) -> Run | None:
        """What of ``run`` it came for, and stands before ``until``; the reader stands there if that comes in between.

        Records from before something fell behind were dispatched then.
        """
        mine = []
        for number, record in enumerate(run.records):
            at = run.position(number)
            if at >= until:
                self.reader.go_to(at, (run.slot, run.places[number]))
                break
            if type(record) is tuple and self.gaps.covering(record[TOPIC], record[KEY], record[PARTITION], at):
                mine.append(number)
        return run.pick(mine)

    def lane(self, topic: str, key: bytes | None, partition: int | None, at: Order) -> Lane | None:
        """The lane in which a record is behind; of several, as its topic grew, the one in which it is longest."""
        gaps = [gap for gap in self.gaps.covering(topic, key, partition, at) if gap.lane is not None]
        return min(gaps, key=attrgetter("at")).lane if gaps else None

    def close(self) -> None:
        """Stand nowhere."""
        self.reader.close()


class Drain:
    """Everything that is behind, and the readers that go back for it."""

    def __init__(
        self,
        first: Stream,
        *,
        at: Callable[[], Order],
        can_take: Callable[[Behind], bool],
        dispatch: Callable[[Run, GoingBack], int],
    ) -> None:
        """``at``: of the next record that the ``first`` reader dispatches; ``can_take``: whether to go back for it."""
        self._first = first
        self._at = at
        self._can_take = can_take
        self._dispatch = dispatch
        self._under_way: deque[GoingBack] = deque()
        self.gaps = Gaps()
        self.no_room = False  # one of them found none at its last turn

    def __bool__(self) -> bool:
        """Whether anybody is under way."""
        return bool(self._under_way)

    def add(self, gap: Behind) -> None:
        """Remember a gap; the reader that came for the one of its name, up to here, leaves it to another.

        Where nobody has come for that one yet it stays: all of this gap is in it.
        """
        old = self.gaps.named(gap.name)
        going = next((going for going in self._under_way if old in going.gaps), None)
        if old is not None and going is None and old.at <= gap.at:
            return
        self.gaps.add(gap)
        if old is not None and going is not None:
            going.gaps.remove(old)
            gap.in_vain = gap.at == old.at
            going.in_vain &= gap.in_vain

    def start(self, *, changed: bool = True) -> None:
        """Go back for all that can be delivered by now, and nobody goes back for yet.

        ``changed``: since somebody came in vain. Else nobody goes once more at once, and once more, for nothing.
        """
        new = Gaps()
        for gap in self.gaps:
            if gap.in_vain and not changed:
                continue
            if any(gap in going.gaps for going in self._under_way) or not self._can_take(gap):
                continue
            going = self._passing_by(gap)
            if going is not None:
                going.gaps.add(gap)
            elif len(self._under_way) < MOST and all(going.gaps.apart_from(gap) for going in self._under_way):
                new.add(gap)
        oldest = new.oldest
        if oldest is not None:
            self._under_way.append(GoingBack(self._first, new, oldest))
            log.info("catching up topics=%s", sorted({gap.topic for gap in new}))

    def _passing_by(self, gap: Behind) -> GoingBack | None:
        """Who is under way and has not come to its first record yet."""
        for going in self._under_way:
            others = (other for other in self._under_way if other is not going)
            if gap.at >= going.reader.at and all(other.gaps.apart_from(gap) for other in others):
                return going
        return None

    def step(self) -> bool:
        """Some turns of who is under way; False when nobody came any further."""
        moved, stuck, self.no_room = 0, 0, False
        while moved < TURNS and stuck < len(self._under_way):  # each is asked before all rest
            going = self._under_way[0]
            self._under_way.rotate(-1)
            if self._turn(going):
                moved, stuck = moved + 1, 0
            else:
                stuck, self.no_room = stuck + 1, True
        return moved > 0

    def _turn(self, going: GoingBack) -> bool:
        """Up to where the first reader stands and no further; False without room."""
        if going.held is None:
            if going.reader.at >= self._at():
                self._arrived(going)
                return True
            run = going.reader.look(STEP)
            if run is None:
                if not going.reader.moved:
                    self._arrived(going)
                return True
            try:
                going.held = going.take(run, self._at())
            except BaseException:  # a signal: it is read again
                going.reader.go_to(run.position(0), (run.slot, run.places[0]))
                raise
            if going.held is None:
                return True
        run, done = going.held, 0
        try:
            done = self._dispatch(run, going)
            going.held = run.behind(done)
        except BaseException:  # as in the dispatcher
            going.held = run.behind(done)
            raise
        if not going.gaps:  # all of it fell behind again
            self._arrived(going)
            return True
        return done > 0

    def _arrived(self, going: GoingBack) -> None:
        changed = bool(going.gaps) or not going.in_vain
        for gap in going.gaps:  # first: while it is under way nobody else goes back for them
            self.gaps.remove(gap)
        going.close()
        self._under_way.remove(going)
        self.start(changed=changed)

    @property
    def held(self) -> Iterator[Run]:
        """What was read, and is in no lane yet."""
        for going in self._under_way:
            yield from going.reader.left
            if going.held is not None:
                yield going.held

    def count_in(self, slot: Slot) -> int:
        """How many stand in a slot."""
        return sum(going.reader.stands_in(slot) for going in self._under_way)

    def leave_moved(self) -> None:
        """Slots were moved: nobody stands in one until there is room for what he has read."""
        for going in self._under_way:
            going.reader.leave_moved()

    def goes_to(self, position: Order) -> bool:
        """Somebody is on the way to records up to there."""
        return any(going.reader.at <= position for going in self._under_way)

    def close(self) -> None:
        """Everybody stands nowhere."""
        while self._under_way:
            self._under_way.pop().close()
