"""The one thread that may block on the disk: one job after the other, whatever becomes of those who wait."""

import asyncio
import threading
import time
import weakref
from typing import Any

import pytest

from aiorecover.errors import ClosedError, WalFullError
from aiorecover.wal import keeper as module
from aiorecover.wal.keeper import Keeper


@pytest.fixture
def keeper() -> Keeper:
    return Keeper("aiorecover-test")


@pytest.mark.asyncio
async def test_jobs_run_in_order_one_at_a_time_in_the_thread_of_that_name(keeper: Keeper) -> None:
    order: list[int] = []
    running = threading.Lock()

    def job(number: int) -> tuple[int, str]:
        assert running.acquire(blocking=False)
        time.sleep(0.0002)
        order.append(number)
        running.release()
        return number, threading.current_thread().name

    results = await asyncio.gather(*(keeper.submit(job, number) for number in range(100)))
    assert order == list(range(100))
    assert results == [(number, "aiorecover-test") for number in range(100)]
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.asyncio
async def test_what_a_job_was_given_is_not_kept_until_the_next_one_comes(keeper: Keeper) -> None:
    """It may be half a minute, or never; and a job may be given a checkpoint with all that it knows."""

    class Given:
        pass

    given, gone = Given(), threading.Event()
    weakref.finalize(given, gone.set)
    await keeper.submit(id, given)
    del given
    assert await asyncio.to_thread(gone.wait, 10), "the thread tells who waits first"
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.parametrize("error", [WalFullError("full"), ValueError("wrong"), SystemExit(3)])
@pytest.mark.asyncio
async def test_an_error_goes_to_who_waits_and_the_thread_goes_on(keeper: Keeper, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await keeper.submit(fail)
    assert caught.value is error
    assert await keeper.submit(lambda: "goes on") == "goes on"
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.asyncio
async def test_who_gives_up_waiting_disturbs_nobody(keeper: Keeper) -> None:
    gate = threading.Event()

    def fail() -> None:
        gate.wait(10)
        raise ValueError

    given_up: list[asyncio.Future[Any]] = [keeper.submit(gate.wait, 10), keeper.submit(fail)]
    for future in given_up:
        future.cancel()
    gate.set()
    assert await keeper.submit(lambda: "goes on") == "goes on"
    keeper.stop()
    assert keeper.join(10)


def test_a_loop_that_is_closed_disturbs_nobody(keeper: Keeper) -> None:
    gate = threading.Event()

    async def leave() -> None:
        keeper.submit(gate.wait, 10)

    async def stay() -> str:
        return await keeper.submit(lambda: "goes on")

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(stay()) == "goes on"
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.asyncio
async def test_an_end_that_there_is_no_memory_to_tell_of_is_told_later(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, tries, pauses = asyncio.get_running_loop(), [1, 2, 3], list[float]()
    tell = loop.call_soon_threadsafe

    def fails(*args: Any) -> None:
        if tries.pop() > 1:
            raise MemoryError
        tell(*args)

    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(loop, "call_soon_threadsafe", fails)
    assert await asyncio.wait_for(keeper.submit(lambda: "told"), 10) == "told"
    monkeypatch.undo()
    assert pauses == [module.MEMORY_PAUSE] * 2
    assert await keeper.submit(lambda: "goes on") == "goes on"
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.asyncio
async def test_stopping_ends_the_thread_behind_the_jobs_that_are_queued(keeper: Keeper) -> None:
    gate = threading.Event()
    first, second = keeper.submit(gate.wait, 10), keeper.submit(lambda: "done")
    keeper.stop()
    assert not keeper.join(0.05)  # a disk that hangs: whoever stops us does not wait for ever
    gate.set()
    assert await first
    assert await second == "done"
    assert keeper.join(10)


def test_a_hanging_disk_does_not_keep_the_process_from_ending(keeper: Keeper) -> None:
    assert keeper._thread.daemon
    keeper.stop()
    assert keeper.join(10)


@pytest.mark.asyncio
async def test_what_comes_behind_the_stop_is_refused_and_not_waited_for(keeper: Keeper) -> None:
    keeper.stop()
    ran: list[int] = []
    with pytest.raises(ClosedError):
        await keeper.submit(ran.append, 1)
    assert keeper.join(10)
    assert ran == []
