"""Records that other threads publish, on their way to the producer's loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from aiorecover.acceptor import TURN_CALLS
from aiorecover.receipt import Receipt

__all__ = ["Inbox"]


class Inbox:
    """One wake-up of the loop for as many records as there are.

    asyncio is woken by bytes in a socket that holds some 280, and a signal that finds it full has its handler not
    called: a wake-up for each record would hide SIGTERM behind a burst.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, publish: Callable[..., Receipt]) -> None:
        self._loop, self._publish = loop, publish
        self._records: deque[tuple[Future[Receipt], str, object, Any]] = deque()
        self._woken = False

    def put(self, topic: str, value: object, fields: Any) -> "Future[Receipt]":
        """Have the loop publish it; any thread may call this.

        Raises:
            RuntimeError: the loop is closed.

        """
        future: Future[Receipt] = Future()
        self._records.append((future, topic, value, fields))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take)
        return future

    def _take(self) -> None:
        self._woken = False  # first: who finds it set has put a record that is seen below
        for _ in range(TURN_CALLS):
            if not self._records:
                return
            future, topic, value, fields = self._records.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._publish(topic, value, **fields))
            except Exception as error:  # noqa: BLE001 - the caller's, in its own thread
                future.set_exception(error)
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._take)
