"""What holds records up, as far as it is known at the moment: for who has waited in vain.

Asked when a time limit has passed, and only then: until then nothing is kept but the last error of a batch that failed,
of a lane without room on the disk, of a session that is not connected, and of a transaction that was lost.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from aiorecover import record as rec
from aiorecover.delivery.behind import Behind
from aiorecover.delivery.frames import record_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.recovery_check import RecoveryCheck
from aiorecover.delivery.router import Router, Topic
from aiorecover.delivery.session import Session
from aiorecover.errors import WalCorruptError
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

LANES_MOST = 100  # lanes that are looked through for a record without a key, 1 us each: thousands may ask at once

BATCHES_MOST = 16  # of each lane: in transactions it may hold hundreds

NOT_REACHED = "kafka is not reached"
IN_TURN = "it takes its turn"


class Delay(NamedTuple):
    """Why, and of what, as far as that is known; ``error``: what Kafka, or the way there, has said last."""

    why: str
    topic: str | None = None
    partition: int | None = None
    error: str = ""

    def __str__(self) -> str:
        """For a message, which begins with what is to be done about it."""
        told = {"topic": self.topic, "partition": self.partition, "error": self.error or None}
        pairs = [f" {name}={value}" for name, value in told.items() if value is not None]
        return self.why + "".join(pairs)


class Delays:
    """Asks who is in the way."""

    def __init__(
        self,
        ring: Ring,
        session: Session,
        check: RecoveryCheck,
        router: Router,
        passed_over: Iterable[Behind],
        lost: Callable[[], str],
        missing: Callable[[], str],
    ) -> None:
        """``passed_over``: those there are at the moment of asking.

        ``lost``: why the last transaction was, or "" where it was not, or there are none.

        ``missing``: a right to a topic without which there is none, or "".
        """
        self._ring = ring
        self._session = session
        self._check = check
        self._router = router
        self._passed_over = passed_over
        self._lost = lost
        self._missing = missing

    def of(self, name: str, sequence: int, place: int) -> Delay:
        """Of a record of this epoch."""
        topic = self._router.topics.get(name)
        slot, record = self._record(sequence, place)
        partition = self._partition(topic, slot, place, record)
        found = self._of_all() or _of_topic(topic, partition)
        if found is None and topic is not None and (lane := topic.lanes.get(-1 if partition is None else partition)):
            found = _of_lane(lane)
        if found is None and (lost := self._lost()):
            found = Delay("its transaction was lost, and is made anew", error=lost)
        return (found or Delay(IN_TURN))._replace(topic=name, partition=partition)

    def of_any(self) -> Delay:
        """Of all that waits: what is worst."""
        found = self._of_all()
        if found is not None:
            return found
        stuck = [lane for lane in self._router.lanes() if _of_lane(lane) is not None]
        if stuck:
            lane = max(stuck, key=_attempts)
            return (_of_lane(lane) or Delay(IN_TURN))._replace(topic=lane.topic, partition=lane.partition)
        for topic in self._router.topics.values():
            if found := _of_topic(topic, None):
                return found._replace(topic=topic.name)
        for behind in self._passed_over:
            if behind.lane is None and (found := _of_topic(self._router.topics.get(behind.topic), behind.named)):
                return found._replace(topic=behind.topic, partition=behind.named)
        lost = self._lost()
        return Delay("a transaction was lost, and is made anew", error=lost) if lost else Delay("it is under way")

    def _of_all(self) -> Delay | None:
        """What is in the way of all records."""
        missing = self._missing()
        if self._session.number is None and not (missing and self._session.trouble == missing):  # that ended it
            return Delay(NOT_REACHED, error=self._session.trouble)
        if self._check.reading:
            return Delay("what was in flight before the start is looked for in kafka first")
        return Delay(f"kafka refuses a topic, and nothing is committed: {missing}") if missing else None

    def _record(self, sequence: int, place: int) -> tuple[Slot | None, Any]:
        """The record, and where it stands; None where it was moved, or does not hold any more."""
        try:
            slot = self._ring.slot_of(sequence)
            return slot, record_at(slot, place)
        except (KeyError, ValueError, RecursionError, WalCorruptError):
            return None, None

    def _partition(self, topic: Topic | None, slot: Slot | None, place: int, record: Any) -> int | None:
        """Where the record goes, if it says so, or if that was decided, or follows from its key."""
        if record is None:
            return None
        partition: int | None = record[rec.PARTITION]
        if partition is not None or topic is None:
            return partition
        if record[rec.KEY] is not None:
            return self._router.decided(topic, record[rec.KEY])
        lanes = islice(topic.lanes.values(), LANES_MOST)
        return next((lane.partition for lane in lanes if slot is not None and _has(lane, slot, place)), None)


def _of_topic(topic: Topic | None, partition: int | None) -> Delay | None:
    """What is in the way of a topic's records; None for the topic: no record of it was read yet."""
    if topic is None:
        return None
    if topic.count == 0:
        return Delay("the topic is not known yet")
    if topic.closed:
        return Delay("what was in flight to partitions that are gone goes first")
    if partition is not None and partition not in topic.partitions:
        return Delay("the partition does not exist")
    return Delay("the partitioner fails") if topic.unplaced else None


def _of_lane(lane: Lane) -> Delay | None:
    if lane.halted is not None:
        return Delay(f"the lane is halted: {lane.remedy}", error=lane.halted)
    if lane.no_room:
        return Delay("what is sent is written down first, and that waits for room on the disk", error=lane.no_room)
    if lane.in_flight is not None and lane.in_flight.trouble:
        return Delay("the partition does not get through", error=lane.in_flight.trouble)
    return None


def _attempts(lane: Lane) -> int:
    return lane.in_flight.attempts if lane.in_flight is not None else 0


def _has(lane: Lane, slot: Slot, place: int) -> bool:
    """Whether the record of a frame is in the lane. What comes from one slot stands in the order of its places."""
    return any(
        home is slot and places and places[min(bisect_left(places, place), len(places) - 1)] == place
        for batch in islice(lane.batches, BATCHES_MOST)
        for home, places in batch.frames
    )
