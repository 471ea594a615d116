"""A disk that hangs: no call waits for it longer than it says, nothing is lost, and once it answers all is well."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import ClosedError, DeliveryPendingError, RecoverableProducer
from aiorecover.testing import ApiKey, MockCluster
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOO_LARGE = 10  # Kafka's answer
HANG = 20  # seconds: what takes longer hangs; every limit in here is below two


class Disk:
    """Flushes hang from `hang` on until `answer`."""

    name = ""  # of the one file whose flushes hang; all of them

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.hanging = threading.Event()
        flush = os.fdatasync

        def slow(descriptor: int) -> None:
            if not self._answers.is_set() and Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(self.name):
                self.hanging.set()
                assert self._answers.wait(60)
            flush(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow)

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
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


async def test_publishers_do_not_wait_for_a_checkpoint_whose_flush_hangs(tmp_path: Path, disk: Disk) -> None:
    producer = RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, fsync_interval_ms=1, checkpoint_interval_ms=1, stop_timeout_ms=0
    )
    await producer.start()
    disk.hang()
    await producer.publish("t", b"0")
    await until(disk.hanging.is_set)
    for number in range(1, 10_000):  # some slots' worth would need a flush; these need none
        await producer.publish("t", b"%d" % number)
    assert producer.statistics().accepted == 10_000
    disk.answer()
    await producer.stop()
