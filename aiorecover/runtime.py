"""The parts of a started producer: directory, ring, keeper, delivery, and the coroutines beside them."""

import asyncio
import errno
import logging
import time
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import Any

from aiorecover.adoption import Adoption
from aiorecover.config import Config
from aiorecover.errors import ClosedError, DeliveryPendingError, RecoverError, WalError, WalIOError
from aiorecover.kafka.delivery import Delivery, DeliveryOptions, cancel_all
from aiorecover.kafka.expiry import Expiry
from aiorecover.kafka.lanes import LaneState
from aiorecover.kafka.router import DEAD_TOPIC
from aiorecover.manifests import Manifests
from aiorecover.reporting import Reporter
from aiorecover.ring.backlog import Recovered, fill_lanes, recover
from aiorecover.ring.directory import Directory, Noted
from aiorecover.ring.flush import Keeper
from aiorecover.ring.lane import DEAD
from aiorecover.ring.opening import open_ring
from aiorecover.ring.ring import Limits, Ring
from aiorecover.ring.segments import Segment
from aiorecover.ring.writer import FIRST_SEQUENCE, Writer
from aiorecover.statistics import Statistics

OWNER_S = 1.0  # between two looks at the paths of the directory's files
NOTE_S = 1.0  # between two notes of how it goes
MOST_NOTED, NOTED_CHARS = 8, 500  # troubles, and of each
CLOSE_S = 2.0  # that a slow disk may take to let go of the directory

log = logging.getLogger("aiorecover")


class Runtime:
    """A producer's parts, opened.

    Attributes:
        recovered: records of earlier epochs that were found waiting.
        adoption: of directories whose processes are gone; None: ``adoption_grace_ms`` is None.
        manifests: None: ``audit_topic`` is None.

    """

    def __init__(self, config: Config, directory: Directory, ring: Ring, segments: list[Segment]) -> None:
        """Put the parts together; `Runtime.open` has read the heads."""
        self.config, self.directory, self.ring = config, directory, ring
        self.writer = Writer(ring.producer_id, ring.epoch, self._find)
        ring.next_sequence = self.writer.next_sequence
        self.keeper = Keeper(ring, config.fsync, config.fsync_interval_ms / 1000)
        self.delivery = Delivery(ring, self.writer, _delivery_options(config, ring.producer_id), self.keeper.flushed)
        call = config.on_delivery
        self.reporter = None if call is None else Reporter(call, self.delivery.throttle)
        if self.reporter is not None:
            self.delivery.report = self.reporter.report
        self.recovered = 0
        self.lanes_filled = asyncio.Event()  # what earlier lives left is in the lanes
        self.adoption: Adoption | None = None
        self.manifests: Manifests | None = None
        if config.audit_topic is not None:
            self.manifests = Manifests(self.delivery, config.audit_topic, config.checkpoint_interval_ms / 1000)
        self._stopping: asyncio.Timeout | None = None
        self._segments = segments
        self._recovery: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, config: Config) -> "Runtime":
        """Take the directory and read its heads, in a thread.

        Raises:
            WalError: the directory cannot be used; the message says why and what to do.

        """
        opening = asyncio.ensure_future(asyncio.to_thread(cls._open, config))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(let_go)  # the thread goes on
            raise

    @classmethod
    def _open(cls, config: Config) -> "Runtime":
        wait_s = config.full_timeout_ms / 1000 if config.instance is not None else 0.0
        directory = Directory.take(config.wal_dir, files=config.files, instance=config.instance, wait_s=wait_s)
        try:
            limits = Limits(config.wal_max_bytes, config.wal_min_free_bytes, config.max_batch_size)
            ring = Ring(directory, limits)
            segments = open_ring(ring, name=config.name, guarantee=config.guarantee)
        except BaseException:
            directory.close()
            raise
        return cls(config, directory, ring, segments)

    def _find(self, topic: str, key: Any, partition: int | None) -> Any:
        return self.delivery.router.find(topic, key, partition)

    def start(self) -> None:
        """Begin: accept, flush, recover, deliver."""
        self.keeper.start()
        self.delivery.start()
        beside = [self._watch_owner(), self._note()]
        if not self._segments:
            self.lanes_filled.set()
        if self.config.delivery_timeout_ms is not None:
            beside.append(Expiry(self.delivery).run(self.config.delivery_timeout_ms / 1000))
        if self.config.adoption_grace_ms is not None:
            self.adoption = Adoption(self.config, self, Runtime.open)
            beside.append(self.adoption.run())
        if self.manifests is not None:
            beside.append(self.manifests.run(self.lanes_filled))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(one, name="aiorecover-background") for one in beside]
        if self._segments:
            self._recovery = loop.create_task(self._recover(), name="aiorecover-recovery")
            self._tasks.append(self._recovery)
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def _note(self) -> None:
        """Store how it goes where `aiorecover top` finds it, each second in which it has changed."""
        before = None
        while True:
            await asyncio.sleep(NOTE_S)
            troubles = [trouble[:NOTED_CHARS] for trouble in islice(self.delivery.troubles(), MOST_NOTED)]
            now = self._accepted(), self.delivery.delivered, troubles
            if now != before:
                stored, before = asyncio.Event(), now
                self.keeper.beside(partial(self.directory.note, Noted(time.time(), *now)), stored.set)
                await stored.wait()  # one at a time, also on a disk that hangs

    async def _watch_owner(self) -> None:
        """Look at the directory's files once a second.

        Raises:
            WalIOError: one was removed or replaced: another process may have the directory.

        """
        while True:
            await asyncio.sleep(OWNER_S)
            replaced = await asyncio.to_thread(self.directory.replaced)
            if replaced is not None:
                raise WalIOError(errno.ESTALE, replaced, str(self.directory.path))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() and not self.ring.closing:
            self.delivery.stop_delivering(RecoverError("the producer's tasks were cancelled"))
        elif not task.cancelled():
            self.delivery.stop_delivering(task.exception())

    async def _recover(self) -> None:
        recovered: Recovered = await self.delivery.in_thread(recover, self.ring, self._segments)
        self._segments = []
        fill_lanes(self.ring, recovered)
        self.recovered = recovered.records + self.ring.damaged - self.dead_letters()
        self.lanes_filled.set()
        self.delivery.begin()
        if recovered.records:
            log.info("recovered records of earlier starts wait path=%s records=%d", self.directory.path, self.recovered)

    async def read(self) -> None:
        """Wait until what earlier lives left is in the lanes.

        Raises:
            WalError: it could not be read.
            ClosedError: the producer was stopped first.

        """
        if self._recovery is not None:
            await asyncio.wait({self._recovery})
            if self._recovery.cancelled():
                raise ClosedError("the producer is stopped: make a new one")
            self._recovery.result()

    async def stop(self, limit_s: float) -> int:
        """Deliver what can be delivered in time, then close; return the number of records left in the ring."""
        letting_go = None if self.adoption is None else asyncio.ensure_future(self.adoption.stop())
        try:
            async with asyncio.timeout(limit_s) as self._stopping:
                await self.delivery.waiters.drained()
                if self.config.dead_letter_topic is not None:
                    await self.delivery.waiters.drained()  # the copies that were published meanwhile
        except (TimeoutError, Exception) as error:  # noqa: BLE001 - what is left is delivered after the next start
            log.debug("stop_incomplete not everything was delivered in time error=%r", error)
        self._stopping = None
        if letting_go is not None:  # where the disk hangs, it lets go once that answers
            await asyncio.wait({letting_go}, timeout=CLOSE_S)
        return await self.close()

    def hurry(self, limit_s: float) -> None:
        """Let a stop that is under way deliver for ``limit_s`` seconds more at most."""
        until = asyncio.get_running_loop().time() + limit_s
        if self._stopping is not None and until < (self._stopping.when() or 0.0):
            self._stopping.reschedule(until)

    async def close(self) -> int:
        """End everything and let go of the directory; return the number of records left in the ring."""
        if self._recovery is not None:  # only then is known what is left
            await asyncio.wait({self._recovery}, timeout=CLOSE_S)
        self.ring.closing = True
        async with AsyncExitStack() as steps:  # from the last one up, each whatever the others raise
            steps.push_async_callback(self._close_ring)
            steps.callback(self._seal_all)
            steps.push_async_callback(self.delivery.stop)
            if self.manifests is not None:
                steps.push_async_callback(self.manifests.finish)
            steps.push_async_callback(cancel_all, self._tasks)
        return self._left()

    def _seal_all(self) -> None:
        for lane in list(self.ring.lanes.values()):
            lane.give_back()

    async def _close_ring(self) -> None:
        """Flush once more, and let go of the files, unless a thread still works on them."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.keeper.stop()
        except (TimeoutError, WalError) as error:
            log.warning("stop_unflushed the last flush was not waited for error=%r", error)
        if self._is_idle():
            await asyncio.to_thread(self.ring.close)
        else:  # a thread hangs in a call to the disk: the file must stay what it is, and its lock ours
            log.warning("stop_unclosed the disk does not answer: the directory is let go when the process ends")

    def abandon(self) -> int:
        """Let go of the directory after the event loop has ended; return the number of records left. Blocks."""
        left = self._left()
        self.ring.closing = self.delivery.waiters.stopped = True
        self.keeper.abandon(CLOSE_S)
        if self._is_idle():
            self.ring.close()
        return left

    def _left(self) -> int:
        """Return the number of records left in the ring; 1 where it could not be read, and may hold some."""
        return max(self.pending(), int(self.ring.recovering))

    def _is_idle(self) -> bool:
        """Whether no thread works on the ring's files any more."""
        return self.keeper.ended and not self.delivery.threads

    async def drained(self, limit_s: float | None) -> None:
        """Wait until what is in the ring now is done.

        Raises:
            DeliveryPendingError: not within ``limit_s``.

        """
        try:
            async with asyncio.timeout(limit_s):
                await self.delivery.waiters.drained()
        except TimeoutError:
            message = "not everything is in kafka yet, it stays in the ring, do not publish it again"
            count = "unknown" if self.ring.recovering else self.pending()
            raise DeliveryPendingError(f"{message}: {self.why()} pending={count}") from None

    def why(self) -> str:
        """Say what holds records up."""
        return next(iter(self.delivery.troubles()), "nothing is wrong, they take their turn")

    def _accepted(self) -> int:
        return self.writer.next_sequence() - FIRST_SEQUENCE

    def pending(self) -> int:
        """Return the number of records that are not done, those in open batches too."""
        open_ones = sum(lane.published.index for lane in list(self.ring.lanes.values()))  # also from other threads
        return self.ring.pending + open_ones - self.dead_letters()

    def dead_letters(self) -> int:
        """Return the number of records in the lane of dead letters."""
        lane = self.ring.lanes.get((DEAD_TOPIC, DEAD))
        return 0 if lane is None else sum(batch.count for batch in lane.queue)

    def statistics(self, state: str) -> Statistics:
        """Return a snapshot whose counts add up."""
        ring, delivery = self.ring, self.delivery
        lanes = list(delivery.router.lanes.values())
        return Statistics(
            state=state,
            accepted=self._accepted(),
            recovered=self.recovered,
            delivered=delivery.delivered,
            dead_lettered=delivery.dead_lettered,
            damaged=ring.damaged,
            pending=self.pending(),
            recovering=ring.recovering,
            dead_letters=self.dead_letters(),
            oldest_age_seconds=self._oldest_age(),
            epoch=ring.epoch,
            bytes_used=ring.used,
            bytes_allocated=ring.used + ring.pool.kept,
            wal_max_bytes=ring.limits.max_bytes,
            wal_min_free_bytes=ring.min_free,
            full=ring.full,
            flushes=ring.flusher.done,
            flush_failed=ring.flusher.failed is not None,
            requests=delivery.requests,
            errors=delivery.errors,
            callback_errors=0 if self.reporter is None else self.reporter.errors,
            lanes=len(lanes),
            lanes_in_trouble=sum(1 for lane in lanes if lane.error is not None and not lane.stored.idle),
            lanes_halted=sum(1 for lane in lanes if lane.state is LaneState.HALTED),
            directories_adopted=0 if self.adoption is None else self.adoption.directories,
            records_adopted=0 if self.adoption is None else self.adoption.records,
            cluster_id=ring.checkpoint.cluster_id,
        )

    def _oldest_age(self) -> float | None:
        lanes = [lane for lane in list(self.ring.lanes.values()) if lane.partition != DEAD]
        since = min((since for lane in lanes if (since := lane.waits_since) is not None), default=None)
        return None if since is None else max(0.0, time.time() - since)


def let_go(opening: "asyncio.Future[Runtime]") -> None:
    """Close a directory whose caller was cancelled while it was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().ring.close()


def _delivery_options(config: Config, producer_id: str) -> DeliveryOptions:
    client = dict(config.client)
    compression = client.pop("compression_type", None)
    timeout = client.pop("transaction_timeout_ms", 60_000)
    client["bootstrap_servers"] = list(config.bootstrap_servers)
    client["request_timeout_ms"] = config.request_timeout_ms
    client.setdefault("client_id", "aiorecover")
    age = client.get("metadata_max_age_ms", 300_000)
    return DeliveryOptions(
        client=client,
        linger_s=config.linger_ms / 1000,
        backoff_s=config.retry_backoff_ms / 1000,
        backoff_max_s=config.retry_backoff_max_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        metadata_max_age_s=age / 1000,
        compression=compression,
        always=config.fsync == "always",
        halt=config.on_permanent_error == "halt",
        check=config.recovery_check,
        cluster_id=config.cluster_id,
        dead_letter_topic=config.dead_letter_topic,
        partitioner=config.partitioner,
        transactional_id=f"aiorecover-{producer_id}" if config.guarantee == "exactly_once" else None,
        transaction_timeout_ms=timeout,
    )
