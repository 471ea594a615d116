"""Every order in which publishers may come and flushes may end: nobody is released by a flush that began too early."""

import asyncio
from itertools import product

import pytest

from aiorecover.wal.sync import GroupCommit
from tests.protocols.oracle import ViolationError, demand

EVENTS = 7


class Flushes:
    """A disk whose flushes end when they are told to; time is the number of the event."""

    def __init__(self) -> None:
        self.now = 0
        self.running: list[tuple[int, asyncio.Future[None]]] = []
        self.covered = -1  # what was stored at this time, or before, is durable

    async def flush(self) -> None:
        demand(not self.running, "one flush at a time")
        began, ends = self.now, asyncio.get_running_loop().create_future()
        self.running.append((began, ends))
        await ends
        self.covered = max(self.covered, began)

    def end(self) -> None:
        for _, ends in self.running:
            ends.set_result(None)
        self.running.clear()


async def in_this_order(events: tuple[str, ...]) -> None:
    """``p``: a publisher stores and waits; ``f``: the flush that runs comes to its end."""
    disk = Flushes()
    commit = GroupCommit(disk.flush)
    waiting: list[tuple[int, asyncio.Task[None]]] = []

    async def publish(stored: int) -> None:
        await commit.durable()
        demand(disk.covered >= stored, "released by a flush that began after the store", events, stored, disk.covered)

    async def settle_down() -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    for disk.now, event in enumerate(events):
        if event == "p":
            waiting.append((disk.now, asyncio.create_task(publish(disk.now))))
        else:
            disk.end()
        await settle_down()
    for _ in range(3):  # the one that runs, and the one behind it
        disk.now += 1
        disk.end()
        await settle_down()
    demand(all(task.done() for _, task in waiting), "everybody is released", events)
    await asyncio.gather(*(task for _, task in waiting))


async def every_order() -> int:
    orders = list(product("pf", repeat=EVENTS))
    for events in orders:
        await in_this_order(events)
    return len(orders)


def test_nobody_is_released_by_a_flush_that_was_already_running() -> None:
    assert asyncio.run(every_order()) == 2**EVENTS


def test_a_flush_shared_with_one_that_was_already_running_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: GroupCommit) -> None:
        while self._waiting:
            await self._sync()
            released, self._waiting = self._waiting, []
            for waiter in released:
                waiter.set_result(None)

    monkeypatch.setattr(GroupCommit, "_run", run)
    with pytest.raises(ViolationError):
        asyncio.run(every_order())
