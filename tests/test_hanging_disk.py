"""A disk that hangs: no call waits for it longer than it says, nothing is lost, and once it answers all is well."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import ClosedError, DeliveryPendingError, RecoverableProducer
from aiorecover import opened as opened_module
from aiorecover.errors import WalIOError
from aiorecover.testing import ApiKey, MockCluster
from aiorecover.wal import sync as sync_module
from aiorecover.wal.directory import Directory
from aiorecover.wal.storage import StorageFile
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOO_LARGE = 10  # Kafka's answer
HANG = 20  # seconds: what takes longer hangs; every limit in here is below two


SLOW = 0.5  # seconds: more than a step of a stop that has no time left
STILL_LOCKED = "the directory is still locked"


class Disk:
    """Flushes hang from `hang` on until `answer`."""

    name = ""  # of the one file whose flushes hang; all of them

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.hanging = threading.Event()
        sync = StorageFile.sync

        def slow(file: StorageFile) -> None:
            if not self._answers.is_set() and file.path.name.endswith(self.name):
                self.hanging.set()
                assert self._answers.wait(60)
            sync(file)

        monkeypatch.setattr(StorageFile, "sync", slow)

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(opened_module, "THREAD_JOIN", 0.1)
    monkeypatch.setattr(sync_module, "SYNC_LIMIT", 0.2)
    made = Disk(monkeypatch)
    yield made
    made.answer()


@pytest.mark.parametrize("ended_by", ["stop", "cancel"])
async def test_a_start_on_it_ends_when_it_is_told_to(tmp_path: Path, disk: Disk, ended_by: str) -> None:
    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE)
    disk.hang()
    starting = asyncio.create_task(producer.start())
    await until(disk.hanging.is_set)
    async with asyncio.timeout(HANG):
        if ended_by == "stop":
            assert await producer.stop() == 0
            with pytest.raises(ClosedError, match="state=stopped"):
                await starting
        else:
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert producer.state == "created"
    disk.answer()
    await until(lambda: before.left_since() == [])  # a thread of ours ends with the disk's answer
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as another:
        assert another.wal_path == tmp_path / "wal" / "0"


async def test_who_waits_for_a_flush_of_it_is_told_and_the_record_is_there(tmp_path: Path, disk: Disk) -> None:
    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, fsync="always", stop_timeout_ms=100)
    await producer.start()
    disk.hang()
    async with asyncio.timeout(HANG):
        for call in (producer.publish("t", b"first"), producer.send_and_wait("t", b"second")):
            with pytest.raises(WalIOError, match="do not publish it again"):
                await call
    disk.answer()
    await producer.publish("t", b"third")
    disk.hang()
    async with asyncio.timeout(HANG):
        assert await producer.stop() == 3
    disk.answer()
    await until(lambda: before.left_since() == [])  # a thread of ours ends with the disk's answer
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as another:
        await until(lambda: another.statistics().recovered == 3)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_stop_without_time_has_let_go_of_the_directory_or_says_that_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    """Else the next start takes another one, and what is left waits until it is adopted."""
    let_go, close = threading.Event(), Directory.close

    def slow(directory: Directory) -> None:
        let_go.wait(SLOW if waits else HANG)
        close(directory)

    if not waits:
        monkeypatch.setattr(opened_module, "THREAD_JOIN", 0.1)
    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE)
    await producer.start()
    await producer.publish("t", b"left")
    monkeypatch.setattr(Directory, "close", slow)
    assert await producer.stop(timeout_ms=0) == 1
    monkeypatch.setattr(Directory, "close", close)
    assert (STILL_LOCKED in caplog.text) is not waits
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as another:
        assert another.wal_path == tmp_path / "wal" / ("0" if waits else "1")
    let_go.set()
    await until(lambda: before.left_since() == [])


async def test_a_letter_that_waits_for_it_is_stored_once_and_halts_nothing(tmp_path: Path, disk: Disk) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        cluster.create_topic("letters")
        async with RecoverableProducer(
            tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers, dead_letter_topic="letters"
        ) as producer:
            await (await producer.publish("t", b"first")).delivered(HANG * 1000)
            cluster.push_errors(ApiKey.PRODUCE, TOO_LARGE)
            disk.name = "dead"
            disk.hang()
            refused = await producer.publish("t", b"refused")
            with pytest.raises(DeliveryPendingError):
                await refused.delivered(timeout_ms=1000)
            await producer.publish("t", b"taken")
            assert disk.hanging.is_set()
            assert producer.state == "connected"
            disk.answer()
            await producer.flush(timeout_ms=HANG * 1000)
            counts = producer.statistics()
            assert (producer.state, counts.dead_lettered, counts.lanes_halted) == ("connected", 1, 0)
        assert [record.value for record in await read_topic(cluster.bootstrap_servers, "t")] == [b"first", b"taken"]
        assert [record.value for record in await read_topic(cluster.bootstrap_servers, "letters")] == [b"refused"]
