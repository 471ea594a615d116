"""A disk that fails under the page cache (FUSE): flushes that lose what they were given, ranges that cannot be read."""

import asyncio
import errno
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer, WalIOError
from aiorecover.testing import MockCluster
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
