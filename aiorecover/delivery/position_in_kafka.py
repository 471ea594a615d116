"""The position in Kafka of one opening: where it stands, what it was when we came, and that it is ours from then on.

It is looked at by each session before anything is sent (`transactions`), and committed with each run.

Whose position it is
    The position bears the name of the opening that committed it, and tells how far the ones before it had come
    (`committed`). Before an opening commits anything it has it durable that it has read the position, and commits the
    same one once more under its own name. A process whose directory was copied, and whose copy was opened elsewhere,
    finds another name there: it stops delivering for good. What it had accepted since is delivered by its next start.

Where it stands, and under which transactional id
    In one place, chosen before anything is committed (the package says how), and waited for where Kafka refuses it. The
    number of the transactional id stands in it: where a transaction does not end, the next ones have another one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from aiorecover.delivery import transaction
from aiorecover.delivery.committed import (
    Committed,
    covered_by,
    dispatched,
    is_ours,
    opened_by,
    read_by,
    to_commit,
)
from aiorecover.delivery.hard_close import SessionLostError
from aiorecover.delivery.session import Session
from aiorecover.delivery.transaction import REFUSALS, PlaceRefusedError
from aiorecover.wal.checkpoint import Transactional

log = logging.getLogger("aiorecover.delivery")

LOOK = 0.05  # seconds between two looks, where nobody tells
RIGHTS_PAUSE = 0.5  # seconds between two attempts where Kafka refuses the position: no session is lost for it
APART_LIMIT = 10.0  # seconds until another producer is connected
FENCE_LIMIT = 2.0  # the same, where it may not

_T = TypeVar("_T")


class FencedError(Exception):
    """Somebody else delivers a copy of this directory."""


class Transact(Protocol):
    """As `Session.transact`, in the session that looks at the position, and in no later one."""

    async def __call__(self, step: Callable[[AIOKafkaProducer], Awaitable[_T]], /) -> _T:
        """Do ``step``."""


class PositionInKafka:
    """What an opening knows of it, and does with it."""

    def __init__(
        self,
        session: Session,
        transact: Transact,
        *,
        group: str,
        owner: str,
        epoch: int,
        known: Transactional,
        reached: Callable[[], int],
        floor: Callable[[], int],
        a_topic: Callable[[], str | None],
        remember: Callable[[], Awaitable[None]],
        until_news: Callable[[float], Awaitable[None]],
        tell: Callable[[BaseException, str], None],
    ) -> None:
        """``owner``, ``epoch``, ``known``, ``floor``, ``a_topic`` and ``remember`` are those of `Transactions`.

        ``reached``: the position that this opening has committed or settled last; 0: none. ``until_news`` returns when
        something may have changed, or after so many seconds. ``tell`` of trouble, one line for each kind of it.
        """
        self._session = session
        self._transact = transact
        self._group = group
        self._owner = owner
        self._epoch = epoch
        self.known = opened_by(known, owner)
        self._read_before = known.read_in > 0  # by an opening before this one
        self._place_is_open = not (known.topic or known.read_in)  # nobody can have committed a position yet
        self._refused = False  # the last commit, for want of a right
        self._reached = reached
        self._floor = floor
        self._a_topic = a_topic
        self._remember = remember
        self._until_news = until_news
        self._tell = tell
        self._last: dict[int, int] = {}  # positions of records of earlier epochs, by these, that were acknowledged
        self._left: int | None = None  # number of a transactional id that we have given up
        self.was_read = False  # by this opening, and bears its name
        self.covered = 0  # by the position that was found at first

    # -- for each session ----------------------------------------------------------------------------------------------

    async def look(self) -> Committed | None:
        """Read it, and have it bear our name; in another place where Kafka refuses it before anything was committed.

        Raises:
            FencedError: another opening has committed it.
            KafkaError: it cannot be told now.

        """
        while True:
            try:
                found = await self._granted(self._look_up)
                if self.was_read:
                    self._require_ours(found)
                else:
                    await self._begin_with(found)
            except PlaceRefusedError:
                await self._stand_elsewhere()
            else:
                return found

    def _require_ours(self, found: Committed | None) -> None:
        if found is not None and found.owner != self._owner:
            raise FencedError(found.owner)

    async def confirm(self) -> None:
        """Commit it as it is, where its id is new, or the right to do so was missing; the id that was left is fenced.

        Raises:
            KafkaError: the session cannot.

        """
        if self._left is not None or self._refused:
            await self._granted(self._commit_what_is_known)
            self._refused = False
        if self._left is not None:
            await self._fence(self._left)

    async def commit(self, position: int) -> None:
        """With what was sent since the transaction began.

        Raises:
            PlaceRefusedError: nothing was committed; the transaction is still open.
            KafkaError: whether it was committed is not known.

        """
        self.known = dispatched(self.known, self._last)
        committed = to_commit(position, self.known)
        await self._transact(lambda producer: transaction.commit(producer, self._group, self._topic, committed))

    def sent(self, epoch: int, position: int) -> None:
        """A record of an earlier epoch was acknowledged."""
        self._last[epoch] = max(self._last.get(epoch, 0), position)

    def refused(self, error: KafkaError) -> None:
        """So was a commit of it: the next one is of nothing but the position, until that goes well."""
        self._refused = True
        self._tell_refused(error)

    async def _granted(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Do it as soon as Kafka lets us; nothing is sent meanwhile that would only be aborted.

        Raises:
            PlaceRefusedError: the position may stand elsewhere.

        """
        while True:
            try:
                return await step()
            except REFUSALS as error:
                if self._place_is_open and isinstance(error, PlaceRefusedError):
                    raise
                self._tell_refused(error)
            await asyncio.sleep(RIGHTS_PAUSE)

    def _tell_refused(self, error: KafkaError) -> None:
        where = f"the topic {self._topic}" if isinstance(error, PlaceRefusedError) else "the group"
        self._tell(error, f"kafka refuses the position, and nothing is committed: grant Read on {where}, trying on")

    async def _stand_elsewhere(self) -> None:
        topic = await self._first_topic()
        log.warning(
            "no permission to read %s: the position stands beside the records of a topic instead, and is lost with it "
            "topic=%s group=%s",
            transaction.OFFSETS_TOPIC,
            topic,
            self._group,
        )
        self.known = msgspec.structs.replace(self.known, topic=topic)
        self._place_is_open = False

    async def _look_up(self) -> Committed | None:
        return await self._transact(self._reading)

    async def _reading(self, producer: AIOKafkaProducer) -> Committed | None:
        return await transaction.read(producer, self._group, self._topic)

    async def _first_topic(self) -> str:
        """The first one that something is published to, and that is there."""
        while (topic := self._a_topic()) is None:
            await self._until_news(LOOK)
            if self._session.number is None:
                raise SessionLostError
        return topic

    async def _begin_with(self, found: Committed | None) -> None:
        """The first look at the position: settle what it covers, and have it bear our name."""
        if found is not None and found.number > self.known.number:  # by a copy, or by what we are a copy of
            self._use_number(found.number)
            self._session.give_up("its transactions have another transactional id")
            raise SessionLostError
        if found is not None and found.number < self.known.number:  # the process before us died before it came so far
            self._left = found.number
        if found is None and self.known.committed_by:
            log.warning(
                "kafka has no position of this directory any more: what was settled counts, and what was in flight may "
                "come twice. it forgets one that is as old as the brokers' offsets.retention.minutes group=%s",
                self._group,
            )
        elif found is not None and self._read_before and not is_ours(found, self.known):
            log.warning(
                "another process has delivered a copy of this directory, or this is the copy: what that one has "
                "committed of its records is not sent again delivered_by=%s group=%s",
                found.owner,
                self._group,
            )
        self._place_is_open = found is None and not (self.known.topic or self.known.committed_by)
        self.covered = covered_by(found, self.known)
        before, self.known = self.known, read_by(self.known, found, self._epoch)
        try:
            await self._remember()
        except BaseException:
            self.known = before
            raise
        await self._granted(self._commit_what_is_known)
        self._place_is_open = False
        if self.known.committed_by != self._owner:
            self.known = msgspec.structs.replace(self.known, committed_by=self._owner)
            await self._remember()  # else nobody could tell a position that is gone from one that never was
        self.was_read = True

    async def _commit_what_is_known(self) -> None:
        """The position as far as we know it, under our name, and no records.

        Raises:
            PlaceRefusedError: nothing was committed; the session can be used on.

        """
        await self._transact(transaction.begin)
        try:
            await self.commit(max(self.covered, self._reached()) or self._floor())
        except REFUSALS:
            await self._transact(transaction.abort)
            raise

    @property
    def _topic(self) -> str:
        return self.known.topic or transaction.OFFSETS_TOPIC

    # -- its transactional id ------------------------------------------------------------------------------------------

    async def leave_id(self) -> None:
        """Go on under another transactional id: a transaction of this one does not end.

        As where the leader of one of its partitions is gone: it is decided, and that partition cannot be told. Our
        attempts to connect have seen to it that it is decided, and once the position is stable, it says how. So what
        comes next may begin; in the lane in question nothing passes what is there. A copy of the directory must not
        begin with the number that we leave: once the position bears ours, that one is fenced, or it still does not end.
        """
        await self._session.apart(self._reading, None, APART_LIMIT)
        log.warning(
            "a transaction does not end, for want of a leader perhaps: going on under another transactional id "
            "group=%s number=%d",
            self._group,
            self.known.number + 1,
        )
        before, self.known = self.known, msgspec.structs.replace(self.known, number=self.known.number + 1)
        try:
            await self._remember()
        except BaseException:
            self.known = before
            raise
        self._left = before.number
        self._use_number(self.known.number)
        self._session.give_up("its transactional id is left")  # it may have connected meanwhile, after all

    def _use_number(self, number: int) -> None:
        self.known = msgspec.structs.replace(self.known, number=number)
        self._session.transactional_id = transaction.transactional_id(self._group, number)
        self._session.unfinished_since = None
        self._session.start_refused = False

    async def _fence(self, number: int) -> None:
        """Nobody uses the transactional id that we have left: the position bears the new one's number from now on."""
        name = transaction.transactional_id(self._group, number)
        with suppress(KafkaError):  # it still does not end: so nobody else can use it, who would not read the position
            await self._session.apart(_nothing, name, FENCE_LIMIT)
        self._left = None


async def _nothing(_: AIOKafkaProducer) -> None:
    return
