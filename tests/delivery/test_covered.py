"""Records that the position covers and nobody has settled: told of and settled, in their order, and never sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from aiorecover import DeliveryReport
from aiorecover import record as rec
from aiorecover import supervised as supervised_module
from aiorecover.delivery.covered import RUNS_MOST, Covered
from aiorecover.delivery.frames import waits_at
from aiorecover.delivery.reports import Reports
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.stream import Stream
from aiorecover.wal.suffix import Unfinished, Word
from tests.delivery.stored import store
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

EVERYTHING = (1 << 63) - 1


class Rig:
    """A ring that holds records of one epoch, and who tells of those up to ``up_to``."""

    def __init__(self, directory: Directory, on_delivery: Callable[[DeliveryReport], Awaitable[None] | None]) -> None:
        self.up_to = EVERYTHING
        self.rooms = count()
        self.room = 0
        self.reader = Stream(directory, rec.decode)
        self.reports = Reports(directory, on_delivery)
        self.undecodable: list[int] = []  # positions
        self.covered = Covered(self.reports, self.reader, lambda: self.up_to, self._on_room, self._note)

    def _note(self, entry: Placed, _: object) -> None:
        self.undecodable.append(entry[2])

    def _on_room(self) -> None:
        self.room = next(self.rooms) + 1

    def read(self) -> Run:
        for _ in range(3):  # the retry ring comes first
            run = self.reader.look(1 << 20)
            if run is not None:
                self.run = run
                return run
        raise AssertionError

    def waits(self) -> int:
        """Records of the run that are not settled."""
        return sum(waits_at(self.run.slot, place) for place in self.run.places)


@asynccontextmanager
async def rig(directory: Directory, on_delivery: Any = lambda _: None) -> AsyncIterator[Rig]:
    made = Rig(directory, on_delivery)
    try:
        yield made
    finally:
        await made.covered.close()
        made.reports.close()
        made.reader.close()


async def test_each_is_told_of_in_order_and_settled_behind_that(directory: Directory) -> None:
    told: list[DeliveryReport] = []
    waiting: list[int] = []

    def on_delivery(report: DeliveryReport) -> None:
        told.append(report)
        waiting.append(made.waits())

    async with rig(directory, on_delivery) as made:
        store(directory, *range(5))
        assert made.covered.take(made.read()) == 5
        assert (made.covered.added, made.covered.settled) == (5, 0)
        await until(lambda: made.covered.settled == 5)
    assert [(report.context, report.status) for report in told] == [(number, "delivered") for number in range(5)]
    assert {(report.topic, report.partition, report.offset) for report in told} == {("t", None, None)}
    assert (waiting, made.waits()) == ([5] * 5, 0)


async def test_nothing_behind_the_position_is_taken(directory: Directory) -> None:
    async with rig(directory) as made:
        store(directory, *range(5))
        run = made.read()
        made.up_to = run.position(2)
        assert made.covered.take(run) == 3
        rest = run.behind(3)
        assert rest is not None
        assert made.covered.take(rest) == 0
        made.up_to = 0
        assert made.covered.take(run) == 0
        await until(lambda: made.covered.settled == 3)
        assert (made.covered.added, made.waits()) == (3, 2)


async def test_those_that_were_settled_as_their_words_say_are_dismissed_and_not_told_of_again(
    directory: Directory,
) -> None:
    """A word of which nobody knows whether it counts is right, too: it is covered."""
    told: list[Any] = []
    async with rig(directory, lambda report: told.append(report.context)) as made:
        store(directory, *range(6))
        run = made.read()
        run.words = [Word.WAITING, Word.SETTLED, Unfinished(1, again=False), Word.WAITING, Word.AGAIN, Word.SETTLED]
        made.up_to = run.position(4)
        found = made.reader.found
        assert made.covered.take(run) == 5
        await until(lambda: made.covered.settled == 2)
        assert told == [0, 3]
        assert found - made.reader.found == 3
        assert made.waits() == 4  # nothing is stored where a word is right


async def test_where_all_are_settled_nothing_waits(directory: Directory) -> None:
    async with rig(directory) as made:
        store(directory, *range(3))
        run = made.read()
        run.words = [Word.SETTLED] * 3
        found = made.reader.found
        assert made.covered.take(run) == 3
        assert (made.covered.added, made.reader.found) == (0, found - 3)


async def test_when_too_many_wait_it_takes_no_more_until_there_is_room(directory: Directory) -> None:
    goes_on = asyncio.Event()

    async def on_delivery(_: DeliveryReport) -> None:
        await goes_on.wait()

    async with rig(directory, on_delivery) as made:
        store(directory, *range(2 * RUNS_MOST))
        runs = made.read()
        for number in range(RUNS_MOST):
            one = runs.pick([2 * number, 2 * number + 1])
            assert one is not None
            assert made.covered.take(one) == 2
        last = runs.pick([2 * RUNS_MOST - 1])
        assert last is not None
        assert made.covered.take(last) is None
        assert len(list(made.covered.taken)) == RUNS_MOST
        await asyncio.sleep(0.01)
        assert made.room == 0
        goes_on.set()
        await until(lambda: made.covered.settled == 2 * RUNS_MOST)
        assert made.room == RUNS_MOST
        assert list(made.covered.taken) == []


async def test_a_frame_that_is_no_record_is_not_in_kafka_and_left_to_others(directory: Directory) -> None:
    told: list[Any] = []
    async with rig(directory, lambda report: told.append(report.context)) as made:
        store(directory, 0)
        directory.ring.append(b"\xc1no record", None)
        store(directory, 2)
        taken = 0
        while taken < 3:
            taken += made.covered.take(made.read()) or 0
        await until(lambda: made.covered.settled == 2)
        assert (made.undecodable, directory.pending()) == ([fmt.position(directory.ring.epoch, 2)], 1)
    assert told == [0, 2]


async def test_cancelled_while_it_tells_it_begins_again_with_the_run_that_it_was_at(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 0.01)
    told: list[Any] = []

    async def on_delivery(report: DeliveryReport) -> None:
        told.append(report.context)
        if len(told) == 4:
            await asyncio.Event().wait()

    async with rig(directory, on_delivery) as made:
        store(directory, *range(6))
        run = made.read()
        for numbers in (range(2), range(2, 6)):
            part = run.pick(numbers)
            assert part is not None
            made.covered.take(part)
        await until(lambda: len(told) == 4)
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-covered")
        task.cancel()
        await asyncio.wait({task})
        assert interrupted(made)
        assert (made.covered.settled, made.waits()) == (2, 4)
        await until(lambda: made.covered.settled == 6)
        assert not interrupted(made)
    assert told == [0, 1, 2, 3, 2, 3, 4, 5]


def interrupted(made: Rig) -> bool:
    return made.covered.interrupted


async def test_closed_it_leaves_what_was_not_told_of_to_the_next_start(directory: Directory) -> None:
    async def on_delivery(_: DeliveryReport) -> None:
        await asyncio.Event().wait()

    async with rig(directory, on_delivery) as made:
        store(directory, *range(3))
        made.covered.take(made.read())
        await asyncio.sleep(0.01)
    assert (made.covered.settled, made.waits()) == (0, 3)
