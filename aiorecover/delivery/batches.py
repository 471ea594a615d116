"""The lanes' open batches: begun within what all may have in memory, handed over when they have lingered."""

import asyncio
import time
from collections.abc import Callable

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.frames import frames_of, position_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.lingering import Lingering
from aiorecover.delivery.router import Router
from aiorecover.delivery.stalled import StalledLanes
from aiorecover.wal.slot import Slot

BATCH_BYTES = 32 * 1024 * 1024  # of all closed batches together: also keeps one request below the broker's 100 MB
# Times as much while a transaction is being committed: what was acknowledged stays in memory until then, and what is
# published meanwhile needs room. Without it, and with a bound for each lane, the dispatcher falls behind the records
# that the ring has in memory, and reads each back from the file: 0.72 to 0.77 of what at_least_once delivers over 6
# partitions (3 interleaved rounds of 2,000,000 records), with it 0.97 to 1.05 (7 of them).
IN_TRANSACTIONS = 2
SMALLEST_BATCH = 16 * 1024  # bytes; aiokafka's own default: smaller ones cost more than they save
FOUND_MOST = 1024  # records found in Kafka that are settled at once


class Batches:
    """Knows which lanes have an open batch, and how much all lanes hold in closed ones."""

    def __init__(
        self,
        router: Router,
        stalled: StalledLanes,
        deliver: Callable[[Lane], None],
        *,
        codec: int,
        batch_bytes: int,
        linger: float,
        doubtful_up_to: int,
        transactional: bool = False,
    ) -> None:
        """``deliver`` of lanes with a batch to send; ``linger``: seconds until what is open is handed over.

        ``doubtful_up_to``: as in `Expiry`. ``transactional``: as of `LaneBatch`.
        """
        self._router = router
        self._stalled = stalled
        self._deliver = deliver
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._doubtful_up_to = doubtful_up_to
        self._transactional = transactional
        self._open: dict[Lane, None] = {}
        self._lingering = Lingering(linger)  # of those that are open
        self.closed_bytes = 0  # of batches that are ready or in flight
        self.committing = False  # a run is: what comes meanwhile belongs to the next one
        self.resuming = False  # what the last process had in flight waits for room: it comes first

    @property
    def full(self) -> bool:
        """All lanes together hold as much as they may; what stalled ones hold does not count."""
        return self.closed_bytes - self._stalled.bytes >= BATCH_BYTES * (IN_TRANSACTIONS if self.committing else 1)

    @property
    def fill_a_run(self) -> bool:
        """A transaction ends with them: what comes while it is committed finds room beside them."""
        return self.closed_bytes >= BATCH_BYTES

    @property
    def due(self) -> float:
        """When some of what is open must be handed over, by the loop's clock; never where nothing is."""
        return self._lingering.due

    def begin(self, lane: Lane) -> LaneBatch | None:
        """A new open batch; None when the lane or all lanes together hold as much as they may."""
        held_up = lane.blocked and not self._transactional  # there it holds up all the others anyway
        if held_up or self.full or self.resuming:
            return None
        share = (BATCH_BYTES - self._stalled.bytes) // (2 * (len(self._open) + 1))
        most = self._batch_bytes if lane.limit is None else min(self._batch_bytes, lane.limit.next(time.monotonic()))
        size = min(most, max(SMALLEST_BATCH, share))
        batch = LaneBatch(size, self._codec, transactional=self._transactional)
        batch.probes = lane.limit is not None and most > lane.limit.bytes
        self._linger(lane)  # first: a signal handler may raise between any two of these, and what is open lingers
        self._open[lane] = None
        lane.open = batch
        return batch

    def add_found(self, lane: Lane, slot: Slot, place: int, offset: int) -> bool:
        """A frame whose record stands in Kafka at ``offset``: it is announced and settled in its turn; False: no room.

        In a batch with those that stand right before it there, and nothing that has to be sent.
        """
        batch = lane.open
        if batch is None or batch.found_at is None or batch.found_at + batch.count != offset:
            if batch is not None:
                self.close(lane)
            batch = self.begin(lane)
            if batch is None:
                return False
            batch.found_at = offset
        if slot is not batch.slot:
            batch.start_group(slot)
        batch.places.append(place)
        batch.count += 1
        batch.most = batch.count
        if batch.count >= FOUND_MOST:
            self.close(lane)
        return True

    def close(self, lane: Lane) -> None:
        """Nothing more is added to the lane's open batch: it goes to Kafka in its turn."""
        try:
            closed = lane.close_open()
        except BaseException:
            self._linger(lane)  # a batch that could not be closed is handed over by the next linger
            raise
        if closed is not None and lane.halted is None:  # else all that it holds counts once it goes on
            self.closed_bytes += closed.bytes
        if closed is not None:
            if self._doubtful_up_to:
                closed.doubtful = position_at(*next(frames_of(closed))) <= self._doubtful_up_to
            self._deliver(lane)
        self._router.rotate(lane)
        self._open.pop(lane, None)
        self._lingering.discard(lane)  # last: where a signal handler has raised before, the next linger goes on

    def tick(self, *, busy: bool) -> None:
        """The linger of some is over: what they have goes to Kafka, at once or right behind the batch in flight.

        ``busy``: more is to be read.
        """
        for lane in self._lingering.oldest(asyncio.get_running_loop().time(), busy=busy):
            self._hand_over(lane)

    def hand_over(self) -> None:
        """As where the linger of all is over: somebody waits."""
        for lane in list(self._open):
            self._hand_over(lane)

    def _hand_over(self, lane: Lane) -> None:
        if lane.in_flight is None and not lane.ready:
            self.close(lane)
        else:
            if lane.in_flight is None:  # a signal handler has raised before it was handed over
                self._deliver(lane)
            lane.due = True
            self._lingering.discard(lane)

    def _linger(self, lane: Lane) -> None:
        self._lingering.add(lane, asyncio.get_running_loop().time())

    def close_all(self) -> None:
        """A transaction ends: what is open belongs to it, also where other batches wait before it."""
        for lane in list(self._open):
            self.close(lane)

    def follow(self, lane: Lane) -> None:
        """What was in flight is not any more: the lane's lingering batch may follow."""
        if lane.due and not lane.ready:
            self.close(lane)

    def drop_open(self, lane: Lane) -> None:
        """The lane is halted: what it held stays in the ring."""
        self._lingering.discard(lane)
        self._open.pop(lane, None)
        lane.open = None
        lane.due = False
