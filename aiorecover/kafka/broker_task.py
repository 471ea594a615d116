"""One task a broker: gather what can go, one request in flight, then what each answer means.

A second task of the same broker, on a connection of its own, takes the lanes that are in trouble: a partition that
waits for its replicas is answered late, and would hold up its neighbours in the same request.
"""

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from aiokafka import errors as kafka

from aiorecover.errors import WalError
from aiorecover.kafka.client import FAILURES
from aiorecover.kafka.lanes import DeliveryLane, Event, LaneState
from aiorecover.kafka.outcomes import LOST, NOT_SENT, Action, Outcome, outcome_of
from aiorecover.kafka.produce import Answers
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

REQUEST_BYTES = 4 << 20  # a request: more gains nothing, and a broker takes 100 MB at the most
REQUEST_LANES = 256
FRESH_LANES = 32  # not acknowledged yet: the first batches of a partition cost the broker some 25 ms each
ENOUGH = 128 << 10  # bytes: an open batch of so many does not linger
SLICE = 32  # batches between two turns for the loop
EMPTY_S = 0.01  # before a batch is looked at again that has no record yet
BROKER_TIMEOUT_MS = 1000  # that replicas may take: a partition without them is answered apart from its neighbours
BROKER_TIMEOUT_MAX_MS = 30_000
CUTS = 3  # requests that were cut while the broker answers others: they are too large
CUT_LEAST = 16 << 10  # bytes: no broker takes so few
CUT_MEMORY_S = 300.0  # then larger ones are tried again

_log = logging.getLogger("aiorecover")


class _Look:
    """One look through the lanes of a broker: what can go, and when to look again."""

    def __init__(self, now: float, linger: float, most_bytes: int, most_lanes: int) -> None:
        self.now, self.linger = now, linger
        self.most_bytes, self.most_lanes = most_bytes, most_lanes
        self.chosen: list[DeliveryLane] = []
        self.nearly: list[DeliveryLane] = []  # would be due within half a linger: go along where another one goes
        self.size = 0  # bytes of these batches
        self.fresh = FRESH_LANES
        self.go = False
        self.due: float | None = None

    def later(self, due: float) -> None:
        """Look again at ``due``, or before."""
        self.due = due if self.due is None else min(self.due, due)

    def full(self) -> bool:
        """Whether the request takes no more."""
        return self.size >= self.most_bytes or len(self.chosen) + len(self.nearly) >= self.most_lanes

    def takes(self, size: int) -> bool:
        """Count a batch in, unless the request becomes too large by it; one batch always goes."""
        if self.size and self.size + size > self.most_bytes:
            return False
        self.size += size
        return True


class BrokerTask:
    """The lanes that one broker leads, and the one request that is in flight to it."""

    def __init__(self, delivery: "Delivery", node: int, *, apart: bool) -> None:
        self.delivery, self.node, self.apart = delivery, node, apart
        self.lanes: dict[DeliveryLane, None] = {}
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.timeout_ms = BROKER_TIMEOUT_MS
        self.quiet_until = 0.0  # the broker throttles
        self.most_lanes = REQUEST_LANES
        self.most_bytes = REQUEST_BYTES  # of a request: more were cut
        self._cuts: list[int] = []  # sizes of the requests that were cut
        self._cut_at = 0.0
        self._sleeps_until = math.inf  # loop time; while it does not sleep, each lane that comes wakes it

    def start(self) -> None:
        """Begin; in the loop."""
        self.task = self.delivery.spawn(self._run(), f"aiorecover-broker-{self.node}")

    def add(self, lane: DeliveryLane) -> None:
        """Look at a lane from now on."""
        self.lanes[lane] = None
        lane.task = self
        if lane.state is LaneState.SEALED or lane.due < self._sleeps_until:
            self.wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.wake.clear()
            lanes, due = await self._gather(loop.time())
            if lanes:
                await self._deliver(lanes)
                continue
            self._sleeps_until = math.inf if due is None else due
            timer = None if due is None else loop.call_at(due, self.wake.set)
            try:
                await self.wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
            self._sleeps_until = math.inf

    # -- what can go ---------------------------------------------------------------------------------------------------

    async def _gather(self, now: float) -> tuple[list[DeliveryLane], float | None]:
        """Return the lanes whose oldest batch goes into the next request, sealed; or when to look again."""
        if self.delivery.ring.recovering:  # what earlier lives left comes first; `Delivery.begin` wakes the task
            return [], None
        if self.quiet_until > now:
            return [], self.quiet_until
        if self._cut_at and now - self._cut_at > CUT_MEMORY_S:
            self._cut_at, self._cuts, self.most_bytes = 0.0, [], REQUEST_BYTES
        look = _Look(now, self.delivery.linger(len(self.lanes)), self.most_bytes, self.most_lanes)
        for lane in list(self.lanes):
            if look.full():
                look.go = True
                break
            await self._consider(lane, look)
        if look.go:
            self.wake.set()  # for the rest
            look.chosen += self._seal(look.nearly)
        for lane in look.chosen:  # the others come first next time
            if lane in self.lanes:
                self.lanes[lane] = self.lanes.pop(lane)
        return [lane for lane in look.chosen if lane.state is LaneState.SEALED and lane.head is not None], look.due

    async def _consider(self, lane: DeliveryLane, look: _Look) -> None:
        if lane.state is LaneState.BACKING_OFF:
            if lane.due > look.now:
                look.later(lane.due)
                return
            lane.step(Event.DUE)
        if not (lane.acknowledged or look.fresh):
            return
        if lane.state is LaneState.FILLING:
            self._consider_open(lane, look)
            return
        await self.delivery.load(lane)
        batch = lane.head
        if lane.state is LaneState.SEALED and batch is not None and self._may_go(lane, batch):
            look.go = True
            if look.takes(batch.size):
                look.chosen.append(lane)
                look.fresh -= not lane.acknowledged

    def _consider_open(self, lane: DeliveryLane, look: _Look) -> None:
        """An open batch goes when it has lingered, or is large enough."""
        cursor = lane.stored.published
        if not cursor.index:  # a batch was opened, and there was no room for the record
            if cursor.batch is None:
                self.delivery.router.go_on(lane)
            else:
                look.later(look.now + max(look.linger, EMPTY_S))
            return
        size = cursor.position - _start(lane)
        if size < ENOUGH and lane.due > look.now:
            look.later(lane.due)
            if lane.due > look.now + look.linger / 2:
                return
        else:
            look.go = True
        if look.takes(size):
            look.nearly.append(lane)
            look.fresh -= not lane.acknowledged

    def _seal(self, lanes: list[DeliveryLane]) -> list[DeliveryLane]:
        sealed = []
        for lane in lanes:
            cursor = lane.stored.published
            if lane.state is LaneState.FILLING and cursor.batch is not None and cursor.index:
                cursor.seal()  # `Router.ready` steps the lane
                batch = lane.head
                if batch is not None and self._may_go(lane, batch):
                    sealed.append(lane)
        return sealed

    def _may_go(self, lane: DeliveryLane, batch: Batch) -> bool:
        """Whether a batch may be sent; else it is looked at again when what it waits for has come."""
        gate = lane.topic.gate
        if gate is not None and batch.order > gate:
            self.delivery.hold_for_gate(lane)
            return False
        if self.delivery.always and not batch.safe:
            self.delivery.hold_for_flush(lane)
            return False
        if self.delivery.hold_for_check(lane, batch):
            return False
        if batch.count > 1 and batch.size > min(lane.most, self.most_bytes):
            self.delivery.refused(lane, batch, "larger than what has passed")
            return False
        return True

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _deliver(self, lanes: list[DeliveryLane]) -> None:
        delivery = self.delivery
        batches = [batch for lane in lanes if (batch := lane.head) is not None]
        for lane in lanes:
            lane.step(Event.SENT)
        try:
            request = await delivery.build(lanes, batches, self.timeout_ms)
            delivery.check_owner()
        except WalError as error:
            delivery.stop_delivering(error)
            return
        delivery.requests += 1
        try:
            limit = delivery.request_timeout_s + self.timeout_ms / 1000
            answers = await delivery.client.produce(self.node, request, apart=self.apart, timeout_s=limit)
        except kafka.NodeNotReadyError:
            reason = delivery.client.cause or NOT_SENT.reason
            delivery.throttle.warn("broker_unreachable", self.node, "%s node=%d", reason, self.node)
            self._unanswered(lanes, NOT_SENT._replace(reason=reason))
        except FAILURES as error:
            if any(lane.tries for lane in lanes):  # once is nothing: a broker may end a session at any time
                delivery.throttle.warn("request_lost", self.node, "no answer node=%d error=%r", self.node, error)
            too_large = await self.cut(self.node, sum(batch.size for batch in batches), error)
            if too_large is not None and len(lanes) == 1:
                delivery.too_large(lanes[0], batches[0], too_large)
                return
            self._unanswered(lanes, LOST)
        else:
            await self._answered(lanes, batches, answers)

    def _unanswered(self, lanes: list[DeliveryLane], outcome: Outcome) -> None:
        for lane in lanes:
            self.delivery.failed(lane, outcome, logged=True)
        self.delivery.client.stale = True

    async def cut(self, node: int, size: int, error: BaseException) -> str | None:
        """Remember a request that was cut; once there are enough, what is wrong with them.

        A broker closes the connection at a request that is above its limit (``socket.request.max.bytes``), and says
        nothing; one that answers a small one right away is well otherwise.
        """
        closed = isinstance(error, kafka.KafkaConnectionError | ConnectionError | RuntimeError)
        if not closed or size < CUT_LEAST or not await self.delivery.client.answers(node):
            return None
        self._cuts.append(size)
        self._cut_at = self.delivery.now()
        if len(self._cuts) < CUTS:
            return None
        size = min(self._cuts)
        self._cuts, self.most_bytes = [], max(CUT_LEAST, min(size, self.most_bytes) // 2)
        reason = f"the broker closes the connection at a request of {size} bytes: see its socket.request.max.bytes"
        self.delivery.throttle.warn("request_too_large", node, "%s node=%d next=%d", reason, node, self.most_bytes)
        return reason

    async def _answered(self, lanes: list[DeliveryLane], batches: list[Batch], answers: Answers) -> None:
        self._passed(sum(batch.size for batch in batches))
        outcomes = self.outcomes(self.node, lanes, answers)
        passed = [
            (lane, batch, offset)
            for batch, (lane, outcome, offset) in zip(batches, outcomes, strict=True)
            if outcome.action is Action.DONE
        ]
        self._adapt(passed=bool(passed), late=all(one.action is Action.FOLLOWERS for _, one, _ in outcomes))
        await self.delivery.settle(passed, SLICE)
        for batch, (lane, outcome, _) in zip(batches, outcomes, strict=True):
            if outcome.action is not Action.DONE:
                self._refused(lane, batch, outcome, others=bool(passed))

    def outcomes(
        self, node: int, lanes: list[DeliveryLane], answers: Answers
    ) -> list[tuple[DeliveryLane, Outcome, int]]:
        """Heed the broker's throttle; return each lane of a request with its outcome and the batch's offset."""
        if answers.throttle_ms > 0:
            self.quiet_until = self.delivery.now() + answers.throttle_ms / 1000
            self.delivery.throttled(node, answers.throttle_ms)
        by_place = {(one.topic, one.partition): one for one in answers.partitions}
        found = []
        for lane in lanes:
            answer = by_place.get((lane.stored.topic, lane.stored.partition))
            found.append((lane, LOST, -1) if answer is None else (lane, outcome_of(answer.code), answer.offset))
        return found

    def _passed(self, size: int) -> None:
        """Take note that a request was answered: smaller ones were cut for another reason."""
        self._cuts = [one for one in self._cuts if one > size]
        self.delivery.throttle.over("broker_unreachable", self.node, "the broker is reached again node=%d", self.node)
        self.delivery.throttle.over("request_lost", self.node, "the broker answers again node=%d", self.node)

    def _adapt(self, *, passed: bool, late: bool) -> None:
        if passed:
            self.timeout_ms = BROKER_TIMEOUT_MS
        elif late:  # the broker is slow, or all its partitions wait: no lane is in trouble beside the others
            self.timeout_ms = min(2 * self.timeout_ms, BROKER_TIMEOUT_MAX_MS)

    def _refused(self, lane: DeliveryLane, batch: Batch, outcome: Outcome, *, others: bool) -> None:
        delivery = self.delivery
        delivery.errors += 1
        if outcome.action is Action.SPLIT:
            delivery.too_large(lane, batch, outcome.reason)
        elif outcome.action is Action.REFUSED:
            delivery.refused(lane, batch, outcome.reason)
        elif outcome.action in (Action.NEW_IDENTITY, Action.NEW_PRODUCER):
            delivery.lost_identity(lane, batch, outcome)
        else:
            if outcome.action is Action.FOLLOWERS and others:
                lane.trouble = True
            delivery.failed(lane, outcome)


def _start(lane: DeliveryLane) -> int:
    batch = lane.stored.published.batch
    return lane.stored.published.position if batch is None else batch.segment.at + batch.at
