"""What exists between `start` and `stop`: directory, ring, keeper, delivery, and the coroutines beside them."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from aiorecover.config import Config
from aiorecover.core.reporting import Reporter
from aiorecover.core.statistics import Statistics
from aiorecover.errors import DeliveryPendingError, WalError, WalIOError
from aiorecover.kafka.delivery import Delivery, DeliveryOptions, cancel_all
from aiorecover.kafka.lanes import State
from aiorecover.kafka.router import DEAD_TOPIC
from aiorecover.ring.directory import Directory
from aiorecover.ring.flush import Keeper
from aiorecover.ring.lane import DEAD
from aiorecover.ring.opening import adopt, open_ring, recover
from aiorecover.ring.ring import Limits, Ring
from aiorecover.ring.segments import Segment
from aiorecover.ring.writer import FIRST_SEQUENCE, Writer

OWNER_S = 1.0  # between two looks at the paths of our files
EXPIRY_S = 0.5  # between two looks for records that are too old
CLOSE_S = 2.0  # what a slow disk has to let go of the directory

log = logging.getLogger("aiorecover")


class Runtime:
    """A producer's parts, opened.

    Attributes:
        recovered: records of earlier epochs that were found waiting.
        interrupted: somebody has cancelled tasks of ours: a restart delivers what is left.

    """

    def __init__(self, config: Config, directory: Directory, ring: Ring, segments: list[Segment]) -> None:
        """Put the parts together; `Runtime.open` has read the heads."""
        self.config, self.directory, self.ring = config, directory, ring
        self.writer = Writer(ring.producer_id, ring.epoch, self._find)
        ring.next_sequence = self.writer.next_sequence
        self.keeper = Keeper(ring, config.fsync, config.fsync_interval_ms / 1000)
        self.delivery = Delivery(ring, self.writer, _delivery_options(config, ring.producer_id), self.keeper.flushed)
        self.reporter = Reporter(self, cast("Any", config.on_delivery)) if config.on_delivery is not None else None
        if self.reporter is not None:
            self.delivery.listener, self.delivery.reports = self.reporter, True
        self.recovered = 0
        self.find: Callable[..., Any] = self.delivery.router.find
        self.adopted = asyncio.Event()  # what earlier lives left is in the lanes
        self._segments = segments
        self._recovering: asyncio.Future[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, config: Config) -> "Runtime":
        """Take the directory and read its heads, in a thread.

        Raises:
            WalError: the directory cannot be used; the message says why and what to do.

        """
        return await asyncio.to_thread(cls._open, config)

    @classmethod
    def _open(cls, config: Config) -> "Runtime":
        wait_s = config.full_timeout_ms / 1000 if config.instance is not None else 0.0
        directory = Directory.take(config.wal_dir, instance=config.instance, wait_s=wait_s)
        try:
            limits = Limits(config.wal_max_bytes, config.wal_min_free_bytes, config.max_batch_size)
            ring = Ring(directory, limits)
            segments = open_ring(ring, name=config.name, guarantee=config.guarantee)
        except BaseException:
            directory.close()
            raise
        return cls(config, directory, ring, segments)

    def _find(self, topic: str, key: Any, partition: int | None) -> Any:
        return self.find(topic, key, partition)

    def start(self) -> None:
        """Begin: accept, flush, recover, deliver."""
        self.keeper.start()
        self.delivery.start()
        beside = [self._watch_owner()]
        if self._segments:
            beside.append(self._recover())
        else:
            self.adopted.set()
        if self.config.delivery_timeout_ms is not None:
            beside.append(self._expire(self.config.delivery_timeout_ms / 1000))
        self._tasks = [asyncio.get_running_loop().create_task(one, name="aiorecover-background") for one in beside]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.delivery.stop_delivering(task.exception())

    async def _recover(self) -> None:
        self._recovering = asyncio.ensure_future(asyncio.to_thread(recover, self.ring, self._segments))
        recovered = await asyncio.shield(self._recovering)
        self._segments = []
        adopt(self.ring, recovered)
        self.recovered = recovered.records + self.ring.damaged - self.dead_letters()
        self.adopted.set()
        self.delivery.adopted()
        if recovered.records:
            log.info("recovered records of earlier starts wait path=%s records=%d", self.directory.path, self.recovered)

    async def _watch_owner(self) -> None:
        """Stop as soon as a file of the directory is removed or replaced: another process may have it."""
        while True:
            await asyncio.sleep(OWNER_S)
            replaced = await asyncio.to_thread(self.directory.replaced)
            if replaced is not None:
                raise WalIOError(None, replaced, str(self.directory.path))

    async def _expire(self, limit_s: float) -> None:
        """Bury records that could not be delivered in time (``delivery_timeout_ms``)."""
        while True:
            await asyncio.sleep(min(EXPIRY_S, limit_s / 4))
            self.delivery.expire_before(self.ring.files.now_ms() / 1000 - limit_s)

    async def stop(self, limit_s: float) -> int:
        """Deliver what can be delivered in time, then close; the number of records left in the ring."""
        try:
            async with asyncio.timeout(limit_s):
                await self.delivery.waiters.drained()
        except (TimeoutError, Exception) as error:  # noqa: BLE001 - what is left is delivered after the next start
            log.debug("stop: not everything was delivered error=%r", error)
        self.ring.closing = True
        await cancel_all(self._tasks)
        await self.delivery.stop()
        for lane in list(self.ring.lanes.values()):
            lane.give_back()
        left = self.pending()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.keeper.stop()
        except (TimeoutError, WalError) as error:
            log.warning("stop_unflushed the last flush was not waited for error=%r", error)
        if self._recovering is not None:
            await asyncio.wait({self._recovering}, timeout=CLOSE_S)
        if self.keeper.ended and (self._recovering is None or self._recovering.done()):
            await asyncio.to_thread(self.ring.close)
        else:  # a thread hangs in a call to the disk: the file must stay what it is, and its lock ours
            log.warning("stop_unclosed the disk does not answer: the directory is let go when the process ends")
        return left

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
            raise DeliveryPendingError(f"{message}: {self.why()} pending={self.pending()}") from None

    def why(self) -> str:
        """Say what holds records up."""
        return next(iter(self.delivery.troubles()), "nothing is wrong, they take their turn")

    def pending(self) -> int:
        """Records that are not done, those in open batches too."""
        open_ones = sum(lane.published.index for lane in self.ring.lanes.values())
        return self.ring.pending + open_ones - self.dead_letters()

    def dead_letters(self) -> int:
        """Records in the lane of dead letters."""
        lane = self.ring.lanes.get((DEAD_TOPIC, DEAD))
        return 0 if lane is None else sum(batch.count for batch in lane.queue)

    def statistics(self, state: str) -> Statistics:
        """Return a snapshot whose counts add up."""
        ring, delivery = self.ring, self.delivery
        lanes = list(delivery.router.lanes.values())
        return Statistics(
            state=state,
            accepted=self.writer.next_sequence() - FIRST_SEQUENCE,
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
            bytes_allocated=ring.used + ring.kept,
            wal_max_bytes=ring.limits.max_bytes,
            wal_min_free_bytes=ring.min_free,
            full=ring.used + ring.geometry.small > ring.limits.max_bytes,
            flushes=ring.flusher.done,
            flush_failed=ring.flusher.failed is not None,
            requests=delivery.requests,
            errors=delivery.errors,
            callback_errors=0 if self.reporter is None else self.reporter.errors,
            lanes=len(lanes),
            lanes_in_trouble=sum(1 for lane in lanes if lane.error is not None),
            lanes_halted=sum(1 for lane in lanes if lane.state is State.HALTED),
            cluster_id=ring.checkpoint.cluster_id,
        )

    def _oldest_age(self) -> float | None:
        accepted = [
            batch.accepted_at
            for lane in self.ring.lanes.values()
            if lane.partition != DEAD
            for batch in (*lane.queue[:1], *((lane.published.batch,) if lane.published.index else ()))
            if batch is not None
        ]
        return max(0.0, time.time() - min(accepted)) if accepted else None


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
        backoff_max_s=min(1.0, config.retry_backoff_max_ms / 1000),
        request_timeout_s=config.request_timeout_ms / 1000,
        metadata_max_age_s=age / 1000,
        compression=compression,
        always=config.fsync == "always",
        halt=config.on_permanent_error == "halt",
        check=config.recovery_check,
        cluster_id=config.cluster_id,
        partitioner=config.partitioner,
        transactional_id=f"aiorecover-{producer_id}" if config.guarantee == "exactly_once" else None,
        transaction_timeout_ms=timeout,
    )
