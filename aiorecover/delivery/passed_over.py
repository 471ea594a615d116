"""What is passed over, and where it goes once somebody goes back for it."""

import asyncio
import logging
from collections.abc import Callable

from aiorecover.delivery.behind import Behind, Order, order_of
from aiorecover.delivery.drain import Drain, GoingBack
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.router import Router, Topic
from aiorecover.record import KEY, PARTITION, TOPIC
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.stream import Stream

log = logging.getLogger("aiorecover.delivery")


class PassedOver:
    """Decides for each record whether it waits. ``going``: the second reader that has it; None: the first one."""

    def __init__(
        self,
        first: Stream,
        router: Router,
        *,
        at: Callable[[], Order],
        dispatch: Callable[[Run, GoingBack], int],
        refuse: Callable[[Lane, Placed], None],
        expires: Callable[[Behind], bool],
        keeps_waiting: Callable[[Behind], bool],
    ) -> None:
        """As `Drain`; ``refuse`` records of a lane that is halted for good.

        ``expires``: a gap's first record does; ``keeps_waiting``: it would, and nobody should wait for that yet.
        """
        self._router = router
        self._refuse = refuse
        self._expires = expires
        self._keeps_waiting = keeps_waiting
        self.drain = Drain(first, at=at, can_take=self._can_take, dispatch=dispatch)
        self.gaps = self.drain.gaps
        self.fell_behind = asyncio.Event()  # what only metadata can help

    def lane(self, topic: Topic, entry: Placed, going: GoingBack | None) -> Lane | None:
        """Where a record goes. One that is behind goes to the lane that it is behind in, though its topic has grown."""
        record = entry[3]
        lane = going.lane(record[TOPIC], record[KEY], record[PARTITION], order_of(entry)) if going is not None else None
        return lane or self._router.lane(topic, record[KEY], record[PARTITION])

    def older_are_behind(self, lane: Lane, entry: Placed, going: GoingBack | None) -> bool:
        """Older records of this very lane are still to be caught up: a record whose order counts waits with them."""
        record = entry[3]
        if record[KEY] is None and record[PARTITION] is None:
            return False
        gaps = self.gaps.of(lane)
        if going is None:
            return bool(gaps)
        return any(gap not in going.gaps and gap.at <= order_of(entry) for gap in gaps)

    def fall_behind(
        self, topic: Topic, lane: Lane | None, entry: Placed, going: GoingBack | None, *, found: bool = False
    ) -> None:
        """Have a record wait that cannot go anywhere now, or be refused; ``found``: it stands in ``lane`` already."""
        if lane is not None and lane.gone:
            self._refuse(lane, entry)
            return
        if lane is None:
            tell_of_no_lane(topic, entry[3][PARTITION])
        for gap in self._gaps_from(topic, lane, entry, going):
            gap.found_in = lane if found else None
            self.drain.add(gap)
            self._router.forget_covered(gap)
        if lane is None:
            self.fell_behind.set()

    def _gaps_from(self, topic: Topic, lane: Lane | None, entry: Placed, going: GoingBack | None) -> list[Behind]:
        """What waits from this record on.

        What a second reader cannot take stays in the gaps that it was in, from here on: another gap could cover what
        the first reader has dispatched meanwhile. Only in the gap of a whole topic there is nothing of that kind.
        """
        record = entry[3]
        if going is not None:
            gaps = going.gaps.covering(record[TOPIC], record[KEY], record[PARTITION], order_of(entry))
            if not any(gap.whole for gap in gaps):
                return [gap.again(entry) for gap in gaps]
        return [self._gap(topic, lane, entry)]

    def _gap(self, topic: Topic, lane: Lane | None, entry: Placed) -> Behind:
        key, partition = entry[3][KEY], entry[3][PARTITION]
        if lane is None:
            return Behind(topic.name, partition if topic.is_open else None, entry)
        if not self._router.spreads_by_key:  # a partitioner of the user's may choose another lane the next time
            return Behind(topic.name, partition, entry)
        if key is None and partition is None:
            return Behind.of_no_lane(topic.name, entry)
        return Behind.of_lane(lane, topic.spread, entry)

    def covers(self, entry: Placed, going: GoingBack | None) -> bool:
        """Whether a record waits behind a gap; a second reader takes only those that it came for."""
        record = entry[3]
        gaps = self.gaps.covering(record[TOPIC], record[KEY], record[PARTITION], order_of(entry))
        if going is None:
            return bool(gaps)
        return not gaps or any(gap not in going.gaps for gap in gaps)

    def _can_take(self, gap: Behind) -> bool:
        if self._keeps_waiting(gap):
            return False
        return self._answers(gap) or self._expires(gap)

    def _answers(self, gap: Behind) -> bool:
        topic = self._router.topic(gap.topic)
        if gap.lane is not None:
            return _answers(gap.lane)
        if gap.partition is not None:
            lane = topic.lanes.get(gap.partition)
            return gap.partition in topic.partitions and (lane is None or _answers(lane))
        lane = gap.found_in or self._router.lane(topic, gap.key, gap.named)
        if lane is not None:
            return _answers(lane) or (gap.whole and self._router.spreads_by_key)  # then all but that lane's can go on
        return topic.is_open and gap.named is not None  # it waits for that partition alone from now on


def _answers(lane: Lane) -> bool:
    """What is behind is sent; or it is refused, because the lane is halted for good."""
    return not lane.stalled and not lane.resumes


def tell_of_no_lane(topic: Topic, partition: int | None) -> None:
    """Say what a record waits for that goes to no lane yet."""
    if topic.is_open and partition is None:
        return  # the partitioner failed: the router has said so
    if topic.is_open:
        log.error(
            "partition does not exist: its records wait in the ring. add partitions to the topic, "
            "or set delivery_timeout_ms to have them as dead letters topic=%s partition=%s partitions=%d",
            topic.name,
            partition,
            topic.count,
        )
    else:
        log.info("topic is not known yet: its records wait in the ring topic=%s", topic.name)
