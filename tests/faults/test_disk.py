"""Disks that are full, that fail, or that are read-only."""

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeliveryError, PermanentDeliveryError, RecoverableProducer, WalFullError, WalIOError
from aiorecover.ring.files import Files
from aiorecover.testing import ApiKey, MockCluster
from tests.faults.scene import play, small_disk
from tests.kafka.victim import Disk
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import NOWHERE, WITHIN_MS, Published, perfect

pytestmark = pytest.mark.timeout(120)

DISK = 24 << 20  # bytes
LIMIT = 2 * DISK  # of the ring
INVALID_RECORD = 87  # Kafka's code
FEW = 64 << 10  # bytes: a start needs some for its checkpoint
OPTIONS: dict[str, Any] = {"wal_max_bytes": LIMIT, "wal_min_free_bytes": 0, "stop_timeout_ms": 500}


# -- full --------------------------------------------------------------------------------------------------------------


@contextmanager
def filled(place: Path, left: int = 0) -> Iterator[None]:
    """Another program takes what is left of the disk, but for ``left`` bytes."""
    other = place / "other"
    descriptor = os.open(other, os.O_CREAT | os.O_WRONLY)
    found = os.statvfs(place)
    os.posix_fallocate(descriptor, 0, found.f_bavail * found.f_frsize - left)
    os.close(descriptor)
    yield
    other.unlink()


async def refused(producer: RecoverableProducer, published: Published, name: str) -> WalFullError:
    for _ in range(1_000_000):
        try:
            await published.publish(producer, name, 1)
        except WalFullError as error:
            return error
    raise AssertionError("it never gets full")


async def fill(place: Path, servers: str, name: str) -> None:
    """Fill the disk in an outage, again at a start, free it, and end the outage."""
    published, wal = Published(), place / "wal"
    async with RecoverableProducer(wal, bootstrap_servers=servers, **OPTIONS) as producer:
        await published.publish(producer, name, 100)  # its partitions are known from here on
        await producer.flush(WITHIN_MS)
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **OPTIONS) as producer:
        await published.publish(producer, name, 1000)
        with filled(place):
            error = await refused(producer, published, name)
            assert "disk" in str(error), error
            assert producer.statistics().full
            await refused(producer, published, name)  # once more: a flush frees what an earlier start left
            assert producer.statistics().accepted == len(published.accepted) - 100
        await published.publish(producer, name, 1000)  # accepted again as soon as there is room
        assert not producer.statistics().full
        with filled(place):
            await refused(producer, published, name)
    with filled(place, FEW):  # a start on a full disk delivers, and uses the room that this frees
        options = {**OPTIONS, "on_full": "wait"}
        async with RecoverableProducer(wal, bootstrap_servers=servers, **options) as producer:
            await producer.flush(WITHIN_MS)
            await published.publish(producer, name, 1000)
            await producer.flush(WITHIN_MS)
            found = producer.statistics()
            assert (found.delivered, found.pending, found.damaged) == (len(published.accepted) - 100, 0, 0)
    perfect(judge(published.accepted, await read_topic(servers, name)))


def test_a_full_disk_refuses_records_harms_none_that_it_has_and_takes_more_once_there_is_room(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    prefix = small_disk(tmp_path, f"size={DISK}")
    play(fill, tmp_path, kafka.bootstrap_servers, topic(kafka), prefix=prefix)


async def fill_before_first_contact(place: Path, servers: str, name: str) -> None:
    """Fill a small volume with records of a topic whose partitions are unknown, then reach Kafka."""
    accepted: list[Accepted] = []
    wal = place / "wal"

    async def publish_on(producer: RecoverableProducer) -> None:
        for number in range(DISK):
            key, value = b"%d" % (number % 1000), b"%d" % number + bytes(1000)
            receipt = await producer.publish(name, value, key=key)
            accepted.append(Accepted(receipt.record_id, key, value))

    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, stop_timeout_ms=500) as producer:
        with pytest.raises(WalFullError, match="the volume is full"):
            await publish_on(producer)
        assert producer.statistics().full
    async with RecoverableProducer(wal, bootstrap_servers=servers) as producer:
        await producer.flush(WITHIN_MS)
    perfect(judge(accepted, await read_topic(servers, name)))


def test_an_outage_from_the_first_start_on_that_fills_a_small_volume_is_delivered_to_many_partitions(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Each partition needs room of its own, of which the volume has only what the ring leaves free."""
    prefix = small_disk(tmp_path, "size=96m")
    play(fill_before_first_contact, tmp_path, kafka.bootstrap_servers, topic(kafka, 64), prefix=prefix)


# -- failing -----------------------------------------------------------------------------------------------------------


class FailingFiles(Files):
    """A disk on which flushes fail once it is broken."""

    broken = False

    def flush(self, fd: int) -> None:
        if self.broken:
            raise WalIOError(errno.EIO, "cannot flush the file to the disk: check the disk", "ring")
        super().flush(fd)


@pytest.mark.asyncio
@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_a_disk_whose_flush_fails_takes_no_more_and_what_was_accepted_is_delivered(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, fsync: str
) -> None:
    name, published, files = topic(kafka), Published(), FailingFiles()
    options: dict[str, Any] = {"fsync": fsync, "fsync_interval_ms": 100, "bootstrap_servers": kafka.bootstrap_servers}
    async with RecoverableProducer(Disk(str(tmp_path), files), **options) as producer:
        await published.publish(producer, name, 500)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(kafka.nodes[0].pause)
        await published.publish(producer, name, 500)
        files.broken = True
        with pytest.raises(WalIOError, match="check the disk"):
            await _publish_on(producer, published, name)
        await until(lambda: producer.state == "failed")
        await asyncio.sleep(0.01)  # the clock is looked at once a millisecond
        accepted = producer.statistics().accepted
        with pytest.raises(WalIOError):
            await published.publish(producer, name, 1)
        found = producer.statistics()
        assert (found.flush_failed, found.accepted) == (True, accepted)
        await asyncio.to_thread(kafka.nodes[0].resume)
        if fsync == "always":  # a batch with a record that no flush covers waits for the next start
            await until(lambda: producer.statistics().delivered >= 900)
        else:
            await producer.flush(WITHIN_MS)
    files.broken = False
    async with RecoverableProducer(tmp_path, **options) as producer:
        await published.publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
    verdict = await published.judged(kafka, name)
    assert not verdict.missing
    assert not verdict.out_of_order
    assert verdict.repeated == 0
    assert len(verdict.foreign) <= (fsync == "always"), "only a record whose own flush failed may be there"


@pytest.mark.asyncio
async def test_a_record_that_kafka_refuses_on_a_failed_disk_halts_its_lane_and_the_others_go_on(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published, files = topic(kafka, 3, config={"max.message.bytes": "20000"}), Published(), FailingFiles()
    options: dict[str, Any] = {"fsync_interval_ms": 100, "bootstrap_servers": kafka.bootstrap_servers}
    async with RecoverableProducer(Disk(str(tmp_path), files), stop_timeout_ms=500, **options) as producer:
        await published.publish(producer, name, 100)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(kafka.nodes[0].pause)
        await producer.publish(name, b"x" * 30_000, partition=0)
        await published.publish(producer, name, 100)
        files.broken = True
        await until(lambda: producer.state == "failed")
        await asyncio.to_thread(kafka.nodes[0].resume)
        with pytest.raises(PermanentDeliveryError, match="the disk has failed"):
            await producer.flush(WITHIN_MS)
        found = producer.statistics()
        assert (found.lanes_halted, found.pending < 101) == (1, True)
    files.broken = False
    async with RecoverableProducer(tmp_path, **options) as producer:
        await producer.flush(WITHIN_MS)
        assert producer.statistics().dead_lettered == 1
    perfect(await published.judged(kafka, name))


@pytest.mark.asyncio
@pytest.mark.parametrize("call", ["purge", "requeue"])
async def test_dead_letters_that_cannot_be_taken_out_of_a_failed_disk_do_not_stop_delivery(
    tmp_path: Path, call: str
) -> None:
    files = FailingFiles()
    with MockCluster() as cluster:
        for name in ("t", "away"):
            cluster.create_topic(name)
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "fsync_interval_ms": 60_000}
        async with RecoverableProducer(Disk(str(tmp_path), files), stop_timeout_ms=500, **options) as producer:
            await producer.partitions_for("away")
            letters = []
            for value in (b"1", b"2"):
                cluster.push_partition_errors("t", 0, ApiKey.PRODUCE, INVALID_RECORD)
                letters.append(await producer.publish("t", value))
                with pytest.raises(PermanentDeliveryError):
                    await letters[-1].delivered(WITHIN_MS)
            cluster.set_leader("away", 0, None)
            waits = await producer.publish("away", b"v")
            files.broken = True
            with pytest.raises(WalIOError, match="check the disk"):
                await getattr(producer.dead_letters, call)(letters[0].record_id)
            cluster.set_leader("away", 0, 1)
            await waits.delivered(WITHIN_MS)
            assert producer.statistics().dead_letters == 2
        files.broken = False
        async with RecoverableProducer(tmp_path, **options) as producer:
            assert await producer.dead_letters.purge("all") == 2


class HangingFiles(FailingFiles):
    """A disk on which a flush waits until it is known whether it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.known = threading.Event()
        self.known.set()

    def flush(self, fd: int) -> None:
        assert self.known.wait(60)
        super().flush(fd)


@pytest.mark.asyncio
async def test_records_without_a_partition_on_a_failed_disk_halt_and_their_waiters_get_an_error(
    tmp_path: Path,
) -> None:
    files, values = HangingFiles(), [b"%d" % number for number in range(20)]
    with MockCluster() as cluster:
        for name in ("known", "new"):
            cluster.create_topic(name, partitions=2)
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "fsync_interval_ms": 60_000}
        async with RecoverableProducer(Disk(str(tmp_path), files), stop_timeout_ms=500, **options) as producer:
            await (await producer.publish("known", b"v")).delivered(WITHIN_MS)
            cluster.broker_down()
            receipts = [await producer.publish("new", value, key=b"k") for value in values[:10]]
            files.known.clear()  # the flush of the rewriting hangs
            cluster.broker_up()
            await producer.partitions_for("new")
            receipts += [await producer.publish("new", value, key=b"k") for value in values[10:]]
            await producer.publish("known", b"v")
            files.broken = True
            files.known.set()
            async with asyncio.timeout(WITHIN_MS / 1000):
                with pytest.raises(PermanentDeliveryError, match="the disk has failed"):
                    await producer.flush()
                for receipt in receipts:
                    with pytest.raises(DeliveryError, match="the disk has failed"):
                        await receipt.delivered()
            found = producer.statistics()
            assert (found.delivered, found.pending, found.state) == (2, 20, "failed")
        files.broken = False
        async with RecoverableProducer(tmp_path, **options) as producer:
            await producer.flush(WITHIN_MS)
        assert [record.value for record in await read_topic(cluster.bootstrap_servers, "new")] == values


async def _publish_on(producer: RecoverableProducer, published: Published, name: str) -> None:
    while True:
        await published.publish(producer, name, 1)
        await asyncio.sleep(0.001)


# -- read-only ---------------------------------------------------------------------------------------------------------


async def open_read_only(place: Path, servers: str, name: str) -> None:
    """Start while the file system is read-only, and again when it is not."""
    published, wal = Published(), place / "wal"
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **OPTIONS) as producer:
        await published.publish(producer, name, 100)
    _remount(place, "ro")
    with pytest.raises(WalIOError, match="mount the file system writable") as caught:
        await RecoverableProducer(wal, bootstrap_servers=servers, **OPTIONS).start()
    assert caught.value.errno == errno.EROFS
    _remount(place, "rw")
    async with RecoverableProducer(wal, bootstrap_servers=servers, **OPTIONS) as producer:
        await producer.flush(WITHIN_MS)
        assert producer.statistics().delivered == 100
    perfect(judge(published.accepted, await read_topic(servers, name)))


def _remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


def test_a_read_only_file_system_is_refused_plainly_and_works_once_it_is_writable(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    prefix = small_disk(tmp_path, f"size={DISK}")
    play(open_read_only, tmp_path, kafka.bootstrap_servers, topic(kafka), prefix=prefix)
