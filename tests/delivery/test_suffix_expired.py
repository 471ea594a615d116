"""A record that was done again after a power cut, and expires before anybody knows, takes its lane along all the same.

It stands in Kafka once more, behind what its lane's later settle words speak of, and only its dead letter remembers it
("possibly"). So what follows it has to be delivered again, as behind any other frame that waits.
"""

import asyncio
import time
from collections.abc import Callable

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot
from tests.support.oracle import read_topic

TOPIC = "values"
LIMIT = 6.0
APART = 4.0
EXPIRED = 1.5  # behind the limit: it may be noticed an eighth of it late, and a second more is for a busy machine
OLD = fmt.FIRST_FRAME // fmt.WORD + fmt.SETTLE_WORD  # the place of the first record's settle word

OnDelivery = Callable[[DeliveryReport], None]


def service(disk: MemoryDisk, cluster: MockCluster, on_delivery: OnDelivery | None = None) -> RecoverableProducer:
    return RecoverableProducer(
        disk,
        bootstrap_servers=cluster.bootstrap_servers,
        on_delivery=on_delivery,
        fsync="never",
        checkpoint_interval_ms=600_000,
        slot_bytes=16 * 1024,
        max_request_size=8 * 1024,
        max_batch_size=600,  # a record each
        linger_ms=0,
        retry_backoff_ms=10,
        recovery_check=False,
        request_timeout_ms=1000,
        delivery_timeout_ms=round(LIMIT * 1000),
    )


def first_slot(producer: RecoverableProducer) -> Slot:
    assert producer._opened is not None
    ring = producer._opened.directory.ring
    ring.map_for_settling(ring.live[0])
    return ring.live[0]


def after_a_power_cut(producer: RecoverableProducer, disk: MemoryDisk, words: dict[int, int]) -> MemoryDisk:
    """It took settle words: these are what the disk has."""
    assert producer._opened is not None
    slot = first_slot(producer)
    assert slot.words is not None
    for place, word in words.items():
        slot.words[place] = word
    producer._opened.directory.ring.sync()
    return disk.after_power_cut(1)


async def both_delivered(disk: MemoryDisk, cluster: MockCluster) -> tuple[MemoryDisk, int, int]:
    """The word of the first record is lost, that of the second one is not; its place and the word."""
    cluster.broker_down()
    producer = service(disk, cluster)
    await producer.start()
    await producer.publish(TOPIC, b"old" + bytes(500), key=b"key")
    await asyncio.sleep(APART)
    await producer.publish(TOPIC, b"new" + bytes(500), key=b"key")
    assert producer._opened is not None
    await producer._opened.background.checkpoint()  # which knows how old they are
    cluster.broker_up()
    slot = first_slot(producer)
    await producer.flush(timeout_ms=10_000)
    assert slot.words is not None
    new = next(place for place in range(OLD + 1, len(slot.words)) if slot.words[place] == slot.done_word)
    word = slot.done_word
    left = after_a_power_cut(producer, disk, {OLD: slot.open_word})
    await producer.stop(timeout_ms=0)
    return left, new, word


async def one_done_again(disk: MemoryDisk, cluster: MockCluster, new: int, word: int) -> MemoryDisk:
    """The first record stands in Kafka once more when the power goes again, with all words of this life."""
    reported = asyncio.Event()

    def on_delivery(_: DeliveryReport) -> None:
        if not reported.is_set():
            cluster.broker_down()
            reported.set()

    producer = service(disk, cluster, on_delivery)
    await producer.start()
    await reported.wait()
    left = after_a_power_cut(producer, disk, {OLD: first_slot(producer).open_word, new: word})
    await producer.stop(timeout_ms=0)
    return left


async def lives(cluster: MockCluster) -> list[bytes]:
    began = time.monotonic()
    left, new, word = await both_delivered(MemoryDisk(), cluster)
    left = await one_done_again(left, cluster, new, word)
    await asyncio.sleep(max(0.0, began + LIMIT + EXPIRED - time.monotonic()))
    cluster.broker_up()
    async with service(left, cluster) as producer:
        await producer.flush(timeout_ms=10_000)
        assert producer.statistics().dead_lettered == 1
    consumed = await read_topic(cluster.bootstrap_servers, TOPIC)
    return [(record.value or b"")[:3] for record in sorted(consumed, key=lambda record: record.offset)]


def test_the_newest_value_stands_last_though_an_older_one_that_was_done_again_expires() -> None:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, 1)
        assert asyncio.run(lives(cluster)) == [b"old", b"new", b"old", b"new"]
