"""Who is told of a record's end: `on_delivery` for every record, waiters for those that ask.

No future and no dictionary entry exists for a record that nobody asks about. What a report says is read back from the
record's frame in the ring, so it is the same before and after a crash.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from aiokafka.structs import RecordMetadata

from aiorecover import record as rec
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_record import DeadRecord
from aiorecover.delivery.frames import Named, Names, named_of, placed_of, record_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refusal import Persistence, Refusal
from aiorecover.delivery.remembered import REMEMBERED_RECORDS, Remembered
from aiorecover.delivery.stepping import Steps
from aiorecover.errors import (
    ClosedError,
    DeliveryError,
    DeliveryPendingError,
    PermanentDeliveryError,
    WalCorruptError,
)
from aiorecover.receipt import DeliveryReport
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.recount import Recounted
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

CALLBACKS_A_TURN = 256  # plain on_delivery calls between two turns of the loop
TELL_INTERVAL = 60.0  # seconds between two lines about callbacks that fail: it may be that each one does
LOOKS_A_TURN = 16  # at those who wait, between two turns of the loop: one in doubt may take 0.5 ms
DOUBTS_MOST = 1_000  # stretches of moved records, a damaged slot each: of a worse disk the oldest are taken together
CALLBACK_LIMIT = 30.0  # seconds for one awaited on_delivery: a callback that hangs must not stop delivery for ever


class _Buried(NamedTuple):
    """A dead letter that may be asked for later; an error for each would be 40 MB, where an outage makes so many."""

    topic: str | None
    partition: int | None
    refusal: Refusal


@dataclass(slots=True)
class _Waited:
    """A record that somebody waits for.

    ``doubt``: damage was met where it stands, and nobody can tell yet what became of it; if it is lost, this is what
    who waits is told of Kafka.
    """

    topic: str
    place: int
    futures: "list[asyncio.Future[DeliveryReport]]" = field(default_factory=list)
    doubt: Persistence | None = None


OnDelivery = Callable[[DeliveryReport], Awaitable[None] | None]


class Reports:
    """Builds and hands out delivery reports."""

    def __init__(self, directory: Directory, on_delivery: OnDelivery | None) -> None:
        """``on_delivery`` is called before settling: at least once for each record, also across a crash."""
        self._directory = directory
        self._ring = directory.ring
        self._producer_id = directory.producer_id
        self._on_delivery = on_delivery
        self._waiters: dict[int, _Waited] = {}
        self._remembered = Remembered(directory.ring)
        self._refused: dict[int, DeliveryError | _Buried] = {}
        self._doubtful: list[tuple[int, int]] = []  # positions of moved records of which damage took some
        self._closed = False
        self._pending: DeliveryPendingError | None = None  # why nothing is delivered, until somebody mends it
        self._told = float("-inf")  # when a line told of a callback that failed
        self._calling: set[asyncio.Task[Any]] = set()  # tasks that await what the callback returned
        self.on_buried: Callable[[Named], None] = lambda _: None  # called for each dead letter, once it is settled
        self.callback_errors = 0

    # -- for publishers ----------------------------------------------------------------------------------------------

    def waiter(self, topic: str, sequence: int, place: int) -> "asyncio.Future[DeliveryReport]":
        """A future for the report of a record of this epoch; done already if the record is settled."""
        future: asyncio.Future[DeliveryReport] = asyncio.get_running_loop().create_future()
        if sequence in self._refused:
            future.set_exception(self._error(sequence, self._refused[sequence]))
        elif self._is_lost(sequence, place):
            recalled = self._recall(topic, sequence, place)
            if recalled is None:
                future.set_exception(self._lost(sequence, persisted="possibly"))
            else:
                future.set_result(recalled)
        elif settled := self._directory.is_settled(sequence, place):
            future.set_result(self._remember(topic, sequence, place))
        elif (settled is None or self._closed) and (report := self._recall(topic, sequence, place)) is not None:
            future.set_result(report)  # its copy rotted since, or it stands beyond what the closed ring tells of
        elif self._closed:
            future.set_exception(_stopped())
        elif self._pending is not None:
            future.set_exception(self._pending.with_traceback(None))  # else it would grow, and keep whoever was told
        else:
            self._wait(topic, sequence, place, future, doubted=settled is None)
        return future

    def _wait(
        self, topic: str, sequence: int, place: int, future: "asyncio.Future[DeliveryReport]", *, doubted: bool
    ) -> None:
        """``doubted``: whether the record was settled before damage came is not known, unless somebody waited then."""
        waited = self._waiters.get(sequence)
        if waited is None:
            waited = self._waiters[sequence] = _Waited(topic, place, doubt="possibly" if doubted else None)
        elif doubted and waited.doubt is None:
            waited.doubt = "not"
        waited.futures.append(future)

    def forget(self, sequence: int, future: "asyncio.Future[DeliveryReport]") -> None:
        """Nobody waits for ``future`` any more."""
        waited = self._waiters.get(sequence)
        if waited is None:
            return
        if future in waited.futures:
            waited.futures.remove(future)
        if not waited.futures:
            del self._waiters[sequence]

    def hold_off(self, error: DeliveryPendingError | None) -> None:
        """Nothing is delivered until somebody mends what is wrong: tell those who wait, and who comes; None: it is."""
        self._pending = error
        if error is None:
            return
        for sequence in list(self._waiters):
            for future in self._take_waiters(sequence):
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # a waiter that nobody awaits is no error

    def _take_waiters(self, sequence: int) -> "list[asyncio.Future[DeliveryReport]]":
        waited = self._waiters.pop(sequence, None)
        return [] if waited is None else waited.futures

    # -- for the lanes -----------------------------------------------------------------------------------------------

    async def announce(self, batch: LaneBatch, topic: str, metadata: RecordMetadata) -> None:
        """Call `on_delivery` for each record of an acknowledged batch, before it is settled."""
        if self._on_delivery is None:
            return
        for number, named in enumerate(named_of(batch)):
            await self._call(self._report(named, topic, metadata.partition, _offset(metadata, number)))
            if number % CALLBACKS_A_TURN == CALLBACKS_A_TURN - 1:
                await asyncio.sleep(0)

    async def announce_covered(self, named: Named, topic: str) -> None:
        """Call `on_delivery` for a record that is in Kafka, nobody knows where."""
        if self._on_delivery is not None:
            await self._call(self._report(named, topic, None, None))

    def collect(self, batch: LaneBatch, topic: str, metadata: RecordMetadata) -> list[tuple[int, DeliveryReport]]:
        """The reports that somebody waits for; to be handed to `tell` once the batch is settled."""
        self._remembered.keep(batch.frames, batch.count, metadata.partition, metadata.offset)
        if not self._waiters:
            return []
        wanted = []
        names = Names(batch)
        for number, (slot, place, position) in enumerate(placed_of(batch)):
            sequence = self._own_sequence(position)
            if sequence in self._waiters:
                named = names.of(number, slot, place, position)
                report = self._report(named, topic, metadata.partition, _offset(metadata, number))
                wanted.append((sequence, report))
        return wanted

    def tell(self, reports: list[tuple[int, DeliveryReport]]) -> None:
        """Wake those who waited."""
        for sequence, report in reports:
            for future in self._take_waiters(sequence):
                if not future.done():
                    future.set_result(report)

    def refuse(self, positions: Iterable[int], error: DeliveryError) -> None:
        """These stay in the ring, as their lane is halted: whoever asks for one is told why."""
        for position in positions:
            sequence = self._own_sequence(position)
            if sequence is not None:
                self._tell_refused(sequence, error)

    def lose(self, found: Recounted) -> None:
        """Damage was met where these records stood: tell those who wait for what is not there.

        Not before all that is in flight of what is damaged was settled: nothing tells the two apart. What this count
        found lost is not found again by the one that comes then; nor need one come (`look_again`).
        """
        moved = found.last <= self._ring.moved_up_to
        if found.lost and moved:
            self._doubt(found.first, found.last)
        for sequence, waited in list(self._waiters.items()):
            position = fmt.position(self._ring.epoch, sequence)
            if position in found.waiting:
                waited.doubt = None
            elif found.first <= position <= found.last:
                waited.doubt = waited.doubt or "not"
                if not found.held:
                    self._end_doubt(sequence, waited, lost=not moved or self._is_doubtful(position))

    def _doubt(self, first: int, last: int) -> None:
        """Damage took some of the moved records in between."""
        if (first, last) in self._doubtful:
            return
        self._doubtful.append((first, last))
        if len(self._doubtful) > DOUBTS_MOST:
            (one_first, one_last), (other_first, other_last) = self._doubtful[:2]
            self._doubtful[:2] = [(min(one_first, other_first), max(one_last, other_last))]

    async def look_again(self) -> None:
        """Nobody has a slot counted any more in which damage was met, for nothing waits there: tell whoever that ends.

        He is told what who asks now would be. Who waits for what is in somebody's hands waits on: its slot is there.
        """
        for number, (sequence, waited) in enumerate(list(self._waiters.items())):
            if number % LOOKS_A_TURN == LOOKS_A_TURN - 1:
                await asyncio.sleep(0)
            if self._waiters.get(sequence) is not waited:
                continue
            lost = self._directory.is_lost(sequence, waited.place)
            if (lost or waited.doubt is not None) and self._directory.is_settled(sequence, waited.place):
                position = fmt.position(self._ring.epoch, sequence)
                self._end_doubt(sequence, waited, lost=lost or self._is_doubtful(position))

    def _end_doubt(self, sequence: int, waited: _Waited, *, lost: bool) -> None:
        if lost:
            self._tell_refused(sequence, self._lost(sequence, persisted=waited.doubt or "not"))
        else:
            self.tell([(sequence, self._remember(waited.topic, sequence, waited.place))])

    def _is_lost(self, sequence: int, place: int) -> bool:
        """Whether damage took a record, or it cannot be told that it did not."""
        if self._directory.is_lost(sequence, place):
            return True
        doubtful = self._is_doubtful(fmt.position(self._ring.epoch, sequence))
        return doubtful and bool(self._directory.is_settled(sequence, place))

    def _is_doubtful(self, position: int) -> bool:
        return any(first <= position <= last for first, last in self._doubtful)

    def _lost(self, sequence: int, persisted: Persistence) -> PermanentDeliveryError:
        found = "before it was delivered" if persisted == "not" else "and it is not known whether it was delivered"
        message = f"damage took the record from the disk {found}: publish it again if you still have it"
        record_id = rec.record_id(self._producer_id, self._ring.epoch, sequence)
        return PermanentDeliveryError(f"{message} record_id={record_id}", persisted=persisted)

    # -- for dead letters --------------------------------------------------------------------------------------------

    def dead_report(self, taken: DeadRecord) -> DeliveryReport:
        """The report of a dead letter; an undecodable one has no topic, no time and no context."""
        report = self._report(taken.named, taken.topic, taken.partition, None)
        return msgspec.structs.replace(report, status="dead_lettered", error=str(taken.refusal))

    async def announce_dead(self, report: DeliveryReport) -> None:
        """Call `on_delivery` for a dead letter, before its record is settled."""
        if self._on_delivery is not None:
            await self._call(report)

    def bury(self, taken: DeadRecord) -> None:
        """A record is a dead letter: tell those who wait, and who asks later for one of the last ones."""
        self.on_buried(taken.named)
        sequence = self._own_sequence(taken.named.position)
        if sequence is not None:
            self._tell_refused(sequence, _Buried(taken.topic, taken.partition, taken.refusal))

    def _error(self, sequence: int, told: DeliveryError | _Buried) -> DeliveryError:
        if isinstance(told, DeliveryError):
            return told.with_traceback(None)  # else it would grow with each who asks
        topic, partition, refusal = told
        message = f"{refusal.event} and it is a dead letter: look at producer.dead_letters"
        record_id = rec.record_id(self._producer_id, self._ring.epoch, sequence)
        where = f"record_id={record_id} topic={topic} partition={partition} error={refusal}"
        return PermanentDeliveryError(f"{message} {where}", persisted=refusal.persisted)

    def _own_sequence(self, position: int) -> int | None:
        """Of a record of this epoch; nobody waits for those of earlier ones."""
        return position & fmt.SEQUENCE_MASK if position >> fmt.SEQUENCE_BITS == self._ring.epoch else None

    def _tell_refused(self, sequence: int, told: DeliveryError | _Buried) -> None:
        while len(self._refused) >= REMEMBERED_RECORDS:
            del self._refused[next(iter(self._refused))]
        self._refused[sequence] = told
        for future in self._take_waiters(sequence):
            if not future.done():
                future.set_exception(self._error(sequence, told))

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more will be delivered by this producer: tell whoever waits."""
        self._closed = True
        for waited in self._waiters.values():
            for future in waited.futures:
                if not future.done():
                    future.set_exception(_stopped())
                    future.exception()  # a waiter that nobody awaits is no error
        self._waiters.clear()

    # -- the report --------------------------------------------------------------------------------------------------

    def _report(self, named: Named, topic: str, partition: int | None, offset: int | None) -> DeliveryReport:
        found = _record_at(named.slot, named.place)
        return DeliveryReport(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=found[rec.TIMESTAMP] if found is not None else None,
            record_id=named.record_id,
            context=found[rec.CONTEXT] if found is not None else None,
        )

    async def _call(self, report: DeliveryReport) -> None:
        """Whatever it raises is its error, its own cancellation too; but for what is to end the process."""
        steps = Steps()
        try:
            result = steps.first(self._on_delivery, report)  # type: ignore[arg-type]
            if inspect.isawaitable(result):
                await self._await(steps.rest(result))
            if steps.cancels_itself:
                raise asyncio.CancelledError("on_delivery has cancelled the task that calls it")  # noqa: TRY301
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if steps.closed:
                raise
            if await steps.take_back():  # we are being stopped
                raise asyncio.CancelledError from error
            self.callback_errors += 1
            self._tell_failed(report, error)

    def _tell_failed(self, report: DeliveryReport, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._told < TELL_INTERVAL:
            return
        self._told = now
        log.error(
            "on_delivery failed, delivery goes on record_id=%s callback_errors=%d",
            report.record_id,
            self.callback_errors,
            exc_info=error,
        )

    @property
    def in_callback(self) -> bool:
        """Whoever asks is the callback: nothing that waits for it may be awaited there."""
        return asyncio.current_task() in self._calling

    async def _await(self, result: Awaitable[None]) -> None:
        task: Any = asyncio.current_task()
        self._calling.add(task)
        try:
            async with asyncio.timeout(CALLBACK_LIMIT):
                await result
        finally:
            self._calling.discard(task)

    # -- reports asked for afterwards --------------------------------------------------------------------------------

    def _remember(self, topic: str, sequence: int, place: int) -> DeliveryReport:
        """The report of a record that is settled already."""
        report = self._recall(topic, sequence, place)
        return report if report is not None else self._settled_report(topic, sequence, None, None, None, place)

    def _recall(self, topic: str, sequence: int, place: int) -> DeliveryReport | None:
        """The report of one of the records settled last; None for all others."""
        found = self._remembered.find(sequence, place)
        if found is None:
            return None
        return self._settled_report(topic, sequence, found.partition, found.offset_of(place), found.slot, place)

    def _settled_report(
        self,
        topic: str,
        sequence: int,
        partition: int | None,
        offset: int | None,
        slot: Slot | None,
        place: int,
    ) -> DeliveryReport:
        found = _record_at(slot, place) if slot is not None else None
        return DeliveryReport(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=found[rec.TIMESTAMP] if found is not None else None,
            record_id=rec.record_id(self._producer_id, self._ring.epoch, sequence),
            context=found[rec.CONTEXT] if found is not None else None,
        )


def _record_at(slot: Slot, place: int) -> Any:
    """The frame's record; None where the slot is not mapped any more, or what stands there cannot be decoded."""
    try:
        return record_at(slot, place)
    except (
        ValueError,
        RecursionError,
        WalCorruptError,
    ):  # it may be in Kafka all the same, and the disk has failed since it was read
        return None


def _offset(metadata: RecordMetadata, number: int) -> int | None:
    """The offset of a batch's record; None when the broker had seen the batch before and does not tell."""
    return metadata.offset + number if metadata.offset >= 0 else None


def _stopped() -> ClosedError:
    message = "the producer was stopped before the record was settled: it is delivered after the next start"
    return ClosedError(message)


def tell_halted(lane: Lane) -> None:
    """Loud, once, and what to do."""
    log.error(
        "the lane is halted and its records stay in the ring: %s topic=%s partition=%d error=%s",
        lane.remedy,
        lane.topic,
        lane.partition,
        lane.halted,
    )
