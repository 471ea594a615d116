"""The system clock goes backwards, by a little and by decades, under everything that has to do with time."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer
from aiorecover.testing import MockCluster
from tests.faults.ledger import SMALL, TOPIC, Ledger
from tests.faults.scene import libfaketime, play
from tests.support.oracle import read_topic

HOUR = 3_600_000_000_000  # ns


class Clock:
    """Stands for `time.time_ns`; ``offset`` is what somebody did to the system's clock."""

    def __init__(self) -> None:
        self.offset = 0
        self._real = time.time_ns

    def __call__(self) -> int:
        return self._real() + self.offset


async def publish_and_watch(producer: RecoverableProducer, ledger: Ledger, count: int) -> int:
    """Publish without a pause; how many turns somebody else got on the loop meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    await ledger.publish_all(producer, count)
    task.cancel()
    return turns


@pytest.mark.asyncio
@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_a_clock_that_jumps_back_at_any_moment_delays_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    clock, ledger = Clock(), Ledger()
    monkeypatch.setattr(time, "time_ns", clock)
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        for life in range(2):  # the second one starts in the past of the first one
            options = {**SMALL, "fsync": fsync, "linger_ms": 20}
            async with RecoverableProducer(
                tmp_path, bootstrap_servers=cluster.bootstrap_servers, **options
            ) as producer:
                for back in (0, 1_000_000, HOUR, 24 * 365 * HOUR, 10):
                    clock.offset -= back
                    turns = await publish_and_watch(producer, ledger, 300 if fsync == "interval" else 30)
                    assert fsync == "always" or turns >= 1
                    await producer.flush(timeout_ms=20_000)  # nobody waits for the clock to catch up
                await checkpoint_follows(producer)
                ledger.check_counts(producer)
                assert producer.statistics().epoch == life + 1
        await ledger.check_kafka(cluster.bootstrap_servers)


async def checkpoint_follows(producer: RecoverableProducer) -> None:
    """A durable checkpoint covers everything: the slots before the last one are free."""
    async with asyncio.timeout(20):
        while producer.statistics().bytes_used > SMALL["slot_bytes"]:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_loop_that_only_publishes_gives_turns_while_the_clock_runs_backwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second before the last one: the count of calls alone must give the turns."""
    ledger, looks = Ledger(), iter(range(10**9))
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 - next(looks) * 10**9)
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            turns = await publish_and_watch(producer, ledger, 3000)
            assert turns >= 3000 // 256 - 1  # in its first turn the other one only begins to count
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)
        stamps = [record.timestamp_ms for record in await read_topic(cluster.bootstrap_servers, TOPIC)]
        assert min(stamps) >= 0


@pytest.mark.asyncio
async def test_a_machine_whose_clock_starts_in_1970_delivers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, began = Ledger(), time.time_ns()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - began + 10**9)
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await ledger.publish_all(producer, 100)
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


async def set_the_system_clock(place: Path) -> None:
    """The C library's own clock is set back, by what libfaketime reads from a file."""
    ledger, setting = Ledger(), Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
    real = time.time()
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        for _ in range(2):
            async with RecoverableProducer(
                place / "wal", bootstrap_servers=cluster.bootstrap_servers, **SMALL
            ) as producer:
                for days in (0, 1, 1000):
                    setting.write_text(f"-{days}d")
                    assert abs(real - time.time() - days * 86_400) < 1000, "libfaketime does not work here"
                    await ledger.publish_all(producer, 60)
                    await producer.flush(timeout_ms=20_000)
                await checkpoint_follows(producer)
                ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_system_clock_that_is_set_back_delays_loses_and_repeats_nothing(tmp_path: Path) -> None:
    setting = tmp_path / "clock"
    setting.write_text("-0d")
    faked = {"FAKETIME_TIMESTAMP_FILE": str(setting), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    play(set_the_system_clock, tmp_path, env={**libfaketime(), **faked})


async def set_the_system_clock_while_records_wait(place: Path) -> None:
    """Forwards by years, too: in a living process nothing grows old by that, nor in the next one."""
    ledger, setting = Ledger(), Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
    aging = {**SMALL, "delivery_timeout_ms": 60_000, "request_timeout_ms": 5_000, "stop_timeout_ms": 500}
    real = time.time()
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        for life in range(2):
            async with RecoverableProducer(
                place / "wal", bootstrap_servers=cluster.bootstrap_servers, **aging
            ) as producer:
                for days in (0, 1, -1, 1000, -1000):
                    setting.write_text(f"{days:+}d")
                    assert abs(time.time() - real - days * 86_400) < 1000, "libfaketime does not work here"
                    await ledger.publish_all(producer, 20)
                    await asyncio.sleep(0.3)  # checkpoints follow: with what they say of ages, too
                    assert producer.statistics().dead_lettered == 0
                if life == 1:
                    cluster.broker_up()
                    await producer.flush(timeout_ms=20_000)
                    ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_system_clock_that_jumps_both_ways_expires_nothing(tmp_path: Path) -> None:
    setting = tmp_path / "clock"
    setting.write_text("+0d")
    faked = {"FAKETIME_TIMESTAMP_FILE": str(setting), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    play(set_the_system_clock_while_records_wait, tmp_path, env={**libfaketime(), **faked})
