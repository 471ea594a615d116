"""A full ring, from the outside: which records are refused and why, and that accepting goes on by itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer, WalFullError
from aiorecover.ring.files import Files
from aiorecover.testing import MockCluster
from tests.kafka.victim import Disk
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

WITHIN_MS = 60_000
SMALL: dict[str, Any] = {"wal_max_bytes": 8 << 20}


def made(wal: Path, cluster: Cluster | None, **options: Any) -> RecoverableProducer:
    servers = NOWHERE if cluster is None else cluster.bootstrap_servers
    if cluster is None:
        options = {"stop_timeout_ms": 0, **options}
    return RecoverableProducer(wal, bootstrap_servers=servers, **{**SMALL, **options})


def value(number: int) -> bytes:
    return b"%06d" % number + b"v" * 2000


async def fill(producer: RecoverableProducer, topic: str, first: int = 0, **fields: Any) -> tuple[int, str]:
    """Publish until it is refused; the next number, and the refusal."""
    for number in range(first, first + 100_000):
        try:
            producer.publish_nowait(topic, value(number), **fields)
        except WalFullError as error:
            return number, str(error)
    raise AssertionError("nothing was refused")


async def numbers_in(cluster: Cluster, topic: str) -> list[int]:
    return [int((record.value or b"")[:6]) for record in await read_topic(cluster.bootstrap_servers, topic)]


async def test_a_full_ring_names_what_fills_it_and_goes_on_once_delivery_made_room(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Also over a restart, with a larger backlog than the limit now allows."""
    name = topic(kafka, partitions=1)
    async with made(tmp_path, None, wal_max_bytes=10 << 20) as producer:
        producer.publish_nowait("small", b"v")
        assert not producer.statistics().full
        last, refusal = await fill(producer, name)
        assert refusal.startswith("the ring is full: wait for delivery, or raise wal_max_bytes wal_max_bytes=10485760")
        assert f"most_segments={name}/-1:" in refusal
        figures = producer.statistics()
        assert (figures.full, figures.accepted, figures.pending) == (True, last + 1, last + 1)
        assert figures.bytes_used <= figures.wal_max_bytes
    async with made(tmp_path, kafka) as producer:
        assert producer.statistics().full
        with pytest.raises(WalFullError):
            producer.publish_nowait(name, value(last), partition=0)
        await producer.flush(WITHIN_MS)
        await until(lambda: not producer.statistics().full)
        await producer.publish(name, value(last))
        await producer.flush(WITHIN_MS)
    assert await numbers_in(kafka, name) == list(range(last + 1))


async def test_callers_that_wait_for_room_get_it_first_come_first_served_and_with_the_time_of_their_call(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """`publish_nowait` waits for nothing; all else, newcomers too, comes after those that wait."""
    name = topic(kafka, partitions=1)
    async with made(tmp_path, None) as producer:
        last, _ = await fill(producer, name, partition=0)
    async with made(tmp_path, kafka, on_full="wait", full_timeout_ms=WITHIN_MS) as producer:
        waiting = []
        for number in range(last, last + 1000):
            waiting.append(asyncio.create_task(producer.publish(name, value(number), partition=0)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # one may give the loop a turn before it comes to the line
        await asyncio.gather(*waiting)
        await producer.flush(WITHIN_MS)
        assert producer.statistics().bytes_used <= SMALL["wal_max_bytes"]
    assert await numbers_in(kafka, name) == list(range(last + 1000))


async def test_waiting_for_room_ends_with_its_time_limit_and_can_be_cancelled(tmp_path: Path) -> None:
    async with made(tmp_path, None, on_full="wait", full_timeout_ms=300) as producer:
        last, _ = await fill(producer, "t")
        began = asyncio.get_running_loop().time()
        cancelled, *others = [asyncio.create_task(producer.publish("t", b"x" * 5000)) for _ in range(5)]
        await asyncio.sleep(0.05)
        cancelled.cancel()
        for one in others:
            with pytest.raises(WalFullError, match=r"the ring is full.* full_timeout_ms=300"):
                await one
        assert cancelled.cancelled()
        assert 0.25 <= asyncio.get_running_loop().time() - began < 5
        assert producer.statistics().accepted == last


async def test_a_ring_that_a_never_seen_topic_filled_is_delivered_to_eight_partitions(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rewriting the records for their partitions needs room beyond the limit (R10)."""
    name = topic(kafka, partitions=8)
    async with made(tmp_path, None) as producer:
        for number in range(100_000):
            try:
                producer.publish_nowait(name, value(number), key=b"%d" % (number % 100))
            except WalFullError:
                break
    async with made(tmp_path, kafka) as producer:
        await producer.flush(WITHIN_MS)
        assert (producer.statistics().delivered, producer.statistics().pending) == (number, 0)
    found = await read_topic(kafka.bootstrap_servers, name)
    assert {record.partition for record in found} == set(range(8))
    for key in {record.key for record in found}:
        of_key = [int((record.value or b"")[:6]) for record in found if record.key == key]
        assert of_key == list(range(int(key or b""), number, 100))


async def test_an_outage_takes_no_file_descriptors_however_large_the_ring_becomes(tmp_path: Path) -> None:
    """They are the service's, and delivery needs some for its connections when Kafka is back."""
    async with made(tmp_path, None, wal_max_bytes=1 << 30) as producer:
        await producer.publish("t", bytes(30_000))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(1000):
            await producer.publish("t", bytes(200_000))
        assert producer.statistics().bytes_used >= 1000 * 200_000
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5  # a connection or two that is being tried


class Full(Files):
    """A volume on which there is no room for the rest of a segment of 1 MiB, once it is full."""

    full = False

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if self.full and size > 300 << 10:
            raise WalFullError("no room")
        super().allocate(fd, offset, size)


async def test_a_record_after_one_whose_note_found_no_room_is_delivered(tmp_path: Path) -> None:
    """It finds a batch that was opened for the other one, while the batch before was in flight."""
    files = Full()
    with MockCluster() as cluster:
        cluster.create_topic("t")
        disk = Disk(str(tmp_path), files)
        async with RecoverableProducer(disk, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await producer.partitions_for("t")
            for number in range(40):
                producer.publish_nowait("t", value(number))
            await producer.flush(WITHIN_MS)
            cluster.round_trip_ms(200)
            before = producer.statistics()
            receipt = producer.publish_nowait("t", b"in flight")
            await until(lambda: producer.statistics().requests > before.requests)
            files.full = True
            with pytest.raises(WalFullError, match="no room"):
                producer.publish_nowait("t", b"v", context=1)
            assert producer.statistics().pending == 1
            await receipt.delivered(WITHIN_MS)
            files.full = False
            await producer.publish_nowait("t", b"v").delivered(WITHIN_MS // 10)


class Scarce(Files):
    """A volume on which the ring may take so many more bytes than it has."""

    def __init__(self, ring: Path, more: int) -> None:
        super().__init__()
        self.ring = ring
        self.most = self.taken + more

    @property
    def taken(self) -> int:
        return self.ring.stat().st_blocks * 512

    def volume(self, path: Path) -> tuple[int, int]:
        return self.most - self.taken, 1 << 30

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if self.taken + size > self.most:
            raise WalFullError("no room to reserve disk space")
        super().allocate(fd, offset, size)


async def test_batches_of_a_never_seen_topic_are_delivered_from_a_volume_without_room_for_a_whole_segment(
    tmp_path: Path,
) -> None:
    """A segment of 1 MiB takes disk space as it fills: the records of one batch need no more than a quarter of it."""
    async with made(tmp_path, None) as producer:
        for number in range(400):
            await producer.publish("t", value(number))
    with MockCluster() as cluster:
        cluster.create_topic("t")
        disk = Disk(str(tmp_path), Scarce(tmp_path / "0" / "ring", 500 << 10))
        async with RecoverableProducer(disk, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await producer.flush(WITHIN_MS // 3)
            assert producer.statistics().delivered == 400
