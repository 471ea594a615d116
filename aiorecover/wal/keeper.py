"""The one thread of a producer: everything that may block on the disk runs here, one thing at a time.

One thread, because then there is one fdatasync at a time, and a checkpoint cannot overtake another. It is a daemon of
our own and not the loop's executor: a disk that hangs must not keep the process from ending.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from aiorecover.errors import ClosedError

MEMORY_PAUSE = 0.1  # seconds until an end that there was no memory to tell of is told again

T = TypeVar("T")
_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]


class Keeper:
    """Runs callables one after the other; the queue is bounded by its few callers, who each wait for their own."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._stopped = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        """Queue ``job(*args)``; the future ends on the calling loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._stopped:
            future.set_exception(ClosedError("the producer is stopped: nothing more is done for it"))
        else:
            self._jobs.put((job, args, future))
        return future

    def stop(self) -> None:
        """End the thread behind the jobs that are queued; jobs that come afterwards fail with `ClosedError`."""
        self._stopped = True
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; False when it still hangs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, args, future = job
            try:
                result = call(*args)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                self._tell(future, _fail, error)
            else:
                self._tell(future, _succeed, result)
            del job, call, args, future

    @staticmethod
    def _tell(future: "asyncio.Future[Any]", how: Callable[..., None], value: object) -> None:
        while True:
            try:
                future.get_loop().call_soon_threadsafe(how, future, value)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            except MemoryError:  # whoever waits can go on with nothing else: as long as it takes
                time.sleep(MEMORY_PAUSE)
            else:
                return


def _succeed(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
