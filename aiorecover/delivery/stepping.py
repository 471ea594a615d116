"""A callback in a task of ours, step by step: so it shows whether it cancels the task itself, or somebody else does.

The one is an error of the callback, and the task goes on; the other ends the task, and the callback is called again.
"""

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any


class Steps:
    """Those of one callback, in the task that runs now."""

    __slots__ = ("_before", "_own", "_task", "closed")

    def __init__(self) -> None:
        """None was made yet."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task calls callbacks")
        self._task = task
        self._before = task.cancelling()
        self._own = 0
        self.closed = False  # our coroutine is not run any more, as its loop is gone: it must end

    def first(self, callback: Callable[[Any], Any], report: object) -> Any:
        """Call it; what it returns may have to be awaited (`rest`)."""
        try:
            return callback(report)
        finally:
            self._own = self._task.cancelling() - self._before

    async def rest(self, result: Awaitable[None]) -> None:
        """Await what it has returned."""
        await self._watched(_awaiting(result))

    @types.coroutine
    def _watched(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            before = self._task.cancelling()
            try:
                waits_for = step()
            except StopIteration:
                return
            finally:  # what uncancels takes back what came between two steps, as `asyncio.timeout` does
                self._own += max(0, self._task.cancelling() - before)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is the callback's to deal with
                self.closed = isinstance(error, GeneratorExit)
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, None)

    @property
    def cancels_itself(self) -> bool:
        """It has cancelled its own task."""
        return self._own > 0

    async def take_back(self) -> bool:
        """Undo that it has; whether somebody else has cancelled the task, too, or before."""
        if self._own:
            with suppress(asyncio.CancelledError):  # it comes where the task waits next
                await asyncio.sleep(0)
            for _ in range(min(self._own, self._task.cancelling() - self._before)):
                self._task.uncancel()
        return self._task.cancelling() > 0


async def _awaiting(result: Awaitable[None]) -> None:
    """A coroutine, whatever it is."""
    await result
