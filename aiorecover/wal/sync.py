"""Group commit: many publishers wait for one fdatasync.

A publisher is released only by an fdatasync that began after its store. So whoever comes while one is running waits
for the next one; at any moment at most one runs and one is wanted.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable

from aiorecover.errors import ClosedError, WalIOError

SYNC_LIMIT = 60.0  # seconds for one fdatasync: a disk that writes back gigabytes takes tens of them, one that hangs all


class GroupCommit:
    """Releases waiters by generations of ``sync`` calls."""

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        """``sync`` begins an fdatasync when called, and ends with it."""
        self._sync = sync
        self._waiting: list[asyncio.Future[None]] = []
        self._released: list[asyncio.Future[None]] = []  # as soon as the fdatasync that is running has ended
        self._patient: set[asyncio.Future[None]] = set()  # who waits for a disk that hangs, too
        self._task: asyncio.Task[None] | None = None
        self._limit: asyncio.TimerHandle | None = None

    async def durable(self, *, patient: bool = False) -> None:
        """Wait until everything stored before this call survives a power cut.

        ``patient``: as long as it takes, for who could only begin anew, and do it twice. All others wait no longer for
        an fdatasync than `SYNC_LIMIT` from its beginning.

        Raises:
            WalIOError: the fdatasync failed, or takes too long: the record may not survive a power cut.

        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if patient:
            self._patient.add(waiter)
            waiter.add_done_callback(self._patient.discard)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="aiorecover-group-commit")
            self._task.add_done_callback(self._ended)
        await waiter

    async def _run(self) -> None:
        # The next flush begins before those who were released can publish again, so a thousand of them go in two halves
        # by turns. A turn of the loop in between makes the groups whole (966 a flush, not 503), but then publishing and
        # flushing no longer overlap: 44,000 records/s instead of 62,000 (medians of 4 interleaved rounds).
        while self._waiting:
            self._released, self._waiting = self._waiting, []
            self._limit = asyncio.get_running_loop().call_later(SYNC_LIMIT, self._give_up)
            try:
                await self._sync()
            except asyncio.CancelledError:
                self._fail_all(_stopped())
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody waits for ever
                _fail(self._released, _not_flushed(error))
            else:
                for waiter in self._released:
                    if not waiter.done():
                        waiter.set_result(None)
                self._released = []
            finally:
                self._limit.cancel()

    def _give_up(self) -> None:
        """The disk hangs: tell who waits no longer. The flush goes on, and who comes now waits for one behind it."""
        _fail([waiter for waiter in (*self._released, *self._waiting) if waiter not in self._patient], _hangs())
        self._waiting = [waiter for waiter in self._waiting if not waiter.done()]
        self._limit = asyncio.get_running_loop().call_later(SYNC_LIMIT, self._give_up)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Cancelled before it even began, it could tell nobody; nor all of them where a signal handler raised."""
        if task is self._task and (self._released or self._waiting):  # another task: somebody has begun anew
            self._fail_all(_stopped())

    def _fail_all(self, error: Exception) -> None:
        waiting = [*self._released, *self._waiting]
        self._released, self._waiting = [], []
        _fail(waiting, error)

    async def close(self) -> None:
        """Wait for the running generation."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def _stopped() -> ClosedError:
    return ClosedError("stopped before the flush ended: the record is stored, but may not be durable")


def _not_flushed(error: Exception) -> Exception:
    """What they waited for is stored, whatever became of the flush: who published it again would have it twice."""
    if not isinstance(error, WalIOError):
        return error
    told = (
        "the record is stored, but may not survive a power cut; it is delivered all the same: do not publish it again"
    )
    return WalIOError(error.errno, f"{error.strerror}: {told}", error.filename)


def _hangs() -> WalIOError:
    told = f"the disk does not end a flush within {SYNC_LIMIT:.0f} s: the record is stored, but may not be durable yet"
    return WalIOError(
        errno.ETIMEDOUT, f"{told}; it is delivered all the same: do not publish it again, look at the disk"
    )


def _fail(waiters: "list[asyncio.Future[None]]", error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
