"""A disk that hangs: no call waits for it longer than it says, and nothing that was accepted is lost."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import ClosedError, RecoverableProducer
from aiorecover.testing import MockCluster
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

HANG = 20  # seconds: what takes longer hangs; every limit in here is below two


class Disk:
    """Flushes hang from `hang` on until `answer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.hanging = threading.Event()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._slow(getattr(os, name)))

    def _slow(self, flush: Callable[[int], None]) -> Callable[[int], None]:
        def slow(descriptor: int) -> None:
            if not self._answers.is_set():
                self.hanging.set()
                assert self._answers.wait(60)
            flush(descriptor)

        return slow

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
async def test_a_start_on_it_ends_when_it_has_to(tmp_path: Path, disk: Disk, ended_by: str) -> None:
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as earlier:
        await earlier.publish("t", b"0")
    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path / "wal", bootstrap_servers=NOWHERE)
    disk.hang()
    starting = asyncio.create_task(producer.start())
    await until(disk.hanging.is_set)
    async with asyncio.timeout(HANG):
        if ended_by == "stop":
            await producer.stop(0)
            with pytest.raises(ClosedError, match="stopped"):
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
        await until(lambda: another.statistics().recovered == 1)


async def test_publishing_and_delivery_go_on_and_stop_ends_in_its_time(tmp_path: Path, disk: Disk) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        options: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "fsync_interval_ms": 1,
            "stop_timeout_ms": 1000,
        }
        producer = RecoverableProducer(tmp_path, **options)
        await producer.start()
        await (await producer.publish("t", b"0")).delivered(HANG * 1000)  # the cluster is remembered by then
        disk.hang()
        await producer.publish("t", b"1")
        await until(disk.hanging.is_set)
        for number in range(2, 10_000):
            await producer.publish("t", b"%d" % number)
        await producer.flush(HANG * 1000)
        assert producer.statistics().delivered == 10_000
        async with asyncio.timeout(HANG):
            assert await producer.stop() == 0
        disk.answer()


async def test_stop_ends_in_its_time_while_a_directory_is_being_adopted(tmp_path: Path, disk: Disk) -> None:
    def adopting() -> bool:
        return any(task.get_name() == "aiorecover-adoption" for task in asyncio.all_tasks())

    async with RecoverableProducer(tmp_path / "old", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as gone:
        await gone.publish("t", b"0")
    with MockCluster() as cluster:
        cluster.create_topic("t")
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "stop_timeout_ms": 0}
        producer = RecoverableProducer(tmp_path / "wal", adoption_grace_ms=0, **options)
        await producer.start()
        await (await producer.publish("t", b"1")).delivered(HANG * 1000)  # connected by then
        disk.hang()
        (tmp_path / "old" / "0").rename(tmp_path / "wal" / "gone")
        await until(adopting)
        async with asyncio.timeout(HANG):
            assert await producer.stop() == 0
        assert adopting(), "it ends once the disk answers"
        disk.answer()
        await until(lambda: not adopting())
        async with RecoverableProducer(tmp_path / "wal", instance="gone", **options) as again:
            await again.flush(HANG * 1000)
        assert {record.value for record in await read_topic(cluster.bootstrap_servers, "t")} == {b"0", b"1"}
