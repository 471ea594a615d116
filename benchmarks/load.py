"""The records, the same for every contender: 160 bytes under one of 1,000 keys, with a header of its own."""

from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from random import Random
from typing import Any

from aiorecover import RecoverableProducer
from aiorecover.ring.records import murmur2

PARTITIONS = 6
VALUE = Random(160).randbytes(160)
KEYS = [b"key-%03d" % number for number in range(1000)]
ID_HEADER = "aiorecover-id"
ID_PREFIX = b"k3f9q2w7x8y1z/1/"  # as long as ours: a producer id of 13 characters and an epoch

NOBODY = "127.0.0.1:1"  # no Kafka is here


def keys(number: int, of: Sequence[bytes] = KEYS) -> Iterator[bytes]:
    """A key for each of ``number`` records."""
    return islice(cycle(of), number)


def keys_of(partitions: int) -> list[bytes]:
    """One key for each of so many partitions, in their order."""
    found: dict[int, bytes] = {}
    numbers = count()
    while len(found) < partitions:
        key = b"key-%05d" % next(numbers)
        found.setdefault(murmur2(key) % partitions, key)
    return [found[partition] for partition in range(partitions)]


def producer(wal_dir: str, bootstrap_servers: str, **options: Any) -> RecoverableProducer:
    """Ours with its defaults, except that a nearly full disk does not end a benchmark."""
    return RecoverableProducer(wal_dir, bootstrap_servers=bootstrap_servers, **{"wal_min_free_bytes": 0, **options})


async def publish_all(producer: RecoverableProducer, topic: str, number: int, of: Sequence[bytes] = KEYS) -> None:
    """Publish ``number`` records one after the other, under the keys ``of``."""
    publish = producer.publish
    for key in keys(number, of):
        await publish(topic, VALUE, key=key)
