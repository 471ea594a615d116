"""The delivery side as one thing: dispatcher, lanes, session and reports, put together."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aiokafka.errors import KafkaError

from aiorecover.config import Config
from aiorecover.delivery.batch import CODECS, LaneBatch
from aiorecover.delivery.dispatcher import DISCOVER_INTERVAL, DISCOVER_MAX, Dispatcher
from aiorecover.delivery.lane import Lane, lane_halted
from aiorecover.delivery.reports import Reports
from aiorecover.delivery.router import Router
from aiorecover.delivery.sender import Sender
from aiorecover.delivery.sessions import Sessions
from aiorecover.errors import ClosedError
from aiorecover.record import decode
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Entry

log = logging.getLogger("aiorecover.delivery")


class Delivery:
    """Brings every frame that is not settled to Kafka."""

    def __init__(self, config: Config, ring: Ring, producer_id: str, on_idle: Callable[[], None]) -> None:
        """``on_idle``: the dispatcher sleeps; the next publish must call `wake`."""
        self._ring = ring
        self.sessions = Sessions(config, self._on_metadata)
        self.session = self.sessions.healthy
        self.router = Router(self.session.partitions, self.session.available, self.session.want, config.partitioner)
        self.reports = Reports(ring, producer_id, config.on_delivery)
        self.dispatcher = Dispatcher(
            Reader(ring, decode, suspects=True),
            self.router,
            codec=CODECS[config.client.get("compression_type")],
            batch_bytes=config.max_batch_size,
            linger=config.linger_ms / 1000,
            answered=lambda: self.session.answered,
            deliver=self._deliver,
            refuse=self._refuse,
            on_idle=on_idle,
        )
        self.sender = Sender(
            self.sessions,
            ring,
            self.reports,
            backoff=(config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000),
            on_acknowledged=self._on_acknowledged,
            on_halted=self._on_halted,
        )
        self._closed = False
        self._progress: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        """Begin to connect; the loops are run by `background`."""
        self.sessions.start()

    async def close(self) -> None:
        """Stop sending; whatever is not acknowledged stays in the ring."""
        self._closed = True
        self._notify()
        try:  # at the same time: a lane that waits for the user's `on_delivery` must not keep the connections open
            await asyncio.gather(self.sender.close(), self.sessions.close())
        finally:
            self.reports.close()
            self.dispatcher.reader.close()

    def wake(self) -> None:
        """Records came."""
        self.dispatcher.wake()

    async def run_dispatcher(self) -> None:
        """Dispatch for ever."""
        await self.dispatcher.run()

    async def run_discovery(self) -> None:
        """Look for topics that are not known, and for partitions that did not exist."""
        while True:
            await self.dispatcher.fell_behind.wait()
            pause = DISCOVER_INTERVAL
            while self.dispatcher.behind:
                if self.dispatcher.fell_behind.is_set():
                    self.dispatcher.fell_behind.clear()
                    pause = DISCOVER_INTERVAL
                try:
                    await self.session.discover()
                except (OSError, RuntimeError) as error:  # KafkaError is a RuntimeError
                    log.debug("no metadata yet error=%r", error)
                await self._until_more_falls_behind(pause)
                pause = min(pause * 2, DISCOVER_MAX)
            self.dispatcher.fell_behind.clear()

    async def _until_more_falls_behind(self, pause: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may swallow a cancellation in Python 3.11
                await self.dispatcher.fell_behind.wait()

    async def flush(self) -> None:
        """Wait until everything that is in the ring now is settled."""
        target = self._tail()
        self.dispatcher.begin_flush()
        try:
            while self.dispatcher.waiting_from <= target:
                await self._changed()
            marks = [(lane, lane.added) for lane in self.router.lanes()]
            for lane, mark in marks:
                while lane.settled < mark:
                    if lane.halted is not None:
                        raise lane_halted(lane)
                    self.dispatcher.hand_over()
                    await self._changed()
        finally:
            self.dispatcher.end_flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic, asked from Kafka where they are not known; bounded by the caller."""
        self.session.want(topic)
        while not (found := self.session.partitions(topic)):
            with contextlib.suppress(KafkaError):  # a session that ends meanwhile is replaced: the next one may tell
                await self.session.discover()
            if not self.session.partitions(topic):
                await asyncio.sleep(DISCOVER_INTERVAL)
        return set(found)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return self.sessions.interrupted or self.sender.interrupted > 0

    @property
    def halted(self) -> list[Lane]:
        """Lanes that a permanent error stopped."""
        return [lane for lane in self.router.lanes() if lane.halted is not None]

    def _tail(self) -> tuple[int, int]:
        if not self._ring.live:
            return -1, 0  # before everything, also before a reader that stands nowhere yet: nothing to wait for
        slot = self._ring.live[-1]
        if slot.header.epoch == self._ring.epoch:
            return slot.header.ordinal, self._ring.sequence
        return slot.header.ordinal, slot.last_sequence if slot.sealed else 1 << 62

    def _deliver(self, lane: Lane) -> None:
        self.sender.deliver(lane)

    def _refuse(self, lane: Lane, entry: Entry) -> None:
        self.reports.refuse([entry[:2]], lane_halted(lane))

    def _on_acknowledged(self, lane: Lane, batch: LaneBatch) -> None:
        self.dispatcher.acknowledged(lane, batch)
        self._notify()

    def _on_halted(self, lane: Lane) -> None:
        for batch in (lane.in_flight, *lane.ready):
            self.dispatcher.closed_bytes -= batch.bytes if batch is not None else 0
        lane.ready.clear()
        self.dispatcher.drop_open(lane)
        self.router.forget(lane)
        self.dispatcher.wake()

    def _on_metadata(self) -> None:
        if self.router.refresh() or self.dispatcher.behind:
            self.dispatcher.start_catching_up()
        self.dispatcher.wake()  # in any case: it may hold records until the first answer, whatever that says
        self._notify()

    async def _changed(self) -> None:
        """Wait for the next acknowledgement or change.

        Raises:
            ClosedError: delivery was stopped: nothing will change any more.

        """
        if self._closed:
            message = "the producer was stopped before everything was in kafka: it is delivered after the next start"
            raise ClosedError(message)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress.add(future)
        try:
            await asyncio.wait({future}, timeout=DISCOVER_INTERVAL)
        finally:
            self._progress.discard(future)

    def _notify(self) -> None:
        for future in self._progress:
            if not future.done():
                future.set_result(None)
