"""The router: which lane a record belongs to, which broker task looks at a lane, and what a topic waits for.

`find` is called by the writer when it does not know a topic and key yet. Everything else follows from metadata: the
numbers of partitions, and who leads them.
"""

import logging
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from aiorecover.errors import DeliveryError, EncodeError
from aiorecover.kafka.lanes import WAITING, DeliveryLane, Event, LaneState
from aiorecover.ring.lane import DEAD, UNASSIGNED, Lane
from aiorecover.ring.records import NULL, murmur2, varint
from aiorecover.ring.writer import Target
from aiorecover.serialization import check_partition, check_topic, encode_key

if TYPE_CHECKING:
    from aiorecover.kafka.broker_task import BrokerTask
    from aiorecover.kafka.delivery import Delivery

KEYS_MOST = 100_000  # keys of a topic whose lane is remembered: above that, all are forgotten
DEAD_TOPIC = ""  # the topic of the lane of dead letters

Partitioner = Callable[[bytes | None, list[int], list[int]], int]

_log = logging.getLogger("aiorecover")


class PartitionerError(DeliveryError):
    """The caller's partitioner failed where no caller waits: the topic's records wait."""


class Topic:
    """A topic that records were published to.

    Attributes:
        count: its partitions; 0: not known.
        error: why they are not known; None: they are, or nothing is known to be wrong.
        misses: answers in a row that did not name them.
        keys: the writer's ``lanes[name]``.

    """

    __slots__ = (
        "count", "error", "keys", "lanes", "leaders", "misses", "name", "sticky", "unassigned", "used_at",
    )  # fmt: skip

    def __init__(self, name: str, keys: dict[Any, Target], used_at: float) -> None:
        self.name, self.keys, self.used_at = name, keys, used_at
        self.count = self.misses = 0
        self.error: str | None = None
        self.leaders: dict[int, int] = {}
        self.lanes: dict[int, DeliveryLane] = {}
        self.unassigned: DeliveryLane | None = None
        self.sticky: DeliveryLane | None = None

    @property
    def gate(self) -> tuple[int, int] | None:
        """The order of the oldest batch whose partitions are not known: newer ones of the topic wait (R9)."""
        return None if self.unassigned is None else self.unassigned.stored.oldest

    @property
    def busy(self) -> bool:
        """Whether records wait in it."""
        lanes: Iterable[DeliveryLane] = (*self.lanes.values(), *([self.unassigned] if self.unassigned else ()))
        return any(not lane.stored.idle for lane in lanes)


class Router:
    """Topics, lanes and broker tasks of one producer.

    Attributes:
        homeless: lanes whose leader is not known.
        tasks: by (node, whether it is the one for lanes in trouble).

    """

    def __init__(self, delivery: "Delivery", partitioner: Partitioner | None = None) -> None:
        self.delivery, self.ring = delivery, delivery.ring
        self.partitioner = partitioner
        self.topics: dict[str, Topic] = {}
        self.lanes: dict[Lane, DeliveryLane] = {}
        self.homeless: dict[DeliveryLane, None] = {}
        self.tasks: dict[tuple[int, bool], BrokerTask] = {}

    # -- where a record goes -------------------------------------------------------------------------------------------

    def find(self, name: str, key: Any, partition: int | None) -> Target:
        """Return where a record goes, and its key as Kafka writes it; the writer asks once for each key.

        Raises:
            EncodeError: topic, key or partition cannot be; what the caller's partitioner raises, goes through.

        """
        partition = self._check(name, partition)
        topic = self.topic(name)
        topic.used_at = self.delivery.now()
        data = encode_key(name, key)
        part = NULL if data is None else varint(len(data)) + data
        if partition is not None:
            lane = self.lane(topic, partition)
        elif not topic.count:
            lane = self._unassigned(topic)
        elif self.partitioner is not None:
            return self._choose(topic, data).stored.published, part  # asked for each record: it may choose anew
        elif data is not None:
            lane = self.lane(topic, murmur2(data) % topic.count)
        else:
            lane = self._sticky(topic)
        if len(topic.keys) >= KEYS_MOST:
            topic.keys.clear()
        found = lane.stored.published, part
        if key is None or type(key) in (str, bytes):
            topic.keys[key if partition is None else (key, partition)] = found
        return found

    def _check(self, name: str, partition: Any) -> int | None:
        """Check a topic's name, and a partition, which is returned as an int."""
        if type(name) is not str:
            raise EncodeError(f"a topic must be a plain str: pass str(topic) type={type(name).__qualname__}")
        check_topic(name)
        number = check_partition(partition)
        known = self.ring.topics.get(name, 0)
        if number is not None and known and number >= known:
            raise EncodeError(
                "the partition does not exist, as far as is known by now: choose one of the topic's "
                f"topic={name} partition={number} partitions={known}"
            )
        return number

    def route(self, topic: Topic, key: bytes | None) -> Lane:
        """Return the lane of a record whose topic's partitions have become known.

        Raises:
            PartitionerError: the caller's partitioner failed, or named no partition of the topic.

        """
        if self.partitioner is not None:
            try:
                return self._choose(topic, key).stored
            except Exception as error:
                raise PartitionerError(f"the partitioner failed: {error!r}", persisted="not") from error
        if key is not None:
            return self.lane(topic, murmur2(key) % topic.count).stored
        return self._sticky(topic).stored

    def topic(self, name: str) -> Topic:
        """Return a topic, made where it is new: its partitions are asked for then."""
        topic = self.topics.get(name)
        if topic is None:
            keys = self.delivery.writer.lanes.setdefault(name, {})
            topic = self.topics[name] = Topic(name, keys, self.delivery.now())
            topic.count = self.ring.topics.get(name, 0)
            self.delivery.connection.want_metadata()
        return topic

    def lane(self, topic: Topic, partition: int) -> DeliveryLane:
        """Return the lane of a partition, made where it is new."""
        lane = topic.lanes.get(partition)
        if lane is None:
            stored = self.ring.lane(topic.name, partition)
            lane = topic.lanes[partition] = self.lanes[stored] = DeliveryLane(stored, topic)
        return lane

    def _unassigned(self, topic: Topic) -> DeliveryLane:
        if topic.unassigned is None:
            stored = self.ring.lane(topic.name, UNASSIGNED)
            topic.unassigned = self.lanes[stored] = DeliveryLane(stored, topic)
        return topic.unassigned

    def _choose(self, topic: Topic, key: bytes | None) -> DeliveryLane:
        assert self.partitioner is not None
        partitions = list(range(topic.count))
        available = [one for one in partitions if topic.leaders.get(one, -1) >= 0] or partitions
        chosen = self.partitioner(key, partitions, available)
        if not 0 <= chosen < topic.count:
            raise EncodeError(
                f"the partitioner names no partition of the topic topic={topic.name} partition={chosen!r:.50}"
            )
        return self.lane(topic, chosen)

    def _sticky(self, topic: Topic) -> DeliveryLane:
        """Return the lane for records without a key: the same one until its batch is full."""
        if topic.sticky is None:
            well = [one for one in range(topic.count) if not ((lane := topic.lanes.get(one)) and lane.tries)]
            topic.sticky = self.lane(topic, random.choice(well or range(topic.count)))
        return topic.sticky

    def rotate(self, lane: DeliveryLane) -> None:
        """Have records without a key go to another lane."""
        topic = lane.topic
        if topic.sticky is lane:
            topic.sticky = None
            topic.keys.pop(None, None)

    # -- what a lane waits for -----------------------------------------------------------------------------------------

    def ready(self, stored: Lane) -> None:
        """Take note that a lane of the ring has a first record, a full batch, or batches of an earlier life."""
        lane = self.lanes.get(stored)
        if lane is None:
            if stored.partition == DEAD:
                return
            topic = self.topic(stored.topic)
            lane = self._unassigned(topic) if stored.partition == UNASSIGNED else self.lane(topic, stored.partition)
        sealed = stored.published.batch is None
        if sealed:
            self.rotate(lane)
        if stored.partition == UNASSIGNED:
            self.delivery.connection.want_metadata()
            return
        before = lane.state
        full = sealed or bool(stored.queue or stored.later)
        lane.step(Event.FULL if full else Event.FILLED)
        if lane.state is before and before is not LaneState.IDLE:
            if lane.task is not None and full and lane.state is LaneState.SEALED:
                lane.task.wake.set()
            return
        if lane.state is LaneState.FILLING:
            lane.due = self.delivery.now() + self.delivery.linger_of(lane)
        self.place(lane)

    def place(self, lane: DeliveryLane) -> None:
        """Give a lane that waits to the task of the broker that leads it."""
        if lane.state not in WAITING or self.delivery.failure is not None:
            return
        topic = lane.topic
        node = topic.leaders.get(lane.stored.partition, -1)
        if node < 0 or not self.delivery.connection.connected:
            self.homeless[lane] = None
            self.delivery.connection.want_metadata()
            return
        self.homeless.pop(lane, None)
        key = (-1, False) if self.delivery.options.transactional_id else (node, lane.trouble)
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = self.delivery.new_task(node, apart=lane.trouble)
            task.start()
        if lane.task is not task:
            self.displace(lane)
        task.add(lane)

    def displace(self, lane: DeliveryLane) -> None:
        """Take a lane from its broker task."""
        if lane.task is not None:
            lane.task.lanes.pop(lane, None)
            lane.task = None
        self.homeless.pop(lane, None)

    def go_on(self, lane: DeliveryLane) -> None:
        """Go on with the rest of a lane: its oldest batch is done, or waits for nothing any more."""
        if lane.stored.partition == UNASSIGNED:
            lane.step(Event.EMPTY)
            self.delivery.connection.want_metadata()
            if lane.topic.gate is None:  # its last records became dead letters
                self.delivery.open_gate(lane.topic)
            return
        lane.step(lane.contents())
        if lane.state is LaneState.IDLE:
            self.displace(lane)
            return
        if lane.state is LaneState.FILLING:
            lane.due = self.delivery.now() + self.delivery.linger_of(lane)
        self.place(lane)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def wanted_topics(self, now: float, max_age_s: float) -> list[str]:
        """Return the topics that have records waiting, or that were published to lately."""
        return [name for name, topic in self.topics.items() if topic.busy or now - topic.used_at < max_age_s]

    def learn(self, name: str, count: int, leaders: dict[int, int]) -> bool:
        """Remember which broker leads each partition; return whether the number of partitions is new."""
        topic = self.topics.get(name)
        if topic is None:
            return False
        topic.leaders = leaders
        topic.error, topic.misses = None, 0
        if count == topic.count:
            return False
        topic.count = self.ring.topics[name] = count
        topic.sticky = None
        topic.keys.clear()
        self.ring.checkpoint_due = True
        return True

    def settle_homeless(self) -> None:
        """Give each lane without a task to the broker that leads it now."""
        for lane in list(self.homeless):
            self.place(lane)

    def replace_all(self) -> None:
        """Look at every lane's leader anew."""
        for lane in list(self.lanes.values()):
            if lane.state in WAITING:
                self.place(lane)

    def in_trouble(self) -> list[DeliveryLane]:
        """Return the lanes that do not get through, the worst first."""
        return sorted((lane for lane in self.lanes.values() if lane.error), key=lambda lane: -lane.tries)
