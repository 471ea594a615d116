"""A disk that fails under the page cache (FUSE): flushes that lose what they were given, ranges that cannot be read."""

import asyncio
import errno
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer, WalIOError
from aiorecover.testing import MockCluster
from aiorecover.wal.storage import PAGE
from tests.faults.flaky import Disk, flaky
from tests.faults.ledger import NOWHERE, SLOT, SMALL, TOPIC, Ledger, told
from tests.faults.scene import fuse, play

CLOSED_AT_ONCE = {**SMALL, "stop_timeout_ms": 0}


async def lose_a_flush(place: Path) -> None:
    """The flush fails, the disk has not got the pages, the cache calls them clean, and the next flush is well."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        wal = disk.mount / "wal"
        producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **{**CLOSED_AT_ONCE, "fsync": "always"})
        await producer.start()
        await ledger.publish_all(producer, 40)
        disk.fail("fsync", errno.EIO, name="ring", times=1)
        errors = await asyncio.gather(*[ledger.publish(producer) for _ in range(10)])
        assert {type(error) for error in errors} == {WalIOError}
        assert producer.state == "failed"
        for _ in range(5):
            assert isinstance(await ledger.publish(producer), WalIOError)
        assert disk.hits() == 1
        await producer.stop()
        assert len(ledger.accepted) == 40
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as again:
            await ledger.publish_all(again, 40)
            await again.flush(timeout_ms=20_000)
            ledger.check_counts(again)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_what_fsync_always_acknowledged_is_on_the_disk_when_a_later_flush_lost_its_pages(tmp_path: Path) -> None:
    play(lose_a_flush, tmp_path, prefix=fuse())


# -- reading ---------------------------------------------------------------------------------------------------------


async def backlog(disk: Disk, ledger: Ledger, count: int) -> None:
    """So many records of a process that is gone."""
    wal = disk.mount / "wal"
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE) as producer:
        await ledger.publish_all(producer, count)


async def read_with_trouble(place: Path) -> None:
    """Every read of a part of the backlog fails for a while; what is in front of it is delivered meanwhile."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        await backlog(disk, ledger, 60)
        async with RecoverableProducer(
            disk.mount / "wal", bootstrap_servers=cluster.bootstrap_servers, **SMALL
        ) as producer:
            disk.fail("read", errno.EIO, name="ring", start=SLOT + 4096, end=SLOT + 8192)
            await ledger.publish_all(producer, 20)  # publishing does not read
            async with asyncio.timeout(20):
                while producer.statistics().delivered == 0 or disk.hits() < 2:  # noqa: ASYNC110 - looked at from outside
                    await asyncio.sleep(0.01)
            assert producer.statistics().delivered < 60
            disk.heal()
            await producer.flush(timeout_ms=30_000)
            ledger.check_counts(producer)
            figures = producer.statistics()
            assert (figures.recovered, figures.missing, figures.undeliverable) == (60, 0, 0)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_backlog_that_could_not_be_read_for_a_moment_is_delivered_whole(tmp_path: Path) -> None:
    play(read_with_trouble, tmp_path, prefix=fuse())


async def open_with_trouble(place: Path, name: str, start: int, number: int) -> None:
    """A file's page cannot be read while the directory is opened."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        await backlog(disk, ledger, 60)
        files = {path: path.read_bytes() for path in (disk.backing / "wal" / "0").iterdir() if path.name != "lock"}
        disk.fail("read", number, name=name, start=start, end=start + 4096)
        wal = disk.mount / "wal"
        for _ in range(2):
            with pytest.raises(WalIOError) as caught:
                await RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE).start()
            assert "cannot read the file: check the disk" in told(caught.value)
            assert caught.value.errno == number
            assert str(caught.value.filename).endswith(name)
        assert {path: path.read_bytes() for path in files} == files, "something was written by guess"
        disk.heal()
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            assert producer.wal_path == wal / "0"
            await ledger.publish_all(producer, 5)
        await ledger.check_kafka(cluster.bootstrap_servers)


@pytest.mark.parametrize(
    ("name", "start"),
    [("checkpoint", 0), ("checkpoint", 65536), ("ring", 0), ("ring", SLOT), ("ring", 2 * SLOT - 4096)],
)
def test_an_opening_that_cannot_read_a_checkpoint_or_a_header_guesses_nothing_and_can_be_repeated(
    tmp_path: Path, name: str, start: int
) -> None:
    play(open_with_trouble, tmp_path, name, start, errno.EIO, prefix=fuse())


# -- storing ---------------------------------------------------------------------------------------------------------

LAPS = 6
LAP = 100  # records of 1 KB: more than once round the eight slots that the backlog leaves
NO_SHRINKING = {**SMALL, "checkpoint_interval_ms": 3000}  # what was cut off and has grown again has new sectors
BAD = 2  # page of a slot: not one of its headers'


async def idle_slots(producer: RecoverableProducer) -> list[int]:
    """Once nothing waits: where the slots start that hold nothing, but for the one that is prepared already."""
    assert producer._opened is not None
    ring = producer._opened.directory.ring
    await producer.flush(timeout_ms=20_000)
    async with asyncio.timeout(10):
        while len(ring.live) > 1 or ring.wants_spare:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)
    return [index * SLOT for index, _ in ring.spares._free]


def rot(disk: Disk, slots: list[int], call: str = "read") -> None:
    """A page of each of them is bad, and not in memory any more."""
    for slot in slots:
        start = slot + BAD * PAGE
        disk.fail(call, errno.EIO, name="ring", start=start, end=start + PAGE, until_written=call == "read")
    (disk.mount / "wal" / "0" / "ring").open("rb").close()


async def store_on_bad_pages(place: Path) -> None:
    """On each lap, every slot that is used again has a page that the disk cannot read any more."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        await backlog(disk, ledger, LAP)
        async with RecoverableProducer(
            disk.mount / "wal", bootstrap_servers=cluster.bootstrap_servers, **NO_SHRINKING
        ) as producer:
            for _ in range(LAPS):
                slots, before = await idle_slots(producer), disk.hits()
                assert len(slots) >= 4
                rot(disk, slots)
                await ledger.publish_all(producer, LAP)
                assert disk.hits() >= before + len(slots), "no slot is used, or its page was still in memory"
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
            assert (producer.state, producer.statistics().missing) == ("connected", 0)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_page_that_cannot_be_read_any_more_is_written_anew_before_its_slot_is_used_again(tmp_path: Path) -> None:
    done = play(store_on_bad_pages, tmp_path, prefix=fuse())
    assert "pages of the ring could not be read and were written anew" in done.stderr


async def store_where_nothing_can_be_written(place: Path) -> None:
    """The pages that cannot be read cannot be written either: nothing more is accepted, and nobody is killed."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        await backlog(disk, ledger, LAP)
        wal = disk.mount / "wal"
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **NO_SHRINKING) as producer:
            slots = await idle_slots(producer)
            rot(disk, slots, "write")
            rot(disk, slots)
            error = await ledger.publish_until_refused(producer)
            assert isinstance(error, WalIOError)
            assert error.errno == errno.EIO
            assert producer.state == "failed"
            for _ in range(5):
                assert isinstance(await ledger.publish(producer), WalIOError)
        disk.heal()
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as again:
            await ledger.publish_all(again, LAP)
            await again.flush(timeout_ms=20_000)
            assert again.statistics().missing == 0
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_where_a_page_can_be_neither_read_nor_written_nothing_more_is_accepted(tmp_path: Path) -> None:
    play(store_where_nothing_can_be_written, tmp_path, prefix=fuse())
