"""Publishers that wait for room are served in the order in which they came, each in its time."""

import asyncio
from collections.abc import Callable

import pytest

from aiorecover.errors import WalFullError
from aiorecover.waiting import WaitingLine


class Room:
    """Places that come free one by one."""

    def __init__(self, line: WaitingLine) -> None:
        self.free = 0
        self.served: list[int] = []
        self._line = line

    def store(self, number: int) -> Callable[[], int]:
        def one() -> int:
            if self.free == 0:
                raise WalFullError("no room")
            self.free -= 1
            self.served.append(number)
            return number

        return one

    def more(self, count: int) -> None:
        self.free += count
        self._line.wake()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("portions", [[5], [1, 1, 1, 1, 1], [2, 3], [3, 0, 2]])
async def test_who_came_first_is_served_first_and_everybody_while_there_is_room(portions: list[int]) -> None:
    line = WaitingLine()
    room = Room(line)
    tasks = [asyncio.create_task(line.store(room.store(number), 30)) for number in range(5)]
    await settle()
    served = 0
    for portion in portions:
        room.more(portion)
        await settle()
        served += portion
        assert room.served == list(range(served))
    assert [await task for task in tasks] == [0, 1, 2, 3, 4]
    assert len(line) == 0


@pytest.mark.asyncio
async def test_who_is_cancelled_in_the_line_holds_up_nobody() -> None:
    line = WaitingLine()
    room = Room(line)
    tasks = [asyncio.create_task(line.store(room.store(number), 30)) for number in range(4)]
    await settle()
    tasks[0].cancel()
    tasks[2].cancel()
    room.more(2)
    await asyncio.wait(tasks)
    assert room.served == [1, 3]
    assert len(line) == 0


@pytest.mark.asyncio
async def test_the_time_limit_holds_for_the_first_and_for_those_behind() -> None:
    line = WaitingLine()
    room = Room(line)
    tasks = [asyncio.create_task(line.store(room.store(number), 0.05)) for number in range(3)]
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), WalFullError) for task in tasks)
    assert (len(line), room.served) == (0, [])


@pytest.mark.asyncio
async def test_room_that_came_right_at_the_limit_is_still_taken() -> None:
    line = WaitingLine()
    room = Room(line)
    room.free = 1
    assert await line.store(room.store(7), 0) == 7


@pytest.mark.asyncio
async def test_an_error_of_one_goes_to_that_one_and_the_next_is_served() -> None:
    line = WaitingLine()
    room = Room(line)

    def fails() -> int:
        message = "closed"
        raise RuntimeError(message)

    first = asyncio.create_task(line.store(fails, 30))
    second = asyncio.create_task(line.store(room.store(2), 30))
    await settle()
    room.more(1)
    with pytest.raises(RuntimeError, match="closed"):
        await first
    assert await second == 2


@pytest.mark.asyncio
async def test_everybody_finds_out_when_it_is_over() -> None:
    line = WaitingLine()

    def over() -> int:
        message = "stopped"
        raise RuntimeError(message)

    tasks = [asyncio.create_task(line.store(over, 30)) for _ in range(5)]
    await settle()
    line.wake_all()
    await asyncio.wait(tasks)
    assert {str(task.exception()) for task in tasks} == {"stopped"}
