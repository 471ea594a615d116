"""One limit for three rings, from the outside: who is refused when, and that it goes on, with a stand-in for Kafka."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import RecoverableProducer, WalFullError
from aiorecover.delivery import backlog
from aiorecover.testing import MemoryDisk
from tests.stand_in import Broker, Sent, put_in_place
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

SLOT = 16 * 1024
SLOTS = 16
POISON = b"poison" + b"x" * 5000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=1, other=1)
    put_in_place(made, monkeypatch)
    return made


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {
        "wal_min_free_bytes": 0,
        "slot_bytes": SLOT,
        "wal_max_bytes": SLOTS * SLOT,
        "checkpoint_interval_ms": 20,
        "linger_ms": 1,
        "retry_backoff_ms": 1,
        "max_batch_size": 4096,
        **options,
    }
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value == POISON for record in records) else None


def value(number: int) -> bytes:
    return b"%06d" % number + b"v" * 1000


def value_or_poison(number: int) -> bytes:
    return POISON if number % 3 else value(number)


async def fill(
    producer: RecoverableProducer, first: int = 0, made: Callable[[int], bytes] = value
) -> tuple[int, WalFullError]:
    """Publish until it is refused; the next number, and the refusal."""
    for number in range(first, first + 10_000):
        try:
            await producer.publish("t", made(number), key=b"k")
        except WalFullError as error:
            return number, error
    raise AssertionError("nothing was refused")


async def test_what_is_full_and_the_limits_are_in_statistics(broker: Broker) -> None:
    broker.answers.clear()
    async with producer_on(MemoryDisk(), stop_timeout_ms=500) as producer:
        await producer.publish("t", value(0), key=b"k")
        found = producer.statistics()
        assert (found.full, found.wal_max_bytes, found.wal_min_free_bytes) == (False, SLOTS * SLOT, 0)
        _, error = await fill(producer, 1)
        assert str(error).startswith("the ring is full: wait for delivery to free space, or raise wal_max_bytes used=")
        found = producer.statistics()
        assert found.full
        assert found.bytes_ring + found.bytes_retry + found.bytes_dead == found.bytes_used
        assert found.bytes_ring == (SLOTS - 2) * SLOT
        assert found.bytes_allocated == SLOTS * SLOT
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: not producer.statistics().full)
        await producer.publish("t", b"again")


@pytest.mark.parametrize("slots", [SLOTS, SLOTS // 2])
async def test_a_start_that_finds_no_room_says_so_before_anybody_publishes(broker: Broker, slots: int) -> None:
    disk = MemoryDisk()
    broker.answers.clear()
    async with producer_on(disk, stop_timeout_ms=200) as producer:
        await fill(producer)
    async with producer_on(disk, stop_timeout_ms=500, wal_max_bytes=slots * SLOT) as producer:
        assert producer.statistics().full
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: not producer.statistics().full)


async def test_a_dead_ring_that_is_full_and_a_main_ring_behind_it_go_on_once_somebody_purges(broker: Broker) -> None:
    """The two wait for each other, and purging takes no room."""
    broker.refuses = refusing_poison
    published, purged = 0, 0
    async with producer_on(MemoryDisk()) as producer:
        for _ in range(4):
            published, _ = await fill(producer, published, value_or_poison)
            await until(lambda: producer.state == "halted")
            found = producer.statistics()
            assert SLOT <= found.bytes_dead <= SLOTS // 4 * SLOT
            assert found.bytes_allocated <= SLOTS * SLOT
            while producer.state == "halted" or producer.statistics().pending:
                purged += await producer.dead_letters.purge("all")
                await asyncio.sleep(0.01)
            await until(lambda: not producer.statistics().full)
        await producer.flush(timeout_ms=20_000)
        purged += await producer.dead_letters.purge("all")
    assert broker.values("t") == [value(number) for number in range(0, published, 3)]
    assert purged == sum(1 for number in range(published) if number % 3)


async def test_letters_that_fill_the_dead_ring_leave_the_other_lanes_their_room(broker: Broker) -> None:
    broker.refuses = refusing_poison
    async with producer_on(MemoryDisk(), on_full="wait") as producer:
        for _ in range(20):  # a quarter holds twelve of them
            await producer.publish("t", POISON, key=b"k")
        await until(lambda: producer.state == "halted")
        values = [value(number) for number in range(60)]
        for one in values:
            await (await producer.publish("other", one, key=b"k")).delivered(20_000)
        assert broker.values("other") == values
        await producer.dead_letters.purge("all")
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().dead_lettered == 20


@pytest.mark.parametrize("reserve", [True, False], ids=["with its reserve", "without"])
async def test_a_start_on_a_full_disk_delivers_what_is_there_and_accepts_once_there_is_room(
    broker: Broker, *, reserve: bool
) -> None:
    broker.answers.clear()
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        last, _ = await fill(producer)
    left = disk.after_process_death()
    if not reserve:
        for ring in ("0/retry", "0/dead"):
            left.file(ring).cut(0)
    left.full()
    async with producer_on(left) as producer:
        last, _ = await fill(producer, last)  # what fits the slots at hand
        assert producer.statistics().full
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: not producer.statistics().full)
        await producer.publish("t", POISON, key=b"k")
        await producer.publish("t", value(1), key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().dead_lettered == 1
        assert left.used <= (left.size or 0)
    assert broker.values("t") == [value(number) for number in [*range(last), 1]]


async def test_a_start_with_a_lower_limit_delivers_what_is_there_and_the_disk_has_the_rest_back(
    broker: Broker,
) -> None:
    broker.answers.clear()
    disk = MemoryDisk()
    async with producer_on(disk, wal_max_bytes=40 * SLOT, stop_timeout_ms=0) as producer:
        last, _ = await fill(producer)
    async with producer_on(disk) as producer:
        now, error = await fill(producer, last)
        assert now == last, "nothing more is accepted"
        assert "the ring is full: wait for delivery to free space, or raise wal_max_bytes used=" in str(error)
        assert producer.statistics().bytes_allocated > SLOTS * SLOT
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: producer.statistics().bytes_allocated <= SLOTS * SLOT)
        await until(lambda: not producer.statistics().full)
        await producer.publish("t", value(last), key=b"k")
    assert broker.values("t") == [value(number) for number in range(last + 1)]


async def test_a_backlog_that_is_delivered_says_how_far_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backlog, "LARGE", 100)
    monkeypatch.setattr(backlog, "SMALL", 10)
    monkeypatch.setattr(backlog, "LOOK", 0.01)
    caplog.set_level("INFO", "aiorecover")
    broker.answers.clear()
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        last, _ = await fill(producer)
        assert producer.statistics().records_left == last
        assert producer.statistics().seconds_left is None
    caplog.clear()
    async with producer_on(disk) as producer:
        await until(lambda: "a backlog is to be delivered records_left=" in caplog.text)
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: "the backlog is delivered" in caplog.text)
        found = producer.statistics()
        assert (found.records_left, found.seconds_left) == (found.pending + found.unread, 0.0)


async def test_while_a_backlog_is_delivered_it_is_told_how_long_the_rest_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LOOK", 0.04)
    broker.answers.clear()
    async with producer_on(MemoryDisk(), max_batch_size=1200) as producer:
        last, _ = await fill(producer)
        began, told = asyncio.get_running_loop().time(), list[tuple[float, float]]()
        while (now := producer.statistics()).pending:
            moment = asyncio.get_running_loop().time() - began
            if last // 4 < now.delivered < last // 2 and now.seconds_left is not None:
                told.append((moment, now.seconds_left))
            await until(lambda: broker.held > 0 or not producer.statistics().pending)
            broker.answers.set()
            await asyncio.sleep(0)
            broker.answers.clear()
            await asyncio.sleep(0.02)
        took = asyncio.get_running_loop().time() - began
    assert told
    moment, left = told[-1]
    assert (took - moment) / 3 < left < 3 * (took - moment)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
async def test_an_outage_takes_no_file_descriptors_however_large_the_ring_becomes(tmp_path: Path) -> None:
    """They are the service's, and delivery needs some for its connections when Kafka is back."""
    options: dict[str, Any] = {"slot_bytes": 1 << 16, "wal_min_free_bytes": 0, "stop_timeout_ms": 100}
    async with RecoverableProducer(tmp_path, bootstrap_servers="127.0.0.1:1", **options) as producer:
        await producer.publish("t", bytes(30_000))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(200):
            await producer.publish("t", bytes(30_000))
        assert producer.statistics().bytes_used >= 100 << 16
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5  # a connection or two that is being tried
