"""Records that the dispatcher passed over, and how they are told from those that it dispatched. Pure.

Between the first record passed over and the dispatcher every record is either covered, and in no batch, or not
covered, and dispatched. So what covers a record must not change meanwhile: a lane's keys are remembered by the
partitions that the topic had then, and where a partitioner of the user's chooses, the whole topic waits.
"""

from collections.abc import Sequence

from aiorecover.delivery.lane import Lane
from aiorecover.delivery.partitioner import partition_for
from aiorecover.wal.run import Entry


class Behind:
    """Records of one topic from one record on: all of them, those of one lane, or those that may go anywhere."""

    __slots__ = ("_alone", "_partitions", "entry", "lane", "partition", "topic")

    def __init__(self, topic: str, partition: int | None, entry: Entry) -> None:
        """All that name ``partition``, which does not exist; None: all of the topic. ``entry``: the first of them."""
        self.topic = topic
        self.partition = partition
        self.entry = entry
        self.lane: Lane | None = None
        self._alone = False
        self._partitions: Sequence[int] = ()

    @classmethod
    def of_lane(cls, lane: Lane, partitions: Sequence[int], entry: Entry) -> "Behind":
        """Those of a halted lane; ``partitions``: the topic's, over which Kafka's partitioner spreads the keys."""
        behind = cls(lane.topic, None, entry)
        behind.lane = lane
        behind._partitions = tuple(partitions)
        return behind

    @classmethod
    def of_no_lane(cls, topic: str, entry: Entry) -> "Behind":
        """Those without key and partition, while every lane of the topic is halted."""
        behind = cls(topic, None, entry)
        behind._alone = True
        return behind

    @property
    def at(self) -> tuple[int, int]:
        """Order of the first record: (slot ordinal, sequence)."""
        return order_of(self.entry)

    def covers(self, topic: str, key: bytes | None, partition: int | None) -> bool:
        """Whether a record is one of those."""
        if topic != self.topic:
            return False
        if self._alone:
            return key is None and partition is None
        if self.lane is None:
            return self.partition in (None, partition)
        if partition is None and key is not None:
            partition = self._partitions[partition_for(key, len(self._partitions))]
        return partition == self.lane.partition


def order_of(entry: Entry) -> tuple[int, int]:
    """Where a record stands in the ring: (slot ordinal, sequence)."""
    return entry[0].header.ordinal, entry[2]
