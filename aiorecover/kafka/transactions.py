"""Exactly once (R12): one task sends the batches of all brokers, in transactions with a number each.

The number is stored in the batches, durably, before the transaction begins, and committed with it as the offset of a
group that nothing else uses (KIP-618's way). After a start this number tells which batches Kafka has; states and
identities do not count.

    fence → read N → settle 0 < number ≤ N → clear numbers above N → number, store, flush → add partitions until
    every one answers 0 → produce → add and commit the offset → commit → settle
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka
from aiokafka.client import CoordinationType
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from aiorecover.errors import DeliveryError, WalDestinationError, WalError
from aiorecover.kafka.broker_task import BrokerTask
from aiorecover.kafka.client import FAILURES
from aiorecover.kafka.lanes import DeliveryLane, Event, LaneState
from aiorecover.kafka.offset_fetch import UNSTABLE, StableOffsetFetch, answered
from aiorecover.kafka.outcomes import LOST, NOT_SENT, Action, Outcome, Persisted, outcome_of
from aiorecover.kafka.produce import ProduceRequest, payload
from aiorecover.ring.format import TRANSACTION_AT
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

POSITION = ("__consumer_offsets", 0)  # where the group's offset stands: a partition that every cluster has
LANES = 1000  # of one transaction
AGAIN_S = 0.05  # before a coordinator is asked again
AGAIN_CODES = frozenset({14, 15, 16, 51})  # loading, not available, not the coordinator, the last one is not over
FENCED_CODES = frozenset({47, 90})
NO_TOPIC_RIGHT = 29
TRANSACTIONAL = 0x10  # in a batch's attributes

_log = logging.getLogger("aiorecover")


class AbortedError(DeliveryError):
    """The transaction came to nothing; its batches are sent in another one."""


class TransactionTask(BrokerTask):
    """The lanes of all brokers, and the one transaction that is open."""

    def __init__(self, delivery: "Delivery", transactional_id: str, timeout_ms: int) -> None:
        super().__init__(delivery, -1, apart=False)
        self.transactional_id, self.transaction_timeout_ms = transactional_id, timeout_ms
        self.most_lanes = LANES
        self.number = 0  # of the last transaction that was begun
        self._producer = (-1, -1)  # Kafka producer id and epoch; (-1, -1): it has to be fenced first
        self._coordinators: dict[CoordinationType, int] = {}

    async def _deliver(self, lanes: list[DeliveryLane]) -> None:
        delivery = self.delivery
        try:
            if self._producer[0] < 0:
                await self._begin()
                return  # what was in Kafka is settled now: look again
            delivery.check_owner()
        except WalError as error:
            delivery.stop_delivering(error)
            return
        except (*FAILURES, AbortedError) as error:
            await self._back_off(lanes, error)
            return
        batches = [batch for lane in lanes if (batch := lane.head) is not None]
        for lane in lanes:
            lane.step(Event.SENT)
        try:
            offsets = await self._transaction(lanes, batches)
        except WalError as error:
            delivery.stop_delivering(error)
        except _RefusedError as refused:
            await self._give_up(lanes, batches, refused)
        except (*FAILURES, AbortedError) as error:
            await self._give_up(lanes, batches, None, error)
        else:
            delivery.ring.settled_transaction = self.number
            await delivery.settle(list(zip(lanes, batches, offsets, strict=True)), 32)

    async def _back_off(self, lanes: list[DeliveryLane], error: BaseException) -> None:
        """Log why no transaction can be begun, and wait a moment."""
        delivery = self.delivery
        delivery.throttle.warn("transaction_failed", "begin", "no transaction can be begun: %s", error)
        for lane in lanes:
            lane.error = str(error)
        await asyncio.sleep(delivery.options.backoff_s)

    # -- before the first one, and after one that came to nothing ------------------------------------------------------

    async def _begin(self) -> None:
        """Fence the process that had the transactional id before; settle the batches that Kafka has, by number."""
        delivery = self.delivery
        request = InitProducerIdRequest(self.transactional_id, self.transaction_timeout_ms)
        answer = await self._ask(CoordinationType.TRANSACTION, request, lambda one: [one.error_code])
        producer = answer.producer_id, answer.producer_epoch
        fetch = StableOffsetFetch(self.transactional_id, *POSITION)
        answer = await self._ask(CoordinationType.GROUP, fetch, lambda one: [answered(one)[2]])
        known = answered(answer)[0]
        ring = delivery.ring
        if known < 0:  # unknown, not zero: the group's offsets may have expired
            known = ring.settled_transaction
        self.number = max(known, ring.transaction, self.number)
        await self._settle_known(known)
        for lane in delivery.router.lanes.values():
            lane.producer = None
        self._producer = producer  # last: until N is known, nothing may be sent
        delivery.settled_before = True

    async def _settle_known(self, known: int) -> None:
        delivery = self.delivery
        for lane in list(delivery.router.lanes.values()):
            while True:
                await delivery.load(lane)
                numbered = [batch for batch in lane.stored.queue if batch.transaction]
                done = [batch for batch in numbered if batch.transaction <= known]
                for batch in numbered:
                    if batch.transaction > known:
                        self._store_number([batch], 0)
                for batch in done:
                    delivery.settle_found(lane, batch)
                if not done:
                    break
            if lane.state is LaneState.SEALED:
                delivery.router.go_on(lane)
        delivery.waiters.check()

    # -- one transaction -----------------------------------------------------------------------------------------------

    async def _transaction(self, lanes: list[DeliveryLane], batches: list[Batch]) -> list[int]:
        """Send batches and commit; return their offsets."""
        delivery = self.delivery
        self.number += 1
        delivery.ring.transaction = self.number
        await self._store_numbers(batches, self.number)
        await delivery.flushed()
        await self._add_partitions(lanes)
        offsets = await self._produce_all(lanes, batches)
        await self._commit()
        return offsets

    async def _store_numbers(self, batches: list[Batch], number: int) -> None:
        if all(batch.segment.mapping is not None for batch in batches):
            self._store_number(batches, number)
        else:
            await self.delivery.in_thread(self._store_number, batches, number)

    def _store_number(self, batches: list[Batch], number: int) -> None:
        for batch in batches:
            batch.segment.store(batch.at + TRANSACTION_AT, number)
            batch.transaction = number

    async def _add_partitions(self, lanes: list[DeliveryLane]) -> None:
        topics: dict[str, list[int]] = {}
        for lane in lanes:
            topics.setdefault(lane.stored.topic, []).append(lane.stored.partition)
        request = AddPartitionsToTxnRequest(self.transactional_id, *self._producer, list(topics.items()))
        await self._ask(
            CoordinationType.TRANSACTION, request, lambda one: [code for _, parts in one.errors for _, code in parts]
        )

    async def _produce_all(self, lanes: list[DeliveryLane], batches: list[Batch]) -> list[int]:
        offsets: dict[DeliveryLane, int] = {}
        waiting = dict(zip(lanes, batches, strict=True))
        until = self.delivery.now() + self.transaction_timeout_ms / 2000  # the rest is for the commit
        while waiting:
            by_node: dict[int, list[DeliveryLane]] = {}
            for lane in waiting:
                by_node.setdefault(lane.topic.leaders.get(lane.stored.partition, -1), []).append(lane)
            requests = [self._produce(node, [(lane, waiting[lane]) for lane in some]) for node, some in by_node.items()]
            # Each to its end: one that outlives its transaction would send into the next one.
            answers = await asyncio.gather(*requests, return_exceptions=True)
            for error in answers:
                if isinstance(error, BaseException):
                    raise error
            for lane, outcome, offset in (one for some in answers if isinstance(some, list) for one in some):
                if outcome.action is Action.DONE:
                    offsets[lane] = offset
                    del waiting[lane]
                elif outcome.action in (Action.SPLIT, Action.REFUSED, Action.NEW_IDENTITY, Action.NEW_PRODUCER):
                    raise _RefusedError(lane, outcome)
                else:
                    lane.error = outcome.reason
            if waiting:
                if self.delivery.now() > until:
                    raise AbortedError(f"not all partitions got through in time: {lane.error} lane={lane.stored}")
                self.delivery.client.stale = True
                self.delivery.connection.want_metadata()
                await asyncio.sleep(self.delivery.options.backoff_s)
        return [offsets[lane] for lane in lanes]

    async def _produce(
        self, node: int, some: list[tuple[DeliveryLane, Batch]]
    ) -> list[tuple[DeliveryLane, Outcome, int]]:
        delivery = self.delivery
        if node < 0:
            return [(lane, NOT_SENT, -1) for lane, _ in some]
        parts = await delivery.in_thread(self._payloads, some)
        request = ProduceRequest(
            self.transactional_id,
            self.timeout_ms,
            [(lane.stored.topic, lane.stored.partition, part) for (lane, _), part in zip(some, parts, strict=True)],
        )
        delivery.requests += 1
        try:
            limit = delivery.request_timeout_s + self.timeout_ms / 1000
            answers = await delivery.client.produce(node, request, apart=False, timeout_s=limit)
        except kafka.NodeNotReadyError:
            return [(lane, NOT_SENT, -1) for lane, _ in some]
        except FAILURES as error:
            too_large = await self.cut(node, sum(batch.size for _, batch in some), error)
            if too_large is None:
                return [(lane, LOST, -1) for lane, _ in some]
            if len(some) == 1:
                raise _RefusedError(some[0][0], Outcome(Action.SPLIT, Persisted.NOT, too_large)) from error
            raise AbortedError(too_large) from error
        return self.outcomes(node, [lane for lane, _ in some], answers)

    def _payloads(self, some: list[tuple[DeliveryLane, Batch]]) -> list[list[Any]]:
        parts = []
        for lane, batch in some:
            if lane.producer != self._producer:
                lane.producer, lane.sequence = self._producer, 0
            if batch.identity is None or batch.identity[:2] != self._producer:
                identity = (*self._producer, lane.sequence)
                batch.store_identity(identity, self.delivery.ring.files.boot_ms(), self.delivery.ring.epoch)
            parts.append(payload(batch, self.delivery.options.compression, TRANSACTIONAL))
        return parts

    async def _commit(self) -> None:
        tid, producer = self.transactional_id, self._producer
        request: Any = AddOffsetsToTxnRequest(tid, *producer, tid)
        await self._ask(CoordinationType.TRANSACTION, request, lambda one: [one.error_code])
        topic, partition = POSITION
        request = TxnOffsetCommitRequest(tid, tid, *producer, [(topic, [(partition, self.number, "")])])
        await self._ask(
            CoordinationType.GROUP, request, lambda one: [code for _, parts in one.errors for _, code in parts]
        )
        await self._end(commit=True)

    async def _end(self, *, commit: bool) -> None:
        request = EndTxnRequest(self.transactional_id, *self._producer, commit)
        await self._ask(CoordinationType.TRANSACTION, request, lambda one: [one.error_code])

    async def _give_up(
        self,
        lanes: list[DeliveryLane],
        batches: list[Batch],
        refused: "_RefusedError | None",
        error: BaseException | None = None,
    ) -> None:
        """Abort, by fencing ourselves: what was committed after all is found by its number then."""
        delivery = self.delivery
        self._producer = -1, -1
        reason = str(error) if refused is None else refused.outcome.reason
        delivery.throttle.warn("transaction_aborted", "transaction", "a transaction is sent again: %s", reason)
        while True:
            try:
                await self._begin()
            except (*FAILURES, AbortedError) as failure:
                await self._back_off(lanes, failure)
            else:
                break
        for lane, batch in zip(lanes, batches, strict=True):
            if batch.done:  # it was committed after all
                delivery.router.go_on(lane)
                continue
            batch.identity = None
            if refused is not None and lane is refused.lane and refused.outcome.action is Action.SPLIT:
                delivery.too_large(lane, batch, reason)
            elif refused is not None and lane is refused.lane and refused.outcome.action is Action.REFUSED:
                delivery.refused(lane, batch, reason)
            elif lane.state is LaneState.IN_FLIGHT:
                delivery.failed(lane, Outcome(Action.RETRY, Persisted.NOT, reason))

    async def _ask(self, kind: CoordinationType, request: Any, codes_of: Callable[[Any], list[int]]) -> Any:
        """Ask the coordinator until it answers 0 for everything.

        Raises:
            WalDestinationError: another process has taken the transactional id.
            AbortedError: it refuses, or the time of a transaction is up.

        """
        until = self.delivery.now() + self.transaction_timeout_ms / 1000
        client = self.delivery.client
        while True:
            codes: list[int] = []
            try:
                node = self._coordinators.get(kind)
                if node is None:
                    node = self._coordinators[kind] = await client.coordinator(kind, self.transactional_id)
                answer = await client.ask(node, request)
                codes = [code for code in codes_of(answer) if code]
                if not codes:
                    return answer
            except FAILURES as error:
                self._coordinators.pop(kind, None)
                client.cause = str(error) or type(error).__name__
                if isinstance(error, kafka.GroupAuthorizationFailedError | kafka.TransactionalIdAuthorizationFailed):
                    codes = [error.errno]
            if FENCED_CODES.intersection(codes) and self._producer[0] >= 0:
                raise WalDestinationError(
                    "another process delivers under this transactional id, a copy of the directory perhaps: stop one "
                    f"of the two transactional_id={self.transactional_id}"
                )
            if any(code not in AGAIN_CODES and code != UNSTABLE for code in codes):
                raise AbortedError(f"the coordinator refuses: {_reason(kind, codes[0])} code={codes[0]}")
            if {15, 16}.intersection(codes):
                self._coordinators.pop(kind, None)
            if self.delivery.now() > until:
                cause = _reason(kind, codes[0]) if codes else client.cause
                raise AbortedError(f"the coordinator is not ready in time: {cause}")
            await asyncio.sleep(AGAIN_S)


def _reason(kind: CoordinationType, code: int) -> str:
    if kind is CoordinationType.GROUP and code == NO_TOPIC_RIGHT:
        return f"not authorized: grant Read on the topic {POSITION[0]}, beside which the number stands"
    return outcome_of(code).reason


class _RefusedError(DeliveryError):
    def __init__(self, lane: DeliveryLane, outcome: Outcome) -> None:
        super().__init__(outcome.reason, persisted="not")
        self.lane, self.outcome = lane, outcome
