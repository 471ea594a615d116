"""The dead ring is read once behind a start: what damage took of it is told though nobody looks at the letters."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import RecoverableProducer
from aiorecover.delivery import dead_letters as dead_letters_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import stocktaking as module
from aiorecover.testing import MemoryDisk
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.storage import StorageFile
from aiorecover.wal.window import WINDOW
from tests.delivery.refusing import Broker, Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

SLOT = 1 << 16
LETTERS = 300  # of some 300 bytes: two slots


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=1)
    made.refuses = refusing
    monkeypatch.setattr(sessions_module, "Session", made.session())
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AFTER_START", 0.05)
    monkeypatch.setattr(module, "STEP", 20)
    monkeypatch.setattr(dead_letters_module, "READ_PAUSE", 0.01)


def refusing(records: list[Sent]) -> BaseException | None:
    poison = any(record.value.startswith(b"poison") for record in records)
    return PolicyViolationError("no such schema") if poison else None


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {"wal_min_free_bytes": 0, "slot_bytes": SLOT, "retry_backoff_ms": 1, "max_request_size": 1 << 15, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def value_of(number: int) -> bytes:
    return b"poison%04d" % number * 10


async def with_letters(disk: MemoryDisk | None = None) -> MemoryDisk:
    disk = disk or MemoryDisk()
    async with producer_on(disk) as producer:
        for number in range(LETTERS):
            await producer.publish("t", value_of(number), key=b"k")
        await producer.flush(timeout_ms=20_000)
    return disk


def rot(disk: MemoryDisk, *numbers: int) -> None:
    dead = disk.file("0/dead")
    for number in numbers:
        dead.damage(dead.live().index(value_of(number)) + 10, b"rot")


def is_under_way() -> bool:
    return any(task.get_name() == "aiorecover-stocktaking" for task in asyncio.all_tasks())


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("kafka", [True, False])
async def test_letters_that_rotted_are_told_some_moments_after_a_start_though_nobody_looks_at_them(
    broker: Broker, caplog: pytest.LogCaptureFixture, *, kafka: bool
) -> None:
    disk = await with_letters()
    rot(disk, 7, 100, 101, 250)
    caplog.clear()
    if not kafka:
        broker.answers.clear()
    async with producer_on(disk, stop_timeout_ms=100) as producer:
        assert producer.statistics().missing == 0
        await until(lambda: producer.statistics().missing == 4)
        await until(lambda: not is_under_way())
        told = [line for line in errors_in(caplog) if line.startswith("records are missing from the file dead ")]
        assert [line.split()[7] for line in told] == [f"letters_at_most={count}" for count in (1, 2, 1)]
        assert len([one async for one in producer.dead_letters.list()]) == LETTERS - 4
        assert producer.statistics().missing == 4, "each is told once"
    assert errors_in(caplog) == told


async def test_a_file_of_dead_letters_that_is_gone_is_told_though_nobody_looks_at_them(broker: Broker) -> None:
    disk = await with_letters()
    disk.file("0/dead").cut(0)
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().missing == LETTERS)


async def test_a_disk_that_hangs_there_holds_up_neither_a_start_nor_publishing_nor_delivery(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = await with_letters()
    rot(disk, 7)
    began, answers = asyncio.Event(), asyncio.Event()
    run = module.Stocktaking._fetch

    async def hanging(self: module.Stocktaking, buffer: memoryview) -> None:
        began.set()
        await answers.wait()
        await run(self, buffer)

    monkeypatch.setattr(module.Stocktaking, "_fetch", hanging)
    async with producer_on(disk) as producer:
        await began.wait()
        for number in range(100):
            await producer.publish("t", b"%d" % number, key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert (producer.statistics().delivered, producer.statistics().missing) == (100, 0)
        answers.set()
        await until(lambda: producer.statistics().missing == 1)


async def test_the_disk_is_read_in_the_keepers_thread_a_piece_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop finds in memory what it reads: what another thread has read right before."""
    disk = await with_letters()
    reads = list[tuple[bool, int, int]]()
    read_into = StorageFile.read_into

    def noted(self: StorageFile, buffer: memoryview, offset: int) -> int:
        if self.path.name == "dead":
            here = threading.current_thread() is threading.main_thread()
            reads.append((here, offset, len(buffer)))
        return read_into(self, buffer, offset)

    async with producer_on(disk):
        monkeypatch.setattr(StorageFile, "read_into", noted)
        await until(is_under_way)
        await until(lambda: not is_under_way())
    fetched = [(offset, offset + length) for here, offset, length in reads if not here]
    assert fetched
    assert max(end - start for start, end in fetched) <= WINDOW
    read_here = [(offset, offset + length) for here, offset, length in reads if here]
    assert len(read_here) >= 2  # of each slot
    for start, end in read_here:
        assert any(before <= start and end <= after for before, after in fetched)


async def test_who_asks_for_the_letters_meanwhile_takes_the_rest_of_the_stock_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.05)
    disk = await with_letters()
    rot(disk, 7, 250)
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().missing == 1)
        monkeypatch.setattr(module, "PAUSE", 60)
        listed = [letter.value async for letter in producer.dead_letters.list()]
        assert listed == [value_of(number) for number in range(LETTERS) if number not in {7, 250}]
        assert producer.statistics().missing == 2
        assert await producer.dead_letters.purge("all") == LETTERS - 2
        await until(lambda: producer.statistics().bytes_dead == 0)


async def test_somebody_who_cancels_all_tasks_does_not_end_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.supervised.RESTART_PAUSE", 0.05)
    monkeypatch.setattr(module, "PAUSE", 0.02)
    disk = await with_letters()
    rot(disk, 7, 250)
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().missing == 1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until(lambda: producer.statistics().missing == 2)
        await until(lambda: producer.state == "connected")


async def test_a_place_that_cannot_be_read_is_told_once_it_was_asked_for_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ_ATTEMPTS", "OUTAGE_ATTEMPTS"):
        monkeypatch.setattr(f"aiorecover.wal.window.{name}", 3)
    disk = await with_letters()
    dead = disk.file("0/dead")
    dead.fail_reads(dead.live().index(value_of(100)), 1)
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().missing > 1)
        await until(lambda: not is_under_way())
        listed = [letter async for letter in producer.dead_letters.list()]
        assert len(listed) == LETTERS - producer.statistics().missing


async def test_it_is_read_once_and_not_by_who_is_stopped_before_that(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = await with_letters()
    jobs = list[Callable[..., Any]]()
    submit = Keeper.submit

    def noted(self: Keeper, job: Callable[..., Any], *given: Any) -> Any:
        jobs.append(job)
        return submit(self, job, *given)

    monkeypatch.setattr(Keeper, "submit", noted)
    monkeypatch.setattr("aiorecover.background.FAILURE_PAUSE", 0.01)

    def reads() -> int:
        return sum(getattr(job, "__name__", "") == "read_into" for job in jobs)

    async with producer_on(disk):
        await until(lambda: reads() > 0)
        await until(lambda: not is_under_way())
        done = reads()
        await asyncio.sleep(0.2)
        assert reads() == done
    jobs.clear()
    monkeypatch.setattr(module, "AFTER_START", 60)
    async with producer_on(disk):
        await asyncio.sleep(0.1)
    assert reads() == 0
