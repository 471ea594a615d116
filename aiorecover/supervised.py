"""A coroutine that goes on until we end it, whatever others do to its task."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

log = logging.getLogger("aiorecover")

# Seconds. Whoever cancels all tasks mostly shuts the loop down: a new task would be destroyed in it.
RESTART_PAUSE = 1.0


class Supervised:
    """Runs a coroutine function as a task, and begins it again when somebody else ends that task.

    ``asyncio.all_tasks()`` finds our tasks too, and a hook that cancels "all tasks" must not end delivery in silence:
    `interrupted` is true for the pause, and then the coroutine is begun again and that is told of. One that returns has
    nothing more to do, and is left alone.
    """

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``name`` is the task's, behind "aiorecover-"."""
        self.interrupted = False
        self._name = name
        self._run = run
        self._context: Context | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self, context: Context | None = None) -> None:
        """Begin, unless it was ended; ``context`` is the task's, None takes a copy of the caller's."""
        if self._ended:
            return
        self._context = context
        self._begin()

    @property
    def running(self) -> bool:
        """It is at work, or will be begun again."""
        return self._task is not None and (self.interrupted or not self._task.done())

    def end(self) -> set[asyncio.Task[None]]:
        """Cancel it for good; the task to wait for, if there is one."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None or self._task.done():
            return set()
        self._task.cancel()
        return {self._task}

    def _begin(self) -> None:
        self.interrupted = False
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"aiorecover-{self._name}", context=self._context
        )
        self._task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if self._ended or (error is None and not task.cancelled()):
            return
        self.interrupted = True
        self._timer = task.get_loop().call_later(RESTART_PAUSE, self._begin_again, error)
        if error is not None:
            log.warning("the %s task failed: begun again in %.0f s", self._name, RESTART_PAUSE, exc_info=error)

    def _begin_again(self, error: BaseException | None) -> None:
        self._begin()
        if error is None:  # not earlier: in a loop that is being closed, nobody wants to know
            log.warning("the %s task was cancelled from outside %.0f s ago: begun again", self._name, RESTART_PAUSE)
