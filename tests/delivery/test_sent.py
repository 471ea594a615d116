"""What `send` returns: told as aiokafka tells, and not remembered once nobody can ask."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from aiorecover.delivery.reports import Reports
from aiorecover.delivery.sent import Sent
from aiorecover.errors import ClosedError
from aiorecover.wal.directory import Directory
from tests.delivery.stored import Stored, acknowledge, batch_of, metadata, store

pytestmark = pytest.mark.asyncio


def sent(reports: Reports, one: Stored) -> Sent:
    return Sent(reports, "t", one.sequence, one.place)


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def waiting(reports: Reports) -> int:
    return sum(len(waited.futures) for waited in reports._waiters.values())


async def test_whoever_awaits_it_is_told_the_metadata(directory: Directory, reports: Reports) -> None:
    stored = store(directory, "a", "b")
    futures = [sent(reports, one) for one in stored]
    gathered = asyncio.gather(*futures)
    await turns()
    await acknowledge(directory, reports, batch_of(*stored), 7)
    assert [(told.topic, told.partition, told.offset, told.timestamp) for told in await gathered] == [
        ("t", 2, 7, 1000),
        ("t", 2, 8, 1001),
    ]
    assert all(future.done() for future in futures)


async def test_one_that_is_only_looked_at_is_done_once_its_record_is_settled(
    directory: Directory, reports: Reports
) -> None:
    stored = store(directory, "a")
    future = sent(reports, stored[0])
    await acknowledge(directory, reports, batch_of(*stored), 7)
    await turns()
    assert future.result().offset == 7


async def test_one_that_is_made_after_the_record_is_settled_is_done_in_a_turn(
    directory: Directory, reports: Reports
) -> None:
    stored = store(directory, "a")
    reports.collect(batch_of(*stored), "t", metadata(7))
    await acknowledge(directory, reports, batch_of(*stored), 7)
    assert (await sent(reports, stored[0])).offset == 7


async def test_those_that_are_dropped_leave_nothing_in_memory(directory: Directory, reports: Reports) -> None:
    stored = store(directory, *[None] * 100)
    kept = [sent(reports, one) for one in stored][50:]
    await turns()
    assert waiting(reports) == 50
    del kept
    await turns()
    assert reports._waiters == {}


async def test_one_that_is_dropped_in_another_thread_is_forgotten_in_the_loops(
    directory: Directory, reports: Reports
) -> None:
    held = [sent(reports, store(directory, None)[0])]
    thread = threading.Thread(target=held.clear)
    thread.start()
    await asyncio.to_thread(thread.join)
    await turns()
    assert reports._waiters == {}


async def test_a_callback_is_called_though_the_future_was_dropped(directory: Directory, reports: Reports) -> None:
    stored = store(directory, None)
    told: list[int] = []
    sent(reports, stored[0]).add_done_callback(lambda done: told.append(done.result().offset))
    gc.collect()
    await turns()
    await acknowledge(directory, reports, batch_of(*stored), 7)
    await turns()
    assert told == [7]


async def test_one_that_somebody_waited_for_in_vain_is_forgotten_when_it_is_dropped(
    directory: Directory, reports: Reports
) -> None:
    future = sent(reports, store(directory, None)[0])
    await asyncio.wait({future}, timeout=0.01)
    assert waiting(reports) == 1
    del future
    gc.collect()
    await turns()
    assert reports._waiters == {}


@pytest.mark.parametrize("give_up", [Sent.cancel, lambda future: asyncio.wait_for(future, 0.01)])
async def test_one_that_is_given_up_is_forgotten_at_once(directory: Directory, reports: Reports, give_up: Any) -> None:
    future = sent(reports, store(directory, None)[0])
    given_up = give_up(future)
    if given_up is not True:
        with pytest.raises(TimeoutError):
            await given_up
    assert (reports._waiters, future.cancelled()) == ({}, True)


async def test_two_of_one_record_do_not_forget_each_other(directory: Directory, reports: Reports) -> None:
    stored = store(directory, None)
    first, second = sent(reports, stored[0]), sent(reports, stored[0])
    first.cancel()
    await turns()
    await acknowledge(directory, reports, batch_of(*stored), 7)
    assert (await second).offset == 7


async def test_a_stop_tells_those_who_wait_and_nobody_hears_of_those_that_were_dropped(
    directory: Directory, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    stored = store(directory, None, None)
    future = sent(reports, stored[0])
    sent(reports, stored[1])  # dropped in this very turn
    reports.close()
    with pytest.raises(ClosedError):
        await future
    await turns()
    gc.collect()
    assert caplog.records == []
