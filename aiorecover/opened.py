"""Everything that exists between the start and the stop of a producer, opened and closed in order."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from aiorecover import record as rec
from aiorecover.adoption import Adoption
from aiorecover.background import Background
from aiorecover.config import Config
from aiorecover.deadline import LET_GO_AT_LEAST, Deadline
from aiorecover.delivery.dead_letter_topic import DeadLetterTopic
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.refusal import is_owed
from aiorecover.delivery.resume import Taken, take_up
from aiorecover.delivery.session import REMEMBER_LIMIT
from aiorecover.delivery.stocktaking import Stocktaking
from aiorecover.errors import ClosedError, DeliveryError, WalError
from aiorecover.guarantee import check_guarantee, check_in_flight, keep_guarantee
from aiorecover.manifests import Manifests
from aiorecover.source_positions import read_on
from aiorecover.statistics import Statistics
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Destination
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.neighbours import Neighbour, Neighbours
from aiorecover.wal.opening import open_directory
from aiorecover.wal.sources import Sources
from aiorecover.wal.storage import OPERATING_SYSTEM
from aiorecover.wal.sync import GroupCommit

log = logging.getLogger("aiorecover")

THREAD_JOIN = 5.0  # seconds for the keeper's thread to end; a disk that hangs longer is left behind (daemon thread)


class Opened:
    """Everything that exists between `start` and `stop`."""

    def __init__(
        self,
        config: Config,
        keeper: Keeper,
        directory: Directory,
        taken: Taken,
        *,
        on_idle: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        """``on_idle``: the dispatcher sleeps, the next publish must wake it; ``on_room``: slots were freed."""
        self._config = config
        self.keeper = keeper
        self.directory = directory
        self.dead = DeadLetters(directory.dead, lambda: keeper.submit(directory.sync_dead))
        self.delivery = Delivery(
            config,
            directory,
            taken,
            self.dead,
            grow=lambda: keeper.submit(directory.grow_lanes),
            remember=self._remember,
            durable=self._flush_ring,
            on_idle=on_idle,
        )
        self.background = Background(config, directory, keeper, self.delivery, on_room)
        self.commit = GroupCommit(self.background.sync)
        stocktaking = Stocktaking(self.dead, lambda *where: keeper.submit(directory.dead.file.read_into, *where))
        self.background.add("stocktaking", stocktaking.run)
        self._dead_letter_topic: DeadLetterTopic | None = None
        if config.dead_letter_topic is not None:
            topic = DeadLetterTopic(self.dead, config.dead_letter_topic, self.store)
            self.background.add("dead letter topic", topic.run)
            self._dead_letter_topic = topic
        self._manifests: Manifests | None = None
        if config.audit_topic is not None:
            self._manifests = self._make_manifests(config.audit_topic)
            self.background.add("manifests", self._manifests.run)
        self._adoption: Adoption | None = None
        if config.adoption_grace_ms is not None:
            self._adoption = self._make_adoption(config.adoption_grace_ms / 1000)
            self.background.add("adoption", self._adoption.run)
        self.keep_free: int | None = None  # slots of each ring that stay at the end; None: as many as while it is open
        self._ending = False  # nothing more is stored: the checkpoint that says so must be right
        self._left: Statistics | None = None
        self.files_gone: str | None = None  # at the end, with records in them: what is wrong with them
        self._closing: asyncio.Future[None] | None = None
        self._deadline = Deadline()

    @classmethod
    async def open(
        cls,
        config: Config,
        *,
        on_idle: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
        lock_timeout: float | None = None,
        destined: str | None = None,
    ) -> Self:
        """Lock and recover the directory that ``config`` names; nothing is begun.

        ``lock_timeout``: seconds to wait for a directory with a name; None takes ``full_timeout_ms``. ``destined``: id
        of the cluster that it belongs to if it remembers none.

        Raises:
            WalError: it cannot be used; the message says why and what to do.

        """
        keeper = Keeper("aiorecover-keeper")
        try:
            directory, taken = await _opening(keeper, _options(config, lock_timeout, destined), config)
        except BaseException:
            keeper.stop()
            raise
        return cls(config, keeper, directory, taken, on_idle=on_idle, on_room=on_room)

    def start(self) -> None:
        """Begin to deliver."""
        self.delivery.start()
        self.background.start()

    def close(self) -> None:
        """Close what was never started."""
        self.directory.close()
        self.keeper.stop()

    async def flush(self) -> None:
        """Wait until everything that is in the ring now is settled.

        Raises:
            PermanentDeliveryError: a lane is halted.

        """
        await self.delivery.flush()

    async def drain(self) -> None:
        """As `flush`, and for the copies of dead letters, too, also of those that come meanwhile.

        Raises:
            DeliveryError: as `flush`; a lane is halted, and all that waits for others is settled.
            WalError: the disk failed, and copies are left to the next start.

        """
        await self.delivery.flush(leave_halted=True)
        while self._dead_letter_topic is not None and await self._dead_letter_topic.paid():
            await self.delivery.flush(leave_halted=True)

    @property
    def checking(self) -> bool:
        """The recovery check reads, or partitions are lacking: within a bounded time more is known."""
        return self.delivery.check.reading or self.delivery.router.deciding

    @property
    def judged(self) -> bool:
        """Nothing in the rings is suspect any more, so what is settled is covered by the next checkpoint."""
        return all(ring.judged for ring in self.directory.ring.judged_with)

    async def _remember(self) -> None:
        """What delivery knows of the destination is durable when this returns.

        Raises:
            TimeoutError: the disk takes too long.

        """
        async with asyncio.timeout(REMEMBER_LIMIT):
            await self.background.checkpoint()

    async def _flush_ring(self) -> None:
        """What is stored by now is durable when this returns.

        Raises:
            WalIOError: the disk failed.

        """
        await self.commit.durable(patient=True)

    def _make_manifests(self, topic: str) -> Manifests:
        manifests = Manifests(
            topic,
            self._config.checkpoint_interval_ms / 1000,
            self.directory,
            self.dead,
            self.delivery.sessions,
            codec=self._config.client.get("compression_type"),
            batch_bytes=self._config.max_batch_size,
        )
        self.delivery.reports.on_buried = manifests.bury
        return manifests

    def _make_adoption(self, grace: float) -> Adoption:
        directory = self.directory
        neighbours = Neighbours(
            directory.file_system, directory.path, is_owed if self._config.dead_letter_topic else None
        )

        async def take(name: str) -> Opened:
            # The cluster that it remembers counts there, also against the one that our user names; so does the age at
            # which its owner wanted its records to expire, and not ours.
            its = await self.keeper.submit(neighbours.look, name)
            config = dataclasses.replace(
                self._config,
                instance=name,
                adoption_grace_ms=None,
                cluster_id=None,
                delivery_timeout_ms=its.limit_ms,
                guarantee="at_least_once" if its.destination.transactional is None else "exactly_once",
            )
            home = await Opened.open(config, lock_timeout=0.0, destined=self.delivery.cluster.id)
            home.keep_free = 0  # it may have no owner any more, and no burst to be ready for
            home.start()
            return home

        return Adoption(
            grace,
            self._config.full_timeout_ms / 1000,
            neighbours,
            self.keeper,
            take=take,
            ready=lambda: self.delivery.session.state == "connected" and directory.ring.failure is None,
            own=lambda: Neighbour(
                directory.path.name,
                destination=Destination(self.delivery.cluster.id, self._config.name, self._config.bootstrap_servers),
                directory_id=fmt.directory_of(directory.checkpoint.producer_id),
                boot_id=directory.checkpoint.boot_id,
            ),
        )

    async def store(self, record: rec.Record) -> None:
        """Accept a record from inside; it is durable when this returns.

        Raises:
            ClosedError: the last checkpoint is being made; nothing was stored.
            WalFullError: there is no room; nothing was stored.
            RecordTooLargeError: it does not fit a slot; nothing was stored.
            WalIOError: the disk failed.

        """
        if self._ending:
            message = "the producer is stopped: nothing was stored"
            raise ClosedError(message)
        self.directory.ring.append(rec.encode(record), record)
        self.delivery.wake()
        await self.commit.durable(patient=True)

    def may_go_on(self, position: int, topic: str) -> bool:
        """Whether the record of a dead letter may not be settled yet: if Kafka takes it, its letter is withdrawn."""
        if self.dead.is_of_earlier(position):
            return self.delivery.holders.may_have(topic, position)
        return self.dead.awaits(position)

    @property
    def sources(self) -> Sources | None:
        """What is remembered of them durably; None: nobody has asked for it yet."""
        directory = self.directory
        return None if directory.checkpoint.sources is None else directory.sources

    async def remember_sources(self) -> Sources:
        """Durable from here on, if it was not before.

        Raises:
            WalError: the disk failed.

        """
        directory = self.directory
        if directory.sources is None:
            directory.sources = Sources({})
        if directory.checkpoint.sources is None:
            await self.background.checkpoint()
        return directory.sources

    async def make_room_for_dead_letters(self) -> None:
        """Free what was purged, and what was lost beside it, and tell the lanes that wait for room."""
        await self.dead.count_anew(self.directory)
        self.dead.leave()
        await self.background.checkpoint()
        self.dead.made_room()

    async def stop(self, limit: float) -> int:
        """Flush, then close everything; each step has its share of ``limit`` seconds, or of what `hurry` has left.

        Cancelled ("cancel all tasks" when a loop ends), it closes all the same, in a hurry; cancelled once more, it
        only lets go of the directory.
        """
        self.hurry(limit)
        try:
            try:
                await self._flush()
                return await self._close_all()
            except asyncio.CancelledError:
                log.warning("the stop was cancelled: closing in a hurry")
                self.hurry(0.0)
                return await self._close_all()
        finally:
            self._close_directory()  # whatever happened: it must not stay locked

    def hurry(self, limit: float) -> None:
        """Have the stop that is under way, or to come, over within ``limit`` seconds from now, if it is not earlier."""
        self._deadline.bring_forward(limit)

    async def _flush(self) -> None:
        try:
            async with self._deadline.step(delivering=True):
                await self.drain()  # with the copies: who starts only once has no next start that would store them
        except (TimeoutError, DeliveryError, WalError):  # that a disk has failed was told when it did
            return
        except Exception:
            log.exception("delivering what is left failed: closing")

    async def _close_all(self) -> int:
        """Close in order; the number of records left."""
        self._ending = True
        ended = await self._ends_in_time(self.background.stop(), "the background loops")
        if self._manifests is not None:
            await self._ends_in_time(self._manifests.finish(), "the last manifest")
        ended &= await self._ends_in_time(self.delivery.close(), "the kafka session")
        self.delivery.reports.close()  # whatever became of the session: nobody waits for ever
        await self._ends_in_time(self.commit.close(), "the last group commit")
        if self._closing is None:
            await self._last_checkpoint(closed=ended)
            await self._give_back()
        left = self.directory.records_left
        if left and self._closing is None:  # else they are closed, or will be, by a stop that was cancelled
            self.files_gone = self.directory.moved_away()
        self._left = self.statistics("stopped")
        await self._close()
        return left

    async def _ends_in_time(self, closing: Coroutine[Any, Any, None], what: str) -> bool:
        """Wait for ``closing``, but no longer than there is time.

        What still hangs then is left behind with a warning. Whether it ended.
        """
        task = asyncio.create_task(closing)
        with suppress(TimeoutError):
            async with self._deadline.step():
                await asyncio.wait({task})
        if not task.done():
            task.cancel()
            log.warning("closing took too long and was given up what=%s", what)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("closing failed what=%s error=%r", what, error)
            return False
        return task.done()

    async def _last_checkpoint(self, *, closed: bool) -> None:
        """``closed``: nothing is stored or settled any more; what was given up while closing may still do so."""
        try:
            async with self._deadline.step():
                await self.background.checkpoint(closed=closed)
        except Exception as error:  # noqa: BLE001 - the directory is recovered from what is durable
            if self.directory.moved_away() is not None:  # no start comes to these files: that is told apart
                if closed and not self.directory.records_left:
                    await self._tell_end()
                return
            log.warning("no last checkpoint: the next start reads more error=%r", error)

    async def _give_back(self) -> None:
        """What an outage has filled is no burden to a disk on which nobody opens this directory again, or much later.

        What there is no time for stays, until a process has it open for a while.
        """
        if self.directory.ring.failure is not None or self.directory.moved_away() is not None:
            return
        with suppress(TimeoutError, WalError):
            async with self._deadline.step():
                while await self.keeper.submit(self.directory.give_back_free, self.keep_free):
                    pass

    async def _tell_end(self) -> None:
        """The next start looks for nothing of what was delivered from files that are gone; if that fails, it does."""
        with suppress(TimeoutError, WalError):
            async with self._deadline.step():
                await self.keeper.submit(self.directory.write_end, self.directory.next_checkpoint(closed=True))

    async def _close(self) -> None:
        closing = self._close_directory()
        with suppress(TimeoutError):
            async with self._deadline.step(at_least=LET_GO_AT_LEAST):
                await asyncio.wait({closing}, timeout=THREAD_JOIN)
        if closing.done():
            self.keeper.join(THREAD_JOIN)
        else:
            message = "the disk is slow, so the directory is still locked: a start before it answers takes another one"
            log.warning("%s path=%s", message, self.directory.path)

    def _close_directory(self) -> "asyncio.Future[None]":
        """Have the keeper's thread close it as its last work, also when nobody waits."""
        if self._closing is None:
            self._closing = self.keeper.submit(self.directory.close)
            self.keeper.stop()
        return self._closing

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return self.background.interrupted or self.delivery.interrupted

    def statistics(self, state: str) -> Statistics:
        """The counts of this moment; the last ones after the stop."""
        if self._left is not None:
            return self._left
        ring, delivery = self.directory.ring, self.delivery
        lanes = delivery.router.lanes()
        adoption = self._adoption
        return Statistics(
            state=state,
            accepted=ring.accepted,
            recovered=delivery.dispatcher.reader.found,
            unread=self.directory.unread(),
            delivered=delivery.delivered,
            dead_lettered=delivery.dead_lettered,
            lost=self.directory.lost,
            expired=delivery.expiry.dead_lettered,
            pending=self.directory.pending(),
            in_flight=delivery.sender.in_flight,
            records_left=self.directory.records_left,
            seconds_left=self.background.backlog.seconds_left(self.directory.records_left),
            missing=sum(one.losses.missing for one in self.directory.rings),
            undeliverable=delivery.dispatcher.undeliverable,
            epoch=ring.epoch,
            watermark=ring.watermark(),
            bytes_used=sum(one.bytes_used for one in self.directory.rings),
            bytes_ring=ring.bytes_used,
            bytes_retry=self.directory.retry.bytes_used,
            bytes_dead=self.directory.dead.bytes_used,
            bytes_allocated=sum(one.bytes_allocated for one in self.directory.rings),
            wal_max_bytes=self._config.wal_max_bytes,
            wal_min_free_bytes=self._config.wal_min_free_bytes,
            full=ring.spares.full,
            checkpoints=self.background.checkpoints,
            slots_moved=self.background.compactor.slots_moved,
            records_moved=self.background.compactor.records_moved,
            rebuilds=max(0, delivery.session.rebuilds),
            batches_resent=delivery.sessions.resent,
            batches_resumed=delivery.batches_resumed,
            recovered_in_kafka=delivery.sender.found,
            identities_renewed=delivery.identities_renewed + delivery.sender.renewed,
            callback_errors=delivery.reports.callback_errors,
            lanes=len(lanes),
            lanes_halted=len(delivery.halted),
            lanes_stalled=len(delivery.dispatcher.stalled),
            lanes_suspect=delivery.sessions.lanes_suspect,
            directories_adopted=adoption.directories if adoption is not None else 0,
            records_adopted=adoption.records if adoption is not None else 0,
            adoption_pending=adoption.pending if adoption is not None else 0,
            cluster_id=delivery.cluster.wanted,
            wrong_cluster_id=delivery.cluster.wrong_id,
        )


def _options(config: Config, lock_timeout: float | None, destined: str | None) -> Options:
    return Options(
        wal_dir=config.wal_dir,
        slot_bytes=config.slot_bytes,
        max_bytes=config.wal_max_bytes,
        min_free_bytes=config.wal_min_free_bytes,
        instance=config.instance,
        name=config.name,
        limit_ms=config.delivery_timeout_ms,
        cluster_id=destined,
        servers=config.bootstrap_servers,
        lock_timeout=config.full_timeout_ms / 1000 if lock_timeout is None else lock_timeout,
        file_system=config.file_system or OPERATING_SYSTEM,
    )


async def _opening(keeper: Keeper, options: Options, config: Config) -> tuple[Directory, Taken]:
    """Open in the keeper's thread, and take up what was in flight.

    Cancelled meanwhile, what was opened is closed there again, loop or no loop.
    """
    opened: list[Directory] = []

    def open_it() -> tuple[Directory, Taken]:
        directory = open_directory(options)
        try:
            files = options.file_system
            wall_ms = files.wall_ms() if config.recovery_check else None
            check_guarantee(directory, config.guarantee)
            taken = take_up(directory, files.since_boot_ms(), wall_ms, named=config.cluster_id)
            check_in_flight(taken, config.guarantee)
            read_on(directory)  # before any checkpoint that says more was flushed: the next opening reads behind that
            keep_guarantee(directory, config.guarantee)
        except BaseException:
            directory.close()
            raise
        opened.append(directory)
        return directory, taken

    def close_it() -> None:
        for directory in opened:
            directory.close()

    try:
        return await keeper.submit(open_it)
    except asyncio.CancelledError:
        await asyncio.wait({keeper.submit(close_it)}, timeout=THREAD_JOIN)  # nothing of it is left when this is over
        raise
