"""The time of a stop is the shortest that was asked for, also for the step that is under way."""

import asyncio

import pytest

from aiorecover.deadline import Deadline

pytestmark = pytest.mark.asyncio

LONG = 10_000.0  # seconds
HANG = 20  # seconds


async def step_without_end(deadline: Deadline, *, delivering: bool = False, hurry: bool = False) -> None:
    async with deadline.step(delivering=delivering):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if hurry:
                deadline.bring_forward(0.0)


@pytest.mark.parametrize("delivering", [True, False])
async def test_a_step_that_is_under_way_ends_once_somebody_is_in_a_hurry(delivering: bool) -> None:
    deadline = Deadline()
    deadline.bring_forward(LONG)
    working = asyncio.create_task(step_without_end(deadline, delivering=delivering))
    await asyncio.sleep(0)
    deadline.bring_forward(0.01)
    async with asyncio.timeout(HANG):
        with pytest.raises(TimeoutError):
            await working


async def test_a_longer_limit_takes_nothing_back() -> None:
    deadline = Deadline()
    deadline.bring_forward(0.01)
    deadline.bring_forward(LONG)
    async with asyncio.timeout(HANG):
        for delivering in (True, False):
            with pytest.raises(TimeoutError):
                await step_without_end(deadline, delivering=delivering)


async def test_who_is_in_a_hurry_between_two_steps_or_behind_one_that_expired_changes_the_next_one() -> None:
    deadline = Deadline()
    deadline.bring_forward(LONG)
    async with deadline.step(delivering=True):
        pass
    deadline.bring_forward(0.0)
    async with asyncio.timeout(HANG):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await step_without_end(deadline, hurry=True)


async def test_without_time_a_step_of_closing_may_still_do_what_it_does_at_once() -> None:
    deadline = Deadline()
    deadline.bring_forward(0.0)
    async with deadline.step():
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await step_without_end(deadline, delivering=True)
