"""To which partition Kafka's own clients send a key."""

from aiokafka.partitioner import DefaultPartitioner

__all__ = ["partition_for"]

_choose = DefaultPartitioner()


def partition_for(key: bytes, count: int) -> int:
    """The partition, of so many."""
    partition: int = _choose(key, range(count), ())
    return partition
