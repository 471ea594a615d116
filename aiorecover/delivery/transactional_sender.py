"""How a batch is sent, and what becomes of it, where all goes in transactions (`transactions`)."""

import time
from typing import Any

from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.structs import RecordMetadata

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.outcomes import Persisted, Verdict, outcome_of
from aiorecover.delivery.sender import Over, Sender
from aiorecover.delivery.session import SessionLostError
from aiorecover.delivery.sessions import GivenUpError, tell_stuck
from aiorecover.delivery.transaction import refused_topics
from aiorecover.delivery.transactions import Transactions


class TransactionalSender(Sender):
    """As `Sender`, but the identity is the transaction's, nothing is written down, and an acknowledgement is no end."""

    def __init__(self, transactions: Transactions, *others: Any, **options: Any) -> None:
        """``transactions``: which tell when, and take what was acknowledged; the others: as of `Sender`."""
        super().__init__(*others, **options)
        self._transactions = transactions

    async def _attempt(self, lane: Lane, batch: LaneBatch, over: Over) -> RecordMetadata:
        while not self._transactions.admits(lane):
            if over():
                raise GivenUpError
            await self._transactions.changed()
        lane.identify(batch, await self._sessions.identity(lane, over))
        return await self._sessions.send(lane, batch, over)

    async def _after(self, lane: Lane, batch: LaneBatch, error: BaseException, over: Over) -> bool:
        """A transaction in which a batch may be, or may not, is worth nothing: it is begun anew."""
        if isinstance(error, SessionLostError):
            batch.possibly = True
            return True
        outcome = outcome_of(error)
        if outcome.verdict is Verdict.PERMANENT and not batch.possibly:
            await self._give_up(lane, batch, error, over)
            return False
        if isinstance(error, TopicAuthorizationFailedError):  # that has ended the transaction
            self._transactions.refused(refused_topics(error, lane.topic))
        elif outcome.verdict is Verdict.RETRIABLE:
            batch.possibly |= outcome.persisted is not Persisted.NOT
            tell_stuck(lane, batch, error)
        else:
            self._sessions.give_up(lane, f"{type(error).__name__}: {error}")
        return True

    async def _part_with_expired(self, lane: Lane, batch: LaneBatch) -> bool:
        """What may be in the transaction is not given up before that is aborted."""
        if not batch.possibly:
            return await super()._part_with_expired(lane, batch)
        if self._transactions.admits(lane):  # else it is lost already, and the session may be the next one
            self._sessions.give_up(lane, "what was sent has expired")
        await self._transactions.changed()
        return False

    async def _settle(self, lane: Lane, batch: LaneBatch, metadata: RecordMetadata) -> None:
        """Not before the commit."""
        batch.possibly = True
        if lane.limit is not None:
            lane.limit.taken(batch.bytes, time.monotonic())
        if batch.rest is not None:
            batch.rest.at_fault = True
        lane.acknowledged(metadata.offset)
        self._transactions.take(lane, batch, metadata)
