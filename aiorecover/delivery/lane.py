"""The ordered stream of one (topic, partition): what is open, what is ready, and its Kafka identity. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.size_limit import SizeLimit
from aiorecover.errors import DeliveryPendingError, PermanentDeliveryError

SEQUENCE_MODULUS = 1 << 31  # Kafka's sequences are signed 32-bit integers that wrap to zero
EPOCH_LIMIT = (1 << 15) - 1  # Kafka's producer epochs are signed 16-bit integers

# How a halted lane is set going again, for logs and errors.
MEND_TOPIC = 'mend the topic and start anew, or start with on_permanent_error="dead_letter"'
MAKE_ROOM = "export producer.dead_letters and purge them, then it goes on by itself"
START_ANEW = "stop and start anew"

REMEMBERED = 5  # batches of a producer id in a partition that Kafka answers as repeats

MAX_READY = 2  # full batches waiting behind the one in flight: the next is there when the acknowledgement comes


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the broker takes a lane for: a producer id and epoch."""

    producer_id: int
    epoch: int

    def next_epoch(self) -> "Identity | None":
        """The identity that replaces this one in a living process; None when Kafka's epochs are used up."""
        if self.epoch >= EPOCH_LIMIT - 1:
            return None
        return Identity(self.producer_id, self.epoch + 1)

    def fence(self, spread: Callable[[float, float], float]) -> "Identity | None":
        """The identity with which a later process has the broker refuse this one; None when the epochs are used up.

        ``spread``: a number between two, at random: two copies of a directory would else take the same epoch, and the
        broker the batch of the one for a repeat of the other's. Half of the epochs are left for those that come after.
        """
        left = EPOCH_LIMIT - 1 - self.epoch
        if left <= 0:
            return None
        return Identity(self.producer_id, self.epoch + 1 + int(spread(0, left // 2)))


class Lane:
    """One partition's state. Strict order: one batch in flight, the next only after its acknowledgement."""

    __slots__ = (
        "answers",
        "block",
        "closed",
        "delivering",
        "due",
        "entered",
        "failing",
        "fence",
        "halted",
        "held",
        "identity",
        "in_flight",
        "inherited",
        "leaves",
        "limit",
        "no_room",
        "offset",
        "open",
        "partition",
        "ready",
        "remedy",
        "sequence",
        "settled",
        "spent",
        "stalled",
        "topic",
        "unwritten",
    )

    def __init__(self, topic: str, partition: int) -> None:
        """Start with nothing, and no identity: the first batch takes one."""
        self.topic = topic
        self.partition = partition
        self.open: LaneBatch | None = None
        self.ready: deque[LaneBatch] = deque()
        self.in_flight: LaneBatch | None = None
        self.identity: Identity | None = None
        self.sequence = 0
        self.fence: Identity | None = None  # has what the last process had in flight refused, when it is not sent again
        self.inherited = False  # its identity is such a fence, or a later epoch of one
        self.spent: int | None = None  # the producer id of which it has used up the epochs, last
        self.offset = -1  # Kafka's, of the newest record that was acknowledged; -1: unknown
        self.answers: tuple[tuple[int, tuple[int, int, int] | None], ...] = ()  # where which identity was acknowledged
        self.block: int | None = None  # where its entry stands in the file `lanes`
        self.no_room = ""  # why it has no block yet, though it needs one: it sends nothing until there is room
        self.held = False  # what the last process had in flight comes first, and is not built again yet
        self.leaves = False  # its partition is gone: it sends nothing until its records have found another lane
        self.entered: LaneBatch | None = None  # what stands in its entry, and may be in Kafka without our knowing
        self.unwritten = False  # its batches are sent though the disk takes no entry
        self.due = False  # the open batch has lingered enough
        self.limit: SizeLimit | None = None  # of its batches, where the topic has refused one as too large
        self.halted: str | None = None  # why it stands: a permanent error, or no room for a dead letter
        self.remedy = ""  # what sets it going again
        self.failing = False  # what it has in flight does not get through, so far
        self.stalled = False  # its records are passed over: it does not get through, or nobody is to wait until it does
        self.delivering = False  # a task is at work on it
        self.closed = 0  # records in batches that were closed
        self.settled = 0  # records acknowledged

    @property
    def added(self) -> int:
        """Records handed to it so far."""
        return self.closed + (self.open.count if self.open is not None else 0)

    @property
    def blocked(self) -> bool:
        """No further batch may be begun."""
        return len(self.ready) >= MAX_READY

    @property
    def passed_over(self) -> bool:
        """It takes no records: it is stalled, or halted."""
        return self.stalled or self.halted is not None

    @property
    def first(self) -> LaneBatch | None:
        """The batch with its oldest record."""
        return self.in_flight or (self.ready[0] if self.ready else self.open)

    @property
    def batches(self) -> Iterator[LaneBatch]:
        """What it holds, oldest first."""
        return (batch for batch in (self.in_flight, *self.ready, self.open) if batch is not None)

    @property
    def holds_nothing(self) -> bool:
        """No record is in it."""
        return self.first is None and not self.held

    @property
    def resumes(self) -> bool:
        """It is halted for want of room, and goes on by itself."""
        return self.halted is not None and self.remedy == MAKE_ROOM

    @property
    def gone(self) -> bool:
        """It is halted for good: what comes for it is refused until the next start."""
        return self.halted is not None and not self.resumes

    @property
    def closed_bytes(self) -> int:
        """Of its batches that are ready or in flight."""
        sent = self.in_flight.bytes if self.in_flight is not None else 0
        return sent + sum(batch.bytes for batch in self.ready)

    def halt(self, why: str, remedy: str) -> None:
        """Send nothing more; its records stay in the ring."""
        self.halted = why
        self.remedy = remedy

    def go_on(self) -> None:
        """What halted it is mended."""
        self.halted = None
        self.remedy = ""

    def close_open(self) -> LaneBatch | None:
        """Move the open batch to the ready ones; it, or None when there was nothing in it."""
        batch = self.open
        if batch is not None and batch.count:
            batch.finish()  # first: if it fails, the lane still holds its records
        # No call from here on: a signal handler may raise in any, and then the batch would be in no place, or in two.
        self.open = None
        self.due = False
        if batch is None or batch.count == 0:
            return None
        self.closed += batch.count
        self.ready += [batch]
        return batch

    def next(self) -> LaneBatch | None:
        """Take the next batch to send, under the lane's identity."""
        if self.in_flight is not None or not self.ready or self.held or self.leaves:
            return None
        self.in_flight = self.ready.popleft()
        return self.in_flight

    def resume(self, offset: int, block: int) -> None:
        """Go on where the last process stood, but not as what it was: only a batch in flight keeps its identity.

        Sequences go on from an entry only if nobody has used them since, and a directory that was restored from a
        copy of it does not know: the broker would take new batches for those that it has under the same numbers.
        """
        self.offset = offset
        self.block = block

    def inherit(self, fence: Identity | None) -> None:
        """What the last process had in flight is not sent again, and may still come: what is sent is its ``fence``."""
        self.identity = fence
        self.inherited = fence is not None

    def hold(self, count: int) -> None:
        """Send nothing before the ``count`` records that the last process had in flight."""
        self.held = True
        self.closed += count

    def release(self, batch: LaneBatch, fence: Identity | None) -> None:
        """``batch`` is what was in flight, as it was: it goes first.

        ``fence``: what the lane goes on under, should it part with it before Kafka has acknowledged it. No epoch of the
        session that we have now says anything of it to the broker.
        """
        self.held = False
        self.fence = fence
        self.entered = batch
        self.ready.appendleft(batch)

    def give_away(self, left: Iterable[LaneBatch | None]) -> None:
        """What is ready has found other lanes, but for what is ``left``; nothing of it stands in the journal by now."""
        kept = [batch for batch in left if batch is not None]
        self.settled += sum(batch.count for batch in self.ready) - sum(batch.count for batch in kept)
        self.ready = deque(kept)
        self.begin_anew()

    def take_over(self, batch: LaneBatch) -> None:
        """``batch`` has come from the lane of a partition that is gone."""
        self.closed += batch.count
        self.ready.append(batch)

    def put_back(self) -> None:
        """The batch in flight is to be sent again, as it is, before all others."""
        if self.in_flight is not None:
            self.ready.appendleft(self.in_flight)
        self.in_flight = None

    def rewind(self, back: Iterable[LaneBatch]) -> None:
        """Begin anew under another identity, with what was acknowledged in a transaction that was not committed."""
        back = list(back)
        self.settled -= sum(batch.count for batch in back)
        self.ready.extendleft(reversed(back))
        for batch in self.ready:
            batch.forget_attempts()
        self.identity = None
        self.sequence = 0
        self.leaves = False

    def identify(self, batch: LaneBatch, fresh: Identity) -> None:
        """Give ``batch`` its place in the lane's sequence, once; ``fresh`` is used where the lane has no identity."""
        if self.identity is None:
            self.identity = fresh
            self.sequence = 0
        if batch.identity is not None:
            return
        batch.identify(self.identity.producer_id, self.identity.epoch, self.sequence)
        self.sequence = (self.sequence + batch.count) % SEQUENCE_MODULUS

    def renew(self, batch: LaneBatch, fresh: Identity) -> None:
        """Take a fresh identity, because the broker no longer follows the old one; ``batch`` is its first.

        ``fresh``: used where the lane has none, or no further epoch (`used_up`).
        """
        self.begin_anew()
        self.identity = self.identity or fresh
        batch.identify(self.identity.producer_id, self.identity.epoch, 0)
        self.sequence = batch.count % SEQUENCE_MODULUS

    def take_back(self, batch: LaneBatch, fresh: Identity) -> None:
        """Kafka refused ``batch`` for good: the next batch takes its place in the sequence.

        Only if no attempt of it was possibly persisted: the broker would swallow the next batch as a repeat. Otherwise
        the next one is the first of a fresh identity. ``batch`` itself, should it be sent once more after all, takes
        its place in the sequence anew: two batches never go under one number.
        """
        if batch.possibly or batch.identity is None:
            self._fence_off()
            self.identity = self.identity or fresh
        else:
            self.sequence = batch.identity[2]
        batch.identity = None

    def part_with(self, batch: LaneBatch) -> None:
        """``batch`` is not sent any more as it is, whatever Kafka has of it: as `take_back`, but without a session."""
        if batch.possibly:
            self._fence_off()
        elif batch.identity is not None:
            self.sequence = batch.identity[2]
        batch.identity = None

    def parted(self, count: int, rest: LaneBatch | None) -> None:
        """The first ``count`` records of the batch in flight are settled; ``rest`` goes in its place."""
        batch, self.in_flight = self.in_flight, None
        self.settled += count
        if rest is not None:
            self.ready.appendleft(rest)
        elif batch is not None:
            self._forget_entered(batch)

    def too_large(self, batch: LaneBatch, largest: int, now: float, spread: Callable[[float, float], float]) -> None:
        """The topic refused ``batch`` as that; ``largest``: bytes of the largest part that goes in its place."""
        self.limit = self.limit or SizeLimit(batch.bytes, spread)
        self.limit.refused(batch.bytes, largest, now, whole=batch.earlier == 0)

    def has_outgrown(self, batch: LaneBatch) -> bool:
        """Whether ``batch`` was filled before a smaller one was refused as too large."""
        return self.limit is not None and batch.bytes > self.limit.bytes and batch.is_fresh and not batch.probes

    @property
    def at_last_epoch(self) -> bool:
        """A fresh identity is one of another producer id."""
        return self.identity is not None and self.identity.next_epoch() is None

    @property
    def used_up(self) -> int | None:
        """The producer id that must not be taken for a fresh identity: the broker has had all of its epochs."""
        return self.identity.producer_id if self.identity is not None and self.at_last_epoch else self.spent

    def replace(self, parts: Sequence[LaneBatch]) -> None:
        """``parts``, in order, go in the place of the batch in flight; they get their identities as they are sent."""
        self.in_flight = None
        self.ready.extendleft(reversed(parts))

    def acknowledged(self, offset: int = -1) -> LaneBatch | None:
        """The batch in flight is in Kafka, from ``offset`` on; -1: the broker does not tell."""
        batch, self.in_flight = self.in_flight, None
        self.fence = None  # it was the first one, if there was any
        if batch is not None:
            self._forget_entered(batch)
            self.settled += batch.count
            if offset >= 0:
                self.offset = offset + batch.count - 1
                self.answers = (*self.answers, (offset, batch.identity))[-REMEMBERED:]
        return batch

    def is_swallowed(self, batch: LaneBatch, offset: int) -> bool:
        """Whether Kafka has taken ``batch`` for a repeat of an earlier one, which it has at ``offset``.

        Under another identity it has not: then the topic was made anew, or its log was cut, and the batch is there.
        """
        return (offset, batch.identity) in self.answers

    def _forget_entered(self, settled: LaneBatch) -> None:
        """Its entry is spent; also what was cut and settled part by part, once nothing is left."""
        if settled is self.entered or self.first is None:
            self.entered = None

    def begin_anew(self) -> None:
        """Take a fresh identity for the next batch: the partition is not the one that it was."""
        self.spent = self.used_up
        self.identity = self.identity.next_epoch() if self.identity is not None else None
        self.inherited = self.inherited and self.identity is not None
        self.sequence = 0
        self.fence = None

    def overtaken(self, spread: Callable[[float, float], float] | None = None) -> None:
        """The broker does not follow the lane's identity: `renew` it.

        Where it is a fence, a copy of the directory uses it, too: then no epoch of it is any good, and the next
        identity is another producer id.

        ``spread``, as of `Identity.fence`: the broker knows a later epoch. Then somebody else uses it, the very next
        one most likely, and the broker would take the lane's batches for repeats of theirs: it goes on far above.
        """
        if self.inherited:
            self.identity = None
            self.inherited = False
        elif self.identity is not None and spread is not None:
            self.identity = self.identity.fence(spread) or self.identity

    def _fence_off(self) -> None:
        """A batch may be on its way to Kafka, and is not sent again: what follows must have it refused there (I6)."""
        fence = self.fence
        self.begin_anew()
        if fence is not None:
            self.identity, self.inherited = fence, True


def lane_halted(lane: Lane, batch: LaneBatch | None = None) -> PermanentDeliveryError:
    """Of a halted lane: for who waits for all, or for a record of ``batch``, in which the one at fault stands."""
    message = f"the lane is halted and its records stay in the ring: {lane.remedy}"
    return PermanentDeliveryError(f"{message} {_where(lane)}", persisted=_persisted(batch))


def lane_waits(lane: Lane, batch: LaneBatch | None = None) -> DeliveryPendingError:
    """For who waits for a record of it that is not at fault; ``batch``: the one that it stands in, if in any."""
    message = "the record waits in the ring for its lane, which is halted: do not publish it again"
    after = f"it is delivered after the next start: {lane.remedy} {_where(lane)}"
    return DeliveryPendingError(f"{message}, {after}", persisted=_persisted(batch))


def _where(lane: Lane) -> str:
    return f"topic={lane.topic} partition={lane.partition} error={lane.halted}"


def _persisted(batch: LaneBatch | None) -> str:
    return "possibly" if batch is not None and batch.maybe_there else "not"
