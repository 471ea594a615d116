"""What is published, the same by every contender: 160 bytes under one of 1,000 keys, with a header of its own."""

from collections.abc import Iterator
from itertools import cycle, islice
from random import Random
from typing import Any

from aiorecover import RecoverableProducer

PARTITIONS = 6
VALUE = Random(160).randbytes(160)
KEYS = [b"key-%03d" % number for number in range(1000)]
ID_HEADER = "aiorecover-id"
ID_PREFIX = b"k3f9q2w7x8y1z/1/"  # as long as ours: a producer id of 13 characters and an epoch

NOBODY = "127.0.0.1:1"  # no Kafka is here


def keys(count: int) -> Iterator[bytes]:
    """A key for each of ``count`` records."""
    return islice(cycle(KEYS), count)


def producer(wal_dir: str, bootstrap_servers: str, **options: Any) -> RecoverableProducer:
    """Ours with its defaults, except that a nearly full disk does not end a benchmark."""
    return RecoverableProducer(wal_dir, bootstrap_servers=bootstrap_servers, **{"wal_min_free_bytes": 0, **options})


async def publish_all(producer: RecoverableProducer, topic: str, count: int) -> None:
    """Publish ``count`` records one after the other."""
    publish = producer.publish
    for key in keys(count):
        await publish(topic, VALUE, key=key)
