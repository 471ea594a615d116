"""What delivery has besides, where all goes in transactions: their loop, and what the position covers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec

from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.committed import owner_of
from aiorecover.delivery.covered import Covered
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.flush import Queue
from aiorecover.delivery.holders import Frames
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refused import Refused
from aiorecover.delivery.reports import Reports
from aiorecover.delivery.router import Router
from aiorecover.delivery.session import Session
from aiorecover.delivery.settling import settle_batch
from aiorecover.delivery.topic_rights import TopicRights
from aiorecover.delivery.transaction import group_of, transactional_id
from aiorecover.delivery.transactions import Taken, Transactions
from aiorecover.supervised import Supervised
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Transactional
from aiorecover.wal.directory import Directory
from aiorecover.wal.run import Run


class ExactlyOnce:
    """The transactions of one opened directory."""

    def __init__(
        self,
        directory: Directory,
        session: Session,
        router: Router,
        dispatcher: Dispatcher,
        reports: Reports,
        refused: Refused,
        expiry: Expiry,
        *,
        backoff: tuple[float, float],
        deliver: Callable[[Lane], None],
        flush_ring: Callable[[], Coroutine[Any, Any, None]],
        remember: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        on_disk_error: Callable[[Exception], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """Know everybody. The callables are those of `Transactions`; ``on_change``: records were settled, or are.

        ``backoff``: the first and the longest pause in seconds between two questions for a right that is missing.
        """
        self._router = router
        self._dispatcher = dispatcher
        self._reports = reports
        self._refused = refused
        self._expiry = expiry
        self._on_change = on_change
        checkpoint = directory.checkpoint
        self.transactions = Transactions(
            session,
            dispatcher,
            group=_group(directory),
            owner=owner_of(checkpoint.producer_id, checkpoint.epoch),
            epoch=checkpoint.epoch,
            known=_known(directory),
            rights=TopicRights(Backoff(*backoff, random.uniform)),
            floor=directory.ring.watermark,
            a_topic=self._a_topic,
            lanes=router.lanes,
            queues=self._queues,
            deliver=deliver,
            settle=self._settle,
            withdraw=refused.withdraw_durably,
            flush_ring=flush_ring,
            remember=remember,
            on_change=on_change,
            on_disk_error=on_disk_error,
            on_fenced=on_fenced,
        )
        self.covered = Covered(
            reports,
            dispatcher.reader,
            lambda: self.transactions.covered,
            self._on_covered,
            dispatcher.report_undeliverable,
        )
        self._committing = Supervised("transactions", self.transactions.run)
        self._settled = 0

    def start(self) -> None:
        """Begin with the first transaction, as soon as there is a session."""
        self._committing.start()

    def end(self) -> set[asyncio.Task[Any]]:
        """Begin to end; what is open is not committed."""
        return self._committing.end()

    async def close(self) -> None:
        """End, once nothing is sent any more."""
        await self.covered.close()

    def take(self, run: Run) -> int | None:
        """As `Covered.take`."""
        return self.covered.take(run)

    @property
    def known(self) -> Transactional:
        """What a checkpoint remembers."""
        return self.transactions.known

    @property
    def fenced(self) -> bool:
        """Somebody else delivers a copy of this directory."""
        return self.transactions.fenced

    @property
    def delivered(self) -> int:
        """Records that are committed, and settled."""
        return self._settled + self.covered.settled

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return self._committing.interrupted or self.covered.interrupted

    @property
    def taken(self) -> Iterator[Frames]:
        """Slot and places of the records that are in no lane, and not settled yet."""
        for batch in self.transactions.uncommitted:
            yield from batch.frames
        yield from self.covered.taken

    def _queues(self) -> Iterable[Queue]:
        return [self._refused, *self._expiry.queues, self.covered]

    def _a_topic(self) -> str | None:
        return next((name for name, topic in self._router.topics.items() if topic.count), None)

    def _on_covered(self) -> None:
        self._dispatcher.wake()
        self.transactions.wake()
        self._on_change()

    async def _settle(self, taken: Taken) -> None:
        """I3: it is committed; after everybody who wants to know first was told."""
        lane, batch, metadata = taken
        waited = await settle_batch(
            batch, lane.topic, metadata, reports=self._reports, refused=self._refused, expiry=self._expiry
        )
        self._settled += batch.count
        self._reports.tell(waited)


def first_id(directory: Directory) -> str:
    """The transactional id to begin with."""
    known = directory.checkpoint.destination.transactional
    return transactional_id(_group(directory), known.number if known is not None else 0)


def _group(directory: Directory) -> str:
    return group_of(fmt.producer_text(fmt.directory_of(directory.checkpoint.producer_id)))


def _known(directory: Directory) -> Transactional:
    """What the last opening remembered; where the checkpoint was lost, the openings whose slots are here."""
    known = directory.checkpoint.destination.transactional or Transactional()
    if known.line:
        return known
    headers = [slot.header for slot in directory.ring.live]
    owners = dict.fromkeys(owner_of(header.producer_id, header.epoch) for header in headers)
    return msgspec.structs.replace(known, line=tuple((owner, 0) for owner in owners))
