"""Read-only file systems: found at the start, and falling read-only under a running producer (ext4 after an error)."""

import asyncio
import errno
import subprocess
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer, WalIOError
from aiorecover.testing import MockCluster
from tests.faults.ledger import NOWHERE, SMALL, TOPIC, Ledger, told
from tests.faults.scene import loop_disk, play, small_disk, tool

CLOSED_AT_ONCE = {**SMALL, "stop_timeout_ms": 0}


def mount(*words: str) -> None:
    subprocess.run([tool("mount"), *words], check=True)


def unmount(place: Path) -> None:
    subprocess.run([tool("umount"), str(place)], check=True)


async def open_read_only(place: Path, backlog: int) -> None:
    """A start on a read-only file system is refused; remounted, everything goes on."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        if backlog:
            async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE) as producer:
                await ledger.publish_all(producer, backlog)
        mount("-o", "remount,ro", str(place))
        for _ in range(2):
            producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE)
            with pytest.raises(WalIOError) as caught:
                await producer.start()
            assert caught.value.errno == errno.EROFS
            assert "check the disk and the permissions: Read-only file system" in told(caught.value)
            assert str(wal) in str(caught.value.filename)
            assert producer.state == "created"
        mount("-o", "remount,rw", str(place))
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            assert producer.wal_path == wal / "0"
            await ledger.publish_all(producer, 10)
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


@pytest.mark.parametrize("backlog", [0, 40])
def test_a_start_on_a_read_only_file_system_is_refused_plainly_and_works_once_it_is_remounted(
    tmp_path: Path, backlog: int
) -> None:
    play(open_read_only, tmp_path, backlog, prefix=small_disk(tmp_path))


async def fall_read_only(place: Path, fsync: str) -> None:
    """ext4 gives up writing (``abort`` is what the kernel does after a fatal error)."""
    ledger, wal = Ledger(), place / "disk" / "wal"
    options = {**SMALL, "fsync": fsync}
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        producer = RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options)
        await producer.start()
        await ledger.publish_all(producer, 30)
        await asyncio.sleep(0.2)  # twenty intervals of the flush: what follows is about what comes later
        kept = len(ledger.accepted)
        mount("-o", "remount,abort", str(place / "disk"))
        async with asyncio.timeout(30):
            while producer.state != "failed":
                await ledger.publish(producer)
                await asyncio.sleep(0.005)
        if fsync == "always":
            assert len(ledger.accepted) == kept
        for _ in range(5):
            error = await ledger.publish(producer)
            assert isinstance(error, WalIOError)
            assert error.errno in {errno.EROFS, errno.EIO}
        cluster.broker_up()
        await producer.flush(timeout_ms=30_000)  # delivery goes on (I7)
        ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)
        assert await producer.stop() == 0
        unmount(place / "disk")
        mount("-o", "loop", str(place / "image"), str(place / "disk"))
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
            await ledger.publish_all(producer, 10)
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
            assert producer.statistics().missing == 0
        await ledger.check_kafka(cluster.bootstrap_servers, repeats=True)  # settle words were not written any more


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_file_system_that_falls_read_only_stops_accepting_and_everything_accepted_is_delivered(
    tmp_path: Path, fsync: str
) -> None:
    play(fall_read_only, tmp_path, fsync, prefix=loop_disk(tmp_path))


async def power_off(place: Path) -> None:
    """As above, and the process and its page cache are gone before anything was delivered."""
    ledger, wal = Ledger(), place / "disk" / "wal"
    options = {**SMALL, "fsync": "always"}
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **options)
        await producer.start()
        await ledger.publish_all(producer, 60)
        mount("-o", "remount,abort", str(place / "disk"))
        error = await ledger.publish_until_refused(producer)
        assert isinstance(error, WalIOError)
        assert len(ledger.accepted) == 60
        await producer.stop(timeout_ms=0)
        unmount(place / "disk")
        mount("-o", "loop", str(place / "image"), str(place / "disk"))
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
            await ledger.publish_all(producer, 10)
            await producer.flush(timeout_ms=20_000)
            assert producer.statistics().missing == 0
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_what_fsync_always_acknowledged_is_there_after_a_file_system_stopped_writing(tmp_path: Path) -> None:
    play(power_off, tmp_path, prefix=loop_disk(tmp_path))
