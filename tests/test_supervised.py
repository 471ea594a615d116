"""A task of ours that somebody else ends is told of and begun again; one that we end, or that is done, is not."""

import asyncio
import logging
import re

import pytest

from aiorecover import supervised as module
from aiorecover.supervised import Supervised

pytestmark = pytest.mark.asyncio


class Loop:
    """A coroutine function that counts how often it was begun, and ends as it is told."""

    def __init__(self) -> None:
        self.begun = 0
        self.told = asyncio.Queue[Exception | None]()

    async def run(self) -> None:
        self.begun += 1
        error = await self.told.get()
        if error is not None:
            raise error


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSE", 0.01)


def interrupted(each: Supervised) -> bool:
    return each.interrupted


def named(name: str) -> asyncio.Task[None]:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
    return task


async def until_begun(loop: Loop, times: int) -> None:
    async with asyncio.timeout(10):
        while loop.begun < times:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("begun", [True, False])
async def test_cancelled_from_outside_it_is_interrupted_and_begun_again(
    caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    if begun:
        await until_begun(loop, 1)
    task = named("aiorecover-each")
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert interrupted(each)
    assert caplog.messages == [], "if the loop ends now, it is not begun again"
    await until_begun(loop, 1 + begun)
    assert not interrupted(each)
    (line,) = caplog.messages
    assert re.fullmatch(r"the each task was cancelled from outside \d s ago: begun again", line)
    await asyncio.wait(each.end())


async def test_an_error_that_it_does_not_expect_is_logged_with_its_traceback_and_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    loop.told.put_nowait(ValueError("odd"))
    await until_begun(loop, 2)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.exc_info is not None
    await asyncio.wait(each.end())


class FailingLog:
    """Whose every call raises."""

    def warning(self, *_: object, **__: object) -> None:
        raise OSError("no space left for the log")


@pytest.mark.parametrize("cancelled", [True, False])
async def test_it_is_begun_again_before_that_is_told_of(monkeypatch: pytest.MonkeyPatch, cancelled: bool) -> None:
    monkeypatch.setattr(module, "log", FailingLog())
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    await until_begun(loop, 1)
    if cancelled:
        named("aiorecover-each").cancel()
    else:
        loop.told.put_nowait(ValueError("odd"))
    await until_begun(loop, 2)
    assert not interrupted(each)
    await asyncio.wait(each.end())


async def test_what_returns_is_done(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    task = named("aiorecover-each")
    loop.told.put_nowait(None)
    await task
    await asyncio.sleep(0.03)
    assert (loop.begun, each.interrupted, caplog.messages) == (1, False, [])
    assert each.end() == set()


@pytest.mark.parametrize("interrupted", [False, True])
async def test_ended_by_us_it_stays_so(interrupted: bool, caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    await until_begun(loop, 1)
    task = named("aiorecover-each")
    if interrupted:
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
    assert each.end() == (set() if interrupted else {task})
    await asyncio.sleep(0.03)
    assert loop.begun == 1
    assert task.cancelled()


async def test_it_may_end_before_it_begins() -> None:
    assert Supervised("each", Loop().run).end() == set()


async def test_what_was_ended_is_not_begun_again_by_who_does_not_know() -> None:
    loop = Loop()
    each = Supervised("each", loop.run)
    each.start()
    await until_begun(loop, 1)
    await asyncio.wait(each.end())
    each.start()
    await asyncio.sleep(0)
    assert (loop.begun, each.running) == (1, False)
