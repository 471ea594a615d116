"""An event loop on virtual time: it runs the real coroutines of delivery, and dies with the disk.

Nothing waits: where no callback is ready, the clock of the model jumps to the next timer. Work for a thread runs
on the loop, a little later.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.model.disk import BadError, Crash, MemoryFiles


class VirtualLoop(asyncio.BaseEventLoop):
    """The clock is that of ``files``; a crash of its disk ends `run_until_complete`."""

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__()
        self.files = files
        self._selector = _Clock(files)
        self.set_exception_handler(lambda *_: None)  # tasks that die with the process are no news

    def time(self) -> float:
        """Seconds of the model's clock."""
        return self.files.clock_ms / 1000

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run ``func`` on the loop, a little later: a thread's work is not interrupted here."""
        del executor
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - handed on
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.files.rng.choice((0.0, 0.001)), run)
        return future

    def die(self) -> None:
        """End every coroutine where it stands; none of them can store anything any more."""
        for task in asyncio.all_tasks(self):
            with suppress(BaseException):
                task.get_coro().close()
        self.close()

    def _process_events(self, event_list: Any) -> None:
        del event_list

    def _write_to_self(self) -> None:
        pass


class _Clock:
    """Stands where a selector would wait for sockets."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files

    def select(self, timeout: float | None) -> list[Any]:
        disk = self._files.disk
        if disk.steps >= disk.crash_at:
            raise Crash
        if timeout is None:
            raise BadError("HANG: nothing will ever happen again")
        self._files.clock_ms += math.ceil(timeout * 1000)
        return []

    def close(self) -> None:
        pass
