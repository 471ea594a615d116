"""Every order in which publishers may come and give up and flushes may end: nobody is told of one that began too early.

Nor of one that failed, but for whom it was to cover.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from aiorecover.wal.sync import GroupCommit
from tests.protocols.oracle import ViolationError, demand

EVENTS = 6
Run = Callable[[GroupCommit], object]


class FailedError(Exception):
    """A flush failed; when it began."""

    def __init__(self, began: int) -> None:
        super().__init__(began)
        self.began = began


class Flushes:
    """A disk whose flushes end when they are told to; time is the number of the event."""

    def __init__(self) -> None:
        self.now = 0
        self.running: list[tuple[int, asyncio.Future[None]]] = []
        self.covered = -1  # what was stored at this time, or before, is durable
        self.tried = -1  # or a flush that was to make it so has failed

    async def flush(self) -> None:
        demand(not self.running, "one flush at a time")
        began, ends = self.now, asyncio.get_running_loop().create_future()
        self.running.append((began, ends))
        await ends
        self.covered = max(self.covered, began)

    def end(self, *, fails: bool = False) -> None:
        for began, ends in self.running:
            self.tried = began
            if fails:
                ends.set_exception(FailedError(began))
            else:
                ends.set_result(None)
        self.running.clear()


class Publishers:
    """Who stores, and waits until that is durable."""

    def __init__(self, disk: Flushes) -> None:
        self._disk = disk
        self._commit = GroupCommit(disk.flush)
        self._tasks: list[tuple[int, asyncio.Task[None]]] = []  # and when they stored
        self._gone: set[asyncio.Task[None]] = set()

    def publish(self) -> None:
        stored = self._disk.now
        self._tasks.append((stored, asyncio.create_task(self._wait(stored))))

    async def _wait(self, stored: int) -> None:
        try:
            await self._commit.durable()
        except FailedError as error:
            demand(error.began >= stored, "told of a failed flush that began after the store", stored, error.began)
        else:
            covered = self._disk.covered
            demand(covered >= stored, "released by a flush that began after the store", stored, covered)

    def give_up(self) -> None:
        """The one who has waited for the longest."""
        task = next((task for _, task in self._tasks if not task.done()), None)
        if task is not None:
            task.cancel()
            self._gone.add(task)

    def check(self) -> None:
        """Nobody waits longer than for the first flush that began after the store, or is disturbed by who gives up."""
        for stored, task in self._tasks:
            demand(task.done() or stored > self._disk.tried, "told by the first flush that may", stored)
            demand(not task.done() or task.cancelled() == (task in self._gone), "only who gives up goes", stored)
            if task.done() and not task.cancelled():
                task.result()

    def all_told(self) -> bool:
        return all(task.done() for _, task in self._tasks)

    async def close(self) -> None:
        """Leave nothing behind, whatever was broken."""
        running = self._commit._task
        tasks = [*(task for _, task in self._tasks), *([] if running is None else [running])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_this_order(events: tuple[str, ...]) -> None:
    """``p``: a publisher stores and waits; ``c``: one gives up; ``f``, ``x``: the flush that runs ends, or fails."""
    disk = Flushes()
    publishers = Publishers(disk)

    async def settle_down() -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        publishers.check()

    happens: dict[str, Callable[[], None]] = {
        "p": publishers.publish,
        "c": publishers.give_up,
        "f": disk.end,
        "x": partial(disk.end, fails=True),
    }
    try:
        for disk.now, event in enumerate(events):
            happens[event]()
            await settle_down()
        for _ in range(3):  # the one that runs, and the one behind it
            disk.now += 1
            disk.end()
            await settle_down()
        demand(publishers.all_told(), "everybody is released")
    finally:
        await publishers.close()


async def every_order() -> int:
    orders = list(product("pcfx", repeat=EVENTS))
    for events in orders:
        try:
            await in_this_order(events)
        except Exception as error:
            raise ViolationError(f"{error} [{''.join(events)}]") from error
    return len(orders)


def test_nobody_is_told_of_a_flush_that_was_already_running() -> None:
    assert asyncio.run(every_order()) == 4**EVENTS


async def shared_with_one_that_was_already_running(commit: GroupCommit) -> None:
    while commit._waiting:
        try:
            await commit._sync()
        except FailedError as error:
            tell(commit._waiting, error)
        else:
            tell(commit._waiting)
        commit._waiting = []


async def failed_for_who_came_meanwhile(commit: GroupCommit) -> None:
    while commit._waiting:
        released, commit._waiting = commit._waiting, []
        try:
            await commit._sync()
        except FailedError as error:
            released, commit._waiting = [*released, *commit._waiting], []
            tell(released, error)
        else:
            tell(released)


async def failed_for_nobody(commit: GroupCommit) -> None:
    while commit._waiting:
        released, commit._waiting = commit._waiting, []
        await asyncio.gather(commit._sync(), return_exceptions=True)
        tell(released)


async def tried_again(commit: GroupCommit) -> None:
    """A kernel that lost pages calls them clean: the second flush says nothing of what the first one was to cover."""
    while commit._waiting:
        released, commit._waiting = commit._waiting, []
        try:
            await commit._sync()
        except FailedError:
            commit._waiting = [*released, *commit._waiting]
        else:
            tell(released)


async def told_though_gone(commit: GroupCommit) -> None:
    while commit._waiting:
        released, commit._waiting = commit._waiting, []
        try:
            await commit._sync()
        except FailedError as error:
            tell(released, error)
        else:
            for waiter in released:
                waiter.set_result(None)


def tell(waiters: "list[asyncio.Future[None]]", error: FailedError | None = None) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None) if error is None else waiter.set_exception(error)


FAULTS = [
    shared_with_one_that_was_already_running,
    failed_for_who_came_meanwhile,
    failed_for_nobody,
    tried_again,
    told_though_gone,
]


@pytest.mark.parametrize("run", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_flush_that_tells_the_wrong_ones_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCommit, "_run", run)
    with pytest.raises(ViolationError):
        asyncio.run(every_order())
