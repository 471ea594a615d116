"""System calls that fail: each flush and each write in turn, under every durability, and writes that are cut short.

libfiu stands between Python and the C library, so that it is the real code of `os.fdatasync` and `os.pwrite` that
finds the error.
"""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer, WalError, WalFullError, WalIOError
from aiorecover.cli.inspection import inspect
from aiorecover.testing import MockCluster
from tests.faults.fiu import FDATASYNC, FSYNC, PWRITE, SHORT_PWRITE, failing, shortening
from tests.faults.ledger import NOWHERE, SMALL, TOPIC, Ledger, told
from tests.faults.scene import libfiu, play

CLOSED_AT_ONCE = {**SMALL, "stop_timeout_ms": 0}
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EROFS": errno.EROFS}


# -- opening ---------------------------------------------------------------------------------------------------------


async def fail_opening(place: Path, point: str, number: int) -> None:
    """The Nth call of an opening fails, for every N: of a new directory, and of one with a backlog."""
    for backlog in (0, 30):
        passed_over = 0
        for nth in range(1, 50):
            ledger, wal = Ledger(), place / f"{backlog}-{nth}"
            if backlog:
                async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE) as producer:
                    await ledger.publish_all(producer, backlog)
            hits, refused = await fail_to_start(wal, point, number, nth)
            passed_over += hits > 0 and not refused
            async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE) as producer:
                assert producer.wal_path == wal / "0", "the failed opening still holds the lock"
                await ledger.publish_all(producer, 5)
                ledger.check_counts(producer)
            assert ledger.check_directory(wal) == []
            if not hits:
                assert nth > 2, "this call is never made"
                break
        else:
            raise AssertionError("more calls than anybody would think")
        # Nobody is refused for want of room for the process id in the lock, nor for the header of the lanes.
        without_room = 2
        assert passed_over == (without_room if number == errno.EDQUOT else 0), "the error was swallowed"


async def fail_to_start(wal: Path, point: str, number: int, nth: int) -> tuple[int, bool]:
    """How many calls have failed, and whether the start was refused."""
    producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE)
    refusal: WalError | None = None
    with failing(point, number, nth=nth, times=1) as fault:
        try:
            await producer.start()
        except WalError as error:
            refusal = error
    if refusal is None:
        await producer.stop()
        return fault.hits, False
    assert fault.hits == 1
    assert str(wal.parent) in told(refusal)
    assert producer.state == "created"
    if isinstance(refusal, WalIOError):
        assert refusal.errno == number
    else:
        assert (type(refusal), point) == (WalFullError, PWRITE)
    return fault.hits, True


@pytest.mark.parametrize(
    ("point", "name"),
    [(FDATASYNC, "EIO"), (FDATASYNC, "ENOSPC"), (FSYNC, "EROFS"), (PWRITE, "EIO"), (PWRITE, "EDQUOT")],
)
def test_an_opening_whose_nth_call_fails_is_refused_and_can_be_repeated(tmp_path: Path, point: str, name: str) -> None:
    play(fail_opening, tmp_path, point, ERRORS[name], env=libfiu())


# -- running ---------------------------------------------------------------------------------------------------------


async def fail_running(place: Path, fsync: str, point: str, number: int) -> None:
    """The Nth flush or write of a run fails, and all behind it, whoever asked for it."""
    reached = 0
    for nth in range(1, 9):
        reached += await fail_one_run(place / str(nth), fsync, point, number, nth)
    assert reached >= 4, "hardly any call was reached: nothing was tested"


async def fail_one_run(wal: Path, fsync: str, point: str, number: int, nth: int) -> int:
    ledger = Ledger()
    options = {**SMALL, "fsync": fsync}
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        producer = RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options)
        await producer.start()
        with failing(point, number, nth=nth) as fault:
            for _ in range(40):  # with pauses: the loops of the background come in between
                await asyncio.gather(*[ledger.publish(producer) for _ in range(4)])
                await asyncio.sleep(0.01)
                if fault.hits:
                    break
            if fault.hits:
                await check_poisoned(producer, ledger, number)
            await producer.flush(timeout_ms=20_000)  # delivery goes on (I7)
            ledger.check_counts(producer)
            await ledger.check_kafka(cluster.bootstrap_servers)
            assert await producer.stop() == 0
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as again:
            await ledger.publish_all(again, 30)
            await again.flush(timeout_ms=20_000)
            ledger.check_counts(again)
            assert again.statistics().missing == 0
        await ledger.check_kafka(cluster.bootstrap_servers)
    return min(1, fault.hits)


async def check_poisoned(producer: RecoverableProducer, ledger: Ledger, number: int) -> None:
    """I7: from the failure on nothing is accepted, whatever the system says of later calls."""
    async with asyncio.timeout(20):
        while producer.state != "failed":  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.005)
    before = producer.statistics()
    for _ in range(5):
        error = await ledger.publish(producer)
        assert isinstance(error, WalError), error
        if isinstance(error, WalIOError):
            assert error.errno == number
        await asyncio.sleep(0.02)
    after = producer.statistics()
    assert (after.accepted, after.checkpoints, after.state) == (before.accepted, before.checkpoints, "failed")


@pytest.mark.parametrize(("point", "name"), [(FDATASYNC, "EIO"), (PWRITE, "ENOSPC")])
@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_a_run_whose_nth_flush_or_write_fails_accepts_nothing_more_delivers_and_reopens(
    tmp_path: Path, fsync: str, point: str, name: str
) -> None:
    play(fail_running, tmp_path, fsync, point, ERRORS[name], env=libfiu())


async def fail_once(place: Path, fsync: str) -> None:
    """The flush after the one that failed is said to be well: the kernel calls lost pages clean."""
    ledger = Ledger()
    options = {**SMALL, "fsync": fsync, "checkpoint_interval_ms": 10, "stop_timeout_ms": 1000}
    producer = RecoverableProducer(place / "wal", bootstrap_servers=NOWHERE, **options)
    await producer.start()
    await ledger.publish_all(producer, 20)
    with failing(FDATASYNC, errno.EIO, times=1) as fault:
        await asyncio.gather(*[ledger.publish(producer) for _ in range(5)])
        async with asyncio.timeout(20):
            while not fault.hits:  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.005)
        await check_poisoned(producer, ledger, errno.EIO)
        calls = fault.calls
        await asyncio.sleep(0.2)
        assert fault.calls == calls, "it was flushed again: an answer that nobody may believe"
    assert await producer.stop() == len(ledger.accepted) + len(ledger.unsure)
    assert ledger.check_directory(place / "wal") == []


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_flush_that_failed_is_never_tried_again_in_the_same_life(tmp_path: Path, fsync: str) -> None:
    play(fail_once, tmp_path, fsync, env=libfiu())


async def refuse_group(place: Path) -> None:
    """``fsync="always"``: of many that wait at the same time none is released by a flush that failed."""
    ledger = Ledger()
    options = {**SMALL, "fsync": "always"}
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        producer = RecoverableProducer(place / "wal", bootstrap_servers=cluster.bootstrap_servers, **options)
        await producer.start()
        await asyncio.gather(*[ledger.publish(producer) for _ in range(100)])
        assert len(ledger.accepted) == 100
        await producer.flush(timeout_ms=20_000)  # else the first to fail may be the checkpoint that names the cluster
        with failing(FDATASYNC, errno.EIO):
            errors = await asyncio.gather(*[ledger.publish(producer) for _ in range(100)])
        assert len(ledger.accepted) == 100
        assert {type(error) for error in errors} == {WalIOError}
        assert ledger.unsure, "the test is about records that were stored and not flushed"
        await producer.flush(timeout_ms=20_000)
        await producer.stop()
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_no_publisher_of_a_group_is_released_by_a_flush_that_failed(tmp_path: Path) -> None:
    play(refuse_group, tmp_path, env=libfiu())


def kept_by(error: BaseException | None) -> int:
    """How many frames of the stack an error keeps alive, with all that stands in them."""
    count, trace = 0, error.__traceback__ if error is not None else None
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


async def refuse_for_long(place: Path) -> None:
    ledger = Ledger()
    async with RecoverableProducer(place / "wal", bootstrap_servers=NOWHERE, **CLOSED_AT_ONCE) as producer:
        with failing(FDATASYNC, errno.EIO):
            few = kept_by(await ledger.publish_until_refused(producer))
            assert few > 0
            for _ in range(100):
                last = await ledger.publish(producer)
            assert kept_by(last) <= few + 5


def test_refusals_of_a_failed_ring_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    play(refuse_for_long, tmp_path, env=libfiu())


# -- short writes ----------------------------------------------------------------------------------------------------


async def write_short(place: Path) -> None:
    """Every write takes only a part: lock and checkpoints are whole all the same."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster, shortening(SHORT_PWRITE):
        cluster.create_topic(TOPIC, partitions=2)
        for _ in range(5):
            options = {**SMALL, "name": "x" * 200}
            async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
                assert (wal / "0" / "lock").read_text() == f"{os.getpid():<20}\n"
                await ledger.publish_all(producer, 100)
                await producer.flush(timeout_ms=20_000)
                async with asyncio.timeout(20):
                    while producer.statistics().checkpoints < 2:
                        await ledger.publish_all(producer, 1)
                        await asyncio.sleep(0.01)
            (home,) = inspect(wal, 0)
            assert (home["error"], home["checkpoint_lost"]) == (None, False)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_writes_that_are_cut_short_are_continued(tmp_path: Path) -> None:
    play(write_short, tmp_path, env=libfiu())
