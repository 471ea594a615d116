"""Records that the dispatcher passed over, and how they are told from those that it dispatched. Pure.

Between the first record passed over and the dispatcher every record is either covered, and in no batch, or not
covered, and dispatched. So what covers a record must not change meanwhile: a lane's keys are remembered by the
partitions that the topic had then, and where a partitioner of the user's chooses, the whole topic waits.
"""

from collections.abc import Sequence
from functools import lru_cache

from aiorecover.delivery.lane import Lane
from aiorecover.delivery.partitioner import partition_for
from aiorecover.record import KEY, PARTITION
from aiorecover.wal.run import Placed
from aiorecover.wal.slot import Slot

KEY_CACHE = 16_384  # keys whose place is remembered; pure-Python murmur2 costs 1-6 us a key, a look-up 30 ns

Order = int
"""Where a record stands among all: the position that it was accepted with, wherever it has been moved since."""
Where = tuple[Slot, int]
"""Slot and place of a frame."""
Name = tuple[str, int | None, bool, Sequence[int]]


class Behind:
    """Records of one topic from one record on: all of them, those of one lane, or those that may go anywhere.

    ``name`` says which: two of one name cover the same. Of the first of them ``start`` is kept, where it stood (slot
    and place; None once that slot is moved), its ``key`` and the partition that it has ``named``, and not its value:
    there may be a gap for each of a thousand lanes.
    """

    __slots__ = ("at", "found_in", "in_vain", "key", "lane", "name", "named", "partition", "start", "topic")

    def __init__(self, topic: str, partition: int | None, entry: Placed) -> None:
        """All that name ``partition``, which does not exist; None: all of the topic. ``entry``: the first of them."""
        self.topic = topic
        self.partition = partition
        self.start: Where | None = entry[:2]
        self.at = order_of(entry)
        self.key: bytes | None = entry[3][KEY]
        self.named: int | None = entry[3][PARTITION]
        self.found_in: Lane | None = None  # where it stands in Kafka already
        self.lane: Lane | None = None
        self.in_vain = False  # somebody came for it, and not even the first of them could go anywhere
        self.name: Name = (topic, partition, False, ())

    @classmethod
    def of_lane(cls, lane: Lane, partitions: Sequence[int], entry: Placed) -> "Behind":
        """Those of a lane; ``partitions``: the topic's, over which Kafka's partitioner spreads the keys."""
        behind = cls(lane.topic, None, entry)
        behind.lane = lane
        behind.name = (lane.topic, lane.partition, False, tuple(partitions))
        return behind

    @classmethod
    def of_no_lane(cls, topic: str, entry: Placed) -> "Behind":
        """Those without key and partition, while no lane of the topic takes any."""
        behind = cls(topic, None, entry)
        behind.name = (topic, None, True, ())
        return behind

    @property
    def whole(self) -> bool:
        """All of the topic."""
        return self.name == (self.topic, None, False, ())

    def again(self, entry: Placed) -> "Behind":
        """The same from a later record on."""
        behind = Behind(self.topic, self.partition, entry)
        behind.lane, behind.name = self.lane, self.name
        return behind

    def covers(self, topic: str, key: bytes | None, partition: int | None) -> bool:
        """Whether a record is one of those."""
        if topic != self.topic:
            return False
        _, number, alone, partitions = self.name
        if alone:
            return key is None and partition is None
        if self.lane is None:
            return number in (None, partition)
        if partition is None and key is not None:
            partition = place_of(key, partitions)
        return partition == number


def order_of(entry: Placed) -> Order:
    """Where a record stands among all."""
    return entry[2]


def place_of(key: bytes, partitions: Sequence[int]) -> int:
    """The partition of a key where Kafka's partitioner chooses among ``partitions``."""
    return partitions[_number_of(key, len(partitions))]


_number_of = lru_cache(KEY_CACHE)(partition_for)
