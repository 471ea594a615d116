"""An event loop in a thread of its own: what is sent goes on while Spark's thread waits for rows."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Coroutine
    from types import TracebackType

__all__ = ["EventLoop"]

_T = TypeVar("_T")


class EventLoop:
    """Runs from the beginning of ``with`` to its end."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiorecover-sink", daemon=True)
        self._thread.start()
        return self

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Begin it; it is not waited for."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for its end."""
        return self.submit(work).result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
