"""A call that is cancelled at one of its waits."""

import asyncio
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

__all__ = ["HANG", "MOST", "Victim", "each_time"]

HANG = 20  # seconds: what takes longer hangs
MOST = 50  # waits of one call; more means that it never ends


class Victim:
    """One run of a call, cancelled at its ``at``-th wait, if it comes so far."""

    def __init__(self, at: int) -> None:
        self.reached = False
        self._at = at

    async def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the call's result; None when it was cancelled."""
        task = asyncio.create_task(self._driven(call))
        async with asyncio.timeout(HANG):
            await asyncio.wait({task})
        if task.cancelled():
            return None
        assert not self.reached, f"it was cancelled and went on: at={self._at}"
        return task.result()

    async def _driven(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await self._counted(call)

    @types.coroutine
    def _counted(self, call: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: call.send(None)  # noqa: E731
        for number in itertools.count(1):
            try:
                waited_for = step()
            except StopIteration as done:
                return done.value
            if number == self._at:
                self.reached = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # takes effect in the wait that begins now
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 - thrown into the call, as awaiting it would
                step = _throwing(call, error)
            else:
                step = lambda: call.send(None)  # noqa: E731
        return None


def _throwing(call: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: call.throw(error)


async def each_time(scenario: Callable[[Victim, int], Awaitable[None]]) -> None:
    """Play it with a cancellation at the first wait, the second …, until it was not reached any more."""
    for at in range(1, MOST):
        victim = Victim(at)
        await scenario(victim, at)
        if not victim.reached:
            assert at > 1, "it never waited"
            return
    raise AssertionError("it never ends by itself")
