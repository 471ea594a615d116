"""Flushes (R6): sync points, then one fdatasync, one after the other, in a thread of their own.

`Flusher` decides and counts, `Keeper` is its thread and its clock. Nothing else calls fdatasync on the ring, but for
the opening (R4).
"""

import asyncio
import errno
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aiorecover.errors import ClosedError, WalError, WalIOError
from aiorecover.ring.checkpoint import Sources
from aiorecover.ring.format import BatchState, SegmentKind
from aiorecover.ring.segments import Batch, Segment

if TYPE_CHECKING:
    from aiorecover.ring.ring import Ring

Fsync = Literal["never", "interval", "always"]

NEEDED_S = 1.0  # under "never", between two flushes that reuse or cooling needs: the caller asked for none
TIDY_S = 1.0  # how often idle lanes are looked for
SHARED = 256  # callers that one flush releases and that may share the next; a larger group overlaps with it

_log = logging.getLogger("aiorecover")


@dataclass(slots=True)
class Job:
    """One flush, and what it covers: made on the loop, run in the keeper's thread."""

    number: int
    points: list[tuple[Batch, int, int, int]] = field(default_factory=list)  # batch, end, count, start of notes
    parked: list[Segment] = field(default_factory=list)
    sources: Sources = field(default_factory=dict)
    save: bool = False  # the checkpoint is due
    saved: bool = False
    started_at: int = 0  # Unix seconds
    since: int = 1  # Unix seconds: batches that were opened before have a durable sync point each


class Flusher:
    """Make the stores of a ring durable; `begin` and `complete` on the loop, `run` anywhere."""

    def __init__(self, ring: "Ring") -> None:
        self.ring = ring
        self.dirty: dict[Batch, None] = {}  # batches that may lack a sync point at their end
        self.begun = 0
        self.done = 0
        self.running: Job | None = None
        self.failed: WalIOError | None = None
        self.previous_at = 0  # when the last flush that succeeded began

    def begin(self) -> Job:
        """Begin a flush: return a job that covers what has been stored so far."""
        ring = self.ring
        if self.failed is not None:
            raise self.failed
        assert self.running is None, "one flush at a time"
        self.begun += 1
        job = Job(self.begun, started_at=ring.files.now_ms() // 1000)
        still: dict[Batch, None] = {}
        for batch in self.dirty:
            if batch.state is BatchState.OPEN:
                lane = batch.lane
                cursor = lane.published if batch.segment.kind is SegmentKind.PUBLISHED else lane.rewritten
                end, count, notes = cursor.progress()
                still[batch] = None
            else:
                end, count, notes = batch.end, batch.count, batch.notes
            if count and (end != batch.synced or notes != batch.synced_notes):
                job.points.append((batch, end, count, notes))
        job.since = min([self.previous_at or 1, *(batch.accepted_at for batch, *_ in job.points if batch.uncovered)])
        if ring.recovering and ring.doubt_since:
            job.since = min(job.since, ring.doubt_since)
        self.dirty = still
        job.parked, ring.parked = ring.parked, []
        job.sources = dict(ring.sources)
        job.save = ring.checkpoint_due or any(segment.sources for segment in job.parked)
        ring.checkpoint_due = False  # the next flush saves what is noted from now on
        self.running = job
        return job

    def run(self, job: Job) -> None:
        """Store the sync points, flush, and save the checkpoint where it is due. Blocks.

        Raises:
            WalIOError: the flush failed: what the kernel still has is not known.

        """
        ring = self.ring
        ring.directory.mark_flush(job.since)
        for batch, end, count, notes in job.points:
            batch.store_point(end, count, notes)
        ring.files.flush(ring.fd)
        ring.directory.mark_flush(ring.doubt_since if ring.recovering else 0)  # `recover` may not have looked yet
        if job.save:
            try:
                ring.save_checkpoint(job.sources)
                job.saved = True
            except WalError as error:  # the old one still holds; segments whose notes it lacks are not reused
                _log.warning("checkpoint_failed the checkpoint could not be written error=%s", error)

    def complete(self, job: Job, error: BaseException | None = None) -> None:
        """Free what the flush covers; after a failed one the ring is poisoned."""
        self.running = None
        if error is not None:
            if not isinstance(error, WalIOError):
                error = WalIOError(errno.EIO, f"the flush failed: check the disk, then stop and start again: {error!r}")
            self.failed = error
            return
        self.done = job.number
        self.previous_at = job.started_at
        for batch, end, _, _ in job.points:
            batch.covered = end
        if job.save and not job.saved:
            self.ring.checkpoint_due = True
        for segment in job.parked:
            if segment.sources and not job.saved:
                self.ring.parked.append(segment)
            else:
                self.ring.free(segment)
        self.ring.flushed()


class Keeper:
    """The thread that flushes, and when it does: each interval, and as soon as a caller waits."""

    def __init__(self, ring: "Ring", mode: Fsync = "interval", interval_s: float = 1.0) -> None:
        self.ring, self.mode, self.interval_s = ring, mode, interval_s
        self._flusher = ring.flusher
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="aiorecover-keeper", daemon=True)
        self._waiters: list[asyncio.Future[None]] = []  # wait for a flush that begins from now on
        self._covered: list[asyncio.Future[None]] = []  # wait for the one that runs
        self._wanted = False
        self._soon = False  # a flush begins with the loop's next turn
        self._began_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tidy: asyncio.TimerHandle | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin to flush; in the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self.ring.want_flush = self.want
        self.ring.beside = self.beside
        self._thread.start()
        if self.mode == "interval":
            self._timer = self._loop.call_later(self.interval_s, self._on_timer)
        self._tidy = self._loop.call_later(TIDY_S, self._on_tidy)

    async def stop(self) -> None:
        """Flush once more, unless the ring is poisoned, and end the thread."""
        try:
            if self._flusher.failed is None:
                await self.flushed()
        finally:
            self._stopping = True
            for timer in (self._timer, self._tidy):
                if timer is not None:
                    timer.cancel()
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def abandon(self, limit_s: float) -> None:
        """End the thread after the event loop has ended; blocks for ``limit_s`` at the most."""
        self._stopping = True
        self._jobs.put(None)
        self._thread.join(limit_s)

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, and stores nothing any more."""
        return not self._thread.is_alive()

    async def flushed(self) -> None:
        """Wait for a flush that begins from now on.

        Raises:
            WalIOError: it failed, or one before it.
            ClosedError: the keeper is stopped.

        """
        if self._stopping:
            raise ClosedError("the producer is stopped: make a new one")
        if self._flusher.failed is not None:
            raise self._flusher.failed
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        if self._flusher.running is None:
            self._begin_soon()
        await waiter

    def _begin_soon(self) -> None:
        """Begin a flush after the tasks that can run now, which share it."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._begin_shared)

    def _begin_shared(self) -> None:
        self._soon = False
        if self._waiters and self._flusher.running is None and self._flusher.failed is None:
            self._begin()

    def want(self) -> None:
        """Flush soon, since a segment waits to be reused or cooled."""
        self._wanted = True
        if self._flusher.running is None and self._flusher.failed is None and not self._stopping:
            wait = self._began_at + NEEDED_S - self._loop.time() if self.mode == "never" else 0.0
            if wait <= 0:
                self._begin()
            elif self._timer is None:
                self._timer = self._loop.call_later(wait, self._on_timer)

    def beside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run ``work`` in the keeper's thread, and ``then`` on the loop."""

        def both() -> None:
            try:
                if not self.ring.closing:
                    work()
            except WalError as error:
                _log.warning("space_kept the disk space of free segments could not be given back error=%s", error)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(then)

        self._jobs.put(both)

    def _on_timer(self) -> None:
        self._timer = None
        if self._stopping:
            return
        if self.mode == "interval":
            self._timer = self._loop.call_later(self.interval_s, self._on_timer)
        if self._flusher.running is None and self._flusher.failed is None and (self._wanted or self.ring.unflushed):
            self._begin()

    def _on_tidy(self) -> None:
        if not self._stopping:
            self.ring.tidy()
            self._tidy = self._loop.call_later(TIDY_S, self._on_tidy)

    def _begin(self) -> None:
        self._covered, self._waiters, self._wanted = self._waiters, [], False
        self._began_at = self._loop.time()
        job = self._flusher.begin()
        self._jobs.put(lambda: self._run(job))

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()

    def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            self._flusher.run(job)
        except BaseException as caught:  # noqa: BLE001 - whatever it is, the waiters get it and the ring stops
            error = caught
        try:
            self._loop.call_soon_threadsafe(self._complete, job, error)
        except RuntimeError:  # the loop is closed: no caller waits
            return

    def _complete(self, job: Job, error: BaseException | None) -> None:
        waiters, self._covered = self._covered, []
        self._flusher.complete(job, error)
        failed = self._flusher.failed
        if failed is not None:
            _log.error("flush_failed nothing more is accepted until the directory is opened again error=%s", failed)
            waiters += self._waiters
            self._waiters = []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None) if failed is None else waiter.set_exception(failed)
        if failed is not None:
            return
        if self._waiters and len(self._waiters) < len(waiters) <= SHARED:
            self._begin_soon()  # callers that were released now may want the next one, too
        elif self._waiters or (self._wanted and self.mode != "never"):
            self._begin()
